"""A run can be cancelled at any moment: it ends once, leaves a usable history, and no task behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import agentloop as al
from agentloop.effects.eager import Eager
from agentloop.testing import RecordingSink, ScriptedProvider, call, reply
from tests.runs import SlowBackend, check_end, facts_of, follow_all, on_backend, other_tasks, pairs_in, turn_of
from tests.stepper import Stepper


@contextmanager
def stepping(*at: int) -> Generator[list[Stepper]]:
    """Wrap the coroutine of the run that is launched meanwhile; its tools have tasks of the same kind."""
    loop, steppers = asyncio.get_running_loop(), []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if isinstance(coro, Eager) and not steppers:
            coro._coroutine = Stepper(coro._coroutine, set(at))
            steppers.append(coro._coroutine)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        yield steppers
    finally:
        loop.set_task_factory(None)


class Calls:
    """Deps: which tools ran, in order."""

    def __init__(self) -> None:
        self.ran: list[str] = []


@al.tool
async def pay(amount: int, ctx: al.ToolContext[Calls]) -> str:
    """Pay once; suspends before and after."""
    await asyncio.sleep(0)
    ctx.deps.ran.append("pay")
    await ctx.progress("paid", 0.5)
    await asyncio.sleep(0)
    return f"paid {amount}"


@al.tool
def look(ctx: al.ToolContext[Calls]) -> str:
    """Look, in a thread."""
    ctx.deps.ran.append("look")
    return "seen"


AGENT = al.Agent(name="till", instructions="Pay.", tools=[pay, look])


def answer(request: al.ModelRequest) -> al.ModelReply:
    """Two calls, then a text; a turn after that is answered at once."""
    pairs_in(request)
    if request.messages[-1] == al.UserMessage(content="again"):
        return reply("still here")
    if not request.exchanges:
        return reply("Paying.", calls=[call("pay", amount=7), call("look")], reasoning="hm")
    return reply("done")


class SlowSink(RecordingSink):
    """A sink that waits once in every event."""

    async def emit(self, event: al.Event) -> None:
        await super().emit(event)
        await asyncio.sleep(0)


async def conversation(*at: int, slow: bool, sink: RecordingSink | None) -> tuple[int, str]:
    """A run that is cancelled at these suspensions, and the turn after it; how many there were, and the outcome."""
    provider = ScriptedProvider([answer] * 4, deltas=3)
    deps, backend = Calls(), SlowBackend() if slow else None
    async with on_backend(backend, provider) as runtime:
        with stepping(*at) as steppers:
            ref = await runtime.submit(AGENT, "go", deps=deps, sink=sink, conversation="c", run_id="r", reasoning=True)
            await asyncio.wait({runtime._runs.live[ref].task})  # type: ignore[arg-type]
        (stepper,) = steppers
        try:
            outcome: str = (await runtime.result(ref)).outcome
        except al.RunCancelled:
            outcome = "cancelled"
        await runtime._runs.pool.wait_idle()
        assert runtime._store.fault is None
        events = await check_end(runtime, ref, outcome)
        assert deps.ran in ([], ["pay"], ["pay", "look"])
        if backend is not None:
            assert set(backend.log) == {"whole"}
        assert provider._open == 0
        if sink is not None:
            starts, ends = sink.of(al.ModelStart), sink.of(al.ModelEnd)
            assert {event.attempt_id for event in ends} <= {event.attempt_id for event in starts}
        tasks = other_tasks()
        assert not tasks, tasks

        after = await runtime.run(AGENT, "again", deps=deps, conversation="c")
        assert (after.outcome, after.text) == ("completed", "still here")
        seen = pairs_in(provider.requests[-1])
        stored = [slot.feedback for entry in turn_of(runtime, ref).entries for slot in entry.slots]
        assert seen == [(item.tool_call_id, item.text) for item in stored]
        ran = {event.tool for event in events if isinstance(event, al.ToolStarted)}
        assert set(deps.ran) <= ran
        return stepper.count, outcome


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
@pytest.mark.parametrize("with_sink", [False, True], ids=["no sink", "slow sink"])
async def test_a_run_can_be_cancelled_at_every_await_of_it(slow: bool, with_sink: bool) -> None:
    """(R62, R80, R265, R324)"""
    outcomes: list[str] = []
    suspensions = 1
    while suspensions > len(outcomes):  # until a run has no such await any more, so that nothing met it
        suspensions, outcome = await conversation(len(outcomes) + 1, slow=slow, sink=SlowSink() if with_sink else None)
        outcomes.append(outcome)
    early = outcomes.index("completed")
    assert early > (20 if slow or with_sink else 8)
    assert set(outcomes[:early]) == {"cancelled"}
    late = outcomes[early:-1]  # only while the final reply and the end are written is a cancel too late
    assert late == ["completed"] * len(late)
    assert len(late) <= (2 if slow else 0)


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_a_run_that_sends_once_more_can_be_cancelled_at_every_await_of_it(slow: bool) -> None:
    """(R62, R80)"""
    busy = al.HTTPStatusError("HTTP 429", status=429, retry_after=1.0)
    outcomes: list[str] = []
    suspensions = 1
    while suspensions > len(outcomes):
        first = ScriptedProvider([busy, busy])
        policy = al.ResendPolicy(max_resends=1, fallbacks=(ScriptedProvider([reply("done")]),))
        options: dict[str, Any] = {"resend": policy, "sleep": lambda seconds: asyncio.sleep(0)}
        async with on_backend(SlowBackend() if slow else None, first, **options) as runtime:
            with stepping(len(outcomes) + 1) as steppers:
                ref = await runtime.submit(AGENT, "go", sink=SlowSink(), run_id="r")
                await asyncio.wait({runtime._runs.live[ref].task})  # type: ignore[arg-type]
            suspensions = steppers[0].count
            outcomes.append(turn_of(runtime, ref).closed.outcome)
            await check_end(runtime, ref, outcomes[-1])
            tasks = other_tasks()
            assert not tasks, tasks
        assert len(first.requests) <= 2
    early = outcomes.index("completed")
    assert early > 8
    assert set(outcomes[:early]) == {"cancelled"}
    assert set(outcomes[early:]) == {"completed"}
    assert len(outcomes[early:]) <= 3


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_a_second_cancel_while_the_first_is_recorded_changes_nothing(slow: bool) -> None:
    """(R62, R265)"""
    at = 0
    outcome = "cancelled"
    while outcome == "cancelled":
        at += 1
        _, outcome = await conversation(at, at + 1, at + 2, slow=slow, sink=SlowSink())
    assert at > 20


async def test_a_run_that_is_opened_while_the_runtime_closes_sends_nothing_and_has_its_end() -> None:
    provider, backend = ScriptedProvider([answer]), SlowBackend()
    async with on_backend(backend, provider) as runtime:
        running = asyncio.create_task(runtime.run(AGENT, "go", deps=Calls(), run_id="r"))
        await asyncio.sleep(0)
        await runtime.aclose()
        with pytest.raises(al.RunCancelled):
            await running
        events = await follow_all(runtime, "r")
        assert [event.type for event in events] == ["run.started", "run.ended"]
        assert turn_of(runtime, "r").closed.outcome == "cancelled"
    assert provider.requests == []


async def test_a_run_that_is_cancelled_at_once_says_that_it_ended() -> None:
    provider = ScriptedProvider([answer, answer])
    async with al.Runtime(provider) as runtime:
        ref = await runtime.submit(AGENT, "go", deps=Calls(), conversation="c")
        await runtime.cancel(ref)
        with pytest.raises(al.RunCancelled):
            await runtime.result(ref)
        events = await check_end(runtime, ref, "cancelled")
        assert [event.type for event in events] == ["run.started", "model.start", "model.end", "run.ended"]
        assert (await runtime.run(AGENT, "again", conversation="c")).text == "still here"


async def test_cancelling_the_caller_of_run_cancels_the_run() -> None:
    """(R324)"""
    waiting = asyncio.Event()

    @al.tool
    async def wait() -> None:
        """Never returns."""
        waiting.set()
        await asyncio.Event().wait()

    agent = al.Agent(name="a", tools=[wait])
    async with al.Runtime(ScriptedProvider([reply(calls=[call("wait")])])) as runtime:
        task = asyncio.create_task(runtime.run(agent, "go", run_id="r"))
        await waiting.wait()
        task.cancel("the host's own words")
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert caught.value.args == ("the host's own words",)
        events = await check_end(runtime, "r", "cancelled", "cancelled")
        ended = next(event for event in events if isinstance(event, al.ToolEnded))
        assert (ended.status, ended.slot, ended.code) == ("cancelled", "unknown", "cancelled")
        assert not other_tasks()


async def test_a_caller_that_waits_for_a_result_can_go_and_leave_the_run_alone() -> None:
    release = asyncio.Event()

    @al.tool
    async def wait() -> str:
        """Wait for the test."""
        await release.wait()
        return "ok"

    agent = al.Agent(name="a", tools=[wait])
    async with al.Runtime(ScriptedProvider([reply(calls=[call("wait")]), reply("done")])) as runtime:
        ref = await runtime.submit(agent, "go")
        task = asyncio.create_task(runtime.result(ref))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        assert (await runtime.result(ref)).text == "done"


async def test_cancelling_a_run_that_has_ended_is_harmless() -> None:
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        async with runtime.start(al.Agent(name="a"), "go") as run:
            result = await run.result()
            await run.cancel()
        await runtime.cancel(run.ref)
        assert await runtime.result(run.ref) == result
        await check_end(runtime, run.ref, "completed")


async def test_a_tool_can_cancel_its_own_run() -> None:
    @al.tool
    async def give_up(ctx: al.ToolContext[al.Runtime]) -> None:
        """Cancel this very run."""
        await ctx.deps.cancel(ctx.run_id)

    agent = al.Agent(name="a", tools=[give_up])
    async with al.Runtime(ScriptedProvider([reply(calls=[call("give_up")])])) as runtime:
        with pytest.raises(al.RunCancelled):
            await runtime.run(agent, "go", deps=runtime, run_id="r")
        await check_end(runtime, "r", "cancelled")


async def test_a_sink_that_keeps_a_cancel_to_itself_does_not_keep_the_run_going() -> None:
    """(R62)"""

    class Deaf:
        reached = asyncio.Event()

        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                self.reached.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

    provider, deps = ScriptedProvider([answer] * 3), Calls()
    async with al.Runtime(provider) as runtime:
        ref = await runtime.submit(AGENT, "go", deps=deps, sink=Deaf(), conversation="c")
        await Deaf.reached.wait()
        await runtime.cancel(ref)
        with pytest.raises(al.RunCancelled):
            await runtime.result(ref)
        await check_end(runtime, ref, "cancelled")
        assert deps.ran == []
        assert len(provider.requests) == 1


async def test_a_cancel_while_the_end_of_a_call_is_delivered_is_passed_on_and_the_reply_stands() -> None:
    """(R264, R265)"""

    class Holding(RecordingSink):
        reached = asyncio.Event()

        async def emit(self, event: al.Event) -> None:
            if isinstance(event, al.ModelEnd):
                self.reached.set()
                await asyncio.Event().wait()
            await super().emit(event)

    provider, deps = ScriptedProvider([answer] * 3), Calls()
    async with al.Runtime(provider) as runtime:
        ref = await runtime.submit(AGENT, "go", deps=deps, sink=Holding(), conversation="c")
        await Holding.reached.wait()
        await runtime.cancel(ref)
        events = await check_end(runtime, ref, "cancelled")
        (end,) = (event for event in events if isinstance(event, al.ModelEnd))
        assert (end.status, end.retracted) == ("success", False)
        assert [slot.state for slot in turn_of(runtime, ref).entries[0].slots] == ["skipped", "skipped"]
        assert deps.ran == []


async def test_a_cancelled_thread_goes_on_alone_and_no_tool_of_the_conversation_runs_beside_it() -> None:
    """(R62)"""
    begun, release, deps = threading.Event(), threading.Event(), Calls()

    @al.tool
    def slow(ctx: al.ToolContext[Calls]) -> str:
        """Hold a thread until the test lets it go."""
        ctx.deps.ran.append("slow")
        begun.set()
        release.wait(10)
        return "late"

    agent = al.Agent(name="a", tools=[slow])
    script = [reply(calls=[call("slow")]), reply(calls=[call("slow")]), reply("I wait.")]
    provider = ScriptedProvider(script)
    try:
        async with al.Runtime(provider) as runtime:
            ref = await runtime.submit(agent, "go", deps=deps, conversation="c")
            await asyncio.to_thread(begun.wait, 10)
            await runtime.cancel(ref)
            await check_end(runtime, ref, "cancelled")
            result = await runtime.run(agent, "again", deps=deps, conversation="c")
            assert (result.text, result.tool_calls) == ("I wait.", 0)
            ((_, told),) = pairs_in(provider.requests[-1])[1:]
            assert told.startswith("Nothing ran: an earlier call of slow has not ended")
            assert deps.ran == ["slow"]
            release.set()
    finally:
        release.set()


async def test_a_cancel_that_meets_a_write_waits_for_it_and_other_runs_go_on() -> None:
    """The store stops only when a write itself fails."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def hook(facts: Any) -> None:
        if facts[0].run_id == "r1" and type(facts[0]).__name__ == "SendStarted":
            reached.set()
            await release.wait()

    backend = SlowBackend(hook)
    async with on_backend(backend, ScriptedProvider([reply("two")])) as runtime:
        first = await runtime.submit(al.Agent(name="a"), "one", run_id="r1")
        await reached.wait()
        cancelling = asyncio.create_task(runtime.cancel(first))
        second = asyncio.create_task(runtime.run(al.Agent(name="a"), "two", run_id="r2"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not cancelling.done()
        release.set()
        await cancelling
        assert (await second).text == "two"
        events = await check_end(runtime, "r1", "cancelled")
        assert [event.type for event in events] == ["run.started", "model.start", "model.end", "run.ended"]
        ended = next(fact for fact in await facts_of(runtime) if type(fact).__name__ == "SendEnded")
        assert (ended.outcome, ended.may_have_been_processed) == ("abandoned", False)  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["run", "start", "submit"])
async def test_a_cancel_while_a_run_is_opened_leaves_no_run_without_an_owner(way: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def hook(facts: Any) -> None:
        if type(facts[0]).__name__ == "OriginOpened":
            reached.set()
            await release.wait()

    async def host(runtime: al.Runtime) -> str:
        options: Any = {"conversation": "c", "run_id": "r"}
        if way == "run":
            return (await runtime.run(al.Agent(name="a"), "go", **options)).text
        if way == "submit":
            ref = await runtime.submit(al.Agent(name="a"), "go", **options)
            return (await runtime.result(ref)).text
        async with runtime.start(al.Agent(name="a"), "go", **options) as run:
            return (await run.result()).text

    async with on_backend(SlowBackend(hook), ScriptedProvider([reply("one"), reply("two")])) as runtime:
        task = asyncio.create_task(host(runtime))
        await reached.wait()
        task.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        if way == "submit":  # bound to no task: it goes on
            assert (await runtime.result("r")).text == "one"
        else:
            await check_end(runtime, "r", "cancelled")
            assert (await runtime.run(al.Agent(name="a"), "next", conversation="c")).text == "one"
