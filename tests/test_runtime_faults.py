"""What ends a run with an error: the error keeps its identity, and the conversation can go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import Fact, SlotMoved
from agentloop.testing import RecordingSink, ScriptedProvider, broken, call, reply
from tests.runs import SlowBackend, check_end, facts_of, on_backend, pairs_in, turn_of


class Log:
    """Deps: which tools ran, in order."""

    def __init__(self) -> None:
        self.ran: list[str] = []


@al.tool
async def fine(ctx: al.ToolContext[Log]) -> str:
    """Works."""
    ctx.deps.ran.append("fine")
    return "ok"


@al.tool
async def crash(ctx: al.ToolContext[Log]) -> str:
    """Raises what it does not declare."""
    ctx.deps.ran.append("crash")
    raise LookupError("the secret text of the error")


@al.tool(errors=(ZeroDivisionError,))
async def fail(how: str, ctx: al.ToolContext[Log]) -> al.ToolResult:
    """Fails in a way it declares."""
    ctx.deps.ran.append("fail")
    if how == "declared":
        raise ZeroDivisionError("by zero")
    if how == "said":
        raise al.ToolFailed("not today")
    return al.ToolResult.error("returned")


AGENT = al.Agent(name="a", tools=[fine, crash, fail])


async def go_on(runtime: al.Runtime, provider: ScriptedProvider, pairs: list[tuple[str, str]] | None = None) -> None:
    """The next turn of the conversation works, and sees these results of the one before."""
    result = await runtime.run(AGENT, "again", deps=Log(), conversation="c")
    assert result.text == "next"
    if pairs is not None:
        assert pairs_in(provider.requests[-1]) == pairs


async def test_an_undeclared_exception_of_a_tool_ends_the_run_and_its_siblings_are_skipped() -> None:
    """(R62, R61, R324)"""
    log = Log()
    calls = [call("fine", call_id="1"), call("crash", call_id="2"), call("fine", call_id="3")]
    provider = ScriptedProvider([reply(calls=calls), reply("next")])
    async with al.Runtime(provider) as runtime:
        with pytest.raises(al.ToolCrashed) as caught:
            await runtime.run(AGENT, "go", deps=log, conversation="c", run_id="r")
        error = caught.value
        assert isinstance(error.__cause__, LookupError)
        assert (error.tool, error.call_id, error.effect_id, error.error_type) == ("crash", "2", "r/0.1", "LookupError")
        assert "secret" not in str(error)
        events = await check_end(runtime, "r", "failed", "tool_crashed")
        assert log.ran == ["fine", "crash"]
        assert [slot.state for slot in turn_of(runtime, "r").entries[0].slots] == ["done", "unknown", "skipped"]
        ends = [(event.tool, event.status) for event in events if isinstance(event, al.ToolEnded)]
        assert ends == [("fine", "success"), ("crash", "error")]
        unknown = "Error: the tool stopped with an unexpected error; whether its effect happened is unknown."
        skipped = "This call was not run: the run ended with an error."
        await go_on(runtime, provider, [("1", "ok"), ("2", unknown), ("3", skipped)])
    assert len(provider.requests) == 2


async def test_a_tool_that_fails_in_a_declared_way_does_not_touch_its_siblings() -> None:
    """(R33, R61, R93)"""
    log = Log()
    calls = [call("fine"), *(call("fail", how=how) for how in ("declared", "said", "returned")), call("fine")]
    provider = ScriptedProvider([reply(calls=calls), reply("done")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(AGENT, "go", deps=log, run_id="r")
        events = await check_end(runtime, "r", "completed")
        slots = turn_of(runtime, "r").entries[0].slots
    assert log.ran == ["fine", "fail", "fail", "fail", "fine"]
    assert result.tool_calls == 5
    assert [slot.state for slot in slots] == ["done", "failed", "failed", "failed", "done"]
    assert [slot.feedback.status for slot in slots] == ["ok", "error", "error", "error", "ok"]
    assert [slot.code for slot in slots] == [None, "tool_error", "tool_failed", "error_result", None]
    pairs = [text for _, text in pairs_in(provider.requests[1])]
    assert pairs == ["ok", "ZeroDivisionError: by zero", "not today", "returned", "ok"]
    starts = [event.position for event in events if isinstance(event, al.ToolStarted)]
    assert starts == [0, 1, 2, 3, 4]


async def test_bad_arguments_and_unknown_names_run_nothing_and_are_told_in_words() -> None:
    """(R2, R19, R55, R56, R57, R81, R154)"""
    log = Log()
    calls = [
        call("fine", arguments_text='{"x": '),
        call("os.system", arguments_text='{"command": "rm -rf /"}'),
        call("fail", arguments_text='{"how": 7}'),
        call("fine", arguments_text='{"__class__": "x"}'),
        call("fine", arguments_text=""),
    ]
    provider = ScriptedProvider([reply(calls=calls), reply("done")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(AGENT, "go", deps=log, run_id="r")
        events = await check_end(runtime, "r", "completed")
        facts = [fact for fact in await facts_of(runtime) if isinstance(fact, SlotMoved)]
        slots = turn_of(runtime, "r").entries[0].slots
    assert log.ran == ["fine"]  # the last one: no arguments are {}
    assert result.tool_calls == 1
    refused = [event for event in events if isinstance(event, al.ToolSkipped)]
    codes = ["invalid_json", "unknown_tool", "schema_mismatch", "schema_mismatch"]
    assert [(event.slot, event.code) for event in refused] == [("failed", code) for code in codes]
    assert [fact.state for fact in facts] == ["failed"] * 4 + ["started", "done"]
    assert all(fact.effect_id is None and fact.attempt == 0 for fact in facts[:4])
    assert all(slot.feedback.status == "error" for slot in slots[:4])
    told = [text for _, text in pairs_in(provider.requests[1])]
    assert told[0].startswith("Nothing ran. ")
    assert "fine, crash, fail" in told[1]
    assert "how" in told[2]


async def test_a_tool_of_another_agent_cannot_be_reached_by_its_name() -> None:
    """(R2, R60, R153)"""
    log = Log()
    narrow = al.Agent(name="narrow", tools=[fail])
    provider = ScriptedProvider([reply(calls=[call("fine")]), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(narrow, "go", deps=log, run_id="r")
        (slot,) = turn_of(runtime, "r").entries[0].slots
    assert log.ran == []
    assert slot.code == "unknown_tool"
    assert [tool.name for tool in provider.requests[0].tools] == ["fail"]
    assert provider.requests[0].tools == narrow.toolset.specs


async def test_a_fault_of_a_tools_own_types_ends_the_run_and_runs_nothing() -> None:
    """(R58, R62)"""

    log = Log()

    @al.tool
    async def odd(at: int) -> str:
        """Takes a number."""
        return "ran"

    def admit(text: str) -> Any:
        raise al.ToolDefinitionError("bad_tool", "odd", "expected a schema that holds, got one that does not")

    agent = al.Agent(name="a", tools=[odd, fine])
    object.__setattr__(odd, "_arguments", type("Broken", (), {"admit": staticmethod(admit)})())
    provider = ScriptedProvider([reply(calls=[call("odd", at=1), call("fine")]), reply("next")])
    async with al.Runtime(provider) as runtime:
        with pytest.raises(al.ToolDefinitionError, match="expected a schema that holds"):
            await runtime.run(agent, "go", deps=log, conversation="c", run_id="r")
        await check_end(runtime, "r", "failed", "bad_tool")
        assert [slot.state for slot in turn_of(runtime, "r").entries[0].slots] == ["skipped", "skipped"]
        assert log.ran == []
        await go_on(runtime, provider)


REFUSED = al.StreamRefused("truncated", 3, 99, "the rest of the stream", "its end")
FAILED = al.HTTPStatusError("overloaded", status=503, retry_after=2.0)
UNREACHABLE = al.ConnectionFailed("nobody there")


@pytest.mark.parametrize("error", [REFUSED, FAILED, UNREACHABLE, RuntimeError("a bug of a provider")], ids=repr)
async def test_a_send_that_fails_ends_the_run_with_that_very_error(error: Exception) -> None:
    """(R62, R114, R324)"""
    first = reply(calls=[call("fine", call_id="1")])
    provider = ScriptedProvider([first, broken(reply("half a"), error), reply("next")], deltas=2)
    sink = RecordingSink()
    async with al.Runtime(provider) as runtime:
        with pytest.raises(type(error)) as caught:
            await runtime.run(AGENT, "go", deps=Log(), conversation="c", run_id="r", sink=sink)
        assert caught.value is error
        events = await check_end(runtime, "r", "failed")
        assert sink.text == "half a"
        end = sink.of(al.ModelEnd)[-1]
        assert (end.status, end.retracted) == ("error", True)
        assert not [event for event in events if isinstance(event, al.TextPreview)]  # it does not stand
        await go_on(runtime, provider, [("1", "ok")])
    assert len(provider.requests) == 3


async def test_a_sink_that_fails_ends_the_run_and_what_it_raised_is_raised() -> None:
    """(R62, R126, R263)"""
    for kind in (al.ModelStart, al.TextPreview, al.ModelParsed):
        error = ConnectionResetError("the client went")
        provider = ScriptedProvider([reply("hi", calls=[call("fine")]), reply("next")])
        sink, log = RecordingSink(fails_on=(kind, error)), Log()
        async with al.Runtime(provider) as runtime:
            with pytest.raises(ConnectionResetError) as caught:
                await runtime.run(AGENT, "go", deps=log, conversation="c", run_id="r", sink=sink)
            assert caught.value is error
            events = await check_end(runtime, "r", "failed", "ConnectionResetError")
            (end,) = (event for event in events if isinstance(event, al.ModelEnd))
            assert (end.status, end.code) == ("error", "delivery")
            assert log.ran == []
            assert turn_of(runtime, "r").entries == []
            unknown = turn_of(runtime, "r").unknown_sends
            assert len(unknown) == (0 if kind is al.ModelStart else 1)  # before that nothing was sent
            assert len(provider.requests) == len(unknown)


async def test_a_sink_that_fails_on_the_end_of_a_call_changes_nothing() -> None:
    """(R264, R265)"""
    sink = RecordingSink(fails_on=(al.ModelEnd, ConnectionResetError("the client went")))
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        result = await runtime.run(AGENT, "go", sink=sink, run_id="r")
        assert result.text == "hi"
        await check_end(runtime, "r", "completed")


class Breaking(SlowBackend):
    """A medium that fails at the n-th write."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        self.at -= 1
        if self.at == 0:
            raise OSError("disk full")
        await super().append(facts, token=token, after=after)


