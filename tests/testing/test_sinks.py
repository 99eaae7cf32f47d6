"""A sink that keeps what it gets."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.events import RunStarted, TextPreview
from agentloop.sinks import Observer, Sink
from agentloop.testing import RecordingSink


def preview(text: str, number: int = 1) -> TextPreview:
    return TextPreview(
        event_id=f"r:{number:010d}", occurred_at_ms=0, run_id="r", span_id="a", attempt_id="a", offset=0, text=text
    )


STARTED = RunStarted(
    event_id="r:0000000001",
    occurred_at_ms=0,
    run_id="r",
    span_id="r",
    agent="a",
    conversation=None,
    origin_id="o",
    catalogue_digest="d",
)


async def test_it_keeps_events_in_order_as_sink_and_as_observer() -> None:
    kept = RecordingSink()
    sink: Sink = kept
    observer: Observer = kept
    await observer.observe(STARTED)
    await sink.emit(preview("a", 2))
    await sink.emit(preview("b", 3))
    assert kept.types == ["run.started", "model.output", "model.output"]
    assert kept.text == "ab"
    assert kept.of(RunStarted) == [STARTED]


async def test_a_gate_holds_the_sender_at_its_next_event() -> None:
    gate = asyncio.Event()
    sink = RecordingSink(gate=gate)
    task = asyncio.create_task(sink.emit(preview("a")))
    await sink.waiting.wait()
    assert sink.events == []
    gate.set()
    await task
    assert sink.text == "a"


async def test_it_can_fail_on_one_type_of_event() -> None:
    sink = RecordingSink(fails_on=(TextPreview, ConnectionError("gone")))
    await sink.emit(STARTED)
    with pytest.raises(ConnectionError, match="gone"):
        await sink.emit(preview("a"))
    assert sink.types == ["run.started"]
