"""A journal is what its events say: no more, no less, however they were handed in."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.events import (
    EVENT_TYPES,
    Event,
    Journal,
    JournalSnapshot,
    ModelCallTrace,
    ModelEnd,
    ModelStart,
    NodeEnded,
    NodeStarted,
    NodeTrace,
    RequestRejected,
    RouteTaken,
    RouteTrace,
    ToolCallTrace,
    ToolEnded,
    ToolStarted,
    encode_event,
    event_id,
)
from agentloop.testing import FakeClock, ScriptedProvider, call, reply
from tests.events.test_codec import events as any_events
from tests.runs import follow_all

USAGE = al.Usage(input_tokens=3, output_tokens=4, total_tokens=7)


class Told:
    """Makes the events of one run, numbered, at a clock that a test sets."""

    def __init__(self, run_id: str = "r") -> None:
        self.run_id, self.at_ms = run_id, 1_000
        self.events: list[Event] = []

    def _tell(self, kind: type[Event], invocation_id: str | None, parent: str | None, fields: dict[str, Any]) -> None:
        self.events.append(
            kind(
                event_id=event_id(self.run_id, len(self.events) + 1),
                occurred_at_ms=self.at_ms,
                run_id=self.run_id,
                span_id=invocation_id or self.run_id,
                parent_span_id=parent or (self.run_id if invocation_id else None),
                invocation_id=invocation_id,
                **fields,
            )
        )

    def model(self, attempt: str, sequence: int = 1, *, parent: str | None = None, **fields: Any) -> None:
        self._tell(ModelStart, attempt, parent, {"attempt_id": attempt, "call_sequence": sequence, **fields})

    def model_end(
        self, attempt: str, sequence: int = 1, status: str = "success", *, parent: str | None = None, **fields: Any
    ) -> None:
        known = {"attempt_id": attempt, "call_sequence": sequence, "status": status, "retracted": False}
        self._tell(ModelEnd, attempt, parent, {**known, **fields})

    def tool(self, effect: str, attempt: int = 1) -> None:
        self._tell(
            ToolStarted, effect, None,
            {"tool": "t", "call_id": "c", "exchange": 0, "position": 0, "arguments": "{}", "attempt": attempt},
        )  # fmt: skip

    def tool_end(self, effect: str, status: str = "success", **fields: Any) -> None:
        known = {"tool": "t", "call_id": "c", "exchange": 0, "position": 0, "status": status, "slot": "done"}
        self._tell(ToolEnded, effect, None, {**known, **fields})

    def node(self, visit: str, node: str = "n", *, parent: str | None = None, number: int = 1) -> None:
        self._tell(NodeStarted, visit, parent, {"workflow": "w", "node": node, "round": number})

    def node_end(self, visit: str, node: str = "n", *, parent: str | None = None, **fields: Any) -> None:
        self._tell(NodeEnded, visit, parent, {"workflow": "w", "node": node, "round": 1, "status": "success", **fields})

    def route(self, visit: str, node: str, route: int | None, to: str | None, *, parent: str | None = None) -> None:
        fields = {"workflow": "w", "node": node, "round": 1, "route": route, "to": to}
        self._tell(RouteTaken, visit, parent, fields)

    def rejected(self, limit: str = "model_calls") -> None:
        self._tell(RequestRejected, None, None, {"code": "BUDGET", "limit": limit, "allowed": 1, "got": 2})


def refused(journal: Journal, event: Event) -> str:
    before = journal.snapshot()
    with pytest.raises(al.ConflictError) as caught:
        journal.apply(event)
    assert journal.snapshot() == before
    return str(caught.value)


# -- model calls


def test_a_model_call_that_is_over_has_one_trace_with_its_identity_time_and_end() -> None:
    """(R308, R310, R314, R320)"""
    told = Told()
    told.model("a1", 2, stage_id="triage", model_id="cheap", transport="core:plain-text", route="text", model="m-1")
    told.at_ms = 1_900
    told.model_end("a1", 2, usage=USAGE, duration_ms=950)
    journal = Journal.of(told.events)
    assert journal.model == (
        ModelCallTrace(
            invocation_id="a1",
            started_at_ms=950,  # its preparation came before the event of its start
            duration_ms=950,
            call_sequence=2,
            stage_id="triage",
            status="success",
            model_id="cheap",
            model="m-1",
            transport="core:plain-text",
            route="text",
            usage=USAGE,
            run_id="r",
        ),
    )


def test_a_tool_s_event_without_an_invocation_is_named_by_its_span() -> None:
    told = Told()
    told.tool("e1")
    told.tool_end("e1")
    start, end = (msgspec.structs.replace(event, invocation_id=None) for event in told.events)
    journal = Journal.of([start])
    assert journal.snapshot().open == ("e1",)
    journal.apply(end)
    assert [trace.invocation_id for trace in journal.tools] == ["e1"]


def test_the_newest_trace_is_the_last_of_all() -> None:
    told = Told()
    told.model("a1")
    told.model("a2", 2)
    assert Journal.of(told.events).last_model is None
    told.model_end("a2", 2)
    told.model_end("a1")
    journal = Journal.of(told.events)
    assert journal.last_model is journal.model[-1]
    assert journal.last_model is not None
    assert journal.last_model.invocation_id == "a1"


@pytest.mark.parametrize("status", ["error", "cancelled", "pending"])
def test_a_call_that_gave_no_value_has_a_trace_and_no_record(status: Any) -> None:
    """(R254)"""
    told = Told()
    told.model("a1")
    told.model_end("a1", status=status, code="connection_lost")
    (trace,) = Journal.of(told.events).model
    assert (trace.status, trace.code, trace.usage) == (status, "connection_lost", None)
    with pytest.raises(al.ConflictError, match=f"model call 'a1': expected status success, got {status}"):
        trace.record()


def test_a_record_names_the_run_that_its_call_is_stored_as() -> None:
    """A run of its own, or the one that it is part of; there is none of a call of no run."""
    trace = al.ModelCallTrace(
        invocation_id="a", started_at_ms=1, duration_ms=0, call_sequence=1, stage_id="s", status="success", run_id="r"
    )
    assert trace.record().ref == "r"
    assert msgspec.structs.replace(trace, ref="own").record().ref == "own"
    with pytest.raises(al.ConflictError, match="model call 'a': expected the call of a run, got that of none"):
        msgspec.structs.replace(trace, run_id=None).record()


def test_a_record_of_a_success_holds_the_documented_fields() -> None:
    """(R253, R254)"""
    told = Told()
    told.model("a1", 1, stage_id="triage", model_id="cheap", model="m-1", transport="t:x", route="call")
    told.model_end("a1", 1, usage=USAGE)
    told.tool("e1")
    told.tool_end("e1")
    journal = Journal.of(told.events)
    usage = {**dict.fromkeys(("cached_input_tokens", "reasoning_tokens")), "input_tokens": 3, "output_tokens": 4}
    assert msgspec.to_builtins(journal.model[0].record()) == {
        "invocation_id": "a1",
        "call_sequence": 1,
        "started_at_ms": 1_000,
        "stage_id": "triage",
        "model_id": "cheap",
        "model": "m-1",
        "transport": "t:x",
        "route": "call",
        "status": "success",
        "usage": {**usage, "total_tokens": 7},
        "ref": told.run_id,
    }
    assert msgspec.to_builtins(journal.tools[0].record()) == {
        "invocation_id": "e1",
        "tool_id": "t",
        "started_at_ms": 1_000,
        "status": "success",
    }


def test_a_call_inside_of_another_names_it_and_the_run_is_no_parent() -> None:
    """(R308, R312)"""
    told = Told()
    told.model("a1")
    told.model("a2", 2, parent="a1")
    told.model_end("a2", 2, parent="a1")
    told.model_end("a1")
    assert [(trace.invocation_id, trace.parent_invocation_id) for trace in Journal.of(told.events).model] == [
        ("a2", "a1"),
        ("a1", None),
    ]


def test_the_same_invocation_id_in_two_runs_is_two_calls() -> None:
    """(R310)"""
    one, two = Told("r1"), Told("r2")
    for told in (one, two):
        told.model("a1")
        told.model_end("a1")
    journal = Journal.of([one.events[0], two.events[0], two.events[1], one.events[1]])
    assert [(trace.run_id, trace.invocation_id) for trace in journal.model] == [("r2", "a1"), ("r1", "a1")]


def test_a_call_that_was_left_and_waited_for_again_is_one_call() -> None:
    """(R312)"""
    told = Told()
    told.model("a1")
    told.at_ms = 1_500
    told.model_end("a1", status="pending", code="pending", duration_ms=500)
    told.model("a2", 2)
    told.model_end("a2", 2)
    told.at_ms = 9_000
    told.model("a1")
    journal = Journal.of(told.events)
    assert [trace.status for trace in journal.model] == ["pending", "success"]
    told.at_ms = 9_100
    told.model_end("a1", usage=USAGE, duration_ms=100)
    journal.apply(told.events[-1])
    assert [(trace.invocation_id, trace.status) for trace in journal.model] == [("a2", "success"), ("a1", "success")]
    assert (journal.model[-1].started_at_ms, journal.model[-1].duration_ms) == (1_000, 8_100)


def test_what_a_budget_refused_is_told_apart_from_calls() -> None:
    """(R315)"""
    told = Told()
    told.model("a1")
    told.model_end("a1", status="error")
    told.rejected()
    told.model("a2", 2)
    told.model_end("a2", 2)
    journal = Journal.of(told.events)
    assert [trace.call_sequence for trace in journal.model] == [1, 2]
    (rejected,) = journal.rejected
    assert (rejected.run_id, rejected.code, rejected.limit, rejected.allowed, rejected.got) == (
        "r", "BUDGET", "model_calls", 1, 2,
    )  # fmt: skip


# -- tools


def test_a_node_that_is_left_has_one_trace_and_its_routes_are_kept_in_order() -> None:
    """(R307, R308)"""
    told = Told()
    told.node("v1", number=3, parent="engine")
    assert Journal.of(told.events).snapshot().open == ("v1",)
    told.at_ms = 1_900
    told.node_end("v1", status="error", code="ValueError", duration_ms=900, parent="engine")
    told.route("v1", "n", None, "m", parent="engine")
    told.node("v2", "m")
    told.node_end("v2", "m")
    told.route("v2", "m", 1, None)
    journal = Journal.of(told.events)
    assert journal.nodes == (
        NodeTrace(
            invocation_id="v1",
            workflow="w",
            node="n",
            round=3,
            started_at_ms=1_000,
            duration_ms=900,
            status="error",
            code="ValueError",
            parent_invocation_id="engine",
            run_id="r",
        ),
        NodeTrace(
            invocation_id="v2",
            workflow="w",
            node="m",
            round=1,
            started_at_ms=1_900,
            duration_ms=0,
            status="success",
            run_id="r",
        ),
    )
    assert journal.routes == (
        RouteTrace(
            invocation_id="v1",
            workflow="w",
            node="n",
            round=1,
            route=None,
            to="m",
            occurred_at_ms=1_900,
            parent_invocation_id="engine",
            run_id="r",
        ),
        RouteTrace(
            invocation_id="v2", workflow="w", node="m", round=1, route=1, to=None, occurred_at_ms=1_900, run_id="r"
        ),
    )
    snapshot = journal.snapshot()
    assert (snapshot.nodes, snapshot.routes, snapshot.open) == (journal.nodes, journal.routes, ())


def test_a_node_begins_and_ends_once_and_the_oldest_go_for_newer_ones() -> None:
    """(R307, R311)"""
    told = Told()
    told.node("v1")
    told.node_end("v1")
    start, end = told.events
    assert "expected an execution that has begun and not ended" in refused(Journal(), end)
    assert "expected a new execution, got one that goes on" in refused(Journal.of([start]), start)
    assert "node 'v1'" in refused(Journal.of([start, end]), end)
    tool = Told()
    tool.tool("v1")
    assert "node 'v1'" in refused(Journal.of(tool.events), end)  # a tool of the same id is another thing
    late = msgspec.structs.replace(end, duration_ms=5_000)
    assert Journal.of([start, late]).nodes[0].started_at_ms == -4_000  # the clock of the duration is believed
    for at in range(2, 6):
        told.node(f"v{at}")
        told.node_end(f"v{at}")
        told.route(f"v{at}", "n", 0, None)
    journal = Journal.of(told.events, max_records=2)
    assert [trace.invocation_id for trace in journal.nodes] == ["v4", "v5"]
    assert [trace.invocation_id for trace in journal.routes] == ["v4", "v5"]
    assert journal.snapshot().dropped == 5


def test_a_tool_of_a_run_has_a_trace_with_the_identity_of_its_effect() -> None:
    """(R310, R314)"""
    told = Told()
    told.tool("r/0.0")
    told.at_ms = 1_040
    told.tool_end("r/0.0", "error", code="tool_failed", duration_ms=40)
    assert Journal.of(told.events).tools == (
        ToolCallTrace(
            invocation_id="r/0.0",
            tool_id="t",
            started_at_ms=1_000,
            duration_ms=40,
            status="error",
            code="tool_failed",
            run_id="r",
        ),
    )


def test_a_repeated_run_of_a_tool_is_a_further_attempt_of_the_same_effect() -> None:
    told = Told()
    told.tool("r/0.0")
    told.tool_end("r/0.0", "cancelled")
    told.tool("r/0.0", attempt=2)  # its process dies: nobody tells how it ended
    told.tool("r/0.0", attempt=3)
    told.tool_end("r/0.0")
    traces = Journal.of(told.events).tools
    assert [(trace.invocation_id, trace.attempt, trace.status) for trace in traces] == [
        ("r/0.0", 1, "cancelled"),
        ("r/0.0", 3, "success"),
    ]


def test_an_execution_that_waited_for_its_child_run_goes_on_with_a_trace_of_the_same_number() -> None:
    told = Told()
    told.tool("r/0.0")
    told.tool_end("r/0.0", "waiting", slot="waiting", code="child")
    told.tool("r/0.0")
    told.tool_end("r/0.0")
    traces = Journal.of(told.events).tools
    assert [(trace.invocation_id, trace.attempt, trace.status, trace.code) for trace in traces] == [
        ("r/0.0", 1, "waiting", "child"),
        ("r/0.0", 1, "success", None),
    ]
    with pytest.raises(al.ConflictError):
        traces[0].record()


def test_a_host_s_tool_begins_and_ends_under_one_identity() -> None:
    """(R309, R312)"""
    now = iter([5_000, 5_030])
    journal = Journal(run_id="r", now_ms=lambda: next(now))
    assert journal.begin_tool("search", invocation_id="s1", parent_invocation_id="a1") == "s1"
    assert journal.snapshot().open == ("s1",)
    trace = journal.finish_tool("s1", "error", code="no_network")
    assert trace == ToolCallTrace(
        invocation_id="s1",
        tool_id="search",
        started_at_ms=5_000,
        duration_ms=30,
        status="error",
        code="no_network",
        parent_invocation_id="a1",
        run_id="r",
    )
    assert journal.tools == (trace,)


def test_ids_that_journals_make_are_unique_across_them() -> None:
    """(R312)"""
    ids = [journal.begin_tool("t") for journal in (Journal(), Journal()) for _ in range(50)]
    assert len(set(ids)) == 100
    named = itertools.count(1)
    assert Journal(new_id=lambda: f"id-{next(named)}").begin_tool("t") == "id-1"


def test_a_clock_that_is_set_back_gives_no_negative_duration() -> None:
    now = iter([5_000, 4_000])
    journal = Journal(now_ms=lambda: next(now))
    assert journal.finish_tool(journal.begin_tool("t"), "success").duration_ms == 0


def test_what_does_not_exist_cannot_be_finished_nor_anything_twice() -> None:
    """(R311)"""
    journal = Journal()
    with pytest.raises(al.ConflictError, match="tool call 'x': expected an execution that has begun and not ended"):
        journal.finish_tool("x", "success")
    journal.finish_tool(journal.begin_tool("t", invocation_id="x"), "success")
    before = journal.snapshot()
    with pytest.raises(al.ConflictError, match="tool call 'x': expected an execution that has begun and not ended"):
        journal.finish_tool("x", "error")
    assert journal.snapshot() == before


def test_an_identity_is_taken_once() -> None:
    """(R312)"""
    journal = Journal()
    journal.begin_tool("t", invocation_id="x")
    with pytest.raises(al.ConflictError, match="tool call 'x': expected a new execution, got one that goes on"):
        journal.begin_tool("t", invocation_id="x")
    journal.finish_tool("x", "success")
    with pytest.raises(al.ConflictError, match="tool call 'x': expected a new execution, got one that has ended"):
        journal.begin_tool("t", invocation_id="x")


def test_a_word_that_is_none_is_refused_by_name() -> None:
    journal, none = Journal(), None
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (none, {}, "begin_tool.tool_id: expected a non-empty string, got NoneType"),
        ("", {}, "begin_tool.tool_id: expected a non-empty string, got an empty one"),
        ("t", {"invocation_id": ""}, "begin_tool.invocation_id: expected a non-empty string, got an empty one"),
        ("t", {"parent_invocation_id": 3}, "begin_tool.parent_invocation_id: expected a non-empty string, got int"),
        (
            "t",
            {"invocation_id": "x", "parent_invocation_id": "x"},
            "begin_tool.parent_invocation_id: expected another execution, got itself",
        ),
    ]
    for tool_id, ids, text in wrong:
        with pytest.raises(al.InputError) as caught:
            journal.begin_tool(tool_id, **ids)
        assert str(caught.value) == text
    status: Any = "pending"
    with pytest.raises(al.InputError, match=r"finish_tool\.status: expected 'success', 'error', 'cancelled'"):
        journal.finish_tool(journal.begin_tool("t"), status)
    with pytest.raises(al.InputError, match=r"add_context\.type: expected a non-empty string"):
        journal.add_context("", 1)
    assert journal.context == ()
    with pytest.raises(al.InputError, match=r"Journal\.max_records: expected an integer from 1 to"):
        Journal(max_records=0)


# -- notes


def test_notes_are_numbered_from_one_and_keep_any_value() -> None:
    """(R316, R317)"""
    journal, value = Journal(), {"any": object()}
    journal.add_context("memory", value, stage_id="triage")
    journal.add_context("file", None, tool_id="t", invocation_id="x")
    assert [msgspec.structs.asdict(record) for record in journal.context] == [
        {"type": "memory", "producer_sequence": 1, "stage_id": "triage", "tool_id": None, "invocation_id": None,
         "value": value},
        {"type": "file", "producer_sequence": 2, "stage_id": None, "tool_id": "t", "invocation_id": "x",
         "value": None},
    ]  # fmt: skip
    assert journal.context[0].value is value


# -- what is refused, kept and given up


def test_an_event_that_follows_from_nothing_is_refused_and_changes_nothing() -> None:
    """(R311)"""
    told = Told()
    told.model("a1")
    told.model_end("a1")
    told.tool("e1")
    told.tool_end("e1")
    journal = Journal()
    for start, end in (told.events[:2], told.events[2:]):
        assert "has begun and not ended" in refused(journal, end)
        journal.apply(start)
        assert "got one that goes on" in refused(journal, start)
        journal.apply(end)
        assert "has begun and not ended" in refused(journal, end)


def test_a_tool_s_end_does_not_end_a_model_call_of_the_same_id() -> None:
    told = Told()
    told.model("x")
    told.tool_end("x")
    journal = Journal()
    journal.apply(told.events[0])
    assert "tool call 'x'" in refused(journal, told.events[1])
    assert journal.snapshot().open == ("x",)


def test_the_oldest_records_go_for_newer_ones_and_are_counted() -> None:
    told = Told()
    for number in range(1, 5):
        told.model(f"a{number}", number)
        told.model_end(f"a{number}", number)
        told.rejected()
    journal = Journal.of(told.events, max_records=2)
    assert [trace.invocation_id for trace in journal.model] == ["a3", "a4"]
    assert (len(journal.rejected), journal.snapshot().dropped) == (2, 4)


def test_a_snapshot_does_not_change_with_its_journal() -> None:
    journal = Journal()
    journal.begin_tool("t", invocation_id="x")
    snapshot = journal.snapshot()
    journal.finish_tool("x", "success")
    journal.add_context("memory", 1)
    assert snapshot == JournalSnapshot(open=("x",))
    with pytest.raises(AttributeError):
        snapshot.open = ()  # type: ignore[misc]


# -- a projection, however it is fed


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of two runs whose calls begin and end in any order that can be."""
    runs = [Told("r1"), Told("r2")]
    found: list[Event] = []
    begun: list[tuple[Told, str, str]] = []
    numbers = itertools.count(1)
    for _ in range(draw(st.integers(0, 12))):
        told = draw(st.sampled_from(runs))
        told.at_ms += draw(st.integers(0, 50))
        step = draw(st.sampled_from(["model", "tool", "node", "end", "rejected"]))
        if step == "model":
            told.model(name := f"i{next(numbers)}", draw(st.integers(1, 9)))
            begun.append((told, name, step))
        elif step == "tool":
            told.tool(name := f"i{next(numbers)}")
            begun.append((told, name, step))
        elif step == "node":
            told.node(name := f"i{next(numbers)}")
            begun.append((told, name, step))
        elif step == "rejected":
            told.rejected()
        elif begun:
            told, name, what = begun.pop(draw(st.integers(0, len(begun) - 1)))
            duration = draw(st.integers(0, 100))
            if what == "node":
                told.node_end(name, status=draw(st.sampled_from(["success", "error"])), duration_ms=duration)
            elif what == "tool":
                told.tool_end(name, draw(st.sampled_from(["success", "error", "cancelled"])), duration_ms=duration)
            else:
                status = draw(st.sampled_from(["success", "error", "cancelled", "pending"]))
                told.model_end(name, 1, status, duration_ms=duration)
                if status == "pending" and draw(st.booleans()):
                    told.model(name)
                    found += told.events[-2:]
                    begun.append((told, name, what))
                    continue
        else:
            continue
        found.append(told.events[-1])
    return found


