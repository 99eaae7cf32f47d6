"""What the model calls of runners stand on: a store with its receipts, sources of ids and time, observers.

Each call is a run of its own in the store: its origin, its attempts, its reply and its end, under a
reference of its own. A runtime has one host for all its runners; a runner without a runtime makes one
for itself, in memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from ..admission import digest
from ..effects import Signal, ToolPool, settle
from ..errors import AgentLoopError, RunCancelled
from ..events.envelope import random_id, wall_ms
from ..exchange import Book, CallBasis, ReceiptMint, RunOutcome, Turn
from ..limits import CLOSE_SECONDS
from ..messages import FunctionSpec, Message, ModelOptions
from ..persistence import MemoryBackend, Store
from ..sinks import Observer, ObserverHub

__all__ = ["Host"]

_log = logging.getLogger("agentloop.runner")

_KEPT_CALLS: Final = 128
"""Ended calls that a host in memory keeps at least."""

_DROPPED_CALLS: Final = 32
"""Of those that are more, so many are dropped at a time: that costs less than one by one."""

_DOMAIN: Final = "agentloop/call/v1"
_NO_CATALOGUE: Final = digest(_DOMAIN, [])


class Host:
    """Opens and ends the runs of model calls. One event loop.

    Args:
        store: where they are kept. mint: makes the receipts of its book.
        observers: watch every event of every runner; told by a hub that the host makes and closes.
        new_id, clock, now_ms, sleep, random: as for `Runtime`.
        inside: a block that a call goes on in; marks what begins there as begun by the runtime.

    Attributes:
        signal: reaches every runner; cancelled when the host closes.
        hub: tells the observers; None where there are none, or none was told yet.
    """

    def __init__(
        self,
        store: Store,
        mint: ReceiptMint,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        observers: tuple[Observer, ...] = (),
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.store, self.mint = store, mint
        self.new_id, self.clock, self.now_ms = new_id, clock, now_ms
        self.sleep, self.random, self.inside = sleep, random, inside
        self.pool = ToolPool(1)  # no model call runs a tool
        self.signal = Signal("runtime", clock=clock)
        self.hub: ObserverHub | None = None
        self._observers, self._own_hub = observers, False
        self._open: dict[str, asyncio.Task[Any] | None] = {}  # by what task
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: deque[str] = deque()

    @classmethod
    def alone(cls, observers: tuple[Observer, ...] = ()) -> Host:
        """A host in this process's memory, for runners without a runtime."""
        mint = ReceiptMint()
        return cls(
            Store(MemoryBackend(), Book(mint)),
            mint,
            new_id=random_id,
            clock=time.monotonic,
            now_ms=wall_ms,
            sleep=asyncio.sleep,
            random=random.random,
            observers=observers,
        )

    def observing(self) -> ObserverHub | None:
        """The hub; where the host has observers of its own it begins here, in the running event loop."""
        if self._observers and self.hub is None:
            self.hub, self._own_hub = ObserverHub(self._observers), True
        return self.hub

    async def open(
        self,
        ref: str,
        *,
        stage_id: str,
        messages: tuple[Message, ...],
        options: ModelOptions,
        tools: tuple[FunctionSpec, ...],
        call: CallBasis,
        fresh: bool = True,
    ) -> Turn:
        """Store the origin of a call under ``ref``; nothing is sent yet.

        Args:
            fresh: the id was made just now, so that no run can have it.

        Raises:
            ConflictError: ``ref`` is taken.
            LimitExceeded: the store is full. PersistenceError: it stopped.
        """
        catalogue = digest(_DOMAIN, [spec.name for spec in tools]) if tools else _NO_CATALOGUE
        origin_id, now = self.new_id(), self.now_ms()
        work = self.store.open_run(
            lambda book: book.open_origin(
                run_id=ref,
                origin_id=origin_id,
                conversation=None,
                messages=messages,
                options=options,
                tools=tools,
                catalogue_digest=catalogue,
                input_digest=None,
                agent=stage_id,
                at_ms=now,
                call=call,
            ),
            run_id=ref,
            conversation=None,
            fresh=fresh,
        )
        self._open[ref] = asyncio.current_task()
        self._idle.clear()
        try:
            await self._whole(work)
        except BaseException:
            self._left(ref)
            raise
        return self.store.book.turn(ref)

    def goes_on(self, ref: str) -> bool:
        """Whether a call of this host is under way as that run."""
        return ref in self._open

    @property
    def led_here(self) -> bool:
        """Whether the present task makes a call, as a sink or a transport does: its end cannot be waited for here."""
        return asyncio.current_task() in self._open.values()

    async def end(self, turn: Turn, outcome: RunOutcome, reason: str, error: BaseException) -> None:
        """Store the end of a call that brought no value; harmless where it has one.

        What ended the call is raised, not what followed from it: a failure here is a note of ``error``.
        """
        if turn.closed is not None or turn.sends or self.store.fault is not None:
            return  # a stopped store is settled by reloading it
        now = self.now_ms()
        work = self.store.commit(
            lambda book: book.close_run(turn, outcome=outcome, reason=reason, at_ms=now), run_id=turn.run_id
        )
        try:
            await self._whole(work)
        except AgentLoopError as fault:
            error.add_note(f"The end of the call could not be stored: {fault}")

    async def leave(self, ref: str, *, keep: bool = False) -> None:
        """The call is over: give its run up, and in memory drop the oldest of those that ended.

        Args:
            keep: it stays until somebody forgets it.
        """
        try:
            if self.store.durable:
                await self._whole(self.store.let_go(ref))
            elif self.store.fault is None and not keep:
                self._ended.append(ref)
                if len(self._ended) >= _KEPT_CALLS + _DROPPED_CALLS:
                    oldest = [self._ended.popleft() for _ in range(_DROPPED_CALLS)]
                    await self.store.forget([ref for ref in oldest if self.store.book.has_run(ref)])
        except AgentLoopError as error:  # no matter of the call
            _log.warning("the run of a model call could not be given up or dropped: %s", error)
        finally:
            self._left(ref)

    def cut_off(self) -> None:
        """Cut off the calls under way and refuse others, without waiting. Idempotent."""
        self.signal.cancel(RunCancelled("", "runtime"))

    async def close(self) -> None:
        """Cut off the calls under way, and wait until they have stored their ends. Idempotent."""
        self.cut_off()
        await self._idle.wait()
        if self._own_hub and self.hub is not None:
            await self.hub.close(CLOSE_SECONDS)

    async def _whole(self, work: Coroutine[Any, Any, Any]) -> None:
        """Write whatever cancels arrive; the next await that waits raises them."""
        await (settle(work) if self.store.waits else work)

    def _left(self, ref: str) -> None:
        self._open.pop(ref, None)
        if not self._open:
            self._idle.set()
