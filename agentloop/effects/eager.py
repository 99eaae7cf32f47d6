"""A task that takes its first step at once, before whoever makes it goes on.

A task of asyncio takes its first step on the next turn of the event loop. So of many runs that are
begun in one turn, none would send before the last one was opened. Python 3.12 has
``eager_start``; this is the same for 3.11, by the interface for other task implementations
(docs.python.org/3.11/library/asyncio-extending.html, "Task lifetime support").
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

__all__ = ["Eager"]

T = TypeVar("T")

_TAKEN: Final = object()


class Eager(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine whose first step is taken by `begin`, and every other one by its task.

    ``task = eager.task(name)``, then ``eager.begin()``: what the first step does may look for its task.
    """

    __slots__ = ("_context", "_coroutine", "_failed", "_first", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._first: Any = None  # what the first step waits for, until the task knows
        self._failed: BaseException | None = None

    def task(self, name: str) -> asyncio.Task[T]:
        """Make the task, in a copy of the present context."""
        self._context = contextvars.copy_context()
        self._task = asyncio.get_running_loop().create_task(self, name=name, context=self._context)
        return self._task

    def begin(self) -> None:
        """Take the first step, as the task. What it raises, or returns, is the task's."""
        loop, caller = asyncio.get_running_loop(), asyncio.current_task()
        if caller is not None:
            asyncio._leave_task(loop, caller)
        asyncio._enter_task(loop, self._task)
        try:
            self._first = self._context.run(self._coroutine.send, None)
        except BaseException as error:  # noqa: BLE001  # StopIteration included: the end of a coroutine
            self._failed = error
        finally:
            asyncio._leave_task(loop, self._task)
            if caller is not None:
                asyncio._enter_task(loop, caller)

    @property
    def over(self) -> StopIteration | None:
        """The end of what returned in its first step, with its value; None for anything else."""
        return self._failed if isinstance(self._failed, StopIteration) else None

    # -- what the task calls

    def send(self, value: Any) -> Any:
        """Go on; the first time, with what the first step waits for."""
        first, self._first = self._first, _TAKEN
        if first is _TAKEN:
            return self._coroutine.send(value)
        if self._failed is not None:
            raise self._failed
        if first is None or (isinstance(first, asyncio.Future) and first.done()):  # nothing to wait for any more
            return self._coroutine.send(value)
        return first

    def throw(self, error: Any, _value: Any = None, _traceback: TracebackType | None = None, /) -> Any:
        """Raise in it; a cancel before the task's own first step reaches what the first step waits for."""
        first, self._first = self._first, _TAKEN
        if first is not _TAKEN:
            if self._failed is not None:  # it was over before
                raise self._failed
            if isinstance(first, asyncio.Future) and first.cancel():
                return first
        return self._coroutine.throw(error)  # a task gives the error alone

    def close(self) -> None:
        """End it where it is."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        """Not awaited itself: its task is."""
        raise TypeError("expected the task to be awaited, got its coroutine")
