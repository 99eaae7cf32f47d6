"""Stamping and delivering: one numbering, the sink first, and a last event that nothing holds up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from agentloop.events import (
    Event,
    ModelEnd,
    ModelStart,
    OutputEvent,
    RequestRejected,
    RunStarted,
    RunStopping,
    TextPreview,
    ToolStarted,
    decode_event,
    encode_event,
    event_id,
)
from agentloop.events.envelope import wall_ms
from agentloop.messages import Usage
from agentloop.sinks import Emitter, Feed, ObserverHub
from agentloop.testing import RecordingSink
from tests.exchange.desk import Desk
from tests.messages.values import reply
from tests.sinks.feeding import Line, taken


class Failing:
    """A sink that raises ``error`` on events of ``kind``; counts what it got."""

    def __init__(self, kind: type[Event] | tuple[type[Event], ...], error: BaseException) -> None:
        self.kind, self.error = kind, error
        self.got: list[str] = []

    async def emit(self, event: OutputEvent) -> None:
        self.got.append(event.type)
        if isinstance(event, self.kind):
            raise self.error


class Stuck:
    """A sink that never returns from events of ``kind``."""

    def __init__(self, kind: type[Event] = ModelEnd) -> None:
        self.kind = kind
        self.reached = asyncio.Event()

    async def emit(self, event: OutputEvent) -> None:
        if isinstance(event, self.kind):
            self.reached.set()
            await asyncio.Event().wait()


async def test_every_event_has_the_one_envelope() -> None:
    """(R261, R318, R320)"""
    sink = RecordingSink()
    line = Line(sink=sink, run="run-7")
    line.emitter.process(RunStarted, agent="a", conversation=None, origin_id="o", catalogue_digest="d")
    line.now = 2_000
    await line.call("x")
    events = await taken(line.feed.follow())
    first, *others = events
    assert (first.event_id, first.occurred_at_ms, first.run_id) == ("run-7:0000000001", 1_000, "run-7")
    assert (first.span_id, first.parent_span_id, first.invocation_id) == ("run-7", None, None)
    for event in others:
        assert (event.run_id, event.occurred_at_ms) == ("run-7", 2_000)
        assert (event.span_id, event.parent_span_id, event.invocation_id) == ("a1", "run-7", "a1")
    assert sink.events == others  # the same objects for sink and reader


async def test_ids_count_up_by_one_over_output_and_process_events_and_sort_in_order() -> None:
    """(R319)"""
    line = Line()
    for _ in range(4):
        line.note()
        await line.call()
    ids = [event.event_id for event in await taken(line.feed.follow())]
    assert ids == sorted(ids)
    assert [event.rpartition(":")[2] for event in ids] == [f"{number:010d}" for number in range(1, 13)]


async def test_the_end_of_a_call_names_what_its_start_named() -> None:
    """(R266, R320)"""
    line = Line()
    used = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    for _ in range(2):
        await line.start()
        await line.end(usage=used, duration_ms=5)
    starts = [event for event in await taken(line.feed.follow()) if isinstance(event, ModelStart)]
    ends = [event for event in await taken(line.feed.follow()) if isinstance(event, ModelEnd)]
    assert [event.call_sequence for event in starts] == [event.call_sequence for event in ends] == [1, 2]
    assert [event.invocation_id for event in starts] == [event.invocation_id for event in ends] == ["a1", "a2"]
    assert [(event.usage, event.duration_ms, event.status) for event in ends] == [(used, 5, "success")] * 2


async def test_what_is_emitted_can_be_written_and_read_again() -> None:
    """(R318)"""
    line = Line()
    line.note()
    await line.call("é😀")
    for event in await taken(line.feed.follow()):
        assert decode_event(encode_event(event)) == event


async def test_the_sink_is_awaited_before_readers_and_observers_see_the_event() -> None:
    """(R262)"""
    gate = asyncio.Event()
    sink, observer = RecordingSink(gate=gate), RecordingSink()
    hub = ObserverHub([observer])
    line = Line(sink=sink, observers=hub)
    follower = line.feed.follow()
    emitting = asyncio.ensure_future(line.start())
    await sink.waiting.wait()
    assert await taken(follower) == []
    assert observer.events == []
    gate.set()
    await emitting
    assert [event.type for event in await taken(follower)] == ["model.start"]
    await hub.close()
    assert observer.types == ["model.start"]


async def test_a_sink_gets_output_events_only_one_after_the_other_and_in_order() -> None:
    """(R262, R263)"""
    running = 0
    seen: list[str] = []

    class Slow:
        async def emit(self, event: OutputEvent) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            seen.append(event.type)

    line = Line(sink=Slow())
    line.note()
    await line.start()
    await line.show("a")
    await line.parsed()
    await line.end()
    assert seen == ["model.start", "model.output", "model.parsed", "model.end"]


@pytest.mark.parametrize("kind", [ModelStart, TextPreview])
async def test_what_a_sink_raises_reaches_the_run_and_readers_still_get_the_event(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Every start has its end, for readers too (R262, R321)."""
    error = RuntimeError("the browser is gone")
    sink = Failing((kind, ModelEnd), error)
    line = Line(sink=sink)
    with pytest.raises(RuntimeError) as caught:
        await line.call("a", "b")
    assert caught.value is error
    await line.end("error", code="delivery")
    types = [event.type for event in await taken(line.feed.follow())]
    assert types[0] == "model.start"
    assert types[-1] == "model.end"
    assert types.count("model.start") == types.count("model.end") == 1
    assert caplog.text == ""  # the run ends with the error, and says so
    assert sink.got[-1] == "model.end"  # it is tried, so that the sink can take its preview back


