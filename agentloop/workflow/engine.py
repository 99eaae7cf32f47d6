"""What runs a workflow, or a step written by hand: bounded rounds on one budget, under one signal.

A cancel ends the engine's waiting, and not the code that it waits for: a handler that keeps going is left, and
what it returns later enters nothing (R290). What the run itself began, model calls, tools and agents, is waited
for until its end is recorded, and so is a run of another engine that a handler waits for.

What that leaves open, no cancel can close (R292): arbitrary code is not stopped, a
thread least of all; a commit that was begun and not confirmed is not rolled back; and whoever holds a transaction
or a lock in a handler has to wait there for what it began before it lets go.

An engine serves one request at a time, since its counts, its state and its journal are that request's. `Engine.fork`
makes another for a request beside it. It has to be told which model that one asks: a runner makes one call at
a time and has one budget, so whether a fork draws on it, by a child, or has one of its own, nobody can guess (R271).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Generic, Self, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

import msgspec

from ..effects import Bound, Ledger, Signal, ToolPool, settle
from ..errors import ConflictError, InputError, RunCancelled
from ..events import Journal
from ..runner import Execution
from ..sinks import Diagnostics, put_off
from ..tools import Tool, ToolSet
from ..tools.definition import is_async
from .definition import Workflow
from .models import BoundModel, ModelDefinition, ModelService, close_service
from .options import EngineOptions, Settings
from .request import Effects, Request
from .walk import Step, Walk, walk_steps

__all__ = ["Engine"]

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")
T = TypeVar("T")

_WALKING: Final[WeakKeyDictionary[asyncio.Task[Any], Effects]] = WeakKeyDictionary()
"""What was begun by the task of each run: the run of another engine that a handler waits for is of that as well."""


class Engine(Generic[S, R]):
    """Runs one request at a time. Used in one event loop.

        engine = al.Engine(workflow, model=al.RunnerDefinition(provider), tools=[search])
        text = await engine.run(Article(topic="tides"))

    `Runtime.engine` makes one on the runtime's provider, store and ledger.

    Args:
        workflow: see `bind_workflow`.
        options: see `EngineOptions`.

    Raises:
        InputError: a value of another type or outside its range, by name. TypeError: an unknown name.
        ConflictError: ``model`` and ``model_runtime`` are both given.
    """

    @overload
    def __init__(self, workflow: Workflow[S, R], **options: Unpack[EngineOptions]) -> None: ...
    @overload
    def __init__(self: Engine[Any, Any], workflow: None = None, **options: Unpack[EngineOptions]) -> None: ...
    def __init__(self, workflow: Workflow[S, R] | None = None, **options: Unpack[EngineOptions]) -> None:
        model, model_runtime = options.pop("model", None), options.pop("model_runtime", None)
        tools = options.pop("tools", None)
        settings = Settings(**cast("dict[str, Any]", options))
        above = None if settings.execution is None else settings.execution.signal
        self._begin(settings, () if above is None else (above,), settings.pool or ToolPool())
        if workflow is not None:
            self.bind_workflow(workflow)
        if tools is not None:
            self.bind_tool_runtime(tools)
        if model is not None:
            self.bind_model(model)
        if model_runtime is not None:
            self.bind_model_runtime(model_runtime)

    def _begin(self, settings: Settings, above: tuple[Signal, ...], pool: ToolPool) -> None:
        self._settings, self._pool = settings, pool
        self._signal = Signal("engine", parents=above, clock=settings.clock)
        self._workflow: Workflow[S, R] | None = None
        self._tools: ToolSet | None = None
        self._definition: ModelDefinition | None = None
        self._service: BoundModel | None = None
        self._walk: Walk[S, R] | None = None
        self._journal: Journal | None = None
        self._busy = False

    # -- binding, each once

    def bind_workflow(self, workflow: Workflow[S, R]) -> None:
        """Fix what `run` walks through (R286).

        Raises:
            InputError: it is no `Workflow`. ConflictError: the engine has one.
        """
        if not isinstance(workflow, Workflow):
            raise InputError(f"bind_workflow: expected a Workflow, got {type(workflow).__name__}")
        self._check_unbound("workflow", self._workflow)
        self._workflow = workflow

    def bind_tool_runtime(self, tools: Sequence[Tool] | ToolSet) -> None:
        """Fix what ``context.tools`` may call (R286).

        Raises:
            InputError, ToolDefinitionError: they are no tools, or no set; or one of them waits for a person, which
                nothing of an engine can: its approval would be passed over. ConflictError: the engine has some.
        """
        given = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        waiting = [tool.name for tool in given if tool.kind == "external" or tool.policy.approval is not None]
        if waiting:
            rule = f"expected tools that wait for nobody, got {waiting}; an agent of a node may have them"
            raise InputError(f"bind_tool_runtime: {rule}")
        self._check_unbound("tools", self._tools)
        self._tools = given

    def bind_model(self, definition: ModelDefinition) -> None:
        """Have each run make a service of its own: its counts and its budget begin anew with each (R268).

        Args:
            definition: a `RunnerDefinition`, or a function of an `Execution` that returns a service. What it made is
                closed with the run, where it has ``aclose``: for 5 s at most, and what goes wrong is in the log and a
                note of the run's error. The run comes to what it came to all the same.

        Raises:
            InputError: it cannot be called, or is async. ConflictError: the engine has a model.
        """
        if not callable(definition) or is_async(definition):
            got = "an async one" if callable(definition) else type(definition).__name__
            raise InputError(f"bind_model: expected a definition, got {got}")
        self._check_unbound("model", self._definition or self._service)
        self._definition = definition

    def bind_model_runtime(self, service: ModelService) -> None:
        """Have all runs use a service that exists: its counts, budget, signal and observers go on (R269, R272).

        Args:
            service: a `ModelRunner`, or what has ``invoke`` and ``prepare``, which are looked up now. Closed by
                nobody here.

        Raises:
            InputError: it has not. ConflictError: the engine has a model.
        """
        bound = BoundModel("bind_model_runtime", service)
        self._check_unbound("model", self._definition or self._service)
        self._service = bound

    def _check_unbound(self, name: str, known: object) -> None:
        if known is not None:
            raise ConflictError("engine", f"expected its {name} to be bound once, got another")

    # -- reading

    @property
    def signal(self) -> Signal:
        """Cancelling it cancels the run under way, and every later one."""
        return self._signal

    @property
    def state(self) -> S | None:
        """The state of the newest run of the workflow as it was committed last, however the run ended; None before.

        Its lists, dicts and sets are the reader's own.
        """
        return None if self._walk is None else self._walk.read()

    @property
    def journal(self) -> Journal:
        """Nodes, routes and tools of the newest run; its model calls are in the journal of their runner.

        Raises:
            InputError: there was no run.
        """
        if self._journal is None:
            raise InputError("Engine.journal: expected an engine that has run, got one that has not")
        return self._journal

    # -- running

    @overload
    async def run(
        self,
        start: Step[T],
        *,
        deps: Any = ...,
        signal: Signal | None = ...,
    ) -> T: ...
    @overload
    async def run(
        self,
        start: S,
        *,
        deps: Any = ...,
        signal: Signal | None = ...,
        model_id: str | None = ...,
    ) -> R: ...
    async def run(
        self,
        start: Any,
        *,
        deps: Any = None,
        signal: Signal | None = None,
        model_id: str | None = None,
    ) -> Any:
        """Run the workflow on a state, or call a step round after round, until it completes.

        Args:
            start: the state to begin with; or a function of round number and context that returns `Continue` or
                `Complete`, sync or async (R288).
            deps: the application's, for ``context.deps`` and tools.
            signal: cancels this run, beside the engine's own; its reason is raised as it is (R289).
            model_id: model of calls that name none; not for a step, which names its models itself.

        Raises:
            ConflictError: a run of this engine goes on.
            InputError: ``start`` is neither, or there is no workflow for it; ``model_id`` beside a step.
            BudgetError: ``max_rounds``, or what a node asked for is over a budget.
            WorkflowError: a part of the workflow broke its contract.
            BaseException: what engine, signal or runner was cancelled with; what a handler raised and no error
                route took; `asyncio.CancelledError`, where the caller is cancelled.
        """
        workflow = self._workflow
        by_hand = callable(start) and not isinstance(start, msgspec.Struct)
        if signal is not None and not isinstance(signal, Signal):
            raise InputError(f"run.signal: expected a Signal or None, got {type(signal).__name__}")
        if by_hand and model_id is not None:
            raise InputError("run.model_id: expected none for a step, which names the models of its calls itself")
        if not by_hand and workflow is None:
            raise InputError(f"run: expected a step, as the engine has no workflow, got {type(start).__name__}")
        if model_id is not None and type(model_id) is not str:
            raise InputError(f"run.model_id: expected str or None, got {type(model_id).__name__}")
        with self._alone():
            if by_hand:
                return await self._run(
                    lambda request: walk_steps(start, request, self._settings.max_rounds), "", deps, signal, None
                )
            known = cast("Workflow[S, R]", workflow)
            state = known.state.admit(start)

            def walk(request: Request) -> Awaitable[R]:
                self._walk = Walk(known, request, state, self._settings.max_rounds)
                return self._walk.go()

            return await self._run(walk, known.name, deps, signal, model_id)

    @overload
    def fork(self, *, model: ModelDefinition, model_runtime: None = None) -> Self: ...
    @overload
    def fork(self, *, model: None = None, model_runtime: ModelService) -> Self: ...
    def fork(self, *, model: ModelDefinition | None = None, model_runtime: ModelService | None = None) -> Self:
        """An engine for a request beside this one's: the same workflow, tools, limits and signal, another model.

        Args:
            model: as `bind_model`; may be this engine's own.
            model_runtime: as `bind_model_runtime`; another than this engine's, a child of it for instance.

        Raises:
            InputError: both of them, or none; or the service that this engine uses.
        """
        if (model is None) == (model_runtime is None):
            got = "none of them" if model is None else "both"
            raise InputError(f"fork: expected either model= or model_runtime=, got {got}")
        if model_runtime is not None and self._service is not None and self._service.service is model_runtime:
            raise InputError("fork: expected another service, got the engine's own; a runner has child() for this")
        other = type(self).__new__(type(self))
        other._begin(self._settings, (self._signal,), self._pool)
        other._workflow, other._tools = self._workflow, self._tools
        if model is not None:
            other.bind_model(model)
        if model_runtime is not None:
            other.bind_model_runtime(model_runtime)
        return other

    # -- private

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise ConflictError(
                "engine", "expected one request at a time, got another one; fork() makes an engine for it"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _run(
        self,
        walk: Callable[[Request], Awaitable[Any]],
        workflow: str,
        deps: Any,
        signal: Signal | None,
        model_id: str | None,
    ) -> Any:
        """Run in what is made for this run alone; a run that a handler waits for is waited for by the handler's run."""
        above = Execution() if self._service is None else self._service.execution
        signals = tuple(one for one in (self._signal, signal, above.signal) if one is not None)
        here = asyncio.current_task()
        outer = None if here is None else _WALKING.get(here)
        with nullcontext() if outer is None else outer:
            async with Bound(Signal("engine", parents=signals, clock=self._settings.clock)):
                settings = self._settings
                told = (settings.execution or Execution()).diagnostics or above.diagnostics
                part = Diagnostics(new_id=settings.new_id, now_ms=settings.now_ms) if told is None else told.child()
                own = Signal(part.span_id, parents=signals, clock=settings.clock)
                if self._definition is None:
                    request = self._request(part, own, self._service, workflow, deps, model_id)
                    return await self._walked(walk(request), request, signals)
                made = self._definition(Execution(signal=own, diagnostics=part))
                try:
                    request = self._request(part, own, BoundModel("bind_model", made), workflow, deps, model_id)
                    value = await self._walked(walk(request), request, signals)
                except BaseException as error:
                    await close_service(made, error)
                    raise
                await close_service(made, None)
                return value

    async def _walked(self, walk: Awaitable[Any], request: Request, signals: tuple[Signal, ...]) -> Any:
        """Have a task do the walking, and wait for it as long as it is wanted."""
        worker = asyncio.ensure_future(_awaited(walk))
        worker.set_name("agentloop engine")
        _WALKING[worker] = request.effects
        try:
            await asyncio.wait({worker})
        except asyncio.CancelledError as cancel:
            if not worker.done() or worker.cancelled() or worker.exception() is not None:
                raise
            put_off(cancel)  # the result was there first, and stands
        finally:
            reason = _reason(signals) or RunCancelled(request.part.span_id, "signal")
            request.signal.cancel(reason)
            if not worker.done():
                worker.cancel()
                worker.add_done_callback(_left)
            if request.effects.any:
                await settle(request.effects.idle())
            request.end(reason)
        return worker.result()

    def _request(
        self,
        part: Diagnostics,
        signal: Signal,
        model: BoundModel | None,
        workflow: str,
        deps: Any,
        model_id: str | None,
    ) -> Request:
        """What the run's parts share."""
        settings = self._settings
        ledger = settings.ledger or (None if model is None else model.ledger) or Ledger()
        self._journal = part.journal
        return Request(
            workflow=workflow,
            part=part,
            emitter=part.bind(None if model is None else model.observers),
            signal=signal,
            ledger=ledger if settings.max_tool_calls is None else ledger.child(tool_calls=settings.max_tool_calls),
            model=model,
            model_id=model_id,
            tools=self._tools,
            pool=self._pool,
            spawn=settings.spawn,
            deps=deps,
            new_id=settings.new_id,
            clock=settings.clock,
        )

    def __repr__(self) -> str:
        return f"<Engine of {'steps' if self._workflow is None else repr(self._workflow.name)}>"


async def _awaited(walk: Awaitable[Any]) -> Any:
    return await walk


def _reason(signals: tuple[Signal, ...]) -> BaseException | None:
    return next((one.reason for one in signals if one.reason is not None), None)


def _left(worker: asyncio.Task[Any]) -> None:
    """A run that was left has come to its end after all: what it was cancelled with, which nobody waits for."""
    if not worker.cancelled():
        worker.exception()
