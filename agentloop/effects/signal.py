"""Whether work is still wanted: one signal for all that is done on behalf of one request.

A signal is cancelled once, by its owner, by a signal above it, or by its deadline. Whoever works
under it asks (`Signal.check`) before an effect, and has a wait cut off (`Bound`). What it was
cancelled with is raised as itself, so that the one who cancelled recognises it (R324).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..errors import CallTimeout, InputError, RunCancelled
from ..limits import check_seconds

__all__ = ["Bound", "Signal"]

_Listener = Callable[[BaseException], None]


class Signal:
    """Cancelled once, and then for ever. One event loop; `cancel` may be called from any task of it.

    Args:
        name: of the request or child, for `RunCancelled`.
        parents: signals whose cancel reaches this one.
        seconds: how long from now until it is cancelled with `CallTimeout` (``deadline``); None is no
            limit of its own.
        clock: monotonic seconds.

    Raises:
        InputError: a value of another type or outside its range.
    """

    __slots__ = ("_clock", "_deadline", "_listeners", "_name", "_parents", "_reason", "_seconds")

    def __init__(
        self,
        name: str = "",
        *,
        parents: tuple[Signal, ...] = (),
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(parents) is not tuple or any(not isinstance(parent, Signal) for parent in parents):
            raise InputError(f"Signal.parents: expected a tuple of Signal, got {type(parents).__name__}")
        if seconds is not None:
            check_seconds("Signal.seconds", seconds)
        self._name, self._parents, self._clock = name, parents, clock
        self._seconds = seconds
        self._deadline = None if seconds is None else clock() + seconds
        self._reason: BaseException | None = None
        self._listeners: dict[int, _Listener] = {}

    @property
    def reason(self) -> BaseException | None:
        """What it was cancelled with, here or above; None while the work is wanted."""
        if self._reason is not None:
            return self._reason
        for parent in self._parents:
            reason = parent.reason
            if reason is not None:
                return reason
        if self._deadline is not None and self._clock() >= self._deadline:
            self._reason = CallTimeout("deadline", self._seconds or 0.0)
            return self._reason
        return None

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, or its deadline is over."""
        return self.reason is not None

    @property
    def deadline(self) -> float | None:
        """The earliest deadline here and above, on the clock; None where there is none."""
        earliest = self._deadline
        for parent in self._parents:
            above = parent.deadline
            if above is not None and (earliest is None or above < earliest):
                earliest = above
        return earliest

    def seconds_left(self) -> float | None:
        """Until the deadline, 0.0 when it is over; None where there is none."""
        deadline = self.deadline
        return None if deadline is None else max(0.0, deadline - self._clock())

    def check(self) -> None:
        """Go on, or raise what it was cancelled with.

        Raises:
            BaseException: the reason, the same object each time.
        """
        reason = self.reason
        if reason is not None:
            raise reason

    def cancel(self, reason: BaseException | None = None) -> None:
        """Cancel it and all below, without waiting. The first reason stands.

        Args:
            reason: raised to whoever works under it; a `RunCancelled` by default.

        Raises:
            InputError: ``reason`` is no exception.
        """
        if reason is not None and not isinstance(reason, BaseException):
            raise InputError(f"Signal.cancel: expected an exception or None, got {type(reason).__name__}")
        if self.reason is None:
            self._reason = reason or RunCancelled(self._name)
        stands = self.reason
        assert stands is not None, "it was cancelled just now"
        for listener in list(self._listeners.values()):
            listener(stands)

    def listen(self, key: int, listener: _Listener) -> None:
        """Have ``listener`` called when it is cancelled, here or above."""
        self._listeners[key] = listener
        for parent in self._parents:
            parent.listen(key, listener)

    def unlisten(self, key: int) -> None:
        """Call it no more."""
        self._listeners.pop(key, None)
        for parent in self._parents:
            parent.unlisten(key)


class Bound:
    """A block that ends when its signal is cancelled, or its time is over: ``async with Bound(signal, 30)``.

    As with `asyncio.timeout`, whatever the block awaits is cancelled, and at the end of the block that
    cancel becomes the reason. A cancel of the caller's own task stays one. A block that ends well all the
    same has its result: what was done stands.

    Raises:
        BaseException: the signal's reason, at once where it is cancelled already.
        CallTimeout: ``call_timeout``: the time is over.
    """

    __slots__ = ("_cancels", "_clock", "_reason", "_seconds", "_signal", "_task")

    def __init__(self, signal: Signal, seconds: float | None = None) -> None:
        self._signal, self._seconds = signal, seconds
        self._reason: BaseException | None = None
        self._clock: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._signal.check()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._task, self._cancels = task, task.cancelling()
        self._signal.listen(id(self), self._end)
        self._clock = self._start_clock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal.unlisten(id(self))
        if self._clock is not None:
            self._clock.cancel()
        reason = self._reason
        if reason is None:
            return
        mine = self._task.uncancel() <= self._cancels
        if error is None and mine:
            await _drop_cancel()
        elif mine and isinstance(error, asyncio.CancelledError):
            raise reason

    def _start_clock(self) -> asyncio.TimerHandle | None:
        left, own = self._signal.seconds_left(), self._seconds
        if left is None and own is None:
            return None
        loop = asyncio.get_running_loop()
        if own is not None and (left is None or own <= left):
            return loop.call_later(own, self._end, CallTimeout("call_timeout", own))
        assert left is not None, "one of the two is a number"
        return loop.call_later(left, self._end_at_deadline)

    def _end_at_deadline(self) -> None:
        self._end(self._signal.reason or CallTimeout("deadline", self._seconds or 0.0))

    def _end(self, reason: BaseException) -> None:
        if self._reason is None:
            self._reason = reason
            self._task.cancel()


async def _drop_cancel() -> None:
    """Take back a cancel that nothing in the block has met: the block has its result."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass  # it came too late, and nobody but this block asked for it