async def test_a_sink_that_never_returns_holds_the_last_event_up_for_250_ms() -> None:
    """(R264)"""
    line = Line(sink=Stuck())
    await line.start()
    began = time.monotonic()
    await line.end()
    assert 0.2 <= time.monotonic() - began < 2
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end"]


@pytest.mark.parametrize(
    "error", [RuntimeError("gone"), TimeoutError(), ExceptionGroup("all", [ValueError()]), asyncio.CancelledError()]
)
async def test_a_sink_that_fails_on_the_last_event_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """(R264, R265)"""
    line = Line(sink=Failing(ModelEnd, error))
    await line.call("x")
    assert [record.levelname for record in caplog.records] == [
        "WARNING" if isinstance(error, TimeoutError) else "ERROR"
    ]
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.output", "model.end"]


async def test_what_was_stored_stays_when_its_last_event_cannot_be_delivered() -> None:
    """(R265)"""
    desk = Desk()
    turn = desk.open()
    line = Line(sink=Failing(ModelEnd, RuntimeError()))
    await line.start()
    desk.take(turn, reply())
    await line.end()
    assert len(turn.entries) == 1


async def test_the_last_event_is_tried_while_a_cancel_is_under_way() -> None:
    """(R265)"""
    sink = RecordingSink()
    line = Line(sink=sink)
    shown = asyncio.Event()

    async def run() -> None:
        await line.start()
        try:
            shown.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await line.end("cancelled", code="cancelled")
            raise

    task = asyncio.ensure_future(run())
    await shown.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sink.types == ["model.start", "model.end"]
    assert sink.of(ModelEnd)[0].status == "cancelled"


async def test_a_second_cancel_during_the_last_event_is_passed_on_after_it_is_published() -> None:
    """(R265)"""
    sink = Stuck()
    line = Line(sink=sink)
    await line.start()
    ending = asyncio.ensure_future(line.end("cancelled"))
    await sink.reached.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end"]


async def test_a_sink_that_answers_a_cancel_with_an_error_on_the_last_event_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """(R265)"""

    class Cross(Stuck):
        async def emit(self, event: OutputEvent) -> None:
            try:
                await super().emit(event)
            except asyncio.CancelledError:
                raise RuntimeError("gone") from None

    line = Line(sink=(sink := Cross()))
    await line.start()
    ending = asyncio.ensure_future(line.end("cancelled"))
    await sink.reached.wait()
    ending.cancel()
    await ending
    assert ending.cancelling() == 1  # which is how whoever awaited the sink still learns of it
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end"]


async def test_a_run_cancelled_while_its_sink_works_tells_start_and_end_in_order() -> None:
    """(R265, R319)"""
    sink = Stuck(TextPreview)
    line = Line(sink=sink)
    await line.start()
    showing = asyncio.ensure_future(line.show("x"))
    await sink.reached.wait()
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    await line.end("cancelled")
    events = await taken(line.feed.follow())
    assert [event.type for event in events] == ["model.start", "model.end"]
    assert [event.sequence for event in events] == [1, 3]


async def test_process_events_do_not_go_to_the_sink() -> None:
    """(R262)"""
    sink = RecordingSink()
    line = Line(sink=sink)
    line.note()
    line.emitter.process(
        ToolStarted, "run/0.0", tool="t", call_id="c", exchange=0, position=0, arguments='{"id": 10000000000000000001}'
    )
    assert sink.events == []
    rejected, started = await taken(line.feed.follow())
    assert isinstance(rejected, RequestRejected)
    assert isinstance(started, ToolStarted)
    assert (started.invocation_id, started.arguments) == ("run/0.0", '{"id": 10000000000000000001}')


