"""The processes of a load test: a model endpoint, a chat backend, a crowd of clients."""

from __future__ import annotations

import asyncio
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.source import ROOT
from tests.system.web_load_backend import Holds, Settings
from tests.system.web_load_client import Crowd, Summary
from tests.system.web_load_endpoint import Seen

__all__ = ["Backend", "Endpoint", "crowd", "until"]

_GRACE_SECONDS = 20.0


async def _start(module: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.system.{module}", *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )


async def until(holds: Callable[[], Any], *, seconds: float = _GRACE_SECONDS) -> Any:
    """What another process says, as soon as it is true; it is asked again and again.

    Raises:
        AssertionError: it was not in this time.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = await holds()
        if found:
            return found
        assert loop.time() < end, f"expected {holds} to be true within {seconds:g} seconds"
        await asyncio.sleep(0.05)


class _Child:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close its input, which ends it."""
        if self.process.returncode is None:
            try:
                async with asyncio.timeout(_GRACE_SECONDS):
                    await self.process.communicate(b"")
            finally:
                if self.process.returncode is None:
                    self.process.kill()
                    await self.process.wait()


class Endpoint(_Child):
    """A model endpoint, in a block; see `web_load_endpoint`."""

    @classmethod
    async def start(cls) -> Endpoint:
        process = await _start("web_load_endpoint")
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def seen(self) -> list[Seen]:
        """What it was asked so far, oldest first."""

        def read() -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/seen") as response:
                return bytes(response.read())

        return msgspec.json.decode(await asyncio.to_thread(read), type=list[Seen])


class Backend(_Child):
    """A chat backend, in a block; see `web_load_backend`."""

    @classmethod
    async def start(cls, settings: Settings) -> Backend:
        process = await _start("web_load_backend", msgspec.json.encode(settings).decode())
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def holds(self) -> Holds:
        """What it holds now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        return msgspec.json.decode(await self.process.stdout.readline(), type=Holds)

    @property
    def kib(self) -> int:
        """Memory that it has now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def terminate(self) -> None:
        """Tell it to end in order."""
        self.process.send_signal(signal.SIGTERM)

    @asynccontextmanager
    async def watched(self, samples: list[int], *, every: float = 0.5) -> AsyncIterator[None]:
        """A block while which its memory is noted, again and again."""

        async def watch() -> None:
            while True:
                samples.append(self.kib)
                await asyncio.sleep(every)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def crowd(asked: Crowd) -> Summary:
    """Let a crowd come in a process of its own; what became of it."""
    process = await _start("web_load_client", msgspec.json.encode(asked).decode())
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "expected the crowd to end in order"
    return msgspec.json.decode(printed, type=Summary)