@given(histories())
def test_a_journal_fed_live_is_the_journal_of_its_events(events: list[Event]) -> None:
    """One record for each call that ended, one for each that was refused, and nothing else (R307, R308)."""
    live = Journal()

    async def feed() -> None:
        for event in events:
            await live.observe(event)

    asyncio.run(feed())
    assert live.snapshot() == Journal.of(events).snapshot() == Journal.of([*events]).snapshot()
    ends = {
        (event.run_id, event.invocation_id) for event in events if isinstance(event, ModelEnd | ToolEnded | NodeEnded)
    }
    traces = [*live.model, *live.tools, *live.nodes]
    assert {(trace.run_id, trace.invocation_id) for trace in traces} == ends
    assert len(traces) == len(ends)
    assert len(live.rejected) == sum(isinstance(event, RequestRejected) for event in events)
    starts = sum(isinstance(event, ModelStart | ToolStarted | NodeStarted) for event in events)
    closed = sum(isinstance(event, ModelEnd | ToolEnded | NodeEnded) for event in events)
    assert len(live.snapshot().open) == starts - closed


@given(any_events)
def test_what_is_about_no_call_changes_nothing(event: Event) -> None:
    journal = Journal()
    calls = ModelStart | ModelEnd | ToolStarted | ToolEnded | RequestRejected
    if isinstance(event, calls | NodeStarted | NodeEnded | RouteTaken):
        return
    journal.apply(event)
    assert journal.snapshot() == JournalSnapshot()


