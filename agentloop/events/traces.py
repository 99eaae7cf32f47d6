"""What is kept of calls that were made: traces of all, records of those that succeeded.

A trace has one real execution's identity, its place in time, and how it ended; never a text, an
argument or a result. ``run_id`` and ``invocation_id`` together name it among several runs, and
``parent_invocation_id`` is the execution that it happened inside of (R308, R310, R312).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..errors import ConflictError
from ..messages.parts import Usage

__all__ = [
    "ContextRecord",
    "ModelCallRecord",
    "ModelCallTrace",
    "NodeTrace",
    "RejectedCall",
    "RouteTrace",
    "ToolCallRecord",
    "ToolCallTrace",
]


class ModelCallRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model call that gave its value. There is none of a call that did not: that one raised (R254).

    Attributes:
        invocation_id: the same as in its trace and its events.
        call_sequence: its number among the calls of its own runner or run, from 1; children count for themselves.
        started_at_ms: wall clock, milliseconds since the Unix epoch.
        stage_id, model_id, model, transport, route: as in `ModelCallTrace`.
        status: ``success``, always.
        usage: tokens as reported, None when unknown.
        ref: the run that it is stored as, for `Runtime.read`: one of its own, or the run it is part of.
    """

    invocation_id: str
    call_sequence: int
    started_at_ms: int
    ref: str
    stage_id: str | None = None
    model_id: str | None = None
    model: str = ""
    transport: str = ""
    route: str = ""
    status: Literal["success"] = "success"
    usage: Usage | None = None


class ToolCallRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An execution of a tool that succeeded; see `ModelCallRecord`."""

    invocation_id: str
    tool_id: str
    started_at_ms: int
    status: Literal["success"] = "success"


class ModelCallTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model call that was admitted, and is over (R320).

    Attributes:
        invocation_id: the attempt's id.
        started_at_ms: when its preparation began: wall clock, milliseconds since the Unix epoch.
        duration_ms: from there to its end: preparation, sending, parsing and delivery. Calls overlap,
            so durations do not add up to a cost.
        call_sequence: its number among the calls of its own runner, or run, that were really sent, from 1;
            children count for themselves.
        stage_id: the host's word for where it was made.
        model_id: the host's word for a registered model; None where it has none.
        model: as it was asked for on the wire.
        transport, route: how its value was asked for; empty where there is no transport.
        status: ``pending``: its caller has left it, and it goes on.
        code: the error's code when the status is not ``success``.
        usage: tokens as reported, None when unknown.
        parent_invocation_id: the execution that it is part of, None at the top of its run.
        ref: the run that it is stored as, where that is not ``run_id``; for `Runtime.read`.
    """

    invocation_id: str
    started_at_ms: int
    duration_ms: int
    call_sequence: int
    stage_id: str
    status: Literal["success", "error", "cancelled", "pending"]
    model_id: str | None = None
    model: str = ""
    transport: str = ""
    route: str = ""
    code: str | None = None
    usage: Usage | None = None
    parent_invocation_id: str | None = None
    run_id: str | None = None
    ref: str | None = None

    def record(self) -> ModelCallRecord:
        """The record of a call that succeeded.

        Raises:
            ConflictError: it did not succeed, or is no run's; such a call has no record.
        """
        if self.status != "success":
            raise _no_record("model call", self.invocation_id, self.status)
        ref = self.run_id if self.ref is None else self.ref
        if ref is None:
            raise ConflictError(f"model call {self.invocation_id!r}", "expected the call of a run, got that of none")
        return ModelCallRecord(
            invocation_id=self.invocation_id,
            call_sequence=self.call_sequence,
            started_at_ms=self.started_at_ms,
            stage_id=self.stage_id,
            model_id=self.model_id,
            model=self.model,
            transport=self.transport,
            route=self.route,
            usage=self.usage,
            ref=ref,
        )


class ToolCallTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One execution of a tool that began, and is over.

    Attributes:
        invocation_id: identity of its effect: the same for each repetition of one call, which ``attempt``
            tells apart.
        tool_id: the tool's name.
        started_at_ms, duration_ms, code, parent_invocation_id: as in `ModelCallTrace`.
        status: ``waiting`` where it was left as its child run waits; when that goes on, so does this, with a trace
            of the same identity and number.
        attempt: 1, or more for a repeated run of an idempotent tool.
    """

    invocation_id: str
    tool_id: str
    started_at_ms: int
    duration_ms: int
    status: Literal["success", "error", "cancelled", "waiting"]
    code: str | None = None
    attempt: int = 1
    parent_invocation_id: str | None = None
    run_id: str | None = None

    def record(self) -> ToolCallRecord:
        """The record of an execution that succeeded.

        Raises:
            ConflictError: it did not succeed; such an execution has no record.
        """
        if self.status != "success":
            raise _no_record("tool call", self.invocation_id, self.status)
        return ToolCallRecord(invocation_id=self.invocation_id, tool_id=self.tool_id, started_at_ms=self.started_at_ms)


class RejectedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model call that was refused before it was admitted: it has no number, no id and no trace (R315).

    Attributes:
        run_id: the run that wanted it. occurred_at_ms: when, as in the event.
        code, limit, allowed, got: as in `RequestRejected`.
    """

    run_id: str
    occurred_at_ms: int
    code: str
    limit: str
    allowed: int
    got: int


class NodeTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of a workflow that was entered, and is left.

    Attributes:
        invocation_id: of this visit; what the node asked for has it as ``parent_invocation_id``.
        workflow, node, round, status, code: as in `NodeEnded`.
        started_at_ms, duration_ms, parent_invocation_id: as in `ModelCallTrace`.
            What one run of an engine entered has one pair of ``run_id`` and ``parent_invocation_id``.
    """

    invocation_id: str
    workflow: str
    node: str
    round: int
    started_at_ms: int
    duration_ms: int
    status: Literal["success", "error", "cancelled"]
    code: str | None = None
    parent_invocation_id: str | None = None
    run_id: str | None = None


class RouteTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way that a workflow took.

    Attributes:
        workflow, node, round, route, to: as in `RouteTaken`.
        invocation_id: of the visit of the node that it leads from.
        occurred_at_ms: when, as in the event.
        run_id, parent_invocation_id: as in `NodeTrace`.
    """

    invocation_id: str
    workflow: str
    node: str
    round: int
    route: int | None
    to: str | None
    occurred_at_ms: int
    parent_invocation_id: str | None = None
    run_id: str | None = None


class ContextRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something an application notes about what went into a call (R316).

    Attributes:
        type: the application's word for what it is.
        producer_sequence: its number among the notes of one journal, from 1.
        stage_id, tool_id, invocation_id: what it is about, where it is about one.
        value: as handed in; it is not read, checked or copied here, so hand in what does not change.
    """

    type: str
    producer_sequence: int
    stage_id: str | None = None
    tool_id: str | None = None
    invocation_id: str | None = None
    value: Any = None


def _no_record(kind: str, invocation_id: str, status: str) -> ConflictError:
    return ConflictError(f"{kind} {invocation_id!r}", f"expected status success, got {status}")
