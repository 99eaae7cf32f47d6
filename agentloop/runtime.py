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
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from .admission import digest_bytes
from .agent import Agent
from .effects import Ledger, Scope, ToolThreads
from .errors import InputError, LostError, RunCancelled
from .events import TextPreview, event_sequence
from .exchange import Book, BookLimits, ReceiptMint, canonical_bytes
from .limits import TOOL_THREADS
from .loop import drive
from .messages import ImagePart, ModelRequest, SystemMessage, TextPart, UserMessage, require_model_request
from .persistence import MemoryBackend, Store
from .providers import Provider
from .results import RunResult, result_of
from .sinks import Emitter, Feed, Follower, Observer, ObserverHub, Sink, wall_ms

__all__ = ["Run", "RunInput", "RunOptions", "Runtime"]

_log = logging.getLogger("agentloop.runtime")

RunInput = str | UserMessage | tuple[TextPart | ImagePart, ...]
"""A user turn: text, parts, or a whole user message."""


class RunOptions(TypedDict, total=False):
    """What every way to begin a run takes by keyword.

    Attributes:
        deps: handed to tools as ``ctx.deps``.
        sink: gets the run's output events, awaited in order (`Sink`).
        conversation: name of the conversation this turn continues; None is a run of its own. One
            run at a time may be on a conversation. 1 to 128 characters.
        run_id: makes the start idempotent: the same id with the same input joins that run. 1 to
            128 characters.
        reasoning: also preview reasoning, as `ReasoningPreview`.
    """

    deps: Any
    sink: Sink | None
    conversation: str | None
    run_id: str | None
    reasoning: bool


_INPUT_DOMAIN = "agentloop/input/v1"

_KEPT_ANONYMOUS_RUNS = 128
"""Ended runs without a conversation or a given id that a runtime still answers for."""

_CLOSE_SECONDS = 5.0
"""How long closing waits for observers and for tool threads that cannot be stopped."""


def _new_id() -> str:
    return uuid.uuid4().hex


class _Live:
    """One launched run: its feed and its task."""

    __slots__ = ("anonymous", "feed", "ref", "started", "stop", "task")

    def __init__(self, ref: str, feed: Feed, *, anonymous: bool) -> None:
        self.ref, self.feed, self.anonymous = ref, feed, anonymous
        self.started = False
        self.stop = False  # cancelled before its first step, where a task would not run at all
        self.task: asyncio.Task[RunResult] | None = None

    async def wait(self) -> RunResult:
        """The result; a cancel of the caller leaves the run alone."""
        assert self.task is not None, "a live run has a task"
        await asyncio.wait({self.task})
        if self.task.cancelled():
            raise RunCancelled(self.ref)
        return self.task.result()

    async def cancel(self) -> None:
        """Cancel the run and wait until it has recorded its end."""
        assert self.task is not None, "a live run has a task"
        while not self.task.done():
            if self.started:
                self.task.cancel()
            self.stop = True
            await asyncio.wait({self.task})


