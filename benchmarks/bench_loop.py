"""A whole run: 8 tool turns and a final text over HTTP on loopback, through `Runtime`.

The floor is a hand-written loop on the same HTTP library with bare decoding: no checks, no facts, no
events, no limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

import agentloop as al
from agentloop.cli.floor import FloorReply

from .measure import Row, Settings, compare
from .streams import MODEL

__all__ = ["PROMPT", "SYSTEM", "get_note", "measure", "serving"]

SYSTEM = "You read notes."
PROMPT = "Read the notes you need, then write the report."


@al.tool
async def get_note(note_id: int, section: str) -> str:
    """Read one note."""
    return f"{section}, note {note_id}: the quick brown fox jumps over the lazy dog and writes it down again, twice."


def measure(settings: Settings) -> list[Row]:
    """One run after the other, on connections that are kept."""
    turns = 2 if settings.smoke else 8
    with serving(turns) as url, asyncio.Runner() as runner:
        loop = runner.get_loop()
        agent = al.Agent(
            name="notes", instructions=SYSTEM, tools=[get_note], limits=al.LoopLimits(max_model_calls=turns + 1)
        )

        async def open_both() -> tuple[al.Runtime, aiohttp.ClientSession]:
            runtime = al.Runtime(al.ChatCompletions(url, model=MODEL))
            return await runtime.__aenter__(), aiohttp.ClientSession()

        runtime, session = runner.run(open_both())
        try:
            ours = _on(loop, lambda: _run(runtime, agent))
            floor = _on(loop, lambda: _bare_run(session, url))
            assert ours() == floor()
            row = compare(
                "loop", f"{turns} tool turns", unit="ms", scale=1e3, ours=ours, floor=floor, settings=settings
            )
        finally:
            runner.run(runtime.aclose())
            runner.run(session.close())
    return [row]


@contextlib.contextmanager
def serving(turns: int) -> Iterator[str]:
    """A server in a process of its own, while the block is open; its base URL."""
    command = [sys.executable, "-m", "benchmarks.serve", str(turns)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()


def _on(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[str]]) -> Callable[[], str]:
    return lambda: loop.run_until_complete(work())


async def _run(runtime: al.Runtime, agent: al.Agent[None]) -> str:
    async with runtime.start(agent, PROMPT) as run:
        pieces = [event.text async for event in run if isinstance(event, al.TextPreview)]
        text = (await run.result()).require_text()
    assert text == "".join(pieces)
    return text


async def _bare_run(session: aiohttp.ClientSession, url: str) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": PROMPT},
    ]
    function = {
        "name": "get_note",
        "description": "Read one note.",
        "parameters": msgspec.Raw(get_note.spec.parameters),
    }
    tools = [{"type": "function", "function": function}]
    while True:
        body = msgspec.json.encode(
            {
                "model": MODEL,
                "stream": True,
                "stream_options": {"include_usage": True},
                "tools": tools,
                "messages": messages,
            }
        )
        reply = FloorReply()
        async with session.post(
            f"{url}/chat/completions", data=body, headers={"content-type": "application/json"}
        ) as response:
            async for data in response.content.iter_any():
                reply.feed(data)
        if not reply.calls:
            return reply.text
        asked = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in reply.calls
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": asked})
        for call_id, _, arguments in reply.calls:
            result = await get_note(**msgspec.json.decode(arguments))
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
