"""One envelope for every event."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.events import (
    ENVELOPE_FIELDS,
    EVENT_TYPES,
    Event,
    ModelEnd,
    ModelParsed,
    ModelStart,
    OutputEvent,
    ProcessEvent,
    RunEvent,
    TextPreview,
    event_id,
    event_sequence,
)


def test_every_event_has_the_same_envelope() -> None:
    """(R261, R318)"""
    for kind in get_args(RunEvent):
        assert issubclass(kind, Event)
        assert set(kind.__struct_fields__) > ENVELOPE_FIELDS
        assert kind.__struct_config__.frozen
        assert kind.__struct_config__.forbid_unknown_fields
        assert not kind.__struct_config__.gc, "an event is in no cycle, and there are many of them"
    assert sorted(ENVELOPE_FIELDS) == [
        "event_id",
        "invocation_id",
        "occurred_at_ms",
        "parent_span_id",
        "run_id",
        "span_id",
    ]


def test_events_are_told_apart_by_their_type() -> None:
    """(R266)"""
    assert len(EVENT_TYPES) == len(get_args(RunEvent)) == len(get_args(OutputEvent)) + len(get_args(ProcessEvent))
    assert all(kind.type == word for word, kind in EVENT_TYPES.items())
    assert Event.type not in EVENT_TYPES


def test_a_sink_gets_start_output_parsed_and_end() -> None:
    """(R262)"""
    words = [kind.type for kind in (ModelStart, TextPreview, ModelParsed, ModelEnd)]
    assert words == ["model.start", "model.output", "model.parsed", "model.end"]
    assert {ModelStart, TextPreview, ModelParsed, ModelEnd} < set(get_args(OutputEvent))


def test_a_rejected_request_is_no_model_event() -> None:
    """(R321)"""
    assert EVENT_TYPES["runtime.rejected"] in get_args(ProcessEvent)
    assert not any("model" in kind.type for kind in get_args(ProcessEvent))


def test_stage_and_call_number_are_in_the_payload() -> None:
    """(R266, R320)"""
    assert {"stage_id", "call_sequence", "attempt_id"} < set(ModelStart.__struct_fields__)
    end = set(ModelEnd.__struct_fields__)
    assert {"invocation_id", "attempt_id", "call_sequence", "status", "duration_ms"} < end
    (status,) = [field for field in msgspec.structs.fields(ModelEnd) if field.name == "status"]
    assert get_args(status.type) == ("success", "error", "cancelled", "pending")


@given(st.lists(st.integers(1, 10**10 - 1), min_size=2), st.text(min_size=1, max_size=5))
def test_ids_of_one_run_sort_in_their_order(sequences: list[int], run_id: str) -> None:
    """(R319)"""
    ids = [event_id(run_id, number) for number in sequences]
    assert [event_sequence(item) for item in sorted(ids)] == sorted(sequences)


def test_a_run_id_may_hold_colons() -> None:
    assert event_sequence(event_id("a:b:7", 12)) == 12
    made = TextPreview(event_id="r:9", occurred_at_ms=0, run_id="r", span_id="r", attempt_id="a", offset=0, text="x")
    assert made.sequence == 9
    assert made.payload == {"attempt_id": "a", "offset": 0, "text": "x"}


@pytest.mark.parametrize("value", ["", "r", "r:", ":1", "r:x", "r:-1", "r:1.5", "r:\u0661"])
def test_what_is_no_event_id_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(ValueError, match=f"got {len(value)} characters of another form"):
        event_sequence(value)
