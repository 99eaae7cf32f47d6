"""Contexts of a runner: what is given to it, what fits, and summaries that are calls like any other."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.errors import BudgetError, HTTPStatusError, InputError, LimitExceeded, OutputRefused, ProviderError
from agentloop.exchange import OriginOpened
from agentloop.exchange.cut import SUMMARY_HEADING, summary_message
from agentloop.messages import Message, ModelExchange, SystemMessage, Text, UserMessage, messages_chars
from agentloop.runner.summaries import build_context
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, reply
from agentloop.wire.encode import encode_request
from tests.messages.values import call, exchange
from tests.messages.values import reply as made_reply
from tests.runs import facts_of


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def answer(text: str) -> ModelExchange:
    return ModelExchange(reply=made_reply(Text(text=text), native={"reasoning_content": f"why {text[:1]}"}))


TALK: tuple[Message, ...] = (
    SystemMessage(content="S" * 10),
    user("a" * 30),
    exchange("x", "y"),
    answer("A" * 30),
    user("b" * 30),
    answer("B" * 30),
    user("c" * 30),
    answer("C" * 30),
    user("d" * 30),
)
"""Four turns: 10, then 104, 60, 60 and 30 characters."""

HEADED = len(SUMMARY_HEADING) + 2
PLAN = al.ContextPlan(
    max_chars=130 + HEADED,
    strategy="summarise",
    summary=al.Summary(instruction="In short.", max_chars=30),
    messages=TALK,
)


def runner(*script: Any, **options: Any) -> tuple[al.ModelRunner, ScriptedProvider]:
    provider = ScriptedProvider(script)
    return al.ModelRunner(provider, **options), provider


async def facts(made: al.ModelRunner) -> list[Any]:
    return await made._host.store._backend.load()


# -- what a call is given


async def test_text_messages_a_context_and_a_plan_are_given_alike() -> None:
    """(R218)"""
    said = (user("q"),)
    forms: list[Any] = [
        "q",
        said[0],
        [*said],
        said,
        al.BuiltContext(messages=said, max_chars=math.inf, source_messages=9),
        al.ContextPlan(max_chars=100, messages=said),
    ]
    made, provider = runner(*[reply("a")] * len(forms))
    prepared = made.prepare()
    for form in forms:
        assert made.measure(form, prepared).message_chars == 1
        assert (await made.invoke(form)).value == "a"
    assert {request.messages for request in provider.requests} == {said}


@pytest.mark.parametrize("wrong", [None, 7, b"q", {"role": "user"}, [7], [], al.ContextPlan(max_chars=1)])
async def test_anything_else_is_refused_before_it_is_charged(wrong: Any) -> None:
    """(R218)"""
    made, provider = runner()
    with pytest.raises(al.AgentLoopError):
        await made.invoke(wrong)
    assert (made.call_count, provider.requests, await facts(made)) == (0, [], [])


async def test_a_plan_that_drops_asks_nobody() -> None:
    plan = al.ContextPlan(max_chars=100, messages=TALK)
    made, provider = runner(reply("a"))
    assert (await made.build(plan)) == plan.build()
    await made.invoke(plan)
    assert provider.requests[0].messages == (TALK[0], *TALK[6:])
    assert made.call_count == 1


@pytest.mark.parametrize(("limit", "budget", "allowed"), [(50, 40, 40), (40, 50, 40), (math.inf, 40, 40)])
async def test_the_budget_of_a_context_only_shrinks_the_limit(limit: float, budget: int, allowed: int) -> None:
    """(R251, R252)"""
    made, provider = runner(reply("a"), max_input_chars=limit)
    fits = al.BuiltContext(messages=(user("x" * allowed),), max_chars=budget, source_messages=1)
    over = al.BuiltContext(messages=(user("x" * (allowed + 1)),), max_chars=budget, source_messages=1)
    assert made.measure(over, made.prepare()).max_input_chars == allowed
    assert not made.measure(over, made.prepare()).within_budget
    with pytest.raises(BudgetError, match=f"max_input_chars: allowed {allowed}, got at least {allowed + 1}"):
        await made.invoke(over)
    assert (made.call_count, provider.requests) == (0, [])
    await made.invoke(fits)


async def test_the_budget_of_a_plan_bounds_the_call_as_well() -> None:
    """(R251)"""
    made, _ = runner(max_input_chars=60)
    plan = al.ContextPlan(max_chars=95, keep_last=2, messages=(*TALK[6:], user("e")))
    assert made.measure(plan, made.prepare()).max_input_chars == 60
    with pytest.raises(LimitExceeded, match="max_context_chars"):
        await made.invoke(al.ContextPlan(max_chars=29, messages=TALK[6:]))
    with pytest.raises(BudgetError, match="max_input_chars: allowed 60"):
        await made.invoke(plan)
    assert made.call_count == 0


async def test_what_a_plan_needs_a_summary_for_is_not_measured() -> None:
    made, _ = runner()
    with pytest.raises(InputError, match="expected a plan that fits without a summary"):
        made.measure(PLAN, made.prepare())


# -- summaries


async def test_a_summary_is_a_call_of_the_same_runner_under_a_reference_of_its_own() -> None:
    """It is charged, told and stored like any other one; the original stays readable (R285)."""
    sink = RecordingSink()
    ledger = al.Ledger(model_calls=5)
    provider = ScriptedProvider([reply("They met.", usage=(7, 2)), reply("fine", usage=(3, 1))])
    async with al.Runtime(provider, ledger=ledger) as runtime:
        made = runtime.runner(max_calls=3, sink=sink, ledger=ledger)
        result = await made.invoke(PLAN, stage_id="talk")
        first, second = provider.requests
        assert first.messages == (*TALK[1:6], user("In short. At most 30 characters."))
        assert second.messages == (TALK[0], summary_message("They met."), *TALK[6:])
        assert (made.call_count, made.remaining_calls, ledger.spent("model_calls")) == (2, 1, 2)
        assert ledger.spent("tokens") == 13
        starts = [event for event in sink.events if isinstance(event, al.ModelStart)]
        assert [(event.stage_id, event.call_sequence) for event in starts] == [("summary", 1), ("talk", 2)]
        assert [trace.stage_id for trace in made.journal.model] == ["summary", "talk"]
        opened = [fact for fact in await facts_of(runtime) if isinstance(fact, OriginOpened)]
        assert [fact.agent for fact in opened] == ["summary", "talk"]
        assert opened[0].run_id != opened[1].run_id == result.invocation.ref
        assert opened[0].call is not None
        assert opened[0].messages[:-1] == TALK[1:6]
        status = await runtime.read(opened[0].run_id)
        assert status.reply is not None
        assert status.reply.text == "They met."


async def test_a_context_says_where_its_summaries_are_kept() -> None:
    """(R285)"""
    made, provider = runner(reply("They met."))
    built = await made.build(PLAN)
    (summary,) = built.summaries
    assert (summary.start, summary.end, summary.text) == (1, 6, "They met.")
    (opened,) = [fact for fact in await facts(made) if isinstance(fact, OriginOpened)]
    assert summary.ref == opened.run_id
    assert await made.build(PLAN, summaries=built.summaries) == built
    assert len(provider.requests) == 1


async def test_the_same_messages_and_replies_give_the_same_requests() -> None:
    seen = []
    for _ in range(2):
        made, provider = runner(reply("They met."), reply("fine"))
        await made.invoke(PLAN)
        seen.append([encode_request(r, model="m", dialect=provider.dialect).body for r in provider.requests])
    assert seen[0] == seen[1]


async def test_a_summary_that_is_too_long_is_cut_with_a_mark_and_the_original_stays() -> None:
    long = "x" * 31
    made, provider = runner(reply(long), reply("fine"))
    await made.invoke(PLAN)
    told = provider.requests[1].messages[1]
    assert told == summary_message("x" * 24 + " [cut]")
    assert messages_chars(provider.requests[1].messages) == PLAN.max_chars
    assert any(getattr(fact, "reply", None) == reply(long) for fact in await facts(made))
    short = al.ContextPlan(max_chars=104 + HEADED, strategy="summarise", summary=al.Summary(max_chars=4), messages=TALK)
    made, provider = runner(reply(long))
    assert (await made.build(short)).summaries[0].text == "xxxx"


async def test_a_range_that_is_too_long_for_one_call_is_read_in_parts() -> None:
    """Each part after the summary of those before it, in whole turns (R285)."""
    plan = al.ContextPlan(
        max_chars=100 + HEADED, strategy="summarise", summary=al.Summary(instruction="In short.", max_chars=30),
        messages=TALK,
    )  # fmt: skip
    ask = user("In short. At most 30 characters.")
    room = messages_chars((ask, summary_message("x" * 30))) + 120
    made, provider = runner(reply("one"), reply("two"), max_input_chars=room)
    built = await made.build(plan)
    assert [request.messages for request in provider.requests] == [
        (*TALK[1:4], ask),
        (summary_message("one"), *TALK[4:8], ask),
    ]
    assert [(one.start, one.end, one.text) for one in built.summaries] == [(1, 8, "two")]


async def test_a_turn_that_no_call_can_read_is_refused_by_the_limit_it_is_over() -> None:
    made, provider = runner(max_input_chars=100)
    with pytest.raises(BudgetError, match="max_input_chars: allowed 100"):
        await made.invoke(PLAN)
    assert (made.call_count, provider.requests) == (0, [])


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (HTTPStatusError("HTTP 500", status=500), ProviderError),
        (reply("no", finish="length"), OutputRefused),
        (reply("no", finish="content_filter"), OutputRefused),
        (reply(calls=[call()]), OutputRefused),
        (reply(""), OutputRefused),
        (reply(" \n"), OutputRefused),
    ],
)
async def test_a_summary_that_fails_fails_the_call_and_nothing_is_left_out_in_silence(
    bad: Any, kind: type[Exception]
) -> None:
    made, provider = runner(bad, reply("They met."), reply("fine"))
    with pytest.raises(kind):
        await made.invoke(PLAN)
    assert len(provider.requests) == 1
    assert made.call_count == 1
    assert (await made.invoke(PLAN)).value == "fine"


async def test_what_was_summarised_before_a_failure_is_not_asked_for_again() -> None:
    """Turns on both sides of a kept one have a summary each; the first one stands when the second fails."""
    said = (*TALK[:6], user("c" * 90), answer("C"), TALK[8])
    plan = al.ContextPlan(
        max_chars=100 + 2 * (HEADED + 10),
        strategy="summarise",
        summary=al.Summary(max_chars=10),
        pinned=(4,),
        messages=said,
    )
    made, provider = runner(reply("one"), HTTPStatusError("HTTP 500", status=500), reply("two"))
    with pytest.raises(ProviderError):
        await made.build(plan)
    trace = made.journal.model[0]
    assert trace.status == "success"
    (first,) = [f for f in await facts(made) if isinstance(f, OriginOpened) and len(f.messages) == 4]
    known = al.SummaryOf(start=1, end=4, text="one", ref=first.run_id)
    built = await made.build(plan, summaries=[known])
    assert built.summaries[0] == known
    assert len(provider.requests) == 3


async def test_a_summary_may_use_the_last_call_up() -> None:
    """The call itself is refused then; the summary is paid, stored, and can be used (R211, R285)."""
    made, provider = runner(reply("They met."), max_calls=1)
    with pytest.raises(BudgetError, match="model_calls: allowed 1, got at least 2"):
        await made.invoke(PLAN)
    assert (made.call_count, len(provider.requests)) == (1, 1)
    none, untouched = runner(max_calls=0)
    with pytest.raises(BudgetError, match="model_calls: allowed 0"):
        await none.build(PLAN)
    assert untouched.requests == []


async def test_a_child_summarises_on_what_its_root_has_left() -> None:
    """(R285)"""
    made, _ = runner(reply("They met."), reply("fine"), max_calls=4)
    await made.child(max_calls=3).invoke(PLAN)
    assert (made.call_count, made.total_call_count, made.remaining_calls) == (0, 2, 2)


async def test_summaries_are_made_by_the_runners_own_model_with_the_room_the_plan_gives() -> None:
    class Counter:
        identity = "messages"

        def count(self, request: al.ModelRequest, /) -> int:
            return len(request.messages)

    other = ScriptedProvider([reply("fine")])
    provider = ScriptedProvider([reply("They met.")])
    budget = al.TokenBudget(window=2_000, counter=Counter())
    plan = al.ContextPlan(
        max_tokens=8, strategy="summarise", summary=al.Summary(max_tokens=5, max_chars=30), messages=TALK
    )
    made = al.ModelRunner(provider, models={"other": other}, token_budget=budget)
    await made.invoke(plan, model_id="other")
    assert provider.requests[0].options.max_output_tokens == 5
    assert other.requests[0].options.max_output_tokens == 1_024
    assert summary_message("They met.") in other.requests[0].messages


@pytest.mark.parametrize("strategy", ["drop", "summarise"])
async def test_a_budget_in_tokens_wants_a_runner_that_counts_them(strategy: Any) -> None:
    """(R214)"""
    plan = al.ContextPlan(max_tokens=8, strategy=strategy, summary=al.Summary(max_tokens=5), messages=TALK)
    made, provider = runner()
    message = "^input: expected a runner with a token_budget, for a plan with max_tokens$"
    with pytest.raises(al.InputError, match=message):
        await made.invoke(plan)
    with pytest.raises(al.InputError, match=message):
        made.measure(plan, made.prepare())
    assert (provider.requests, made.call_count) == ([], 0)


async def test_the_answer_is_asked_for_in_the_callers_way_and_the_summary_as_text() -> None:
    class Ticket(msgspec.Struct):
        title: str

    ticket = al.Structured(Ticket)
    made, provider = runner(reply("They met."), reply('{"title": "x"}'), transports=[ticket])
    result = await made.invoke(PLAN, transport=ticket)
    assert result.value == Ticket(title="x")
    assert [request.options.response_format is None for request in provider.requests] == [True, False]


async def test_the_time_of_a_summary_is_its_own() -> None:
    clock = FakeClock()

    def slowly(_request: al.ModelRequest) -> Any:
        clock.advance(5)
        return reply("They met.")

    async with al.Runtime(ScriptedProvider([slowly, reply("fine")]), clock=clock) as runtime:
        made = runtime.runner()
        await made.invoke(PLAN)
        assert [trace.duration_ms for trace in made.journal.model] == [5_000, 0]


# -- what a provider wants back


@pytest.mark.parametrize(("dialect", "field"), [("deepseek", "reasoning_content"), ("openai", None)])
async def test_kept_exchanges_carry_back_what_their_provider_wants(dialect: str, field: str | None) -> None:
    """Reasoning of what is kept, where the dialect replays it; of what is summarised none (R20, R21)."""
    provider = ScriptedProvider([reply("They met."), reply("fine")], dialect=dialect)
    await al.ModelRunner(provider).invoke(PLAN)
    sent = json.loads(encode_request(provider.requests[1], model="m", dialect=provider.dialect).body)["messages"]
    carried = [message[field] for message in sent if field in message]
    assert carried == ([] if field is None else ["why C"])


async def test_a_signature_of_a_kept_call_reaches_the_request() -> None:
    """(R20, R21)"""
    signed = made_reply(
        call("g1"),
        word="tool_calls",
        native={"calls": {"0": {"extra_content": {"google": {"thought_signature": "s1"}}}}},
    )
    said = (
        *TALK[:6],
        user("c" * 30),
        ModelExchange(reply=signed, feedback=exchange("g1").feedback),
        answer("C" * 30),
        user("d"),
    )
    provider = ScriptedProvider([reply("They met."), reply("fine")], dialect="gemini")
    plan = al.ContextPlan(max_chars=132 + HEADED, strategy="summarise", summary=al.Summary(max_chars=30), messages=said)
    await al.ModelRunner(provider).invoke(plan)
    body = encode_request(provider.requests[1], model="m", dialect=provider.dialect).body
    assert b"They met." in body
    assert b'"thought_signature":"s1"' in body


# -- building without a runner


async def test_whoever_asks_is_told_what_is_needed_and_an_error_of_his_is_raised() -> None:
    asked = []

    async def ask(needed: Any, messages: tuple[Message, ...]) -> tuple[str, str]:
        asked.append((needed.start, needed.end, len(messages)))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await build_context(PLAN, TALK, ask)
    assert asked == [(1, 6, 6)]