@pytest.mark.parametrize("at", range(1, 9))
async def test_a_medium_that_fails_stops_the_store_and_no_tool_runs_again(at: int) -> None:
    """(R62)"""
    provider = ScriptedProvider([reply(calls=[call("fine")]), reply("done")])
    log, observer = Log(), RecordingSink()
    backend = Breaking(at)
    async with on_backend(backend, provider, observers=[observer]) as runtime:
        if at == 8:
            assert (await runtime.run(AGENT, "go", deps=log, run_id="r")).text == "done"
            return
        with pytest.raises(al.PersistenceError) as caught:
            await runtime.run(AGENT, "go", deps=log, run_id="r")
        assert isinstance(caught.value.__cause__, OSError)
        assert log.ran == (["fine"] if at >= 4 else [])
        assert len(provider.requests) <= 2
        with pytest.raises(al.PersistenceError):
            await runtime.run(AGENT, "again", deps=log)
    if at > 1:
        assert observer.types[0] == "run.started"
        assert observer.types[-1] == "run.ended"
        assert observer.types.count("model.start") == observer.types.count("model.end")
        assert observer.types.count("run.ended") == 1


async def test_an_end_that_cannot_be_stored_is_noted_on_the_error_that_ended_the_run() -> None:
    """(R324)"""
    backend, observer = Breaking(5), RecordingSink()  # origin, send, its failure, then the end
    backend.at = 4
    async with on_backend(backend, ScriptedProvider([REFUSED]), observers=[observer]) as runtime:
        with pytest.raises(al.StreamRefused) as caught:
            await runtime.run(AGENT, "go", run_id="r")
        assert caught.value is REFUSED
        assert "could not be stored" in caught.value.__notes__[-1]
    assert observer.types[-1] == "run.ended"


