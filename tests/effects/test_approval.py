"""Whether a call waits for a host before anything of it runs, and why."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import Scope, answer_call, send
from agentloop.effects.approval import why_waits
from agentloop.exchange import Entry, SlotMoved
from agentloop.messages import ToolFeedback
from agentloop.testing import ScriptedProvider, call, reply
from tests.effects.stage import Stage

ran: list[int] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def paying(approval: Any) -> al.Tool:
    @al.tool(approval=approval)
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return f"paid {amount}"

    return pay


@al.external
def ask(question: str) -> str:
    """Ask a person."""
    raise AssertionError("the body of an external tool is never called")


def first(entry: Entry, answered: int | None, _feedback: ToolFeedback | None) -> int | None:
    """Chooses the first open call."""
    return next((p for p, slot in enumerate(entry.slots) if slot.state == "open" and p != answered), None)


async def asked(tool: al.Tool, *, choose: Any = None, **arguments: Any) -> tuple[Stage, Scope]:
    stage = Stage([reply(calls=[call(tool.name, **arguments)])], tools=[tool])
    scope = await stage.open(deps="bank")
    await send(scope, choose)
    return stage, scope


async def states(stage: Stage) -> list[tuple[str, str | None]]:
    return [(fact.state, fact.code) for fact in await stage.facts() if isinstance(fact, SlotMoved)]


async def test_a_call_that_needs_an_approval_waits_and_nothing_is_charged_or_told() -> None:
    """(R337)"""
    stage, scope = await asked(paying("required"), amount=3)
    told = len(stage.events)
    await answer_call(scope, 0, 0)
    assert await states(stage) == [("waiting", "approval")]
    assert (ran, stage.ledger.spent("tool_calls"), len(stage.events)) == ([], 0, told)


async def test_a_call_of_an_external_tool_waits_for_its_result() -> None:
    stage, scope = await asked(ask, question="Why?")
    await answer_call(scope, 0, 0)
    assert await states(stage) == [("waiting", "external")]


@pytest.mark.parametrize(("tool", "name"), [(paying("required"), "amount"), (ask, "question")])
async def test_bad_arguments_are_feedback_at_once(tool: al.Tool, name: str) -> None:
    """(R55)"""
    stage, scope = await asked(tool, **{name: [1]})
    await answer_call(scope, 0, 0)
    assert await states(stage) == [("failed", "schema_mismatch")]


async def test_a_predicate_is_asked_with_the_arguments_as_admitted_and_a_context_of_the_call() -> None:
    seen: list[Any] = []

    def over_ten(arguments: dict[str, Any], ctx: al.ToolContext[str]) -> bool:
        seen.append(
            (dict(arguments), ctx.deps, ctx.run_id, ctx.agent, ctx.tool, ctx.call_id, ctx.effect_id, ctx.attempt)
        )
        arguments["amount"] = 0  # of its own copy
        return seen[-1][0]["amount"] > 10  # type: ignore[no-any-return]

    for amount, expected in ((11, [("waiting", "approval")]), (10, [("started", None), ("done", None)])):
        stage, scope = await asked(paying(over_ten), amount=amount)
        await answer_call(scope, 0, 0)
        assert await states(stage) == expected
    assert ran == [10]
    assert seen[0] == ({"amount": 11}, "bank", "r", "a", "pay", "call_1", "r/0.0", 1)


async def coroutine(_arguments: dict[str, Any], ctx: Any) -> bool:
    return True


FAULTS: list[tuple[Callable[..., Any], str]] = [
    (lambda *_: 1 / 0, "ZeroDivisionError"),
    (lambda *_: 1, "a value of type int"),
    (lambda *_: None, "a value of type NoneType"),
    (lambda *_: "no", "a value of type str"),
    (lambda arguments, ctx: coroutine(arguments, ctx=ctx), "an awaitable of type coroutine"),
    (lambda *_: 1 + "", "TypeError"),  # type: ignore[operator]  # raised, as by a predicate that has a fault
]


@pytest.mark.parametrize(("predicate", "got"), FAULTS, ids=[got for _, got in FAULTS])
async def test_a_predicate_that_answers_no_bool_ends_the_run_before_the_call_runs(predicate: Any, got: str) -> None:
    stage, scope = await asked(paying(predicate), amount=3)
    with pytest.raises(al.ApprovalFailed) as caught:
        await answer_call(scope, 0, 0)
    error = caught.value
    assert (error.tool, error.call_id, error.effect_id, error.error_type) == ("pay", "call_1", "r/0.0", got)
    assert not error.may_have_been_processed
    assert pickle.loads(pickle.dumps(error)).error_type == got
    assert (error.__cause__ is None) == got.startswith("a")
    assert (await states(stage), ran) == ([], [])


async def test_an_async_predicate_is_refused_when_the_tool_is_made() -> None:
    assert inspect.iscoroutinefunction(coroutine)
    with pytest.raises(al.InputError, match="approval: expected a function that is sync"):
        paying(coroutine)
    with pytest.raises(al.InputError, match="approval: expected a function that takes the arguments and a ToolContext"):
        paying(lambda: True)


@pytest.mark.parametrize("approval", ["required", lambda *_: True, lambda *_: 1 / 0])
async def test_a_call_that_waits_or_may_is_not_claimed_ahead_with_its_reply(approval: Any) -> None:
    """(R80)"""
    stage, scope = await asked(paying(approval), choose=first, amount=3)
    assert scope.claim is None
    assert (await states(stage), stage.ledger.spent("tool_calls")) == ([], 0)


async def test_a_call_that_its_predicate_lets_pass_is_claimed_ahead() -> None:
    stage, scope = await asked(paying(lambda *_: False), choose=first, amount=3)
    assert scope.claim is not None
    assert await states(stage) == [("started", None)]
    await answer_call(scope, 0, 0)
    assert ran == [3]


async def test_a_call_that_a_host_decided_about_is_not_asked_about_again() -> None:
    stage, scope = await asked(paying("required"), amount=3)
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    tool = stage.tools.require("pay")
    assert why_waits(scope, slot, tool, {"amount": 3}, effect_id="r/0.0") is None  # it waits already
    waiting = (await stage.facts())[-1]
    approved = SlotMoved(
        run_id="r", origin_id="o", exchange=0, position=0, state="open", at_ms=9, code="approved", author="Ann"
    )
    await stage.store.commit(lambda _: (approved,), run_id="r")
    assert isinstance(waiting, SlotMoved)
    await answer_call(scope, 0, 0)
    assert await states(stage) == [("waiting", "approval"), ("open", "approved"), ("started", None), ("done", None)]
    assert ran == [3]


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, type("Own", (BaseException,), {})])
async def test_whatever_a_predicate_raises_the_call_before_keeps_its_answer(error: type[BaseException]) -> None:
    """A sync function's CancelledError is nobody's cancel."""

    def broken(arguments: dict[str, Any], ctx: Any) -> bool:
        raise error

    @al.tool
    async def first() -> str:
        """Do this first."""
        return "done"

    agent = al.Agent(name="a", tools=[first, paying(broken)])
    asked_for = reply(calls=[call("first"), call("pay", amount=3, call_id="2")])
    async with al.Runtime(ScriptedProvider([asked_for])) as runtime:
        with pytest.raises(al.ApprovalFailed, match=error.__name__):
            await runtime.run(agent, "go", run_id="r", deps=[])
        slots = runtime._store.book.turn("r").entries[0].slots
        assert [(slot.state, slot.code) for slot in slots] == [("done", None), ("skipped", "approval_failed")]
