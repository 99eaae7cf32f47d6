"""Events as JSON, one object each, with the payload set apart from the envelope (R318)."""

from __future__ import annotations

import math
from typing import Any, Final, get_args

import msgspec

from ..admission import parse, to_type
from ..errors import AdmissionError, RestoreError
from .envelope import ENVELOPE_FIELDS, EVENT_VERSION, Event
from .output import OutputEvent
from .process import ProcessEvent

__all__ = ["EVENT_TYPES", "RunEvent", "decode_event", "encode_event"]

RunEvent = OutputEvent | ProcessEvent
"""Every event there is; closed, so that a `match` over it can end with `assert_never`."""

EVENT_TYPES: Final[dict[str, type[Event]]] = {kind.type: kind for kind in get_args(RunEvent)}
"""Event class by its ``type`` word."""

_PAYLOAD_FIELDS: Final = {
    kind: tuple(name for name in kind.__struct_fields__ if name not in ENVELOPE_FIELDS) for kind in EVENT_TYPES.values()
}


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The envelope as it is written. Its fields stand in the order of the JSON."""

    version: int
    event_id: str
    type: str
    occurred_at_ms: int
    run_id: str
    span_id: str
    parent_span_id: str | None
    invocation_id: str | None
    payload: dict[str, Any]


_ENCODER: Final = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """One line of JSON without its line feed.

    Raises:
        AdmissionError: the event has no JSON form (another class, NaN, half a surrogate pair).
    """
    names = _PAYLOAD_FIELDS.get(type(event))
    if names is None:
        raise AdmissionError("$", f"expected an event of the catalogue, got {type(event).__name__}")
    payload = {}
    for name in names:
        item = payload[name] = getattr(event, name)
        if type(item) is float and not math.isfinite(item):
            raise AdmissionError(f"$.payload.{name}", "expected a finite number")
    record = _Record(
        version=EVENT_VERSION,
        event_id=event.event_id,
        type=event.type,
        occurred_at_ms=event.occurred_at_ms,
        run_id=event.run_id,
        span_id=event.span_id,
        parent_span_id=event.parent_span_id,
        invocation_id=event.invocation_id,
        payload=payload,
    )
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        pass  # it holds the text, so it is not chained
    raise AdmissionError("$", "expected Unicode text, got half a surrogate pair")


def decode_event(data: bytes | str) -> RunEvent:
    """The event that `encode_event` wrote.

    Raises:
        AdmissionError: no strict JSON, or of another shape; unknown fields are refused.
        RestoreError: ``restore_version`` for an unknown envelope version, ``unknown_event`` for an
            unknown type: this reader is older than the record.
    """
    record = parse(data)
    if type(record) is not dict:
        raise AdmissionError("$", f"expected an object, got {type(record).__name__}")
    version = record.get("version")
    if type(version) is not int:
        raise AdmissionError("$.version", "expected an integer")
    if version != EVENT_VERSION:
        raise RestoreError("restore_version", "event", f"expected version {EVENT_VERSION}, got {version}")
    envelope = to_type(record, _Record)
    kind = EVENT_TYPES.get(envelope.type)
    if kind is None:
        raise RestoreError("unknown_event", "event", "expected a type of the catalogue, got another")
    if not ENVELOPE_FIELDS.isdisjoint(envelope.payload):
        raise AdmissionError("$.payload", "expected no field of the envelope")
    fields = {name: getattr(envelope, name) for name in ENVELOPE_FIELDS} | envelope.payload
    event: Any = to_type(fields, kind, path="$.payload")
    return event  # type: ignore[no-any-return]  # one of the union's classes, by EVENT_TYPES
