"""Runs that wait for a host: suspended, found, decided about, resumed, by whichever process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
import agentloop.runs as runs_module
from agentloop.decisions import waiting_of
from agentloop.exchange import Fact, RunClosed, SlotMoved
from agentloop.testing import RecordingSink, ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.runs import body_of, check_order, follow_all, pairs_in


class Bank:
    """What the tools do.

    Attributes:
        paid: effect ids of the payments. looked: how often a balance was read.
    """

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.looked = 0


@al.tool(approval="required", recovery="settle")
async def pay(to: str, ctx: al.ToolContext[Bank]) -> str:
    """Pay somebody."""
    ctx.deps.paid.append(ctx.effect_id)
    return f"paid {to}"


@al.tool(idempotent=True)
async def balance(ctx: al.ToolContext[Bank]) -> str:
    """Look up the balance."""
    ctx.deps.looked += 1
    return "12"


@al.external
def ask(question: str) -> str:
    """Ask a person."""


AGENT = al.Agent(name="clerk", instructions="Be brief.", tools=[pay, balance, ask])
PAYS = reply(calls=[call("pay", to="Ann", call_id="1"), call("balance", call_id="2")])
BOTH = reply(calls=[call("pay", to="Ann", call_id="1"), call("ask", question="Why?", call_id="2")])


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


@pytest.fixture
def bank() -> Bank:
    return Bank()


def moves(facts: Sequence[Fact]) -> list[tuple[int, str, str | None, str | None]]:
    return [(fact.position, fact.state, fact.code, fact.author) for fact in facts if isinstance(fact, SlotMoved)]


async def suspended(ground: Ground, bank: Bank, script: Any = BOTH, **options: Any) -> tuple[al.WaitingCall, ...]:
    """What waits of run ``r``, whose process has ended."""
    async with ground.runtime(ScriptedProvider([script])) as runtime:
        result = await runtime.run(AGENT, "go", run_id="r", deps=bank, **options)
        assert result.outcome == "waiting_for_approval"
        return result.waiting


# -- suspended


async def test_a_run_is_suspended_when_nothing_is_left_but_what_waits(bank: Bank) -> None:
    """(R337)"""
    provider, sink = ScriptedProvider([PAYS, reply("Done.")]), RecordingSink()
    async with al.Runtime(provider) as runtime:
        async with runtime.start(AGENT, "go", deps=bank, sink=sink) as run:
            events = [event async for event in run]
            result = await run.result()
        check_order(events)
        end = events[-1]
        assert type(end) is al.RunEnded
        assert (end.outcome, end.reason) == ("waiting_for_approval", "approval")
        assert (result.outcome, result.reason, result.text) == ("waiting_for_approval", "approval", "")
        assert (result.model_calls, result.tool_calls, bank.looked, bank.paid) == (1, 1, 1, [])
        (item,) = result.waiting
        assert (item.run, item.agent, item.conversation, item.kind) == (result.ref, "clerk", None, "approval")
        assert (item.tool, item.arguments, item.call_id) == ("pay", '{"to":"Ann"}', "1")
        assert (item.exchange, item.position) == (0, 0)
        assert item.ref == f"{result.ref}/0.0:{item.digest}"
        assert item.at_ms is not None
        with pytest.raises(al.OutcomeError, match=r"got waiting_for_approval \(approval\)"):
            result.require_text()
        with pytest.raises(al.OutcomeError, match="waiting_for_approval"):
            result.require_value()
        assert await runtime.waiting() == [item]
        assert await runtime.result(result.ref) == result
        assert [event async for event in runtime.follow(result.ref)] == events
        assert await runtime.unsettled() == []
        facts = await runtime._store._backend.load_run(result.ref)
        assert not any(isinstance(fact, RunClosed) for fact in facts)
        done = await runtime.resume(result.ref, AGENT, deps=bank, decisions={item.ref: al.Approve(author="Ann")})
        assert (done.text, done.waiting, bank.paid) == ("Done.", (), [f"{result.ref}/0.0"])
        assert done.tool_calls == 2
    assert pairs_in(provider.requests[1]) == [("1", "paid Ann"), ("2", "12")]


async def test_text_raises_what_the_run_waits_for(bank: Bank) -> None:
    async with al.Runtime(ScriptedProvider([BOTH])) as runtime:
        with pytest.raises(al.OutcomeError) as caught:
            [text async for text in runtime.text(AGENT, "go", deps=bank)]
        assert caught.value.reason == "approval+external"


async def test_a_suspended_run_in_memory_is_not_dropped_while_it_waits(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runs_module, "_KEPT_RUNS", 2)
    provider = ScriptedProvider([PAYS, *[reply("hi")] * 5, reply("Done."), *[reply("hi")] * 5])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(AGENT, "go", deps=bank)
        for _ in range(5):
            await runtime.run(AGENT, "hi")
        assert await runtime.result(result.ref) == result
        assert [event.type async for event in runtime.follow(result.ref)][-1] == "run.ended"
        assert caplog.messages == []  # nobody tried
        done = await runtime.resume(result.ref, AGENT, deps=bank, decisions={result.waiting[0].ref: al.Approve()})
        assert done.text == "Done."
        for _ in range(5):
            await runtime.run(AGENT, "hi")
        with pytest.raises(al.LostError):  # it ended, and nobody had named it
            await runtime.result(result.ref)


async def test_a_suspended_run_in_memory_that_is_cancelled_is_dropped_in_its_turn(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "_KEPT_RUNS", 2)
    async with al.Runtime(ScriptedProvider([PAYS, *[reply("hi")] * 5])) as runtime:
        result = await runtime.run(AGENT, "go", deps=bank)
        await runtime.cancel(result.ref)
        for _ in range(5):
            await runtime.run(AGENT, "hi")
        assert not runtime._store.book.has_run(result.ref)


async def test_what_is_decided_is_seen_at_once_and_its_events_are_kept(bank: Bank) -> None:
    async with al.Runtime(ScriptedProvider([BOTH])) as runtime:
        result = await runtime.run(AGENT, "go", deps=bank)
        one, two = result.waiting
        await runtime.decide({two.ref: al.Answer("x")})
        left = await runtime.result(result.ref)
        assert (left.waiting, left.reason) == ((one,), "approval")
        assert [event.type async for event in runtime.follow(result.ref)][-1] == "run.ended"
        await runtime.decide({one.ref: al.Approve()})
        with pytest.raises(al.OutcomeError, match="got running"):
            await runtime.result(result.ref)


# -- another process


async def test_one_process_suspends_another_decides_and_a_third_one_resumes(ground: Ground, bank: Bank) -> None:
    """(R136, R337)"""
    waiting = await suspended(ground, bank)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert await runtime.waiting() == list(waiting)
        assert (await runtime.result("r")).waiting == waiting
        (row,) = await runtime.unfinished()
        assert (row.run_id, row.lease) == ("r", None)
        await runtime.decide({waiting[0].ref: al.Approve(author="Ann"), waiting[1].ref: al.Answer("Because.")})
        assert await runtime.waiting() == []
        with pytest.raises(al.OutcomeError, match="got running"):
            await runtime.result("r")
    assert bank.paid == []
    provider = ScriptedProvider([reply("Done.")])
    async with ground.runtime(provider) as runtime:
        result = await runtime.resume("r", AGENT, deps=bank)
        assert (result.text, result.tool_calls, bank.paid) == ("Done.", 1, ["r/0.0"])
    assert pairs_in(provider.requests[0]) == [("1", "paid Ann"), ("2", "Because.")]
    assert moves(await ground.facts()) == [
        (0, "waiting", "approval", None),
        (1, "waiting", "external", None),
        (0, "open", "approved", "Ann"),
        (1, "done", "answered", "host"),
        (0, "started", None, None),
        (0, "done", None, None),
    ]


async def test_a_denied_call_does_not_run_and_the_model_reads_why(ground: Ground, bank: Bank) -> None:
    (item,) = await suspended(ground, bank, PAYS)
    provider = ScriptedProvider([reply("Then not.")])
    async with ground.runtime(provider) as runtime:
        result = await runtime.resume("r", AGENT, deps=bank, decisions={item.ref: al.Deny("too much", author="Ann")})
        assert (result.text, bank.paid, result.tool_calls) == ("Then not.", [], 1)
    (exchange,) = provider.requests[0].exchanges
    assert exchange.feedback[0].status == "error"
    assert exchange.feedback[0].text == "This call was denied, and did not run. Reason: too much"


async def test_what_is_not_decided_goes_on_waiting(ground: Ground, bank: Bank) -> None:
    one, two = await suspended(ground, bank)
    async with ground.runtime(ScriptedProvider([reply("Done.")])) as runtime:
        again = await runtime.resume("r", AGENT, deps=bank)
        assert (again.waiting, again.reason) == ((one, two), "approval+external")
        left = await runtime.resume("r", AGENT, deps=bank, decisions={one.ref: al.Approve()})
        assert (left.outcome, left.reason, left.waiting) == ("waiting_for_approval", "external", (two,))
        assert bank.paid == ["r/0.0"]
        done = await runtime.resume("r", AGENT, deps=bank, decisions={two.ref: al.Answer(al.ToolResult.error("No."))})
        assert (done.text, bank.paid) == ("Done.", ["r/0.0"])


async def test_starting_it_again_reports_the_same(ground: Ground, bank: Bank) -> None:
    """(R82)"""
    waiting = await suspended(ground, bank)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        for _ in range(2):
            assert (await runtime.run(AGENT, "go", run_id="r", deps=bank)).waiting == waiting
            assert await runtime.submit(AGENT, "go", run_id="r", deps=bank) == "r"
            assert (await runtime.result("r")).waiting == waiting
        events = await follow_all(runtime, "r")
        assert [event.type for event in events] == ["run.started", "run.ended"] * 2


async def test_a_submitted_run_with_recovery_points_waits_as_any_other(ground: Ground, bank: Bank) -> None:
    """(R129, R134)"""
    async with ground.runtime(ScriptedProvider([BOTH, reply("Done.")])) as runtime:
        await runtime.submit(AGENT, "go", run_id="r", deps=bank, checkpoint=True)
        result = await runtime.result("r")
        assert result.outcome == "waiting_for_approval"
        point = await runtime.checkpoint("r")
        assert type(point) is al.ToolsPoint
        assert (point.cursor, point.waiting, point.effects) == (0, (0, 1), ())
    async with ground.runtime(ScriptedProvider([reply("Done.")])) as runtime:
        said = {item.ref: al.Answer("ok") for item in result.waiting}
        assert (await runtime.resume("r", AGENT, decisions=said)).text == "Done."
        assert bank.paid == []


# -- its conversation, its end


async def test_its_conversation_is_held_until_it_ends(ground: Ground, bank: Bank) -> None:
    waiting = await suspended(ground, bank, conversation="c")
    async with ground.runtime(ScriptedProvider([reply("Done."), reply("Next.")])) as runtime:
        rule = "got run 'r', which waits for a decision: decide and resume it, or cancel it"
        with pytest.raises(al.StaleHeadError, match=rule):
            await runtime.run(AGENT, "next", conversation="c")
        await runtime.resume("r", AGENT, deps=bank, decisions={item.ref: al.Deny() for item in waiting})
        assert (await runtime.run(AGENT, "next", conversation="c")).text == "Next."


async def test_cancelling_skips_what_waits_and_frees_the_conversation(ground: Ground, bank: Bank) -> None:
    """(R142)"""
    waiting = await suspended(ground, bank, conversation="c")
    async with ground.runtime(ScriptedProvider([reply("Next.")])) as runtime:
        await runtime.cancel("r")
        assert await runtime.waiting() == []
        with pytest.raises(al.OutcomeError, match="got cancelled"):
            await runtime.result("r")
        with pytest.raises(
            al.ConflictError, match="expected a call that waits for a decision, got one that is skipped"
        ):
            await runtime.decide({waiting[0].ref: al.Approve()})
        assert (await runtime.run(AGENT, "next", conversation="c")).text == "Next."
    assert bank.paid == []


async def test_leaving_the_block_of_a_run_leaves_it_waiting_and_cancelling_it_there_ends_it(bank: Bank) -> None:
    async with al.Runtime(ScriptedProvider([BOTH, BOTH])) as runtime:
        async with runtime.start(AGENT, "go", deps=bank) as run:
            await run.result()
        assert len(await runtime.waiting()) == 2
        async with runtime.start(AGENT, "go", deps=bank) as other:
            await other.result()
            await other.cancel()
            await other.cancel()
        assert {item.run for item in await runtime.waiting()} == {run.ref}


async def test_a_run_that_is_cancelled_while_another_call_runs_skips_what_waits(bank: Bank) -> None:
    """(R142)"""
    begun = asyncio.Event()

    @al.tool
    async def stall() -> str:
        """Never ends."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = al.Agent(name="clerk", tools=[pay, stall])
    script = [reply(calls=[call("pay", to="Ann"), call("stall")])]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        ref = await runtime.submit(agent, "go", deps=bank, run_id="r")
        await begun.wait()
        assert await runtime.waiting() == []  # it goes on here
        await runtime.cancel(ref)
        slots = runtime._store.book.turn("r").entries[0].slots
        assert [(slot.state, slot.code) for slot in slots] == [("skipped", "cancelled"), ("unknown", "cancelled")]


