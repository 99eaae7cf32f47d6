"""Model calls that go on without whoever asked for them: left, looked up, and taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import agentloop as al
import agentloop.runs as runs_module
from agentloop.exchange import Fact, OriginOpened, ReplyTaken, RunClosed, SendEnded, SendStarted, SlotMoved
from agentloop.persistence import Lease, RunRow
from agentloop.testing import RecordingSink, ScriptedProvider, call, reply
from agentloop.windows import LiveRun
from tests.mortal import Ground, SharedMemory
from tests.runs import check_order, follow_all

WAIT = 0.02
"""Seconds of a local wait that is over before the answer comes: that waits until a test says so."""


@al.tool(idempotent=True)
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[note])


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


class Slow:
    """A model behind a real endpoint that says the first half at once, and the rest when it is told to.

    Attributes:
        asked: set when a request has come, and asked_by called. gone: set when its client has left it.
    """

    def __init__(self, *, cut: bool = False) -> None:
        self.asked, self.go, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.requests = 0
        self.asked_by: Callable[[], None] = bool
        self._cut = cut

    @asynccontextmanager
    async def provider(self, **options: Any) -> AsyncIterator[al.ChatCompletions]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield al.ChatCompletions(f"http://127.0.0.1:{port}/v1", model="m", **options)
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = '"id":"c1","object":"chat.completion.chunk","model":"m"'
        delta = 'data: {%s,"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n'
        try:
            await response.write((delta % (head, "one ", "null")).encode())
            self.asked.set()
            self.asked_by()
            await self.go.wait()
            await response.write((delta % (head, "two", "null")).encode())
            if self._cut:
                return response
            usage = '{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'
            await response.write((delta % (head, "", '"stop"')).encode())
            await response.write(f'data: {{{head},"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'.encode())
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise
        return response


async def _found(runtime: al.Runtime, ref: str) -> al.SendStatus:
    """The outcome of the run's newest send, once it has one and the run is given up."""
    pending = runtime._runs.sends.of(ref)
    assert pending is not None
    await asyncio.wait({pending.task})
    return await runtime.read(ref)


# -- the local wait


async def test_a_wait_that_is_over_leaves_the_send_which_goes_on_and_is_taken_up(ground: Ground) -> None:
    """(R9, R96, R140, R141)"""
    slow, sink = Slow(), RecordingSink()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending) as caught:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT, sink=sink)
        pending = caught.value
        assert (pending.ref, pending.code, pending.may_have_been_processed) == ("r", "pending", True)
        status = await runtime.read(pending.ref, pending.attempt_id)
        assert (status.state, status.outcome, status.reply) == ("pending", None, None)
        assert [row.run_id for row in await runtime.unfinished()] == ["r"]
        assert await runtime.unsettled() == []  # somebody is at it
        events = [event async for event in _until_pending(runtime)]
        check_order(events)
        assert (events[-1].type, events[-1].outcome) == ("run.ended", "pending")
        assert (events[-2].status, events[-2].retracted) == ("pending", True)
        slow.go.set()
        status = await _found(runtime, "r")
        assert (status.state, status.attempt_id, status.reply.text) == ("found", pending.attempt_id, "one two")
        result = await runtime.resume("r", AGENT)
        assert (result.text, result.model_calls, result.usage.total_tokens) == ("one two", 1, 3)
    assert slow.requests == 1
    assert [event.type for event in sink.events][-1] == "model.end"
    started = [fact for fact in await ground.facts() if isinstance(fact, SendStarted)]
    assert [fact.attempt_id for fact in started] == [pending.attempt_id]


async def _until_pending(runtime: al.Runtime) -> AsyncIterator[al.Event]:
    """All events of a run that was left."""
    try:
        async for event in runtime.follow("r"):
            yield event
    except al.ModelPending:
        return
    raise AssertionError("expected the run to be left")


