"""A store for tests of the command: every state a run can be seen in, and texts that try to get out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import agentloop as al
from agentloop.exchange import Fact
from agentloop.messages import SystemMessage, Text, Usage, UserMessage
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider
from agentloop.testing import call as asked
from agentloop.testing import reply as scripted
from tests.exchange.desk import Desk
from tests.messages.values import call, reply
from tests.mortal import Ground

__all__ = [
    "HOSTILE",
    "fill",
    "fill_with_recovery",
    "fill_with_steers",
    "fill_with_waiting",
    "fill_with_waiting_agent",
    "left_behind",
]

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'single' \x1b[31m\u202e\0"


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    if text == "no":
        raise al.ToolFailed("not that")
    return f"noted {text}"


async def fill(path: Path) -> dict[str, str]:
    """Fill a SQLite store; ids of the runs by what they are."""
    agent = al.Agent(name="clerk", instructions="Be brief.", tools=[note])
    script = [
        scripted("On it.", calls=[asked("note", text="x"), asked("note", text="no"), asked("gone")]),
        scripted("All noted.", usage=Usage(input_tokens=1200, output_tokens=34, total_tokens=1234)),
        scripted("A side."),
        al.ConnectionFailed("no"),
        scripted(HOSTILE),
        scripted("secret"),
    ]
    runs = {}
    async with al.Runtime(ScriptedProvider(script), store=SQLiteBackend(path)) as host:
        runs["done"] = (await host.run(agent, "Note this.", conversation="talk")).ref
        first, _ = await host.exchanges("talk")
        await host.branch("talk", first, "aside")
        runs["branched"] = (await host.run(agent, "And that.", conversation="aside")).ref
        try:
            await host.run(agent, "Fail.", run_id="failing")
        except al.ConnectionFailed:
            runs["failed"] = "failing"
        runs["hostile"] = (await host.run(al.Agent(name="clerk"), HOSTILE, conversation=HOSTILE)).ref
        runs["redacted"] = (await host.run(agent, "secret", run_id="hidden")).ref
        await host.redact("hidden", author="Ada")
    backend = SQLiteBackend(path)
    await backend.open()
    for facts in left_behind():
        await backend.append(facts)
    await backend.close()
    return runs


async def fill_with_steers(path: Path) -> None:
    """Fill a SQLite store with a run, ``spoken``, that was spoken to before, between and after its model calls."""
    desk = Desk()
    turn = desk.open("spoken", UserMessage(content="first"))
    desk.steer(turn, "early")
    desk.take(turn, reply(call("a", name="pay"), word="tool_calls"))
    desk.steer(turn, f"{HOSTILE} between", author="Ada")
    desk.run(turn, 0, 0)
    desk.send(turn, "attempt-s")
    desk.add(desk.book.ask_stop(turn, author="Bob", at_ms=5))
    backend = SQLiteBackend(path)
    await backend.open()
    await backend.append(desk.facts)
    await backend.close()


def left_behind() -> Iterator[list[Fact]]:
    """Runs of a process that died: one in a send, one in a tool."""
    desk = Desk()
    desk.send(desk.open("sending", SystemMessage(content="s"), UserMessage(content="hi")), "attempt-s")
    yield desk.facts
    desk = Desk()
    turn = desk.open("calling", conversation="left")
    desk.take(turn, reply(Text(text="wait"), call("a", name="pay", arguments='{"n": -0}'), word="tool_calls"))
    desk.start(turn, 0, 0)
    yield desk.facts


async def find_payment(to: str) -> str:
    """What became of a payment."""
    return f"paid {to}"


@al.tool(recovery=find_payment)
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


@al.tool(recovery="settle")
async def mail(to: str) -> str:
    """Write to somebody."""
    return f"wrote {to}"


async def fill_with_recovery(path: Path) -> None:
    """Fill a SQLite store with runs of a process that died at several points, and one that was refused.

    ``refused`` was answered 429 and sent once more. ``found`` died in ``pay``, and its lookup said what
    became of it; ``mailing`` died in ``mail``, and ``asking`` in a send, and each waits for a host.
    """
    agent = al.Agent(name="cashier", instructions="Pay, then write.", tools=[pay, mail])
    ground = Ground(path)

    async def die(run_id: str, tool: str, *, at: int) -> None:
        provider = ScriptedProvider([scripted("On it.", calls=[asked(tool, to="Ann")])])
        async with ground.mortal(provider, at=at) as (dying, medium):
            run = asyncio.create_task(dying.run(agent, f"Please {tool} Ann.", run_id=run_id, checkpoint=True))
            await medium.dead.wait()
        await asyncio.wait({run})
        run.exception()
        ground.clock.advance(31)

    await die("asking", "pay", at=3)  # the reply is not stored
    await die("mailing", "mail", at=4)  # the answer of the tool is not stored
    await die("found", "pay", at=4)
    busy = al.HTTPStatusError("HTTP 429", status=429, retry_after=0.01)
    async with ground.runtime(
        ScriptedProvider([scripted("Ann is paid."), busy, scripted("Here I am.")]), resend=al.ResendPolicy()
    ) as runtime:
        await runtime.resume("found", agent)
        await runtime.run(agent, "Are you there?", run_id="refused", conversation="busy")


async def fill_with_waiting(path: Path) -> None:
    """Fill a SQLite store with a run of four calls: one was approved and ran, one was denied, two wait."""

    @al.tool(approval="required")
    async def pay(to: str) -> str:
        """Pay somebody."""
        return f"paid {to}"

    @al.external
    def ask(question: str) -> str:
        """Ask a person."""

    agent = al.Agent(name="clerk", tools=[pay, ask])
    calls = [asked("pay", to="Ann"), asked("pay", to="Bob"), asked("pay", to="Eve"), asked("ask", question=HOSTILE)]
    async with al.Runtime(ScriptedProvider([scripted(calls=calls)]), store=SQLiteBackend(path)) as host:
        ann, bob, _, _ = (await host.run(agent, "Pay.", run_id="paying")).waiting
        said: dict[str, al.Decision] = {ann.ref: al.Approve(author="Ada"), bob.ref: al.Deny("no", author="Bea")}
        await host.resume("paying", agent, decisions=said)


async def fill_with_waiting_agent(path: Path) -> None:
    """Fill a SQLite store with a run, ``asking``, that waits for the run of its agent, of which a call waits."""

    @al.external
    def ask(question: str) -> str:
        """Ask a person."""

    expert = al.Agent(name="expert", tools=[ask])
    tool = al.delegate(expert, name="research", description="Find out.", tools=["ask"])
    calls = [scripted(calls=[asked("research", task="t")]), scripted(calls=[asked("ask", question="Why?")])]
    async with al.Runtime(ScriptedProvider(calls), store=SQLiteBackend(path)) as host:
        await host.run(al.Agent(name="clerk", tools=[tool]), "Ask.", run_id="asking")
        await host.resume("asking", al.Agent(name="clerk", tools=[tool]))
