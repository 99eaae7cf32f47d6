"""A runtime dies at every append of a run of three tools; another one takes the run up."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

import agentloop as al
from agentloop.exchange import SendEnded, SendStarted, SlotMoved
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.mortal import Ground
from tests.runs import follow_all, pairs_in

APPENDS = 11
"""Origin; claim and reply of three model calls; the answers of three tools; the end. A tool's claim is in
the append before its own."""

When = Literal["before", "after"]
POINTS = [(at, when) for at in range(1, APPENDS + 1) for when in ("before", "after")]
LOST_SENDS = {(3, "before"), (7, "before"), (10, "before")}
"""The request has left, and its reply is not stored."""

UNSETTLED = {
    (2, "after"): ("send", None, None),
    (3, "before"): ("send", None, None),
    (3, "after"): ("call", "look", "0.0"),
    (4, "before"): ("call", "look", "0.0"),
    (4, "after"): ("call", "pay", "0.1"),
    (5, "before"): ("call", "pay", "0.1"),
    (6, "after"): ("send", None, None),
    (7, "before"): ("send", None, None),
    (7, "after"): ("call", "mail", "1.0"),
    (8, "before"): ("call", "mail", "1.0"),
    (9, "after"): ("send", None, None),
    (10, "before"): ("send", None, None),
}


class Ran(NamedTuple):
    """One execution of a tool."""

    tool: str
    effect_id: str
    attempt: int


@al.tool(idempotent=True)
async def look(ctx: al.ToolContext[list[Ran]]) -> str:
    """Look something up."""
    ctx.deps.append(Ran("look", ctx.effect_id, ctx.attempt))
    return "seen"


@al.tool
async def pay(ctx: al.ToolContext[list[Ran]]) -> str:
    """Pay."""
    ctx.deps.append(Ran("pay", ctx.effect_id, ctx.attempt))
    return "paid"


@al.tool
async def mail(ctx: al.ToolContext[list[Ran]]) -> str:
    """Send a mail."""
    ctx.deps.append(Ran("mail", ctx.effect_id, ctx.attempt))
    return "sent"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[look, pay, mail])
ANSWERED = [("1", "seen"), ("2", "paid"), ("3", "sent")]


def answer(request: al.ModelRequest) -> Any:
    """Two calls, one call, a text: by what is in the request, not by how often it came."""
    match len(request.exchanges):
        case 0:
            return reply(calls=[call("look", call_id="1"), call("pay", call_id="2")])
        case 1:
            return reply(calls=[call("mail", call_id="3")])
    return reply("done")


def model() -> ScriptedProvider:
    return ScriptedProvider([answer] * 10)


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


async def settle(runtime: al.Runtime, item: al.Unsettled, ran: list[Ran]) -> None:
    """What a host does that looks at the world: it knows what was sent, and which tools ran."""
    if item.kind == "send":
        await runtime.settle_send("r", item.effect_id, author="host")
        return
    assert (item.exchange, item.position) != (None, None)
    done = any(one.effect_id == item.effect_id for one in ran)
    words = {"pay": "paid", "mail": "sent"}[str(item.tool)]
    result = al.ToolResult.ok(words) if done else None
    await runtime.settle_call("r", item.exchange or 0, item.position or 0, author="host", result=result)


async def facts_hold(ground: Ground, ran: list[Ran]) -> None:
    """Each claim stands once, and each execution has its claim."""
    facts = await ground.facts()
    sends = [fact.attempt_id for fact in facts if isinstance(fact, SendStarted)]
    assert len(set(sends)) == len(sends)
    assert sorted(fact.attempt_id for fact in facts if isinstance(fact, SendEnded)) == sorted(sends)
    claims = Counter(
        (fact.effect_id, fact.attempt) for fact in facts if isinstance(fact, SlotMoved) and fact.state == "started"
    )
    assert set(claims.values()) == {1}
    assert {(one.effect_id, one.attempt) for one in ran} <= set(claims)


@pytest.mark.parametrize(("at", "when"), POINTS)
async def test_nothing_is_sent_or_run_twice_wherever_a_process_dies(ground: Ground, at: int, when: When) -> None:
    """The four points of recovery: nothing is guessed, and what is stored is not done again (R132-R136).

    We do not claim that a tool bears a second run: only one that says so gets it (R8), and whether
    to send again is nobody's decision but the host's (R6).
    """
    ran: list[Ran] = []
    first, second = model(), model()
    async with ground.mortal(first, at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(AGENT, "go", run_id="r", deps=ran))
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(second) as runtime:
            if (at, when) == (1, "before"):
                assert await runtime.unfinished() == []
                with pytest.raises(al.LostError):
                    await runtime.resume("r", AGENT, deps=ran)
                assert second.requests == []
            else:
                await live_on(runtime, second, ran, UNSETTLED.get((at, when)), ended=(at, when) == (APPENDS, "after"))
                sent = len(first.requests) + len(second.requests)
                assert sent == 3 + ((at, when) in LOST_SENDS)
                times = Counter(one.tool for one in ran)
                assert times == {"look": 1 + ((at, when) == (4, "before")), "pay": 1, "mail": 1}
                assert {one.effect_id for one in ran} == {"r/0.0", "r/0.1", "r/1.0"}
                await facts_hold(ground, ran)
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def live_on(
    runtime: al.Runtime,
    provider: ScriptedProvider,
    ran: list[Ran],
    expected: tuple[str, str | None, str | None] | None,
    *,
    ended: bool,
) -> None:
    assert [row.run_id for row in await runtime.unfinished()] == ([] if ended else ["r"])
    found = await runtime.unsettled()
    got = [(one.kind, one.tool, f"{one.exchange}.{one.position}" if one.kind == "call" else None) for one in found]
    assert got == ([] if expected is None else [expected])
    if expected is not None and expected[1] != "look":  # that one is idempotent
        before = len(ran)
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.resume("r", AGENT, deps=ran)
        assert caught.value.sends == ((found[0].effect_id,) if found[0].kind == "send" else ())
        assert caught.value.calls == ((expected[2],) if found[0].kind == "call" else ())
        assert (provider.requests, len(ran)) == ([], before)
        assert [one.effect_id for one in await runtime.unsettled()] == [found[0].effect_id]
        await settle(runtime, found[0], ran)
        (again,) = await runtime.unsettled() or [None]
        assert again is None or (again.rerun and again.effect_id == found[0].effect_id)
    result = await runtime.resume("r", AGENT, deps=ran)
    assert (result.outcome, result.text) == ("completed", "done")
    if provider.requests:
        assert pairs_in(provider.requests[-1]) == ANSWERED
    sent = len(provider.requests)
    assert await runtime.resume("r", AGENT, deps=ran) == result
    assert await runtime.result("r") == result
    assert len(provider.requests) == sent
    assert (await runtime.unfinished(), await runtime.unsettled()) == ([], [])


async def test_an_idempotent_tool_runs_again_under_the_same_id_and_the_next_number(ground: Ground) -> None:
    """We do not claim more for it than it declares: its second run is what it says it can bear (R65, R139)."""
    ran: list[Ran] = []
    async with ground.mortal(model(), at=4) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            await runtime.resume("r", AGENT, deps=ran)
    assert [one for one in ran if one.tool == "look"] == [Ran("look", "r/0.0", 1), Ran("look", "r/0.0", 2)]


@pytest.mark.parametrize(("at", "tool"), [(5, "pay"), (8, "mail")])
async def test_a_host_may_allow_one_more_run_of_a_tool_and_no_second_one(ground: Ground, at: int, tool: str) -> None:
    """Each decision is a fact with its author.

    We do not claim one transaction of a tool's effect and its fact: between the two a process can
    die, and then a host says what happened (R84).
    """
    ran: list[Ran] = []
    async with ground.mortal(model(), at=at) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.mortal(model(), at=4) as (second, other):  # unknown, allowed, started, then dead
            (item,) = await second.unsettled()
            await second.settle_call("r", item.exchange, item.position, author="Ann")
            ground.clock.advance(1)
            resumed = asyncio.create_task(second.resume("r", AGENT, deps=ran))
            await other.dead.wait()
            ground.clock.advance(31)
            async with ground.runtime(model()) as third:
                (item,) = await third.unsettled()
                assert (item.tool, item.attempt, item.rerun) == (tool, 2, False)
                with pytest.raises(al.UnsettledError):
                    await third.resume("r", AGENT, deps=ran)
                await third.settle_call("r", item.exchange, item.position, author="Bob", result=al.ToolResult.ok("x"))
                await third.resume("r", AGENT, deps=ran)
                slots = [slot for entry in third._store.book.turn("r").entries for slot in entry.slots]
                assert [slot.feedback.text for slot in slots if slot.call.name == tool] == ["x"]
            other.bury()
            await asyncio.wait({resumed})
            resumed.exception()
    assert [one for one in ran if one.tool == tool] == [Ran(tool, item.effect_id, 1), Ran(tool, item.effect_id, 2)]
    authors = [fact.author for fact in await ground.facts() if getattr(fact, "author", None)]
    assert authors == ["Ann", "Bob"]


async def test_a_hosts_word_that_is_too_large_for_the_run_is_refused_and_not_cut(ground: Ground) -> None:
    """A run's own limit is not stored, so the host says it (R98)."""
    ran: list[Ran] = []
    large = al.ToolResult.ok("x" * 5_000)
    async with ground.mortal(model(), at=5) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.runtime(model()) as runtime:
        with pytest.raises(al.LimitExceeded) as caught:
            await runtime.settle_call("r", 0, 1, author="Ann", result=large)
        assert (caught.value.limit, caught.value.allowed) == ("feedback_bytes", 4_096)
        assert 5_000 < caught.value.got < 5_100
        with pytest.raises(al.InputError, match="feedback_bytes: expected an integer from 256"):
            await runtime.settle_call("r", 0, 1, author="Ann", result=large, feedback_bytes=0)
        with pytest.raises(al.InputError, match=r"exchange: expected an integer from 0 to .*, got str"):
            await runtime.settle_call("r", "0", 1, author="Ann", result=large)  # type: ignore[arg-type]
        with pytest.raises(al.InputError, match=r"position: expected an integer from 0 to .*, got -1"):
            await runtime.settle_call("r", 0, -1, author="Ann", result=large)
        (item,) = await runtime.unsettled()
        assert item.tool == "pay"
        await runtime.settle_call("r", 0, 1, author="Ann", result=large, feedback_bytes=8_192)
        assert await runtime.unsettled() == []
        slot = runtime._store.book.turn("r").entries[0].slots[1]
        assert slot.feedback is not None
        assert slot.feedback.text == large.text