async def test_a_wait_is_30_seconds_unless_said_and_none_waits_for_the_end(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R96)"""
    assert runs_module.WAIT_SECONDS == 30
    monkeypatch.setattr(runs_module, "WAIT_SECONDS", WAIT)
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True)
        going = asyncio.create_task(runtime.resume("r", AGENT, wait=None))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(going), 2 * WAIT)
        slow.go.set()
        assert (await going).text == "one two"
    assert slow.requests == 1


async def test_a_wait_longer_than_the_send_s_own_clock_sees_the_send_end(ground: Ground) -> None:
    """(R156, R157)"""
    slow = Slow()
    async with slow.provider(timeouts=al.Timeouts(total=WAIT)) as provider, ground.runtime(provider) as runtime:
        with pytest.raises((al.SendTimeout, al.StreamRefused)) as caught:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=65.0)
        assert caught.value.code == "total_timeout"
        status = await runtime.read("r")
        assert (status.state, status.outcome.code) == ("found", "total_timeout")
    assert slow.requests <= 1


async def test_a_run_waits_again_for_the_same_send(ground: Ground) -> None:
    """(R141)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending) as first:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        for _ in range(3):
            with pytest.raises(al.ModelPending) as again:
                await runtime.resume("r", AGENT, wait=WAIT)
            assert again.value.attempt_id == first.value.attempt_id
        slow.go.set()
        assert (await runtime.resume("r", AGENT)).text == "one two"
    assert slow.requests == 1


async def test_whoever_waits_again_for_a_send_pays_for_it_and_tells_what_it_cost(ground: Ground) -> None:
    """(R141)"""
    go = asyncio.Event()

    async def late(request: al.ModelRequest) -> al.ModelReply:
        await go.wait()
        return reply(calls=[call("note", text="x")], usage=(3, 2))

    class Opening(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            await super().emit(event)
            go.set()

    agent = al.Agent(name="a", tools=[note], limits=al.LoopLimits(max_tokens=5))
    async with ground.runtime(ScriptedProvider([late])) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(agent, "go", run_id="r", checkpoint=True, wait=WAIT)
        result = await runtime.resume("r", agent, sink=(sink := Opening()))
    assert (result.outcome, result.reason, result.tool_calls) == ("limit_reached", "max_tokens", 0)
    (end,) = sink.of(al.ModelEnd)
    assert (end.status, end.usage) == ("success", result.usage)
    assert result.usage.total_tokens == 5


async def test_a_run_that_is_started_again_waits_for_the_same_send(ground: Ground) -> None:
    """(R141)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending) as first:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        with pytest.raises(al.ModelPending) as again:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        assert again.value.attempt_id == first.value.attempt_id
        with pytest.raises(al.ConflictError, match="another"):
            await runtime.run(AGENT, "something else", run_id="r", checkpoint=True, wait=WAIT)
        slow.go.set()
        assert (await runtime.run(AGENT, "go", run_id="r", checkpoint=True)).text == "one two"
    assert slow.requests == 1


async def test_starting_it_again_with_its_id_waits_for_the_same_send(ground: Ground) -> None:
    """(R9, R96, R141)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        for _ in range(2):
            with pytest.raises(al.ModelPending):
                await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        assert await runtime.submit(AGENT, "go", run_id="r", checkpoint=True) == "r"
        slow.go.set()
        assert (await runtime.result("r")).text == "one two"
    assert slow.requests == 1


@pytest.mark.parametrize("how", ["submit", "resume"])
async def test_of_several_callers_the_most_patient_decides_how_long_it_waits(ground: Ground, how: str) -> None:
    """(R96)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        first = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=10 * WAIT))
        await slow.asked.wait()
        if how == "submit":
            await runtime.submit(AGENT, "go", run_id="r", checkpoint=True)
            second = asyncio.create_task(runtime.result("r"))
        else:
            second = asyncio.create_task(runtime.resume("r", AGENT, wait=None))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(second), 12 * WAIT)
        slow.go.set()
        assert (await second).text == (await first).text == "one two"
    assert slow.requests == 1


async def test_the_rest_of_the_run_goes_on_from_the_stored_reply(ground: Ground) -> None:
    """(R133, R134)"""
    asked, go = asyncio.Event(), asyncio.Event()

    async def first(request: al.ModelRequest) -> Any:
        asked.set()
        await go.wait()
        return reply(calls=[call("note", text="x")])

    provider = ScriptedProvider([first, reply("done")])
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        go.set()
        assert (await _found(runtime, "r")).reply.calls[0].name == "note"
        assert len(provider.requests) == 1  # nothing runs while nobody is at it
        assert (await runtime.resume("r", AGENT)).text == "done"
    provider.assert_complete()


# -- the caller


async def test_a_cancelled_caller_stays_cancelled_and_the_cause_names_the_send(ground: Ground) -> None:
    """(R10, R140, R141)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        task = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True))
        await slow.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, al.ModelPending)
        slow.go.set()
        assert (await _found(runtime, "r")).reply.text == "one two"
        assert not slow.gone.is_set()
        assert (await runtime.resume("r", AGENT)).text == "one two"
    assert slow.requests == 1


