"""Reaching a limit is an outcome: its name is the reason, and the conversation goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange.encoding import sorted_bytes
from agentloop.messages import ModelReply
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, call, reply
from tests.runs import body_of, check_end, pairs_in, turn_of


class Counter:
    """Deps: how often a tool ran."""

    def __init__(self) -> None:
        self.ran = 0


@al.tool
async def count(step: int, ctx: al.ToolContext[Counter]) -> str:
    """Count one up."""
    ctx.deps.ran += 1
    return f"{step}: {ctx.deps.ran}"


def agent(**limits: Any) -> al.Agent:
    return al.Agent(name="counter", tools=[count], limits=al.LoopLimits(**limits))


def counting(*steps: int, **fields: Any) -> ModelReply:
    calls = [call("count", call_id=f"c{at}", step=step) for at, step in enumerate(steps)]
    return reply(calls=calls, **fields)


async def limited(
    limits: dict[str, Any], script: list[Any], **options: Any
) -> tuple[al.RunResult, Counter, list[al.Event]]:
    """Run into a limit, then hold the next turn of the conversation to a whole history."""
    deps, provider = Counter(), ScriptedProvider([*script, reply("next")])
    async with al.Runtime(provider, **options) as runtime:
        result = await runtime.run(agent(**limits), "go", deps=deps, conversation="c", run_id="r")
        events = await check_end(runtime, "r", result.outcome, result.reason)
        skipped = [slot for entry in turn_of(runtime, "r").entries for slot in entry.slots]
        calls = len(skipped)
        after = await runtime.run(al.Agent(name="other"), "and now?", conversation="c")
        assert after.text == "next"
        assert len(pairs_in(provider.requests[-1])) == calls
    provider.assert_complete()
    return result, deps, events


async def test_eight_model_calls_by_default() -> None:
    """(R95)"""
    result, deps, _ = await limited({}, [counting(at) for at in range(8)])
    assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_model_calls", 8)
    assert deps.ran == 7  # the eighth reply's call could not be read by anybody


async def test_at_the_last_model_call_the_calls_of_its_reply_are_skipped_in_words() -> None:
    """No effect is made in vain, and no exception loses the history. (R95, R102)"""
    result, deps, events = await limited({"max_model_calls": 2}, [counting(1), counting(2, 3)])
    assert (result.outcome, result.reason, result.model_calls, result.tool_calls) == (
        "limit_reached",
        "max_model_calls",
        2,
        1,
    )
    assert deps.ran == 1
    skipped = [event for event in events if isinstance(event, al.ToolSkipped)]
    assert [(event.slot, event.code) for event in skipped] == [("skipped", "max_model_calls")] * 2
    with pytest.raises(al.OutcomeError, match="expected outcome completed, got limit_reached"):
        result.require_text()


async def test_more_than_32_model_calls_only_by_an_explicit_ceiling() -> None:
    """(R95)"""
    with pytest.raises(al.InputError, match=r"from 1 to 32 \(more with ceiling=\), got 40"):
        agent(max_model_calls=40)
    result, deps, _ = await limited(
        {"max_model_calls": 40, "ceiling": 40}, [*(counting(at) for at in range(39)), reply("done")]
    )
    assert (result.outcome, result.model_calls, deps.ran) == ("completed", 40, 39)


async def test_a_reply_that_asks_for_more_tool_calls_than_are_left_runs_none_of_them() -> None:
    """(R102)"""
    result, deps, _ = await limited({"max_tool_calls": 6}, [counting(*range(8))])
    assert (result.outcome, result.reason, deps.ran, result.tool_calls) == ("limit_reached", "max_tool_calls", 0, 0)


async def test_tool_calls_are_counted_over_all_replies() -> None:
    result, deps, _ = await limited({"max_tool_calls": 3}, [counting(1, 2), counting(3, 4)])
    assert (result.reason, deps.ran) == ("max_tool_calls", 2)
    result, deps, _ = await limited({"max_tool_calls": 3}, [counting(1, 2), counting(3), reply("done")])
    assert (result.outcome, deps.ran) == ("completed", 3)


async def test_no_tool_calls_at_all() -> None:
    result, deps, _ = await limited({"max_tool_calls": 0}, [counting(1)])
    assert (result.reason, deps.ran) == ("max_tool_calls", 0)


async def test_the_call_that_crosses_the_tokens_counts_and_the_next_is_not_made() -> None:
    result, deps, _ = await limited({"max_tokens": 100}, [counting(1, usage=(30, 30)), counting(2, usage=(70, 30))])
    assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_tokens", 2)
    assert result.usage == al.Usage(input_tokens=100, output_tokens=60, total_tokens=160)
    assert deps.ran == 1
    result, _, _ = await limited({"max_tokens": 100}, [counting(1, usage=(30, 30)), reply("ok", usage=(500, 1))])
    assert result.outcome == "completed"


async def test_equal_calls_are_counted_by_name_and_argument_text() -> None:
    same = [counting(7) for _ in range(4)]
    result, deps, _ = await limited({"max_equal_calls": 3}, same)
    assert (result.reason, deps.ran, result.model_calls) == ("max_equal_calls", 3, 4)
    result, deps, _ = await limited({"max_equal_calls": 1}, [counting(1), counting(2), reply("ok")])
    assert (result.outcome, deps.ran) == ("completed", 2)
    result, deps, _ = await limited({"max_equal_calls": 1}, [counting(1, 1)])
    assert (result.reason, deps.ran) == ("max_equal_calls", 0)


async def test_the_seconds_of_a_run_are_checked_before_each_effect() -> None:
    clock = FakeClock()

    def late(request: al.ModelRequest) -> ModelReply:
        clock.advance(10)
        return counting(1)

    result, deps, _ = await limited({"max_seconds": 10.0}, [late], clock=clock, now_ms=clock.now_ms)
    assert (result.outcome, result.reason, deps.ran) == ("limit_reached", "max_seconds", 0)


async def test_the_seconds_of_a_run_end_a_model_call_that_goes_on() -> None:
    async def never(request: al.ModelRequest) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    result, _, events = await limited({"max_seconds": 0.02}, [counting(1), never])
    assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_seconds", 2)
    end = [event for event in events if isinstance(event, al.ModelEnd)][-1]
    assert (end.status, end.code) == ("cancelled", "cancelled")


async def test_the_seconds_of_a_run_end_a_tool_that_goes_on_and_its_outcome_is_unknown() -> None:
    @al.tool
    async def hang() -> None:
        """Never returns."""
        await asyncio.Event().wait()

    slow = al.Agent(name="a", tools=[hang], limits=al.LoopLimits(max_seconds=0.02))
    provider = ScriptedProvider([reply(calls=[call("hang"), call("hang")]), reply("next")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(slow, "go", conversation="c", run_id="r")
        assert (result.outcome, result.reason) == ("limit_reached", "max_seconds")
        await check_end(runtime, "r", "limit_reached", "max_seconds")
        first, second = turn_of(runtime, "r").entries[0].slots
        assert (first.state, second.state) == ("unknown", "skipped")
        assert first.feedback.text.startswith("Error: the run ended while this tool ran")
        assert second.feedback.text == "This call was not run: the run reached its limit (max_seconds)."
        await runtime.run(slow, "and?", conversation="c")


async def test_a_timeout_error_of_a_sink_is_not_the_clock_of_the_run() -> None:
    """(R324)"""
    error = TimeoutError("the client is slow")
    sink = RecordingSink(fails_on=(al.TextPreview, error))
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        with pytest.raises(TimeoutError) as caught:
            await runtime.run(agent(max_seconds=60.0), "go", sink=sink, run_id="r")
        assert caught.value is error
        await check_end(runtime, "r", "failed", "TimeoutError")


async def test_a_reply_over_its_bytes_is_not_kept_and_names_the_limit() -> None:
    """(R97)"""
    result, _, events = await limited({"reply_bytes": 1_000}, [counting(1), reply("x" * 2_000)])
    assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "reply_bytes", 2)
    ends = [event for event in events if isinstance(event, al.ModelEnd)]
    assert [(end.status, end.code) for end in ends] == [("success", None), ("error", "oversized")]
    assert result.text == ""  # that of the newest reply that was kept


async def test_a_reply_of_64_kib_is_the_default() -> None:
    """(R97)"""
    result, _, _ = await limited({}, [reply("x" * 60_000)])
    assert result.outcome == "completed"
    result, _, _ = await limited({}, [reply("x" * 66_000)])
    assert (result.outcome, result.reason) == ("limit_reached", "reply_bytes")


@pytest.mark.parametrize(("limit", "allowed"), [(None, 4096), (1_000, 1_000)])
async def test_one_feedback_with_its_call_id_is_cut_to_its_bytes(limit: int | None, allowed: int) -> None:
    """(R98)"""

    @al.tool
    async def much() -> str:
        """Return a lot."""
        return '"ü\n' * 5_000

    limits = al.LoopLimits() if limit is None else al.LoopLimits(feedback_bytes=limit)
    call_id = "a-long-call-id-" * 6
    provider = ScriptedProvider([reply(calls=[call("much", call_id=call_id)]), reply("ok")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=[much], limits=limits), "go", run_id="r")
        (slot,) = turn_of(runtime, "r").entries[0].slots
    assert allowed - 10 <= turn_of(runtime, "r").entries[0].size - size_of(slot) <= allowed
    assert slot.feedback.text.endswith("[cut: the full output is 20000 bytes, kept]")


def size_of(slot: Any) -> int:
    """Bytes of the reply that one call stands in, for a reply with nothing else."""
    return len(sorted_bytes(reply(calls=[slot.call])))


async def test_the_expanded_request_is_reserved_before_a_tool_runs() -> None:
    """(R99, R102)"""
    asked = counting(1, 2)
    result, deps, _ = await limited({"request_bytes": 8_500}, [asked])
    assert (result.outcome, result.reason, deps.ran) == ("limit_reached", "request_bytes", 0)
    result, deps, _ = await limited({"request_bytes": 10_000}, [asked, reply("ok")])
    assert (result.outcome, deps.ran) == ("completed", 2)


async def test_an_input_over_the_expanded_request_is_rejected_and_nothing_is_sent() -> None:
    """(R99, R321)"""
    provider = ScriptedProvider([reply("ok")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(request_bytes=1_024), "x" * 2_000, run_id="r")
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "request_bytes", 0)
        events = await check_end(runtime, "r", "limit_reached")
        assert [event.type for event in events] == ["run.started", "runtime.rejected", "run.ended"]
        rejected = events[1]
        assert isinstance(rejected, al.RequestRejected)
        assert (rejected.limit, rejected.allowed) == ("request_bytes", 1_024)
        assert rejected.got > 2_000
    assert provider.requests == []


async def test_all_exchanges_of_a_run_have_their_bytes_too() -> None:
    """(R100, R102)"""
    result, deps, _ = await limited({"collection_bytes": 4_700}, [counting(1), counting(2)])
    assert (result.outcome, result.reason, deps.ran) == ("limit_reached", "collection_bytes", 1)


async def test_the_encoded_request_is_inspected_before_it_is_sent() -> None:
    """(R103, R104, R105, R321)"""
    first = len(body_of(al.ModelRequest(messages=(al.UserMessage(content="go"),), tools=agent().toolset.specs)))
    allowed = first + 4_800
    provider = ScriptedProvider([counting(1), counting(2), counting(3), reply("next")], model="m")
    deps = Counter()
    async with al.Runtime(provider) as runtime:
        limited = agent(max_wire_request_bytes=allowed)
        result = await runtime.run(limited, "go", deps=deps, conversation="c", run_id="r")
        assert (result.outcome, result.reason) == ("limit_reached", "max_wire_request_bytes")
        events = await check_end(runtime, "r", "limit_reached")
    assert deps.ran == result.tool_calls == len(pairs_in(provider.requests[-1]))  # no answer stayed unread
    sent = [len(body_of(request)) for request in provider.requests]
    assert sent
    assert max(sent) <= allowed
    assert result.model_calls == len(sent) == len([event for event in events if isinstance(event, al.ModelStart)])


async def test_a_first_request_over_the_wire_limit_is_rejected_before_it_is_admitted() -> None:
    """(R103, R321)"""
    provider = ScriptedProvider([reply("ok")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent(max_wire_request_bytes=100), "go", run_id="r")
        events = await check_end(runtime, "r", "limit_reached", "max_wire_request_bytes")
        assert [event.type for event in events] == ["run.started", "runtime.rejected", "run.ended"]
    assert provider.requests == []


async def test_the_providers_own_ceiling_is_reserved_before_a_tool_runs_too() -> None:
    """(R102, R106)"""
    deps, provider = Counter(), ScriptedProvider([counting(1)], max_request_bytes=4_000)
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent(), "go", deps=deps, run_id="r")
        await check_end(runtime, "r", "limit_reached", "max_request_bytes")
    assert deps.ran == 0


async def test_a_request_over_the_providers_own_ceiling_is_not_admitted() -> None:
    """(R106, R321)"""
    provider = ScriptedProvider([reply("ok")], max_request_bytes=500)
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(al.Agent(name="a"), "x" * 1_000, run_id="r")
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_request_bytes", 0)
        events = await check_end(runtime, "r", "limit_reached")
        assert [event.type for event in events] == ["run.started", "runtime.rejected", "run.ended"]


async def test_a_provider_that_finds_out_late_ends_an_admitted_call_without_a_send() -> None:
    """(R106)"""

    class Late(ScriptedProvider):
        async def _begin(self, *args: Any) -> Any:
            raise al.LimitExceeded("max_request_bytes", 1, 2)

    provider = Late([reply("ok")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(al.Agent(name="a"), "go", run_id="r")
        assert (result.outcome, result.reason) == ("limit_reached", "max_request_bytes")
        events = await check_end(runtime, "r", "limit_reached")
        assert [event.type for event in events] == ["run.started", "model.start", "model.end", "run.ended"]
        assert turn_of(runtime, "r").unknown_sends == ()
    assert provider.requests == []


async def test_the_budget_of_a_run_is_its_own() -> None:
    """(R106)"""
    provider = ScriptedProvider([counting(1), reply("ok")] * 2)
    limited = agent(max_model_calls=2, max_tool_calls=1)
    async with al.Runtime(provider) as runtime:
        for _ in range(2):
            assert (await runtime.run(limited, "go", deps=Counter())).outcome == "completed"


async def test_a_store_that_is_full_is_a_typed_error_and_forgetting_makes_room() -> None:
    """(R106, R112)"""
    provider = ScriptedProvider([reply("one"), reply("two")])
    async with al.Runtime(provider, limits=al.BookLimits(origins=1)) as runtime:
        await runtime.run(al.Agent(name="a"), "go", conversation="c")
        with pytest.raises(al.LimitExceeded, match="origins: allowed 1, got at least 2"):
            await runtime.run(al.Agent(name="a"), "go", conversation="d")
        await runtime.forget(conversation="c")
        assert (await runtime.run(al.Agent(name="a"), "go", conversation="d")).text == "two"


@pytest.mark.parametrize("left", [400, 2_000, 6_000])
async def test_a_store_that_fills_up_during_a_run_loses_no_answer_and_ends_the_run(left: int) -> None:
    """Room for all answers is looked for before a tool runs. (R102, R112)"""
    deps, provider = Counter(), ScriptedProvider([counting(1, 2), reply("x" * 20_000)])
    size = 700  # about the origin and the first reply
    async with al.Runtime(provider, limits=al.BookLimits(total_bytes=size + left + 8_192)) as runtime:
        with pytest.raises(al.LimitExceeded) as caught:
            await runtime.run(agent(), "go", deps=deps, conversation="c", run_id="r")
        assert caught.value.limit == "total_bytes"
        events = await check_end(runtime, "r", "failed", "limit")
    assert deps.ran == 2
    end = [event for event in events if isinstance(event, al.ModelEnd)][-1]
    assert (end.status, end.code, end.retracted) == ("error", "limit", True)


async def test_a_store_without_room_for_the_answers_takes_no_reply_and_runs_no_tool() -> None:
    """(R102, R112)"""
    deps, provider = Counter(), ScriptedProvider([counting(1, 2, usage=(5, 6))])
    async with al.Runtime(provider, limits=al.BookLimits(total_bytes=8_192)) as runtime:
        with pytest.raises(al.LimitExceeded, match="total_bytes"):
            await runtime.run(agent(), "go", deps=deps, conversation="c", run_id="r")
        events = await check_end(runtime, "r", "failed", "limit")
        assert turn_of(runtime, "r").usage == al.Usage(input_tokens=5, output_tokens=6, total_tokens=11)
    assert deps.ran == 0
    end = [event for event in events if isinstance(event, al.ModelEnd)][-1]
    assert end.usage == al.Usage(input_tokens=5, output_tokens=6, total_tokens=11)  # it was spent


async def test_a_limit_of_one_run_says_nothing_about_a_reply_that_failed_otherwise() -> None:
    shown = broken(reply("half"), al.StreamRefused("oversized", 3, 9, "x", "y", limit="max_response_bytes", allowed=9))
    async with al.Runtime(ScriptedProvider([shown])) as runtime:
        with pytest.raises(al.StreamRefused):
            await runtime.run(al.Agent(name="a"), "go", run_id="r")
        await check_end(runtime, "r", "failed", "oversized")


@pytest.mark.parametrize(("size", "runs"), [(3_900, 1), (4_090, 0), (60_000, 0)])
async def test_a_call_id_that_leaves_no_room_for_an_answer_runs_nothing(size: int, runs: int) -> None:
    """A feedback counts its call id, so no answer of this call could be within the limit. (R98, R102)"""
    script = [reply(calls=[call("count", call_id="i" * size, step=1)]), *([reply("done")] if runs else [])]
    result, deps, _ = await limited({}, script)
    assert deps.ran == runs
    assert (result.outcome, result.reason) == (("completed", "stop") if runs else ("limit_reached", "feedback_bytes"))


async def test_every_feedback_of_a_run_that_goes_on_is_within_its_limit() -> None:
    """At the longest call id that is taken, with what JSON escapes in it. (R98)"""
    for size in range(1, 60):
        deps, provider = Counter(), ScriptedProvider([reply(calls=[call("nope", call_id='"' * size)]), reply("done")])
        async with al.Runtime(provider) as runtime:
            result = await runtime.run(agent(feedback_bytes=256), "go", deps=deps)
            (feedback,) = (slot.feedback for slot in turn_of(runtime, result.ref).entries[0].slots)
            assert (len(sorted_bytes(feedback)) <= 256) is (result.outcome == "completed"), size


async def test_a_collection_may_be_as_large_as_its_limit_and_no_larger() -> None:
    """An answer that takes all the room that was kept for it is still sent. (R100, R102)"""

    @al.tool
    def fill() -> str:
        """Answer at length."""
        return "a" * 5_000

    async def run(limit: int) -> tuple[al.RunResult, int]:
        filler = al.Agent(name="f", tools=[fill], limits=al.LoopLimits(collection_bytes=limit, feedback_bytes=1_024))
        async with al.Runtime(ScriptedProvider([reply(calls=[call("fill")]), reply("done")])) as runtime:
            result = await runtime.run(filler, "go")
            return result, turn_of(runtime, result.ref).entries[0].size

    _, size = await run(100_000)
    assert (await run(size))[0].outcome == "completed"
    short, _ = await run(size - 1)
    assert (short.outcome, short.reason, short.tool_calls) == ("limit_reached", "collection_bytes", 0)


@pytest.mark.parametrize("parallel", [1, 4])
async def test_a_start_whose_claim_the_store_refused_is_not_charged(parallel: int) -> None:
    """Of a ledger that several runs share nothing is lost for what never began."""

    @al.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    total = al.Ledger(tool_calls=3)
    limits = al.LoopLimits(max_parallel_tools=parallel)
    agent = al.Agent(name="a", tools=[echo], limits=limits)
    large = reply(calls=[call("echo", text="q" * 1_500), call("echo", call_id="2", text="p")])
    for _ in range(3):
        small = al.BookLimits(total_bytes=5_000)
        async with al.Runtime(ScriptedProvider([large]), limits=small, ledger=total) as runtime:
            with pytest.raises(al.LimitExceeded):
                await runtime.run(agent, "go")
    assert total.spent("tool_calls") == 0


@pytest.mark.parametrize("ref", ["", "x" * 1_025, "r\ud800"], ids=["empty", "long", "surrogate"])
async def test_what_no_run_can_be_called_is_refused_and_not_repeated(ref: str) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        for asking in (runtime.result(ref), runtime.cancel(ref), runtime.steer(ref, "more"), runtime.output(ref, 0, 0)):
            with pytest.raises(al.InputError, match=r"^ref: expected the id of a run, 1 to 1024 characters") as caught:
                await asking
            assert len(str(caught.value)) < 120
