"""One call of a tool outside an agent's loop: the low-level pipeline, in an order that is always the same.

    begin -> parse the input -> the host's adapter, which calls the tool -> the real result
          -> parse the output -> check for cancellation -> record the end

A step that raises is the last one but the record, and its exception passes through as it is. How a
call went and what it found are two things: a tool that returns an error result was called with
success, and nothing that a host concludes from a value changes what is recorded of its call.

Nothing here retries, has a clock or starts a thread, and nothing is stored as a fact of a run. A
permission is the adapter's affair: no tool has a field for it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from ..admission import canonical_text
from ..error_info import error_info
from ..errors import InputError
from ..events import ToolCallRecord
from ..events.envelope import random_id, wall_ms
from ..messages import ToolResult
from .context import ToolContext
from .definition import is_async
from .function import Tool
from .result import require_value

__all__ = ["CallStatus", "Execute", "ToolInvocation", "ToolJournal", "ToolPipeline"]

CallStatus = Literal["success", "error", "cancelled"]
"""How a call went; not what it found."""

Execute = Callable[[Tool, Mapping[str, Any], Callable[[], Any]], Any]
"""The adapter that executes and authorises: ``execute(tool, arguments, proceed)``.

It returns what ``proceed()`` does, which calls the tool with these arguments, once and only while the
invocation lasts; or raises, and the tool is not called. For `ToolPipeline.invoke_async` it may be
async, ``proceed()`` is an awaitable where the tool is async, and ``asyncio.to_thread(proceed)`` keeps
a sync tool that blocks out of the event loop.
"""

_SYNC: Final = "expected a value, got an awaitable; use invoke_async"


class ToolJournal(Protocol):
    """Where the calls of tools are recorded."""

    def begin_tool(
        self, tool_id: str, *, invocation_id: str | None = None, parent_invocation_id: str | None = None
    ) -> str:
        """Record that a call begins; return its id: the one that was given, or a new one."""
        ...

    def finish_tool(self, invocation_id: str, status: CallStatus, *, code: str | None = None) -> object:
        """Record how a call went; called once for each that began. What it returns is not looked at.

        Args:
            code: of the error, as in `ErrorInfo`; None where the call went well.
        """
        ...


class ToolInvocation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a call came to.

    Attributes:
        value: what the tool returned, as it is. Its type is not known here, and no caller can state it (R302).
        result: what a model would read of it; an error result is a conclusion of the tool, not of the call.
        invocation: the record of the call.
    """

    value: object
    result: ToolResult
    invocation: ToolCallRecord