async def test_a_deadline_of_the_caller_s_own_is_a_timeout(ground: Ground) -> None:
    """(R141, R324)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:

        async def with_deadline() -> None:
            async with asyncio.timeout(None) as clock:
                slow.asked_by = lambda: clock.reschedule(0)
                await runtime.run(AGENT, "go", run_id="r", checkpoint=True)

        with pytest.raises(TimeoutError):
            await with_deadline()
        assert (await runtime.read("r")).state == "pending"
        slow.go.set()
        assert (await runtime.resume("r", AGENT)).text == "one two"


async def test_leaving_the_block_leaves_the_send(ground: Ground) -> None:
    """(R141)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        async with runtime.start(AGENT, "go", run_id="r", checkpoint=True) as run:
            async for event in run:
                if isinstance(event, al.TextPreview):
                    assert event.text == "one "
                    break
        assert (await runtime.read("r")).state == "pending"
        slow.go.set()
        assert (await _found(runtime, "r")).state == "found"
        assert (await runtime.resume("r", AGENT)).text == "one two"
    assert slow.requests == 1


@pytest.mark.parametrize("how", ["resume", "submit"])
async def test_who_comes_as_the_last_caller_leaves_waits_for_the_send_anew(ground: Ground, how: str) -> None:
    """(R141)"""
    leaving, leave = asyncio.Event(), asyncio.Event()

    class Holding:
        async def emit(self, event: al.Event) -> None:
            if isinstance(event, al.ModelEnd):
                leaving.set()
                await leave.wait()

    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        first = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True, sink=Holding()))
        await slow.asked.wait()
        first.cancel()
        await leaving.wait()
        again: asyncio.Task[Any]
        if how == "resume":
            again = asyncio.create_task(runtime.resume("r", AGENT))
        else:
            again = asyncio.create_task(runtime.submit(AGENT, "go", run_id="r", checkpoint=True))
        await asyncio.sleep(0)
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        slow.go.set()
        await again
        assert (await runtime.result("r")).text == "one two"
    assert slow.requests == 1


async def test_without_checkpoints_the_send_ends_with_its_caller(ground: Ground) -> None:
    """(R15)"""
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        async with runtime.start(AGENT, "go", run_id="r") as run:
            async for event in run:
                if isinstance(event, al.TextPreview):
                    break
        status = await runtime.read("r")
        assert (status.state, status.outcome.outcome) == ("found", "abandoned")
        await slow.gone.wait()


