"""What a host calls: owns provider, store and runs, and closes them in the right order.

``run``, ``start``, ``text`` and ``submit`` are one path: each launches the same driver in a task of
the runtime. What differs is who waits: ``start`` ties the run to a block, ``submit`` to nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import msgspec

from .agent import Agent
from .basis import read_by, require_agent
from .conversations import Conversations
from .effects import ChildWaits, Ledger, LeftOver, ResendPolicy, Signal, settle
from .errors import InputError, LostError
from .events import TextPreview
from .events.envelope import random_id, wall_ms
from .exchange import Book, BookLimits, Checkpoint, ReceiptMint, checkpoint_of
from .life import Life
from .limits import LEASE_SECONDS, MAX_ROUNDS, SETTLE_SECONDS, check_count, check_name, check_seconds
from .persistence import Backend, ConversationStore, backend_for
from .providers import Provider
from .results import RunResult, result_in
from .runner import Execution, ModelRunner, RunnerOptions
from .runs import Runs
from .sinks import Follower, Observer, require_observer
from .steering import Steering
from .tools import Tool, ToolSet
from .unfinished import UnfinishedRuns
from .windows import LiveRun, Parent, Run, RunInput, RunOptions, admitted, check_options, check_ref, sequence_of
from .workflow import Engine, RunnerDefinition, Workflow

__all__ = ["Runtime"]

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


class Runtime(Conversations, Steering, UnfinishedRuns):
    """Owns a provider, a store and all effects of the runs it opens.

    Args:
        provider: what sends; closed with the runtime.
        store: None keeps facts in this process's memory; a path in a SQLite file, made when it is
            not there; ``postgresql://…`` in a database (extra ``postgres``).
        resend: whether a request that was refused is sent once more; None is never (`ResendPolicy`). Its
            fallbacks are closed with the runtime.
        observers: watch every event of every run, isolated and bounded (`Observer`).
        ledger: a budget that all runs and runners of this runtime share (`Ledger`); None is none.
        settle_seconds: how long closing waits for sends that live apart from their callers.
        lease_seconds: how long nobody may take up the runs of a process that died, on a durable
            store. Those of a living one are renewed three times as often.
        new_id, clock, now_ms, sleep, random: sources of unique ids, monotonic seconds and wall
            milliseconds; what waits for seconds; source of numbers from 0 to 1.

    Use it as ``async with``, in one event loop. On a durable store, several processes may use the
    same one; each run has one owner at a time, and a run that was submitted is left unfinished when
    the runtime closes, to be resumed. The events of an ended run are kept until 128
    newer ones have ended; what is stored of it stays. In memory, a run without ``conversation`` and
    ``run_id`` is dropped then, and every other one kept with its events until `forget`.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        store: str | os.PathLike[str] | Backend | None = None,
        observers: Sequence[Observer] = (),
        resend: ResendPolicy | None = None,
        limits: BookLimits | None = None,
        ledger: Ledger | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        new_id: Callable[[], str] = random_id,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(provider, Provider):
            raise InputError(f"Runtime.provider: expected a Provider, got {type(provider).__name__}")
        if limits is not None and type(limits) is not BookLimits:
            raise InputError(f"Runtime.limits: expected BookLimits, got {type(limits).__name__}")
        if not isinstance(observers, Iterable):
            raise InputError(f"Runtime.observers: expected a list of observers, got {type(observers).__name__}")
        for at, observer in enumerate(observers):
            require_observer(f"Runtime.observers[{at}]", observer)
        if resend is not None and type(resend) is not ResendPolicy:
            raise InputError(f"Runtime.resend: expected a ResendPolicy, got {type(resend).__name__}")
        if ledger is not None and type(ledger) is not Ledger:
            raise InputError(f"Runtime.ledger: expected a Ledger, got {type(ledger).__name__}")
        check_seconds("Runtime.settle_seconds", settle_seconds)
        check_seconds("Runtime.lease_seconds", lease_seconds)
        self._provider, self._resend, self._observers = provider, resend, tuple(observers)
        self._settle_seconds, self._ledger = settle_seconds, ledger
        self._new_id, self._clock, self._now_ms = new_id, clock, now_ms
        mint, owner = ReceiptMint(), random_id()
        book = Book(mint, limits=limits or BookLimits())
        self._life = Life()
        self._store = ConversationStore(backend_for(store), book, owner=owner, lease_seconds=lease_seconds)
        self._runs = Runs(
            self._life,
            self._store,
            mint=mint,
            owner=owner,
            provider=provider,
            resend=resend,
            ledger=ledger,
            new_id=new_id,
            clock=clock,
            now_ms=now_ms,
            sleep=sleep,
            random=random,
        )
        self._closing: asyncio.Task[None] | None = None

    # -- life

    async def __aenter__(self) -> Self:
        if self._life.state != "new":
            raise InputError(f"Runtime: expected to be entered once, got a runtime that is {self._life.state}")
        self._life.state = "opening"
        try:
            await self._runs.whole(self._store.open())
        except BaseException:
            self._life.state = "new"
            raise
        self._life.begin()
        self._runs.begin(self._observers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more runs, end those that go on, then close observers, store and provider.

        A submitted, resumed or checkpointed run on a durable store ends its present effect and stays
        unfinished, to be resumed: a tool has 5 s, a send ``settle_seconds``. What takes longer is cut
        off, said in the log, and is unsettled then; a tool has its ``grace`` to end, and is left over after it.
        Every other run is cancelled, and has recorded its end before the store closes (R143).
        Idempotent. A cancel of the caller does not cut it short; it is raised afterwards, but at
        once in an observer or in a task that a run has begun: those are among what ends.

        Raises:
            InputError: called by a run or a model call of this runtime, whose end it would have to wait
                for, or in another event loop.
        """
        self._life.require_loop()
        here = asyncio.current_task()
        inside = self._runs.host.led_here or self._runs.pool.run_here is not None
        if inside or any(live.task is here for live in self._runs.live.values()):
            raise InputError("Runtime.aclose: expected a caller outside its runs, got a tool or a sink of one")
        if self._closing is None:
            self._life.state = "closed"
            self._runs.cut_off()  # what works under its signal shall not meet a closed runtime first
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="agentloop closing")
        if self._life.led_here:
            await asyncio.wait({self._closing})
        else:
            await settle(asyncio.wait({self._closing}))
        self._closing.result()

    async def _close(self) -> None:
        async with AsyncExitStack() as stack:  # last in, first out
            for provider in (self._provider, *(() if self._resend is None else self._resend.fallbacks)):
                stack.push_async_callback(provider.aclose)
            stack.push_async_callback(self._store.close)
            await self._runs.close(self._settle_seconds)

    @property
    def fault(self) -> str | None:
        """Why the store has stopped writing, None while it goes on; only a new runtime can go on from it."""
        return self._store.fault

    @property
    def durable(self) -> bool:
        """Whether what is stored outlives this process."""
        return self._store.durable

    @property
    def left_over(self) -> tuple[LeftOver, ...]:
        """Tools that have not ended though their calls are over, the oldest first.

        A thread cannot be stopped, and a task may keep its cancels to itself: see `ToolPolicy.grace`. No tool
        of the same run or conversation begins meanwhile. The log says of each that it was left, and when it
        ended.
        """
        return self._runs.pool.left_over

    # -- runs

    async def run(self, agent: Agent[T], input: RunInput, **options: Unpack[RunOptions]) -> RunResult[T]:
        """Run to the end, or until calls of it wait for a host (`RunResult.waiting`). Options: `RunOptions`.

        Cancelling the caller cancels the run, as leaving a `Run` does.

        With ``checkpoint=True`` a model call under way is not cancelled: it goes on by itself and
        its reply is stored. The caller's `CancelledError` has a `ModelPending` as its cause then.

        An agent with an output gives its value in the result, of the output's type.

        Raises:
            ModelPending: the local ``wait`` for a model call is over; it goes on.
            InputError: bad input. StreamRefused, ProviderError: the model call failed.
            ToolCrashed: a tool raised what it did not declare. ApprovalFailed: the predicate of one did.
            ConflictError: the conversation is in use, or the run id is taken.
            LimitExceeded: the store is full (`BookLimits`). PersistenceError: the store stopped.
            With an agent that has a ``context``, before anything of the run is stored. LimitExceeded: what
            must be kept is over the budget. For a summary it needs: as `ModelRunner.invoke`; UnsettledError:
            nobody knows what became of a call that an earlier start of the run made for one.
        """
        live = await self._start(agent, input, **options)
        return await live.wait_bound()

    def start(self, agent: Agent[T], input: RunInput, **options: Unpack[RunOptions]) -> Run[T]:
        """A run tied to a block; see `Run`. Options: `RunOptions`."""
        return Run(lambda: self._start(agent, input, **options), self)

    async def text(self, agent: Agent[Any], input: RunInput, **options: Unpack[RunOptions]) -> AsyncIterator[str]:
        """Only the body text, as it arrives: previews, so an error after some text withdraws it.

        Raises:
            OutcomeError: after the last text, when the run did not complete.
        """
        async with self.start(agent, input, **options) as run:
            async for event in run:
                if type(event) is TextPreview:
                    yield event.text
            (await run.result()).require_text()

    async def submit(self, agent: Agent[Any], input: RunInput, **options: Unpack[RunOptions]) -> str:
        """Begin a run that is bound to no task; return its reference. Options: `RunOptions`.

        What an agent's ``context`` needs before is bound to the caller.
        """
        return (await self._start(agent, input, kept=True, **options)).ref

    def runner(self, **options: Unpack[RunnerOptions]) -> ModelRunner:
        """Model calls without a loop, for one request: on this runtime's provider, store, ledger and observers.

        Each call is stored as a run of its own; the policy of `Runtime` on what is sent once more applies
        unless ``resend`` says otherwise. Closing the runtime cuts off a call under way.

        Args:
            options: see `RunnerOptions`. ``ledger``, where given, takes the place of the runtime's.

        Raises:
            InputError: the runtime is not open, or a value is wrong. TypeError: an unknown name.
        """
        self._life.require_open()
        given: RunnerOptions = {"resend": self._resend, "ledger": self._ledger, **options}
        return ModelRunner.of(self._runs.host, self._provider, given)

    @overload
    def engine(
        self,
        workflow: Workflow[S, T],
        *,
        tools: Sequence[Tool] | ToolSet | None = ...,
        max_rounds: int = ...,
        max_tool_calls: int | None = ...,
        runner: ModelRunner | None = ...,
        **options: Unpack[RunnerOptions],
    ) -> Engine[S, T]: ...
    @overload
    def engine(
        self,
        workflow: None = None,
        *,
        tools: Sequence[Tool] | ToolSet | None = ...,
        max_rounds: int = ...,
        max_tool_calls: int | None = ...,
        runner: ModelRunner | None = ...,
        **options: Unpack[RunnerOptions],
    ) -> Engine[Any, Any]: ...
    def engine(
        self,
        workflow: Workflow[Any, Any] | None = None,
        *,
        tools: Sequence[Tool] | ToolSet | None = None,
        max_rounds: int = MAX_ROUNDS,
        max_tool_calls: int | None = None,
        runner: ModelRunner | None = None,
        **options: Unpack[RunnerOptions],
    ) -> Engine[Any, Any]:
        """What runs a workflow, or steps written by hand, on this runtime's provider, store, ledger and observers.

        Each run has a runner of its own, and with it the whole of ``max_calls`` (R268). With ``runner`` all runs
        use that one, and what it has left (R269). Closing the runtime cancels a run under way.

        Args:
            workflow, tools, max_rounds, max_tool_calls: see `Engine`.
            options: see `RunnerOptions`; none beside ``runner``. Of ``execution`` the signal also cancels the engine's
                runs, and they are told below its diagnostics.

        Raises:
            InputError: the runtime is not open, or a value is wrong. TypeError: an unknown name.
        """
        self._life.require_open()
        if runner is not None and options:
            raise InputError(f"Runtime.engine: expected no options beside runner=, got {next(iter(options))}")
        given = options.pop("execution", None) or Execution()
        above = (self._runs.host.signal,) if given.signal is None else (self._runs.host.signal, given.signal)
        signal = Signal("engine", parents=above, clock=self._clock)
        return Engine(
            workflow,
            model=RunnerDefinition.of(self.runner, options) if runner is None else None,
            model_runtime=runner,
            tools=tools,
            max_rounds=max_rounds,
            max_tool_calls=max_tool_calls,
            execution=Execution(signal=signal, diagnostics=given.diagnostics),
            spawn=self._spawn,
            pool=self._runs.pool,
            new_id=self._new_id,
            clock=self._clock,
            now_ms=self._now_ms,
        )

    def follow(self, ref: str, *, after: str | None = None) -> Follower:
        """Read a run's events, those before the call included; a reconnect passes the last id seen.

        The text of an attempt that has ended comes as one preview. Reading never holds the run up.

        Raises:
            LostError: no such run is kept. InputError: ``after`` is not an id of this run's events.
            Otherwise as `result`, after the last event.
        """
        check_ref(ref)
        live = self._runs.live.get(ref)
        if live is None:
            raise LostError("run", ref)
        return live.feed.follow(after=sequence_of(ref, after))

    @overload
    async def result(self, ref: str, agent: None = None) -> RunResult[Any]: ...
    @overload
    async def result(self, ref: str, agent: Agent[T]) -> RunResult[T]: ...
    async def result(self, ref: str, agent: Agent[Any] | None = None) -> RunResult[Any]:
        """Wait for a run's end; cancelling the caller leaves the run alone.

        A run that ended in another process, or before this one began, gives what is stored of it. So does
        one that waits for a host: the calls that wait.

        Args:
            agent: the run's, of the same name and output. With it the value of a stored run is made again
                from the stored reply; without it only a run that this runtime still has gives one, and
                else `RunResult.value` is None.

        Raises:
            LostError: no such run is kept. OutcomeError: it is not in this process, has not ended and does
            not wait for a host any more; or it ended with an error. RunPaused, UnsettledError,
            NotOwnerError: it left off here without its end. RestoreError: the agent has another name, or an
            output that the run was not asked for. OutputRefused: its type takes no longer what it took.
            Otherwise as `run`.
        """
        check_ref(ref)
        if agent is not None:
            require_agent(agent)
        live = self._runs.live.get(ref)
        if live is not None:
            if live.goes_on or live.closed or self._life.state != "open" or self._store.fault is not None:
                return await self._read(live, agent)
            if not live.suspended and (await self._store.turn(ref)).closed is None:  # nobody has ended it since
                return await self._read(live, agent)
        turn = await self._store.turn(ref)
        return await result_in(turn, self._store.turn, None if agent is None else read_by(agent, turn))

    async def checkpoint(self, ref: str) -> Checkpoint:
        """Which of the four points a run is at, with the evidence; read from what is stored, nothing is sent.

        Raises:
            LostError: no such run. RestoreError: the store holds facts that cannot be.
        """
        self._life.require_open()
        check_ref(ref)
        return checkpoint_of(await self._store.turn(ref))

    async def output(self, ref: str, exchange: int, position: int) -> str:
        """The full text of a tool's output that was cut for the model, as it is kept with the answer.

        Whoever has the store may ask, in any process, while the run goes on and after it.

        Args:
            exchange, position: of the call, as the events of its tool have them.

        Raises:
            LostError: no such run; or nothing is kept of the call: its output was not cut, there was no room
                for it, or the run's texts were removed. RestoreError: the store holds what is no fact.
            PersistenceError: the store failed, or has stopped.
        """
        self._life.require_open()
        check_ref(ref)
        check_count("exchange", exchange, 0)
        check_count("position", position, 0)
        return await self._store.output(ref, exchange, position)

    async def cancel(self, ref: str, *, author: str | None = None) -> None:
        """Cancel a run and wait until its end is recorded. Harmless after the end.

        A run that goes on nowhere, as its process died or it waits for a host, is taken over and
        ended, and its conversation can go on. Its open calls are skipped. A run that an agent does for a call of
        it, and those below, are ended before it; that such a call waits needs no author. Of an effect of which
        nobody knows what became of it the ``author`` decides that it is not waited for: a send ends
        as abandoned, and may have been processed; a call's outcome stays unknown, in words that say so.

        Args:
            author: who decides; stored with each decision. 1 to 128 characters.

        Raises:
            LostError: no such run is kept. NotOwnerError: it goes on elsewhere, or it is the model
            call of a runner that goes on here: the runner's signal cancels that.
            InputError: the runtime is closing, and leaves the run unfinished.
            UnsettledError: there is such an effect and no author; nothing was written.
            RestoreError: the store holds facts of it that cannot be. PersistenceError: it failed.
        """
        check_ref(ref)
        if author is not None:
            check_name("author", author)
        await self._runs.end(ref, author, check=self._life.require_open)

    # -- private

    async def _spawn(
        self,
        agent: Agent[T],
        input: RunInput,
        /,
        *,
        ledger: Ledger,
        parent_span_id: str,
        run_id: str | None = None,
        deps: Any = None,
    ) -> RunResult[T]:
        """Run an agent for a workflow; what it may ask of others, it may as in a run of its own."""
        parent = Parent(ledger, parent_span_id, 0, agent.limits.max_depth)
        try:
            return await self._runs.spawn(agent, input, parent, run_id=run_id, deps=deps)
        except ChildWaits as left:
            raise left.error from left.error.__cause__

    async def _read(self, live: LiveRun, agent: Agent[Any] | None) -> RunResult[Any]:
        """The result of a run of this runtime, with the value that ``agent`` makes where one is given."""
        result = await live.wait()
        if agent is None or agent is live.agent:
            return result
        turn = await self._store.turn(live.ref)
        return await result_in(turn, self._store.turn, read_by(agent, turn))

    async def _start(
        self, agent: Agent[Any], input: RunInput, *, kept: bool = False, **options: Unpack[RunOptions]
    ) -> LiveRun:
        self._life.require_open()
        require_agent(agent)
        check_options(options)
        asking = agent.prepare(self._provider.dialect)
        self._check_checkpoint(asking.toolset, options, kept=kept)
        known = self._runs.live.get(options.get("run_id") or "")
        if known is not None:
            known.require_outside()
        messages = admitted(asking, input, options.get("history", ()))
        conversation = options.get("conversation")
        if agent.context is not None and conversation is not None:
            return await self._runs.open_within(agent, asking, messages, options, conversation=conversation, kept=kept)
        return await self._runs.attend(lambda: self._runs.open(agent, asking, messages, options, kept=kept))

    def _check_checkpoint(self, tools: ToolSet, options: RunOptions, *, kept: bool) -> None:
        """Refuse recovery points without what they stand on (R129, R130)."""
        checkpoint = options.get("checkpoint", False)
        if checkpoint and not self._store.durable:
            raise InputError("checkpoint: expected a durable store (Runtime(store=...)), got one in memory")
        unstated = tools.unstated() if checkpoint else ()
        if unstated:
            raise InputError(f"checkpoint: expected each tool to state its recovery=, got none for {list(unstated)}")
        if "wait" in options and kept:
            raise InputError("wait: expected none for a submitted run, which no caller waits for")
        if "wait" in options and not checkpoint:
            raise InputError("wait: expected checkpoint=True with it")