async def test_a_limit_skips_what_waits(bank: Bank) -> None:
    async def slow_clock() -> str:
        await asyncio.Event().wait()
        return ""

    agent = al.Agent(
        name="clerk",
        tools=[pay, al.tool(name="slow", description="Slow.")(slow_clock)],
        limits=al.LoopLimits(max_seconds=0.01),
    )
    script = [reply(calls=[call("pay", to="Ann"), call("slow")])]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        result = await runtime.run(agent, "go", deps=bank)
        assert (result.outcome, result.reason, result.waiting) == ("limit_reached", "max_seconds", ())


async def test_a_predicate_that_raises_ends_the_run_and_nothing_runs(bank: Bank) -> None:
    def broken(_arguments: dict[str, Any], _ctx: Any) -> bool:
        raise RuntimeError("no rules")

    @al.tool(approval=broken)
    async def send(to: str) -> str:
        """Send something."""
        raise AssertionError("it may not run")

    agent = al.Agent(name="clerk", tools=[send, pay])
    script = [reply(calls=[call("send", to="Ann"), call("pay", to="Bob")])]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        with pytest.raises(al.ApprovalFailed, match="got the error RuntimeError; the call did not run"):
            await runtime.run(agent, "go", deps=bank, run_id="r")
        turn = runtime._store.book.turn("r")
        assert turn.closed is not None
        assert (turn.closed.outcome, turn.closed.reason) == ("failed", "approval_failed")
        assert [(slot.state, slot.code) for slot in turn.entries[0].slots] == [("skipped", "approval_failed")] * 2


