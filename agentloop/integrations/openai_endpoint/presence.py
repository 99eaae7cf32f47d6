"""Whether a client that waits for one answer is still there: nothing is sent to it meanwhile, which would tell."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Literal, Self

import anyio
from aiohttp import web

__all__ = ["Presence"]

_WATCH_SECONDS: Final = 1.0


class Presence:
    """The time in which an answer is made.

    When the client goes, or the answer is cut, what the block waits for is cancelled, and the block ends without
    an error. One task enters it, once.

    Args:
        seconds: how often is looked.

    Attributes:
        ended: why the block was ended early; None where it was not.
    """

    def __init__(self, request: web.Request, *, seconds: float = _WATCH_SECONDS) -> None:
        self._request, self._seconds = request, seconds
        self._scope = anyio.CancelScope()
        self._watch: asyncio.Task[None] | None = None
        self.ended: Literal["gone", "cut"] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.get_running_loop().create_task(self._watching(), name="agentloop presence")
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._watch is not None, "it was entered"
        self._watch.cancel()
        return bool(self._scope.__exit__(kind, error, trace))

    def cut(self) -> None:
        """End the block now."""
        self._end("cut")

    def _end(self, why: Literal["gone", "cut"]) -> None:
        if self.ended is None:
            self.ended = why
            self._scope.cancel()

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            transport = self._request.transport
            if transport is None or transport.is_closing():
                self._end("gone")
                return
