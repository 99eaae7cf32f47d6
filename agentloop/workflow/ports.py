"""What a node can ask for: model calls, tools and agents, all under the signal and the budget of its run.

Each is refused once the run is over, cut off when its signal is cancelled, and waited for until what it began has
recorded its end. So a handler that a cancelled run has left can begin nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar, overload

import msgspec

from ..admission import canonical_text
from ..agent import Agent
from ..effects import Bound, ToolOutcome, execute
from ..errors import InputError, ToolCrashed, ToolFailed
from ..events import ToolEnded, ToolProgress, ToolStarted
from ..limits import FEEDBACK_BYTES
from ..results import RunResult
from ..runner import Measurement, ModelInput, ModelResult, Prepared, Transport
from ..tools import Tool, ToolContext
from ..windows import RunInput
from .agents import Spawn
from .models import BoundModel
from .request import STEP, Request, Visit

__all__ = ["AgentPort", "ModelPort", "ToolAnswer", "ToolPort"]

T = TypeVar("T")


class ModelPort:
    """Model calls of one node (R270). Its arguments are those of `ModelRunner`; a call's stage is by default the node.

    Attributes:
        parent: id of this visit of the node. Calls of a `ModelRunner` are told below it, and stored with it.
    """

    __slots__ = ("_model", "_request", "_visit", "parent")

    def __init__(self, request: Request, visit: Visit, model: BoundModel) -> None:
        self._request, self._visit, self._model = request, visit, model
        self.parent = visit.id

    @property
    def remaining_calls(self) -> int:
        """Calls that may still be made, as `ModelRunner.remaining_calls`, now."""
        return self._model.count("remaining_calls")

    @property
    def call_count(self) -> int:
        """Calls that the bound service made itself, now."""
        return self._model.count("call_count")

    @property
    def total_call_count(self) -> int:
        """Calls that it and all below it made, agents of the workflow included, now."""
        return self._model.count("total_call_count")

    @overload
    def prepare(
        self,
        *,
        stage_id: str | None = ...,
        transport: Literal["core:plain-text"] | None = ...,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[str]: ...
    @overload
    def prepare(
        self,
        *,
        stage_id: str | None = ...,
        transport: Transport[T],
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[T]: ...
    @overload
    def prepare(
        self,
        *,
        stage_id: str | None = ...,
        transport: str,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[object]: ...
    def prepare(
        self,
        *,
        stage_id: str | None = None,
        transport: Transport[Any] | str | None = None,
        max_output_tokens: int | None = None,
        model_id: str | None = None,
    ) -> Prepared[Any]:
        """As `ModelRunner.prepare`. The handle may be kept in the state, for a later node of the same run."""
        self._request.signal.check()
        given = self._asked(stage_id, transport, max_output_tokens, model_id)
        prepared: Prepared[Any] = self._model.prepare(**given)
        return prepared

    def measure(self, input: ModelInput, prepared: Prepared[Any]) -> Measurement:
        """As `ModelRunner.measure`.

        Raises:
            InputError: also where the bound service has none.
        """
        if self._model.measure is None:
            got = type(self._model.service).__name__
            raise InputError(f"context.model.measure: expected a service that has it, got {got}")
        measurement: Measurement = self._model.measure(input, prepared)
        return measurement

    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: Literal["core:plain-text"] | None = ...,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[str]: ...
    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: Transport[T],
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[T]: ...
    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: str,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[object]: ...
    @overload
    async def invoke(self, input: ModelInput, *, prepared: Prepared[T]) -> ModelResult[T]: ...
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = None,
        transport: Transport[Any] | str | None = None,
        max_output_tokens: int | None = None,
        model_id: str | None = None,
        prepared: Prepared[Any] | None = None,
    ) -> ModelResult[Any]:
        """As `ModelRunner.invoke`.

        Raises:
            BaseException: also what the run was cancelled with.
        """
        request = self._request
        request.signal.check()
        if prepared is None:
            given = self._asked(stage_id, transport, max_output_tokens, model_id)
        else:
            every = (stage_id, transport, max_output_tokens, model_id)
            if any(value is not None for value in every):
                raise InputError("invoke: expected prepared= alone, got it with what it has fixed already")
            given = {"prepared": prepared}
        part = self._model.execution.diagnostics
        with request.effects:
            async with Bound(request.signal):
                if part is None:
                    result: ModelResult[Any] = await self._model.invoke(input, **given)
                    return result
                with request.below(self._visit, part):
                    told: ModelResult[Any] = await self._model.invoke(input, **given)
                    return told

    def _asked(
        self,
        stage_id: str | None,
        transport: Transport[Any] | str | None,
        max_output_tokens: int | None,
        model_id: str | None,
    ) -> dict[str, Any]:
        given = {
            "stage_id": self._visit.node if stage_id is None else stage_id,
            "transport": transport,
            "max_output_tokens": max_output_tokens,
            "model_id": self._request.model_id if model_id is None else model_id,
        }
        return {name: value for name, value in given.items() if value is not None}


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered.

    Attributes:
        kind: ``done``, ``failed`` or ``unknown``: it ran out of time, and may have taken effect.
        text: its result as JSON text, or in words; what a model would read.
        code: why it is not done, as in `ToolEnded`.
        invocation_id: of the execution, also its ``effect_id``.
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
    """Tools of one node, executed as in an agent's loop: with deadline, threads, cut results, budget and events.

    Their calls are no facts: nothing of them is stored, so a process that dies leaves no trace of what ran.
    """

    __slots__ = ("_request", "_visit")

    def __init__(self, request: Request, visit: Visit) -> None:
        self._request, self._visit = request, visit

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that may be called."""
        return () if self._request.tools is None else self._request.tools.names

    async def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> ToolAnswer:
        """Run a tool, and return what it answered.

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
        admitted = tool.admit(text)
        effect_id = request.new_id()
        left = request.threads.busy(request.part.run_id)
        if left is not None and tool.kind != "selection":
            said = f"Nothing ran: an earlier call of {left} has not ended although its time is over. Try again later."
            return ToolAnswer(kind="failed", text=said, code="thread_busy", invocation_id=effect_id)
        with request.effects:
            async with Bound(request.signal):
                request.ledger.debit("tool_calls")
                return await self._execute(tool, admitted, text, effect_id)

    async def _execute(self, tool: Tool, arguments: dict[str, Any], text: str, effect_id: str) -> ToolAnswer:
        request = self._request
        position, began = request.tool_calls, request.clock()
        request.tool_calls += 1
        call = {"tool": tool.name, "call_id": effect_id, "exchange": 0, "position": position}

        def tell(kind: Any, **fields: Any) -> None:
            with request.below(self._visit):
                request.emitter.process(kind, effect_id, **fields)

        def ended(status: str, slot: str, code: str | None, output: str = "") -> None:
            tell(
                ToolEnded,
                **call,
                status=status,
                slot=slot,
                code=code,
                output=output,
                output_bytes=len(output.encode()),
                duration_ms=int((request.clock() - began) * 1000),
            )

        over = False

        async def progress(message: str, fraction: float | None) -> None:
            if not over:  # a thread that goes on after its time tells nothing more
                tell(ToolProgress, tool=tool.name, call_id=effect_id, message=message, fraction=fraction)

        tell(ToolStarted, **call, arguments=text)
        context: ToolContext[Any] = ToolContext(
            deps=request.deps,
            run_id=request.part.run_id,
            agent=request.workflow or STEP,
            tool=tool.name,
            call_id=effect_id,
            effect_id=effect_id,
            on_progress=progress,
            spawn=None if request.spawn is None else self._spawning(request.spawn, effect_id),
        )
        try:
            outcome = await self._run(tool, arguments, context)
        except BaseException:
            ended("cancelled", "unknown", "cancelled")
            raise
        finally:
            over = True
        if outcome.kind == "crashed" or outcome.result is None:
            ended("error", "unknown", outcome.code)
            error = outcome.error
            kind = type(error)
            raise ToolCrashed(
                tool.name, effect_id, effect_id, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            ) from error
        result = outcome.result
        said = "".join(one.text for one in result.content)
        ended("success" if result.status == "ok" else "error", outcome.kind, outcome.code, said)
        return ToolAnswer(kind=outcome.kind, text=said, code=outcome.code, invocation_id=effect_id)

    def _spawning(self, spawn: Spawn, effect_id: str) -> Callable[[Any, Any], Awaitable[Any]]:
        """What a tool of an agent (`delegate`) runs it with: as a part of its call."""
        request = self._request
        return lambda agent, input: spawn(
            agent, input, ledger=request.ledger, parent_span_id=effect_id, run_id=effect_id, deps=request.deps
        )

    async def _run(self, tool: Tool, arguments: dict[str, Any], context: ToolContext[Any]) -> ToolOutcome:
        """The one execution that loops and workflows share."""
        own = tool.policy.max_output_bytes
        room = FEEDBACK_BYTES if own is None else min(FEEDBACK_BYTES, own)
        return await execute(tool, arguments, context, pool=self._request.threads, max_output_bytes=room)


class AgentPort:
    """Agents of one node: each a run of its own, on the budget of the workflow's run."""

    __slots__ = ("_request", "_visit")

    def __init__(self, request: Request, visit: Visit) -> None:
        self._request, self._visit = request, visit

    async def run(
        self, agent: Agent[T], input: RunInput, *, deps: Any = None, run_id: str | None = None
    ) -> RunResult[T]:
        """Run an agent to its end.

        Args:
            deps: handed to its tools; the run's own by default.
            run_id: makes it idempotent, see `RunOptions`.

        Raises:
            InputError: the engine can run no agents, or this is none. Otherwise as `Runtime.run`.
            BaseException: what the workflow's run was cancelled with; the agent's run has recorded its end then.
        """
        request = self._request
        request.signal.check()
        if request.spawn is None:
            raise InputError("context.agents: expected an engine that can run agents (spawn=), got one that cannot")
        if not isinstance(agent, Agent):
            raise InputError(f"context.agents.run: expected an Agent, got {type(agent).__name__}")
        with request.effects:
            async with Bound(request.signal):
                return await request.spawn(
                    agent,
                    input,
                    ledger=request.ledger,
                    parent_span_id=self._visit.id,
                    run_id=run_id,
                    deps=request.deps if deps is None else deps,
                )