async def test_calls_that_run_at_the_same_time_pass_over_what_waits(ground: Ground, bank: Bank) -> None:
    meeting = asyncio.Barrier(2)

    @al.tool(approval="required")
    async def buy(what: str, ctx: al.ToolContext[Bank]) -> str:
        """Buy something."""
        await meeting.wait()
        ctx.deps.paid.append(what)
        return f"bought {what}"

    @al.tool
    async def look(what: str) -> str:
        """Look at something."""
        await meeting.wait()
        return f"saw {what}"

    agent = al.Agent(name="clerk", tools=[buy, look, ask], limits=al.LoopLimits(max_parallel_tools=4))
    calls = [call("buy", what="x"), call("look", what="y"), call("ask", question="Why?"), call("look", what="z")]
    asks = reply(calls=[*calls, call("buy", what="w")])
    async with ground.runtime(ScriptedProvider([asks])) as runtime:
        result = await runtime.run(agent, "go", run_id="r", deps=bank)
        assert [item.position for item in result.waiting] == [0, 2, 4]
        assert (result.tool_calls, bank.paid) == (2, [])
    provider = ScriptedProvider([reply("Done.")])
    async with ground.runtime(provider) as runtime:
        one, two, three = result.waiting
        said: dict[str, al.Decision] = {one.ref: al.Approve(), two.ref: al.Answer("So."), three.ref: al.Approve()}
        assert (await runtime.resume("r", agent, deps=bank, decisions=said)).tool_calls == 4
    assert [text for _, text in pairs_in(provider.requests[0])] == ["bought x", "saw y", "So.", "saw z", "bought w"]


