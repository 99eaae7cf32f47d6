from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from prompt_toolkit.input import DummyInput, PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from agentloop.cli.chat.private import history_file
from agentloop.cli.chat.prompt import Prompt
from agentloop.cli.chat.terminal import TerminalFront


class Terminal(io.StringIO):
    """A terminal that says when it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self._wrote = asyncio.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._wrote.set()
        return super().write(text)

    async def drawn(self, part: str) -> str:
        """All that was written, once that part of it is."""
        while part not in self.getvalue():
            self._wrote.clear()
            await self._wrote.wait()
        return self.getvalue()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that takes colour, and an input that is none."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))


def front(out: Terminal, *, height: int = 12, width: int = 40) -> TerminalFront:
    return TerminalFront(Prompt(None, input=DummyInput(), output=DummyOutput()), out=out, height=height, width=width)


async def test_what_streams_is_cleared_and_what_stands_is_printed_once() -> None:
    out = Terminal()
    shown = front(out)
    with shown.turn():
        shown.begin()
        shown.preview("**half** an")
        assert "\x1b[1mhalf\x1b[0m" in await out.drawn("half")
        shown.stands("**half** an answer")
    before, _, after = out.getvalue().rpartition("\x1b[2K")  # the region's only line
    assert "answer" not in before
    assert after.split() == ["\x1b[1mhalf\x1b[0m", "an", "answer"]


async def test_what_is_withdrawn_is_cleared() -> None:
    out = Terminal()
    shown = front(out)
    with shown.turn():
        shown.begin()
        shown.preview("one\n\ntwo\n\nthree")
        await out.drawn("three")
        shown.withdrawn()
    assert out.getvalue().endswith("\x1b[2K")
    assert out.getvalue().rpartition("three")[2].count("\x1b[1A") >= 5  # each of its lines


async def test_a_long_answer_streams_in_a_region_that_fits_the_screen() -> None:
    out = Terminal()
    shown = front(out, height=12)
    lines = [f"line {number}" for number in range(200)]
    with shown.turn():
        shown.begin()
        shown.preview("\n\n".join(lines))
        region = (await out.drawn("line 199")).rpartition("more above")[2]
        assert region.count("\n") <= 12
        shown.stands("\n\n".join(lines))
    final = out.getvalue().rpartition("\x1b[2K")[2]
    assert re.findall(r"line \d+", final) == lines


async def test_a_text_that_takes_long_to_lay_out_streams_as_it_is() -> None:
    out = Terminal()
    shown = front(out)
    text = "**word** " * 2_000
    with shown.turn():
        shown.begin()
        shown.preview(text + "**the end**")
        assert "**the end**" in await out.drawn("the end")
        shown.stands(text)
    assert "**" not in out.getvalue().rpartition("\x1b[2K")[2]


async def test_the_region_is_refreshed_at_a_bounded_rate() -> None:
    out = Terminal()
    shown = front(out)
    with shown.turn():
        shown.begin()
        for number in range(1_000):
            shown.preview(f"piece {number}")
            await asyncio.sleep(0)
        await out.drawn("piece 999")
        assert len(re.findall(r"piece \d+", out.getvalue())) < 30
        shown.stands("done")


async def test_a_turn_leaves_no_region_behind_whatever_ends_it() -> None:
    out = Terminal()
    shown = front(out)

    def fails() -> None:
        with shown.turn():
            shown.begin()
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fails()
    assert out.getvalue().count("\x1b[?25h") == out.getvalue().count("\x1b[?25l") == 1


def test_what_others_wrote_is_inert_in_every_line() -> None:
    out = Terminal()
    shown = front(out, width=200)
    evil = "a\x1b]8;;http://x\x07\x9b2J\u202eb\r[red]c"
    shown.line(evil)
    shown.labelled("call", f"{evil}\nend", style="cyan")
    shown.document(evil)
    inert = "a\ufffd]8;;http://x\ufffd\ufffd2J\ufffdb\ufffd[red]c"
    first, second, third = out.getvalue().splitlines()
    assert first == inert
    assert second == f"\x1b[36m  call     \x1b[0m{inert} end"
    assert third.startswith(inert.replace("\r", ""))


@pytest.fixture
def keys() -> PipeInput:
    with create_pipe_input() as made:
        yield made


async def read(keys: PipeInput, typed: str, *, history: Path | None = None, remember: bool = True) -> str:
    keys.send_text(typed)
    return await Prompt(history, input=keys, output=DummyOutput()).read("> ", remember=remember)


async def test_alt_enter_begins_another_line_and_enter_sends(keys: PipeInput) -> None:
    assert await read(keys, "one\x1b\rtwo\r") == "one\ntwo"


async def test_ctrl_c_clears_the_line(keys: PipeInput) -> None:
    assert await read(keys, "one\x1b\rtwo\x03three\r") == "three"


async def test_a_line_can_be_edited(keys: PipeInput) -> None:
    assert await read(keys, "two\x01one \r") == "one two"


async def test_ctrl_d_on_an_empty_line_ends(keys: PipeInput) -> None:
    with pytest.raises(EOFError):
        await read(keys, "\x04")


async def test_what_is_said_is_kept_in_the_file_and_what_is_answered_is_not(keys: PipeInput, tmp_path: Path) -> None:
    path = history_file({"XDG_STATE_HOME": str(tmp_path)})
    await read(keys, "first\x1b\rline\r", history=path)
    await read(keys, "y\r", history=path, remember=False)
    assert [line for line in path.read_text().splitlines() if line.startswith("+")] == ["+first", "+line"]
