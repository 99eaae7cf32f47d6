"""One at a time, by name."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from types import TracebackType
from typing import Generic, TypeVar

__all__ = ["Gate"]

K = TypeVar("K", bound=Hashable)


class Gate(Generic[K]):
    """A lock a name, first come first served. It is there while somebody holds it, and cheap where nobody waits."""

    def __init__(self) -> None:
        self._held: dict[K, deque[asyncio.Future[None]] | None] = {}  # to those who wait, once somebody does
        self._idle: asyncio.Future[None] | None = None

    def __call__(self, name: K) -> _Pass[K]:
        """``async with gate(name)`` is inside alone among those of that name."""
        return _Pass(self, name)

    def busy(self, name: K) -> bool:
        """Whether somebody holds it, or is about to."""
        return name in self._held

    async def idle(self) -> None:
        """Wait until nobody holds any."""
        while self._held:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])

    async def _wait(self, name: K) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._held[name]
        if waiting is None:
            waiting = self._held[name] = deque()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was handed over just before
                self._leave(name)
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def _leave(self, name: K) -> None:
        waiting = self._held[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._held[name]
        if not self._held and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None


class _Pass(Generic[K]):
    __slots__ = ("_gate", "_name")

    def __init__(self, gate: Gate[K], name: K) -> None:
        self._gate, self._name = gate, name

    async def __aenter__(self) -> None:
        held = self._gate._held
        if self._name in held:
            await self._gate._wait(self._name)
        else:
            held[self._name] = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self._name)
