"""The parts of a run: one id and one numbering, a span and a journal of each, and no way to another run."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.events import Event, ModelEnd, ModelStart, RequestRejected
from agentloop.sinks import Diagnostics, Emitter, ObserverHub
from agentloop.testing import RecordingSink


def made(**fields: Any) -> Diagnostics:
    ids = (f"id-{number}" for number in itertools.count(1))
    return Diagnostics(new_id=lambda: next(ids), now_ms=lambda: 7, **fields)


def note(emitter: Emitter) -> None:
    emitter.process(RequestRejected, code="c", limit="l", allowed=1, got=2)


async def call(emitter: Emitter, attempt: str) -> None:
    await emitter.output(ModelStart, attempt, attempt_id=attempt, call_sequence=1)
    await emitter.end(attempt, attempt_id=attempt, call_sequence=1, status="success", retracted=False, duration_ms=1)


def test_a_run_that_nobody_named_has_an_id_of_its_own() -> None:
    """(R276)"""
    run = made()
    assert (run.run_id, run.span_id, run.parent_span_id, run.above) == ("id-1", "id-1", None, None)
    assert Diagnostics().run_id != Diagnostics().run_id
    named = made(run_id="r", span_id="s")
    assert (named.run_id, named.span_id, named.parent_span_id) == ("r", "s", "r")
    same = made(run_id="r", span_id="r")
    assert same.parent_span_id is None
    assert repr(named) == "Diagnostics(run_id='r', span_id='s')"


async def test_parts_share_the_run_s_id_and_numbering_and_have_a_span_and_a_journal_each() -> None:
    """(R274, R276, R307, R312, R319)"""
    seen, sinks = RecordingSink(), [RecordingSink(), RecordingSink(), RecordingSink()]
    hub = ObserverHub([seen])
    run = made(run_id="r", output=sinks[0])
    part = run.child("part", output=sinks[1])
    leaf = part.child(output=sinks[2])
    assert (part.parent_span_id, leaf.parent_span_id, leaf.span_id) == ("r", "part", "id-1")
    assert (part.above, leaf.above) == (run, part)
    emitters = [each.bind(hub) for each in (run, part, leaf)]
    for emitter in emitters:
        note(emitter)
    await asyncio.gather(*(call(emitter, f"a{at}") for at, emitter in enumerate(emitters)))
    await hub.close()
    assert {event.run_id for event in seen.events} == {"r"}
    assert sorted(event.event_id for event in seen.events) == [f"r:{number:010d}" for number in range(1, 10)]
    spans = [(event.span_id, event.parent_span_id) for event in seen.of(RequestRejected)]
    assert spans == [("r", None), ("part", "r"), ("id-1", "part")]
    calls = [(event.span_id, event.parent_span_id, event.invocation_id) for event in seen.of(ModelEnd)]
    assert calls == [("a0", "r", "a0"), ("a1", "part", "a1"), ("a2", "id-1", "a2")]
    for at, (sink, each) in enumerate(zip(sinks, (run, part, leaf), strict=True)):
        assert [event.span_id for event in sink.events] == [f"a{at}"] * 2
        assert [trace.invocation_id for trace in each.journal.model] == [f"a{at}"]
        assert len(each.journal.rejected) == 1


def test_a_span_is_there_once_in_its_run() -> None:
    """(R276, R312)"""
    run = made(run_id="r", span_id="s")
    part = run.child("part")
    for name in ("r", "s", "part", "leaf"):
        if name == "leaf":
            part.child("leaf")
        for above in (run, part):
            with pytest.raises(InputError, match=f"expected one that is new in its run, got '{name}' again"):
                above.child(name)
    made(run_id="r", span_id="s").child("part")  # of another run, whatever it is called


def test_a_part_tells_of_one_runner() -> None:
    """(R276)"""
    part = made().child()
    part.check_free()
    part.bind(None)
    for again in (part.check_free, lambda: part.bind(None)):
        with pytest.raises(InputError, match="expected a part that no runner has, got one that is in use"):
            again()


async def test_a_part_can_tell_of_another_execution_for_a_while() -> None:
    """(R270, R312)"""
    run = made(run_id="r")
    part = run.child("part")
    with pytest.raises(InputError, match="expected a part that a runner has, got one that nobody tells of"):
        part.within("node", "engine")
    seen = RecordingSink()
    hub = ObserverHub([seen])
    emitter = part.bind(hub)
    with part.within("node", "engine"):
        note(emitter)
        await call(emitter, "a1")
        with part.within("inner", None):
            note(emitter)
        note(emitter)
    note(emitter)
    await hub.close()
    assert [(event.span_id, event.parent_span_id) for event in seen.events] == [
        ("node", "engine"),
        ("a1", "node"),
        ("a1", "node"),
        ("inner", None),
        ("node", "engine"),
        ("part", "r"),
    ]
    assert [event.sequence for event in seen.events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run_id": ""}, "Diagnostics.run_id: expected a string of 1 to 128 characters, got 0 characters"),
        ({"run_id": "x" * 129}, "Diagnostics.run_id: expected a string of 1 to 128 characters, got 129 characters"),
        ({"span_id": 1}, "Diagnostics.span_id: expected a string of 1 to 128 characters, got int"),
        ({"span_id": "\ud800"}, "Diagnostics.span_id: expected text that UTF-8 can encode, got a lone surrogate"),
        ({"output": "s"}, "Diagnostics.output: expected an object with an async emit(event), got str"),
    ],
)
def test_what_a_part_cannot_use_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        made(**fields)
    assert str(caught.value) == message
    child = {name: value for name, value in fields.items() if name != "run_id"}
    if child:
        with pytest.raises(InputError) as caught:
            made(run_id="r").child(**child)
        assert str(caught.value) == message


async def test_an_event_of_a_part_can_be_told_from_one_of_the_run() -> None:
    """(R261)"""
    run = made(run_id="r")
    events: list[Event] = []
    emitter = Emitter("r", None, journal=events.append, span_id="part", parent_span_id="r", numbers=itertools.count(5))
    note(emitter)
    note(run.bind(None))
    (event,) = events
    assert (event.event_id, event.span_id, event.parent_span_id) == ("r:0000000005", "part", "r")
    assert run.journal.rejected[0].occurred_at_ms == 7
