"""The chat components of the real ``ai`` package, version 7, against a real backend on a loopback socket."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.integrations.web import SERVICE, Service, WebLimits, chat_app
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.integrations.held import HeldProvider
from tests.integrations.web.backend import Gate, serving

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

CLIENT = Path(__file__).parent / "ai_sdk" / "client.mjs"


@al.tool(idempotent=True)
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


@al.tool(approval="required", recovery="settle")
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


@al.external
def locate(what: str) -> str:
    """Find out where something is."""


CLERK = al.Agent(name="clerk", instructions="Be brief.", tools=[look, pay, locate])
PAYS = reply("I shall pay.", calls=[call("pay", to="Ann")])


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's script, beside an installed ``ai`` package."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.fail("expected npm and node on the path, to install and run the ai package; found not both")
    home = tmp_path_factory.mktemp("ai_sdk")
    command = [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", "ai@7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return Path(shutil.copy(CLIENT, home))


@asynccontextmanager
async def backend(
    script: Sequence[Any] | ScriptedProvider,
    *,
    agent: al.Agent[Any] = CLERK,
    store: Path | None = None,
    deltas: int | None = None,
) -> AsyncIterator[tuple[str, Service]]:
    """A chat backend with the transport's routes: its address, and its service."""
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script, deltas=deltas)
    async with al.Runtime(provider, store=store, settle_seconds=0.01) as runtime:
        app = chat_app(runtime, [agent], auth=None, limits=WebLimits(drain_seconds=0.01))
        async with serving(runtime, app=app) as served:
            yield served.url, app[SERVICE]


