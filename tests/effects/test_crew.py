"""Several calls of one reply at the same time: each as if it were alone, and none after the run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import Claim, Ledger, Scope, answer_calls, give_back, send
from agentloop.effects.execution import run_claimed
from agentloop.errors import BudgetError, PersistenceError
from agentloop.exchange import Entry, Fact, SlotMoved
from agentloop.messages import ToolFeedback
from agentloop.testing import call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend
from tests.stepper import cancel_current


class Room:
    """What the tools of one test share: who is in, and doors that let them out.

    Attributes:
        log: what happened, in order. most: how many were in at once.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.inside: set[str] = set()
        self.most = 0
        self.doors: dict[str, asyncio.Event] = {}
        self.entered = asyncio.Condition()

    def door(self, name: str) -> asyncio.Event:
        return self.doors.setdefault(name, asyncio.Event())

    async def wait_for(self, *names: str) -> None:
        """Until all of these are in."""
        async with asyncio.timeout(10), self.entered:
            await self.entered.wait_for(lambda: self.inside.issuperset(names))

    async def stay(self, name: str) -> None:
        self.log.append(f"in {name}")
        self.inside.add(name)
        self.most = max(self.most, len(self.inside))
        async with self.entered:
            self.entered.notify_all()
        try:
            await self.door(name).wait()
        finally:
            self.inside.remove(name)
            self.log.append(f"out {name}")


@al.tool(errors=(KeyError,))
async def visit(name: str, ctx: al.ToolContext[Room], fails: bool = False) -> str:
    """Stay in the room until the door is opened."""
    await ctx.deps.stay(name)
    if fails:
        raise KeyError(name)
    return name


@al.tool
async def crash(name: str, ctx: al.ToolContext[Room]) -> str:
    """Crash once the door is opened."""
    await ctx.deps.stay(name)
    raise LookupError(name)


TOOLS = [visit, crash]


def visits(*names: str) -> list[Any]:
    return [call("visit", call_id=name, name=name) for name in names]


async def asked(
    calls: Sequence[Any], *, parallel: int = 3, tools: Sequence[al.Tool] = TOOLS, choose: Any = None, **options: Any
) -> tuple[Stage, Scope, Room]:
    """A scope whose newest reply makes these calls."""
    fields = {name: options.pop(name) for name in ("paused",) if name in options}
    stage = Stage([reply(calls=calls)], tools=tools, max_parallel_tools=parallel, **options)
    room = Room()
    scope = await stage.open(deps=room, **fields)
    await send(scope, choose)
    return stage, scope, room


def begun(scope: Scope) -> asyncio.Task[None]:
    """All calls, being answered."""
    return asyncio.create_task(answer_calls(scope, 0, range(len(scope.turn.entries[0].slots))))


def slots(scope: Scope) -> list[tuple[str, str | None]]:
    return [(slot.state, slot.code) for slot in scope.turn.entries[0].slots]


async def moves(stage: Stage) -> list[str]:
    return [f"{fact.state} {fact.position}" for fact in await stage.facts() if isinstance(fact, SlotMoved)]


async def check_counts(stage: Stage, scope: Scope) -> None:
    """What was debited is what was started and not given back."""
    states = Counter(move.split()[0] for move in await moves(stage))
    assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == states["started"] - states["open"]


async def test_as_many_run_as_may_and_each_result_stands_at_its_call() -> None:
    """(R32, R338)"""
    stage, scope, room = await asked(visits("a", "b", "c", "d"), parallel=2)
    task = begun(scope)
    await room.wait_for("a", "b")
    assert await moves(stage) == ["started 0", "started 1"]  # what has not begun is not claimed
    room.door("b").set()
    await room.wait_for("a", "c")
    assert slots(scope) == [("started", None), ("done", None), ("started", None), ("open", None)]
    room.door("c").set()
    await room.wait_for("a", "d")
    for name in ("d", "a"):
        room.door(name).set()
    await task
    assert room.most == 2
    (exchange,) = scope.turn.exchanges
    assert [(item.tool_call_id, item.text) for item in exchange.feedback] == [(n, n) for n in "abcd"]
    assert stage.ledger.spent("tool_calls") == 4
    check = [event for event in stage.events if event.type.startswith("tool.")]
    assert [event.type for event in check[:4]] == ["tool.started", "tool.started", "tool.ended", "tool.started"]


async def test_all_is_reserved_before_any_begins() -> None:
    """(R278)"""
    stage, scope, room = await asked(visits("a", "b", "c"), parallel=2)
    task = begun(scope)
    await room.wait_for("a")
    assert (stage.ledger.spent("tool_calls"), scope.turn.tool_calls) == (3, 2)
    for name in "abc":
        room.door(name).set()
    await task
    await check_counts(stage, scope)