async def test_a_predicate_that_raises_ends_a_run_of_parallel_calls_before_any_of_them(bank: Bank) -> None:
    @al.tool(approval=lambda arguments, ctx: 1 / 0)  # type: ignore[arg-type]
    async def send() -> str:
        """Send something."""
        raise AssertionError("it may not run")

    agent = al.Agent(name="clerk", tools=[balance, send], limits=al.LoopLimits(max_parallel_tools=2))
    script = [reply(calls=[call("balance"), call("balance", call_id="b"), call("send")])]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        with pytest.raises(al.ApprovalFailed):
            await runtime.run(agent, "go", deps=bank, run_id="r")
        assert bank.looked == 0  # the first was claimed with the reply, and that is given back
        turn = runtime._store.book.turn("r")
        assert turn.closed is not None
        assert turn.closed.reason == "approval_failed"


async def test_an_agent_with_an_output_gives_its_value_after_the_decision(ground: Ground, bank: Bank) -> None:
    agent = al.Agent(name="clerk", tools=[pay], output=list[int])
    asks = reply(calls=[call("pay", to="Ann")])
    async with ground.runtime(ScriptedProvider([asks, reply('{"value": [1]}')])) as runtime:
        result = await runtime.run(agent, "go", deps=bank, run_id="r")
        assert (result.outcome, result.value, result.has_value) == ("waiting_for_approval", None, False)
        assert (await runtime.result("r", agent)).outcome == "waiting_for_approval"
        done = await runtime.resume("r", agent, deps=bank, decisions={result.waiting[0].ref: al.Approve()})
        assert done.require_value() == [1]


