"""Whether a runtime takes runs, in which event loop, and what has begun by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Literal

from .errors import InputError

__all__ = ["Life"]

_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("agentloop runtimes", default=())
"""Marks of the runtimes whose runs or observers led to the present code, tasks that they began included."""


class Life:
    """One runtime's state, its event loop, and its mark on what begins by it.

    Attributes:
        state: a runtime is opened once, and never again after it was closed.
    """

    __slots__ = ("_loop", "_mark", "state")

    def __init__(self) -> None:
        self.state: Literal["new", "opening", "open", "closed"] = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark = object()

    def begin(self) -> None:
        """Be open, in the present event loop."""
        self.state = "open"
        self._loop = asyncio.get_running_loop()

    def require_open(self) -> None:
        """Refuse what needs an open runtime.

        Raises:
            InputError: it is not open, or in another event loop.
        """
        if self.state != "open":
            raise InputError(f"Runtime: expected an open runtime (async with), got one that is {self.state}")
        self.require_loop()

    def require_loop(self) -> None:
        """Refuse another event loop than the one it was opened in.

        Raises:
            InputError: this is another one.
        """
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise InputError("Runtime: expected the event loop it was entered in, got another one")

    def mark(self) -> Token[tuple[object, ...]]:
        """Mark what begins from here on as begun by this runtime."""
        return _INSIDE.set((*_INSIDE.get(), self._mark))

    def unmark(self, mark: Token[tuple[object, ...]]) -> None:
        """Take back a mark, in the context where it was made."""
        _INSIDE.reset(mark)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block in which all that begins is marked."""
        mark = self.mark()
        try:
            yield
        finally:
            self.unmark(mark)

    @property
    def led_here(self) -> bool:
        """Whether one of its runs or observers led to the present code."""
        return self._mark in _INSIDE.get()
