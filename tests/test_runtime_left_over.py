"""A tool that does not end holds up neither its run nor the closing of the runtime, and is not forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider, call, reply
from tests.runs import check_end, other_tasks, turn_of

SOON = 0.02


class Gate:
    """Deps: what stubborn tools wait for, whatever cancels meet them.

    Attributes:
        ran: names of the tools that began.
    """

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()
        self.ran: list[str] = []

    async def hold(self) -> None:
        self.begun.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                pass


def stubborn(**policy: Any) -> al.Tool:
    @al.tool(name="stubborn", grace=SOON, **policy)
    async def tool(ctx: al.ToolContext[Gate]) -> str:
        """Keep every cancel."""
        ctx.deps.ran.append("stubborn")
        await ctx.deps.hold()
        await ctx.progress("at last")
        raise ValueError("nobody hears this")

    return tool


@al.tool
async def fine(ctx: al.ToolContext[Gate]) -> str:
    """Work."""
    ctx.deps.ran.append("fine")
    return "fine"


def asks(*names: str) -> al.ModelReply:
    return reply(calls=[call(name) for name in names])


@pytest.mark.parametrize(("idempotent", "state"), [(True, "failed"), (False, "unknown")])
async def test_a_call_is_answered_though_its_tool_keeps_the_cancel(idempotent: bool, state: str) -> None:
    """It is not repeated while it lives, and nothing of its conversation begins beside it (R331, R336)."""
    gate = Gate()
    agent = al.Agent(name="a", tools=[stubborn(timeout=SOON, idempotent=idempotent), fine])

    async def then(request: al.ModelRequest) -> Any:
        (left,) = runtime.left_over
        assert (left.run_id, left.tool, left.effect_id, left.kind) == ("r", "stubborn", "r/0.0", "task")
        assert left.since_ms > 0
        gate.release.set()
        await runtime._runs.pool.wait_idle(5)
        assert runtime.left_over == ()
        return asks("fine")

    provider = ScriptedProvider([asks("stubborn", "fine"), then, reply("done")])
    async with asyncio.timeout(10), al.Runtime(provider) as runtime:
        result = await runtime.run(agent, "go", deps=gate, run_id="r", conversation="c")
        assert (result.text, result.tool_calls) == ("done", 2)
        first, second = turn_of(runtime, "r").entries[0].slots
        assert (first.state, first.code, first.attempt) == (state, "timeout", 1)
        assert (second.state, second.code) == ("failed", "thread_busy")
        assert gate.ran == ["stubborn", "fine"]
        events = await check_end(runtime, "r", "completed")
        assert not [event for event in events if isinstance(event, al.ToolProgress)]
    assert not other_tasks()


async def test_a_cancelled_run_ends_though_its_tool_keeps_the_cancel() -> None:
    """(R62)"""
    gate = Gate()
    async with asyncio.timeout(10):
        async with al.Runtime(ScriptedProvider([asks("stubborn")])) as runtime:
            ref = await runtime.submit(al.Agent(name="a", tools=[stubborn()]), "go", deps=gate)
            await gate.begun.wait()
            await runtime.cancel(ref)
            await check_end(runtime, ref, "cancelled")
            (slot,) = turn_of(runtime, ref).entries[0].slots
            assert (slot.state, slot.code) == ("unknown", "cancelled")
            assert len(runtime.left_over) == 1
            gate.release.set()
    assert runtime.left_over == ()


async def test_the_time_of_a_run_ends_it_though_its_tool_keeps_the_cancel() -> None:
    gate = Gate()
    agent = al.Agent(name="a", tools=[stubborn(timeout=None)], limits=al.LoopLimits(max_seconds=5 * SOON))
    async with asyncio.timeout(10), al.Runtime(ScriptedProvider([asks("stubborn")])) as runtime:
        result = await runtime.run(agent, "go", deps=gate, run_id="r")
        assert (result.outcome, result.reason) == ("limit_reached", "max_seconds")
        assert [left.tool for left in runtime.left_over] == ["stubborn"]
        gate.release.set()


async def test_closing_is_not_held_up_by_a_tool_that_keeps_every_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """(R143)"""
    monkeypatch.setattr("agentloop.runs.CLOSE_SECONDS", SOON)
    gate = Gate()
    async with asyncio.timeout(10):
        async with al.Runtime(ScriptedProvider([asks("stubborn")])) as runtime:
            ref = await runtime.submit(al.Agent(name="a", tools=[stubborn(timeout=None)]), "go", deps=gate)
            await gate.begun.wait()
        await check_end(runtime, ref, "cancelled")
        (left,) = runtime.left_over
        assert left.tool == "stubborn"
        gate.release.set()
        assert await runtime._runs.pool.wait_idle(5) == 0
    assert not other_tasks()


async def test_closing_cancels_what_is_left_over_once_more() -> None:
    """(R143)"""
    cancels: list[int] = []

    @al.tool(timeout=SOON, grace=SOON)
    async def twice() -> None:
        """Give in to the second cancel."""
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels.append(1)

    async with asyncio.timeout(10):
        async with al.Runtime(ScriptedProvider([asks("twice"), reply("done")])) as runtime:
            await runtime.run(al.Agent(name="a", tools=[twice]), "go")
            assert (len(runtime.left_over), len(cancels)) == (1, 1)
        assert (runtime.left_over, len(cancels)) == ((), 2)


async def test_a_left_over_tool_cannot_wait_for_the_closing_of_its_runtime() -> None:
    seen: list[BaseException] = []

    @al.tool(timeout=SOON, grace=SOON)
    async def close(ctx: al.ToolContext[Gate]) -> None:
        """Close the house, at last."""
        await ctx.deps.hold()
        try:
            await runtime.aclose()
        except al.InputError as error:
            seen.append(error)

    gate = Gate()
    async with asyncio.timeout(10):
        async with al.Runtime(ScriptedProvider([asks("close"), reply("done")])) as runtime:
            await runtime.run(al.Agent(name="a", tools=[close]), "go", deps=gate)
            gate.release.set()
            assert await runtime._runs.pool.wait_idle(5) == 0
    assert "expected a caller outside its runs" in str(seen[0])