# -- decisions


async def test_all_decisions_of_one_call_are_stored_or_none(ground: Ground, bank: Bank) -> None:
    """(R90)"""
    one, two = await suspended(ground, bank)
    before = await ground.facts()
    wrong = two.ref.replace(two.digest, one.digest)
    refusals: list[tuple[dict[str, al.Decision], type[al.AgentLoopError]]] = [
        ({one.ref: al.Approve(), two.ref: al.Approve()}, al.ConflictError),
        ({one.ref: al.Approve(), wrong: al.Answer("x")}, al.ConflictError),
        ({one.ref: al.Approve(), two.ref: al.Answer("x" * 5000)}, al.LimitExceeded),
        ({one.ref: al.Approve(), one.ref.replace("/0.0:", "/7.0:"): al.Approve()}, al.LostError),
        ({one.ref.replace("r/", "r2/"): al.Approve()}, al.LostError),
        ({}, al.InputError),
    ]
    async with ground.runtime(ScriptedProvider([])) as runtime:
        for said, kind in refusals:
            with pytest.raises(kind):
                await runtime.decide(said)
            with pytest.raises((kind, al.InputError)) if said else pytest.raises(al.ConflictError):
                await runtime.resume("r", AGENT, decisions=said or {wrong: al.Approve()})
            assert await runtime.waiting() == [one, two]
        await runtime.decide({two.ref: al.Answer("x" * 5000)}, feedback_bytes=6000)
    assert (await ground.facts())[:-1] == before
    assert bank.paid == []


