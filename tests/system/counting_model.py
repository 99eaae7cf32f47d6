"""A model endpoint that counts: what it answers depends on the request alone, and it remembers each one."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

__all__ = ["HELD", "CountingModel", "Received", "calls", "text"]

HELD = "X-Held"
"""A header that asks for an answer that begins at once and goes on when its case is released."""


class Received(NamedTuple):
    """One request: for which case, under which attempt id, after how many replies."""

    case: str
    attempt_id: str
    turn: int


def stream(delta: dict[str, Any], finish: str) -> bytes:
    """An event stream with one delta."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = [
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"id": "r", "model": "m", "choices": [], "usage": usage},
    ]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def calls(*asked: tuple[str, str]) -> bytes:
    """A reply that asks for tools, each with one word."""
    found = [
        {
            "index": at,
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"word": word})},
        }
        for at, (name, word) in enumerate(asked)
    ]
    return stream({"tool_calls": found}, "tool_calls")


def text(words: str) -> bytes:
    """A last reply."""
    return stream({"content": words}, "stop")


class CountingModel:
    """Serves ``/CASE/v1/chat/completions`` on loopback, and ``/CASE/v1/release`` for held answers.

    Args:
        answer: the stream for a request's messages.

    Attributes:
        received: every request, oldest first; noted before a byte of the answer is sent.
    """

    def __init__(self, answer: Callable[[list[dict[str, Any]]], bytes]) -> None:
        self.received: list[Received] = []
        self._answer = answer
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._port = 0

    def url(self, case: str) -> str:
        """The base URL of one case."""
        return f"http://127.0.0.1:{self._port}/{case}/v1"

    def of(self, case: str) -> list[Received]:
        """The requests of one case."""
        return [item for item in self.received if item.case == case]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[CountingModel]:
        """Listen while the block is open."""
        app = web.Application()
        app.router.add_post("/{case}/v1/chat/completions", self._on_request)
        app.router.add_post("/{case}/v1/release", self._on_release)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._port = runner.addresses[0][1]
            yield self
        finally:
            await asyncio.shield(runner.cleanup())

    async def _on_release(self, request: web.Request) -> web.Response:
        self._released[request.match_info["case"]].set()
        return web.Response()

    async def _on_request(self, request: web.Request) -> web.StreamResponse:
        messages = (await request.json())["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        self.received.append(Received(request.match_info["case"], request.headers["X-Client-Request-Id"], turn))
        if HELD not in request.headers:
            return web.Response(body=self._answer(messages), content_type="text/event-stream")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._released[request.match_info["case"]].wait()
        await response.write(self._answer(messages))
        return response
