"""Every way a tool can go, in a run: what its slot, the ledger, the facts and the outcome are then.

{sync, async} x {what it does} x {idempotent or not} x {alone, beside others}. The tool under test is the first
call of a reply of three; the other two just work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import agentloop as al
from agentloop.exchange import SlotMoved
from agentloop.testing import ScriptedProvider, call, reply
from tests.runs import check_end, facts_of, turn_of

TIME = {"sync": 0.25, "async": 0.03}
"""Seconds that a tool has that does not end: in which its thread has begun, also on a busy machine."""

GRACE = 0.03
RETRIES = 2
LONG = 30.0


class Deps:
    """What the tools of one run share.

    Attributes:
        starts: names of the tools that began, in order. others: set when both others have ended.
        release: ends what hangs.
    """

    def __init__(self, *, parallel: bool) -> None:
        self.starts: list[str] = []
        self.parallel, self.ended = parallel, 0
        self.others, self.release = threading.Event(), threading.Event()
        self.others_here, self.release_here = asyncio.Event(), asyncio.Event()

    def end_one(self) -> str:
        self.ended += 1
        if self.ended == 2:
            self.others.set()
            self.others_here.set()
        return "fine"

    def free(self) -> None:
        self.release.set()
        self.release_here.set()


def answer(does: str) -> Any:
    """What a tool does that ends by itself."""
    match does:
        case "returns":
            return "value"
        case "fails":
            raise al.ToolFailed("not today")
        case "raises":
            raise LookupError("a bug")
        case "own timeout":
            raise TimeoutError("upstream")
        case "huge":
            return "x" * 100_000
        case _:
            return object()


def subject(kind: str, does: str, *, idempotent: bool) -> al.Tool:
    """The tool under test; beside others it waits for their end before it does anything."""
    hangs = does in ("hangs", "ignores cancel")
    policy: dict[str, Any] = {"idempotent": idempotent, "errors": (TimeoutError,)}
    if hangs:
        policy |= {"timeout": TIME[kind], "grace": GRACE, "retries": RETRIES if idempotent else 0}

    if kind == "sync":

        @al.tool(name="subject", **policy)
        def tool(ctx: al.ToolContext[Deps]) -> Any:
            """Do it in a thread, which no cancel reaches."""
            ctx.deps.starts.append("subject")
            if hangs:
                ctx.deps.release.wait(LONG)
            elif ctx.deps.parallel:
                ctx.deps.others.wait(LONG)
            return answer(does)

        return tool

    @al.tool(name="subject", **policy)
    async def task(ctx: al.ToolContext[Deps]) -> Any:
        """Do it in a task."""
        ctx.deps.starts.append("subject")
        while hangs and not ctx.deps.release_here.is_set():
            try:
                await ctx.deps.release_here.wait()
            except asyncio.CancelledError:
                if does == "hangs":
                    raise
        if not hangs and ctx.deps.parallel:
            await ctx.deps.others_here.wait()
        return answer(does)

    return task


@al.tool
async def other(ctx: al.ToolContext[Deps]) -> str:
    """Work."""
    ctx.deps.starts.append("other")
    await asyncio.sleep(0)
    return ctx.deps.end_one()


class Expected(NamedTuple):
    """Of the tool under test: slot, code, starts; whether the run ends with it; whether it goes on after that."""

    state: str
    code: str | None
    starts: int = 1
    crashes: bool = False
    left: bool = False


def expected(kind: str, does: str, *, idempotent: bool) -> Expected:
    late = "failed" if idempotent else "unknown"
    match does:
        case "returns" | "huge":
            return Expected("done", None)
        case "fails":
            return Expected("failed", "tool_failed")
        case "own timeout":
            return Expected("failed", "tool_error")
        case "raises":
            return Expected("unknown", "tool_crashed", crashes=True)
        case "bad type":
            return Expected("unknown", "invalid_tool_result", crashes=True)
        case "hangs" if kind == "async":
            return Expected(late, "timeout", starts=1 + RETRIES if idempotent else 1)
        case _:
            return Expected(late, "timeout", left=True)


@pytest.fixture
def freed() -> Iterator[list[Deps]]:
    """Whatever hangs is released at the latest when the test is over."""
    all_deps: list[Deps] = []
    yield all_deps
    for deps in all_deps:
        deps.release.set()


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("idempotent", [False, True], ids=["once", "idempotent"])
@pytest.mark.parametrize(
    "does", ["returns", "fails", "raises", "hangs", "ignores cancel", "own timeout", "huge", "bad type"]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_every_way_a_tool_can_go(
    kind: str, does: str, idempotent: bool, parallel: int, freed: list[Deps]
) -> None:
    """(R327, R330, R331, R332, R333, R334, R336, R338)"""
    deps = Deps(parallel=parallel > 1)
    freed.append(deps)
    tool, want = subject(kind, does, idempotent=idempotent), expected(kind, does, idempotent=idempotent)
    budget = al.Ledger(tool_calls=100)
    agent = al.Agent(name="a", tools=[tool, other], limits=al.LoopLimits(max_parallel_tools=parallel))
    asked = reply(calls=[call("subject", call_id="s"), call("other", call_id="o1"), call("other", call_id="o2")])
    async with al.Runtime(ScriptedProvider([asked, reply("done")]), ledger=budget) as runtime:
        crashed = None
        try:
            result = await runtime.run(agent, "go", deps=deps, run_id="r")
            assert (result.outcome, result.text, result.tool_calls) == ("completed", "done", len(deps.starts))
        except al.ToolCrashed as error:
            crashed = error
        assert (crashed is not None) is want.crashes
        turn = turn_of(runtime, "r")
        first, *others = turn.entries[0].slots
        assert (first.state, first.code, first.attempt) == (want.state, want.code, want.starts)
        assert first.feedback.tool_call_id == "s"
        if does == "huge":
            assert first.feedback.text.endswith("[cut: the full output is 100000 bytes, kept]")
        if parallel > 1:
            rest = ("done", None)
        elif want.crashes:
            rest = ("skipped", "tool_crashed")
        else:
            rest = ("failed", "thread_busy") if want.left else ("done", None)
        assert [(slot.state, slot.code) for slot in others] == [rest, rest]
        assert [slot.feedback.tool_call_id for slot in others] == ["o1", "o2"]

        assert deps.starts.count("subject") == want.starts
        assert deps.starts.count("other") == (2 if rest[0] == "done" else 0)
        started = [fact for fact in await facts_of(runtime) if isinstance(fact, SlotMoved) and fact.state == "started"]
        given_back = [fact for fact in await facts_of(runtime) if isinstance(fact, SlotMoved) and fact.state == "open"]
        assert len(started) - len(given_back) == len(deps.starts) == budget.spent("tool_calls") == turn.tool_calls
        outcome = "failed" if want.crashes else "completed"
        await check_end(runtime, "r", outcome, "tool_crashed" if want.crashes else None, parallel=parallel)

        assert [left.tool for left in runtime.left_over] == (["subject"] if want.left else [])
        deps.free()
        assert await runtime._runs.pool.wait_idle(LONG) == 0