async def test_an_approval_of_a_call_that_was_swapped_is_refused(ground: Ground, bank: Bank) -> None:
    """The stored call has other arguments than the ones that were shown."""
    (item,) = await suspended(ground, bank, PAYS)
    other = Ground(None)
    swapped = reply(calls=[call("pay", to="Eve", call_id="1"), call("balance", call_id="2")])
    (mine,) = await suspended(other, bank, swapped)
    assert mine.ref != item.ref
    async with other.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.ConflictError, match=r"call 0\.0 of run 'r': expected the digest of the stored call"):
            await runtime.resume("r", AGENT, deps=bank, decisions={item.ref: al.Approve()})
        assert await runtime.waiting() == [mine]
    assert bank.paid == []


async def test_the_same_decision_again_is_confirmed_wherever_the_run_is(ground: Ground, bank: Bank) -> None:
    """(R82, R83)"""
    (item,) = await suspended(ground, bank, PAYS)
    said, other = {item.ref: al.Approve(author="Ann")}, {item.ref: al.Deny(author="Ann")}
    async with ground.runtime(ScriptedProvider([reply("Done.")])) as runtime:
        for _ in range(2):
            await runtime.decide(said)
            with pytest.raises(al.ConflictError, match=r"the decision that was made \(approved by 'Ann'\)"):
                await runtime.decide(other)
        result = await runtime.resume("r", AGENT, deps=bank, decisions=said)
        assert result.text == "Done."
        assert await runtime.resume("r", AGENT, deps=bank, decisions=said) == result
        await runtime.decide(said)
        with pytest.raises(al.ConflictError):
            await runtime.resume("r", AGENT, deps=bank, decisions=other)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        await runtime.decide(said)
        assert (await runtime.resume("r", AGENT, decisions=said)).text == "Done."
        with pytest.raises(al.ConflictError):
            await runtime.decide({item.ref: al.Approve(author="Bob")})
    assert bank.paid == ["r/0.0"]
    assert len(moves(await ground.facts())) == 6


async def test_a_run_that_goes_on_is_not_decided_about_but_confirms(ground: Ground, bank: Bank) -> None:
    """(R83)"""
    one, two = await suspended(ground, bank)
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_request: al.ModelRequest) -> al.ModelReply:
        begun.set()
        await go.wait()
        return reply("Done.")

    said: dict[str, al.Decision] = {one.ref: al.Approve(), two.ref: al.Answer("x")}
    async with ground.runtime(ScriptedProvider([slow])) as runtime, ground.runtime(ScriptedProvider([])) as other:
        task = asyncio.create_task(runtime.resume("r", AGENT, deps=bank, decisions=said))
        await begun.wait()
        joined = asyncio.create_task(runtime.resume("r", AGENT, deps=bank, decisions=said))
        await runtime.decide(said)
        await other.decide(said)
        for host in (runtime, other):
            assert await host.waiting() == []
            with pytest.raises(al.ConflictError, match="the decision that was made"):
                await host.decide({one.ref: al.Deny()})
        go.set()
        assert (await task).text == (await joined).text == "Done."
    assert bank.paid == ["r/0.0"]


