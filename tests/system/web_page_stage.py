"""The page of the chat backend as a person meets it: Chromium, nginx, `agentloop serve`, a model led by the test."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from tests.source import ROOT
from tests.system.web_page_agent import OUTBOX

__all__ = ["Ask", "Browser", "Model", "Nginx", "Server", "Stage", "chromium", "expect"]

Browser = BrowserContext = Locator = Page = Any
"""Of playwright, which is imported when a browser is wanted: a plain development install need not have it."""

_SECONDS = 20.0
_FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
)


def program(name: str, package: str) -> str:
    """The path of a program."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    assert found is not None, f"expected {name} (Debian package {package}), which `make system` installs as root"
    return found


def _free_port() -> int:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        return int(plug.getsockname()[1])


class Ask:
    """A request to the model, answered by the test piece by piece."""

    def __init__(self, body: dict[str, Any], response: web.StreamResponse) -> None:
        self.messages: list[dict[str, Any]] = body["messages"]
        self._response = response
        self.over = asyncio.Event()

    async def _send(self, delta: dict[str, Any], finish: str | None = None) -> None:
        chunk = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        await self._response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def say(self, text: str) -> None:
        """A piece of the answer."""
        await self._send({"content": text})

    async def call(self, name: str, arguments: str) -> None:
        """Ask for a tool, with these arguments to the letter, and end."""
        function = {"name": name, "arguments": arguments}
        await self._send({"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]})
        await self.end("tool_calls")

    async def end(self, finish: str = "stop") -> None:
        """The end of the answer."""
        await self._send({}, finish)
        usage = {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234}
        chunk = {"id": "r", "model": "m", "choices": [], "usage": usage}
        await self._response.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
        self.over.set()

    async def answer(self, text: str) -> None:
        """A whole answer."""
        await self.say(text)
        await self.end()


class Model:
    """A model endpoint in this process.

    Attributes:
        asked: how many requests came.
    """

    def __init__(self) -> None:
        self.asked, self._asks = 0, asyncio.Queue[Ask]()
        self._open: set[Ask] = set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._on_request)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def ask(self) -> Ask:
        """The next request."""
        async with asyncio.timeout(_SECONDS):
            return await self._asks.get()

    def let_go(self) -> None:
        """Break off every answer that has no end yet, so that nobody waits for it."""
        for ask in self._open:
            ask.over.set()

    async def _on_request(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        ask = Ask(await request.json(), response)
        await response.prepare(request)
        self._asks.put_nowait(ask)
        self._open.add(ask)
        try:
            await ask.over.wait()
        finally:
            self._open.discard(ask)
        return response


class _Process:
    """A program that is started, ended, killed and started again on its port."""

    def __init__(self) -> None:
        self.port = _free_port()
        self._process: asyncio.subprocess.Process | None = None

    async def _start(self, *arguments: str, **options: Any) -> None:
        self._process = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT, **options)
        async with asyncio.timeout(_SECONDS):
            while True:
                assert self._process.returncode is None, f"{arguments[0]} ended with {self._process.returncode}"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it with a signal."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(number)
        try:
            async with asyncio.timeout(_SECONDS):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def kill(self) -> None:
        """End it as a crash does."""
        await self.stop(signal.SIGKILL)


class Server(_Process):
    """``agentloop serve`` on a file, with a short lease."""

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__()
        self._model, self._folder = model, folder
        self.outbox = folder / "outbox"

    async def start(self) -> None:
        await self._start(
            *(sys.executable, "-m", "agentloop", "serve", "tests/system/web_page_agent.py:assistant"),
            *("--base-url", self._model.url, "--model", "m", "--dialect", "openai", "--port", str(self.port)),
            *("--store", str(self._folder / "chat.db"), "--lease-seconds", "1", "--drain-seconds", "0.5"),
            env={**os.environ, OUTBOX: str(self.outbox)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    def mails(self) -> list[str]:
        """What was sent so far."""
        return self.outbox.read_text().splitlines() if self.outbox.exists() else []


class Nginx(_Process):
    """nginx before a server, as it comes, but for compression, which is on for everything."""

    def __init__(self, before: Server, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "\n".join(f"  {kind}_temp_path {folder / kind};" for kind in kinds)
        user = "user root;" if os.geteuid() == 0 else ""
        self._config = folder / "nginx.conf"
        self._config.write_text(f"""
{user} daemon off; master_process off; pid {folder / "nginx.pid"}; error_log {folder / "nginx.log"};
events {{ worker_connections 256; }}
http {{
  access_log off; gzip on; gzip_types *;
{places}
  server {{
    listen 127.0.0.1:{self.port};
    location / {{
      proxy_pass http://127.0.0.1:{before.port};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
    }}
  }}
}}
""")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        nginx = program("nginx", "nginx-light")
        await self._start(
            nginx, "-p", str(self._folder), "-e", str(self._folder / "nginx.log"), "-c", str(self._config)
        )


def expect(what: Any) -> Any:
    """Playwright's own assertions, which wait."""
    return importlib.import_module("playwright.async_api").expect(what)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser that asks nobody for anything by itself."""
    path = program("chromium", "chromium")
    async with importlib.import_module("playwright.async_api").async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=list(_FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


class Stage:
    """One person before the page.

    Attributes:
        model, server, nginx, context, page: the parts.
        noise: errors in the page's console, errors that nobody caught, dialogs, and requests to other places.
    """

    def __init__(self, model: Model, server: Server, nginx: Nginx, context: BrowserContext, page: Page) -> None:
        self.model, self.server, self.nginx, self.context, self.page = model, server, nginx, context, page
        self.noise: list[str] = []
        page.on("pageerror", lambda error: self.noise.append(f"error {error}"))
        page.on("dialog", lambda dialog: self.noise.append(f"dialog {dialog.message}"))
        page.on("console", lambda line: line.type == "error" and self.noise.append(f"console {line.text}"))
        context.on("request", lambda asked: asked.url.startswith(nginx.url) or self.noise.append(f"asked {asked.url}"))
        self._composer = page.get_by_test_id("composer")

    @classmethod
    @asynccontextmanager
    async def set(cls, browser: Browser, folder: Path, **options: Any) -> AsyncIterator[Self]:
        """All parts, running, and the page open; ``options`` are those of a browser's context."""
        async with Model() as model:
            server = Server(model, folder)
            nginx = Nginx(server, folder)
            try:
                await asyncio.gather(server.start(), nginx.start())
                context = await browser.new_context(**options)
                try:
                    stage = cls(model, server, nginx, context, await context.new_page())
                    await stage.page.goto(nginx.url)
                    yield stage
                finally:
                    await context.close()
            finally:
                model.let_go()
                await nginx.stop()
                await server.stop()

    def of(self, test_id: str) -> Locator:
        """What is marked so; the newest one."""
        return self.page.get_by_test_id(test_id).last

    async def send(self, text: str) -> Ask:
        """Say something; the request to the model that comes of it."""
        await self._composer.fill(text)
        await self.of("send").click()
        return await self.model.ask()

    async def shows(self, state: str, outcome: str = "") -> None:
        """Wait until the newest turn is in a state."""
        await expect(self.of("turn")).to_have_attribute("data-state", state, timeout=_SECONDS * 1000)
        await expect(self.of("turn")).to_have_attribute("data-outcome", outcome)

    async def completed(self, answer: str) -> None:
        """Wait until the newest turn has ended with an answer, and hold it to that, to the letter."""
        await self.shows("ended", "completed")
        await expect(self.of("answer")).to_have_text(answer)