def hanging(kind: str, *, idempotent: bool, release: threading.Event, log: Log) -> al.Tool:
    if kind == "thread":

        @al.tool(name="hang", idempotent=idempotent, timeout=0.25, grace=0.02)  # in which its thread has begun
        def hang() -> str:
            """Outlasts its time."""
            log.ran.append("hang")
            release.wait(10)
            return "late"
    else:

        @al.tool(name="hang", idempotent=idempotent, timeout=0.02)
        async def hang() -> str:
            """Outlasts its time."""
            log.ran.append("hang")
            await asyncio.Event().wait()
            return "never"

    return hang


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize(("idempotent", "state"), [(True, "failed"), (False, "unknown")])
async def test_a_tool_that_outlasts_its_time_gives_feedback_and_the_run_goes_on(
    kind: str, idempotent: bool, state: str
) -> None:
    """An idempotent one was repeated, unless its thread went on (R330, R331, R332, R334)."""
    release, log = threading.Event(), Log()
    agent = al.Agent(name="a", tools=[hanging(kind, idempotent=idempotent, release=release, log=log), fine])
    provider = ScriptedProvider([reply(calls=[call("hang"), call("fine")]), reply("done")])
    try:
        async with al.Runtime(provider) as runtime:
            result = await runtime.run(agent, "go", deps=log, run_id="r")
            assert result.text == "done"
            await check_end(runtime, "r", "completed")
            first, second = turn_of(runtime, "r").entries[0].slots
            assert (first.state, first.code) == (state, "timeout")
            assert ("unknown" in first.feedback.text) is not idempotent
            if kind == "thread":  # it has not ended, so nothing runs beside it
                assert (second.state, second.code) == ("failed", "thread_busy")
                assert "an earlier call of hang has not ended" in second.feedback.text
                assert log.ran == ["hang"]
            else:
                assert (second.state, log.ran) == ("done", ["hang"] * (4 if idempotent else 1) + ["fine"])
            release.set()
    finally:
        release.set()


