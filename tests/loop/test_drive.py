"""The driver: one durable action a step, and a usable history at every end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import Ledger
from agentloop.exchange import RunClosed, SlotMoved
from agentloop.loop import Phase, advance, close, drive
from agentloop.testing import call, reply
from tests.effects.stage import Stage
from tests.runs import check_order


@al.tool
async def ping() -> str:
    """Answer."""
    return "pong"


async def test_each_advance_does_one_action_and_says_where_the_run_is() -> None:
    stage = Stage([reply(calls=[call("ping"), call("ping")]), reply("done")], tools=[ping])
    scope = await stage.open()
    phases, facts = [], []
    while not phases or phases[-1] is not Phase.ENDED:
        phases.append(await advance(scope))
        facts.append(len(await stage.facts()))
    asking, answering = Phase.ASKING, Phase.ANSWERING
    assert phases == [answering, answering, asking, asking, Phase.ENDED]
    assert facts == [4, 6, 7, 10, 11]
    assert await advance(scope) is Phase.ENDED
    assert len(await stage.facts()) == 11


async def test_another_engine_may_do_what_the_driver_does_and_leave_off_anywhere() -> None:
    """What is next follows from the facts alone."""
    script = [reply(calls=[call("ping")]), reply("done")]
    ends = []
    for steps in range(5):
        stage = Stage(script, tools=[ping])
        scope = await stage.open()
        for _ in range(steps):
            await advance(scope)
        await drive(scope)
        ends.append([type(fact).__name__ for fact in await stage.facts()])
        assert scope.turn.closed is not None
        assert scope.turn.closed.outcome == "completed"
    assert all(end == ends[0] for end in ends)


@pytest.mark.parametrize(
    ("found", "phases"),
    [
        ("pong", [Phase.ASKING, Phase.ASKING, Phase.ENDED]),
        (al.NOT_DONE, [Phase.ANSWERING, Phase.ASKING, Phase.ASKING, Phase.ENDED]),
    ],
)
async def test_a_lookup_is_an_action_of_its_own(found: Any, phases: list[Phase]) -> None:
    """(R134)"""

    async def find() -> Any:
        return found

    @al.tool(name="ping", recovery=find)
    async def again() -> str:
        """Answer."""
        return "pong"

    stage = Stage([reply(calls=[call("ping")]), reply("done")], tools=[again])
    scope = await stage.open()
    await advance(scope)
    scope.claim = None  # its owner died before the tool began
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=1))
    assert [await advance(scope) for _ in phases] == phases
    (slot,) = scope.turn.entries[0].slots
    assert slot.feedback is not None
    assert (slot.state, slot.feedback.text, slot.attempt) == ("done", "pong", 1 if found == "pong" else 2)


async def test_a_driven_run_tells_its_start_and_its_end_once() -> None:
    stage = Stage([reply(calls=[call("ping")]), reply("done")], tools=[ping])
    await drive(await stage.open())
    check_order(stage.events)
    assert stage.types.count("run.started") == stage.types.count("run.ended") == 1


async def test_a_run_that_was_cancelled_before_it_began_does_nothing_but_say_so() -> None:
    stage = Stage([reply("never")])
    scope = await stage.open()
    with pytest.raises(asyncio.CancelledError):
        await drive(scope, cancelled=True)
    assert [type(fact) for fact in await stage.facts()] == [RunClosed]
    assert stage.types == ["run.started", "run.ended"]
    assert stage.provider.requests == []


async def test_a_ledger_that_somebody_else_emptied_meanwhile_skips_what_is_open() -> None:
    """(R278, R279)"""
    shared = Ledger(tool_calls=2)

    @al.tool
    async def greedy() -> str:
        """Spends what others counted on."""
        shared.debit("tool_calls")
        return "ok"

    script = [reply(calls=[call("greedy"), call("greedy")])]
    stage = Stage(script, tools=[greedy], ledger=shared.child(tool_calls=5))
    scope = await stage.open()
    await drive(scope)
    assert scope.turn.closed is not None
    assert (scope.turn.closed.outcome, scope.turn.closed.reason) == ("limit_reached", "max_tool_calls")
    assert [slot.state for slot in scope.turn.entries[0].slots] == ["done", "skipped"]


async def test_a_ledger_that_is_empty_from_the_start_is_an_outcome() -> None:
    stage = Stage([], ledger=Ledger(model_calls=0))
    scope = await stage.open()
    await drive(scope)
    assert scope.turn.closed is not None
    assert (scope.turn.closed.outcome, scope.turn.closed.reason) == ("limit_reached", "max_model_calls")


async def test_closing_again_the_same_way_adds_nothing_and_another_way_is_a_conflict() -> None:
    stage = Stage([reply("done")])
    scope = await stage.open()
    await drive(scope)
    count = len(await stage.facts())
    await close(scope, "completed", "stop")
    assert len(await stage.facts()) == count
    with pytest.raises(al.ConflictError, match="expected a running run, got one that completed"):
        await close(scope, "cancelled", "cancelled")


async def test_whoever_keeps_a_cancel_to_himself_does_not_keep_the_run_going() -> None:
    """(R62)"""
    task: asyncio.Task[Any] | None = None

    async def deaf(request: al.ModelRequest) -> Any:
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        return reply(calls=[call("ping")])

    stage = Stage([deaf], tools=[ping])
    scope = await stage.open()
    task = asyncio.create_task(drive(scope))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scope.turn.closed is not None
    assert scope.turn.closed.outcome == "cancelled"
    assert [slot.state for slot in scope.turn.entries[0].slots] == ["skipped"]


async def test_a_claimed_call_whose_time_is_up_before_it_begins_is_given_back_and_skipped() -> None:
    """(R102)"""

    class Late:
        async def emit(self, event: al.Event) -> None:
            if event.type == "model.end":
                stage.clock.advance(5)

    script = [reply(calls=[call("ping"), call("ping")])]
    stage = Stage(script, tools=[ping], sink=Late(), max_seconds=5)
    scope = await stage.open()
    await drive(scope)
    assert scope.turn.closed is not None
    assert (scope.turn.closed.outcome, scope.turn.closed.reason) == ("limit_reached", "max_seconds")
    moves = [(fact.position, fact.state) for fact in await stage.facts() if isinstance(fact, SlotMoved)]
    assert moves == [(0, "started"), (0, "open"), (0, "skipped"), (1, "skipped")]
    assert (scope.turn.tool_calls, "tool.started" in stage.types) == (0, False)


async def test_no_call_is_claimed_with_the_reply_to_a_request_that_was_refused_before() -> None:
    """The next one may be another provider's, which may bear less (R103)."""
    busy = al.HTTPStatusError("HTTP 429", status=429, retry_after=0.0)
    stage = Stage([busy, reply(calls=[call("ping")]), reply("done")], tools=[ping])
    scope = await stage.open(resend=al.ResendPolicy(max_resends=1), sleep=lambda seconds: asyncio.sleep(0))
    while not scope.turn.entries:
        await advance(scope)
    (slot,) = scope.turn.entries[0].slots
    assert (slot.state, scope.claim) == ("open", None)
    await drive(scope)
    assert scope.turn.closed is not None
    assert (scope.turn.closed.outcome, slot.state, stage.ledger.spent("tool_calls")) == ("completed", "done", 1)