async def test_a_call_of_a_run_that_is_driven_cannot_be_decided_about(ground: Ground, bank: Bank) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @al.tool(name="balance", idempotent=True)
    async def slow(ctx: al.ToolContext[Bank]) -> str:
        """Look up the balance."""
        begun.set()
        await go.wait()
        return "12"

    agent = al.Agent(name="clerk", tools=[pay, slow])
    async with ground.runtime(ScriptedProvider([PAYS])) as runtime, ground.runtime(ScriptedProvider([])) as other:
        await runtime.submit(agent, "go", run_id="r", deps=bank)
        await begun.wait()
        turn = runtime._store.book.turn("r")
        (item,) = waiting_of(turn)
        for host in (runtime, other):
            with pytest.raises(al.NotOwnerError):
                await host.decide({item.ref: al.Approve()})
        with pytest.raises(al.NotOwnerError):
            await runtime.resume("r", agent, deps=bank, decisions={item.ref: al.Approve()})
        go.set()
        assert (await runtime.result("r")).waiting == (item,)


async def test_other_tools_are_refused_before_a_decision_is_stored(ground: Ground, bank: Bank) -> None:
    """(R136)"""
    (item,) = await suspended(ground, bank, PAYS)
    before = await ground.facts()

    @al.tool(name="pay", description="Pay somebody.", recovery="settle")
    async def unguarded(to: str) -> str:
        raise AssertionError("it may not run")

    agent = al.Agent(name="clerk", instructions="Be brief.", tools=[unguarded, balance, ask])
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.RestoreError) as caught:
            await runtime.resume("r", agent, deps=bank, decisions={item.ref: al.Approve()})
        assert caught.value.code == "catalogue_changed"
        assert await runtime.waiting() == [item]
    assert await ground.facts() == before


async def test_what_the_agent_allows_is_what_an_answer_may_take(ground: Ground, bank: Bank) -> None:
    """(R98)"""
    agent = al.Agent(name="clerk", tools=[ask], limits=al.LoopLimits(feedback_bytes=300))
    asks = reply(calls=[call("ask", question="Why?")])
    async with ground.runtime(ScriptedProvider([asks, reply("Done.")])) as runtime:
        result = await runtime.run(agent, "go", run_id="r")
        (item,) = result.waiting
        with pytest.raises(al.LimitExceeded, match="feedback_bytes: allowed 300"):
            await runtime.resume("r", agent, decisions={item.ref: al.Answer("x" * 300)})
        assert (await runtime.resume("r", agent, decisions={item.ref: al.Answer("x" * 200)})).text == "Done."


async def test_settling_a_call_that_waits_is_a_conflict(ground: Ground, bank: Bank) -> None:
    (item,) = await suspended(ground, bank, PAYS)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        for result in (None, al.ToolResult.ok("x")):
            with pytest.raises(al.ConflictError, match="a call that waits is decided about, not settled"):
                await runtime.settle_call("r", 0, 0, author="Ann", result=result)
        assert await runtime.waiting() == [item]


async def test_a_call_that_waits_beside_one_that_nobody_knows_of_can_be_decided_about(
    ground: Ground, bank: Bank
) -> None:
    """(R134)"""

    @al.tool(recovery="settle")
    async def mail(ctx: al.ToolContext[Bank]) -> str:
        """Write to somebody."""
        medium.dead.set()
        await asyncio.Event().wait()
        return ""

    agent = al.Agent(name="clerk", tools=[pay, mail])
    asks = reply(calls=[call("pay", to="Ann"), call("mail")])
    async with ground.mortal(ScriptedProvider([asks])) as (runtime, medium):
        task = asyncio.create_task(runtime.run(agent, "go", run_id="r", deps=bank))
        await medium.dead.wait()
    await asyncio.wait({task})
    task.exception()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([reply("Done.")])) as next_:
        (item,) = await next_.waiting()
        (lost,) = await next_.unsettled()
        assert (item.tool, lost.tool) == ("pay", "mail")
        with pytest.raises(al.OutcomeError, match="got running"):
            await next_.result("r")
        with pytest.raises(al.UnsettledError):
            await next_.resume("r", agent, deps=bank, decisions={item.ref: al.Approve()})
        assert (await next_.waiting(), bank.paid) == ([], [])
        await next_.settle_call("r", 0, 1, author="Ann", result=al.ToolResult.ok("sent"))
        assert (await next_.resume("r", agent, deps=bank)).text == "Done."
        assert bank.paid == ["r/0.0"]


