from __future__ import annotations

import json

import pytest

from agentloop.cli.inert import clean, exact, folded, one_line


@pytest.mark.parametrize(
    "steers",
    ["\x00", "\x07", "\x1b", "\r", "\x7f", "\x84", "\x9b", "\u202a", "\u202e", "\u2066", "\u2069", "\udce9"],
)
def test_what_steers_a_terminal_is_replaced(steers: str) -> None:
    assert clean(f"a{steers}[2Jb") == one_line(f"a{steers}[2Jb") == "a\ufffd[2Jb"


def test_lines_and_tabs_stay_and_other_letters_too() -> None:
    assert clean("a\tb\ncé\u05d0\u200f👍") == "a\tb\ncé\u05d0\u200f👍"


def test_one_line_begins_no_other() -> None:
    assert one_line("a\nend\tb") == "a end b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay \u202e01\u202c", "pay \\u202e01\\u202c"),
        ("a\u200bb\u2060\ufeff\u00ad", "a\\u200bb\\u2060\\ufeff\\u00ad"),
        ("a\u00a0b\u3000\u2028", "a\\u00a0b\\u3000\\u2028"),
        ("\u200e\u200f\u061c\u3164\u034f\u2800", "\\u200e\\u200f\\u061c\\u3164\\u034f\\u2800"),
        ("\U000e0041\U000e0100", "\\udb40\\udc41\\udb40\\udd00"),
        ("\x1b[2J\x9b\r\x7f\ud800", "\\u001b[2J\\u009b\\u000d\\u007f\\ud800"),
        ("a\u200db x\ufe0f \u200d", "a\\u200db x\\ufe0f \\u200d"),
        ("\ta\n", "    a\n"),
    ],
)
def test_what_nobody_sees_is_written_out_where_text_is_exact(text: str, shown: str) -> None:
    assert exact(text) == shown


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "Grüße 東京 \u05d0\u05d1 e\u0301", "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽 ❤\ufe0f\u200d🔥"]
)
def test_words_and_emoji_stay_as_they_are(text: str) -> None:
    assert exact(text) == text


def test_arguments_that_are_written_out_are_the_same_json() -> None:
    text = '{"a\u200b": "\u202e\U000e0041\u00a0"}'
    assert json.loads(exact(text)) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("abcdef", ["abcd", "ef"]),
        ("ab\n\ncdefg", ["ab", "", "cdef", "g"]),
        ("東京都", ["東京", "都"]),
        ("e\u0301" * 5, ["e\u0301" * 4, "e\u0301"]),
    ],
)
def test_rows_are_no_wider_than_they_may_be(text: str, rows: list[str]) -> None:
    assert list(folded(text, 4)) == rows


def test_a_row_has_a_character_where_none_fits() -> None:
    assert list(folded("東a", 1)) == ["東", "a"]
