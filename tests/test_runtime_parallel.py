"""Runs whose tools go side by side: what a host, a model and a store see of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.effects import send
from agentloop.exchange import SlotMoved
from agentloop.loop import drive
from agentloop.testing import ScriptedProvider, call, reply
from tests.effects.stage import Stage
from tests.mortal import Ground
from tests.runs import SlowBackend, check_end, follow_all, on_backend, other_tasks, pairs_in, turn_of
from tests.test_runtime_recovery import Bank, When, mail, pay

PARALLEL = 4


def agent(*tools: al.Tool, **limits: Any) -> al.Agent:
    return al.Agent(name="a", tools=tools, limits=al.LoopLimits(**{"max_parallel_tools": PARALLEL, **limits}))


class Meeting:
    """Deps: a meeting that is over when enough have come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.here: list[str] = []
        self.complete = asyncio.Event()
        self.begun = asyncio.Event()

    def come(self, name: str) -> None:
        self.here.append(name)
        self.begun.set()
        if len(self.here) == self.size:
            self.complete.set()


@al.tool
async def meet(name: str, ctx: al.ToolContext[Meeting]) -> str:
    """Wait until all have come."""
    ctx.deps.come(name)
    await ctx.progress(f"{name} waits")
    await ctx.deps.complete.wait()
    return f"met {name}"


def meeting(*names: str) -> al.ModelReply:
    return reply(calls=[call("meet", call_id=name, name=name) for name in names])


@pytest.mark.parametrize("slow", [False, True])
async def test_calls_of_a_reply_run_side_by_side_and_are_read_in_their_order(slow: bool) -> None:
    """Each waits for the others (R32, R338)."""
    deps, provider = Meeting(3), ScriptedProvider([meeting("x", "y", "z"), reply("done")])
    async with asyncio.timeout(10), on_backend(SlowBackend() if slow else None, provider) as runtime:
        result = await runtime.run(agent(meet), "go", deps=deps, run_id="r")
        assert (result.outcome, result.text, result.tool_calls) == ("completed", "done", 3)
        assert pairs_in(provider.requests[1]) == [("x", "met x"), ("y", "met y"), ("z", "met z")]
        events = await check_end(runtime, "r", "completed", parallel=3)
        told = [event.message for event in events if isinstance(event, al.ToolProgress)]
        assert sorted(told) == ["x waits", "y waits", "z waits"]
    assert not other_tasks()


async def test_one_at_a_time_is_the_default() -> None:
    """(R93, R339)"""
    assert al.LoopLimits().max_parallel_tools == 1
    seen: list[int] = []

    @al.tool
    async def alone(ctx: al.ToolContext[list[int]]) -> str:
        """Be alone."""
        ctx.deps.append(1)
        await asyncio.sleep(0)
        seen.append(len(ctx.deps))
        ctx.deps.pop()
        return "alone"

    async with al.Runtime(ScriptedProvider([reply(calls=[call("alone")] * 3), reply("done")])) as runtime:
        await runtime.run(al.Agent(name="a", tools=[alone]), "go", deps=[])
    assert seen == [1, 1, 1]


async def test_the_bound_is_each_runs_own() -> None:
    """Two runs of a runtime run twice as many, unless a ledger of both says otherwise (R340)."""
    deps = Meeting(4)
    provider = ScriptedProvider([meeting("a", "b"), meeting("c", "d"), reply("done"), reply("done")])
    async with asyncio.timeout(10), al.Runtime(provider) as runtime:
        two = agent(meet, max_parallel_tools=2)
        await asyncio.gather(*(runtime.run(two, "go", deps=deps) for _ in range(2)))
    assert sorted(deps.here) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("parallel", [1, PARALLEL])