async def test_deciding_wants_an_open_runtime() -> None:
    runtime = al.Runtime(ScriptedProvider([]))
    for ask_ in (runtime.waiting(), runtime.decide({})):
        with pytest.raises(al.InputError):
            await ask_


def test_a_waiting_call_is_plain_enough_for_json() -> None:
    item = al.WaitingCall(
        ref="r",
        run="r",
        agent="a",
        conversation=None,
        kind="external",
        tool="t",
        arguments="{}",
        exchange=0,
        position=0,
        call_id="c",
        digest="d",
        at_ms=None,
    )
    assert msgspec.json.decode(msgspec.json.encode(item), type=al.WaitingCall) == item


# -- what a user says meanwhile


async def test_what_is_said_while_a_run_waits_is_in_its_next_request(ground: Ground, bank: Bank) -> None:
    waiting = await suspended(ground, bank)
    provider = ScriptedProvider([reply("Done.")])
    async with ground.runtime(provider) as runtime:
        await runtime.steer("r", "And hurry.", author="Ann")
        assert await runtime.waiting() == list(waiting)
        said = {item.ref: al.Answer("x") for item in waiting}
        assert (await runtime.resume("r", AGENT, deps=bank, decisions=said)).text == "Done."
    assert b'"content":"And hurry."' in body_of(provider.requests[0])


async def test_a_run_that_waits_and_is_asked_to_stop_ends_once_it_is_decided_about(ground: Ground, bank: Bank) -> None:
    one, two = await suspended(ground, bank)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        await runtime.stop_after_current("r", author="Ann")
        left = await runtime.resume("r", AGENT, deps=bank, decisions={one.ref: al.Approve()})
        assert (left.outcome, bank.paid) == ("waiting_for_approval", ["r/0.0"])
        end = await runtime.resume("r", AGENT, deps=bank, decisions={two.ref: al.Answer("x")})
        assert (end.outcome, end.reason) == ("incomplete", "stopped")


async def test_a_reader_that_comes_back_after_a_resume_misses_nothing(ground: Ground, bank: Bank) -> None:
    """The ids of a run go on, here and in another process, so that one after which to read is never taken twice."""
    times = itertools.count(1_000_000, 2).__next__
    async with ground.runtime(ScriptedProvider([BOTH, reply("Done.")]), now_ms=times) as runtime:
        ref = await runtime.submit(AGENT, "go", run_id="r", deps=bank)
        result = await runtime.result(ref)
        first = [event async for event in runtime.follow(ref)]
        halfway = first[2].event_id
        await runtime.resume(
            ref, AGENT, deps=bank, decisions={item.ref: al.Answer("ok") for item in result.waiting[:1]}
        )
        second = [event async for event in runtime.follow(ref, after=first[-1].event_id)]
        assert [event.type for event in second] == ["run.started", "run.ended"]
        assert [event async for event in runtime.follow(ref, after=halfway)] == [*first[3:], *second]
    async with ground.runtime(ScriptedProvider([reply("Done.")]), now_ms=times) as runtime:
        await runtime.resume(
            ref, AGENT, deps=bank, decisions={item.ref: al.Answer("ok") for item in result.waiting[1:]}
        )
        third = [event async for event in runtime.follow(ref, after=second[-1].event_id)]
        assert [third[0].type, third[-1].type] == ["run.started", "run.ended"]
    sequences = [event.sequence for event in (*first, *second, *third)]
    assert sequences == sorted(set(sequences))