class ToolPipeline(msgspec.Struct, frozen=True, kw_only=True, eq=False, forbid_unknown_fields=True):
    """What stands around each call. Fixed once made; any number of calls may use it at once.

    Attributes:
        execute: the adapter, see `Execute`; None just calls the tool.
        check: sync; raises when the caller no longer wants the result, whatever exception it likes.
            Asked once, when the output is parsed; the tool has run by then.
        journal: where calls are recorded; None records none.
        caller: what a tool reads as ``ToolContext.agent``, and the stage of a selection.
        now_ms: milliseconds since 1970.
        new_id: makes the id of a call where neither the caller nor a journal gives one.

    Raises:
        InputError: ``execute`` or ``check`` is no function, or ``check`` is async.
    """

    execute: Execute | None = None
    check: Callable[[], None] | None = None
    journal: ToolJournal | None = None
    caller: str = "host"
    now_ms: Callable[[], int] = wall_ms
    new_id: Callable[[], str] = random_id

    def __post_init__(self) -> None:
        for name in ("execute", "check"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InputError(f"ToolPipeline.{name}: expected a function, got {type(given).__name__}")
        if is_async(self.check):
            raise InputError("ToolPipeline.check: expected a sync function, got an async one")

    def invoke(
        self,
        tool: Tool,
        input: object,
        *,
        deps: object = None,
        invocation_id: str | None = None,
        parent_invocation_id: str | None = None,
    ) -> ToolInvocation:
        """Call a tool, and return what came of it.

        Args:
            input: JSON text, as `Tool.admit` takes it; or the arguments as a plain dict.
            deps: what the tool reads as ``ToolContext.deps``.
            invocation_id: identity of this call, also its ``effect_id``; by default a new one.
            parent_invocation_id: of the call that this one is nested in.

        Raises:
            ArgumentsRefused, AdmissionError: the input does not fit; the tool was not called.
            ToolResultError: an awaitable came back, which was closed if it was a coroutine; or the value
                cannot be a result.
            Whatever the adapter, the tool, ``check`` or the journal raises passes through as it is.
        """
        call = _Call(self, tool, deps, invocation_id, parent_invocation_id)
        try:
            value = require_value(tool.name, call.enter(input, _sync), _SYNC)
            done = call.leave(value)
        except BaseException as error:
            call.fail(error)
            raise
        return call.succeed(done)

    async def invoke_async(
        self,
        tool: Tool,
        input: object,
        *,
        deps: object = None,
        invocation_id: str | None = None,
        parent_invocation_id: str | None = None,
    ) -> ToolInvocation:
        """As `invoke`, and awaits: the tool and the adapter may be async. A sync tool is called in place.

        Raises:
            As `invoke`, but that an awaitable is awaited until a value comes. A cancelled task's exception
            passes through too, and the call is recorded as cancelled.
        """
        call = _Call(self, tool, deps, invocation_id, parent_invocation_id)
        try:
            value = call.enter(input, _as_is)
            while inspect.isawaitable(value):  # an async adapter may return what it did not await
                value = await value
            done = call.leave(value)
        except BaseException as error:
            call.fail(error)
            raise
        return call.succeed(done)


def _sync(tool: Tool, value: Any) -> Any:
    return require_value(tool.name, value, _SYNC)


def _as_is(_: Tool, value: Any) -> Any:
    return value


class _Call:
    """One call on its way through the steps; begun when it is made."""

    def __init__(
        self,
        pipeline: ToolPipeline,
        tool: Tool,
        deps: object,
        invocation_id: str | None,
        parent_invocation_id: str | None,
    ) -> None:
        if invocation_id is not None and (type(invocation_id) is not str or not invocation_id):
            got = "''" if invocation_id == "" else type(invocation_id).__name__
            raise InputError(f"invocation_id: expected a str that is not empty, got {got}")
        self._pipeline, self._tool, self._deps = pipeline, tool, deps
        self._permit: list[None] = []  # taken by pop, so that two threads cannot both have it
        self._unwanted = False
        self._started_at_ms = pipeline.now_ms()
        if pipeline.journal is None:
            self._id = invocation_id or pipeline.new_id()
        else:
            self._id = pipeline.journal.begin_tool(
                tool.name, invocation_id=invocation_id, parent_invocation_id=parent_invocation_id
            )

    def enter(self, input: object, judge: Callable[[Tool, Any], Any]) -> Any:
        """Parse the input, and let the adapter call the tool.

        Args:
            judge: what becomes of the tool's own value before the adapter sees it.
        """
        tool, execute = self._tool, self._pipeline.execute
        arguments = tool.admit(input if type(input) is str else canonical_text(input))
        context = ToolContext(
            deps=self._deps,
            run_id=self._id,
            agent=self._pipeline.caller,
            tool=tool.name,
            call_id=self._id,
            effect_id=self._id,
        )
        self._permit.append(None)

        def proceed() -> Any:
            try:
                self._permit.pop()
            except IndexError:  # a second run, or one that nobody waits for, is an effect nobody asked for
                rule = f"tool {tool.name!r}: expected one call of proceed, while its invocation lasts"
                raise InputError(rule) from None
            return judge(tool, tool.invoke(arguments, context))

        if execute is None:
            return proceed()
        return execute(tool, types.MappingProxyType(arguments), proceed)

    def leave(self, value: object) -> ToolInvocation:
        """Parse the output, and check for cancellation."""
        self._permit.clear()
        result = self._tool.encode(value)
        if self._pipeline.check is not None:
            try:
                said = self._pipeline.check()
            except BaseException:
                self._unwanted = True
                raise
            require_value(self._tool.name, said, "expected a check that is sync, got an awaitable")
        record = ToolCallRecord(tool_id=self._tool.name, started_at_ms=self._started_at_ms, invocation_id=self._id)
        return ToolInvocation(value=value, result=result, invocation=record)

    def succeed(self, done: ToolInvocation) -> ToolInvocation:
        if self._pipeline.journal is not None:
            self._pipeline.journal.finish_tool(self._id, "success")
        return done

    def fail(self, error: BaseException) -> None:
        """Record that the call failed; the error that is on its way stays the one that is raised."""
        self._permit.clear()
        if self._pipeline.journal is None:
            return
        cancelled = self._unwanted or not isinstance(error, Exception)
        try:
            status: CallStatus = "cancelled" if cancelled else "error"
            self._pipeline.journal.finish_tool(self._id, status, code=error_info(error).code)
        except Exception as fault:  # noqa: BLE001  # told beside the error that came first
            error.add_note(f"The end of this call of tool {self._tool.name!r} was not recorded: {type(fault).__name__}")