# -- what an earlier owner left


async def lost(tool: al.Tool, **limits: Any) -> tuple[Stage, Any]:
    """A run with two calls that were started and whose owner died; the tool may run again."""
    stage = Stage([reply(calls=[call(tool.name), call(tool.name)])], tools=[tool], **limits)
    scope = await stage.open()
    await advance(scope)
    scope.claim = None
    await scope.commit(lambda book: book.start_slot(scope.turn, 0, 1, effect_id="r/0.1", at_ms=4))
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=4))
    return stage, scope


async def test_a_cancel_closes_no_run_of_which_something_is_unknown() -> None:
    """Nobody could say what to tell the model of the second call (R134)."""
    begun = asyncio.Event()

    @al.tool(idempotent=True)
    async def hang() -> str:
        """Never end."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    stage, scope = await lost(hang)
    task = asyncio.create_task(drive(scope))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scope.turn.closed is None
    assert [(slot.state, slot.feedback is None) for slot in scope.turn.entries[0].slots] == [
        ("unknown", False),
        ("unknown", True),
    ]
    assert (stage.events[-1].outcome, stage.events[-1].reason) == ("unsettled", "cancelled")  # type: ignore[union-attr]


async def test_a_clock_closes_no_run_of_which_something_is_unknown() -> None:
    """(R134)"""

    @al.tool(idempotent=True)
    async def hang() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    stage, scope = await lost(hang, max_seconds=0.05)
    with pytest.raises(al.UnsettledError) as caught:
        await drive(scope)
    assert caught.value.calls == ("0.1",)
    assert scope.turn.closed is None
    assert stage.types.count("run.ended") == 1


@pytest.mark.parametrize(
    "error", [al.UnsettledError("other", (), ()), al.RunPaused("other"), al.NotOwnerError("run 'other'", "another's")]
)
async def test_an_error_of_another_run_is_an_error_as_any(error: al.AgentLoopError) -> None:
    """A sink may itself ask a runtime for something."""

    class Sink:
        async def emit(self, event: al.Event) -> None:
            if event.type == "model.start":
                raise error

    stage = Stage([reply("never")], sink=Sink())
    scope = await stage.open()
    with pytest.raises(type(error)):
        await drive(scope)
    assert scope.turn.closed is not None
    assert (scope.turn.closed.outcome, scope.turn.closed.reason) == ("failed", error.code)