async def test_a_tool_runs_again_once_its_thread_has_ended() -> None:
    release, log = threading.Event(), Log()
    tool = hanging("thread", idempotent=True, release=release, log=log)

    async def after(request: al.ModelRequest) -> Any:
        release.set()
        await runtime._runs.pool.wait_idle()
        return reply(calls=[call("fine")])

    provider = ScriptedProvider([reply(calls=[call("hang")]), after, reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=[tool, fine]), "go", deps=log)
    assert log.ran == ["hang", "fine"]


async def test_a_timeout_error_of_a_tools_own_is_that_tools_failure() -> None:
    """(R324)"""

    @al.tool(errors=(TimeoutError,))
    async def slow() -> str:
        """Raises TimeoutError by itself."""
        raise TimeoutError("upstream")

    provider = ScriptedProvider([reply(calls=[call("slow")]), reply("done")])
    async with al.Runtime(provider) as runtime:
        agent = al.Agent(name="a", tools=[slow], limits=al.LoopLimits(max_seconds=60))
        assert (await runtime.run(agent, "go", run_id="r")).outcome == "completed"
        (slot,) = turn_of(runtime, "r").entries[0].slots
        assert (slot.state, slot.code, slot.feedback.text) == ("failed", "tool_error", "TimeoutError: upstream")


async def test_a_result_that_cannot_be_one_is_a_fault_and_not_a_null() -> None:
    """(R62, R64)"""

    @al.tool
    async def measure() -> float:
        """Returns what has no JSON."""
        return float("nan")

    async with al.Runtime(ScriptedProvider([reply(calls=[call("measure")])])) as runtime:
        with pytest.raises(al.ToolCrashed) as caught:
            await runtime.run(al.Agent(name="a", tools=[measure]), "go", run_id="r")
        assert isinstance(caught.value.__cause__, al.ToolResultError)
        await check_end(runtime, "r", "failed", "tool_crashed")


async def test_a_reply_that_is_a_refusal_is_an_outcome() -> None:
    """(R25, R27)"""
    for answer in (reply("", refusal="No."), reply("No.", finish="content_filter")):
        async with al.Runtime(ScriptedProvider([answer])) as runtime:
            result = await runtime.run(AGENT, "go", run_id="r")
            await check_end(runtime, "r", "refused")
            assert result.outcome == "refused"
            with pytest.raises(al.OutcomeError, match="expected outcome completed, got refused"):
                result.require_text()


async def test_a_finish_word_nobody_knows_is_kept_and_means_incomplete() -> None:
    """(R26)"""
    async with al.Runtime(ScriptedProvider([reply("half", calls=[call("fine")], finish="pause")])) as runtime:
        log = Log()
        result = await runtime.run(AGENT, "go", deps=log, run_id="r")
        assert (result.outcome, result.reason, result.text, log.ran) == ("incomplete", "pause", "half", [])
        await check_end(runtime, "r", "incomplete", "pause")


async def test_stop_with_calls_runs_them() -> None:
    log = Log()
    async with al.Runtime(ScriptedProvider([reply(calls=[call("fine")], finish="stop"), reply("done")])) as runtime:
        assert (await runtime.run(AGENT, "go", deps=log)).text == "done"
    assert log.ran == ["fine"]


async def test_tools_of_a_reply_run_one_after_the_other_in_call_order() -> None:
    """(R93)"""
    inside: list[str] = []
    most = 0

    def make(name: str) -> al.Tool:
        @al.tool(name=name)
        async def run() -> str:
            """Takes a few turns of the loop."""
            nonlocal most
            inside.append(name)
            most = max(most, len(inside))
            for _ in range(3):
                await asyncio.sleep(0)
            inside.remove(name)
            return name

        return run

    tools = [make(name) for name in ("a", "b", "c")]
    provider = ScriptedProvider([reply(calls=[call("c"), call("a"), call("b")]), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=tools), "go")
    assert most == 1
    assert [text for _, text in pairs_in(provider.requests[1])] == ["c", "a", "b"]


async def test_the_next_request_is_built_only_when_every_call_has_feedback() -> None:
    """(R13)"""
    open_calls: list[int] = []

    def judge(request: al.ModelRequest) -> Any:
        open_calls.append(sum(len(e.reply.calls) - len(e.feedback) for e in request.exchanges))
        return reply("done")

    calls = [call("fine"), call("nobody"), call("fail", how="said")]
    async with al.Runtime(ScriptedProvider([reply(calls=calls), judge])) as runtime:
        await runtime.run(AGENT, "go", deps=Log())
    assert open_calls == [0]
