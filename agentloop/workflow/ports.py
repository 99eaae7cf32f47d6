"""What a node can ask for: model calls and agents, and tools (`tool_port`), under the signal and the budget of its run.

Each is refused once the run is over, cut off when its signal is cancelled, and waited for until what it began has
recorded its end. So a handler that a cancelled run has left can begin nothing more.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

from ..agent import Agent
from ..effects import Bound
from ..errors import InputError
from ..results import RunResult
from ..runner import Measurement, ModelInput, ModelResult, Prepared, Transport
from ..windows import RunInput
from .models import BoundModel
from .request import Request, Visit

__all__ = ["AgentPort", "ModelPort"]

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
