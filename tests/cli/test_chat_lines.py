from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from agentloop.cli.chat.lines import Lines
from agentloop.errors import InputError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    try:
        os.close(write)
    except OSError:  # the test has
        return


async def test_lines_are_read_one_by_one_however_they_arrive(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"one\ntwo\r\n\n")
    assert [await lines.read() for _ in range(3)] == ["one", "two", ""]
    third = asyncio.create_task(lines.read())
    os.write(pipe[1], b"thr\xc3\xa9e\nlast")
    assert await third == "thr\u00e9e"
    os.close(pipe[1])
    assert await lines.read() == "last"
    for _ in range(2):
        with pytest.raises(EOFError):
            await lines.read()


async def test_a_line_that_is_no_text_is_refused_and_the_next_one_read(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"caf\xe9\nok\n")
    with pytest.raises(InputError, match="the line is not UTF-8 text"):
        await lines.read()
    assert await lines.read() == "ok"


async def test_a_line_without_end_is_refused(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0], max_bytes=10)
    os.write(pipe[1], b"x" * 11)
    with pytest.raises(InputError, match="expected a line of up to 10 bytes, got a longer one"):
        await lines.read()
    with pytest.raises(EOFError):
        await lines.read()


async def test_a_line_that_nobody_waits_for_any_more_is_the_next_one(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0])
    reading = asyncio.create_task(lines.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    os.write(pipe[1], b"late\nnext\n")
    assert [await lines.read() for _ in range(2)] == ["late", "next"]
