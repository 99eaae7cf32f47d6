"""The one envelope that every event is.

In Python an event is a frozen struct whose first fields are the envelope's and whose further
fields are its payload, so ``event.text`` needs no second object. As JSON the payload is set apart
(`encode_event`): ``{"version":1,"event_id":…,"type":…,"occurred_at_ms":…,"run_id":…,"span_id":…,
"parent_span_id":…,"invocation_id":…,"payload":{…}}``.
"""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import msgspec

__all__ = ["ENVELOPE_FIELDS", "EVENT_VERSION", "Event", "event_id", "event_sequence", "random_id", "wall_ms"]

EVENT_VERSION = 1


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What happened, once.

    Attributes:
        event_id: ``<run id>:<sequence>``, the sequence from 1 and padded, so that the ids of one
            run sort in their order and a reader can resume after one (`follow(after=…)`).
        occurred_at_ms: wall clock, milliseconds since the Unix epoch.
        run_id: the run it belongs to.
        span_id: the execution it is about: the run's id, or an invocation's.
        parent_span_id: the enclosing execution, None at the root.
        invocation_id: id of the model call or tool call, None for events of the run itself.
    """

    type: ClassVar[str] = "event"

    event_id: str
    occurred_at_ms: int
    run_id: str
    span_id: str
    parent_span_id: str | None = None
    invocation_id: str | None = None

    @property
    def payload(self) -> dict[str, Any]:
        """The fields that are not the envelope's, as a new dict."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in ENVELOPE_FIELDS}

    @property
    def sequence(self) -> int:
        """The number in ``event_id``."""
        return event_sequence(self.event_id)


ENVELOPE_FIELDS = frozenset(Event.__struct_fields__)


def random_id() -> str:
    """An id that nothing else has: 32 random hex digits."""
    return os.urandom(16).hex()


def wall_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def event_id(run_id: str, sequence: int) -> str:
    """The id of a run's event; ``sequence`` counts from 1."""
    return f"{run_id}:{sequence:010d}"


def event_sequence(value: str) -> int:
    """The sequence number in an event id.

    Raises:
        ValueError: ``value`` is not an event id.
    """
    head, sep, tail = value.rpartition(":")
    if not sep or not head or not (tail.isascii() and tail.isdigit()):
        raise ValueError(f"event id: expected '<run id>:<number>', got {len(value)} characters of another form")
    return int(tail)
