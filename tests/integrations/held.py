"""A scripted model that stops in the middle of an answer until the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import agentloop as al
from agentloop.testing import ScriptedProvider
from agentloop.wire.deltas import Delta

__all__ = ["HeldProvider"]


class HeldProvider(ScriptedProvider):
    """Answers from a script, and holds one of the answers back.

    Args:
        answer: which one, from 1. after: how many of its previews come before.

    Attributes:
        reached: set when those were read. open: to be set for the rest.
    """

    def __init__(self, script: Sequence[Any], *, deltas: int, answer: int = 1, after: int) -> None:
        super().__init__(script, deltas=deltas)
        self._answer, self._after = answer, after
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def stream(
        self, request: al.ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AsyncIterator[al.ModelStream]:
        """See `Provider.stream`."""
        async with super().stream(request, attempt_id=attempt_id, max_reply_bytes=max_reply_bytes) as stream:
            yield _Held(self, stream, self._after) if len(self.requests) == self._answer else stream


class _Held:
    def __init__(self, owner: HeldProvider, stream: al.ModelStream, left: int) -> None:
        self._owner, self._stream, self._left = owner, stream, left

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if not self._left:
            self._owner.reached.set()
            await self._owner.open.wait()
        self._left -= 1
        return await anext(self._stream)

    async def reply(self) -> al.ModelReply:
        async for _ in self:
            pass
        return await self._stream.reply()
