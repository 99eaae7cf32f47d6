"""A runtime dies while tools run; another one asks the resource what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import agentloop as al
from agentloop.exchange import RerunAllowed, SlotMoved
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.runs import NEXT, follow_all, pairs_in

When = Literal["before", "after"]


class Bank:
    """A resource that remembers what was done under which id.

    Attributes:
        done: effect id to what was paid. paid, asked: ids of the executions and of the lookups, in order.
        away: what a lookup raises, None while the bank answers.
    """

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self.paid: list[str] = []
        self.asked: list[str] = []
        self.away: Exception | None = None


async def find_payment(to: str, ctx: al.ToolContext[Bank]) -> str | al.NotDone:
    """What became of a payment."""
    ctx.deps.asked.append(ctx.effect_id)
    if ctx.deps.away is not None:
        raise ctx.deps.away
    return ctx.deps.done.get(ctx.effect_id, al.NOT_DONE)


@al.tool(recovery=find_payment)
async def pay(to: str, ctx: al.ToolContext[Bank]) -> str:
    """Pay somebody."""
    ctx.deps.paid.append(ctx.effect_id)
    return ctx.deps.done.setdefault(ctx.effect_id, f"paid {to}")


@al.tool(recovery="settle")
async def mail(to: str, ctx: al.ToolContext[Bank]) -> str:
    """Write to somebody."""
    ctx.deps.paid.append(ctx.effect_id)
    return f"wrote {to}"


AGENT = al.Agent(name="clerk", tools=[pay, mail])
ASKS = reply(calls=[call("pay", to="Ann", call_id="1"), call("pay", to="Bob", call_id="2")])


def answer(request: al.ModelRequest) -> Any:
    return reply("done") if request.exchanges else ASKS


def model() -> ScriptedProvider:
    return ScriptedProvider([answer] * 5)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db")


async def die(ground: Ground, bank: Bank, at: int, when: When = "before", *, script: Any = answer) -> None:
    """Leave run ``r`` behind, dead at an append: 3 and 4 claim a call of ``ASKS``, 4 and 5 answer it."""
    async with ground.mortal(ScriptedProvider([script] * 5), at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(AGENT, "go", run_id="r", deps=bank))
        await medium.dead.wait()
    await asyncio.wait({start})
    start.exception()
    ground.clock.advance(31)


@pytest.mark.parametrize(
    ("at", "when", "paid", "asked"),
    [
        (3, "after", ["r/0.0", "r/0.1"], ["r/0.0"]),  # claimed, and not run
        (4, "before", ["r/0.0", "r/0.1"], ["r/0.0"]),  # run, and not answered
        (4, "after", ["r/0.0", "r/0.1"], ["r/0.1"]),
        (5, "before", ["r/0.0", "r/0.1"], ["r/0.1"]),
        (5, "after", ["r/0.0", "r/0.1"], []),
    ],
)
async def test_each_payment_is_made_once_wherever_the_process_dies(
    ground: Ground, at: int, when: When, paid: list[str], asked: list[str]
) -> None:
    """(R134, R139)"""
    bank, provider = Bank(), model()
    await die(ground, bank, at, when)
    async with ground.runtime(provider) as runtime:
        result = await runtime.resume("r", AGENT, deps=bank)
        state = "new"
        for event in await follow_all(runtime, "r"):
            state = NEXT[state][event.type]
        assert state == "over"
    assert (result.outcome, result.text) == ("completed", "done")
    assert (bank.paid, bank.asked) == (paid, asked)
    assert pairs_in(provider.requests[-1]) == [("1", "paid Ann"), ("2", "paid Bob")]


async def test_what_a_lookup_found_is_stored_in_its_name_and_not_asked_for_again(ground: Ground) -> None:
    """(R134)"""
    bank = Bank()
    await die(ground, bank, 4)
    async with ground.mortal(model(), at=3) as (second, medium):  # lost, found, and dead at the next claim
        again = asyncio.create_task(second.resume("r", AGENT, deps=bank))
        await medium.dead.wait()
        medium.bury()
        await asyncio.wait({again})
        again.exception()
    ground.clock.advance(31)
    async with ground.runtime(model()) as third:
        result = await third.resume("r", AGENT, deps=bank)
    assert (result.tool_calls, bank.asked) == (2, ["r/0.0"])
    settled = [fact for fact in await ground.facts() if isinstance(fact, SlotMoved) and fact.author]
    assert [(fact.author, fact.state, fact.code) for fact in settled] == [("recovery:pay", "done", "settled")]


async def test_what_was_not_done_runs_with_the_same_id_and_the_next_number(ground: Ground) -> None:
    """(R134)"""
    bank = Bank()
    await die(ground, bank, 3, "after")
    async with ground.runtime(model()) as runtime:
        result = await runtime.resume("r", AGENT, deps=bank)
    facts = [fact for fact in await ground.facts() if isinstance(fact, SlotMoved | RerunAllowed) and fact.position == 0]
    assert [
        fact.author if isinstance(fact, RerunAllowed) else (fact.state, fact.effect_id, fact.attempt) for fact in facts
    ] == [
        ("started", "r/0.0", 1),
        ("unknown", "r/0.0", 1),
        "recovery:pay",
        ("started", "r/0.0", 2),
        ("done", "r/0.0", 2),
    ]
    assert result.tool_calls == 3  # the execution that was begun and lost is counted


async def test_a_lookup_that_fails_leaves_the_run_to_be_settled_and_is_asked_again_later(ground: Ground) -> None:
    """(R134, R138)"""
    bank, provider = Bank(), model()
    await die(ground, bank, 4)
    bank.away = OSError("no line")
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.resume("r", AGENT, deps=bank)
        assert (caught.value.calls, caught.value.__cause__) == (("0.0",), bank.away)
        (item,) = await runtime.unsettled()
        assert (item.effect_id, item.rerun) == ("r/0.0", False)
        (row,) = await runtime.unfinished()
        assert row.lease is None
        assert provider.requests == []
        bank.away = None
        assert (await runtime.resume("r", AGENT, deps=bank)).text == "done"
    assert (bank.paid, bank.asked) == (["r/0.0", "r/0.1"], ["r/0.0", "r/0.0"])


@pytest.mark.parametrize(
    ("result", "state"), [(al.ToolResult.ok("by hand"), "done"), (al.ToolResult.error("by hand"), "failed")]
)
async def test_a_host_may_settle_what_a_lookup_could_not(ground: Ground, result: al.ToolResult, state: str) -> None:
    bank, provider = Bank(), model()
    await die(ground, bank, 4)
    bank.away = OSError("no line")
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", AGENT, deps=bank)
        await runtime.settle_call("r", 0, 0, author="Ann", result=result)
        await runtime.resume("r", AGENT, deps=bank)
    assert pairs_in(provider.requests[-1])[0] == ("1", "by hand")
    (settled,) = [fact for fact in await ground.facts() if type(fact) is SlotMoved and fact.author == "Ann"]
    assert settled.state == state
    assert bank.asked == ["r/0.0"]


async def abandon(ground: Ground, bank: Bank, tools: Callable[..., Any]) -> None:
    """Leave run ``r`` behind with every call of its reply started; no run of one owner comes to that."""
    provider = ScriptedProvider([tools])
    async with ground.mortal(provider, at=3, when="after") as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=bank)
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        turn = await runtime._store.take_over("r", at_ms=1)
        for position in range(1, len(turn.entries[0].slots)):
            await runtime._store.commit(
                lambda book, at=position: book.start_slot(turn, 0, at, effect_id=f"r/0.{at}", at_ms=1), run_id="r"
            )
        await runtime._store.let_go("r")


async def test_what_lookups_find_is_stored_although_another_call_waits_for_a_host(ground: Ground) -> None:
    """(R134)"""
    bank, provider = Bank(), ScriptedProvider([reply("done")])
    calls = [call("mail", to="Cy", call_id="0"), call("pay", to="Ann", call_id="1"), call("pay", to="Bob", call_id="2")]
    await abandon(ground, bank, lambda request: reply(calls=calls))
    bank.done["r/0.2"] = "paid Bob"
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.resume("r", AGENT, deps=bank)
        assert (caught.value.calls, caught.value.__cause__) == (("0.0", "0.1"), None)
        assert (bank.asked, bank.paid) == (["r/0.1", "r/0.2"], [])
        assert [(item.tool, item.rerun) for item in await runtime.unsettled()] == [("mail", False), ("pay", True)]
        await runtime.settle_call("r", 0, 0, author="Ann", result=al.ToolResult.ok("wrote Cy"))
        await runtime.resume("r", AGENT, deps=bank)
    assert (bank.asked, bank.paid) == (["r/0.1", "r/0.2"], ["r/0.1"])
    assert pairs_in(provider.requests[-1]) == [("0", "wrote Cy"), ("1", "paid Ann"), ("2", "paid Bob")]


async def test_an_idempotent_tool_that_leaves_it_to_a_host_does_not_run_again(ground: Ground) -> None:
    """(R129)"""
    ran: list[str] = []

    @al.tool(idempotent=True, recovery="settle")
    async def look(ctx: al.ToolContext[Any]) -> str:
        """Look."""
        ran.append(ctx.effect_id)
        return "seen"

    agent = al.Agent(name="a", tools=[look])
    async with ground.mortal(ScriptedProvider([reply(calls=[call("look")])]), at=4) as (dying, medium):
        await dying.submit(agent, "go", run_id="r")
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", agent)
    assert ran == ["r/0.0"]


async def test_a_run_that_is_started_again_with_its_id_is_recovered_as_well(ground: Ground) -> None:
    bank = Bank()
    await die(ground, bank, 4)
    async with ground.runtime(model()) as runtime:
        assert (await runtime.run(AGENT, "go", run_id="r", deps=bank)).text == "done"
    assert (bank.paid, bank.asked) == (["r/0.0", "r/0.1"], ["r/0.0"])


async def test_a_run_is_cancelled_while_it_looks_up_and_stays_to_be_resumed(ground: Ground) -> None:
    """What became of the call is not known, so the run has no end yet."""
    bank, asked = Bank(), asyncio.Event()

    async def never(to: str) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    slow = al.tool(name="pay", recovery=never)(pay._function)
    agent = al.Agent(name="clerk", tools=[slow, mail])
    await die(ground, bank, 4)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        resumed = asyncio.create_task(runtime.resume("r", agent, deps=bank))
        await asked.wait()
        resumed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resumed
        assert [row.run_id for row in await runtime.unfinished()] == ["r"]
    async with ground.runtime(model()) as runtime:
        assert (await runtime.resume("r", AGENT, deps=bank)).text == "done"


async def test_a_limit_of_time_that_ends_a_lookup_leaves_the_run_to_be_settled(ground: Ground) -> None:
    bank = Bank()

    async def never(to: str) -> str:
        await asyncio.Event().wait()
        return ""

    slow = al.tool(name="pay", recovery=never)(pay._function)
    agent = al.Agent(name="clerk", tools=[slow, mail], limits=al.LoopLimits(max_seconds=0.05))
    await die(ground, bank, 4)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", agent, deps=bank)
        assert [item.effect_id for item in await runtime.unsettled()] == ["r/0.0"]


@pytest.mark.parametrize(
    ("at", "when", "kind"),
    [
        (1, "after", al.PreparedPoint),
        (2, "after", al.ModelPoint),
        (3, "before", al.ModelPoint),
        (3, "after", al.ToolsPoint),
        (5, "after", al.ToolsPoint),
        (6, "after", al.ModelPoint),
        (7, "after", al.ToolsPoint),
        (8, "after", al.CompletedPoint),
    ],
)
async def test_each_death_leaves_the_run_at_one_point_which_reading_does_not_move(
    ground: Ground, at: int, when: When, kind: type[Any]
) -> None:
    """(R132, R133, R134, R135)"""
    bank, provider = Bank(), ScriptedProvider([])
    await die(ground, bank, at, when)
    facts = await ground.facts()
    async with ground.runtime(provider) as runtime:
        point = await runtime.checkpoint("r")
        assert type(point) is kind
        assert await runtime.checkpoint("r") == point
        with pytest.raises(al.LostError):
            await runtime.checkpoint("nobody")
        if at < 8:
            (row,) = await runtime.unfinished()
            assert row.lease is None
    with pytest.raises(al.InputError, match="expected an open runtime"):
        await runtime.checkpoint("r")
    assert (await ground.facts(), provider.requests) == (facts, [])


async def test_a_point_names_the_attempt_and_the_executions_that_a_host_would_settle(ground: Ground) -> None:
    """(R133, R134)"""
    bank = Bank()
    await die(ground, bank, 4, "after")
    async with ground.runtime(ScriptedProvider([])) as runtime:
        point = await runtime.checkpoint("r")
        (item,) = await runtime.unsettled()
    assert isinstance(point, al.ToolsPoint)
    assert (point.exchange, point.cursor, point.feedback) == (0, 1, (0,))
    assert [(claim.effect_id, claim.state) for claim in point.effects] == [("r/0.0", "done"), ("r/0.1", "started")]
    assert item.effect_id == point.effects[1].effect_id
