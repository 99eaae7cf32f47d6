"""A medium that several runtimes share, and whose users can die at any append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import agentloop as al
from agentloop.exchange import Fact
from agentloop.persistence import Backend, MemoryBackend
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import FakeClock

__all__ = ["Ground", "Mortal", "SharedMemory"]


class SharedMemory(MemoryBackend):
    """Memory that outlives a runtime, as a file does."""

    durable = True


class Mortal:
    """One runtime's handle on a medium. From its death on, nothing of that runtime reaches the medium.

    Args:
        at: number of the append, from 1, at which it dies; 0 is never. when: before the append is
            written, or after that, but before anybody is told.

    Attributes:
        dead: set when it has died. appends: how many were begun.
    """

    durable = True

    def __init__(self, backend: Backend, *, at: int = 0, when: Literal["before", "after"] = "before") -> None:
        self.backend, self.at, self.when = backend, at, when
        self.appends = 0
        self.dead = asyncio.Event()
        self._back, self._lost = asyncio.Event(), False

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        self.appends += 1
        if self.appends == self.at and self.when == "before":
            self.dead.set()
        await self._live()
        await self.backend.append(facts, token=token, after=after)
        if self.appends == self.at and self.when == "after":
            self.dead.set()
        await self._live()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.backend, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._live()
            return await method(*args, **kwargs)

        return call

    async def close(self) -> None:
        if not self.dead.is_set():
            await self.backend.close()

    def come_back(self) -> None:
        """It was not dead, only away for long; it goes on where it was."""
        self.dead.clear()
        self._back.set()

    def bury(self) -> None:
        """Let its runtime end, without a trace on the medium."""
        self._lost = True
        self._back.set()

    async def _live(self) -> None:
        if self.dead.is_set():
            await self._back.wait()
            if self._lost:
                raise OSError("dead")


class Ground:
    """A medium, its clock, and the runtimes on it.

    Args:
        path: of a SQLite file; None is memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.clock = FakeClock(now=1000.0)
        self._path, self._memory = path, SharedMemory(clock=self.clock)

    def handle(self) -> Backend:
        """As another process would open it."""
        return self._memory if self._path is None else SQLiteBackend(self._path, clock=self.clock)

    async def facts(self) -> list[Fact]:
        """Every fact on it."""
        handle = self.handle()
        await handle.open()
        try:
            return await handle.load()
        finally:
            await handle.close()

    @asynccontextmanager
    async def runtime(self, provider: al.Provider, **options: Any) -> AsyncIterator[al.Runtime]:
        """A runtime that lives."""
        async with al.Runtime(provider, store=self.handle(), **options) as runtime:
            yield runtime

    @asynccontextmanager
    async def mortal(
        self, provider: al.Provider, *, at: int = 0, when: Literal["before", "after"] = "before", **options: Any
    ) -> AsyncIterator[tuple[al.Runtime, Mortal]]:
        """A runtime that dies at an append; at the end of the block it is buried."""
        medium = Mortal(self.handle(), at=at, when=when)
        runtime = al.Runtime(provider, store=medium, **options)
        await runtime.__aenter__()
        try:
            yield runtime, medium
        finally:
            medium.bury()
            await runtime.aclose()
            if medium.dead.is_set():
                await medium.backend.close()
