"""A chat backend for many users, and a phone that loses its connection in mid-answer.

Started without arguments it serves, and is its own two clients; with ``--serve`` it goes on serving, with the page at
http://127.0.0.1:8080/ (any name is let in, so that you can try two users in two browsers).
"""

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

import agentloop as al
from agentloop.integrations.web import chat_app
from agentloop.testing import call, reply

from endpoint import provider

TOKENS = {"ann-4711": "Ann", "eve-4712": "Eve"}  # yours: sessions, or signed tokens


@al.tool(approval="required", recovery="settle")
async def book(room: str, day: str, ctx: al.ToolContext[str]) -> str:
    """Book a room. A person is shown the exact arguments first."""
    return f"{room} is booked on {day} for {ctx.deps}"


assistant = al.Agent(name="desk", instructions="Help with rooms.", tools=[book], policy_version="desk.v1")


listened_to = asyncio.Event()


async def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say next; it follows from what was said so far."""
    if not request.exchanges:
        await listened_to.wait()  # a real model is slower than a client by itself
        return reply(text="The blue room is free then. ", calls=[call("book", room="blue", day="Friday")])
    return reply(text=f"Done: {request.exchanges[-1].feedback[0].text}.")


async def auth(request: web.Request) -> str | None:
    """Yours: who sends the request; None is nobody known."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme == "Bearer":
        return TOKENS.get(value)
    if scheme == "Basic":  # what a browser sends where it asked for a name
        return base64.b64decode(value).decode().partition(":")[0] or None
    return None


@web.middleware
async def ask_for_a_name(request: web.Request, handler: Any) -> web.StreamResponse:
    """Have a browser ask for one, for ``--serve``."""
    response: web.StreamResponse = await handler(request)
    if response.status == 401:
        response.headers["WWW-Authenticate"] = 'Basic realm="a name, and no password"'
    return response


class Phone:
    """A client: it keeps the id of the last event that it has seen, and comes back with it."""

    def __init__(self, session: ClientSession, url: str, token: str) -> None:
        self.session, self.url = session, url
        self.headers, self.last = {"Authorization": f"Bearer {token}"}, ""
        self.text = ""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self.session.request(method, self.url + path, json=body, headers=self.headers) as response:
            print(f"{method} {path}: {response.status}")
            return await response.json()

    async def events(self, path: str) -> AsyncIterator[Any]:
        """The events of a turn. EventSource in a browser does the same by itself."""
        headers = {**self.headers, "Last-Event-ID": self.last}
        async with self.session.get(self.url + path, headers=headers) as response:
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    self.last = value
                elif name == "data":
                    event = json.loads(value)
                    listened_to.set()
                    if event["type"] == "model.output":
                        self.text += event["payload"]["text"]
                    yield event

    async def follow(self, path: str, *, lose_after: int | None = None) -> Any:
        """Read to the end, or lose the connection after some pieces of text."""
        pieces = 0
        async for event in self.events(path):
            pieces += event["type"] == "model.output"
            if pieces == lose_after:
                print(f"connection lost after {self.text!r}")
                return None
            if event["type"] == "end":
                return event["turn"]
        return None


async def talk(url: str) -> None:
    async with ClientSession() as session:
        ann, eve = Phone(session, url, "ann-4711"), Phone(session, url, "eve-4712")
        turn = "/api/conversations/rooms/turns/1"
        await ann.ask("POST", "/api/conversations/rooms/turns", {"id": "1", "text": "A room on Friday, please."})
        await ann.follow(f"{turn}/events", lose_after=2)
        waiting = await ann.follow(f"{turn}/events")
        print(f"and back: {ann.text!r}")
        for item in waiting["waiting"]:
            print(f"may it? {item['tool']} {item['arguments']}")
        decisions = {"decisions": {item["ref"]: {"decision": "approve"} for item in waiting["waiting"]}}
        await eve.ask("POST", f"{turn}/decide", decisions)
        await eve.ask("GET", "/api/conversations/rooms")
        await ann.ask("POST", f"{turn}/decide", decisions)
        done = await ann.follow(f"{turn}/events")
        print(
            f"{done['outcome']}: {done['attempts'][-1]['text']} ({done['budget']['model_calls']['used']} model calls)"
        )


async def main(serve: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = [answer] * (1_000 if serve else 2)
        async with al.Runtime(provider(answers), store=Path(folder) / "chat.db") as runtime:
            app = chat_app(runtime, [assistant], auth=auth, deps=lambda user: user, page=serve)
            if serve:
                listened_to.set()
                app.middlewares.append(ask_for_a_name)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 8080 if serve else 0).start()
                url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                if serve:
                    print(f"{url}/", flush=True)
                    await asyncio.Event().wait()
                await talk(url)
            finally:
                await runner.cleanup()


asyncio.run(main("--serve" in sys.argv[1:]))
