"""What Ctrl-C means at the moment, and an orderly end where the process is told to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupts"]


class Interrupts:
    """Takes SIGINT and SIGTERM while it is entered, in the event loop that entered it.

    Args:
        idle: what an interrupt does where nothing else was named; None does nothing.
        end: what SIGTERM does, so that the terminal is left as it was found.

    Attributes:
        ended: whether SIGTERM came.

    Outside the main thread, where no signal can be taken, it takes none.
    """

    def __init__(self, idle: Callable[[], object] | None, end: Callable[[], object]) -> None:
        self._action, self._end = idle, end
        self.ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Any = None
        self._before_end: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            self._before = signal.signal(signal.SIGINT, self._on_signal)
            self._before_end = signal.signal(signal.SIGTERM, self._on_end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop = None
            signal.signal(signal.SIGINT, self._before)
            signal.signal(signal.SIGTERM, self._before_end)

    @contextmanager
    def to(self, action: Callable[[], object]) -> Iterator[None]:
        """What an interrupt does meanwhile."""
        before, self._action = self._action, action
        try:
            yield
        finally:
            self._action = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal.signal calls it
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._act)

    def _on_end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal.signal calls it
        signal.signal(signal.SIGTERM, self._before_end)  # a second one is not waited for
        if self._loop is not None:
            self.ended = True
            self._loop.call_soon_threadsafe(self._end)

    def _act(self) -> None:
        if self._action is not None:
            self._action()