async def test_a_run_that_is_cancelled_by_name_ends_its_send_too(ground: Ground) -> None:
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        task = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True))
        await slow.asked.wait()
        await runtime.cancel("r")
        with pytest.raises(al.RunCancelled):
            await task
        status = await runtime.read("r")
        assert (status.outcome.outcome, status.outcome.usage) == ("abandoned", None)
        assert await runtime.unfinished() == []
        await slow.gone.wait()


async def test_a_sink_that_fails_ends_the_send(ground: Ground) -> None:
    """(R62)"""
    slow = Slow()

    class Broken:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                raise ValueError("broken")

    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(ValueError, match="broken"):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, sink=Broken())
        status = await runtime.read("r")
        assert (status.outcome.outcome, status.outcome.code) == ("abandoned", "delivery")
        await slow.gone.wait()


async def test_what_another_run_left_is_an_error_like_any_other_to_a_sink_s_own_run() -> None:
    """A sink that runs something itself, which is left, has failed: the attempt gets its end (R62)"""

    class Nested:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                raise al.ModelPending("another run", "another attempt")

    async with al.Runtime(ScriptedProvider([reply("one")])) as runtime:
        with pytest.raises(al.ModelPending, match="another run"):
            await runtime.run(AGENT, "go", run_id="r", sink=Nested())
        status = await runtime.read("r")
        assert (status.state, status.outcome.outcome) == ("found", "failed")
        assert await runtime.unfinished() == []


async def test_a_sink_that_waits_does_not_hold_the_send(ground: Ground) -> None:
    """(R141, R144)"""
    slow, stuck = Slow(), asyncio.Event()

    class Stuck:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                await stuck.wait()

    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT, sink=Stuck())
        slow.go.set()
        assert (await _found(runtime, "r")).reply.text == "one two"


async def test_the_run_s_own_limit_ends_the_send(ground: Ground) -> None:
    agent = al.Agent(name="a", tools=[note], limits=al.LoopLimits(max_seconds=WAIT))
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        result = await runtime.run(agent, "go", run_id="r", checkpoint=True)
        assert (result.outcome, result.reason) == ("limit_reached", "max_seconds")
        if slow.asked.is_set():
            await slow.gone.wait()


# -- closing


async def test_closing_waits_for_a_send_that_was_left_and_stores_its_reply(ground: Ground) -> None:
    """(R143)"""
    slow = Slow()
    async with slow.provider() as provider:
        async with ground.runtime(provider) as runtime:
            with pytest.raises(al.ModelPending):
                await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
            asyncio.get_running_loop().call_soon(slow.go.set)
        async with ground.runtime(provider) as runtime:
            assert (await runtime.read("r")).state == "found"
            assert (await runtime.resume("r", AGENT)).text == "one two"
    assert slow.requests == 1


@pytest.mark.parametrize("left", [True, False])
async def test_closing_takes_no_longer_than_said_and_leaves_the_send_unknown(
    ground: Ground, caplog: pytest.LogCaptureFixture, left: bool
) -> None:
    """(R133, R143)"""
    slow = Slow()
    async with slow.provider() as provider:
        async with ground.runtime(provider, settle_seconds=WAIT) as runtime:
            if left:
                with pytest.raises(al.ModelPending):
                    await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
            else:
                await runtime.submit(AGENT, "go", run_id="r")
                await slow.asked.wait()
        assert "1 sends had no end in time" in caplog.text
        assert not any(isinstance(fact, SendEnded) for fact in await ground.facts())
        async with ground.runtime(provider) as runtime:
            assert (await runtime.read("r")).state == "unknown"
            (item,) = await runtime.unsettled()
            with pytest.raises(al.UnsettledError):
                await runtime.resume("r", AGENT)
            slow.go.set()
            await runtime.settle_send("r", item.effect_id, author="me")
            assert (await runtime.resume("r", AGENT)).text == "one two"
    assert slow.requests == 2  # the second one was allowed


