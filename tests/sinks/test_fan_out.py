"""Several sinks as one, and a queue as a sink."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.events import Event, ModelEnd, OutputEvent, TextPreview
from agentloop.sinks import FanOut, QueueSink
from agentloop.testing import RecordingSink
from tests.sinks.feeding import Line, taken


async def test_each_sink_gets_each_event_in_the_order_given() -> None:
    """(R262)"""
    order: list[tuple[str, str]] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        async def emit(self, event: OutputEvent) -> None:
            order.append((self.name, event.type))

    line = Line(sink=FanOut(Named("a"), Named("b")))
    await line.call("x")
    types = ["model.start", "model.output", "model.end"]
    assert order == [(name, kind) for kind in types for name in ("a", "b")]


async def test_the_first_error_ends_the_run_and_later_sinks_do_not_get_the_event() -> None:
    error = RuntimeError()
    before, after = RecordingSink(), RecordingSink()
    line = Line(sink=FanOut(before, RecordingSink(fails_on=(TextPreview, error)), after))
    await line.start()
    with pytest.raises(RuntimeError) as caught:
        await line.show("x")
    assert caught.value is error
    assert (before.types, after.types) == (["model.start", "model.output"], ["model.start"])


async def test_no_sink_keeps_the_last_event_from_another() -> None:
    """All are told, so that each can take its preview back (R264, R265)."""

    class Stuck:
        async def emit(self, event: Event) -> None:
            if isinstance(event, ModelEnd):
                await asyncio.Event().wait()

    last = RecordingSink()
    line = Line(sink=FanOut(RecordingSink(fails_on=(ModelEnd, RuntimeError())), Stuck(), last))
    await line.call("x", status="error")
    assert last.types == ["model.start", "model.output", "model.end"]
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end"]


async def test_the_error_of_the_last_event_is_the_first_sinks() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    line = Line()
    await line.call()
    _, end = await taken(line.feed.follow())
    assert isinstance(end, ModelEnd)
    with pytest.raises(RuntimeError, match="first"):
        await FanOut(*(RecordingSink(fails_on=(ModelEnd, error)) for error in (first, second))).emit(end)


async def test_no_sinks_at_all_take_everything() -> None:
    line = Line(sink=FanOut())
    await line.call("x")
    assert len(await taken(line.feed.follow())) == 3


async def test_a_full_queue_holds_the_run_up_until_its_reader_takes_one() -> None:
    """(R262)"""
    sink = QueueSink(max_events=2)
    line = Line(sink=sink)
    calling = asyncio.ensure_future(line.call("a", "b"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not calling.done()
    got = [(await sink.get()).type for _ in range(4)]
    await calling
    assert got == ["model.start", "model.output", "model.output", "model.end"]


async def test_a_queue_without_a_reader_does_not_hold_the_last_event_up_for_ever() -> None:
    """(R264)"""
    line = Line(sink=QueueSink(max_events=1))
    await line.start()
    await asyncio.wait_for(line.end(), 5)
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end"]


@pytest.mark.parametrize("size", [0, -1, True, 1.5, None])
def test_a_queue_has_room_for_at_least_one_event(size: Any) -> None:
    with pytest.raises(InputError, match=r"QueueSink.max_events: expected an integer from 1"):
        QueueSink(size)


def test_what_is_no_sink_is_refused_by_its_place() -> None:
    with pytest.raises(InputError, match=r"FanOut\[1\]: expected an object with an async emit\(event\), got list"):
        FanOut(RecordingSink(), [RecordingSink()])  # type: ignore[arg-type]