async def test_a_reply_with_more_calls_than_are_left_starts_none(parallel: int) -> None:
    """(R102, R278)"""
    names = [f"n{number}" for number in range(8)]
    deps, provider = Meeting(1), ScriptedProvider([meeting(*names)])
    async with al.Runtime(provider) as runtime:
        limited = agent(meet, max_tool_calls=6, max_parallel_tools=parallel)
        result = await runtime.run(limited, "go", deps=deps, run_id="r")
        assert (result.outcome, result.reason, result.tool_calls) == ("limit_reached", "max_tool_calls", 0)
        assert {slot.state for slot in turn_of(runtime, "r").entries[0].slots} == {"skipped"}
    assert deps.here == []


async def test_a_ledger_that_others_use_up_between_two_judgements_starts_none() -> None:
    """(R278)"""
    shared = al.Ledger(tool_calls=3)
    deps, provider = Meeting(1), ScriptedProvider([meeting("a", "b", "c")])
    backend = SlowBackend()

    async def hook(facts: Any) -> None:
        if any(isinstance(fact, SlotMoved) and fact.state == "started" for fact in facts) and shared.left("tool_calls"):
            shared.debit("tool_calls")

    backend.hook = hook
    async with on_backend(backend, provider, ledger=shared) as runtime:
        result = await runtime.run(agent(meet), "go", deps=deps, run_id="r")
        assert (result.outcome, result.reason, result.tool_calls) == ("limit_reached", "max_tool_calls", 0)
        await check_end(runtime, "r", "limit_reached", parallel=PARALLEL)
    assert (deps.here, shared.spent("tool_calls")) == ([], 1)


async def test_a_run_out_of_time_ends_all_that_run() -> None:
    deps, provider = Meeting(99), ScriptedProvider([meeting("a", "b", "c", "d", "e", "f")])
    async with asyncio.timeout(10), al.Runtime(provider) as runtime:
        result = await runtime.run(agent(meet, max_seconds=0.05), "go", deps=deps, run_id="r")
        assert (result.outcome, result.reason) == ("limit_reached", "max_seconds")
        slots = turn_of(runtime, "r").entries[0].slots
        assert [slot.state for slot in slots] == ["unknown"] * 4 + ["skipped"] * 2
        await check_end(runtime, "r", "limit_reached", parallel=PARALLEL)
    assert not other_tasks()


async def test_a_cancelled_run_leaves_no_tool_behind() -> None:
    """(R62)"""
    deps = Meeting(99)
    async with asyncio.timeout(10):
        async with al.Runtime(ScriptedProvider([meeting("a", "b", "c", "d", "e")])) as runtime:
            ref = await runtime.submit(agent(meet), "go", deps=deps, run_id="r")
            await deps.begun.wait()
            await runtime.cancel(ref)
            slots = turn_of(runtime, ref).entries[0].slots
            assert [slot.state for slot in slots] == ["unknown"] * 4 + ["skipped"]
            await check_end(runtime, ref, "cancelled", parallel=PARALLEL)
            assert runtime.left_over == ()
    assert not other_tasks()


# -- an output that is given by a call


class Ticket(msgspec.Struct, frozen=True):
    title: str


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    await asyncio.sleep(0)
    return f"noted {text}"


@pytest.mark.parametrize("given", [1, 2])
async def test_a_call_that_gives_the_output_runs_beside_the_others(given: int) -> None:
    """(R175)"""
    calls = [call("note", text="x"), *[call("Ticket", title="fire")] * given, call("note", text="y")]
    clerk: al.Agent[Ticket] = al.Agent(
        name="a", tools=[note], output=Ticket, limits=al.LoopLimits(max_parallel_tools=PARALLEL)
    )
    async with al.Runtime(ScriptedProvider([reply(calls=calls)], dialect="groq")) as runtime:
        result = await runtime.run(clerk, "go", run_id="r")
        slots = turn_of(runtime, "r").entries[0].slots
        assert {slot.state for slot in slots} == {"done"}
        if given == 1:
            assert (result.outcome, result.value) == ("completed", Ticket(title="fire"))
        else:
            assert (result.outcome, result.reason) == ("incomplete", "several_calls")


