"""A journal: the calls and nodes of one request, or of many, projected from their events (R307).

It is no ledger and holds no truth of its own: a journal made anew from the same events is the same.
What happens outside of any run, a host's own tools and notes, it is told with `Journal.begin_tool`,
`Journal.finish_tool` and `Journal.add_context`.

An execution begins once and ends once. What does not fit is refused and changes nothing: an end
without a beginning, a second end, a beginning of what goes on. Two things that look like it are
none: a model call whose caller left it (status ``pending``) may be waited for again, and then has one
trace, of its last end; a repeated run of a tool has the effect's identity and a higher ``attempt``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from ..errors import ConflictError, InputError
from ..limits import JOURNAL_RECORDS, check_count
from .envelope import Event, random_id, wall_ms
from .output import ModelEnd, ModelStart
from .process import NodeEnded, NodeStarted, RequestRejected, RouteTaken, ToolEnded, ToolStarted
from .traces import ContextRecord, ModelCallTrace, NodeTrace, RejectedCall, RouteTrace, ToolCallTrace

__all__ = ["Journal", "JournalSnapshot"]

_STATUSES: Final = ("success", "error", "cancelled")

R = TypeVar("R")

_Key = tuple[str | None, str]
"""A run's id, None outside of any, and an invocation's."""


class JournalSnapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A journal as it was when it was asked; never changes.

    Attributes:
        model, tools: calls that are over, in the order of their ends.
        context: notes, in the order of their numbers. rejected: calls that were never made.
        nodes, routes: of workflows, in the order in which nodes ended and routes were taken.
        open: invocation ids of what began and did not end, in the order of their beginnings.
        dropped: how many records were given up for newer ones.
    """

    model: tuple[ModelCallTrace, ...] = ()
    tools: tuple[ToolCallTrace, ...] = ()
    context: tuple[ContextRecord, ...] = ()
    rejected: tuple[RejectedCall, ...] = ()
    nodes: tuple[NodeTrace, ...] = ()
    routes: tuple[RouteTrace, ...] = ()
    open: tuple[str, ...] = ()
    dropped: int = 0


class _Begun(msgspec.Struct, frozen=True):
    """An execution of a tool that goes on."""

    tool_id: str
    started_at_ms: int
    parent: str | None
    attempt: int = 1


