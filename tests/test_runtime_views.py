"""Runs and conversations as a person looks at them, and runs that are taken up for nobody who waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import agentloop as al
from agentloop.errors import InputError, LostError
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.mortal import Ground


@al.tool(approval="required", recovery="settle")
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


AGENT = al.Agent(name="clerk", instructions="Be brief.", tools=[pay])
PAYS = reply("I will.", calls=[call("pay", to="Ann", call_id="1")], usage=(3, 2))


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


async def test_a_run_is_looked_at_from_its_facts_by_another_runtime(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([PAYS])) as runtime:
        await runtime.run(AGENT, "go", run_id="r", conversation="c")
    async with ground.runtime(ScriptedProvider([])) as runtime:
        view = await runtime.view("r")
        assert await runtime.turns("c") == [view]
        assert not runtime.is_live("r")
    assert (view.run_id, view.conversation, view.agent, view.state, view.waiting) == (
        "r",
        "c",
        "clerk",
        "unfinished",
        1,
    )
    assert [(message.role, message.text) for message in view.messages] == [("system", "Be brief."), ("user", "go")]
    (attempt,) = view.attempts
    assert attempt.reply is not None
    assert (attempt.state, attempt.reply.text, attempt.usage) == ("replied", "I will.", al.Usage(3, 2, 5))
    assert [(one.tool, one.arguments, one.state) for one in view.calls] == [("pay", '{"to":"Ann"}', "waiting")]


async def test_all_turns_of_a_conversation_are_looked_at_in_order(ground: Ground) -> None:
    script = [reply("one"), broken(reply("tw"), al.ConnectionLost("gone")), reply("three")]
    async with ground.runtime(ScriptedProvider(script)) as runtime:
        await runtime.run(AGENT, "1", conversation="c", run_id="a")
        with pytest.raises(al.ConnectionLost):
            await runtime.run(AGENT, "2", conversation="c", run_id="b")
        await runtime.run(AGENT, "3", conversation="c", run_id="d")
        found = [(view.run_id, view.state, view.messages[-1].text) for view in await runtime.turns("c")]
        (exchange, *_) = await runtime.exchanges("c")
        await runtime.branch("c", exchange, "e")
        (branch,) = await runtime.turns("e")
    assert found == [("a", "completed", "1"), ("b", "failed", "2"), ("d", "completed", "3")]
    assert (branch.kind, branch.state, branch.source) == ("branch", "branched", "c")


async def test_what_is_not_there_cannot_be_looked_at(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(LostError, match="run 'r'"):
            await runtime.view("r")
        with pytest.raises(LostError, match="conversation 'c'"):
            await runtime.turns("c")
        assert not runtime.is_live("r")


async def test_a_run_is_live_while_it_goes_on_here(ground: Ground) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: al.ModelRequest) -> al.ModelReply:
        asked.set()
        await answer.wait()
        return reply("done")

    async with ground.runtime(ScriptedProvider([slow])) as runtime:
        ref = await runtime.submit(AGENT, "go", run_id="r")
        await asked.wait()
        assert runtime.is_live(ref)
        answer.set()
        await runtime.result(ref)
        assert not runtime.is_live(ref)


async def test_a_run_is_taken_up_for_nobody_who_waits(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([PAYS])) as runtime:
        waiting = (await runtime.run(AGENT, "go", run_id="r")).waiting
    async with ground.runtime(ScriptedProvider([reply("Paid.")])) as runtime:
        await runtime.take_up("r", AGENT, decisions={waiting[0].ref: al.Approve(author="Ann")})
        follower = runtime.follow("r")
        types = [event.type async for event in follower]
        assert (types[0], types[-1]) == ("run.started", "run.ended")
        assert "tool.started" in types
        result = await runtime.result("r")
        assert result.text == "Paid."
        await runtime.take_up("r", AGENT)  # it has ended: nothing runs


async def test_a_run_that_was_taken_up_is_left_unfinished_when_the_runtime_closes(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "store.db")
    async with ground.runtime(ScriptedProvider([PAYS])) as runtime:
        waiting = (await runtime.run(AGENT, "go", run_id="r")).waiting
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: al.ModelRequest) -> al.ModelReply:
        asked.set()
        await answer.wait()
        return reply("Paid.")

    async with ground.runtime(ScriptedProvider([slow])) as runtime:
        await runtime.take_up("r", AGENT, decisions={waiting[0].ref: al.Approve()})
        await asked.wait()
        assert (await runtime.view("r")).state == "running"
        closing = asyncio.ensure_future(runtime.aclose())
        answer.set()  # the send under way is brought to its end, and the reply kept
        await closing
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert (await runtime.view("r")).attempts[-1].state == "replied"
        assert (await runtime.resume("r", AGENT)).text == "Paid."


async def test_taking_up_takes_no_patience(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(InputError, match="take_up: expected no wait"):
            await runtime.take_up("r", AGENT, wait=3)
        with pytest.raises(LostError):
            await runtime.take_up("r", AGENT)