@pytest.mark.parametrize("claimed", [False, True])
async def test_where_the_budget_is_not_enough_for_all_none_begins_and_nothing_is_taken(claimed: bool) -> None:
    """Another user of the same ledger was quicker than the judge of the loop (R278)."""
    ledger = Ledger(tool_calls=6)
    stage, scope, room = await asked(
        visits("a", "b", "c"), ledger=ledger.child(), choose=(lambda *_: 0) if claimed else None
    )
    ledger.debit("tool_calls", 4)
    with pytest.raises(BudgetError):
        await answer_calls(scope, 0, range(3))
    await give_back(scope)
    assert slots(scope) == [("open", None)] * 3
    assert (room.log, ledger.spent("tool_calls")) == ([], 4)
    await check_counts(stage, scope)


async def test_what_is_refused_starts_nothing_beside_the_others() -> None:
    """(R55, R56, R57)"""

    @al.tool(max_calls=1)
    async def rare() -> str:
        """Be called once."""
        return "rare"

    calls = [call("nobody"), call("rare"), call("visit", arguments_text="{"), call("rare"), *visits("a")]
    stage, scope, room = await asked(calls, tools=[*TOOLS, rare], parallel=5)
    room.door("a").set()
    await begun(scope)
    assert slots(scope) == [
        ("failed", "unknown_tool"),
        ("done", None),
        ("failed", "invalid_json"),
        ("failed", "max_calls"),
        ("done", None),
    ]
    await check_counts(stage, scope)


async def test_one_failure_stays_in_its_slot() -> None:
    """(R61)"""
    calls = [*visits("a"), call("visit", call_id="b", name="b", fails=True), *visits("c")]
    _, scope, room = await asked(calls)
    task = begun(scope)
    await room.wait_for("a", "b", "c")
    for name in "bac":
        room.door(name).set()
    await task
    assert slots(scope) == [("done", None), ("failed", "tool_error"), ("done", None)]
    feedback = [slot.feedback for slot in scope.turn.entries[0].slots]
    assert [item.tool_call_id for item in feedback if item is not None] == ["a", "b", "c"]


@pytest.mark.parametrize("at", [0, 1])
async def test_the_claim_that_came_with_the_reply_is_used(at: int) -> None:
    """(R80)"""

    def chosen(entry: Entry, answered: int | None, feedback: ToolFeedback | None) -> int | None:
        return at

    stage, scope, room = await asked(visits("a", "b"), choose=chosen, parallel=1)
    assert scope.claim is not None
    for name in "ab":
        room.door(name).set()
    await begun(scope)
    assert scope.claim is None
    assert Counter(await moves(stage)) == Counter(["started 0", "started 1", "done 0", "done 1"])
    await check_counts(stage, scope)


# -- what ends the run


async def test_a_crash_ends_the_others_before_it_is_raised_and_nothing_more_begins() -> None:
    """(R62)"""
    calls = [*visits("a"), call("crash", name="b"), *visits("c", "d")]
    stage, scope, room = await asked(calls)
    task = begun(scope)
    await room.wait_for("a", "b", "c")
    room.door("b").set()
    with pytest.raises(al.ToolCrashed) as caught:
        await task
    assert caught.value.effect_id == "r/0.1"
    assert room.inside == set()
    assert slots(scope) == [
        ("unknown", "cancelled"),
        ("unknown", "tool_crashed"),
        ("unknown", "cancelled"),
        ("open", None),
    ]
    await check_counts(stage, scope)


async def test_nothing_begins_beside_a_crash_of_the_same_moment() -> None:
    """(R62)"""
    stage, scope, room = await asked([call("crash", name="a"), *visits("b", "c")], parallel=2)
    task = begun(scope)
    await room.wait_for("a", "b")
    for _ in range(5):  # until both are at their doors
        await asyncio.sleep(0)
    for name in "ab":
        room.door(name).set()
    with pytest.raises(al.ToolCrashed):
        await task
    assert slots(scope) == [("unknown", "tool_crashed"), ("done", None), ("open", None)]
    await check_counts(stage, scope)


async def test_the_first_of_two_crashes_is_raised_and_notes_the_other() -> None:
    """(R62)"""
    ways: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]

    @al.tool
    async def break_down(at: int) -> None:
        """Crash, also when it is cancelled."""
        try:
            await ways[at].wait()
        finally:
            raise LookupError(str(at))

    calls = [call("break_down", at=0), call("break_down", at=1)]
    _, scope, _ = await asked(calls, tools=[break_down])
    task = begun(scope)
    for _ in range(10):
        await asyncio.sleep(0)
    for way in reversed(ways):
        way.set()
    with pytest.raises(al.ToolCrashed) as caught:
        await task
    assert caught.value.effect_id == "r/0.1"
    assert caught.value.__notes__ == ["Another call of the same reply met ToolCrashed."]
    assert slots(scope) == [("unknown", "tool_crashed")] * 2