class Journal:
    """Keeps what it is told. An observer of a `Runtime`, or fed by hand; used by one event loop.

        journal = al.Journal()
        async with al.Runtime(provider, observers=[journal]) as runtime: ...
        journal.model[-1].duration_ms

    A runtime's observers get events a little later, and lose the oldest where they are far behind; the
    end of a call whose beginning was lost is refused.

    Args:
        run_id: the run that `begin_tool` is called for, kept in its traces; None outside of any.
        max_records: how many traces, notes, rejections and routes it keeps of each kind, 1 and up; the oldest
            goes for a newer one.
        new_id, now_ms: sources of unique ids and wall milliseconds, for `begin_tool`.

    Raises:
        InputError: ``max_records`` outside its range.
    """

    def __init__(
        self,
        *,
        run_id: str | None = None,
        max_records: int = JOURNAL_RECORDS,
        new_id: Callable[[], str] = random_id,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        check_count("Journal.max_records", max_records, 1)
        self.run_id = run_id
        self._new_id, self._now_ms = new_id, now_ms
        self._model: deque[ModelCallTrace] = deque(maxlen=max_records)
        self._tools: deque[ToolCallTrace] = deque(maxlen=max_records)
        self._context: deque[ContextRecord] = deque(maxlen=max_records)
        self._rejected: deque[RejectedCall] = deque(maxlen=max_records)
        self._nodes: deque[NodeTrace] = deque(maxlen=max_records)
        self._routes: deque[RouteTrace] = deque(maxlen=max_records)
        self._open: dict[_Key, ModelStart | NodeStarted | _Begun] = {}
        self._pending: dict[_Key, ModelCallTrace] = {}
        self._notes = self._dropped = 0

    @classmethod
    def of(cls, events: Iterable[Event], *, max_records: int = JOURNAL_RECORDS) -> Self:
        """The journal of events that happened, oldest first.

        Raises:
            ConflictError: as `apply`.
        """
        journal = cls(max_records=max_records)
        for event in events:
            journal.apply(event)
        return journal

    @property
    def model(self) -> tuple[ModelCallTrace, ...]:
        """Model calls that are over, in the order of their ends."""
        return tuple(self._model)

    @property
    def last_model(self) -> ModelCallTrace | None:
        """The newest of them, None when there is none; at the same cost however many there are."""
        return self._model[-1] if self._model else None

    @property
    def tools(self) -> tuple[ToolCallTrace, ...]:
        """Executions of tools that are over, in the order of their ends."""
        return tuple(self._tools)

    @property
    def context(self) -> tuple[ContextRecord, ...]:
        """Notes, in the order of their numbers."""
        return tuple(self._context)

    @property
    def rejected(self) -> tuple[RejectedCall, ...]:
        """Model calls that were refused before they were admitted, in the order in which that was told."""
        return tuple(self._rejected)

    @property
    def nodes(self) -> tuple[NodeTrace, ...]:
        """Nodes of workflows that were entered and left, in the order of their ends."""
        return tuple(self._nodes)

    @property
    def routes(self) -> tuple[RouteTrace, ...]:
        """The ways that workflows took, in order."""
        return tuple(self._routes)

    def snapshot(self) -> JournalSnapshot:
        """All of it as it is now."""
        return JournalSnapshot(
            model=self.model,
            tools=self.tools,
            context=self.context,
            rejected=self.rejected,
            nodes=self.nodes,
            routes=self.routes,
            open=tuple(invocation_id for _, invocation_id in self._open),
            dropped=self._dropped,
        )

    async def observe(self, event: Event) -> None:
        """As `apply`, for a `Runtime` and whatever else has observers."""
        self.apply(event)

    def apply(self, event: Event) -> None:
        """Take the next event; those that are about no beginning, end, refusal or route change nothing.

        Raises:
            ConflictError: it does not follow from the events before it; nothing was changed.
        """
        match event:
            case ModelStart():
                key = (event.run_id, event.attempt_id)
                self._require_new("model call", key)
                self._open[key] = event
            case ModelEnd():
                self._end_model(event)
            case ToolStarted():
                key = (event.run_id, event.invocation_id or event.span_id)
                before = self._open.get(key)
                if isinstance(before, _Begun) and before.attempt < event.attempt:
                    del self._open[key]  # nobody told how it ended
                self._require_new("tool call", key)
                self._open[key] = _Begun(event.tool, event.occurred_at_ms, _parent(event), event.attempt)
            case ToolEnded():
                key = (event.run_id, event.invocation_id or event.span_id)
                self._end_tool(key, event.status, event.code, event.occurred_at_ms, event.duration_ms)
            case RequestRejected():
                rejected = RejectedCall(
                    run_id=event.run_id,
                    occurred_at_ms=event.occurred_at_ms,
                    code=event.code,
                    limit=event.limit,
                    allowed=event.allowed,
                    got=event.got,
                )
                self._keep(self._rejected, rejected)
            case NodeStarted():
                key = (event.run_id, event.invocation_id or event.span_id)
                self._require_new("node", key)
                self._open[key] = event
            case NodeEnded():
                self._end_node(event)
            case RouteTaken():
                taken = RouteTrace(
                    invocation_id=event.invocation_id or event.span_id,
                    workflow=event.workflow,
                    node=event.node,
                    round=event.round,
                    route=event.route,
                    to=event.to,
                    occurred_at_ms=event.occurred_at_ms,
                    parent_invocation_id=_parent(event),
                    run_id=event.run_id,
                )
                self._keep(self._routes, taken)
            case _:
                pass

    # -- what no event tells

    def begin_tool(
        self, tool_id: str, *, invocation_id: str | None = None, parent_invocation_id: str | None = None
    ) -> str:
        """Note that an execution begins; return its identity, to be handed to all layers of the same execution.

        Args:
            invocation_id: its identity where it has one; None makes one.
            parent_invocation_id: the execution that it happens inside of.

        Raises:
            ConflictError: this identity is another execution's, which goes on or is kept.
            InputError: an id or a name that is no non-empty string, or a parent that is itself.
        """
        _require_word("begin_tool.tool_id", tool_id)
        if invocation_id is not None:
            _require_word("begin_tool.invocation_id", invocation_id)
        if parent_invocation_id is not None:
            _require_word("begin_tool.parent_invocation_id", parent_invocation_id)
        found = self._new_id() if invocation_id is None else invocation_id
        if found == parent_invocation_id:
            raise InputError("begin_tool.parent_invocation_id: expected another execution, got itself")
        key = (self.run_id, found)
        self._require_new("tool call", key)
        if any((trace.run_id, trace.invocation_id) == key for trace in self._tools):
            raise ConflictError(f"tool call {found!r}", "expected a new execution, got one that has ended")
        self._open[key] = _Begun(tool_id, self._now_ms(), parent_invocation_id)
        return found

    def finish_tool(
        self,
        invocation_id: str,
        status: Literal["success", "error", "cancelled"],
        *,
        code: str | None = None,
    ) -> ToolCallTrace:
        """Note that an execution ended, and how; return its trace.

        Raises:
            ConflictError: it has not begun here, or has ended (R311); what is kept stands.
            InputError: another status.
        """
        if status not in _STATUSES:
            raise InputError(f"finish_tool.status: expected {', '.join(map(repr, _STATUSES))}")
        return self._end_tool((self.run_id, invocation_id), status, code, self._now_ms(), None)

    def add_context(
        self,
        type: str,
        value: Any,
        *,
        stage_id: str | None = None,
        tool_id: str | None = None,
        invocation_id: str | None = None,
    ) -> ContextRecord:
        """Note something about what went into a call; return the record, with its number.

        Raises:
            InputError: ``type`` is no non-empty string.
        """
        _require_word("add_context.type", type)
        self._notes += 1
        record = ContextRecord(
            type=type,
            producer_sequence=self._notes,
            stage_id=stage_id,
            tool_id=tool_id,
            invocation_id=invocation_id,
            value=value,
        )
        self._keep(self._context, record)
        return record

    # -- how records come about

    def _end_model(self, event: ModelEnd) -> None:
        key = (event.run_id, event.attempt_id)
        start = self._open.get(key)
        if not isinstance(start, ModelStart):
            raise _not_begun("model call", key)
        del self._open[key]
        started = min(start.occurred_at_ms, event.occurred_at_ms - event.duration_ms)
        duration = event.duration_ms
        earlier = self._pending.pop(key, None)
        if earlier is not None:  # one call, that was waited for more than once
            started = min(started, earlier.started_at_ms)
            duration = max(duration, event.occurred_at_ms - started)
            if earlier in self._model:
                self._model.remove(earlier)
        trace = ModelCallTrace(
            invocation_id=event.attempt_id,
            started_at_ms=started,
            duration_ms=duration,
            call_sequence=event.call_sequence,
            stage_id=start.stage_id,
            status=event.status,
            model_id=start.model_id,
            model=start.model,
            transport=start.transport,
            route=start.route,
            code=event.code,
            usage=event.usage,
            parent_invocation_id=_parent(event),
            run_id=event.run_id,
            ref=start.ref,
        )
        if trace.status == "pending":
            self._pending[key] = trace
        self._keep(self._model, trace)

    def _end_tool(
        self,
        key: _Key,
        status: Literal["success", "error", "cancelled", "waiting"],
        code: str | None,
        now_ms: int,
        duration_ms: int | None,
    ) -> ToolCallTrace:
        begun = self._open.get(key)
        if not isinstance(begun, _Begun):
            raise _not_begun("tool call", key)
        del self._open[key]
        started = begun.started_at_ms
        if duration_ms is None:
            duration_ms = max(0, now_ms - started)
        else:
            started = min(started, now_ms - duration_ms)
        trace = ToolCallTrace(
            invocation_id=key[1],
            tool_id=begun.tool_id,
            started_at_ms=started,
            duration_ms=duration_ms,
            status=status,
            code=code,
            attempt=begun.attempt,
            parent_invocation_id=begun.parent,
            run_id=key[0],
        )
        self._keep(self._tools, trace)
        return trace

    def _end_node(self, event: NodeEnded) -> None:
        key = (event.run_id, event.invocation_id or event.span_id)
        start = self._open.get(key)
        if not isinstance(start, NodeStarted):
            raise _not_begun("node", key)
        del self._open[key]
        trace = NodeTrace(
            invocation_id=key[1],
            workflow=start.workflow,
            node=start.node,
            round=start.round,
            started_at_ms=min(start.occurred_at_ms, event.occurred_at_ms - event.duration_ms),
            duration_ms=event.duration_ms,
            status=event.status,
            code=event.code,
            parent_invocation_id=_parent(event),
            run_id=event.run_id,
        )
        self._keep(self._nodes, trace)

    def _require_new(self, kind: str, key: _Key) -> None:
        if key in self._open:
            raise ConflictError(f"{kind} {key[1]!r}", "expected a new execution, got one that goes on")

    def _keep(self, records: deque[R], record: R) -> None:
        self._dropped += len(records) == records.maxlen
        records.append(record)


def _parent(event: Event) -> str | None:
    """The execution that a call is part of; the run itself is none."""
    return None if event.parent_span_id == event.run_id else event.parent_span_id


def _not_begun(kind: str, key: _Key) -> ConflictError:
    return ConflictError(f"{kind} {key[1]!r}", "expected an execution that has begun and not ended, got none")


def _require_word(name: str, value: object) -> None:
    if type(value) is not str or not value:
        got = "an empty one" if value == "" else type(value).__name__
        raise InputError(f"{name}: expected a non-empty string, got {got}")