async def test_a_send_that_is_claimed_as_the_runtime_closes_does_not_leave(ground: Ground) -> None:
    """(R143)"""
    closing: list[asyncio.Task[None]] = []

    class Closes:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.ModelStart):
                closing.append(asyncio.create_task(runtime.aclose()))
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    provider = ScriptedProvider([reply("done")])
    runtime = al.Runtime(provider, store=ground.handle())
    async with runtime:
        await runtime.submit(AGENT, "go", run_id="r", sink=Closes())
        with pytest.raises(al.RunPaused):
            await runtime.result("r")
        await closing[0]
    assert provider.requests == []
    async with ground.runtime(provider) as other:
        assert (await other.read("r")).outcome.may_have_been_processed is False
        assert (await other.resume("r", AGENT)).text == "done"


async def test_a_submitted_run_outlives_a_wait_and_gives_its_result(ground: Ground) -> None:
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        await runtime.submit(AGENT, "go", run_id="r", checkpoint=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.result("r"), WAIT)
        slow.go.set()
        assert (await runtime.result("r")).text == "one two"
    assert slow.requests == 1


# -- what becomes of it


async def test_a_send_that_fails_alone_fails_its_run_and_is_not_made_again(ground: Ground) -> None:
    """(R142)"""
    slow = Slow(cut=True)
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        slow.go.set()
        status = await _found(runtime, "r")
        assert (status.outcome.outcome, status.outcome.code, status.reply) == ("failed", "truncated", None)
        with pytest.raises(al.OutcomeError) as caught:
            await runtime.resume("r", AGENT)
        assert (caught.value.outcome, caught.value.reason) == ("failed", "truncated")
    assert slow.requests == 1
    assert not any(isinstance(fact, ReplyTaken) for fact in await ground.facts())


async def test_a_send_that_fails_while_its_run_waits_again_says_why(ground: Ground) -> None:
    """(R142)"""
    slow = Slow(cut=True)
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        going = asyncio.create_task(runtime.resume("r", AGENT))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(WAIT, slow.go.set)
        with pytest.raises(al.StreamRefused, match="truncated"):
            await going
        events = await follow_all(runtime, "r")
        check_order(events)
        assert (events[-1].outcome, events[-1].reason) == ("failed", "truncated")
    assert slow.requests == 1


async def test_a_process_that_dies_leaves_an_unknown_send(ground: Ground) -> None:
    """(R133, R137)"""
    slow = Slow()
    async with slow.provider() as provider, ground.mortal(provider, at=3) as (runtime, medium):
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        slow.go.set()
        await medium.dead.wait()  # as the reply was to be stored
        async with ground.runtime(provider) as other:
            assert (await other.read("r")).state == "pending"  # as far as its lease tells
            ground.clock.advance(60)
            assert (await other.read("r")).state == "unknown"
            with pytest.raises(al.UnsettledError):
                await other.resume("r", AGENT)
    assert slow.requests == 1


async def test_what_is_not_there_is_lost(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([reply("done")])) as runtime:
        assert (await runtime.read("nowhere")).state == "lost"
        await runtime.run(AGENT, "go", run_id="r")
        assert (await runtime.read("r", "another attempt")).state == "lost"
        assert (await runtime.read("r")).state == "found"


async def test_a_conversation_waits_for_the_run_that_left_a_send(ground: Ground) -> None:
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", conversation="c", checkpoint=True, wait=WAIT)
        with pytest.raises(al.StaleHeadError):
            await runtime.run(AGENT, "next", conversation="c")
        slow.go.set()
        await runtime.resume("r", AGENT)
        assert (await runtime.run(AGENT, "next", conversation="c")).text == "one two"


async def test_many_sends_that_were_left_are_all_kept(ground: Ground) -> None:
    """(R141)"""
    slow = Slow()
    names = [f"r{n}" for n in range(20)]
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        left = await asyncio.gather(
            *[runtime.run(AGENT, "go", run_id=name, checkpoint=True, wait=WAIT) for name in names],
            return_exceptions=True,
        )
        assert {type(error) for error in left} == {al.ModelPending}
        slow.go.set()
        results = await asyncio.gather(*[runtime.resume(name, AGENT) for name in names])
        assert [result.text for result in results] == ["one two"] * 20
    assert slow.requests == 20


