"""``agentloop serve`` as a process of its own, asked over its socket."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import make_mocked_request

import agentloop as al
import agentloop.cli.serve as serve_module
from agentloop.cli import main
from agentloop.cli.serve import password_auth
from agentloop.integrations.serving.problem import Problem
from agentloop.testing import Answer, ReplayServer, ScriptedProvider
from tests.cli.demo_recordings import ANSWER, recordings
from tests.integrations.web.backend import Client

AGENTS = """
import agentloop as al

assistant = al.Agent(name="assistant", instructions="Help.")
other = al.Agent(name="other")
"""
PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an agents.py, and no settings in the environment."""
    (tmp_path / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "agents", raising=False)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "AGENTLOOP_MODEL", "AGENTLOOP_DIALECT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@asynccontextmanager
async def served(
    endpoint: ReplayServer, *arguments: str, **environment: str
) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """The command, listening; ended by SIGTERM where it still runs."""
    command = ["serve", "agents:assistant", "agents:other", "--port", "0", *arguments]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agentloop",
        *command,
        env={**os.environ, "OPENAI_BASE_URL": endpoint.url, "AGENTLOOP_MODEL": "some-model", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip().rstrip("/")
        assert url.startswith("http://"), (await process.communicate())[1].decode()
        async with ClientSession() as session:
            yield Client(session, url), process
    finally:
        if process.returncode is None:
            process.terminate()
        _, said = await process.communicate()
        assert b"Traceback" not in said, said.decode()


async def test_it_serves_a_page_its_agents_and_a_turn(replay_server: ReplayServer) -> None:
    replay_server.script(recordings()["4-answer.sse"])
    async with served(replay_server, "--metrics") as (client, process):
        status, session = await client.ask("GET", "/api/session")
        assert (status, [agent["name"] for agent in session["agents"]]) == (200, ["assistant", "other"])
        async with client.session.get(client.url + "/") as response:
            page = await response.text()
            assert (response.status, response.content_type) == (200, "text/html")
            assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        assert "<title>" in page
        await client.begin()
        end = (await client.events())[-1]["turn"]
        assert (end["outcome"], end["attempts"][0]["text"]) == ("completed", ANSWER)
        async with client.session.get(client.url + "/metrics") as response:
            assert 'agentloop_runs_total{outcome="completed"} 1.0' in await response.text()
        process.send_signal(signal.SIGTERM)
        _, said = await process.communicate()
        assert process.returncode == 0
        assert said.decode().splitlines() == [
            "serving assistant, other (2 agents); store: memory: all ends with this process",
            "ending: waiting for turns that go on",
        ]


async def test_what_is_stored_is_there_in_the_next_process(replay_server: ReplayServer, tmp_path: Path) -> None:
    replay_server.script(recordings()["4-answer.sse"])
    store = ["--store", str(tmp_path / "chat.db")]
    async with served(replay_server, *store) as (client, _):
        await client.begin()
        before = (await client.events())[-1]["turn"]
    async with served(replay_server, *store) as (client, _):
        assert await client.turn() == before
    assert len(replay_server.requests) == 1


async def test_a_turn_that_is_not_done_in_time_is_left_to_be_continued(
    replay_server: ReplayServer, tmp_path: Path
) -> None:
    """SIGTERM takes back no promise: what goes on has its time, and what does not end is not sent again."""
    replay_server.script(Answer(body=recordings()["4-answer.sse"], cut=1500, ending="stall"))
    store = ["--store", str(tmp_path / "chat.db"), "--drain-seconds", "0.1"]
    async with served(replay_server, *store) as (client, process):
        await client.begin()
        async with client.stream() as events:
            async for event in events:
                if event["type"] == "model.start":
                    break
            process.send_signal(signal.SIGTERM)
            rest = [event async for event in events if event["type"] != "comment"]
            assert all(event["type"] not in ("end", "run.ended") for event in rest)
        await process.wait()
    async with served(replay_server, *store) as (client, _):
        turn = await client.turn()
        assert (turn["state"], turn["outcome"]) == ("unsettled", None)
        assert (await client.events())[-1]["turn"] == turn
    assert len(replay_server.requests) == 1


async def test_a_password_is_asked_for_by_browsers_and_taken_as_a_token(replay_server: ReplayServer) -> None:
    basic = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    async with served(replay_server, "--password-env", "SECRET", SECRET=PASSWORD) as (client, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic ??"}):
            async with client.session.get(client.url + "/api/session", headers=headers) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"].startswith("Basic ")
        for value in (f"Basic {basic}", f"Bearer {PASSWORD}"):
            status, session = await client.ask("GET", "/api/session", headers={"Authorization": value})
            assert (status, session["user"]) == (200, "anyone")


async def test_without_a_password_no_foreign_name_leads_to_it(replay_server: ReplayServer) -> None:
    async with served(replay_server) as (client, _):
        assert (await client.ask("GET", "/", headers={"Host": "evil.example"}))[0] == 421
        assert (await client.ask("GET", "/api/session", headers={"Host": "localhost:1"}))[0] == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["agents:nobody"], "has no 'nobody'"),
        (["agents:assistant", "agents:assistant"], "expected each name once"),
        (["agents:assistant", "--host", "0.0.0.0"], "expected --password-env NAME with it, or --no-password"),
        (["agents:assistant", "--password-env", "NOT_SET"], "expected a password in the environment variable NOT_SET"),
        (["agents:assistant", "--password-env", "X", "--no-password"], "not allowed with"),
        (["agents:assistant", "--port", "70000"], "expected a port from 0 to 65535"),
        (["agents:assistant", "--drain-seconds", "0"], "expected seconds above 0"),
        (["agents:assistant", "--origin", "nowhere"], "origins: expected such as https://app.example"),
        (["agents:assistant", "--host", "127.0.0.1", "--port", "1"], "cannot listen on"),
    ],
)
def test_wrong_usage_is_said_and_exits_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cannot listen" in words and os.geteuid() == 0:
        arguments = ["agents:assistant", "--host", "192.0.2.1", "--no-password"]  # an address of nobody
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("AGENTLOOP_MODEL", "m")
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_store_that_cannot_be_used_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no.db").write_text("no database at all, but long enough to be looked at" * 20)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("AGENTLOOP_MODEL", "m")
    assert main(["serve", "agents:assistant", "--port", "0", "--store", str(tmp_path / "no.db")]) == 1
    assert "PersistenceError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Basic",
        "Basic !",
        "Basic " + base64.b64encode(b"\xff:x").decode(),
        "Bearer",
        "Digest x",
        "Bearer corr\u00e9ct",
    ],
)
async def test_what_is_no_password_is_refused(value: str) -> None:
    request: Any = make_mocked_request("GET", "/", headers={"Authorization": value} if value else {})
    assert isinstance(request, web.Request)
    with pytest.raises(Problem) as caught:
        await password_auth(PASSWORD)(request)
    assert caught.value.status == 401


async def test_a_connection_that_asks_nothing_is_not_kept_for_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve_module, "_IDLE_SECONDS", 0.2)
    args = argparse.Namespace(
        host="127.0.0.1",
        port=0,
        store=None,
        origin=[],
        metrics=False,
        no_password=False,
        lease_seconds=30.0,
        drain_seconds=0.1,
    )
    serving = asyncio.create_task(serve_module._serve(args, ScriptedProvider([]), [al.Agent(name="a")], None))
    try:
        while not (told := capsys.readouterr().out):  # noqa: ASYNC110  # nothing else says that it listens
            await asyncio.sleep(0.01)
        port = int(told.strip().rstrip("/").rpartition(":")[2])
        for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost: loc"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
    finally:
        serving.cancel()
        await asyncio.wait({serving})


async def test_bytes_that_are_no_text_are_no_password() -> None:
    request: Any = SimpleNamespace(headers={"Authorization": "Bearer \udcff"})  # as a server reads the byte FF
    with pytest.raises(Problem) as caught:
        await password_auth(PASSWORD)(request)
    assert caught.value.status == 401
