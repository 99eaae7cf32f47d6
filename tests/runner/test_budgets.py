"""Budgets of a runner: calls, time, characters, tokens and bytes, each for itself."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import BudgetError, CallTimeout, LimitExceeded, OutputRefused
from agentloop.messages import ModelExchange, ModelReply, UserMessage
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, reply


def runner(*script: Any, **options: Any) -> tuple[al.ModelRunner, ScriptedProvider]:
    provider = ScriptedProvider(script)
    return al.ModelRunner(provider, **options), provider


class Instructed:
    """Text, with an instruction of a given length and declarations of another."""

    id = "instructed"

    def __init__(self, instruction: int, schema: int = 0) -> None:
        self.instruction, self.schema = instruction, schema

    def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
        plain = al.PlainText().prepare(stage)
        return al.Interaction(
            create_response=plain.create_response,
            route="text",
            instruction="i" * self.instruction or None,
            schema_chars=self.schema,
        )


# -- calls


async def test_every_call_of_a_runner_is_counted_whatever_it_was_for_and_however_it_ended() -> None:
    """(R211)"""
    number = al.Structured(int)
    script = [
        reply("plain"),
        reply('{"value":1}'),
        reply("no json"),
        al.ConnectionFailed("no"),
        broken(reply("a"), al.ConnectionLost("gone")),
        reply("a summary"),
        reply("after the summary"),
        reply("of a child"),
    ]
    made, provider = runner(*script, transports=(number,), max_calls=8)
    await made.invoke("q")
    assert (await made.invoke("q", transport=number)).value == 1
    with pytest.raises(OutputRefused):
        await made.invoke("q", transport=number)
    with pytest.raises(al.ConnectionFailed):
        await made.invoke("q")
    with pytest.raises(al.ConnectionLost):
        await made.invoke("q")
    assert (made.call_count, made.remaining_calls) == (5, 3)
    answered = ModelExchange(reply=reply("A" * 300))
    talk = (UserMessage(content="x" * 300), answered, UserMessage(content="now"))
    summary = al.Summary(max_chars=60)
    plan = al.ContextPlan(max_chars=300, strategy="summarise", summary=summary, messages=talk)
    assert (await made.invoke(plan)).value == "after the summary"
    assert [trace.stage_id for trace in made.journal.model[-2:]] == ["summary", "model"]
    assert (made.call_count, made.remaining_calls) == (7, 1)
    await made.child().invoke("q")
    with pytest.raises(BudgetError) as caught:
        await made.invoke("q")
    assert str(caught.value) == "model_calls: allowed 8, got at least 9"
    assert (made.call_count, made.total_call_count, made.remaining_calls) == (7, 8, 0)
    assert len(provider.requests) == 8


async def test_a_runner_without_calls_makes_none() -> None:
    """(R211)"""
    sink = RecordingSink()
    made, provider = runner(max_calls=0, sink=sink)
    with pytest.raises(BudgetError, match="model_calls: allowed 0, got at least 1"):
        await made.invoke("q")
    assert (provider.requests, sink.events, made.call_count) == ([], [], 0)
    (rejected,) = made.journal.rejected
    assert (rejected.code, rejected.limit, rejected.allowed, rejected.got) == ("BUDGET", "model_calls", 0, 1)


async def test_tokens_that_were_reported_are_a_budget_and_the_call_that_crosses_it_counts() -> None:
    made, _ = runner(reply("a", usage=(6, 3)), reply("b", usage=(6, 3)), max_tokens=10)
    await made.invoke("q")
    await made.invoke("q")
    with pytest.raises(BudgetError, match="tokens: allowed 10, got at least 19"):
        await made.invoke("q")


# -- time


async def never(request: al.ModelRequest) -> ModelReply:
    await asyncio.Event().wait()
    raise AssertionError


async def test_each_call_has_its_own_time() -> None:
    """(R212)"""
    made, provider = runner(never, reply("hi"), never, call_timeout=0.01)
    for _ in range(2):
        with pytest.raises(CallTimeout) as caught:
            await made.invoke("q")
        assert (caught.value.limit, caught.value.seconds) == ("call_timeout", 0.01)
        if len(provider.requests) == 1:
            assert (await made.invoke("q")).value == "hi"
    assert (made.call_count, made.signal.cancelled) == (3, False)


async def test_the_time_of_a_call_extends_no_deadline() -> None:
    """(R212)"""
    made, provider = runner(never, call_timeout=30, execution=al.Execution(signal=al.Signal(seconds=0.01)))
    with pytest.raises(CallTimeout) as caught:
        await made.invoke("q")
    assert (caught.value.limit, caught.value.seconds) == ("deadline", 0.01)
    assert len(provider.requests) == 1


async def test_after_the_deadline_there_is_no_call() -> None:
    """(R212)"""
    clock = FakeClock()
    signal = al.Signal(seconds=5, clock=clock)
    made, provider = runner(reply("hi"), call_timeout=30, execution=al.Execution(signal=signal))
    clock.advance(4)
    await made.invoke("q")
    clock.advance(1)
    with pytest.raises(CallTimeout, match="deadline: expected an end within 5 s, got none"):
        await made.invoke("q")
    assert (len(provider.requests), made.total_call_count) == (1, 1)


# -- characters


@pytest.mark.parametrize(
    ("over", "limit"),
    [((1, 0, 0), "max_input_chars"), ((0, 1, 0), "max_schema_chars"), ((0, 0, 1), "max_output_chars")],
)
async def test_the_three_budgets_of_characters_do_not_lend(over: tuple[int, int, int], limit: str) -> None:
    """(R213)"""
    sizes, budgets = (5, 7, 9), {"max_input_chars": 5, "max_schema_chars": 7, "max_output_chars": 9}

    async def call(more: tuple[int, int, int], **options: Any) -> str:
        said, schema, answer = (size + extra for size, extra in zip(sizes, more, strict=True))
        transport = Instructed(3, schema - 3)
        made, _ = runner(reply("a" * answer), transports=(transport,), **options)
        return (await made.invoke("m" * said, transport=transport)).value

    assert await call((0, 0, 0), **budgets) == "a" * 9
    with pytest.raises(BudgetError) as caught:
        await call(over, **budgets)
    allowed = budgets[limit]
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == (limit, allowed, allowed + 1)
    roomy = {name: budget if name == limit else budget * 100 for name, budget in budgets.items()}
    with pytest.raises(BudgetError, match=limit):
        await call(over, **roomy)


async def test_an_answer_is_cut_off_where_it_grows_too_long_and_was_sent() -> None:
    """(R213)"""
    sink = RecordingSink()
    provider = ScriptedProvider([reply("abcdef")], deltas=1)
    made = al.ModelRunner(provider, max_output_chars=3, sink=sink)
    with pytest.raises(BudgetError, match="max_output_chars: allowed 3, got at least 4"):
        await made.invoke("q")
    assert sink.text == "abc"
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.code, end.retracted, end.output_chars) == ("error", "BUDGET", True, 4)
    assert made.journal.rejected == ()
    assert made.call_count == 1


@given(
    budget=st.integers(0, 12) | st.just(math.inf),
    out=st.integers(0, 12) | st.just(math.inf),
    calls=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=6),
    max_calls=st.integers(0, 4),
)
async def test_a_call_is_refused_exactly_when_it_is_over_and_then_changes_no_counter(
    budget: float, out: float, calls: list[tuple[int, int]], max_calls: int
) -> None:
    """(R211, R213)"""

    def answer(request: al.ModelRequest) -> ModelReply:
        return reply("a" * int(request.messages[0].content.split("/")[0]))  # type: ignore[union-attr]

    made, provider = runner(*[answer] * len(calls), max_input_chars=budget, max_output_chars=out, max_calls=max_calls)
    sent = 0
    for size, length in calls:
        said = f"{length}/".ljust(size, "x")
        before = (made.call_count, made.remaining_calls, made.total_call_count, made.last_call)
        prepared = made.prepare()
        refused: BudgetError | None = None
        try:
            result = await made.invoke(said, prepared=prepared)
            assert len(result.value) == length <= out
        except BudgetError as error:
            refused = error
        if refused is None or refused.limit == "max_output_chars":
            sent += 1
            assert len(said) <= budget
            assert (refused is None) == (length <= out)
            continue
        over = len(said) > budget
        assert refused.limit == ("max_input_chars" if over else "model_calls")
        assert over or sent == max_calls
        assert (made.call_count, made.remaining_calls, made.total_call_count, made.last_call) == before
        assert not prepared.used
    assert (made.call_count, made.remaining_calls, len(provider.requests)) == (sent, max_calls - sent, sent)


# -- what the server is told, and what it takes


async def test_what_a_call_may_write_is_asked_of_the_server() -> None:
    """(R215)"""
    number = al.Structured(int)
    made, provider = runner(
        *[reply("hi")] * 2,
        reply('{"value":1}'),
        max_output_tokens=50,
        transports=(number,),
        options=al.ModelOptions(temperature=0.5),
    )
    await made.invoke("q")
    await made.invoke("q", max_output_tokens=7)
    await made.invoke("q", prepared=made.prepare(transport=number, max_output_tokens=9))
    assert [request.options.max_output_tokens for request in provider.requests] == [50, 7, 9]
    assert {request.options.temperature for request in provider.requests} == {0.5}
    default, asked = runner(reply("hi"))
    await default.invoke("q")
    assert asked.requests[0].options.max_output_tokens == 1_024


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.inf, math.nan, True, "9"], ids=repr)
async def test_a_reservation_is_a_number_of_tokens(bad: Any) -> None:
    """(R215, R252)"""
    made, provider = runner()
    with pytest.raises(al.InputError, match="max_output_tokens: expected an integer from 1 to"):
        await made.invoke("q", max_output_tokens=bad)
    assert (provider.requests, made.total_call_count) == ([], 0)


async def test_a_request_that_is_too_large_for_the_provider_is_not_sent_and_costs_nothing() -> None:
    sink = RecordingSink()
    provider = ScriptedProvider([reply("hi")], max_request_bytes=500)
    made = al.ModelRunner(provider, sink=sink)
    prepared = made.prepare()
    with pytest.raises(LimitExceeded) as caught:
        await made.invoke("x" * 1_000, prepared=prepared)
    assert type(caught.value) is LimitExceeded
    assert (caught.value.limit, caught.value.allowed) == ("max_request_bytes", 500)
    assert caught.value.got > 1_000
    assert (provider.requests, sink.events, made.total_call_count, prepared.used) == ([], [], 0, False)
    assert [rejected.limit for rejected in made.journal.rejected] == ["max_request_bytes"]
    assert (await made.invoke("q", prepared=prepared)).value == "hi"
    assert (await made._host.store.runs(unfinished=True)) == []