class Run:
    """One run in a block: ``async with runtime.start(…) as run``.

    Iterate it for the run's typed events, then await `result`. Leaving the block before the run
    has ended cancels it and waits until that is recorded. One task at a time may iterate.
    """

    def __init__(self, launch: Callable[[], Any]) -> None:
        self._launch = launch
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
        if self._live is not None:
            raise InputError("Run: expected to be entered once, got a second time")
        self._live = await self._launch()
        self._events = self._live.feed.follow(attached=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = self._entered()
        live.feed.detach()
        await live.cancel()

    def __aiter__(self) -> Follower:
        """Events from the first unread one; raises what ended the run, after the last event."""
        self._entered()
        assert self._events is not None, "an entered run has its reader"
        return self._events

    async def result(self) -> RunResult:
        """Wait for the end; events that were not read are let go.

        Raises:
            AgentLoopError: what ended the run; `RunCancelled` when it was cancelled.
        """
        live = self._entered()
        live.feed.detach()
        return await live.wait()

    async def cancel(self) -> None:
        """Cancel the run and wait until its end is recorded. Harmless after the end."""
        live = self._entered()
        live.feed.detach()
        await live.cancel()

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
        self._provider = provider
        self._mint = ReceiptMint()
        self._store = Store(MemoryBackend(), Book(self._mint, limits=limits or BookLimits()))
        self._threads = ToolThreads(TOOL_THREADS)
        self._observe = tuple(observers)
        self._observers: ObserverHub | None = None
        self._new_id, self._clock, self._now_ms = new_id, clock, now_ms
        self._runs: dict[str, _Live] = {}
        self._anonymous: deque[str] = deque()
        self._state = "new"

    # -- life

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise InputError(f"Runtime: expected to be entered once, got a runtime that is {self._state}")
        self._state = "open"
        self._observers = ObserverHub(self._observe)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take no more runs, cancel those that go on, then close observers, store and provider.

        Every run has recorded its end before the store closes (R143). Idempotent.
        """
        if self._state == "closed":
            return
        self._state = "closed"
        try:
            for live in list(self._runs.values()):
                await live.cancel()
            stuck = await self._threads.wait_idle(_CLOSE_SECONDS)
            if stuck:
                _log.warning("%d tool threads have not ended; a thread cannot be stopped", stuck)
        finally:
            if self._observers is not None:
                await self._observers.close(_CLOSE_SECONDS)
            await self._store.close()
            await self._provider.aclose()

    # -- runs

    async def run(self, agent: Agent, input: RunInput, **options: Unpack[RunOptions]) -> RunResult:
        """Run to the end; cancelling the caller cancels the run. Options: `RunOptions`.

        Raises:
            InputError: bad input. StreamRefused, ProviderError: the model call failed.
            ToolCrashed: a tool raised what it did not declare.
            ConflictError: the conversation is in use, or the run id is taken.
            PersistenceError: the store stopped.
        """
        live = await self._start(agent, input, **options)
        try:
            return await live.wait()
        except asyncio.CancelledError:
            await live.cancel()
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
            LostError: no such run is kept. ValueError: ``after`` is not an event id.
        """
        return self._live(ref).feed.follow(after=0 if after is None else event_sequence(after))

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
        await self._store.forget(runs)
        for run_id in runs:
            self._runs.pop(run_id, None)

    # -- private

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

    async def _start(
        self,
        agent: Agent,
        input: RunInput,
        *,
        deps: Any = None,
        sink: Sink | None = None,
        conversation: str | None = None,
        run_id: str | None = None,
        reasoning: bool = False,
    ) -> _Live:
        if self._state != "open":
            raise InputError(f"Runtime: expected an open runtime (async with), got one that is {self._state}")
        if type(agent) is not Agent:
            raise InputError(f"Runtime: expected an Agent, got {type(agent).__name__}")
        for name, value in (("conversation", conversation), ("run_id", run_id)):
            if value is not None and (type(value) is not str or not 1 <= len(value) <= 128):
                raise InputError(f"{name}: expected a string of 1 to 128 characters")
        messages = _admitted(agent, input)
        ref = run_id or self._new_id()
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
            return known
        anonymous = conversation is None and run_id is None
        live = _Live(ref, Feed(), anonymous=anonymous)
        scope = self._scope(agent, live, deps=deps, sink=sink, conversation=conversation, reasoning=reasoning)
        self._runs[ref] = live
        live.task = asyncio.get_running_loop().create_task(self._drive(scope, live), name=f"agentloop run {ref}")
        live.task.add_done_callback(_retrieve)
        return live

    def _scope(
        self,
        agent: Agent,
        live: _Live,
        *,
        deps: Any,
        sink: Sink | None,
        conversation: str | None,
        reasoning: bool,
    ) -> Scope:
        limits = agent.limits
        return Scope(
            run_id=live.ref,
            agent=agent.name,
            conversation=conversation,
            deps=deps,
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
            reasoning=reasoning,
        )

    async def _drive(self, scope: Scope, live: _Live) -> RunResult:
        """The run's task. Its error is kept for those who ask, so it is never only logged."""
        live.started = True
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
                await self._store.forget([oldest])


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
