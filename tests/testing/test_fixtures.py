"""The pytest plugin, used as a project would use it: in a test session of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = 'pytest_plugins = ["agentloop.testing.fixtures"]\n'

PASSING = """
import socket

import aiohttp
import pytest

from agentloop.messages import ModelRequest, UserMessage
from agentloop.testing import Answer, reply
from agentloop.testing.fixtures import NetworkUsed


def test_outside_addresses_are_refused(no_network):
    with socket.socket() as client:
        for connect in (client.connect, client.connect_ex):
            with pytest.raises(NetworkUsed, match="192.0.2.1"):
                connect(("192.0.2.1", 80))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client, pytest.raises(NetworkUsed):
        client.sendto(b"x", ("192.0.2.1", 53))
    with pytest.raises(NetworkUsed, match="example.org"):
        socket.getaddrinfo("example.org", 80)


def test_loopback_is_allowed(no_network):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            pass
        with socket.socket() as client:
            assert client.connect_ex(address) == 0
    socket.getaddrinfo("localhost", 80)


def test_without_the_fixture_nothing_is_guarded():
    assert socket.socket.connect.__name__ == "connect"


async def test_a_replay_server_answers_on_loopback(no_network, replay_server):
    replay_server.script(Answer.error(429, {"error": {"message": "slow down"}}))
    async with aiohttp.ClientSession() as session:
        async with session.post(replay_server.url + "/chat/completions", json={}) as response:
            assert response.status == 429
    assert len(replay_server.requests) == 1


async def test_a_scripted_provider_is_made(scripted):
    provider = scripted([reply("x")])
    async with provider.stream(ModelRequest(messages=(UserMessage(content="x"),)), attempt_id="a") as stream:
        assert (await stream.reply()).text == "x"
"""

FAILING = """
from agentloop.testing import reply


def test_that_asks_nothing(scripted):
    scripted([reply("never asked for")])
"""


def session(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        f"cache_dir={folder}/cache",
        "-o",
        "asyncio_mode=auto",
        str(folder),
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False)


def test_the_fixtures_work_in_a_project_that_names_the_plugin(tmp_path: Path) -> None:
    done = session(tmp_path, PASSING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_script_that_was_not_used_up_fails_the_test_that_made_it(tmp_path: Path) -> None:
    done = session(tmp_path, FAILING)
    assert done.returncode == 1
    assert "ScriptError: script: expected 1 requests, got 0" in done.stdout


def test_the_testing_package_itself_needs_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import agentloop.testing"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=50)