# -- a process that dies or closes


CLERK = al.Agent(name="clerk", tools=[pay, mail], limits=al.LoopLimits(max_parallel_tools=2))
NAMES = ("Ann", "Bob", "Cy")
ASKS = reply(calls=[call("pay", to=name, call_id=name) for name in NAMES])


def clerks_model() -> ScriptedProvider:
    return ScriptedProvider([lambda request: reply("done") if request.exchanges else ASKS] * 3)


@pytest.mark.parametrize(
    ("at", "when"), [(3, "after"), *[(at, when) for at in range(4, 9) for when in ("before", "after")]]
)
async def test_each_payment_is_made_once_wherever_the_process_dies(tmp_path: Path, at: int, when: When) -> None:
    """What had not begun is not said to have (R134, R139)."""
    bank, provider, ground = Bank(), clerks_model(), Ground(tmp_path / "store.db")
    async with ground.mortal(clerks_model(), at=at, when=when) as (dying, medium):
        start = asyncio.create_task(dying.submit(CLERK, "go", run_id="r", deps=bank))
        await medium.dead.wait()
        for _ in range(20):
            await asyncio.sleep(0)
    await asyncio.wait({start})
    start.exception()
    ground.clock.advance(31)
    begun = set(bank.paid)
    stored = [fact for fact in await ground.facts() if isinstance(fact, SlotMoved) and fact.state == "started"]
    assert begun <= {fact.effect_id for fact in stored}
    async with ground.runtime(provider) as runtime:
        result = await runtime.resume("r", CLERK, deps=bank)
        await follow_all(runtime, "r")
    assert (result.outcome, result.text) == ("completed", "done")
    assert sorted(bank.paid) == ["r/0.0", "r/0.1", "r/0.2"]
    assert pairs_in(provider.requests[-1]) == [(name, f"paid {name}") for name in NAMES]


async def test_a_runtime_that_closes_lets_what_runs_end_and_leaves_the_rest_to_be_resumed(tmp_path: Path) -> None:
    """(R143)"""
    deps, host = Meeting(2), agent(meet, max_parallel_tools=2)
    names = ("a", "b", "c", "d")
    async with asyncio.timeout(20):
        async with al.Runtime(ScriptedProvider([meeting(*names)]), store=tmp_path / "s.db") as runtime:
            ref = await runtime.submit(host, "go", deps=deps, run_id="r")
            while len(deps.here) < 1:
                await deps.begun.wait()
            deps.size = 99
            closing = asyncio.create_task(runtime.aclose())
            await asyncio.sleep(0)
            deps.complete.set()
            await closing
        provider = ScriptedProvider([reply("done")])
        async with al.Runtime(provider, store=tmp_path / "s.db") as runtime:
            result = await runtime.resume(ref, host, deps=deps)
    assert (result.text, result.tool_calls) == ("done", 4)
    assert sorted(deps.here) == list(names)
    assert pairs_in(provider.requests[-1]) == [(name, f"met {name}") for name in names]


async def test_a_call_that_an_earlier_owner_began_is_repeated_before_the_others_go_side_by_side() -> None:
    """(R134)"""
    order: list[str] = []

    @al.tool(idempotent=True)
    async def look(name: str) -> str:
        """Look something up."""
        order.append(f"in {name}")
        await asyncio.sleep(0)
        order.append(f"out {name}")
        return name

    calls = [call("look", name=name) for name in "abc"]
    stage = Stage([reply(calls=calls), reply("done")], tools=[look], max_parallel_tools=2)
    scope = await stage.open()
    await send(scope)
    await scope.commit(lambda book: book.start_slot(scope.turn, 0, 1, effect_id="r/0.1", at_ms=4))
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=4))
    await drive(stage.open_again())
    assert order[:2] == ["in b", "out b"]
    assert order[2:] == ["in a", "in c", "out a", "out c"]
    assert scope.turn.closed is not None
