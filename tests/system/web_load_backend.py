"""A chat backend in a process of its own: ``python -m tests.system.web_load_backend SETTINGS``.

It prints its port, and for each line on its standard input what it holds at the moment (`Holds`). On SIGTERM it
drains while it still listens, stops, and ends; when its standard input closes it ends at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections import Counter
from typing import Literal

import msgspec
from aiohttp import web

import agentloop as al
from agentloop.integrations.web import SERVICE, WebLimits, chat_app

__all__ = ["Holds", "Settings", "main"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How it serves.

    Attributes:
        endpoint: the model's base URL. store: a file; None is memory. port: 0 is any.
        send_buffer: bytes that the system takes for each client; None leaves that to the system.
    """

    endpoint: str
    store: str | None = None
    port: int = 0
    limits: WebLimits = WebLimits()
    client_gone: Literal["detach", "cancel"] | None = None
    send_buffer: int | None = None
    lease_seconds: float = 30.0
    settle_seconds: float = 30.0


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """What the process holds.

    Attributes:
        runs, streams: places that are taken. tasks: how many, by what they run; its own are left out.
        files: open file descriptors. cpu: seconds it has computed for. peak_kib: the most memory it ever had.
    """

    runs: int
    streams: int
    tasks: dict[str, int]
    files: int
    cpu: float
    peak_kib: int


async def _auth(request: web.Request) -> str | None:
    return request.headers.get("X-User")


def _holds(app: web.Application) -> Holds:
    service, used = app[SERVICE], resource.getrusage(resource.RUSAGE_SELF)
    own = asyncio.current_task()
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks() if task is not own)
    return Holds(
        runs=service.runs.taken,
        streams=service.streams.taken,
        tasks=dict(tasks),
        files=len(os.listdir("/proc/self/fd")),
        cpu=used.ru_utime + used.ru_stime,
        peak_kib=used.ru_maxrss,
    )


async def _commands(app: web.Application) -> None:
    """Answer each line, until there is none any more."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(msgspec.json.encode(_holds(app)).decode(), flush=True)


async def main(settings: Settings) -> None:
    """Serve until a signal or the end of the input."""
    provider = al.ChatCompletions(settings.endpoint, model="m", dialect="openai")
    agent = al.Agent(name="assistant", limits=al.LoopLimits(reply_bytes=1 << 20))
    listener = socket.create_server(("127.0.0.1", settings.port), backlog=1024)
    if settings.send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)  # its connections have it too
    async with al.Runtime(
        provider, store=settings.store, lease_seconds=settings.lease_seconds, settle_seconds=settings.settle_seconds
    ) as runtime:
        app = chat_app(runtime, [agent], auth=_auth, limits=settings.limits, client_gone=settings.client_gone)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=5)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=1024).start()
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        print(listener.getsockname()[1], flush=True)
        waits = [asyncio.create_task(told.wait()), asyncio.create_task(_commands(app))]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if told.is_set():
            await app[SERVICE].drain()
        for task in waits:
            task.cancel()
        await asyncio.wait(waits)
        await runner.cleanup()
        for task in waits:
            if not task.cancelled():
                task.result()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Settings)))
