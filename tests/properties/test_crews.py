"""Crews of every kind: whatever tools, budgets, cancels and pauses do, each slot says what happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.effects import Ledger
from agentloop.exchange import SlotMoved
from agentloop.loop import drive
from agentloop.testing import call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend, check_order

WAYS = ["returns", "fails", "crashes", "late", "stubborn", "thread"]
DONE = ("returns", "thread")


class Log:
    """Deps: what the tools of a run did.

    Attributes:
        starts: effect ids, one for each start. ended: how each execution ended by itself. release: frees what
            keeps its cancels.
    """

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.ended: dict[str, str] = {}
        self.release = asyncio.Event()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def finish(log: Log, effect: str, way: str) -> str:
    log.ended[effect] = way
    if way == "fails":
        raise al.ToolFailed("no")
    if way == "crashes":
        raise LookupError("a bug")
    return "ok"


@al.tool
async def act(way: str, wait: int, ctx: al.ToolContext[Log]) -> str:
    """Wait, then end."""
    ctx.deps.starts[ctx.effect_id] += 1
    await turns(wait)
    return finish(ctx.deps, ctx.effect_id, way)


@al.tool
def thread(way: str, wait: int, ctx: al.ToolContext[Log]) -> str:
    """End, in a thread."""
    ctx.deps.starts[ctx.effect_id] += 1
    return finish(ctx.deps, ctx.effect_id, way)


@al.tool(timeout=0.001, idempotent=True, retries=2)
async def late(way: str, wait: int, ctx: al.ToolContext[Log]) -> None:
    """Run out of time."""
    ctx.deps.starts[ctx.effect_id] += 1
    await asyncio.Event().wait()


@al.tool(timeout=0.001, grace=0.001)
async def stubborn(way: str, wait: int, ctx: al.ToolContext[Log]) -> None:
    """Keep every cancel."""
    ctx.deps.starts[ctx.effect_id] += 1
    while not ctx.deps.release.is_set():
        try:
            await ctx.deps.release.wait()
        except asyncio.CancelledError:
            pass


class Do(NamedTuple):
    """One call: what its tool does, after how many turns of the loop."""

    way: str
    wait: int


class Stop(NamedTuple):
    """What is done to the run, after how many turns."""

    how: str
    turns: int


def asked(do: Do) -> Any:
    tool = do.way if do.way in ("late", "stubborn", "thread") else "act"
    return call(tool, way=do.way, wait=do.wait)


@settings(max_examples=200)
@given(
    crew=st.lists(st.builds(Do, st.sampled_from(WAYS), st.integers(0, 6)), min_size=1, max_size=6),
    parallel=st.integers(1, 4),
    calls_left=st.none() | st.integers(0, 9),
    stop=st.none() | st.builds(Stop, st.sampled_from(["cancel", "pause", "pause then cancel"]), st.integers(1, 40)),
    slow=st.booleans(),
)
def test_every_slot_says_what_happened_and_every_start_is_a_fact_and_a_debit(
    crew: list[Do], parallel: int, calls_left: int | None, stop: Stop | None, slow: bool
) -> None:
    """(R62, R80, R278, R338)"""

    async def scene() -> None:
        log = Log()
        try:
            await one_crew(log, crew, parallel, calls_left, stop, slow)
        finally:
            log.release.set()  # or nothing would ever end what keeps its cancels

    asyncio.run(scene())


async def one_crew(
    log: Log, crew: list[Do], parallel: int, calls_left: int | None, stop: Stop | None, slow: bool
) -> None:
    paused = asyncio.Event()
    stage = Stage(
        [reply(calls=[asked(do) for do in crew]), reply("done")],
        tools=[act, thread, late, stubborn],
        backend=SlowBackend() if slow else None,
        ledger=Ledger(model_calls=8, tool_calls=calls_left),
        max_parallel_tools=parallel,
    )
    scope = await stage.open(deps=log, paused=paused.is_set)
    task = asyncio.create_task(drive(scope))
    if stop is not None:
        await turns(stop.turns)
        if stop.how != "cancel":
            paused.set()
            await turns(3)
        if stop.how != "pause":
            task.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait({task})
    crashed = not task.cancelled() and isinstance(task.exception(), al.ToolCrashed)
    if not task.cancelled() and task.exception() is not None:
        assert crashed or isinstance(task.exception(), al.RunPaused)

    facts = [fact for fact in await stage.facts() if isinstance(fact, SlotMoved)]
    started = Counter(fact.effect_id for fact in facts if fact.state == "started")
    started -= Counter(fact.effect_id for fact in facts if fact.state == "open")
    assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == started.total()
    if scope.turn.entries:
        entry = scope.turn.entries[0]
        assert entry.complete or (paused.is_set() and scope.turn.closed is None)
        for position, (do, slot) in enumerate(zip(crew, entry.slots, strict=True)):
            effect = f"r/0.{position}"
            check_slot(do, slot, log, effect, paused=paused.is_set())
            assert started[effect] == slot.attempt
            cut_off = slot.code == "cancelled" or slot.state == "started"
            in_vain = cut_off and (slot.attempt > 1 or do.way == "thread")  # claimed, and cancelled before it began
            assert slot.attempt - log.starts[effect] in ((0, 1) if in_vain else (0,))
    check_order(stage.events, parallel=parallel)
    log.release.set()
    assert await stage.pool.wait_idle(20) == 0


def check_slot(do: Do, slot: Any, log: Log, effect: str, *, paused: bool) -> None:
    """Hold a slot to what its tool did."""
    ended = log.ended.get(effect)
    match slot.state:
        case "done":
            assert ended in DONE
        case "failed" if slot.code == "tool_failed":
            assert ended == "fails"
        case "failed" if slot.code == "timeout":
            assert do.way == "late"
            assert slot.attempt >= 1
        case "failed":
            assert slot.code == "thread_busy"
            assert not log.starts[effect]
        case "unknown" if slot.code == "tool_crashed":
            assert ended == "crashes"
        case "unknown" if slot.code == "timeout":
            assert do.way in ("stubborn", "act", "thread")
            assert log.starts[effect]
        case "unknown":
            assert slot.code == "cancelled"
            assert log.starts[effect] or do.way == "thread"  # which may not have begun
        case "skipped" | "open":
            assert not log.starts[effect]
            assert slot.state == "skipped" or paused
        case _:
            assert slot.state == "started"
            assert paused
            assert log.starts[effect] or do.way == "thread"