async def test_an_owner_that_was_away_too_long_cannot_write_any_more(ground: Ground) -> None:
    """(R83)"""
    ran: list[Ran] = []
    async with ground.mortal(model(), at=5) as (away, medium):  # pay has run; its answer is on the way
        await away.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            await runtime.settle_call("r", 0, 1, author="host", result=al.ToolResult.ok("settled"))
            await runtime.resume("r", AGENT, deps=ran)
            facts = await ground.facts()
            medium.come_back()
            with pytest.raises(al.NotOwnerError):
                await away._runs.live["r"].wait()
            assert await ground.facts() == facts
            assert away._store.fault is None  # it was refused, and harmed nobody else
            assert (await away.result("r")).outcome == "completed"
            await away.run(al.Agent(name="b"), "other", run_id="s")


async def test_a_claim_that_comes_back_late_runs_nothing(ground: Ground) -> None:
    ran: list[Ran] = []
    async with ground.mortal(model(), at=4) as (away, medium):
        await away.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            await runtime.resume("r", AGENT, deps=ran)
            medium.come_back()
            with pytest.raises(al.NotOwnerError):
                await away._runs.live["r"].wait()
    assert Counter(one.tool for one in ran) == {"look": 2, "pay": 1, "mail": 1}


async def test_a_run_that_lives_is_refused_and_its_end_is_told(ground: Ground) -> None:
    async with ground.mortal(model(), at=5) as (owner, medium):
        await owner.submit(AGENT, "go", run_id="r", deps=[])
        await medium.dead.wait()
        ground.clock.advance(10)
        async with ground.runtime(model()) as runtime:
            for attempt in (
                runtime.resume("r", AGENT, deps=[]),
                runtime.run(AGENT, "go", run_id="r", deps=[]),
                runtime.settle_call("r", 0, 1, author="host"),
            ):
                with pytest.raises(al.NotOwnerError, match=r"for 20\.\d+ s more") as caught:
                    await attempt
                assert (caught.value.owner, caught.value.seconds_left) == (owner._runs._owner, 20.0)
            (row,) = await runtime.unfinished()
            assert row.lease is not None
            assert row.lease.owner == owner._runs._owner
            assert await runtime.unsettled() == []  # it goes on, as far as anybody knows
            with pytest.raises(al.OutcomeError, match="running"):
                await runtime.result("r")


