"""Sends that live apart from whoever waits for them (R141).

A run whose caller may leave hands each send to a task of the runtime. The run shows what the send
brings and waits for it; when its local wait is over, or its caller is gone, it leaves, and the send
goes on: its outcome is stored when it is known, and nobody has to ask again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ..errors import AgentLoopError, PersistenceError
from ..messages import ModelReply
from ..wire.deltas import ReasoningDelta, TextDelta

__all__ = ["Patience", "PendingSend", "Preview", "Relay", "Sends"]

_log = logging.getLogger("agentloop.effects")

Preview = TextDelta | ReasoningDelta
"""What of a stream may be shown while it runs."""

_HIGH_WATER: Final = 64


class Relay:
    """Previews on their way from a send to the run that shows them. One writer, one reader, one event loop.

    The writer waits while 64 are unread; once the reader has left it never waits again.
    """

    def __init__(self) -> None:
        self._unread: deque[Preview] = deque()
        self._ended = self._left = False
        self._waiter: asyncio.Future[None] | None = None  # of the reader or the writer: never both wait

    async def put(self, delta: Preview) -> None:
        """Hand one over, or drop it when nobody reads any more."""
        while len(self._unread) >= _HIGH_WATER:
            await self._wait()
        if not self._left:
            self._unread.append(delta)
            self._wake()

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True
        self._wake()

    def leave(self) -> None:
        """The reader reads no more."""
        self._left = True
        self._unread.clear()
        self._wake()

    def __aiter__(self) -> Relay:
        """What was handed over, until the end."""
        return self

    async def __anext__(self) -> Preview:
        while not self._unread:
            if self._ended:
                raise StopAsyncIteration
            await self._wait()
        if len(self._unread) == _HIGH_WATER:
            self._wake()
        return self._unread.popleft()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Patience:
    """How long a run waits for one detached send, as the most patient of its callers does.

    Args:
        seconds: None is as long as it takes.
    """

    __slots__ = ("_clock", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._clock: asyncio.Timeout | None = None

    def clock(self) -> asyncio.Timeout:
        """Begin to wait for one send: ``async with patience.clock()``, then `over`."""
        self._clock = asyncio.timeout(self.seconds)
        return self._clock

    def over(self) -> None:
        """The wait has ended, however it did."""
        self._clock = None

    def extend(self, seconds: float | None) -> None:
        """Another caller came, who waits so long; from now on, where a send is waited for already."""
        if self.seconds is None or (seconds is not None and seconds <= self.seconds):
            return
        self.seconds = seconds
        if self._clock is not None and not self._clock.expired():
            self._clock.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


class PendingSend:
    """One send under way.

    Attributes:
        task: brings the stored reply, or raises what ended the attempt, which is stored then as well.
        relay: what of it may be shown.
        left_open: set where it is cut off in a run that goes on later: it gets no end then, and
            waits to be settled.
        stopped: set where it is cut off, also before its first step, when a task would not run at all.
        cause: the run's own error that cut it off, if one did.
        attended: whether the run that began it waits for it still.
        claims: set where its reply is being stored together with the claim of a call, which that run
            is to carry out: it may not leave before the write has ended.
        reply: what it brought, once that is stored; it stands, whoever cuts the send off after that.
    """

    def __init__(self, run_id: str, attempt_id: str) -> None:
        self.run_id, self.attempt_id = run_id, attempt_id
        self.relay = Relay()
        self.left_open = self.started = self.stopped = self.claims = False
        self.attended = True
        self.cause: BaseException | None = None
        self.reply: ModelReply | None = None
        self.task: asyncio.Task[ModelReply]

    def cut_off(self) -> None:
        """End it, without waiting. Harmless after its end."""
        self.stopped = True
        if self.started:
            self.task.cancel()

    async def stop(self, cause: BaseException | None = None) -> None:
        """Cut it off, and wait until that is stored."""
        self.cause = self.cause or cause
        self.cut_off()
        await asyncio.wait({self.task})


class Sends:
    """The detached sends of one runtime: one a run at most.

    Args:
        ended: awaited with the run's id after each, once its outcome is stored.
    """

    def __init__(self, ended: Callable[[str], Awaitable[None]]) -> None:
        self._ended = ended
        self._pending: dict[str, PendingSend] = {}

    def of(self, run_id: str) -> PendingSend | None:
        """The send of a run that is under way, if there is one."""
        return self._pending.get(run_id)

    def begin(self, pending: PendingSend, work: Coroutine[Any, Any, ModelReply]) -> None:
        """Let ``work``, which is this send, go on by itself from here."""
        self._pending[pending.run_id] = pending
        name = f"agentloop send {pending.attempt_id}"
        pending.task = asyncio.get_running_loop().create_task(self._carry(pending, work), name=name)
        pending.task.add_done_callback(_retrieve)

    async def settle(self, seconds: float) -> int:
        """Wait until all have ended, for so long; cut off the rest, without an end, and say how many that were.

        No other may begin meanwhile.
        """
        tasks = {pending.task: pending for pending in self._pending.values()}
        if not tasks:
            return 0
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            tasks[task].left_open = True
            tasks[task].cut_off()
        if late:
            await asyncio.wait(late)
        return len(late)

    async def _carry(self, pending: PendingSend, work: Coroutine[Any, Any, ModelReply]) -> ModelReply:
        pending.started = True
        try:
            return await work
        finally:
            pending.relay.end()
            del self._pending[pending.run_id]
            await self._ended(pending.run_id)


def _retrieve(task: asyncio.Task[ModelReply]) -> None:
    """Mark the task's error as seen; say what may reach nobody and is not stored either."""
    error = None if task.cancelled() else task.exception()
    if error is not None and (isinstance(error, PersistenceError) or not isinstance(error, AgentLoopError)):
        _log.error("%s ended with %s", task.get_name(), type(error).__name__)
