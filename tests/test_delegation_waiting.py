"""Agents whose calls wait for a person: their callers wait too, with what waits, at any depth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.decisions import CallRef
from agentloop.exchange import OriginOpened, RunClosed, SlotMoved, call_digest
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.workflow.flows import END, Draft, flow, node


@al.tool(approval="required", recovery="settle")
async def buy(what: str, ctx: al.ToolContext[list[str]]) -> str:
    """Buy."""
    ctx.deps.append(f"buy {what} in {ctx.effect_id}")
    return f"bought {what}"


@al.tool(idempotent=True)
async def look(what: str, ctx: al.ToolContext[list[str]]) -> str:
    """Look."""
    ctx.deps.append(f"look {what}")
    return f"saw {what}"


@al.external
def ask(question: str) -> str:
    """Ask a person."""


BUYER = al.Agent(name="buyer", instructions="Buy.", tools=[buy, look, ask])


def shop(**options: Any) -> al.Tool:
    return al.delegate(BUYER, name="shop", description="Get it.", tools=["buy", "look", "ask"], **options)


def clerk(*tools: al.Tool, **limits: Any) -> al.Agent[None]:
    limits.setdefault("max_depth", 3)
    return al.Agent(name="clerk", instructions="Run it.", tools=tools or [shop()], limits=al.LoopLimits(**limits))


def deep() -> al.Agent[None]:
    """Two levels: the clerk asks a manager, who asks the buyer."""
    manager = al.Agent(name="manager", instructions="Manage.", tools=[shop()])
    return clerk(al.delegate(manager, name="manage", description="Have it done.", tools=["shop"]), buy)


def says(request: al.ModelRequest) -> Any:
    """What any of the agents says; the buyer does what its task names, in words ``tool:argument``."""
    system, user = request.messages[0], request.messages[1]
    assert isinstance(system, al.SystemMessage)
    assert isinstance(user, al.UserMessage)
    assert isinstance(user.content, str)
    if request.exchanges:
        read = "; ".join(item.text for item in request.exchanges[-1].feedback)
        return reply(f"{system.content} {read}")
    if len(request.messages) > 2:  # it was steered
        return reply("done")
    if system.content == "Manage.":
        return reply(calls=[call("shop", task=user.content)])
    names = {"buy": "what", "look": "what", "ask": "question", "shop": "task", "manage": "task"}
    words = user.content.split(" | " if system.content == "Run it." else " ")
    pairs = [word.split(":", 1) for word in words]
    return reply(calls=[call(name, call_id=str(at), **{names[name]: said}) for at, (name, said) in enumerate(pairs)])


def model(count: int = 20) -> ScriptedProvider:
    return ScriptedProvider([says] * count)


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


@pytest.fixture
def ran() -> list[str]:
    return []


class Watcher:
    """Keeps every event of every run."""

    def __init__(self) -> None:
        self.events: list[al.Event] = []

    async def observe(self, event: al.Event) -> None:
        self.events.append(event)


async def moves_of(ground: Ground, run_id: str) -> list[tuple[int, str, str | None, int]]:
    facts = await ground.facts()
    return [(f.position, f.state, f.code, f.attempt) for f in facts if isinstance(f, SlotMoved) and f.run_id == run_id]


async def left_waiting(ground: Ground, task: str, agent: al.Agent[Any], ran: list[str]) -> al.RunResult[Any]:
    """What a process that has ended left of run ``r``."""
    async with ground.runtime(model()) as runtime:
        result = await runtime.run(agent, task, run_id="r", deps=ran)
        assert result.outcome == "waiting_for_approval"
        return result


async def test_the_caller_waits_with_what_its_agent_waits_for(ran: list[str]) -> None:
    """(R337, R343)"""
    watcher = Watcher()
    async with al.Runtime(model(), observers=[watcher]) as runtime:
        result = await runtime.run(clerk(), "shop:buy:tea", run_id="r", deps=ran)
        assert (result.outcome, result.reason, result.tool_calls) == ("waiting_for_approval", "approval", 1)
        (item,) = result.waiting
        assert (item.run, item.agent, item.kind, item.tool) == ("r/0.0", "buyer", "approval", "buy")
        assert (item.arguments, item.ref.partition(":")[0]) == ('{"what":"tea"}', "r/0.0/0.0")
        assert await runtime.waiting() == [item]
        assert await runtime.unsettled() == []
        assert (await runtime.result("r")).waiting == (await runtime.result("r/0.0")).waiting == (item,)
        assert {row.run_id for row in await runtime.unfinished()} == {"r", "r/0.0"}
        (ended,) = [event for event in watcher.events if type(event) is al.ToolEnded and event.run_id == "r"]
        assert (ended.status, ended.slot, ended.code, ended.output) == ("waiting", "waiting", "child", "")
        (end,) = [event for event in watcher.events if type(event) is al.RunEnded and event.run_id == "r"]
        assert (end.outcome, end.reason) == ("waiting_for_approval", "approval")
        done = await runtime.resume("r", clerk(), deps=ran, decisions={item.ref: al.Approve(author="Ann")})
        assert (done.text, done.waiting, done.tool_calls) == ("Run it. Buy. bought tea", (), 1)
        assert ran == ["buy tea in r/0.0/0.0"]
        assert await runtime.unfinished() == []
        starts = [event.attempt for event in watcher.events if type(event) is al.ToolStarted and event.run_id == "r"]
        assert starts == [1, 1]  # the same execution went on


@pytest.mark.parametrize(
    ("decision", "read", "bought"),
    [
        (al.Approve(author="Ann"), "bought tea", True),
        (al.Deny("too dear", author="Ann"), "This call was denied, and did not run. Reason: too dear", False),
        (al.Answer("had some"), "had some", False),
    ],
)
@pytest.mark.parametrize("way", ["decide", "resume"])
async def test_one_process_waits_another_decides_and_a_third_one_goes_on(
    ground: Ground, ran: list[str], decision: Any, read: str, bought: bool, way: str
) -> None:
    """(R136, R337)"""
    result = await left_waiting(ground, "shop:buy:tea", clerk(), ran)
    (item,) = result.waiting
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert await runtime.waiting() == [item]
        assert (await runtime.result("r")) == result
        if way == "decide":
            await runtime.decide({item.ref: decision})
            assert await runtime.waiting() == []
            with pytest.raises(al.OutcomeError, match="got running"):
                await runtime.result("r")
    async with ground.runtime(model()) as runtime:
        said = {item.ref: decision} if way == "resume" else {}
        done = await runtime.resume("r", clerk(), deps=ran, decisions=said)
        assert done.text == f"Run it. Buy. {read}"
        assert await runtime.unfinished() == []
        assert (await runtime.resume("r", clerk(), decisions=said)).text == done.text
    assert ran == (["buy tea in r/0.0/0.0"] if bought else [])
    assert await moves_of(ground, "r") == [
        (0, "started", None, 1),
        (0, "waiting", "child", 1),
        (0, "started", None, 1),
        (0, "done", None, 1),
    ]


async def test_two_levels_below_it_is_the_same(ground: Ground, ran: list[str]) -> None:
    """(R337, R343)"""
    task = "manage:buy:tea ask:why | buy:cake"
    result = await left_waiting(ground, task, deep(), ran)
    assert [(item.run, item.kind) for item in result.waiting] == [
        ("r/0.0/0.0", "approval"),
        ("r/0.0/0.0", "external"),
        ("r", "approval"),
    ]
    assert result.reason == "approval+external"
    async with ground.runtime(model()) as runtime:
        assert {item.ref for item in await runtime.waiting()} == {item.ref for item in result.waiting}
        assert (await runtime.result("r/0.0")).waiting == result.waiting[:2]
        tea, why, cake = result.waiting
        left = await runtime.resume("r", deep(), deps=ran, decisions={cake.ref: al.Approve(), tea.ref: al.Approve()})
        assert (left.waiting, left.reason) == ((why,), "external")
        assert sorted(ran) == ["buy cake in r/0.1", "buy tea in r/0.0/0.0/0.0"]
        done = await runtime.resume("r", deep(), deps=ran, decisions={why.ref: al.Answer("so")})
        assert done.text == "Run it. Manage. Buy. bought tea; so; bought cake"
        assert len(ran) == 2
        assert await runtime.unfinished() == []


async def test_others_of_the_reply_run_beside_one_whose_agent_waits(ground: Ground, ran: list[str]) -> None:
    """(R338)"""
    agent = clerk(shop(), look, max_parallel_tools=4)
    task = "look:a | shop:buy:tea | look:b | shop:look:c"
    result = await left_waiting(ground, task, agent, ran)
    assert sorted(ran) == ["look a", "look b", "look c"]
    assert [item.run for item in result.waiting] == ["r/0.1"]
    async with ground.runtime(model()) as runtime:
        done = await runtime.resume("r", agent, deps=ran, decisions={result.waiting[0].ref: al.Approve()})
    assert done.text == "Run it. saw a; Buy. bought tea; saw b; Buy. saw c"
    assert ran.count("buy tea in r/0.1/0.0") == 1
    assert len(ran) == 4


async def test_agents_that_wait_are_asked_again_side_by_side(ran: list[str]) -> None:
    """(R338)"""
    meet = asyncio.Barrier(2)

    @al.tool(approval="required")
    async def hand(ctx: al.ToolContext[list[str]]) -> str:
        """Hand over."""
        await asyncio.wait_for(meet.wait(), 5)
        ctx.deps.append(ctx.effect_id)
        return "handed"

    hander = al.Agent(name="hander", instructions="Buy.", tools=[hand])
    tool = al.delegate(hander, name="shop", description="d", tools=["hand"])

    def say(request: al.ModelRequest) -> Any:
        system = request.messages[0]
        assert isinstance(system, al.SystemMessage)
        return reply(calls=[call("hand")]) if system.content == "Buy." and not request.exchanges else says(request)

    agent = clerk(tool, max_parallel_tools=2)
    async with al.Runtime(ScriptedProvider([say] * 9)) as runtime:
        result = await runtime.run(agent, "shop:x | shop:y", run_id="r", deps=ran)
        said = {item.ref: al.Approve() for item in result.waiting}
        done = await runtime.resume("r", agent, deps=ran, decisions=said)
    assert (done.outcome, sorted(ran)) == ("completed", ["r/0.0/0.0", "r/0.1/0.0"])


async def test_what_is_not_decided_waits_again_and_costs_nothing(ground: Ground, ran: list[str]) -> None:
    agent = clerk(shop(max_calls=1), max_tool_calls=2)
    result = await left_waiting(ground, "shop:buy:tea", agent, ran)
    async with ground.runtime(model()) as runtime:
        for _ in range(4):
            again = await runtime.resume("r", agent, deps=ran)
            assert (again.waiting, again.tool_calls) == (result.waiting, 1)
            assert (await runtime.run(agent, "shop:buy:tea", run_id="r", deps=ran)).waiting == result.waiting
        assert await runtime.submit(agent, "shop:buy:tea", run_id="r", deps=ran) == "r"
        assert (await runtime.result("r")).waiting == result.waiting
        told = ["run.started", "tool.started", "tool.ended", "run.ended"]
        assert [event.type async for event in runtime.follow("r")] == told * 2  # this time and the one before
        done = await runtime.resume("r", agent, deps=ran, decisions={result.waiting[0].ref: al.Approve()})
    assert (done.outcome, done.tool_calls, len(ran)) == ("completed", 1, 1)


async def test_a_child_that_was_ended_or_finished_alone_is_read_by_its_caller(ground: Ground, ran: list[str]) -> None:
    result = await left_waiting(ground, "shop:buy:tea | shop:buy:cake", clerk(), ran)
    tea, cake = result.waiting
    buyer = clerk().toolset.get("shop").agent  # type: ignore[union-attr]
    async with ground.runtime(model()) as runtime:
        await runtime.cancel("r/0.0")
        alone = await runtime.resume("r/0.1", buyer, deps=ran, decisions={cake.ref: al.Approve()})
        assert alone.text == "Buy. bought cake"
        with pytest.raises(al.OutcomeError, match="got running"):
            await runtime.result("r")
        done = await runtime.resume("r", clerk(), deps=ran)
        assert done.text == "Run it. The agent 'buyer' ended as cancelled (cancelled).; Buy. bought cake"
        with pytest.raises(al.ConflictError, match="got one that is skipped"):
            await runtime.decide({tea.ref: al.Approve()})


# -- what is decided


async def test_decisions_are_about_the_run_and_those_below_it_and_no_other(ground: Ground, ran: list[str]) -> None:
    result = await left_waiting(ground, "manage:buy:tea | buy:cake", deep(), ran)
    tea, cake = result.waiting
    async with ground.runtime(model()) as runtime:
        other = await runtime.run(clerk(buy), "buy:x", run_id="r/9.9", deps=ran)  # named like one below
        with pytest.raises(al.InputError, match=r"expected calls of run 'r', got one of run 'r/9\.9'"):
            await runtime.resume("r", deep(), decisions={other.waiting[0].ref: al.Approve(), cake.ref: al.Approve()})
        with pytest.raises(al.LostError):
            await runtime.resume("r", deep(), decisions={tea.ref.replace("r/0.0", "r/7.0"): al.Approve()})
        with pytest.raises(al.InputError, match=r"expected calls of run 'r/0\.0', got one of run 'r'"):
            await runtime.resume("r/0.0", deep(), decisions={cake.ref: al.Approve()})
        forged = tea.ref[:-1] + ("0" if tea.ref[-1] != "0" else "1")
        for wrong in (
            {forged: al.Approve(), cake.ref: al.Approve()},
            {tea.ref: al.Approve(), cake.ref[:-3] + "000": al.Deny()},
        ):
            with pytest.raises(al.ConflictError, match="expected the digest of the stored call"):
                await runtime.resume("r", deep(), deps=ran, decisions=wrong)
        renamed = al.Agent(name="nobody", instructions="Run it.", tools=deep().toolset)
        with pytest.raises(al.RestoreError, match="agent_changed"):
            await runtime.resume("r", renamed, decisions={tea.ref: al.Approve()})
        assert {item.ref for item in await runtime.waiting()} == {tea.ref, cake.ref, other.waiting[0].ref}
        with pytest.raises(al.InputError, match="expected calls of run"):
            await runtime.decide({tea.ref: al.Approve(), cake.ref: al.Approve()})
        assert ran == []


async def test_nobody_decides_about_the_call_of_the_agent_itself(ground: Ground, ran: list[str]) -> None:
    await left_waiting(ground, "shop:buy:tea", clerk(), ran)
    async with ground.runtime(model()) as runtime:
        digest = call_digest(await runtime._store.turn("r"), 0, 0)
        ref = str(CallRef("r", 0, 0, digest))
        for decision in (al.Approve(), al.Deny(), al.Answer("x")):
            with pytest.raises(al.ConflictError, match=r"waits for run 'r/0\.0': decide there"):
                await runtime.decide({ref: decision})
        with pytest.raises(al.ConflictError, match=r"it waits for run 'r/0\.0'"):
            await runtime.settle_call("r", 0, 0, author="Ann", result=al.ToolResult.ok("x"))
        assert (await runtime.result("r")).outcome == "waiting_for_approval"


async def test_a_decision_about_a_run_below_one_that_goes_on_here_is_refused_unless_it_was_made(ran: list[str]) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @al.tool
    async def stall() -> str:
        """Take long."""
        begun.set()
        await release.wait()
        return "late"

    def say(request: al.ModelRequest) -> Any:
        if not request.exchanges and request.messages[0] == al.SystemMessage(content="Run it."):
            return reply(calls=[call("shop", task="buy:tea", call_id="1"), call("stall", call_id="2")])
        return says(request)

    agent = clerk(shop(), stall)
    async with al.Runtime(ScriptedProvider([say] * 9)) as runtime:
        await runtime.submit(agent, "go", run_id="r", deps=ran)
        await begun.wait()
        (item,) = await runtime.waiting()  # the buyer goes on nowhere already
        with pytest.raises(al.NotOwnerError, match="got one of this runtime"):
            await runtime.resume("r", agent, decisions={item.ref: al.Approve()})
        await runtime.decide({item.ref: al.Approve()})
        joined = asyncio.create_task(runtime.resume("r", agent, decisions={item.ref: al.Approve()}))
        await asyncio.sleep(0)
        release.set()
        left = await joined
        assert (left.outcome, left.waiting, ran) == ("waiting_for_approval", (), [])  # it was decided meanwhile
        done = await runtime.resume("r", agent, deps=ran)
        assert (done.text, len(ran)) == ("Run it. Buy. bought tea; late", 1)


# -- said to it, and its end


async def test_a_caller_that_waits_is_steered_and_stopped_and_waits_on(ground: Ground, ran: list[str]) -> None:
    result = await left_waiting(ground, "shop:buy:tea", clerk(), ran)
    provider = model()
    async with ground.runtime(provider) as runtime:
        await runtime.steer("r", "Hurry.")
        assert (await runtime.result("r")).waiting == result.waiting
        assert (await runtime.resume("r", clerk(), deps=ran)).waiting == result.waiting
        assert provider.requests == []
        done = await runtime.resume("r", clerk(), deps=ran, decisions={result.waiting[0].ref: al.Approve()})
        assert done.outcome == "completed"
        assert provider.requests[-1].messages[-1] == al.UserMessage(content="Hurry.")
    async with al.Runtime(model()) as runtime:
        await runtime.run(clerk(), "shop:buy:tea", run_id="r", deps=ran)
        await runtime.stop_after_current("r")
        (item,) = (await runtime.result("r")).waiting
        done = await runtime.resume("r", clerk(), deps=ran, decisions={item.ref: al.Deny()})
        assert (done.outcome, done.reason) == ("incomplete", "stopped")


async def test_cancelling_the_caller_ends_what_is_below_it_first(ground: Ground, ran: list[str]) -> None:
    """(R142)"""
    await left_waiting(ground, "manage:buy:tea | buy:cake", deep(), ran)
    async with ground.runtime(model()) as runtime:
        await runtime.cancel("r")
        assert await runtime.waiting() == []
        assert await runtime.unfinished() == []
    facts = await ground.facts()
    assert {(fact.run_id, fact.outcome) for fact in facts if isinstance(fact, RunClosed)} == {
        (run_id, "cancelled") for run_id in ("r/0.0/0.0", "r/0.0", "r")
    }
    told = [fact for fact in facts if isinstance(fact, SlotMoved) and fact.feedback is not None]
    texts = {f"{fact.run_id}/{fact.position}": fact.feedback.text for fact in told if fact.feedback is not None}
    asked = "The agent that this call asked was cancelled: the run was cancelled."
    assert texts == {
        "r/0.0/0.0/0": "This call was not run: the run was cancelled.",
        "r/0.0/0": asked,
        "r/0": asked,
        "r/1": "This call was not run: the run was cancelled.",
    }
    assert ran == []


async def test_cancelling_ends_no_run_that_only_has_the_name_of_one_below(ground: Ground, ran: list[str]) -> None:
    @al.tool(recovery="settle")
    async def act() -> str:
        """Act."""
        return "acted"

    async with ground.runtime(model()) as runtime:
        await runtime.run(clerk(), "shop:buy:tea", run_id="r/0.0", deps=ran)
    async with ground.mortal(ScriptedProvider([reply(calls=[call("act")])]), at=4) as (dying, medium):
        start = asyncio.create_task(dying.run(clerk(act), "go", run_id="r"))
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            await runtime.cancel("r", author="Ann")
            assert {row.run_id for row in await runtime.unfinished()} == {"r/0.0", "r/0.0/0.0"}
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def test_a_run_that_is_cancelled_in_its_block_ends_the_agent_it_waits_for(ran: list[str]) -> None:
    async with al.Runtime(model()) as runtime:
        async with runtime.start(clerk(), "shop:buy:tea", deps=ran) as run:
            await run.result()
            await run.cancel()
        assert await runtime.unfinished() == []


@pytest.mark.parametrize("way", ["cancel", "limit", "crash"])
async def test_a_run_that_ends_while_another_call_runs_ends_the_agent_that_waits(ran: list[str], way: str) -> None:
    """(R142)"""
    begun = asyncio.Event()

    @al.tool
    async def stall() -> str:
        """Never ends."""
        begun.set()
        if way == "crash":
            raise ZeroDivisionError
        await asyncio.Event().wait()
        return ""

    agent = clerk(shop(), stall, **({"max_seconds": 0.05} if way == "limit" else {}))
    script = [reply(calls=[call("shop", task="buy:tea", call_id="1"), call("stall", call_id="2")]), says]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        await runtime.submit(agent, "go", run_id="r", deps=ran)
        await begun.wait()
        if way == "cancel":
            assert [item.run for item in await runtime.waiting()] == ["r/0.0"]
            await runtime.cancel("r")
        try:
            await runtime.result("r")
        except (al.RunCancelled, al.ToolCrashed, al.OutcomeError):
            pass
        assert await runtime.unfinished() == []
        turns = [await runtime._store.turn(name) for name in ("r", "r/0.0")]
        ends = [turn.closed and turn.closed.outcome for turn in turns]
        assert ends == [{"cancel": "cancelled", "limit": "limit_reached", "crash": "failed"}[way], "cancelled"]
        slot = turns[0].entries[0].slots[0]
        assert (slot.state, slot.feedback is not None and slot.feedback.text.split(":")[0]) == (
            "skipped",
            "The agent that this call asked was cancelled",
        )


async def test_what_below_needs_an_author_needs_one_of_who_cancels_the_caller(ground: Ground, ran: list[str]) -> None:
    result = await left_waiting(ground, "shop:buy:tea", clerk(), ran)
    buyer = clerk().toolset.get("shop").agent  # type: ignore[union-attr]
    async with ground.mortal(model(), at=3) as (dying, medium):  # the payment has begun
        start = asyncio.create_task(
            dying.resume("r/0.0", buyer, deps=ran, decisions={result.waiting[0].ref: al.Approve()})
        )
        await medium.dead.wait()
        ground.clock.advance(31)
        async with ground.runtime(model()) as runtime:
            with pytest.raises(al.UnsettledError, match=r"run 'r/0\.0' waits to be settled: call 0\.0"):
                await runtime.cancel("r")
            with pytest.raises(al.UnsettledError, match=r"run 'r' waits for run 'r/0\.0' \(call 0\.0\)") as caught:
                await runtime.resume("r", clerk(), deps=ran)
            assert (caught.value.ref, caught.value.below, caught.value.calls) == ("r", "r/0.0", ("0.0",))
            assert {row.run_id for row in await runtime.unfinished()} == {"r", "r/0.0"}
            await runtime.cancel("r", author="Ann")
            assert await runtime.unfinished() == []
        medium.bury()
        await asyncio.wait({start})
        start.exception()


async def test_a_tool_of_ones_own_that_may_not_be_repeated_is_not(ground: Ground, ran: list[str]) -> None:
    @al.tool
    async def ask_once(ctx: al.ToolContext[Any]) -> str:
        """Ask."""
        assert ctx.spawn is not None
        ctx.deps.append("asked")
        return (await ctx.spawn(BUYER, "buy:tea")).text

    agent = clerk(ask_once)
    script = [reply(calls=[call("ask_once")]), says]
    async with ground.runtime(ScriptedProvider(script)) as runtime:
        with pytest.raises(al.UnsettledError, match=r"waits for run 'r/0\.0'") as caught:
            await runtime.run(agent, "go", run_id="r", deps=ran)
        assert type(caught.value.__cause__) is al.OutcomeError
    async with ground.runtime(model()) as runtime:
        (item,) = await runtime.waiting()
        with pytest.raises(al.UnsettledError, match="settle_call"):
            await runtime.resume("r", agent, deps=ran, decisions={item.ref: al.Approve()})
        await runtime.settle_call("r", 0, 0, author="Ann")
        assert (await runtime.resume("r", agent, deps=ran)).text == "Run it. Buy. bought tea"
    assert ran == ["asked", "asked", "buy tea in r/0.0/0.0"]


# -- death

BEFORE = 8
"""Appends of a run until it waits: of the caller three, of its agent four, and that the call waits."""

AFTER = 11
"""Appends from there to the end: the decision, of the caller one, of its agent five, of the caller again four."""


async def go_on(ground: Ground, agent: al.Agent[Any], ran: list[str]) -> al.RunResult[Any]:
    """What another host makes of run ``r``: it approves what waits, settles sends, and resumes."""
    async with ground.runtime(model(30)) as runtime:
        for _ in range(20):
            try:
                result = await runtime.resume("r", agent, deps=ran)
            except al.UnsettledError:
                for item in await runtime.unsettled():
                    if item.kind == "send":
                        await runtime.settle_send(item.ref, item.effect_id, author="host")
                    elif item.tool == "buy":
                        await runtime.settle_call(
                            item.ref, 0, item.position or 0, author="host", result=al.ToolResult.ok("bought tea")
                        )
                continue
            if result.outcome != "waiting_for_approval":
                assert await runtime.unfinished() == []
                return result
            assert result.waiting
            await runtime.decide({item.ref: al.Approve(author="Ann") for item in result.waiting})
    raise AssertionError("it never ended")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, BEFORE + 1))
async def test_a_death_anywhere_before_it_waits_repeats_no_effect(
    ground: Ground, ran: list[str], at: int, when: Any
) -> None:
    """(R139, R337)"""
    agent = clerk()
    async with ground.mortal(model(), at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(agent, "shop:buy:tea", run_id="r", deps=ran))
        await medium.dead.wait()
        ground.clock.advance(31)
        if (at, when) != (1, "before"):
            assert (await go_on(ground, agent, ran)).text == "Run it. Buy. bought tea"
            assert ran == ["buy tea in r/0.0/0.0"]
            opened = [fact.run_id for fact in await ground.facts() if isinstance(fact, OriginOpened)]
            assert opened == ["r", "r/0.0"]
        medium.bury()
        await asyncio.wait({start})
        start.exception()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, AFTER + 1))
async def test_a_death_anywhere_after_it_was_decided_repeats_no_effect(
    ground: Ground, ran: list[str], at: int, when: Any
) -> None:
    """(R139, R337)"""
    agent = clerk()
    (item,) = (await left_waiting(ground, "shop:buy:tea", agent, ran)).waiting
    async with ground.mortal(model(), at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.resume("r", agent, deps=ran, decisions={item.ref: al.Approve(author="Ann")}))
        await medium.dead.wait()
        ground.clock.advance(31)
        assert (await go_on(ground, agent, ran)).text == "Run it. Buy. bought tea"
        assert len(ran) <= 1
        medium.bury()
        await asyncio.wait({start})
        if not start.cancelled():
            start.exception()


async def test_a_runtime_that_closes_meanwhile_leaves_it_to_be_resumed(ground: Ground, ran: list[str]) -> None:
    (item,) = (await left_waiting(ground, "shop:buy:tea", clerk(), ran)).waiting
    under_way, release = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> Any:
        under_way.set()
        await release.wait()
        return says(request)

    async with ground.runtime(ScriptedProvider([slow])) as runtime:
        going = asyncio.create_task(runtime.resume("r", clerk(), deps=ran, decisions={item.ref: al.Approve()}))
        await under_way.wait()
        closing = asyncio.create_task(runtime.aclose())
        await asyncio.sleep(0)
        release.set()
        await closing
        with pytest.raises(al.RunPaused):
            await going
    async with ground.runtime(model()) as runtime:
        assert (await runtime.resume("r", clerk(), deps=ran)).text == "Run it. Buy. bought tea"
    assert ran == ["buy tea in r/0.0/0.0"]


async def test_a_conversation_is_held_and_freed_as_by_any_run_that_waits(ground: Ground, ran: list[str]) -> None:
    async with ground.runtime(model()) as runtime:
        await runtime.run(clerk(), "shop:buy:tea", run_id="r", conversation="c", deps=ran)
        with pytest.raises(al.StaleHeadError, match="waits for a decision"):
            await runtime.run(clerk(), "next", conversation="c")
        await runtime.cancel("r")
        assert (await runtime.run(clerk(), "next", conversation="c")).text == "done"


# -- how it is left


@pytest.mark.parametrize("kept", [False, True])
async def test_a_runtime_that_closes_ends_the_agent_with_the_run_unless_that_is_kept(
    ground: Ground, ran: list[str], kept: bool
) -> None:
    """(R143)"""
    begun, release = asyncio.Event(), asyncio.Event()

    @al.tool(idempotent=True)
    async def stall() -> str:
        """Take long."""
        begun.set()
        await release.wait()
        return "late"

    agent = clerk(shop(), stall)
    script = [reply(calls=[call("shop", task="buy:tea", call_id="1"), call("stall", call_id="2")]), says]
    async with ground.runtime(ScriptedProvider(script)) as runtime:
        if kept:
            await runtime.submit(agent, "go", run_id="r", deps=ran)
        else:
            going = asyncio.create_task(runtime.run(agent, "go", run_id="r", deps=ran))
        await begun.wait()
        closing = asyncio.create_task(runtime.aclose())
        await asyncio.sleep(0)
        if kept:
            release.set()
        await closing
        if not kept:
            with pytest.raises(al.RunCancelled):
                await going
    async with ground.runtime(model()) as runtime:
        left = {row.run_id for row in await runtime.unfinished()}
        assert left == ({"r", "r/0.0"} if kept else set())
        if kept:
            (item,) = await runtime.waiting()
            done = await runtime.resume("r", agent, deps=ran, decisions={item.ref: al.Approve()})
            assert done.text == "Run it. Buy. bought tea; late"


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancel_that_arrives_as_the_agent_is_left_waiting_ends_it_too(
    ground: Ground, ran: list[str], turns: int
) -> None:
    """(R142)"""

    def cancelled(task: asyncio.Task[Any], left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(cancelled, task, left - 1)
        else:
            task.cancel()

    async def say(request: al.ModelRequest) -> Any:
        child, caller = runtime._runs.live["r/0.0"].task, runtime._runs.live["r"].task
        assert child is not None
        assert caller is not None
        child.add_done_callback(lambda _: cancelled(caller, turns))
        return says(request)

    async with ground.runtime(ScriptedProvider([says, say])) as runtime:
        with pytest.raises(al.RunCancelled):
            await runtime.result(await runtime.submit(clerk(), "shop:buy:tea", run_id="r", deps=ran))
        assert await runtime.unfinished() == []
        child = await runtime._store.turn("r/0.0")
        assert child.closed is not None
        assert child.closed.outcome == "cancelled"


async def test_unnamed_runs_in_memory_that_wait_are_kept_and_go_with_their_agents(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentloop.runs._KEPT_RUNS", 2)
    plain = al.Agent(name="plain", instructions="Plain.")
    async with al.Runtime(
        ScriptedProvider([says, says, *[reply("hi")] * 3, says, says, *[reply("hi")] * 5])
    ) as runtime:
        first = await runtime.run(clerk(), "shop:buy:tea", deps=ran)
        for _ in range(3):
            await runtime.run(plain, "hi")
        assert await runtime.result(first.ref) == first
        await runtime.cancel(first.ref)
        second = await runtime.run(clerk(), "shop:buy:cake", deps=ran)
        for _ in range(5):
            await runtime.run(plain, "hi")
        assert [item.run for item in await runtime.waiting()] == [f"{second.ref}/0.0"]
        assert not runtime._store.book.has_run(first.ref)
        assert not runtime._store.book.has_run(f"{first.ref}/0.0")


async def test_a_tool_that_was_approved_and_has_an_agent_run_waits_for_that(ground: Ground, ran: list[str]) -> None:
    @al.tool(approval="required", idempotent=True)
    async def entrust(ctx: al.ToolContext[Any]) -> str:
        """Have it done."""
        assert ctx.spawn is not None
        return (await ctx.spawn(BUYER, "buy:tea")).text

    agent = clerk(entrust, look)
    async with ground.runtime(ScriptedProvider([reply(calls=[call("entrust")])])) as runtime:
        (item,) = (await runtime.run(agent, "go", run_id="r", deps=ran)).waiting
        assert (item.run, item.tool) == ("r", "entrust")
    async with ground.runtime(model()) as runtime:
        left = await runtime.resume("r", agent, deps=ran, decisions={item.ref: al.Approve(author="Ann")})
        (inner,) = left.waiting
        assert (inner.run, inner.tool) == ("r/0.0", "buy")
        await runtime.decide({item.ref: al.Approve(author="Ann")})  # confirmed
    async with ground.runtime(model()) as runtime:
        done = await runtime.resume("r", agent, deps=ran, decisions={inner.ref: al.Approve()})
        assert (done.text, len(ran)) == ("Run it. Buy. bought tea", 1)


async def test_a_workflow_whose_agent_waits_ends_with_that_and_takes_no_error_route(ran: list[str]) -> None:
    """(R298)"""
    buys = al.agent_node(
        "buy", "Buy it.", BUYER, input=lambda state: "buy:tea", into="text", on_error="mend", routes=END
    )
    mend = node("mend", None, al.Route(complete="mended"))
    async with al.Runtime(model()) as runtime:
        engine = runtime.engine(flow(buys, mend))
        with pytest.raises(al.OutcomeError) as caught:
            await engine.run(Draft())
        assert (caught.value.outcome, caught.value.reason) == ("waiting_for_approval", "approval")
        (item,) = await runtime.waiting()
        assert item.run == caught.value.ref
        assert (await runtime.resume(item.run, BUYER, deps=ran, decisions={item.ref: al.Approve()})).text