# -- what is refused


async def test_recovery_points_need_a_store_that_outlives_the_process() -> None:
    """(R130)"""
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.InputError, match=r"checkpoint: expected a durable store"):
            await runtime.run(AGENT, "go", checkpoint=True)


async def test_recovery_points_need_tools_that_state_how_they_are_recovered(ground: Ground) -> None:
    """(R129)"""

    @al.tool
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    @al.tool(recovery="settle")
    async def mail(to: str) -> str:
        """Send a mail."""
        return "sent"

    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.InputError, match=r"recovery=, got none for \['pay'\]"):
            await runtime.run(al.Agent(name="a", tools=[note, pay, mail]), "go", checkpoint=True)
        assert await runtime.unfinished() == []
        await runtime.run(al.Agent(name="a", tools=[note, mail]), "go", checkpoint=True)


async def test_a_run_that_a_tool_begins_has_recovery_points_of_its_own_or_none(ground: Ground) -> None:
    """(R131)"""
    inner = al.Agent(name="inner")

    @al.tool(recovery="settle")
    async def delegate(ctx: al.ToolContext[al.Runtime]) -> str:
        """Let another agent do it."""
        return (await ctx.deps.run(inner, "go", run_id="inner")).require_text()

    agent = al.Agent(name="outer", tools=[delegate])
    provider = ScriptedProvider([reply(calls=[call("delegate")]), reply("inner done"), reply("outer done")])
    async with ground.runtime(provider) as runtime:
        result = await runtime.run(agent, "go", run_id="outer", checkpoint=True, deps=runtime)
        assert result.text == "outer done"
    opened = {fact.run_id: fact.checkpoint for fact in await ground.facts() if isinstance(fact, OriginOpened)}
    assert opened == {"outer": True, "inner": False}


@pytest.mark.parametrize(
    ("way", "options", "match"),
    [
        ("run", {"wait": 1.0}, "wait: expected checkpoint=True"),
        ("run", {"checkpoint": True, "wait": 0}, "wait: expected seconds above 0"),
        ("run", {"checkpoint": True, "wait": "1"}, "wait: expected seconds above 0"),
        ("run", {"checkpoint": 1}, "checkpoint: expected a bool"),
        ("submit", {"checkpoint": True, "wait": 1.0}, "wait: expected none for a submitted run"),
    ],
)
async def test_options_that_do_not_fit_are_refused(
    ground: Ground, way: str, options: dict[str, Any], match: str
) -> None:
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.InputError, match=match):
            await getattr(runtime, way)(AGENT, "go", **options)
        assert await runtime.unfinished() == []


async def test_a_run_without_checkpoints_is_not_resumed_with_a_wait(ground: Ground) -> None:
    asked = asyncio.Event()

    async def never(request: al.ModelRequest) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with ground.runtime(ScriptedProvider([never]), settle_seconds=WAIT) as runtime:
        await runtime.submit(AGENT, "go", run_id="r")
        await asked.wait()
    async with ground.runtime(ScriptedProvider([])) as runtime:
        for options, match in (({"wait": 1.0}, "expected a run with checkpoint"), ({"checkpoint": True}, "run's own")):
            with pytest.raises(al.InputError, match=match):
                await runtime.resume("r", AGENT, **options)
        assert (await runtime.unfinished())[0].lease is None


async def test_a_run_that_left_a_send_is_cancelled_by_name_with_it(ground: Ground) -> None:
    slow = Slow()
    async with slow.provider() as provider, ground.runtime(provider) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", conversation="c", checkpoint=True, wait=WAIT)
        await runtime.cancel("r")
        await slow.gone.wait()
        status = await runtime.read("r")
        assert (status.outcome.outcome, status.outcome.code) == ("abandoned", "cancelled")
        assert await runtime.unfinished() == []
        slow.go.set()
        assert (await runtime.run(AGENT, "next", conversation="c")).text == "one two"