def test_every_event_of_a_call_s_life_is_one_line_with_its_parent() -> None:
    """(R308)"""
    told = Told()
    told.model("a1")
    told.model_end("a1")
    lines = [json.loads(encode_event(event)) for event in told.events]
    assert [(line["type"], line["run_id"], line["span_id"], line["parent_span_id"]) for line in lines] == [
        ("model.start", "r", "a1", "r"),
        ("model.end", "r", "a1", "r"),
    ]


def test_process_events_have_known_fields_only() -> None:
    """What an application hands to a tool or gets from it stands in text fields (R317)."""
    for kind in EVENT_TYPES.values():
        for field in msgspec.structs.fields(kind):
            assert field.type is not Any


# -- of real runs


@al.tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


def script() -> Sequence[Any]:
    return [
        reply(calls=[call("double", n=2), call("nope")], usage=(3, 4)),
        reply("four", usage=(5, 1)),
    ]


async def test_as_an_observer_it_has_what_a_run_did() -> None:
    """(R307, R309, R310)"""
    clock, journal = FakeClock(), Journal()
    provider = ScriptedProvider(script())
    async with al.Runtime(provider, observers=[journal], clock=clock, now_ms=clock.now_ms) as runtime:
        agent = al.Agent(name="a", tools=[double])
        await runtime.run(agent, "go", run_id="r")
        events = await follow_all(runtime, "r")
    assert journal.snapshot() == Journal.of(events).snapshot()
    ends = [event for event in events if isinstance(event, ModelEnd)]
    assert [trace.invocation_id for trace in journal.model] == [event.attempt_id for event in ends]
    assert [trace.call_sequence for trace in journal.model] == [1, 2]
    assert [trace.usage and trace.usage.total_tokens for trace in journal.model] == [7, 6]
    assert [(trace.tool_id, trace.invocation_id, trace.status) for trace in journal.tools] == [
        ("double", "r/0.0", "success")
    ]
    assert journal.snapshot().open == ()


async def test_a_tool_returns_its_raw_value_and_is_wrapped_once() -> None:
    """(R313)"""
    assert double(2) == 4
    provider = ScriptedProvider(script())
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=[double]), "go")
    (exchange,) = provider.requests[-1].exchanges
    assert exchange.feedback[0].text == "4"


async def test_a_run_that_a_budget_stopped_has_no_call_for_it() -> None:
    """(R315)"""
    journal = Journal()
    async with al.Runtime(ScriptedProvider(script(), max_request_bytes=10), observers=[journal]) as runtime:
        await runtime.run(al.Agent(name="a", tools=[double]), "go")
    assert (journal.model, [rejected.limit for rejected in journal.rejected]) == ((), ["max_request_bytes"])
