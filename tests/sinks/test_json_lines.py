"""Events as JSON Lines."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import AdmissionError, InputError
from agentloop.events import decode_event
from agentloop.sinks import JsonLinesSink, ObserverHub
from tests.sinks.feeding import Line, taken


async def test_each_event_is_one_line_that_reads_back_as_the_event() -> None:
    """(R261, R318)"""
    file = io.BytesIO()
    line = Line(sink=JsonLinesSink(file))
    await line.call("one\ntwo\u2028\r\n", "é😀\x00")
    lines = file.getvalue().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 4
    events = [decode_event(text) for text in lines]
    assert [event.type for event in events] == ["model.start", "model.output", "model.output", "model.end"]
    assert events[0] == (await taken(line.feed.follow()))[0]


async def test_it_serves_as_an_observer_of_all_events() -> None:
    """(R261)"""
    file = io.BytesIO()
    hub = ObserverHub([JsonLinesSink(file)])
    line = Line(observers=hub)
    line.note()
    await line.call("x")
    await hub.close()
    assert hub.failed == 0
    types = [decode_event(text).type for text in file.getvalue().splitlines()]
    assert types == ["runtime.rejected", "model.start", "model.output", "model.end"]


async def test_a_written_line_is_readable_at_once_and_the_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as file:
        line = Line(sink=JsonLinesSink(file))
        await line.start()
        assert decode_event(path.read_bytes().rstrip()).type == "model.start"
        await line.end()
        assert not file.closed
    assert len(path.read_bytes().splitlines()) == 2


async def test_flushing_can_be_left_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb", buffering=1 << 16) as file:
        await Line(sink=JsonLinesSink(file, flush=False)).call("x")
        assert path.read_bytes() == b""
    assert len(path.read_bytes().splitlines()) == 3


async def test_a_file_that_cannot_be_written_fails_the_run() -> None:
    """(R262)"""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as file:
        line = Line(sink=JsonLinesSink(file))
        with pytest.raises(BrokenPipeError):
            await line.start()


async def test_what_is_no_event_is_refused() -> None:
    other: Any = object()
    with pytest.raises(AdmissionError, match="expected an event of the catalogue, got object"):
        await JsonLinesSink(io.BytesIO()).emit(other)


@pytest.mark.parametrize("file", [3, "events.jsonl", io.StringIO()])
def test_what_is_no_binary_file_is_refused_when_it_is_made(file: Any) -> None:
    with pytest.raises(
        InputError, match=f"JsonLinesSink.file: expected an open binary file, got {type(file).__name__}"
    ):
        JsonLinesSink(file)