# -- the reply is being written


class AtReply(SharedMemory):
    """A medium that holds up the write of a reply, once it holds it, until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.go = asyncio.Event(), asyncio.Event()

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        await super().append(facts, token=token, after=after)
        if any(isinstance(fact, ReplyTaken) for fact in facts):
            self.written.set()
            await self.go.wait()

    async def release(self, lease: Lease) -> None:
        await asyncio.sleep(0)  # a cancel can meet it
        await super().release(lease)


@pytest.mark.parametrize("joined", [False, True])
async def test_a_reply_that_is_stored_as_the_run_is_cancelled_stands(joined: bool) -> None:
    """(R141, R265)"""
    medium, sink = AtReply(), RecordingSink()
    calls = [] if joined else [call("note", text="x")]  # of a reply that claims one nobody leaves in its write
    async with al.Runtime(ScriptedProvider([reply("hello", calls=calls)]), store=medium) as runtime:
        if joined:
            with pytest.raises(al.ModelPending):
                await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
            task = asyncio.create_task(runtime.resume("r", AGENT, sink=sink))
        else:
            task = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True, sink=sink))
        await medium.written.wait()
        await asyncio.sleep(0)
        cancelling = asyncio.create_task(runtime.cancel("r"))
        await asyncio.sleep(0)
        medium.go.set()
        await cancelling
        with pytest.raises(al.RunCancelled):
            await task
        (end,) = sink.of(al.ModelEnd)
        assert (end.status, end.retracted, end.code) == ("success", False, None)
        assert end.usage == (await runtime.read("r")).reply.usage
        check_order(await follow_all(runtime, "r"))


async def test_closing_as_the_reply_of_a_send_that_was_left_is_written_leaves_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(R141, R143)"""
    medium = AtReply()
    async with al.Runtime(ScriptedProvider([reply("hello")]), store=medium, settle_seconds=WAIT) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        pending = runtime._runs.sends.of("r")
        assert pending is not None
        cut_off = pending.cut_off

        def cut_off_and_go_on() -> None:
            cut_off()
            medium.go.set()

        monkeypatch.setattr(pending, "cut_off", cut_off_and_go_on)
        await runtime.aclose()
    (row,) = await medium.runs(unfinished=True)
    assert row.lease is None


class SlowToLook(SharedMemory):
    """A medium whose reading of a run's row waits, once it is told to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def run(self, run_id: str) -> RunRow | None:
        self.looked.set()
        await self.go.wait()
        return await super().run(run_id)


@pytest.mark.parametrize("how", ["resume", "run"])
async def test_a_run_is_taken_up_as_its_send_ends_and_is_about_to_give_it_up(how: str) -> None:
    """(R9, R141)"""
    slow, medium = Slow(), SlowToLook()
    async with slow.provider() as provider, al.Runtime(provider, store=medium) as runtime:
        with pytest.raises(al.ModelPending) as caught:
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        medium.go.clear()
        medium.looked.clear()
        early = asyncio.create_task(runtime.settle_send("r", caught.value.attempt_id, author="x"))
        await medium.looked.wait()  # it has the gate of the run, others come after it
        again = runtime.run(AGENT, "go", run_id="r", checkpoint=True) if how == "run" else runtime.resume("r", AGENT)
        next_one = asyncio.create_task(again)
        await asyncio.sleep(0)
        ended, send_ended = asyncio.Event(), runtime._runs.sends._ended

        async def give_up(ref: str) -> None:
            ended.set()
            await send_ended(ref)

        runtime._runs.sends._ended = give_up
        slow.go.set()
        await ended.wait()
        medium.go.set()
        with pytest.raises(al.NotOwnerError):
            await early
        assert (await next_one).text == "one two"
    (row,) = await medium.runs()
    assert (row.outcome, row.lease) == ("completed", None)
    assert slow.requests == 1


async def test_a_cancel_that_meets_the_closing_does_not_claim_an_end(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R143)"""
    began, pausing = asyncio.Event(), asyncio.Event()
    request_pause = LiveRun.request_pause

    @al.tool(recovery="settle")
    async def pay() -> str:
        """Pay, slowly."""
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("expected to be cut off")

    def pause(live: LiveRun) -> None:
        request_pause(live)
        pausing.set()

    monkeypatch.setattr(LiveRun, "request_pause", pause)
    agent = al.Agent(name="till", tools=[pay])
    async with ground.runtime(ScriptedProvider([reply(calls=[call("pay")])])) as runtime:
        await runtime.submit(agent, "go", run_id="r")
        await began.wait()
        closing = asyncio.create_task(runtime.aclose())
        await pausing.wait()
        with pytest.raises(al.InputError, match="expected an open runtime"):
            await runtime.cancel("r", author="x")
        await closing
    assert not any(isinstance(fact, RunClosed) for fact in await ground.facts())


