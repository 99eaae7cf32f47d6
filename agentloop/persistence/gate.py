"""One at a time, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Gate"]

K = TypeVar("K", bound=Hashable)


class Gate(Generic[K]):
    """A lock a name, first come first served; it is there while somebody holds or wants it."""

    def __init__(self) -> None:
        self._locks: dict[K, tuple[asyncio.Lock, int]] = {}
        self._idle: asyncio.Future[None] | None = None

    def __call__(self, name: K) -> _Pass[K]:
        """``async with gate(name)`` is inside alone among those of that name."""
        return _Pass(self, name)

    def busy(self, name: K) -> bool:
        """Whether somebody holds or wants it."""
        return name in self._locks

    async def idle(self) -> None:
        """Wait until nobody holds or wants any."""
        while self._locks:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])

    def _enter(self, name: K) -> asyncio.Lock:
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, users + 1)
        return lock

    def _leave(self, name: K) -> None:
        lock, users = self._locks.pop(name)
        if users > 1:
            self._locks[name] = (lock, users - 1)
        if not self._locks and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None


class _Pass(Generic[K]):
    def __init__(self, gate: Gate[K], name: K) -> None:
        self._gate, self._name = gate, name

    async def __aenter__(self) -> None:
        self._lock = self._gate._enter(self._name)
        try:
            await self._lock.acquire()
        except BaseException:
            self._gate._leave(self._name)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        self._gate._leave(self._name)
