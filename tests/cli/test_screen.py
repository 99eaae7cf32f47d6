from __future__ import annotations

import io

import pytest

from agentloop.cli.screen import Screen, counted, server_words, usage_words
from agentloop.errors import HTTPStatusError, InputError
from agentloop.messages import Usage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "environ", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colour_only_where_a_terminal_wants_it(out: io.StringIO, environ: dict[str, str], coloured: bool) -> None:
    Screen(out, environ=environ).labelled("call", "read_note", style="cyan")
    assert ("\x1b[" in out.getvalue()) is coloured
    assert "read_note" in out.getvalue()


def test_a_line_ends_streamed_text_that_is_open() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for piece in ("one ", "two\n", "three"):
        screen.text("text", piece)
    screen.line("next")
    screen.end_text()
    assert out.getvalue() == "  text     one two\n           three\nnext\n"


def test_usage_that_is_not_known_is_said_so() -> None:
    assert usage_words(Usage(input_tokens=3, output_tokens=2, total_tokens=5)) == "3 tokens in, 2 out"
    assert usage_words(None) == "usage not reported"


def test_what_others_wrote_cannot_steer_a_terminal() -> None:
    out, pipe = Terminal(), io.StringIO()
    for stream in (out, pipe):
        Screen(stream, environ={"NO_COLOR": "1"}).text("text", "one\x1b]0;title\x07\ttwo\x9b2J")
    assert out.getvalue() == "  text     one\ufffd]0;title\ufffd\ttwo\ufffd2J"
    assert pipe.getvalue() == "  text     one\x1b]0;title\x07\ttwo\x9b2J"


def test_a_stream_that_cannot_encode_a_character_shows_its_escape() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Screen(out).line("caf\u00e9 \u2014 10 \u20ac")
    assert raw.getvalue() == b"caf\\xe9 \\u2014 10 \\u20ac\n"


def test_a_noun_is_in_the_plural_where_the_number_is_not_one() -> None:
    assert [counted(number, "call") for number in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
    assert usage_words(Usage(input_tokens=1, output_tokens=1, total_tokens=2)) == "1 token in, 1 out"


def test_what_a_server_said_is_one_line_that_steers_no_terminal() -> None:
    error = HTTPStatusError("HTTP 400", status=400, vendor_message="no\x1b[2J\nsuch model")
    assert server_words(error) == "the server said: no [2J such model"
    assert server_words(HTTPStatusError("HTTP 400", status=400)) is None
    assert server_words(InputError("x")) is None
