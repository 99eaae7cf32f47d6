"""A call whose child run waits: the execution is left, waits, and goes on; what is debited for it, and what ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import ChildWaits, Scope, answer_call, answer_calls, give_back, send, skip_calls
from agentloop.exchange import SlotMoved
from agentloop.testing import call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend


class Children:
    """The child runs of a scope.

    Attributes:
        waits: ids of the executions whose children wait for a host. asked, ended: which were, in order.
    """

    def __init__(self, *waits: str) -> None:
        self.waits = set(waits)
        self.asked: list[str] = []
        self.ended: list[str] = []

    async def spawn(self, effect_id: str, agent: Any, input: Any) -> Any:
        self.asked.append(effect_id)
        await asyncio.sleep(0)
        if effect_id in self.waits:
            error = al.OutcomeError("waiting_for_approval", "external", effect_id)
            raise ChildWaits(effect_id, error, kinds="external")
        return f"child of {effect_id}"

    async def end(self, effect_id: str) -> None:
        await asyncio.sleep(0)
        self.ended.append(effect_id)


@al.tool(idempotent=True, max_calls=3)
async def ask(ctx: al.ToolContext[None]) -> str:
    """Ask an agent."""
    assert ctx.spawn is not None
    return str(await ctx.spawn("agent", "task"))


async def asked(children: Children, count: int = 1, **options: Any) -> tuple[Stage, Scope]:
    """A scope whose newest reply asks an agent so often."""
    calls = [call("ask", call_id=str(number)) for number in range(count)]
    options.setdefault("max_parallel_tools", 2)
    stage = Stage([reply(calls=calls)], tools=[ask], **options)
    scope = await stage.open(spawn=children.spawn, end_child=children.end)
    await send(scope)
    return stage, scope


def slots(scope: Scope) -> list[tuple[str, str | None, int]]:
    return [(slot.state, slot.code, slot.attempt) for slot in scope.turn.entries[0].slots]


@pytest.mark.parametrize("together", [False, True])
async def test_an_execution_whose_child_waits_goes_on_later_as_the_same(together: bool) -> None:
    children = Children("r/0.0", "r/0.1")
    stage, scope = await asked(children, 2, max_tool_calls=2)
    positions = (0, 1)

    async def answer() -> None:
        if together:
            await answer_calls(scope, 0, positions)
        else:
            for position in positions:
                await answer_call(scope, 0, position)

    for _ in range(3):  # it costs what it cost when it began
        await answer()
        assert slots(scope) == [("waiting", "child", 1)] * 2
        assert scope.held == {(0, 0): "external", (0, 1): "external"}
        assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == 2
    children.waits.clear()
    await answer()
    assert slots(scope) == [("done", None, 1)] * 2
    assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == 2
    assert children.asked == ["r/0.0", "r/0.1"] * 4
    ends = [event for event in stage.events if isinstance(event, al.ToolEnded) and event.invocation_id == "r/0.0"]
    assert [(end.status, end.slot, end.code) for end in ends] == [
        *[("waiting", "waiting", "child")] * 3,
        ("success", "done", None),
    ]


async def test_another_scope_asks_again_and_debits_nothing() -> None:
    children = Children("r/0.0")
    stage, scope = await asked(children)
    await answer_call(scope, 0, 0)
    children.waits.clear()
    again = stage.open_again(spawn=children.spawn)
    assert again.held == {}
    await answer_call(again, 0, 0)
    assert slots(again) == [("done", None, 1)]
    assert stage.ledger.spent("tool_calls") == 0


async def test_a_claim_to_go_on_that_is_given_back_waits_as_before() -> None:
    children, task = Children("r/0.0"), None

    async def hook(facts: Any) -> None:
        if task is not None and isinstance(facts[0], SlotMoved) and facts[0].state == "started":
            task.cancel()
            await asyncio.sleep(0)

    stage, scope = await asked(children, backend=SlowBackend(hook))
    await answer_call(scope, 0, 0)
    for together in (False, True):
        task = asyncio.create_task(answer_calls(scope, 0, (0,)) if together else answer_call(scope, 0, 0))
        with pytest.raises(asyncio.CancelledError):
            await task
        if not together:
            assert slots(scope) == [("started", None, 1)]
            await give_back(scope)
        assert slots(scope) == [("waiting", "child", 1)]
        assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == 1
    assert children.asked == ["r/0.0"]


async def test_a_cancel_that_meets_the_write_is_raised_when_the_call_waits() -> None:
    async def hook(facts: Any) -> None:
        if isinstance(facts[0], SlotMoved) and facts[0].state == "waiting":
            task.cancel()
            await asyncio.sleep(0)

    _, scope = await asked(Children("r/0.0"), backend=SlowBackend(hook))
    task = asyncio.create_task(answer_call(scope, 0, 0))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slots(scope) == [("waiting", "child", 1)]
    assert scope.held == {(0, 0): "external"}


async def test_the_child_is_ended_before_the_call_is_skipped() -> None:
    children = Children("r/0.0")
    _, scope = await asked(children, 2)
    await answer_call(scope, 0, 0)

    async def end(effect_id: str) -> None:
        assert slots(scope)[0] == ("waiting", "child", 1)
        await children.end(effect_id)

    scope.end_child = end
    await skip_calls(scope, 0, (0, 1), code="cancelled", text="the run was cancelled")
    assert children.ended == ["r/0.0"]
    assert [slot.feedback.text for slot in scope.turn.entries[0].slots if slot.feedback is not None] == [
        "The agent that this call asked was cancelled: the run was cancelled.",
        "This call was not run: the run was cancelled.",
    ]


async def test_a_child_that_cannot_be_ended_leaves_its_call_as_it_is() -> None:
    _, scope = await asked(Children("r/0.0"))
    await answer_call(scope, 0, 0)
    scope.end_child = None
    with pytest.raises(al.InputError, match=r"expected a run that can end run 'r/0\.0', which it waits for"):
        await skip_calls(scope, 0, (0,), code="cancelled", text="the run was cancelled")
    assert slots(scope) == [("waiting", "child", 1)]


async def test_a_child_that_was_left_for_another_reason_leaves_its_call_unanswered() -> None:
    deep = al.UnsettledError("r/0.0/0.0", ("s",), ())

    async def spawn(effect_id: str, agent: Any, input: Any) -> Any:
        error = al.UnsettledError("r/0.0", (), ("0.0",), deep.ref)
        raise ChildWaits(effect_id, error)

    _, scope = await asked(Children())
    scope.spawn = spawn
    with pytest.raises(al.UnsettledError) as caught:
        await answer_call(scope, 0, 0)
    assert (caught.value.ref, caught.value.calls, caught.value.below) == ("r", ("0.0",), "r/0.0/0.0")
    assert slots(scope) == [("started", None, 1)]


async def test_what_is_put_back_with_others_was_not_debited() -> None:
    children, total = Children("r/0.0"), al.Ledger(tool_calls=3)
    stage, scope = await asked(children, 3, ledger=total.child())
    await answer_call(scope, 0, 0)
    total.debit("tool_calls")  # another user of the same ledger was quicker
    with pytest.raises(al.BudgetError):
        await answer_calls(scope, 0, range(3))
    assert slots(scope)[0] == ("waiting", "child", 1)
    assert (stage.ledger.spent("tool_calls"), total.spent("tool_calls")) == (1, 2)


@pytest.mark.parametrize("together", [False, True])
async def test_what_goes_on_is_held_up_by_nothing_that_is_left_over(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    children = Children("r/0.0")
    _, scope = await asked(children)
    await answer_call(scope, 0, 0)
    children.waits.clear()
    monkeypatch.setattr("agentloop.effects.claims.busy_tool", lambda *_: "other")
    await (answer_calls(scope, 0, (0,)) if together else answer_call(scope, 0, 0))
    assert slots(scope) == [("done", None, 1)]
