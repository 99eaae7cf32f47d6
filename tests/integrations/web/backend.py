"""A chat backend on a loopback socket, and a client for it that reads events as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

import agentloop as al
from agentloop.integrations.web import chat_app

__all__ = ["Client", "Gate", "by_header", "frames", "serving", "until"]


class Gate:
    """Answers of a scripted model that come when the test says so."""

    def __init__(self) -> None:
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    def __call__(self, answer: Any) -> Callable[[al.ModelRequest], Any]:
        async def held(_: al.ModelRequest) -> Any:
            self.asked.set()
            await self.open.wait()
            return answer

        return held


async def until(condition: Callable[[], bool]) -> None:
    """Let others work until something holds; the timeout of the test bounds it."""
    while not condition():  # noqa: ASYNC110  # what it waits for tells nobody
        await asyncio.sleep(0)


async def by_header(request: web.Request) -> str | None:
    """The user that the header ``X-User`` names."""
    return request.headers.get("X-User")


async def frames(response: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream as they come, each its data with ``_id`` and ``_event`` beside it."""
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith(":"):
            yield {"type": "comment"}
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield {"_id": fields.get("id"), "_event": fields.get("event"), **json.loads(fields["data"])}
            fields = {}


class Client:
    """One user of the backend.

    Args:
        url: of the application. user: sent as ``X-User``.
    """

    def __init__(self, session: ClientSession, url: str, user: str | None = None) -> None:
        self.session, self.url = session, url
        self.headers = {} if user is None else {"X-User": user}

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        headers = {**self.headers, **options.pop("headers", {})}
        if body is not None:
            options["json"] = body
        async with self.session.request(method, self.url + path, headers=headers, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def begin(self, turn: str = "t", text: str = "Hello", conversation: str = "c") -> dict[str, Any]:
        """A turn that was begun."""
        status, view = await self.ask("POST", f"/api/conversations/{conversation}/turns", {"id": turn, "text": text})
        assert status in (200, 201), view
        return dict(view)

    @asynccontextmanager
    async def stream(
        self, turn: str = "t", conversation: str = "c", *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a turn; leaving the block closes the connection."""
        headers = self.headers if after is None else {**self.headers, "Last-Event-ID": after}
        path = f"/api/conversations/{conversation}/turns/{turn}/events"
        async with self.session.get(self.url + path, headers=headers) as response:
            assert response.status == 200, await response.text()
            yield frames(response)
            response.close()

    async def events(self, turn: str = "t", conversation: str = "c", *, after: str | None = None) -> list[Any]:
        """All events of a turn, to its end."""
        async with self.stream(turn, conversation, after=after) as events:
            return [event async for event in events if event["type"] != "comment"]

    async def turn(self, turn: str = "t", conversation: str = "c") -> Any:
        """A turn as it is stored."""
        status, view = await self.ask("GET", f"/api/conversations/{conversation}/turns/{turn}")
        assert status == 200, view
        return view


@asynccontextmanager
async def serving(
    runtime: al.Runtime,
    *agents: al.Agent[Any],
    user: str | None = None,
    app: web.Application | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """Serve agents of an open runtime; the application is shut down at the end."""
    options.setdefault("auth", None)
    app = app or chat_app(runtime, agents, **options)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (host, port) = runner.addresses[0][:2]
        async with ClientSession() as session:
            yield Client(session, f"http://{host}:{port}", user)
    finally:
        await runner.cleanup()
