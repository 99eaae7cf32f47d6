"""Tools of a node, executed as in an agent's loop: deadline, grace, retries, cut results, budget and events.

Their calls are no facts: nothing of them is stored, so a process that dies leaves no trace of what ran.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from ..admission import canonical_text
from ..effects import Bound, Ledger, Refusal, ToolOutcome, beside, run_tool, type_name, used_up
from ..errors import BudgetError, InputError, ToolCrashed, ToolFailed
from ..events import ToolEnded, ToolProgress, ToolStarted
from ..limits import FEEDBACK_BYTES
from ..tools import Tool, ToolContext
from .agents import Spawn
from .request import STEP, Request, Visit

__all__ = ["ToolAnswer", "ToolPort"]


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered.

    Attributes:
        kind: ``done``, ``failed`` or ``unknown``: it ran out of time, and may have taken effect.
        text: its result as JSON text, or in words; what a model would read.
        code: why it is not done, as in `ToolEnded`; or ``thread_busy`` or ``max_calls``, where nothing ran.
        invocation_id: of the call, also its ``effect_id``; that of its events, where it ran.
    """

    kind: Literal["done", "failed", "unknown"]
    text: str
    code: str | None
    invocation_id: str

    def require(self) -> str:
        """The text of what is done.

        Raises:
            ToolFailed: it is not; in the words of the tool.
        """
        if self.kind != "done":
            raise ToolFailed(self.text)
        return self.text


class ToolPort:
    """What one node may call."""

    __slots__ = ("_request", "_visit")

    def __init__(self, request: Request, visit: Visit) -> None:
        self._request, self._visit = request, visit

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that may be called."""
        return () if self._request.tools is None else self._request.tools.names

    async def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> ToolAnswer:
        """Run a tool, as often as its policy allows, and return what it answered.

        Args:
            arguments: a plain mapping, or JSON text as a model wrote it.

        Raises:
            ToolDefinitionError: ``unknown_tool``. ArgumentsRefused, InputError: the arguments do not fit, or are not
                plain. BudgetError: no tool call is left. Nothing ran, and nothing was debited.
            ToolCrashed: the tool raised what it did not declare.
            BaseException: what the run was cancelled with; the outcome is unknown then.
        """
        request = self._request
        request.signal.check()
        if request.tools is None:
            raise InputError("context.tools: expected an engine with tools, got one that has none")
        tool = request.tools.require(name)
        if arguments is not None and not isinstance(arguments, (str, Mapping)):
            raise InputError(f"context.tools.call: expected a mapping or JSON text, got {type(arguments).__name__}")
        text = arguments if isinstance(arguments, str) else canonical_text(dict(arguments or {}))
        admitted = tool.admitted(text)
        call = _Call(request, self._visit, tool, text, admitted.converted)
        refusal = call.hindrance()
        if refusal is not None:
            return ToolAnswer(kind="failed", text=refusal.text, code=refusal.code, invocation_id=call.id)
        with request.effects:
            async with Bound(request.signal):
                call.ledger.debit("tool_calls")
                return await call.run(admitted.arguments)


class _Call:
    """One call of a tool, with all its executions."""

    def __init__(self, request: Request, visit: Visit, tool: Tool, text: str, converted: tuple[str, ...]) -> None:
        self._request, self._visit, self._tool = request, visit, tool
        self._asked: dict[str, Any] = {"arguments": text, "converted": converted}
        self.id = request.new_id()
        self.ledger: Ledger = request.ledger_of(tool)
        self._place: dict[str, Any] = {"tool": tool.name, "call_id": self.id, "exchange": 0}
        self._running = 0  # number of the execution that goes on; 0 for none
        self._began = 0.0

    def hindrance(self) -> Refusal | None:
        """Why the tool may not begin now."""
        tool, busy = self._tool, self._request.pool.busy(self._request.part.run_id)
        if tool.kind == "selection":  # which has no effect that could overlap another
            busy = None
        return beside(busy) or used_up(tool, self.ledger)

    async def run(self, arguments: dict[str, Any]) -> ToolAnswer:
        """Run it; its first start is debited."""
        request, tool = self._request, self._tool
        self._place["position"], request.tool_calls = request.tool_calls, request.tool_calls + 1
        self._start(1)
        own = tool.policy.max_output_bytes
        try:
            outcome = await run_tool(
                tool,
                arguments,
                self._context,
                pool=request.pool,
                max_output_bytes=FEEDBACK_BYTES if own is None else min(FEEDBACK_BYTES, own),
                before_retry=self._again,
            )
        except BaseException:
            self._end("cancelled", "unknown", "cancelled")
            raise
        return self._answer(outcome)

    def _answer(self, outcome: ToolOutcome) -> ToolAnswer:
        result, code = outcome.result, outcome.code
        if outcome.kind == "crashed" or result is None:
            self._end("error", "unknown", code)
            kind = "an error" if outcome.error is None else type_name(outcome.error)
            raise ToolCrashed(self._tool.name, self.id, self.id, kind) from outcome.error
        said = "".join(one.text for one in result.content)
        self._end("success" if result.status == "ok" else "error", outcome.kind, code, said)
        return ToolAnswer(kind=outcome.kind, text=said, code=code, invocation_id=self.id)

    async def _again(self, attempt: int) -> bool:
        """Debit and tell one more execution, as the loop does."""
        if self.hindrance() is not None:
            return False
        try:
            self.ledger.debit("tool_calls")
        except BudgetError:
            return False
        self._end("error", "unknown", "timeout")
        self._start(attempt)
        return True

    def _context(self, attempt: int) -> ToolContext[Any]:
        request = self._request

        async def progress(message: str, fraction: float | None) -> None:
            if self._running == attempt:  # what goes on after its time tells nothing more
                self._tell(ToolProgress, tool=self._tool.name, call_id=self.id, message=message, fraction=fraction)

        return ToolContext(
            deps=request.deps,
            run_id=request.part.run_id,
            agent=request.workflow or STEP,
            tool=self._tool.name,
            call_id=self.id,
            effect_id=self.id,
            attempt=attempt,
            on_progress=progress,
            spawn=None if request.spawn is None else self._spawning(request.spawn),
        )

    def _spawning(self, spawn: Spawn) -> Callable[[Any, Any], Awaitable[Any]]:
        """What a tool of an agent (`delegate`) runs it with: as a part of its call."""
        request = self._request
        return lambda agent, input: spawn(
            agent, input, ledger=request.ledger, parent_span_id=self.id, run_id=self.id, deps=request.deps
        )

    def _start(self, attempt: int) -> None:
        self._running, self._began = attempt, self._request.clock()
        self._tell(ToolStarted, **self._place, **self._asked, attempt=attempt)

    def _end(self, status: str, slot: str, code: str | None, output: str = "") -> None:
        self._running = 0
        self._tell(
            ToolEnded,
            **self._place,
            status=status,
            slot=slot,
            code=code,
            output=output,
            output_bytes=len(output.encode()),
            duration_ms=int((self._request.clock() - self._began) * 1000),
        )

    def _tell(self, kind: type[ToolStarted | ToolProgress | ToolEnded], **fields: Any) -> None:
        with self._request.below(self._visit):
            self._request.emitter.process(kind, self.id, **fields)
