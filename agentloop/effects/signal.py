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
from ..sinks import put_off, take_cancel

__all__ = ["Bound", "Signal"]

_Listener = Callable[[], None]


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
        if type(name) is not str:
            raise InputError(f"Signal.name: expected str, got {type(name).__name__}")
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

    def seconds_left(self) -> float | None:
        """Until the earliest deadline here and above, each by its own clock; 0.0 when it is over, None without one."""
        lefts = [parent.seconds_left() for parent in self._parents]
        if self._deadline is not None:
            lefts.append(max(0.0, self._deadline - self._clock()))
        return min((left for left in lefts if left is not None), default=None)

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
            reason: raised to whoever works under it; by default a `RunCancelled` that names the signal.

        Raises:
            InputError: ``reason`` is no exception.
        """
        if reason is not None and not isinstance(reason, BaseException):
            raise InputError(f"Signal.cancel: expected an exception or None, got {type(reason).__name__}")
        if self.reason is None:
            self._reason = reason or RunCancelled(self._name, "signal")
        for listener in list(self._listeners.values()):
            listener()

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

    As with `asyncio.timeout`, whatever the block awaits is cancelled. What is raised at its end, where
    several things ended it, is here and nowhere else (R325), the foremost first:

    1. the caller's own cancel: it stays one, and its count (`asyncio.Task.cancelling`) is the caller's;
    2. the signal's reason, as it is (R324);
    3. the time, of this block or the signal's deadline;
    4. the error that the block met.

    A block that ends well all the same has its result: what was done stands. A cancel of the caller's own
    that came too late for it is raised by the caller's next await that waits.

    Args:
        seconds: its time; None is only the signal's.

    Raises:
        BaseException: the signal's reason, at once where it is cancelled already.
        CallTimeout: ``call_timeout``: the time is over.
    """

    __slots__ = ("_cancels", "_fired", "_late", "_seconds", "_signal", "_task", "_timers")

    def __init__(self, signal: Signal, seconds: float | None = None) -> None:
        self._signal, self._seconds = signal, seconds
        self._fired = False
        self._late: CallTimeout | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def reason(self) -> BaseException | None:
        """Why the work is no longer wanted, the caller's own cancel aside; None while it is."""
        reason, late = self._signal.reason, self._late
        if late is not None and (reason is None or isinstance(reason, CallTimeout)):
            return late  # of two times, the one that was met
        return reason

    def check(self) -> None:
        """Go on, or stop as at an await: whoever was waited for may have kept a cancel to itself.

        Raises:
            asyncio.CancelledError: the block is to end.
        """
        if self.reason is not None or self._task.cancelling() > self._cancels:
            raise asyncio.CancelledError

    async def __aenter__(self) -> Self:
        self._signal.check()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._task, self._cancels = task, task.cancelling()
        self._signal.listen(id(self), self._end)
        self._await_deadline()
        if self._seconds is not None:
            self._timers.append(asyncio.get_running_loop().call_later(self._seconds, self._run_out, self._seconds))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal.unlisten(id(self))
        for timer in self._timers:
            timer.cancel()
        if self._fired:
            self._task.uncancel()
        reason = self.reason
        if reason is None and not self._theirs:
            return
        if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
            return  # the interpreter is to end
        met = await take_cancel()
        if error is None:
            if self._theirs:
                put_off(met or asyncio.CancelledError())
        elif self._theirs:
            cancel = _cancel_before(error)
            if met is not None and (cancel is None or met.args):
                cancel = met
            if cancel is not error:
                raise cancel or asyncio.CancelledError
        elif reason is not None and reason is not error:
            raise reason

    @property
    def _theirs(self) -> bool:
        """Whether the caller cancelled the task as well; asked once this block's own cancel is taken back."""
        return self._task.cancelling() > self._cancels

    def _await_deadline(self) -> None:
        left = self._signal.seconds_left()
        if left is not None:
            self._timers.append(asyncio.get_running_loop().call_later(left, self._at_deadline))

    def _at_deadline(self) -> None:
        if self._signal.cancelled:
            self._end()
        else:
            self._await_deadline()  # the clocks of loop and signal differ by a rounding

    def _run_out(self, seconds: float) -> None:
        self._late = CallTimeout("call_timeout", seconds)
        self._end()

    def _end(self) -> None:
        if not self._fired:
            self._fired = True
            self._task.cancel()


def _cancel_before(error: BaseException) -> asyncio.CancelledError | None:
    """The cancel that was under way when ``error`` was raised; None where nothing kept it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, asyncio.CancelledError):
        found = found.__context__
    return found