async def test_the_same_start_takes_up_what_died(ground: Ground) -> None:
    """(R82)"""
    ran: list[Ran] = []
    async with ground.mortal(model(), at=9) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = model()
        async with ground.runtime(provider) as runtime:
            with pytest.raises(al.ConflictError, match="expected the input this run was started with"):
                await runtime.run(AGENT, "something else", run_id="r", deps=ran)
            results = await asyncio.gather(*(runtime.run(AGENT, "go", run_id="r", deps=ran) for _ in range(3)))
            assert [result.text for result in results] == ["done"] * 3
            assert len(provider.requests) == 1
    assert Counter(one.tool for one in ran) == {"look": 1, "pay": 1, "mail": 1}


async def test_many_who_resume_at_once_run_it_once(ground: Ground) -> None:
    ran: list[Ran] = []
    async with ground.mortal(model(), at=4) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = model()
        async with ground.runtime(provider) as runtime:
            results = await asyncio.gather(*(runtime.resume("r", AGENT, deps=ran) for _ in range(4)))
            assert {result.text for result in results} == {"done"}
    assert Counter(one.tool for one in ran) == {"look": 2, "pay": 1, "mail": 1}
    assert len(provider.requests) == 2


FAILURE = al.ConnectionLost("gone")


@pytest.mark.parametrize(
    ("script", "at", "reason"),
    [
        ([FAILURE], 4, "connection_lost"),  # origin, claim, failure; the end is not stored
        ([broken(reply("half"), FAILURE)], 4, "connection_lost"),
        ([reply(calls=[call("crash"), call("look")])], 5, "tool_crashed"),  # nothing of the second call yet
        ([reply(calls=[call("crash"), call("look")])], 6, "tool_crashed"),  # the second call is skipped
    ],
)
async def test_a_failure_that_was_stored_is_not_tried_again(
    ground: Ground, script: list[Any], at: int, reason: str
) -> None:
    """(R63, R142, R138)"""
    ran: list[Ran] = []

    @al.tool
    async def crash() -> str:
        """Crash."""
        raise LookupError("x")

    agent = al.Agent(name="a", tools=[crash, look])
    async with ground.mortal(ScriptedProvider(script), at=at) as (dying, medium):
        await dying.submit(agent, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = model()
        async with ground.runtime(provider) as runtime:
            assert await runtime.unsettled() == []
            with pytest.raises(al.OutcomeError) as caught:
                await runtime.resume("r", agent, deps=ran)
            assert (caught.value.outcome, caught.value.reason) == ("failed", reason)
            assert await runtime.unfinished() == []
    assert (provider.requests, ran) == ([], [])


async def test_a_cancel_that_was_being_stored_stays_a_cancel(ground: Ground) -> None:
    ready = asyncio.Event()

    @al.tool
    async def wait(ctx: al.ToolContext[list[Ran]]) -> str:
        """Wait."""
        ready.set()
        await asyncio.Event().wait()
        return ""

    agent = al.Agent(name="a", tools=[wait, look])
    script = [reply(calls=[call("wait"), call("look"), call("look")])]
    ran: list[Ran] = []
    async with ground.mortal(ScriptedProvider(script), at=6) as (dying, medium):  # at the second call that is skipped
        await dying.submit(agent, "go", run_id="r", deps=ran)
        await ready.wait()
        cancel = asyncio.create_task(dying.cancel("r"))
        await medium.dead.wait()
        ground.clock.advance(31)
        provider = model()
        async with ground.runtime(provider) as runtime:
            with pytest.raises(al.OutcomeError, match=r"got cancelled \(cancelled\)"):
                await runtime.resume("r", agent, deps=ran)
        medium.bury()
        await cancel
    assert (provider.requests, ran) == ([], [])


async def test_a_limit_that_was_being_stored_stays_a_limit(ground: Ground) -> None:
    """(R102)"""
    agent = al.Agent(name="a", tools=[look], limits=al.LoopLimits(max_tool_calls=1))
    script = [reply(calls=[call("look"), call("look")])]
    ran: list[Ran] = []
    async with ground.mortal(ScriptedProvider(script), at=5) as (dying, medium):
        await dying.submit(agent, "go", run_id="r", deps=ran)
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            result = await runtime.resume("r", agent, deps=ran)
    assert (result.outcome, result.reason, ran) == ("limit_reached", "max_tool_calls", [])


async def test_a_lost_call_that_no_budget_is_left_to_repeat_ends_in_the_limit_and_says_that_it_is_unknown(
    ground: Ground,
) -> None:
    """(R102, R139)"""
    agent = al.Agent(name="a", tools=[look], limits=al.LoopLimits(max_tool_calls=2))
    script = [reply(calls=[call("look"), call("look")])]
    ran: list[Ran] = []
    async with ground.mortal(ScriptedProvider(script), at=4) as (dying, medium):  # the first has run
        await dying.submit(agent, "go", run_id="r", conversation="c", deps=ran)
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.mortal(model(), at=3) as (dying, medium):  # lost, started, and its answer is not stored again
        resumed = asyncio.create_task(dying.resume("r", agent, deps=ran))
        await medium.dead.wait()
        medium.bury()
        await asyncio.wait({resumed})
        resumed.exception()
    ground.clock.advance(31)
    provider = ScriptedProvider([reply("I see.")])
    async with ground.runtime(provider) as runtime:
        result = await runtime.resume("r", agent, deps=ran)
        assert (result.outcome, result.reason) == ("limit_reached", "max_tool_calls")
        assert (await runtime.unsettled(), provider.requests) == ([], [])
        told = [event for event in await follow_all(runtime, "r") if isinstance(event, al.ToolSkipped)]
        assert [(event.slot, event.code) for event in told] == [
            ("unknown", "max_tool_calls"),
            ("skipped", "max_tool_calls"),
        ]
        await runtime.run(agent, "again", conversation="c", deps=ran)
        words = "the run reached its limit (max_tool_calls)"
        assert [text for _, text in pairs_in(provider.requests[0])] == [
            f"Error: {words}; whether the effect of this call happened is unknown.",
            f"This call was not run: {words}.",
        ]
    assert [one.attempt for one in ran] == [1, 2]


async def test_a_selection_whose_process_died_is_built_again(ground: Ground) -> None:
    """It has no effect, so nobody is asked; a refused refinement is feedback, and the run goes on (R175, R184)."""
    seen: list[int] = []

    @al.selection(refine=(lambda n: "n is odd" if n % 2 else None,))
    def choose(n: int) -> dict[str, int]:
        seen.append(n)
        return {"n": n}

    agent = al.Agent(name="a", tools=[choose])
    calls = [call("choose", call_id="1", n=2), call("choose", call_id="2", n=3)]
    first, second = ScriptedProvider([reply(calls=calls)]), ScriptedProvider([reply("done")])
    async with ground.mortal(first, at=4) as (dying, medium):  # it was built, and its answer is lost
        await dying.submit(agent, "go", run_id="r")
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(second) as runtime:
            result = await runtime.resume("r", agent)
    assert (result.text, seen) == ("done", [2, 2])
    words = "Nothing ran. The arguments are not accepted: n is odd. Correct the arguments and call it again."
    assert pairs_in(second.requests[0]) == [("1", '{"n":2}'), ("2", words)]