async def ran(
    client: Path, url: str, scenario: str, act: Callable[[], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """What a scenario of the client came to; ``act`` is done where the client waits for that."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(client),
        url,
        scenario,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async for line in process.stdout:
            said = json.loads(line)
            if "result" in said:
                result: dict[str, Any] = said["result"]
                return result
            assert act is not None, said
            await act()
            process.stdin.write(b"done\n")
        pytest.fail((await process.stderr.read()).decode())
    finally:
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:  # it ended just now
                pass
            await process.wait()


def parts_of(message: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The parts of a message in short: their kinds, and what tells them apart."""
    short: list[tuple[Any, ...]] = []
    for part in message["parts"]:
        match part["type"]:
            case "text":
                short.append(("text", part["text"], part["state"]))
            case "dynamic-tool":
                short.append((part["toolName"], part["input"], part["state"], part.get("output")))
            case "data-withdrawn":
                short.append(("withdrawn", part["data"]["code"]))
            case kind:
                short.append((kind,))
    return short


STEP = ("step-start",)
LOOKED = [
    STEP,
    ("text", "Let me look.", "done"),
    ("look", {"what": "it"}, "output-available", "saw it"),
    STEP,
    ("text", "Seen.", "done"),
]


async def test_a_turn_with_a_tool_becomes_one_message(client: Path) -> None:
    script = [reply("Let me look.", calls=[call("look", what="it")], usage=(5, 2)), reply("Seen.", usage=(7, 1))]
    async with backend(script, deltas=2) as (url, _):
        said = await ran(client, url, "send")
    user, answer = said["messages"]
    assert answer["id"] == f"{user['id']}.reply"
    assert parts_of(answer) == LOOKED
    assert answer["metadata"] == {"usage": {"inputTokens": 12, "outputTokens": 3, "totalTokens": 15}}
    assert said["finished"] == {"finishReason": "stop", "isError": False, "isAbort": False, "isDisconnect": False}
    assert (said["status"], said["posts"]) == ("ready", 1)
    assert [(part["type"], part["data"]["outcome"]) for part in said["data"]] == [("data-turn", "completed")]


async def test_every_chunk_is_one_that_the_packages_schema_knows(client: Path) -> None:
    refused = call("look", arguments_text='{"wrong": 123456789012345678901234567890}')
    script = [
        reply("Let me look.", calls=[call("look", what="it"), refused, call("nothing", arguments_text="[")]),
        reply("Now.", calls=[call("pay", to="Ann")]),
    ]
    async with backend(script, deltas=2) as (url, _):
        said = await ran(client, url, "chunks")
    assert {"tool-input-available", "tool-input-error", "tool-output-error", "tool-approval-request"} < set(
        said["kinds"]
    )
    assert said["kinds"][-1] == "finish"
    states = [part["state"] for part in said["message"]["parts"] if part["type"] == "dynamic-tool"]
    assert states == ["output-available", "output-error", "output-error", "approval-requested"]


@pytest.mark.parametrize(
    ("scenario", "state", "output"), [("approve", "output-available", "paid Ann"), ("deny", "output-denied", None)]
)
async def test_an_answer_is_sent_by_itself_and_the_same_message_goes_on(
    client: Path, scenario: str, state: str, output: str | None
) -> None:
    async with backend([PAYS, reply("So be it.")]) as (url, _):
        said = await ran(client, url, scenario)
    assert [part["state"] for part in said["asked"] if part["type"] == "dynamic-tool"] == ["approval-requested"]
    _, answer = said["messages"]
    assert parts_of(answer) == [
        STEP,
        ("text", "I shall pay.", "done"),
        ("pay", {"to": "Ann"}, state, output),
        STEP,
        ("text", "So be it.", "done"),
    ]
    assert (said["status"], said["posts"]) == ("ready", 2)


async def test_a_call_of_an_agent_below_is_approved_in_the_message_of_the_one_above(client: Path) -> None:
    payer = al.Agent(name="payer", instructions="Pay.", tools=[pay])
    have = al.delegate(payer, name="have_paid", description="Have it paid.", tools=["pay"])
    boss = al.Agent(name="boss", instructions="Order.", tools=[have])
    script = [reply(calls=[call("have_paid", task="Ann")]), PAYS, reply("Ann has it."), reply("Done.")]
    async with backend(script, agent=boss) as (url, _):
        said = await ran(client, url, "approve")
    _, answer = said["messages"]
    assert parts_of(answer) == [
        STEP,
        ("have_paid", {"task": "Ann"}, "output-available", "Ann has it."),
        ("pay", {"to": "Ann"}, "output-available", {"decision": "approved"}),
        STEP,
        ("text", "Done.", "done"),
    ]
    assert (said["status"], said["posts"]) == ("ready", 2)


async def test_a_client_runs_the_call_that_is_its_own(client: Path) -> None:
    script = [reply(calls=[call("look", what="it"), call("locate", what="it")]), reply("In room 5.")]
    async with backend(script) as (url, _):
        said = await ran(client, url, "external")
    _, answer = said["messages"]
    assert parts_of(answer) == [
        STEP,
        ("look", {"what": "it"}, "output-available", "saw it"),
        ("locate", {"what": "it"}, "output-available", '{"room":5}'),
        STEP,
        ("text", "In room 5.", "done"),
    ]
    assert (said["status"], said["posts"]) == ("ready", 2)


async def test_a_client_comes_back_in_the_middle_of_an_answer(client: Path, tmp_path: Path) -> None:
    """Once in the same chat, which has half of it, and once in one that was loaded again."""
    script = [reply("Let me look.", calls=[call("look", what="it")]), reply("One two three four.")]
    provider = HeldProvider(script, deltas=4, answer=2, after=2)

    async def go_on() -> None:
        provider.open.set()

    async with backend(provider, store=tmp_path / "chat.db") as (url, _):
        said = await ran(client, url, "reconnect", go_on)
    assert len(said["messages"]) == len(said["reloaded"]) == 2
    for messages in (said["messages"], said["reloaded"]):
        assert parts_of(messages[-1]) == [*LOOKED[:-1], ("text", "One two three four.", "done")]
    assert said["again"] is None
    assert said["posts"] == 1


async def test_a_page_that_is_loaded_again_asks_what_a_turn_of_another_process_waits_for(
    client: Path, tmp_path: Path
) -> None:
    store = tmp_path / "chat.db"
    async with backend([PAYS], store=store) as (url, _):
        await ran(client, url, "chunks")
    async with backend([reply("Paid.")], store=store) as (url, _):
        said = await ran(client, url, "reload")
    assert [part["state"] for part in said["asked"] if part["type"] == "dynamic-tool"] == ["approval-requested"]
    assert parts_of(said["messages"][-1])[-1] == ("text", "Paid.", "done")
    assert said["status"] == "ready"


async def test_a_preview_that_does_not_stand_goes_from_the_message_and_the_chat_is_in_error(client: Path) -> None:
    cut = al.StreamRefused("truncated", 0, 0, "an end", "none")
    script = [reply("Let me look.", calls=[call("look", what="it")]), broken(reply("Half an ans"), cut)]
    async with backend(script, deltas=2) as (url, _):
        said = await ran(client, url, "send")
    assert parts_of(said["messages"][-1]) == [*LOOKED[:4], ("withdrawn", "truncated")]
    assert (said["status"], said["error"]) == ("error", "truncated: The turn failed.")
    assert said["finished"]["isError"]


async def test_a_stream_that_the_server_cuts_off_does_not_look_finished(client: Path, tmp_path: Path) -> None:
    gate = Gate()
    script = [reply("Let me look.", calls=[call("look", what="it")]), gate(reply("Never."))]
    async with backend(script, store=tmp_path / "chat.db") as (url, service):
        said = await ran(client, url, "cut", service.drain)
    assert said["status"] == "error"
    assert said["isError"]


async def test_what_is_refused_before_the_stream_is_the_chats_error(client: Path) -> None:
    async with backend([]) as (url, _):
        said = await ran(client, url, "refused")
    assert said["status"] == "error"
    assert "turn: expected 1 to 40 of" in said["error"]
