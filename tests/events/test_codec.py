"""Events as JSON, there and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import AdmissionError, RestoreError
from agentloop.events import (
    ENVELOPE_FIELDS,
    EVENT_TYPES,
    Event,
    ModelEnd,
    ModelParsed,
    ModelStart,
    ReasoningPreview,
    RequestRejected,
    ResendScheduled,
    RunEnded,
    RunEvent,
    RunStarted,
    RunSteered,
    RunStopping,
    TextPreview,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
    decode_event,
    encode_event,
    event_id,
)
from agentloop.messages import Termination, Usage

texts = st.text(max_size=10)
counts = st.integers(0, 2**53 - 1)
usages = st.none() | st.builds(Usage, input_tokens=counts, output_tokens=counts, total_tokens=counts)
envelope = {
    "event_id": st.builds(event_id, texts.filter(bool), st.integers(1, 10**9)),
    "occurred_at_ms": counts,
    "run_id": texts,
    "span_id": texts,
    "parent_span_id": st.none() | texts,
    "invocation_id": st.none() | texts,
}
statuses = st.sampled_from(["success", "error", "cancelled"])
payloads: dict[type[Event], dict[str, st.SearchStrategy[Any]]] = {
    ModelStart: {
        "attempt_id": texts,
        "call_sequence": counts,
        "model": texts,
        "dialect": texts,
        "stage_id": texts,
        "model_id": st.none() | texts,
        "transport": texts,
        "route": texts,
        "ref": st.none() | texts,
    },
    TextPreview: {"attempt_id": texts, "offset": counts, "text": texts},
    ReasoningPreview: {"attempt_id": texts, "offset": counts, "text": texts},
    ModelParsed: {
        "attempt_id": texts,
        "text_chars": counts,
        "calls": counts,
        "termination": (st.none() | texts).map(Termination.of),
    },
    ModelEnd: {
        "attempt_id": texts,
        "call_sequence": counts,
        "status": statuses | st.just("pending"),
        "retracted": st.booleans(),
        "code": st.none() | texts,
        "usage": usages,
        "duration_ms": counts,
        "output_chars": counts,
        "call": st.none() | texts,
    },
    RunStarted: {"agent": texts, "conversation": st.none() | texts, "origin_id": texts, "catalogue_digest": texts},
    RunSteered: {"author": st.none() | texts, "text_chars": counts, "images": counts},
    RunStopping: {"author": st.none() | texts},
    ResendScheduled: {"attempt_id": texts, "code": texts, "delay_ms": counts, "model": texts},
    RequestRejected: {"code": texts, "limit": texts, "allowed": counts, "got": counts},
    ToolStarted: {
        "tool": texts,
        "call_id": texts,
        "exchange": counts,
        "position": counts,
        "arguments": texts,
        "attempt": counts,
        "converted": st.lists(texts, max_size=3).map(tuple),
    },
    ToolProgress: {
        "tool": texts,
        "call_id": texts,
        "message": texts,
        "fraction": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    },
    ToolEnded: {
        "tool": texts,
        "call_id": texts,
        "exchange": counts,
        "position": counts,
        "status": statuses,
        "slot": texts,
        "code": st.none() | texts,
        "output": texts,
        "output_bytes": counts,
        "kept": st.none() | st.booleans(),
        "duration_ms": counts,
    },
    ToolSkipped: {
        "tool": texts,
        "call_id": texts,
        "exchange": counts,
        "position": counts,
        "slot": texts,
        "code": texts,
    },
    RunEnded: {
        "outcome": texts,
        "reason": st.none() | texts,
        "model_calls": counts,
        "tool_calls": counts,
        "usage": usages,
        "duration_ms": counts,
    },
}
events: st.SearchStrategy[Any] = st.one_of([st.builds(kind, **envelope, **fields) for kind, fields in payloads.items()])
PREVIEW = TextPreview(
    event_id=event_id("r1", 3), occurred_at_ms=5, run_id="r1", span_id="i1", attempt_id="a1", offset=0, text="hé"
)


def edited(edit: Callable[[dict[str, Any]], object]) -> str:
    record = json.loads(encode_event(PREVIEW))
    edit(record)
    return json.dumps(record)


def test_the_payload_is_set_apart_from_the_envelope() -> None:
    """(R261, R318)"""
    assert encode_event(PREVIEW).decode() == (
        '{"version":1,"event_id":"r1:0000000003","type":"model.output","occurred_at_ms":5,"run_id":"r1",'
        '"span_id":"i1","parent_span_id":null,"invocation_id":null,'
        '"payload":{"attempt_id":"a1","offset":0,"text":"hé"}}'
    )


@given(events)
def test_an_event_is_read_back_as_it_was_written(event: RunEvent) -> None:
    """(R318)"""
    line = encode_event(event)
    assert b"\n" not in line
    assert decode_event(line) == event
    assert decode_event(line.decode()) == event
    assert json.loads(line)["payload"].keys() == event.payload.keys()


def test_there_is_a_strategy_for_every_event() -> None:
    assert set(payloads) == set(EVENT_TYPES.values()) == set(get_args(RunEvent))
    for kind, fields in payloads.items():
        assert set(fields) == set(kind.__struct_fields__) - ENVELOPE_FIELDS


@pytest.mark.parametrize("version", [0, 2, 99])
def test_an_unknown_version_is_a_restore_error(version: int) -> None:
    with pytest.raises(RestoreError, match=f"expected version 1, got {version}") as caught:
        decode_event(edited(lambda record: record.update(version=version, new_field=1)))
    assert caught.value.code == "restore_version"


def test_an_unknown_type_is_a_restore_error() -> None:
    with pytest.raises(RestoreError) as caught:
        decode_event(edited(lambda record: record.update(type="SECRET.type")))
    assert caught.value.code == "unknown_event"
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda record: record.pop("version"), "$.version"),
        (lambda record: record.update(version=True), "$.version"),
        (lambda record: record.pop("run_id"), "$.run_id"),
        (lambda record: record.update(extra=1), "$.extra"),
        (lambda record: record.update(payload=[]), "$.payload"),
        (lambda record: record["payload"].update(extra=1), "$.payload.extra"),
        (lambda record: record["payload"].update(run_id="r2"), "$.payload"),
        (lambda record: record["payload"].update(text=1), "$.payload.text"),
        (lambda record: record["payload"].pop("text"), "$.payload.text"),
        (lambda record: record.update(occurred_at_ms="5"), "$.occurred_at_ms"),
    ],
)
def test_a_record_of_another_shape_is_an_admission_error(edit: Any, path: str) -> None:
    with pytest.raises(AdmissionError) as caught:
        decode_event(edited(edit))
    assert caught.value.path == path


@pytest.mark.parametrize("data", ["", "[]", "1", b"\xff", '{"version":1,"version":1}'])
def test_what_is_no_record_is_an_admission_error(data: Any) -> None:
    with pytest.raises(AdmissionError):
        decode_event(data)


def test_what_has_no_json_form_is_not_written() -> None:
    shared = {"event_id": event_id("r1", 1), "occurred_at_ms": 0, "run_id": "r1", "span_id": "r1"}
    progress = ToolProgress(**shared, tool="t", call_id="c", message="m", fraction=math.nan)  # type: ignore[arg-type]
    with pytest.raises(AdmissionError, match=r"^\$\.payload\.fraction: expected a finite number$"):
        encode_event(progress)
    with pytest.raises(AdmissionError, match="half a surrogate pair") as caught:
        encode_event(TextPreview(**shared, attempt_id="a", offset=0, text="\ud800"))  # type: ignore[arg-type]
    assert caught.value.__context__ is None
    with pytest.raises(AdmissionError, match="expected an event of the catalogue, got Event"):
        encode_event(Event(**shared))  # type: ignore[arg-type]