@pytest.mark.parametrize("slow", [False, True])
async def test_a_cancel_reaches_all_that_run_and_waits_for_them(slow: bool) -> None:
    """(R62)"""
    stage, scope, room = await asked(visits("a", "b", "c", "d"), backend=SlowBackend() if slow else None)
    task = begun(scope)
    await room.wait_for("a", "b", "c")
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert room.inside == set()
    assert slots(scope) == [("unknown", "cancelled")] * 3 + [("open", None)]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await check_counts(stage, scope)


async def test_a_second_cancel_while_the_first_is_recorded_changes_nothing() -> None:
    """(R62)"""

    async def hook(facts: Sequence[Fact]) -> None:
        if isinstance(facts[0], SlotMoved) and facts[0].state == "unknown":
            task.cancel()

    backend = SlowBackend()
    stage, scope, room = await asked(visits("a", "b"), backend=backend)
    backend.hook = hook
    task = begun(scope)
    await room.wait_for("a", "b")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots(scope) == [("unknown", "cancelled")] * 2
    assert set(backend.log) == {"whole"}
    await check_counts(stage, scope)


async def test_a_second_cancel_reaches_a_tool_that_kept_the_first() -> None:
    cancels: list[int] = []

    @al.tool(grace=30)
    async def twice() -> None:
        """Give in to the second cancel."""
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels.append(1)

    _, scope, room = await asked([call("twice"), *visits("a")], tools=[*TOOLS, twice])
    task = begun(scope)
    await room.wait_for("a")
    async with asyncio.timeout(10):
        for count in (1, 2):
            task.cancel()
            while len(cancels) < count:  # noqa: ASYNC110  # a few turns of the loop
                await asyncio.sleep(0)
        await asyncio.wait({task})
    assert task.cancelled()
    assert slots(scope) == [("unknown", "cancelled")] * 2


async def test_a_cancel_that_meets_a_crash_is_raised_after_it() -> None:
    """(R62)"""
    leaving, leave = asyncio.Event(), asyncio.Event()

    @al.tool(grace=30)
    async def slow_to_leave() -> None:
        """Take a while to end."""
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await leave.wait()

    _, scope, room = await asked([call("crash", name="a"), call("slow_to_leave")], tools=[*TOOLS, slow_to_leave])

    async def scene() -> str:
        with pytest.raises(al.ToolCrashed):
            await answer_calls(scope, 0, range(2))
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "cancelled then"
        return "forgotten"

    task = asyncio.create_task(scene())
    await room.wait_for("a")
    room.door("a").set()
    async with asyncio.timeout(10):
        await leaving.wait()
        task.cancel()
        assert await task == "cancelled then"
    assert slots(scope) == [("unknown", "tool_crashed"), ("unknown", "cancelled")]


async def test_a_cancel_while_a_claim_is_written_is_known_to_have_run_nothing() -> None:
    """(R62)"""

    async def hook(facts: Sequence[Fact]) -> None:
        if isinstance(facts[0], SlotMoved) and (facts[0].state, facts[0].position) == ("started", 1):
            task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)

    backend = SlowBackend()
    stage, scope, room = await asked(visits("a", "b", "c"), backend=backend)
    backend.hook = hook
    task = begun(scope)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots(scope) == [("unknown", "cancelled"), ("open", None), ("open", None)]
    assert room.log == ["in a", "out a"]
    assert [move for move in await moves(stage) if move.endswith("1")] == ["started 1", "open 1"]
    await check_counts(stage, scope)


async def test_a_run_that_is_paused_ends_what_runs_and_begins_nothing_more() -> None:
    closing = asyncio.Event()
    stage, scope, room = await asked(visits("a", "b", "c", "d"), parallel=2, paused=closing.is_set)
    task = begun(scope)
    await room.wait_for("a", "b")
    closing.set()
    for name in "abcd":
        room.door(name).set()
    await task
    assert slots(scope) == [("done", None)] * 2 + [("open", None)] * 2
    await check_counts(stage, scope)


async def test_a_call_that_is_not_repeated_in_a_paused_run_does_not_end_the_others() -> None:
    closing = asyncio.Event()

    @al.tool(timeout=0.02, idempotent=True)
    async def late() -> None:
        """Run out of time."""
        await asyncio.Event().wait()

    stage, scope, room = await asked(
        [call("late"), *visits("a", "b")], tools=[*TOOLS, late], parallel=2, paused=closing.is_set
    )
    task = begun(scope)
    await room.wait_for("a")
    closing.set()
    async with asyncio.timeout(10):
        while "tool.ended" not in stage.types:  # noqa: ASYNC110  # until the clock has run out
            await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    assert room.inside == {"a"}
    room.door("a").set()
    with pytest.raises(al.RunPaused):
        await task
    assert slots(scope) == [("started", None), ("done", None), ("open", None)]
    await check_counts(stage, scope)


