"""What a lookup finds is stored; what it does not find out is left alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.effects import Scope, recover_calls, send
from agentloop.exchange import OutputKept, RerunAllowed, Slot, SlotMoved
from agentloop.messages import ToolResult
from agentloop.testing import call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend


def member(name: str, recovery: Callable[..., Any], **options: Any) -> al.Tool:
    @al.tool(name=name, recovery=recovery, **options)
    async def pay(n: int) -> str:
        """Pay."""
        raise AssertionError("no tool runs here")

    return pay


async def lost(*tools: al.Tool, backend: Any = None, **fields: Any) -> tuple[Stage, Scope]:
    """A scope whose newest reply asks each tool once, all of them started by an owner that ended."""
    script = [reply(calls=[call(tool.name, n=at) for at, tool in enumerate(tools)])]
    stage = Stage(script, tools=tools, backend=backend)
    scope = await stage.open(**fields)
    await send(scope)
    for at in range(len(tools)):
        await scope.commit(lambda book, at=at: book.start_slot(scope.turn, 0, at, effect_id=f"r/0.{at}", at_ms=1))
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=1))
    return stage, scope


def slots_of(scope: Scope) -> tuple[Slot, ...]:
    return scope.turn.entries[0].slots


def told(slot: Slot) -> tuple[str, str | None, str | None]:
    return slot.state, slot.code, None if slot.feedback is None else slot.feedback.text


async def test_a_result_settles_its_call_in_the_name_of_the_lookup() -> None:
    """Nothing is started, charged or told as an execution (R134)."""

    async def find(n: int, ctx: al.ToolContext[Any]) -> dict[str, Any]:
        await ctx.progress("looking")
        return {"n": n, "id": ctx.effect_id, "attempt": ctx.attempt, "call": ctx.call_id, "deps": ctx.deps}

    stage, scope = await lost(member("pay", find), deps="mine")
    types, facts = stage.types, len(await stage.facts())
    await recover_calls(scope, 0, (0,))
    (slot,) = slots_of(scope)
    text = f'{{"n":0,"id":"r/0.0","attempt":1,"call":"{slot.call.id}","deps":"mine"}}'
    assert told(slot) == ("done", "settled", text)
    (moved,) = (await stage.facts())[facts:]
    assert isinstance(moved, SlotMoved)
    assert (moved.author, moved.effect_id, moved.attempt) == ("recovery:pay", "r/0.0", 1)
    assert stage.types == types
    assert (stage.ledger.spent("tool_calls"), scope.turn.tool_calls) == (0, 1)


async def test_a_lookup_is_given_what_its_tool_was() -> None:
    async def find(n: int) -> int:
        return n + 1

    @al.tool(recovery=find, coerce=True)
    async def pay(n: int) -> int:
        """Pay."""
        raise AssertionError("no tool runs here")

    stage = Stage([reply(calls=[call("pay", arguments_text='{"n": "7"}')])], tools=[pay])
    scope = await stage.open()
    await send(scope)
    await scope.commit(lambda book: book.start_slot(scope.turn, 0, 0, effect_id="r/0.0", at_ms=1))
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=1))
    await recover_calls(scope, 0, (0,))
    assert told(slots_of(scope)[0]) == ("done", "settled", "8")


async def test_an_error_result_settles_its_call_as_failed() -> None:
    _, scope = await lost(member("pay", lambda_of(ToolResult.error("no funds"))))
    await recover_calls(scope, 0, (0,))
    assert told(slots_of(scope)[0]) == ("failed", "settled", "no funds")


def lambda_of(value: Any) -> Callable[..., Any]:
    async def find(n: int) -> Any:
        return value

    return find


async def test_what_was_not_done_may_run_once_more() -> None:
    stage, scope = await lost(member("pay", lambda_of(al.NOT_DONE)))
    await recover_calls(scope, 0, (0,))
    (slot,) = slots_of(scope)
    assert (slot.state, slot.feedback, slot.rerun, slot.effect_id) == ("unknown", None, True, "r/0.0")
    allowed = (await stage.facts())[-1]
    assert isinstance(allowed, RerunAllowed)
    assert allowed.author == "recovery:pay"


async def test_a_sync_lookup_runs_in_a_thread_and_sees_what_its_run_sees() -> None:
    seen: list[Any] = []

    def find(n: int, ctx: al.ToolContext[Any]) -> str:
        seen.append(threading.current_thread() is threading.main_thread())
        return f"found {ctx.effect_id}"

    _, scope = await lost(member("pay", find))
    await recover_calls(scope, 0, (0,))
    assert seen == [False]
    assert told(slots_of(scope)[0]) == ("done", "settled", "found r/0.0")


async def test_a_result_is_held_to_the_sizes_of_the_tool() -> None:
    """What does not fit is kept beside the answer (R98, R101)."""
    stage, scope = await lost(
        member("pay", lambda_of("x" * 9_000)), member("buy", lambda_of("y" * 9_000), max_output_bytes=300)
    )
    await recover_calls(scope, 0, (0, 1))
    texts = [slot.feedback.text for slot in slots_of(scope) if slot.feedback is not None]
    assert [text[-45:].partition("[")[2] for text in texts] == ["cut: the full output is 9000 bytes, kept]"] * 2
    assert [len(text) > 300 for text in texts] == [True, False]
    facts = await stage.facts()
    assert [type(fact).__name__ for fact in facts[-4:]] == ["SlotMoved", "OutputKept"] * 2
    assert [fact.text for fact in facts if isinstance(fact, OutputKept)] == ["x" * 9_000, "y" * 9_000]
    assert all(len(msgspec.json.encode(slot.feedback)) <= scope.limits.feedback_bytes for slot in slots_of(scope))


class Missing(Exception):
    """The resource does not answer."""


async def test_a_lookup_that_raises_leaves_its_call_alone_and_is_the_cause() -> None:
    async def find(n: int) -> str:
        raise Missing("the bank is away")

    stage, scope = await lost(member("pay", find))
    facts = await stage.facts()
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert (caught.value.ref, caught.value.sends, caught.value.calls) == ("r", (), ("0.0",))
    assert isinstance(caught.value.__cause__, Missing)
    assert "bank" not in str(caught.value)
    assert await stage.facts() == facts


@pytest.mark.parametrize("error", [al.ToolFailed("no"), Missing("no"), asyncio.CancelledError(), TimeoutError("own")])
@pytest.mark.parametrize("threaded", [False, True])
async def test_no_error_of_a_lookup_is_taken_for_an_answer(error: BaseException, threaded: bool) -> None:
    """Also not one that its tool declares."""

    async def find(n: int) -> str:
        raise error

    def find_in_thread(n: int) -> str:
        raise error

    _, scope = await lost(member("pay", find_in_thread if threaded else find, errors=(Missing,)))
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert caught.value.__cause__ is error
    assert told(slots_of(scope)[0]) == ("unknown", "owner_ended", None)


@pytest.mark.parametrize("value", [float("nan"), b"x", object()])
async def test_a_value_that_cannot_be_a_result_is_no_answer(value: Any) -> None:
    """(R160)"""
    _, scope = await lost(member("pay", lambda_of(value)))
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert isinstance(caught.value.__cause__, al.ToolResultError)


async def test_an_awaitable_from_a_sync_lookup_is_no_answer() -> None:
    def find(n: int) -> Any:
        return asyncio.sleep(0)

    _, scope = await lost(member("pay", find))
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert isinstance(caught.value.__cause__, al.ToolResultError)


async def test_a_lookup_has_the_time_of_its_tool() -> None:
    async def find(n: int) -> str:
        await asyncio.Event().wait()
        return ""

    _, scope = await lost(member("pay", find, timeout=0.01))
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert str(caught.value.__cause__) == "the lookup of tool 'pay' did not end within 0.01 s"


async def test_one_that_fails_does_not_keep_another_from_being_stored() -> None:
    """(R134)"""
    errors = [Missing("a"), Missing("b")]

    def failing(error: Exception) -> Callable[..., Any]:
        async def find(n: int) -> str:
            raise error

        return find

    _, scope = await lost(
        member("one", failing(errors[0])), member("two", lambda_of("found")), member("three", failing(errors[1]))
    )
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0, 1, 2))
    assert caught.value.calls == ("0.0", "0.2")
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
    assert list(caught.value.__cause__.exceptions) == errors
    assert [slot.state for slot in slots_of(scope)] == ["unknown", "done", "unknown"]


async def test_nothing_is_looked_up_while_a_thread_of_the_run_goes_on() -> None:
    """A sync lookup that ran out of time is such a thread, and what it would have said is not waited for."""
    release, asked = threading.Event(), []

    def slow(n: int) -> str:
        asked.append(n)
        release.wait(10)
        return ""

    stage, scope = await lost(member("one", slow, timeout=0.25, grace=0.02), member("two", slow))
    try:
        with pytest.raises(al.UnsettledError) as caught:
            await recover_calls(scope, 0, (0, 1))
        assert caught.value.calls == ("0.0", "0.1")
        assert isinstance(caught.value.__cause__, TimeoutError)
        with pytest.raises(al.UnsettledError) as again:
            await recover_calls(scope, 0, (0, 1))
        assert again.value.__cause__ is None
        assert asked == [0]
    finally:
        release.set()
        await stage.pool.wait_idle(10)


async def test_a_paused_run_asks_no_further() -> None:
    asked: list[int] = []

    async def find(n: int) -> str:
        asked.append(n)
        return "found"

    _, scope = await lost(member("one", find), member("two", find), paused=lambda: bool(asked))
    await recover_calls(scope, 0, (0, 1))
    assert asked == [0]
    assert [slot.state for slot in slots_of(scope)] == ["done", "unknown"]


async def test_a_cancel_ends_a_lookup_and_leaves_its_call_alone() -> None:
    asked = asyncio.Event()

    async def find(n: int) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    _, scope = await lost(member("pay", find))
    task = asyncio.create_task(recover_calls(scope, 0, (0,)))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told(slots_of(scope)[0]) == ("unknown", "owner_ended", None)


async def test_a_cancel_that_meets_the_write_is_raised_once_what_was_found_is_stored() -> None:
    writing, go = asyncio.Event(), asyncio.Event()
    asked: list[int] = []

    async def find(n: int) -> str:
        asked.append(n)
        return "found"

    async def hook(facts: Any) -> None:
        if getattr(facts[0], "author", None):
            writing.set()
            await go.wait()

    _, scope = await lost(member("one", find), member("two", find), backend=SlowBackend(hook))
    task = asyncio.create_task(recover_calls(scope, 0, (0, 1)))
    await writing.wait()
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked == [0]
    assert [slot.state for slot in slots_of(scope)] == ["done", "unknown"]


async def test_a_lookup_that_finds_nothing_and_says_none_is_no_answer() -> None:
    """(R139)"""

    async def find(n: int) -> None:
        """What a lookup in a table comes to that has no such id."""

    _, scope = await lost(member("pay", find))
    with pytest.raises(al.UnsettledError) as caught:
        await recover_calls(scope, 0, (0,))
    assert isinstance(caught.value.__cause__, al.ToolResultError)
    assert "NOT_DONE, got None" in str(caught.value.__cause__)
    assert scope.turn.entries[0].slots[0].feedback is None
