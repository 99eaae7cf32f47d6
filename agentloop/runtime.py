"""The host: owns provider, store and effects, opens runs, closes in the right order.

``run``, ``start``, ``text`` and ``submit`` are one path: each launches the same driver in a task of
the runtime. What differs is who waits: ``start`` ties the run to a block, ``submit`` to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from .agent import Agent
from .basis import check_agent, check_input
from .conversations import Conversations
from .eager import Eager
from .effects import Ledger, ResendPolicy, Scope, Sends, ToolThreads, settle
from .errors import (
    AgentLoopError,
    ConflictError,
    InputError,
    LostError,
    NotOwnerError,
    RunCancelled,
)
from .events import TextPreview
from .exchange import Book, BookLimits, Checkpoint, Fact, ReceiptMint, SlotState, Turn, checkpoint_of
from .limits import (
    CLOSE_SECONDS,
    FEEDBACK_BYTES,
    LEASE_SECONDS,
    SETTLE_SECONDS,
    TOOL_THREADS,
    WAIT_SECONDS,
    check_count,
    check_seconds,
)
from .loop import cancelled_end, drive
from .messages import SystemMessage, ToolFeedback, ToolResult, UserMessage, require_tool_result
from .persistence import Backend, ConversationStore, Gate, RunRow, backend_for
from .providers import Provider
from .results import RunResult, result_of
from .sinks import Emitter, Feed, Follower, Observer, ObserverHub, require_observer, wall_ms
from .unsettled import SendStatus, Unsettled, require_settled, status_of, unsettled_of
from .windows import (
    LiveRun,
    Run,
    RunInput,
    RunOptions,
    admitted,
    check_name,
    check_options,
    input_digest,
    retrieve,
    sequence_of,
)

__all__ = ["Runtime"]

_log = logging.getLogger("agentloop.runtime")

T = TypeVar("T")

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("agentloop runtimes", default=())
"""Marks of the runtimes whose runs or observers led to the present code, tasks that they began included."""

_KEPT_RUNS = 128
"""Ended runs whose events a runtime still has, of those that it may let go."""


def _new_id() -> str:
    return os.urandom(16).hex()


class Runtime(Conversations):
    """Owns a provider, a store and all effects of the runs it opens.

    Args:
        provider: what sends; closed with the runtime.
        store: None keeps facts in this process's memory; a path in a SQLite file, made when it is
            not there; ``postgresql://…`` in a database (extra ``postgres``).
        resend: whether a request that was refused without being processed is sent once more; None
            is never (`ResendPolicy`). Its fallbacks are closed with the runtime.
        observers: watch every event of every run, isolated and bounded (`Observer`).
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
        settle_seconds: float = SETTLE_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        new_id: Callable[[], str] = _new_id,
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
        check_seconds("Runtime.settle_seconds", settle_seconds)
        check_seconds("Runtime.lease_seconds", lease_seconds)
        self._provider, self._resend = provider, resend
        self._mint = ReceiptMint()
        self._owner = _new_id()
        book = Book(self._mint, limits=limits or BookLimits())
        self._store = ConversationStore(backend_for(store), book, owner=self._owner, lease_seconds=lease_seconds)
        self._sends, self._settle_seconds = Sends(self._send_ended), settle_seconds
        self._renewing: asyncio.Task[None] | None = None
        self._threads = ToolThreads(TOOL_THREADS)
        self._observe = tuple(observers)
        self._observers: ObserverHub | None = None
        self._new_id, self._clock, self._now_ms = new_id, clock, now_ms
        self._sleep, self._random = sleep, random
        self._runs: dict[str, LiveRun] = {}
        self._gate: Gate[str] = Gate()  # of each run, while it is launched or settled; closing waits for those
        self._ended_runs: deque[LiveRun] = deque()
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark = object()
        self._state = "new"

    # -- life

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise InputError(f"Runtime: expected to be entered once, got a runtime that is {self._state}")
        self._state = "opening"
        try:
            await self._whole(self._store.open())
        except BaseException:
            self._state = "new"
            raise
        self._state = "open"
        self._loop = asyncio.get_running_loop()
        mark = self._enter()
        self._observers = ObserverHub(self._observe)
        _INSIDE.reset(mark)
        if self._store.durable:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="agentloop leases")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more runs, end those that go on, then close observers, store and provider.

        A submitted, resumed or checkpointed run on a durable store ends its present effect and stays
        unfinished, to be resumed: a tool has 5 s, a send ``settle_seconds``. What takes longer is cut
        off, said in the log, and is unsettled then.
        Every other run is cancelled, and has recorded its end before the store closes (R143).
        Idempotent. A cancel of the caller does not cut it short; it is raised afterwards, but at
        once in an observer or in a task that a run has begun: those are among what ends.

        Raises:
            InputError: called by a run of this runtime, whose end it would have to wait for, or in
                another event loop.
        """
        self._require_loop()
        if any(live.task is asyncio.current_task() for live in self._runs.values()):
            raise InputError("Runtime.aclose: expected a caller outside its runs, got a tool or a sink of one")
        if self._closing is None:
            self._state = "closed"
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="agentloop closing")
        if self._mark in _INSIDE.get():
            await asyncio.wait({self._closing})
        else:
            await settle(asyncio.wait({self._closing}))
        self._closing.result()

    async def _close(self) -> None:
        async with AsyncExitStack() as stack:  # last in, first out
            for provider in (self._provider, *(() if self._resend is None else self._resend.fallbacks)):
                stack.push_async_callback(provider.aclose)
            stack.push_async_callback(self._store.close)
            if self._observers is not None:
                stack.push_async_callback(self._observers.close, CLOSE_SECONDS)
            stack.push_async_callback(self._stop_renewing)
            await self._gate.idle()
            await self._end_runs()
            stuck = await self._threads.wait_idle(CLOSE_SECONDS)
            if stuck:
                _log.warning("%d tool threads have not ended; a thread cannot be stopped", stuck)

    async def _end_runs(self) -> None:
        """Stop the runs, and only then what they wait for: own sends settle before the store closes (R143)."""
        for live in self._runs.values():
            if live.kept:
                live.request_pause()
            else:
                live.request_stop()
        settling = asyncio.get_running_loop().create_task(self._sends.settle(self._settle_seconds))
        in_tools = {
            live.task: live
            for live in self._runs.values()
            if live.kept and live.task is not None and live.goes_on and self._sends.of(live.ref) is None
        }
        if in_tools:
            _, late = await asyncio.wait(in_tools, timeout=CLOSE_SECONDS)
            if late:
                _log.warning("%d runs did not end their effect in time; it is abandoned", len(late))
            for task in late:
                in_tools[task].request_stop()
        unknown = await settling
        if unknown:
            _log.warning("%d sends had no end in time; they are unsettled", unknown)
        tasks = {live.task for live in self._runs.values() if live.task is not None and live.goes_on}
        if tasks:
            await asyncio.wait(tasks)

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})

    async def _renew(self) -> None:
        """Keep the leases of the runs of this runtime; stop a run that was taken over."""
        while True:
            await asyncio.sleep(self._store.lease_seconds / 3)
            try:
                lost = await self._store.renew()
            except AgentLoopError as error:
                _log.error("leases could not be renewed: %s", error)
                continue
            for run_id in lost:
                live = self._runs.get(run_id)
                pending = self._sends.of(run_id)
                if live is not None:
                    _log.error("run %s was taken over by another owner", run_id)
                    live.request_stop()
                if pending is not None:
                    pending.cut_off()

    # -- runs

    async def run(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> RunResult:
        """Run to the end; cancelling the caller cancels the run, as leaving a `Run` does. Options: `RunOptions`.

        With ``checkpoint=True`` a model call under way is not cancelled: it goes on by itself and
        its reply is stored. The caller's `CancelledError` has a `ModelPending` as its cause then.

        Raises:
            ModelPending: the local ``wait`` for a model call is over; it goes on.
            InputError: bad input. StreamRefused, ProviderError: the model call failed.
            ToolCrashed: a tool raised what it did not declare.
            ConflictError: the conversation is in use, or the run id is taken.
            LimitExceeded: the store is full (`BookLimits`). PersistenceError: the store stopped.
        """
        live = await self._start(agent, input, **options)
        return await self._bound(live)

    def start(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> Run:
        """A run tied to a block; see `Run`. Options: `RunOptions`."""
        return Run(lambda: self._start(agent, input, **options))

    async def text(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> AsyncIterator[str]:
        """Only the body text, as it arrives: previews, so an error after some text withdraws it.

        Raises:
            OutcomeError: after the last text, when the run did not complete.
        """
        async with self.start(agent, input, **options) as run:
            async for event in run:
                if type(event) is TextPreview:
                    yield event.text
            (await run.result()).require_text()

    async def submit(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> str:
        """Begin a run that is bound to no task; return its reference. Options: `RunOptions`."""
        return (await self._start(agent, input, kept=True, **options)).ref

    def follow(self, ref: str, *, after: str | None = None) -> Follower:
        """Read a run's events, those before the call included; a reconnect passes the last id seen.

        The text of an attempt that has ended comes as one preview. Reading never holds the run up.

        Raises:
            LostError: no such run is kept. InputError: ``after`` is not an id of this run's events.
            Otherwise as `result`, after the last event.
        """
        return self._live(ref).feed.follow(after=sequence_of(ref, after))

    async def result(self, ref: str) -> RunResult:
        """Wait for a run's end; cancelling the caller leaves the run alone.

        A run that ended in another process, or before this one began, gives what is stored of it.

        Raises:
            LostError: no such run is kept. OutcomeError: it is not in this process, and has not
            ended, or ended with an error. RunPaused, UnsettledError, NotOwnerError: it left off
            here without its end. Otherwise as `run`.
        """
        live = self._runs.get(ref)
        if live is not None:
            if live.goes_on or live.closed or self._state != "open" or self._store.fault is not None:
                return await live.wait()
            if (await self._store.turn(ref)).closed is None:  # nobody has ended it since
                return await live.wait()
        return result_of(await self._store.turn(ref))

    async def checkpoint(self, ref: str) -> Checkpoint:
        """Which of the four points a run is at, with the evidence; read from what is stored, nothing is sent.

        Raises:
            LostError: no such run. RestoreError: the store holds facts that cannot be.
        """
        self._check_open()
        return checkpoint_of(await self._store.turn(ref))

    async def cancel(self, ref: str, *, author: str | None = None) -> None:
        """Cancel a run and wait until its end is recorded. Harmless after the end.

        A run that goes on nowhere, as its process died or it waits to be settled, is taken over and
        ended, and its conversation can go on. Its open calls are skipped. Of an effect of which
        nobody knows what became of it the ``author`` decides that it is not waited for: a send ends
        as abandoned, and may have been processed; a call's outcome stays unknown, in words that say so.

        Args:
            author: who decides; stored with each decision. 1 to 128 characters.

        Raises:
            LostError: no such run is kept. NotOwnerError: it goes on elsewhere.
            InputError: the runtime is closing, and leaves the run unfinished.
            UnsettledError: there is such an effect and no author; nothing was written.
            RestoreError: the store holds facts of it that cannot be. PersistenceError: it failed.
        """
        if author is not None:
            check_name("author", author)
        ended = False
        while not ended:
            live = self._runs.get(ref)
            if live is not None and live.goes_on:
                await live.cancel()
            if live is not None and (live.closed or self._store.fault is not None):
                return
            self._check_open()
            pending = self._sends.of(ref)
            if pending is not None:  # its driver has left it
                await settle(pending.stop())
            ended = await self._whole(self._end_left(ref, author))

    # -- what a process left that ended

    async def unfinished(self) -> list[RunRow]:
        """Runs without an end, oldest first; on a durable store, one whose ``lease`` is None goes on nowhere."""
        self._check_open()
        return await self._store.runs(unfinished=True)

    async def unsettled(self) -> list[Unsettled]:
        """Sends and calls of runs that go on nowhere, of which nobody knows what became of them."""
        found: list[Unsettled] = []
        for row in await self.unfinished():
            live = self._runs.get(row.run_id)
            if row.lease is None and (live is None or not live.goes_on):
                found += unsettled_of(await self._store.turn(row.run_id))
        return found

    async def read(self, ref: str, attempt_id: str | None = None) -> SendStatus:
        """What became of a model call; asks the store only, and never sends.

        Args:
            ref, attempt_id: as `ModelPending` has them; without an attempt, the run's newest one.

        Raises:
            PersistenceError: the store failed, or has stopped.
        """
        self._check_open()
        facts, owned = await self._store.facts(ref)
        return status_of(ref, attempt_id, facts, goes_on=owned)

    async def resume(
        self, ref: str, agent: Agent, *, input: RunInput | None = None, **options: Unpack[RunOptions]
    ) -> RunResult:
        """Take a run over that goes on nowhere, and run it to its end.

        What is stored is not done again: a reply is not asked for twice, and a tool that may have
        run is recovered as its policy says (`ToolPolicy.recovery`), or waits for a host. The result of
        a run that has ended is returned, and nothing runs. ``conversation``, ``run_id`` and
        ``checkpoint`` are the run's own and not given.

        Args:
            input: what the run was started with, to be checked; None leaves that out.

        Raises:
            LostError: no such run. NotOwnerError: it goes on elsewhere.
            ModelPending: the local ``wait`` for a model call is over; it goes on.
            RestoreError: ``agent_changed``: the agent has another name. ``input_changed``: other
                instructions or options, or the run had another input. ``catalogue_changed``: other
                tools. ``bad_record``: the store holds facts that cannot be.
            UnsettledError: an effect must be settled first; nothing was done but what lookups found,
            and ``__cause__`` is the error of one that failed. Otherwise as `run`.
        """
        self._check_open()
        if type(agent) is not Agent:
            raise InputError(f"Runtime: expected an Agent, got {type(agent).__name__}")
        check_options(options)
        for name in ("conversation", "run_id", "checkpoint"):
            if options.get(name):
                raise InputError(f"resume: expected no {name}, which is the run's own")
        messages = None if input is None else admitted(agent, input)
        live = await self._attend(lambda: self._take_up(agent, ref, options, messages))
        return await self._bound(live)

    async def settle_call(
        self,
        ref: str,
        exchange: int,
        position: int,
        *,
        author: str,
        result: ToolResult | None = None,
        feedback_bytes: int = FEEDBACK_BYTES,
    ) -> None:
        """Say what became of a call whose outcome is unknown, or allow one more run of it.

        Args:
            author: who decides; stored with the decision. 1 to 128 characters.
            result: what the model shall read; None allows the tool to run once more when the run
                is resumed.
            feedback_bytes: what the result may take with its call id, as JSON. A run's limits are
                not stored: say its own where its agent's `LoopLimits` has another than the default.

        Raises:
            LostError: no such run or call. ConflictError: its outcome is known.
            LimitExceeded: the result is larger than ``feedback_bytes``; it is never cut.
            NotOwnerError: the run goes on elsewhere, or here.
        """
        self._check_open()
        check_name("author", author)
        check_count("exchange", exchange, 0)
        check_count("position", position, 0)
        check_count("feedback_bytes", feedback_bytes, 256)
        if result is not None:
            require_tool_result(result)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            if result is None:
                return book.allow_rerun(turn, exchange, position, author=author, at_ms=self._now_ms())
            slot = book.slot(turn, exchange, position)
            feedback = ToolFeedback.of(slot.call.id, result)
            state: SlotState = "done" if result.status == "ok" else "failed"
            return book.settle_slot(
                turn,
                exchange,
                position,
                state=state,
                feedback=feedback,
                author=author,
                at_ms=self._now_ms(),
                max_bytes=feedback_bytes,
            )

        await self._whole(self._settle(ref, step))

    async def settle_send(self, ref: str, attempt_id: str, *, author: str) -> None:
        """Declare that an attempt without an end brought nothing; a resumed run asks again, as a new attempt.

        Raises:
            LostError: no such run. ConflictError: the attempt has an end.
            NotOwnerError: the run goes on elsewhere, or here.
        """
        self._check_open()
        check_name("author", author)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            return book.settle_send(turn, attempt_id, author=author, at_ms=self._now_ms())

        await self._whole(self._settle(ref, step))

    async def _settle(self, ref: str, step: Callable[[Book, Turn], Sequence[Fact]]) -> None:
        """Take a run that goes on nowhere, make a step, and give it up again."""
        async with self._gate(ref):
            live = self._runs.get(ref)
            if live is not None and live.goes_on:
                rule = "expected a run that goes on nowhere, got one of this runtime"
                raise NotOwnerError(f"run {ref!r}", rule, owner=self._owner)
            turn = await self._take_over(ref)
            if turn.closed is not None:
                outcome = turn.closed.outcome
                raise ConflictError(f"run {ref!r}", f"expected a run that has not ended, got one that {outcome}")
            try:
                await self._store.commit(lambda book: step(book, turn), run_id=ref)
                self._runs.pop(ref, None)  # what it left off with is out of date
            finally:
                await self._let_go(ref)

    async def _take_over(self, ref: str, check: Callable[[Turn], None] | None = None) -> Turn:
        """Own a run that goes on nowhere; the caller has its gate, as one may need who gives it up just now."""
        if self._sends.of(ref) is None:
            await self._let_go(ref)
        return await self._store.take_over(ref, at_ms=self._now_ms(), check=check)

    async def _end_left(self, ref: str, author: str | None) -> bool:
        """End a run that goes on nowhere; False where it was taken up here meanwhile."""
        async with self._gate(ref):
            live = self._runs.get(ref)
            if (live is not None and live.goes_on) or self._sends.of(ref) is not None:
                return False
            turn = await self._take_over(ref, require_settled if author is None else None)
            try:
                if turn.closed is None:
                    end = cancelled_end(turn)
                    await self._store.commit(
                        lambda book: book.end_run(turn, *end, author=author, at_ms=self._now_ms()), run_id=ref
                    )
                    self._runs.pop(ref, None)  # what it left off with is out of date
            finally:
                await self._let_go(ref)
            return True

    async def _take_up(
        self, agent: Agent, ref: str, options: RunOptions, messages: tuple[SystemMessage | UserMessage, ...] | None
    ) -> LiveRun:
        """Launch a run that is stored, unless it goes on here or ended here."""
        async with self._gate(ref):
            if messages is not None:
                check_input(messages, await self._store.turn(ref))
            live = self._join(ref, kept=True)
            if live is None:
                pending = self._sends.of(ref)  # of a driver that has left: the run is owned here still
                if pending is None:
                    turn = await self._take_over(ref)
                else:
                    turn = self._store.book.turn(ref)
                try:
                    if turn.closed is None:
                        check_agent(agent, turn)
                    if "wait" in options and not turn.opened.checkpoint:
                        raise InputError("wait: expected a run with checkpoint=True")
                    wait = options.get("wait", WAIT_SECONDS)
                    live = self._launch(agent, ref, options, anonymous=False, kept=True, wait=wait)
                except BaseException:
                    if self._sends.of(ref) is None:
                        await self._let_go(ref)
                    raise
            return live

    # -- private

    @staticmethod
    async def _bound(live: LiveRun) -> RunResult:
        """The result, for a caller who takes the run with it when it goes.

        Its cancel stays a cancel; where a send goes on without it, the cause says which.
        """
        try:
            return await live.wait()
        except asyncio.CancelledError as error:
            await live.leave()
            if live.pending is not None:
                raise error from live.pending
            raise

    def _enter(self) -> Token[tuple[object, ...]]:
        """Mark what begins from here on as begun by this runtime."""
        return _INSIDE.set((*_INSIDE.get(), self._mark))

    def _require_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise InputError("Runtime: expected the event loop it was entered in, got another one")

    def _live(self, ref: str) -> LiveRun:
        live = self._runs.get(ref)
        if live is None:
            raise LostError("run", ref)
        return live

    def _whole(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Write whatever cancels arrive: one that met a write half way would stop the store for all runs."""
        return settle(work) if self._store.waits else work

    def _check_open(self) -> None:
        if self._state != "open":
            raise InputError(f"Runtime: expected an open runtime (async with), got one that is {self._state}")
        self._require_loop()

    async def _start(
        self, agent: Agent, input: RunInput, *, kept: bool = False, **options: Unpack[RunOptions]
    ) -> LiveRun:
        self._check_open()
        if type(agent) is not Agent:
            raise InputError(f"Runtime: expected an Agent, got {type(agent).__name__}")
        check_options(options)
        self._check_checkpoint(agent, options, kept=kept)
        known = self._runs.get(options.get("run_id") or "")
        if known is not None:
            known.require_outside()
        messages = admitted(agent, input)
        return await self._attend(lambda: self._open(agent, messages, options, kept))

    async def _attend(self, join: Callable[[], Coroutine[Any, Any, LiveRun]]) -> LiveRun:
        """Join or launch a run; where its last caller is about to leave it, go on after that."""
        while True:
            live = await self._whole(join())
            if not live.left or live.closed or live.task is None:
                return live
            live.require_outside()
            await asyncio.wait({live.task})
            self._check_open()

    def _check_checkpoint(self, agent: Agent, options: RunOptions, *, kept: bool) -> None:
        """Refuse recovery points without what they stand on (R129, R130)."""
        checkpoint = options.get("checkpoint", False)
        if checkpoint and not self._store.durable:
            raise InputError("checkpoint: expected a durable store (Runtime(store=...)), got one in memory")
        unstated = agent.toolset.unstated() if checkpoint else ()
        if unstated:
            raise InputError(f"checkpoint: expected each tool to state its recovery=, got none for {list(unstated)}")
        if "wait" in options and kept:
            raise InputError("wait: expected none for a submitted run, which no caller waits for")
        if "wait" in options and not checkpoint:
            raise InputError("wait: expected checkpoint=True with it")

    async def _open(
        self,
        agent: Agent,
        messages: tuple[SystemMessage | UserMessage, ...],
        options: RunOptions,
        kept: bool,
    ) -> LiveRun:
        """Store the run's origin and launch it, unless it is there already."""
        conversation, run_id = options.get("conversation"), options.get("run_id")
        ref = run_id or self._new_id()
        async with self._gate(ref):
            new = await self._store.open_run(
                lambda book: book.open_origin(
                    run_id=ref,
                    origin_id=self._new_id(),
                    conversation=conversation,
                    messages=messages,
                    options=agent.options,
                    tools=agent.toolset.specs,
                    catalogue_digest=agent.toolset.digest,
                    input_digest=None if run_id is None else input_digest(agent, messages),
                    agent=agent.name,
                    checkpoint=options.get("checkpoint", False),
                    at_ms=self._now_ms(),
                ),
                run_id=ref,
                conversation=conversation,
                fresh=run_id is None,
            )
            if not new:
                live = self._join(ref, kept=kept)
                if live is not None:
                    return live
                if self._sends.of(ref) is None:  # else its driver has left a send: the run is owned here still
                    await self._take_over(ref)
            anonymous = run_id is None and conversation is None
            wait = None if kept else options.get("wait", WAIT_SECONDS)  # nobody waits for a submitted run
            return self._launch(agent, ref, options, anonymous=anonymous, kept=kept, wait=wait)

    def _join(self, ref: str, *, kept: bool) -> LiveRun | None:
        """The run, when it goes on here or ended here; one that left off without its end is taken up anew."""
        live = self._runs.get(ref)
        if live is None or not (live.goes_on or live.closed):
            return None
        live.holds += 1
        live.kept = live.kept or (kept and self._store.durable)
        return live

    def _launch(
        self, agent: Agent, ref: str, options: RunOptions, *, anonymous: bool, kept: bool, wait: float | None
    ) -> LiveRun:
        """Drive a run whose facts are here and which this runtime owns."""
        turn = self._store.book.turn(ref)
        live = LiveRun(ref, Feed(), anonymous=anonymous)
        checkpoint = turn.opened.checkpoint
        live.holds, live.kept = 1, (kept or checkpoint) and self._store.durable
        live.sends = self._sends if checkpoint else None
        if self._state != "open":  # closing waits for its end
            live.pause, live.stop = live.kept, not live.kept
        scope = self._scope(agent, live, options, turn, wait)
        self._runs[ref] = live
        driver = Eager(self._drive(scope, live))
        live.task = driver.task(f"agentloop run {ref}")
        live.task.add_done_callback(retrieve)
        driver.begin()  # at once: its request need not wait for others that are opened meanwhile
        return live

    def _scope(self, agent: Agent, live: LiveRun, options: RunOptions, turn: Turn, wait: float | None) -> Scope:
        limits = agent.limits
        sink = options.get("sink")
        ledger = Ledger(model_calls=limits.max_model_calls, tool_calls=limits.max_tool_calls, tokens=limits.max_tokens)
        if turn.model_calls:  # of an earlier owner
            ledger.charge("model_calls", turn.model_calls)
            ledger.charge("tool_calls", turn.tool_calls)
            ledger.charge("tokens", 0 if turn.usage is None else turn.usage.total_tokens)
        return Scope(
            run_id=live.ref,
            agent=agent.name,
            conversation=turn.opened.conversation,
            deps=options.get("deps"),
            provider=self._provider,
            store=self._store,
            mint=self._mint,
            ledger=ledger,
            paused=live.paused,
            sends=self._sends if live.kept else None,
            wait=wait if turn.opened.checkpoint else None,
            left=live.has_left if live.sends is not None else bool,
            limits=limits,
            tools=agent.toolset,
            threads=self._threads,
            emitter=Emitter(live.ref, live.feed, sink=sink, observers=self._observers, now_ms=self._now_ms),
            new_id=self._new_id,
            clock=self._clock,
            now_ms=self._now_ms,
            reasoning=options.get("reasoning", False),
            resend=self._resend,
            sleep=lambda seconds: live.rest(self._sleep(seconds)),
            random=self._random,
        )

    async def _drive(self, scope: Scope, live: LiveRun) -> RunResult:
        """The run's task. Its error is kept for those who ask, so it is never only logged."""
        self._enter()
        try:
            if scope.turn.closed is None:
                await drive(scope, cancelled=live.stop)
            result = result_of(scope.turn)
        except BaseException as error:
            live.feed.close(RunCancelled(live.ref) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            live.feed.close()
            return result
        finally:
            live.closed, live.driving = scope.turn.closed is not None, False
            if self._store.durable and self._sends.of(live.ref) is None:
                await settle(self._let_go(live.ref), last=True)
            if self._store.durable or live.anonymous:
                await self._retire(live)

    async def _send_ended(self, ref: str) -> None:
        """Give up a run that its driver has left before its send ended; whoever cuts the send off comes too late."""
        await settle(self._give_up_left(ref), last=True)

    async def _give_up_left(self, ref: str) -> None:
        async with self._gate(ref):
            live = self._runs.get(ref)
            if live is None or not live.driving:
                await self._let_go(ref)

    async def _let_go(self, ref: str) -> None:
        try:
            await self._store.let_go(ref)
        except AgentLoopError as error:
            _log.warning("the lease of run %s could not be given up, it runs out by itself: %s", ref, error)

    async def _retire(self, live: LiveRun) -> None:
        """Keep the newest ended runs, of those that nobody named or that can be read again; drop the oldest."""
        self._ended_runs.append(live)
        if len(self._ended_runs) <= _KEPT_RUNS:
            return
        oldest = self._ended_runs.popleft()
        if self._runs.get(oldest.ref) is oldest:
            del self._runs[oldest.ref]
        if not self._store.durable and self._store.fault is None and self._store.book.has_run(oldest.ref):
            try:
                await self._whole(self._store.forget([oldest.ref]))
            except AgentLoopError as error:  # no matter of the run that ended now
                _log.warning("run %s could not be dropped: %s", oldest.ref, error)