async def test_without_a_sink_or_observers_readers_get_everything() -> None:
    feed = Feed()
    emitter = Emitter("r", feed, observers=ObserverHub([]))
    emitter.process(RequestRejected, code="c", limit="l", allowed=1, got=2)
    (event,) = await taken(feed.follow())
    assert abs(event.occurred_at_ms - wall_ms()) < 60_000


async def test_an_event_is_a_preview_and_no_fact() -> None:
    """(R126, R267)"""
    desk = Desk()
    turn = desk.open()
    line = Line()
    await line.call("the answer is", status="error")
    shown: Any = (await taken(line.feed.follow()))[0]
    with pytest.raises((AttributeError, AssertionError)):
        desk.book.install([shown])
    assert (turn.entries, turn.exchanges) == ([], [])


async def test_a_cancel_that_was_put_off_does_not_cut_the_last_event_off_and_is_raised_after_it() -> None:
    """(R265)"""
    got: list[Event] = []

    class Slow:
        async def emit(self, event: OutputEvent) -> None:
            await asyncio.sleep(0)
            got.append(event)

    line = Line(sink=Slow())
    await line.start()
    task = asyncio.current_task()
    assert task is not None
    task.cancel("the host's words")
    await line.end("cancelled")
    assert [event.type for event in got] == ["model.start", "model.end"]
    with pytest.raises(asyncio.CancelledError, match="the host's words"):
        await asyncio.sleep(0)
    assert task.uncancel() == 0


async def test_where_only_a_journal_hears_no_event_is_made_that_it_takes_nothing_of() -> None:
    heard: list[Event] = []
    emitter = Emitter("r", None, journal=heard.append)
    fields = {"attempt_id": "a", "call_sequence": 1}
    await emitter.output(ModelStart, "a", **fields, stage_id="model", model="m", dialect="openai")
    await emitter.output(TextPreview, "a", attempt_id="a", offset=0, text="Hi")
    await emitter.end("a", **fields, status="success", retracted=False)
    assert [(event.type, event.event_id) for event in heard] == [
        ("model.start", event_id("r", 1)),
        ("model.end", event_id("r", 2)),
    ]


# -- what another task tells


async def test_what_is_told_aside_while_the_sink_has_an_event_comes_after_it() -> None:
    """Readers get events in the order of their numbers (R319)."""

    class Held(RecordingSink):
        async def emit(self, event: Event) -> None:
            await super().emit(event)
            if isinstance(event, (ModelStart, ModelEnd)):
                line.emitter.aside(RunStopping, author=event.type)
                line.emitter.aside(RunStopping, author="again")

    line = Line(sink=Held())
    line.emitter.aside(RunStopping, author="before")
    await line.call("x")
    line.emitter.aside(RunStopping, author="after")
    events = await taken(line.feed.follow())
    told = [getattr(event, "author", event.type) for event in events]
    middle = told[told.index("again") + 1 : told.index("model.end")]
    assert told == [
        "before",
        "model.start",
        "model.start",
        "again",
        *middle,
        "model.end",
        "model.end",
        "again",
        "after",
    ]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_what_is_told_aside_while_a_cancel_is_put_off_comes_after_the_last_event() -> None:
    line = Line(sink=RecordingSink())
    await line.start()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(lambda: line.emitter.aside(RunStopping, author="Ada"))
    task.cancel()
    await line.end("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    task.uncancel()
    assert [event.type for event in await taken(line.feed.follow())] == ["model.start", "model.end", "run.stopping"]


@pytest.mark.parametrize("kind", [ModelStart, ModelEnd])
async def test_what_is_told_aside_is_told_also_where_the_sink_fails(kind: type[Event]) -> None:
    class Falling(Failing):
        async def emit(self, event: OutputEvent) -> None:
            line.emitter.aside(RunStopping, author=event.type)
            await super().emit(event)

    line = Line(sink=Falling(kind, ValueError("gone")))
    with contextlib.suppress(ValueError):
        await line.call("x")
    line.emitter.aside(RunStopping, author="after")
    events = await taken(line.feed.follow())
    assert [event.author for event in events if isinstance(event, RunStopping)][-1] == "after"
    assert kind.type in [event.author for event in events if isinstance(event, RunStopping)]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
