"""The host: owns provider, store and effects, opens runs, closes in the right order.

``run``, ``start``, ``text`` and ``submit`` are one path: each launches the same driver in a task of
the runtime. What differs is who waits: ``start`` ties the run to a block, ``submit`` to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from .admission import digest_bytes
from .agent import Agent
from .effects import Ledger, Scope, ToolThreads, settle
from .errors import AgentLoopError, InputError, LostError, RunCancelled
from .events import TextPreview, event_id, event_sequence
from .exchange import Book, BookLimits, ReceiptMint, canonical_bytes
from .limits import TOOL_THREADS
from .loop import drive
from .messages import ImagePart, ModelRequest, SystemMessage, TextPart, UserMessage, require_model_request
from .persistence import MemoryBackend, Store
from .providers import Provider
from .results import RunResult, result_of
from .sinks import Emitter, Feed, Follower, Observer, ObserverHub, Sink, require_observer, require_sink, wall_ms

__all__ = ["Run", "RunInput", "RunOptions", "Runtime"]

_log = logging.getLogger("agentloop.runtime")

T = TypeVar("T")

RunInput = str | UserMessage | tuple[TextPart | ImagePart, ...]
"""A user turn: text, parts, or a whole user message."""


class RunOptions(TypedDict, total=False):
    """What every way to begin a run takes by keyword.

    Attributes:
        deps: handed to tools as ``ctx.deps``.
        sink: gets the run's output events, awaited in order (`Sink`).
        conversation: name of the conversation this turn continues; None is a run of its own. One
            run at a time may be on a conversation. 1 to 128 characters.
        run_id: makes the start idempotent: the same id with the same input joins that run, which
            keeps its own ``deps`` and ``sink``. 1 to 128 characters.
        reasoning: also preview reasoning, as `ReasoningPreview`.
    """

    deps: Any
    sink: Sink | None
    conversation: str | None
    run_id: str | None
    reasoning: bool


_INPUT_DOMAIN = "agentloop/input/v1"

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("agentloop runtimes", default=())
"""Marks of the runtimes whose runs or observers led to the present code, tasks that they began included."""

_KEPT_ANONYMOUS_RUNS = 128
"""Ended runs without a conversation or a given id that a runtime still answers for."""

_CLOSE_SECONDS = 5.0
"""How long closing waits for observers and for tool threads that cannot be stopped."""


def _new_id() -> str:
    return uuid.uuid4().hex


class _Live:
    """One launched run: its feed and its task."""

    __slots__ = ("anonymous", "feed", "holds", "ref", "started", "stop", "task")

    def __init__(self, ref: str, feed: Feed, *, anonymous: bool) -> None:
        self.ref, self.feed, self.anonymous = ref, feed, anonymous
        self.holds = 0  # how many started or joined it and have not left; who submits never leaves
        self.started = False
        self.stop = False  # cancelled before its first step, where a task would not run at all
        self.task: asyncio.Task[RunResult] | None = None

    async def wait(self) -> RunResult:
        """The result; a cancel of the caller leaves the run alone."""
        assert self.task is not None, "a live run has a task"
        self.require_outside()
        await asyncio.wait({self.task})
        if self.task.cancelled():
            raise RunCancelled(self.ref)
        return self.task.result()

    def require_outside(self) -> None:
        """Refuse a caller that is the run itself, which could never see its own end.

        Raises:
            InputError: a tool or a sink of the run called.
        """
        if self.task is asyncio.current_task():
            raise InputError(f"run {self.ref!r}: expected a caller outside the run, got a tool or a sink of it")

    async def cancel(self) -> None:
        """Cancel the run and wait until it has recorded its end."""
        assert self.task is not None, "a live run has a task"
        self.request_stop()
        await asyncio.wait({self.task})

    async def leave(self) -> None:
        """One who started or joined the run goes; the last one to go cancels it."""
        self.holds -= 1
        if not self.holds:
            await self.cancel()

    def request_stop(self) -> None:
        """Cancel the run, without waiting. Harmless after the end."""
        self.stop = True
        if self.started and self.task is not None:
            self.task.cancel()


class Run:
    """One run in a block: ``async with runtime.start(…) as run``.

    Iterate it for the run's typed events, then await `result`. Leaving the block before the run
    has ended cancels it and waits until that is recorded, unless it was submitted as well, or
    somebody else has started it with the same ``run_id`` and not left. One task at a time may iterate.
    """

    def __init__(self, launch: Callable[[], Any]) -> None:
        self._launch = launch
        self._begun = self._released = False
        self._live: _Live | None = None
        self._events: Follower | None = None

    @property
    def ref(self) -> str:
        """The run's id.

        Raises:
            InputError: the block was not entered.
        """
        return self._entered().ref

    async def __aenter__(self) -> Self:
        if self._begun:
            raise InputError("Run: expected to be entered once, got a second time")
        self._begun = True
        self._live = await self._launch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._release().leave()

    def __aiter__(self) -> Follower:
        """Events from the first unread one; raises what ended the run, after the last event."""
        live = self._entered()
        if self._events is None:  # a run waits for its reader only once there is one
            self._events = live.feed.follow(attached=not self._released)
        return self._events

    async def result(self) -> RunResult:
        """Wait for the end; events that were not read are let go.

        Raises:
            AgentLoopError: what ended the run; `RunCancelled` when it was cancelled.
        """
        return await self._release().wait()

    async def cancel(self) -> None:
        """Cancel the run and wait until its end is recorded. Harmless after the end."""
        await self._release().cancel()

    def _release(self) -> _Live:
        """The run need not wait for its reader any more."""
        live = self._entered()
        self._released = True
        live.feed.detach()
        return live

    def _entered(self) -> _Live:
        if self._live is None:
            raise InputError("Run: expected `async with runtime.start(…) as run`, got a run that was not entered")
        return self._live


class Runtime:
    """Owns a provider, a store and all effects of the runs it opens.

    Args:
        provider: what sends; closed with the runtime.
        store: None keeps facts in this process's memory.
        observers: watch every event of every run, isolated and bounded (`Observer`).
        new_id, clock, now_ms: sources of unique ids, monotonic seconds and wall milliseconds.

    Use it as ``async with``, in one event loop. In memory, a run without ``conversation`` and
    ``run_id`` is kept until 128 newer ones have ended; every other run until `forget`.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        store: None = None,
        observers: Sequence[Observer] = (),
        limits: BookLimits | None = None,
        new_id: Callable[[], str] = _new_id,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        if not isinstance(provider, Provider):
            raise InputError(f"Runtime.provider: expected a Provider, got {type(provider).__name__}")
        if store is not None:
            raise InputError(f"Runtime.store: expected None (memory), got {type(store).__name__}")
        if limits is not None and type(limits) is not BookLimits:
            raise InputError(f"Runtime.limits: expected BookLimits, got {type(limits).__name__}")
        if not isinstance(observers, Iterable):
            raise InputError(f"Runtime.observers: expected a list of observers, got {type(observers).__name__}")
        for at, observer in enumerate(observers):
            require_observer(f"Runtime.observers[{at}]", observer)
        self._provider = provider
        self._mint = ReceiptMint()
        self._store = Store(MemoryBackend(), Book(self._mint, limits=limits or BookLimits()))
        self._threads = ToolThreads(TOOL_THREADS)
        self._observe = tuple(observers)
        self._observers: ObserverHub | None = None
        self._new_id, self._clock, self._now_ms = new_id, clock, now_ms
        self._runs: dict[str, _Live] = {}
        self._anonymous: deque[str] = deque()
        self._opening: set[asyncio.Future[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark = object()
        self._state = "new"

    # -- life

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise InputError(f"Runtime: expected to be entered once, got a runtime that is {self._state}")
        self._state = "open"
        self._loop = asyncio.get_running_loop()
        mark = self._enter()
        self._observers = ObserverHub(self._observe)
        _INSIDE.reset(mark)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more runs, cancel those that go on, then close observers, store and provider.

        Every run has recorded its end before the store closes (R143). Idempotent. A cancel of the
        caller does not cut it short; it is raised afterwards, but at once in an observer or in a
        task that a run has begun: those are among what ends.

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
            stack.push_async_callback(self._provider.aclose)
            stack.push_async_callback(self._store.close)
            if self._observers is not None:
                stack.push_async_callback(self._observers.close, _CLOSE_SECONDS)
            if self._opening:
                await asyncio.wait(self._opening)
            for live in self._runs.values():
                live.request_stop()
            tasks = {live.task for live in self._runs.values() if live.task is not None}
            if tasks:
                await asyncio.wait(tasks)
            stuck = await self._threads.wait_idle(_CLOSE_SECONDS)
            if stuck:
                _log.warning("%d tool threads have not ended; a thread cannot be stopped", stuck)

    # -- runs

    async def run(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> RunResult:
        """Run to the end; cancelling the caller cancels the run, as leaving a `Run` does. Options: `RunOptions`.

        Raises:
            InputError: bad input. StreamRefused, ProviderError: the model call failed.
            ToolCrashed: a tool raised what it did not declare.
            ConflictError: the conversation is in use, or the run id is taken.
            LimitExceeded: the store is full (`BookLimits`). PersistenceError: the store stopped.
        """
        live = await self._start(agent, input, **options)
        try:
            return await live.wait()
        except asyncio.CancelledError:
            await live.leave()
            raise

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
        return (await self._start(agent, input, **options)).ref

    def follow(self, ref: str, *, after: str | None = None) -> Follower:
        """Read a run's events, those before the call included; a reconnect passes the last id seen.

        The text of an attempt that has ended comes as one preview. Reading never holds the run up.

        Raises:
            LostError: no such run is kept. InputError: ``after`` is not an id of this run's events.
            Otherwise as `result`, after the last event.
        """
        return self._live(ref).feed.follow(after=_sequence_of(ref, after))

    async def result(self, ref: str) -> RunResult:
        """Wait for a run's end; cancelling the caller leaves the run alone.

        Raises:
            LostError: no such run is kept. Otherwise as `run`.
        """
        return await self._live(ref).wait()

    async def cancel(self, ref: str) -> None:
        """Cancel a run and wait until its end is recorded. Harmless after the end."""
        await self._live(ref).cancel()

    async def forget(self, *, conversation: str | None = None, ref: str | None = None) -> None:
        """Drop an ended run, or a conversation with all its ended runs, and the room they take.

        Raises:
            InputError: not exactly one of the two was given.
            LostError: nothing of that name is kept. ConflictError: a run of it goes on, or it is one
                turn of a conversation.
        """
        if (conversation is None) == (ref is None):
            raise InputError("Runtime.forget: expected either conversation= or ref=")
        runs = [ref] if ref is not None else self._runs_of(conversation)
        await self._whole(self._store.forget(runs))
        for run_id in runs:
            self._runs.pop(run_id, None)

    # -- private

    def _enter(self) -> Token[tuple[object, ...]]:
        """Mark what begins from here on as begun by this runtime."""
        return _INSIDE.set((*_INSIDE.get(), self._mark))

    def _require_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise InputError("Runtime: expected the event loop it was entered in, got another one")

    def _runs_of(self, name: str | None) -> list[str]:
        known = self._store.book.conversation(name or "")
        if known is None:
            raise LostError("conversation", name or "")
        return list(known.runs)

    def _live(self, ref: str) -> _Live:
        live = self._runs.get(ref)
        if live is None:
            raise LostError("run", ref)
        return live

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Write whatever cancels arrive: one that met a write half way would stop the store for all runs."""
        return await (settle(work) if self._store.waits else work)

    async def _start(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> _Live:
        if self._state != "open":
            raise InputError(f"Runtime: expected an open runtime (async with), got one that is {self._state}")
        self._require_loop()
        if type(agent) is not Agent:
            raise InputError(f"Runtime: expected an Agent, got {type(agent).__name__}")
        unknown = next(iter(options.keys() - RunOptions.__annotations__.keys()), None)
        if unknown is not None:
            raise TypeError(f"Runtime: expected the options {', '.join(RunOptions.__annotations__)}, got {unknown!r}")
        _check_options(**options)
        known = self._runs.get(options.get("run_id") or "")
        if known is not None:
            known.require_outside()
        messages = _admitted(agent, input)
        opened = asyncio.get_running_loop().create_future()
        self._opening.add(opened)  # now, so that closing waits for it
        return await self._whole(self._open(agent, messages, options, opened))

    async def _open(
        self,
        agent: Agent,
        messages: tuple[SystemMessage | UserMessage, ...],
        options: RunOptions,
        opened: asyncio.Future[None],
    ) -> _Live:
        """Store the run's origin and launch it, unless it is there already."""
        conversation, run_id = options.get("conversation"), options.get("run_id")
        ref = run_id or self._new_id()
        try:
            await self._store.commit(
                lambda book: book.open_origin(
                    run_id=ref,
                    origin_id=self._new_id(),
                    conversation=conversation,
                    messages=messages,
                    options=agent.options,
                    tools=agent.toolset.specs,
                    catalogue_digest=agent.toolset.digest,
                    input_digest=None if run_id is None else _input_digest(agent, messages),
                    agent=agent.name,
                    at_ms=self._now_ms(),
                )
            )
            known = self._runs.get(ref)
            if known is not None:
                known.holds += 1
                return known
            live = _Live(ref, Feed(), anonymous=conversation is None and run_id is None)
            live.stop, live.holds = self._state != "open", 1
            scope = self._scope(agent, live, options)
            self._runs[ref] = live
            live.task = asyncio.get_running_loop().create_task(self._drive(scope, live), name=f"agentloop run {ref}")
            live.task.add_done_callback(_retrieve)
            return live
        finally:
            self._opening.discard(opened)
            opened.set_result(None)

    def _scope(self, agent: Agent, live: _Live, options: RunOptions) -> Scope:
        limits = agent.limits
        sink = options.get("sink")
        return Scope(
            run_id=live.ref,
            agent=agent.name,
            conversation=options.get("conversation"),
            deps=options.get("deps"),
            provider=self._provider,
            store=self._store,
            mint=self._mint,
            ledger=Ledger(
                model_calls=limits.max_model_calls, tool_calls=limits.max_tool_calls, tokens=limits.max_tokens
            ),
            limits=limits,
            tools=agent.toolset,
            threads=self._threads,
            emitter=Emitter(live.ref, live.feed, sink=sink, observers=self._observers, now_ms=self._now_ms),
            new_id=self._new_id,
            clock=self._clock,
            now_ms=self._now_ms,
            reasoning=options.get("reasoning", False),
        )

    async def _drive(self, scope: Scope, live: _Live) -> RunResult:
        """The run's task. Its error is kept for those who ask, so it is never only logged."""
        live.started = True
        self._enter()
        try:
            await drive(scope, cancelled=live.stop)
            result = result_of(scope.turn)
        except BaseException as error:
            live.feed.close(RunCancelled(live.ref) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            live.feed.close()
            return result
        finally:
            if live.anonymous:
                await self._retire(live)

    async def _retire(self, live: _Live) -> None:
        """Keep the newest ended runs that nobody named; make room for the others."""
        self._anonymous.append(live.ref)
        if len(self._anonymous) > _KEPT_ANONYMOUS_RUNS:
            oldest = self._anonymous.popleft()
            self._runs.pop(oldest, None)
            if self._store.fault is None and self._store.book.has_run(oldest):
                try:
                    await settle(self._store.forget([oldest]), last=True)
                except AgentLoopError as error:  # no matter of the run that ended now
                    _log.warning("run %s could not be dropped: %s", oldest, error)


def _check_options(
    *,
    deps: Any = None,
    sink: Sink | None = None,
    conversation: str | None = None,
    run_id: str | None = None,
    reasoning: bool = False,
) -> None:
    del deps  # anything
    for name, value in (("conversation", conversation), ("run_id", run_id)):
        if value is not None:
            _check_name(name, value)
    if sink is not None:
        require_sink("sink", sink)
    if type(reasoning) is not bool:
        raise InputError(f"reasoning: expected a bool, got {type(reasoning).__name__}")


def _check_name(field: str, value: Any) -> None:
    if type(value) is not str:
        raise InputError(f"{field}: expected a string of 1 to 128 characters, got {type(value).__name__}")
    if not 1 <= len(value) <= 128:
        raise InputError(f"{field}: expected a string of 1 to 128 characters, got {len(value)}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise InputError(f"{field}: expected text that UTF-8 can encode, got a lone surrogate")


def _sequence_of(ref: str, after: str | None) -> int:
    if after is None:
        return 0
    if type(after) is str and after.startswith(f"{ref}:"):
        try:
            sequence = event_sequence(after)
        except ValueError:
            sequence = -1
        if sequence >= 0 and after == event_id(ref, sequence):
            return sequence
    raise InputError(f"after: expected None or the id of an event of run {ref!r}, got another value")


def _admitted(agent: Agent, input: RunInput) -> tuple[SystemMessage | UserMessage, ...]:
    """The messages of a turn; what the caller hands in is checked whole (R37), the agent was when it was made."""
    if isinstance(input, UserMessage):
        message = input
    elif type(input) in (str, tuple):
        message = UserMessage(content=input)
    else:
        raise InputError(f"input: expected str, UserMessage or a tuple of parts, got {type(input).__name__}")
    require_model_request(ModelRequest(messages=(message,)))
    return (*agent.system, message)


def _input_digest(agent: Agent, messages: tuple[SystemMessage | UserMessage, ...]) -> str:
    basis = {
        "agent": agent.name,
        "catalogue": agent.toolset.digest,
        "messages": messages,
        "options": agent.options,
    }
    return digest_bytes(_INPUT_DOMAIN, canonical_bytes(basis))


def _retrieve(task: asyncio.Task[RunResult]) -> None:
    """Mark the task's error as seen: it is raised to whoever asks for the result."""
    if not task.cancelled():
        task.exception()