# -- the claim of a call together with a reply


class Writing(SharedMemory):
    """A medium on which a reply is half written until a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        await super().append(facts, token=token, after=after)
        if any(isinstance(fact, ReplyTaken) for fact in facts):
            self.reached.set()
            await self.go.wait()


def noting() -> ScriptedProvider:
    return ScriptedProvider([reply(calls=[call("note", text="x")]), reply("done")])


async def moves(medium: SharedMemory) -> list[tuple[str, int]]:
    return [(fact.state, fact.attempt) for fact in await medium.load() if isinstance(fact, SlotMoved)]


async def test_a_wait_that_is_over_while_a_call_is_claimed_is_no_reason_to_leave() -> None:
    """(R141)"""
    medium = Writing()
    async with al.Runtime(noting(), store=medium) as runtime:
        running = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT))
        await medium.reached.wait()
        asyncio.get_running_loop().call_later(2 * WAIT, medium.go.set)  # after the clock of the wait
        assert (await running).text == "done"
    assert await moves(medium) == [("started", 1), ("done", 1)]


async def test_a_caller_that_leaves_while_a_call_is_claimed_leaves_it_open() -> None:
    """(R141)"""
    medium, provider = Writing(), noting()
    async with al.Runtime(provider, store=medium) as runtime:
        running = asyncio.create_task(runtime.run(AGENT, "go", run_id="r", checkpoint=True))
        await medium.reached.wait()
        running.cancel()
        await asyncio.sleep(0)
        medium.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await running
        assert isinstance(caught.value.__cause__, al.ModelPending)
        assert await moves(medium) == [("started", 1), ("open", 1)]
        assert (await runtime.unsettled(), [row.run_id for row in await runtime.unfinished()]) == ([], ["r"])
        result = await runtime.resume("r", AGENT)
        assert (result.text, result.tool_calls, len(provider.requests)) == ("done", 1, 2)
    assert await moves(medium) == [("started", 1), ("open", 1), ("started", 1), ("done", 1)]


async def test_a_send_that_was_left_claims_no_call_since_nobody_is_there_to_run_it() -> None:
    """(R84, R141)"""
    go, medium = asyncio.Event(), SharedMemory()

    async def late(request: al.ModelRequest) -> Any:
        await go.wait()
        return reply(calls=[call("note", text="x")])

    async with al.Runtime(ScriptedProvider([late, reply("done")]), store=medium) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=WAIT)
        go.set()
        status = await _found(runtime, "r")
        assert (status.state, await moves(medium), await runtime.unsettled()) == ("found", [], [])
        assert (await runtime.resume("r", AGENT)).text == "done"
    assert await moves(medium) == [("started", 1), ("done", 1)]