async def test_a_call_that_waits_to_be_settled_lets_the_others_end_and_none_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(R134)"""
    error = al.UnsettledError("r", (), ("0.0",))

    async def waits(scope: Scope, claim: Claim) -> None:
        if claim.position == 0:
            await room.door("first").wait()
            raise error
        await run_claimed(scope, claim)

    monkeypatch.setattr("agentloop.effects.crew.run_claimed", waits)
    stage, scope, room = await asked(visits("x", "a", "b"), parallel=2)
    task = begun(scope)
    await room.wait_for("a")
    room.door("first").set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (room.inside, task.done()) == ({"a"}, False)
    room.door("a").set()
    with pytest.raises(al.UnsettledError) as caught:
        await task
    assert caught.value is error
    assert slots(scope) == [("started", None), ("done", None), ("open", None)]
    await check_counts(stage, scope)


async def test_a_selection_that_cancels_where_it_runs_cancels_the_run() -> None:
    """As it does where calls go one after the other: it has no task of its own."""

    @al.selection
    def give_up() -> str:
        """Cancel."""
        cancel_current()
        return "gone"

    _, scope, room = await asked([call("give_up"), *visits("a")], tools=[*TOOLS, give_up])
    room.door("a").set()
    task = begun(scope)
    await asyncio.wait({task})
    assert task.cancelled()
    assert slots(scope) == [("done", None)] * 2


async def test_a_run_without_time_begins_nothing_more() -> None:
    stage, scope, room = await asked(visits("a", "b", "c"), parallel=2, max_seconds=60)
    task = begun(scope)
    await room.wait_for("a", "b")
    stage.clock.advance(60)
    for name in "abc":
        room.door(name).set()
    await task
    assert slots(scope) == [("done", None)] * 2 + [("open", None)]
    await check_counts(stage, scope)


async def test_a_medium_that_fails_ends_all_and_its_error_is_the_one_that_is_raised() -> None:
    """(R90)"""

    async def hook(facts: Sequence[Fact]) -> None:
        if isinstance(facts[0], SlotMoved) and facts[0].state == "done":
            raise OSError("full")

    backend = SlowBackend()
    _, scope, room = await asked(visits("a", "b", "c"), backend=backend)
    backend.hook = hook
    task = begun(scope)
    await room.wait_for("a", "b", "c")
    room.door("b").set()
    with pytest.raises(PersistenceError):
        await task
    assert room.inside == set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- what is left over


async def test_one_that_is_left_over_lets_the_others_end_and_holds_up_those_that_have_not_begun() -> None:
    """(R336)"""
    release = asyncio.Event()

    @al.tool(timeout=0.02, grace=0.02)
    async def stubborn() -> None:
        """Keep every cancel."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    calls = [call("stubborn"), *visits("a", "b")]
    stage, scope, room = await asked(calls, tools=[*TOOLS, stubborn], parallel=2)
    try:
        task = begun(scope)
        await room.wait_for("a")
        async with asyncio.timeout(10):
            while scope.turn.entries[0].slots[2].state == "open":  # noqa: ASYNC110  # until the clock has run out
                await asyncio.sleep(0.005)
        room.door("a").set()
        await task
        assert slots(scope) == [("unknown", "timeout"), ("done", None), ("failed", "thread_busy")]
        await check_counts(stage, scope)
    finally:
        release.set()
    assert await stage.pool.wait_idle(10) == 0


async def test_a_sibling_is_not_repeated_beside_what_is_left_over() -> None:
    """(R331)"""
    release, began = asyncio.Event(), Counter[str]()

    def member(name: str, *, keeps: bool, timeout: float) -> al.Tool:
        @al.tool(name=name, timeout=timeout, grace=0.02, idempotent=True)
        async def tool() -> None:
            """Run out of time."""
            began[name] += 1
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    if not keeps:
                        raise

        return tool

    tools = [member("keeps", keeps=True, timeout=0.02), member("late", keeps=False, timeout=0.5)]
    stage, scope, _ = await asked([call("keeps"), call("late")], tools=tools)
    try:
        await begun(scope)
        assert slots(scope) == [("failed", "timeout")] * 2
        assert began == {"keeps": 1, "late": 1}
        await check_counts(stage, scope)
    finally:
        release.set()
    assert await stage.pool.wait_idle(10) == 0
