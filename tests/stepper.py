"""A coroutine that is cut off at any await of it, and the timers of an event loop, fired by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

__all__ = ["HeldTimers", "Stepper", "cancel_current"]


def cancel_current() -> None:
    """Cancel the running task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


class Stepper(Coroutine[Any, Any, Any]):
    """Counts the suspensions of a coroutine, and does something at some of them: cancels its task by default."""

    def __init__(
        self, inner: Coroutine[Any, Any, Any], at: set[int], act: Callable[[], object] = cancel_current
    ) -> None:
        self._inner, self._at, self._act = inner, at, act
        self.count = 0

    def _suspended(self, waiting_for: Any) -> Any:
        self.count += 1
        if self.count in self._at:
            self._act()  # the task is running: what cancels it does so at this very suspension
        return waiting_for

    def send(self, value: Any) -> Any:
        return self._suspended(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._suspended(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


class HeldTimers:
    """Timers of the running event loop whose callback is a method of ``kind``: none fires by itself.

    Attributes:
        seconds: how long each was set for, oldest first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
        loop = asyncio.get_running_loop()
        self._real, self._kind = loop.call_later, kind
        self._held: list[tuple[asyncio.TimerHandle, Callable[..., object], tuple[Any, ...]]] = []
        self.seconds: list[float] = []
        monkeypatch.setattr(loop, "call_later", self._call_later)

    def _call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if not isinstance(getattr(callback, "__self__", None), self._kind):
            return self._real(delay, callback, *args, context=context)
        timer = self._real(3600, lambda: None)
        self.seconds.append(delay)
        self._held.append((timer, callback, args))
        return timer

    @property
    def waiting(self) -> int:
        """How many are set."""
        return sum(not timer.cancelled() for timer, *_ in self._held)

    def fire(self, method: str) -> None:
        """Call what is set with this method of the kind."""
        held, self._held = self._held, []
        for timer, callback, args in held:
            if callback.__name__ != method:
                self._held.append((timer, callback, args))
            elif not timer.cancelled():
                timer.cancel()
                callback(*args)
