"""Append, then install, then publish: the only way a fact comes to be.

A step is checked against the book, its facts are appended to the medium, and only then does the
book (and with it every reader) see them. Steps of all runs are serialised, so a check still holds
when its facts are installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ..errors import PersistenceError
from ..exchange import Book, Fact
from .backend import Backend
from .memory import MemoryBackend

__all__ = ["Step", "Store"]

Step = Callable[[Book], Sequence[Fact]]
"""Checks the book and returns the facts to add. Changes nothing."""


class Store:
    """A book and the medium behind it.

    Any task of one event loop may call it.

    Attributes:
        book: the facts that are on the medium, as state. Read only.
        fault: why writing stopped, None while it goes on.
        waits: whether a commit may wait for the medium, so that a cancel can meet it half way.
    """

    def __init__(self, backend: Backend, book: Book) -> None:
        self.book = book
        self.fault: str | None = None
        self.waits = type(backend) is not MemoryBackend
        self._backend = backend
        self._lock = asyncio.Lock()
        self._closed = False

    async def commit(self, step: Step) -> tuple[Fact, ...]:
        """Run one step; return the facts it added (none when it only confirmed).

        Raises:
            PersistenceError: the medium failed or the write was cancelled, now or before. What it
                holds is unknown: writing has stopped, and the host reloads from the medium.
            AgentLoopError: the step was refused; nothing was added.
        """
        async with self._lock:
            self._check()
            facts = tuple(step(self.book))
            if facts:
                await self._write(lambda: self._backend.append(facts), f"appending {len(facts)} facts")
                self.book.install(facts)
            return facts

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop runs that ended, from the medium and from the book.

        Raises:
            ConflictError: one is running, or only part of a conversation was named.
            LostError: one is not held.
            PersistenceError: as `commit`.
        """
        async with self._lock:
            self._check()
            self.book.check_forget(run_ids)
            await self._write(lambda: self._backend.forget(run_ids), f"forgetting {len(run_ids)} runs")
            self.book.forget(run_ids)

    async def close(self) -> None:
        """Stop writing and release the medium. Idempotent."""
        async with self._lock:
            if not self._closed:
                self._closed = True
                await self._backend.close()

    async def _write(self, write: Callable[[], Awaitable[None]], what: str) -> None:
        """Await one write; stop writing when it does not end well, since what it did is unknown."""
        try:
            await write()
        except BaseException as error:
            self.fault = f"{what} ended with {type(error).__name__}"
            if isinstance(error, PersistenceError) or not isinstance(error, Exception):
                raise
            raise PersistenceError(f"{self.fault}; writing stopped, reload the store") from error

    def _check(self) -> None:
        if self._closed:
            raise PersistenceError("the store is closed")
        if self.fault is not None:
            raise PersistenceError(f"{self.fault}; writing stopped, reload the store")
