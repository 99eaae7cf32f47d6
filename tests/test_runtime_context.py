"""An agent with a context: what its turns are asked with, what is stored, paid and told, and that nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.cli import main
from agentloop.contexts import cut_of, known_in
from agentloop.errors import BudgetError, ConflictError, LimitExceeded, LostError, UnsettledError
from agentloop.exchange import ContextCut, DroppedTurns, OriginOpened, SendEnded, TurnSummary
from agentloop.exchange.cut import SUMMARY_HEADING
from agentloop.exchange.history import History
from agentloop.messages import ModelExchange, SystemMessage, UserMessage, messages_chars
from agentloop.runner import BuiltContext, NeedsSummary, SummaryOf, host
from agentloop.testing import RecordingSink, ReplayServer, ScriptedProvider, call, reply
from tests.messages.values import exchange
from tests.mortal import Ground
from tests.runs import body_of, check_end, check_order, facts_of, other_tasks, turn_of

ASK = "In short. At most 40 characters."
HEADED = len(SUMMARY_HEADING) + 2
QUESTION, TURN, INSTRUCTIONS = 100, 110, 9
"""Characters of a question, of one with its answer, and of the instructions."""

KEPT = INSTRUCTIONS + QUESTION
BUDGET = 400
"""Three turns fit. In the fourth, a summary of two makes room until the sixth."""


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


def drop(**fields: Any) -> al.Agent[None]:
    return al.Agent(name="a", instructions="Be brief.", context=al.ContextPlan(**{"max_chars": KEPT + TURN, **fields}))


def summarise(*, max_chars: int = BUDGET, limits: al.LoopLimits | None = None, **fields: Any) -> al.Agent[None]:
    plan = al.ContextPlan(
        max_chars=max_chars,
        strategy="summarise",
        summary=al.Summary(instruction="In short.", max_chars=40),
        **fields,
    )
    return al.Agent(name="a", instructions="Be brief.", context=plan, limits=limits)


def said(number: int) -> str:
    """A question that says which turn it is."""
    return f"question {number} ".ljust(QUESTION, ".")


def is_summary(request: al.ModelRequest) -> bool:
    return request.messages[-1] == UserMessage(content=ASK)


def answer(request: al.ModelRequest) -> Any:
    """By what is asked: 10 characters; a summary names the questions that it was given."""
    if is_summary(request):
        asked = [m.content for m in request.messages[:-1] if isinstance(m, UserMessage)]
        numbers = [text.split()[1] if text.startswith("question") else text.split()[-1] for text in map(str, asked)]
        return reply(f"Of {'+'.join(numbers)}", usage=(5, 2))
    return reply("answer".ljust(10, "."), usage=(3, 1))


def model(count: int = 40) -> ScriptedProvider:
    return ScriptedProvider([answer] * count)


def shown(request: al.ModelRequest) -> list[str]:
    """What a request holds, in short: instructions, questions, answers, summaries."""
    words = []
    for message in request.messages:
        if isinstance(message, SystemMessage):
            words.append("S")
        elif isinstance(message, ModelExchange):
            words.append("A")
        else:
            text = str(message.content)
            words.append(text.split()[1] if text.startswith("question") else text.removeprefix(SUMMARY_HEADING).strip())
    return words


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "store.db") if request.param == "sqlite" else None


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


async def talk(runtime: al.Runtime, agent: al.Agent[Any], turns: int, *, first: int = 1, name: str = "c") -> list[str]:
    """Take turns; return their runs."""
    results = [
        await runtime.run(agent, said(number), conversation=name, run_id=f"r{number}")
        for number in range(first, first + turns)
    ]
    return [result.ref for result in results]


async def origins(runtime: al.Runtime) -> dict[str, OriginOpened]:
    return {fact.run_id: fact for fact in await facts_of(runtime) if isinstance(fact, OriginOpened)}


# -- what is asked


async def test_a_conversation_within_the_budget_is_asked_whole_and_has_no_cut(store: str | None) -> None:
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, drop(max_chars=KEPT + 2 * TURN), 3)
        assert shown(provider.requests[-1]) == ["S", "1", "A", "2", "A", "3"]
        assert all(opened.context is None for opened in (await origins(runtime)).values())


async def test_the_oldest_turns_are_left_out_and_the_conversation_stays_whole(store: str | None) -> None:
    """The budget counts what was said before and the new message (R218)."""
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, drop(max_chars=KEPT + 2 * TURN - 1), 4)
        assert [shown(request) for request in provider.requests] == [
            ["S", "1"],
            ["S", "1", "A", "2"],
            ["S", "2", "A", "3"],
            ["S", "3", "A", "4"],
        ]
        assert all(messages_chars(request.messages) < KEPT + 2 * TURN for request in provider.requests)
        opened = await origins(runtime)
        assert opened["r4"].context == ContextCut(
            dropped=(DroppedTurns(first=opened["r1"].origin_id, last=opened["r2"].origin_id, count=2),)
        )
        history = await runtime.history("c")
        assert [m.content for m in history if isinstance(m, UserMessage)] == [said(n) for n in range(1, 5)]


async def test_a_lower_mark_keeps_the_beginning_of_requests_for_the_turns_that_follow(store: str | None) -> None:
    """What was left out stays out until the budget is reached again, so that a prompt cache holds."""
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, drop(max_chars=KEPT + 4 * TURN, down_to=KEPT + TURN), 9)
    assert [shown(request)[1:4:2] for request in provider.requests] == [
        ["1"],
        *[["1", "2"]] * 4,
        ["5", "6"],
        *[["5", "6"]] * 3,
    ]
    kept = [body_of(request).partition(b'"messages":')[2] for request in provider.requests[5:]]
    for before, after in itertools.pairwise(kept):
        assert after.startswith(before.rstrip(b"}").rstrip(b"]"))


async def test_a_summary_stands_for_the_oldest_turns_until_more_of_them_have_to_go(store: str | None) -> None:
    """Later summaries are made of earlier ones (R285)."""
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 7)
        assert [shown(request) for request in provider.requests] == [
            ["S", "1"],
            ["S", "1", "A", "2"],
            ["S", "1", "A", "2", "A", "3"],
            ["1", "A", "2", "A", ASK],
            ["S", "Of 1+2", "3", "A", "4"],
            ["S", "Of 1+2", "3", "A", "4", "A", "5"],
            ["Of 1+2", "3", "A", "4", "A", ASK],
            ["S", "Of 1+2+3+4", "5", "A", "6"],
            ["S", "Of 1+2+3+4", "5", "A", "6", "A", "7"],
        ]
        assert all(messages_chars(r.messages) <= BUDGET for r in provider.requests if not is_summary(r))
        history = await runtime.history("c")
        assert [m.content for m in history if isinstance(m, UserMessage)] == [said(n) for n in range(1, 8)]


async def test_a_turns_own_exchanges_are_always_whole(store: str | None) -> None:
    provider = ScriptedProvider(
        [reply("one"), reply(calls=[call("note", text="x" * 90)]), reply("done"), reply("three")]
    )
    agent = al.Agent(name="a", tools=[note], context=al.ContextPlan(max_chars=60))
    async with al.Runtime(provider, store=store) as runtime:
        await runtime.run(agent, "q" * 58, conversation="c")
        await runtime.run(agent, "r" * 58, conversation="c")
        assert [len(request.messages) for request in provider.requests] == [1, 1, 1]
        assert len(provider.requests[2].exchanges) == 1
        await runtime.run(agent, "s", conversation="c")
        assert [m.content for m in provider.requests[3].messages] == ["s"]  # type: ignore[union-attr]


async def test_what_must_be_kept_and_does_not_fit_is_refused_before_anything_is_stored(store: str | None) -> None:
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, drop(), 1)
        before = await facts_of(runtime)
        with pytest.raises(LimitExceeded, match="max_context_chars: allowed 219, got at least 309"):
            await runtime.run(drop(), "x" * 300, conversation="c")
        assert await facts_of(runtime) == before
        await talk(runtime, drop(), 1, first=2)


async def test_a_run_of_its_own_and_an_agent_without_a_context_read_nothing_more(
    store: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with al.Runtime(model(), store=store) as runtime:
        monkeypatch.delattr(type(runtime._store), "look")
        await runtime.run(drop(max_chars=40), said(1))
        await talk(runtime, al.Agent(name="a"), 3)


async def test_another_agent_may_go_on_with_the_whole_of_it(store: str | None) -> None:
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, drop(), 3)
        await talk(runtime, al.Agent(name="b"), 1, first=4)
        assert shown(provider.requests[-1]) == ["S", "1", "A", "2", "A", "3", "A", "4"]
        await talk(runtime, drop(), 1, first=5)
        assert shown(provider.requests[-1]) == ["S", "4", "A", "5"]


# -- summaries: stored, told, paid


async def test_a_summary_is_a_call_stored_before_the_run_and_told_to_observers_alone(store: str | None) -> None:
    """Its text is no preview of the answer: not for the run's sink, nor for those who follow (R123, R285)."""
    watcher, sink = RecordingSink(), RecordingSink()
    async with al.Runtime(model(), store=store, observers=[watcher]) as runtime:
        await talk(runtime, summarise(), 3)
        result = await runtime.run(summarise(), said(4), conversation="c", run_id="r4", sink=sink)
        assert (result.text, result.model_calls) == ("answer....", 1)
        assert result.usage == al.Usage(input_tokens=3, output_tokens=1, total_tokens=4)
        opened = await origins(runtime)
        made = opened["r4/summary/1"]
        assert made.agent == "summary"
        assert made.conversation is None
        assert made.call is not None
        before = tuple(opened[f"r{number}"].origin_id for number in (1, 2))
        assert (made.call.parent, made.call.stage_id, made.call.origins) == ("r4", "summary", before)
        summary = TurnSummary(origins=before, text="Of 1+2", ref="r4/summary/1")
        assert opened["r4"].context == ContextCut(summaries=(summary,))
        status = await runtime.read("r4/summary/1")
        assert status.reply is not None
        assert status.reply.text == "Of 1+2"
        told = await check_end(runtime, "r4", "completed")
    assert sink.text == "answer...."
    check_order(told)
    seen = [event for event in watcher.events if event.run_id == "r4"]
    stages = [event.stage_id for event in seen if isinstance(event, al.ModelStart)]
    assert stages == ["summary", "model"]
    assert len({event.event_id for event in seen}) == len(seen)
    assert [event.sequence for event in seen] == sorted(event.sequence for event in seen)
    part = [event for event in seen if event not in told]
    assert {event.type for event in part} == {"model.start", "model.output", "model.parsed", "model.end"}


async def test_the_budget_of_the_run_and_of_the_runtime_cover_its_summaries(store: str | None) -> None:
    """One call is kept for the run itself (R211, R285)."""
    ledger = al.Ledger(model_calls=100)
    provider = model()
    async with al.Runtime(provider, store=store, ledger=ledger) as runtime:
        await talk(runtime, summarise(), 3)
        before = await facts_of(runtime)
        with pytest.raises(BudgetError, match="model_calls: allowed 0, got at least 1"):
            await talk(runtime, summarise(limits=al.LoopLimits(max_model_calls=1)), 1, first=4)
        assert await facts_of(runtime) == before
        (ref,) = await talk(runtime, summarise(limits=al.LoopLimits(max_model_calls=2)), 1, first=4)
        assert ledger.spent("model_calls") == 5
        assert ledger.spent("tokens") == 3 * 4 + 7 + 4
        assert (await runtime.result(ref)).outcome == "completed"


async def test_tokens_of_a_summary_count_for_the_run(store: str | None) -> None:
    async with al.Runtime(model(), store=store) as runtime:
        await talk(runtime, summarise(), 3)
        agent = summarise(limits=al.LoopLimits(max_tokens=7))
        result = await runtime.run(agent, said(4), conversation="c", run_id="r4")
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_tokens", 0)
        await talk(runtime, summarise(), 1, first=5)


async def test_a_run_has_as_many_calls_fewer_as_its_summaries_made(store: str | None) -> None:
    """A summary and two calls of the run are three calls."""
    asks: list[Any] = [answer, answer, answer, answer, reply(calls=[call("note", text="x")]), reply("done")]
    agent = summarise(limits=al.LoopLimits(max_model_calls=2))
    agent = al.Agent(name="a", instructions="Be brief.", tools=[note], context=agent.context, limits=agent.limits)
    async with al.Runtime(ScriptedProvider(asks), store=store) as runtime:
        await talk(runtime, agent, 3)
        result = await runtime.run(agent, said(4), conversation="c")
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_model_calls", 1)


@pytest.mark.parametrize("bad", [al.HTTPStatusError("HTTP 500", status=500), reply("x", finish="length"), reply("")])
async def test_a_summary_that_fails_opens_nothing_and_loses_nothing(store: str | None, bad: Any) -> None:
    provider = ScriptedProvider([answer, answer, answer, bad, answer, answer])
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        with pytest.raises((al.ProviderError, al.OutputRefused)):
            await talk(runtime, summarise(), 1, first=4)
        assert "r4" not in await origins(runtime)
        assert len(provider.requests) == 4
        assert [row.run_id for row in await runtime.unfinished()] == []
        await talk(runtime, summarise(), 1, first=4)
        assert (await origins(runtime)).keys() >= {"r4", "r4/summary/1", "r4/summary/2"}
        assert shown(provider.requests[-1])[1] == "Of 1+2"
        provider.assert_complete()


async def test_a_refused_summary_is_sent_once_more_where_the_host_says_so(store: str | None) -> None:
    busy = al.HTTPStatusError("HTTP 429", status=429)
    provider = ScriptedProvider([answer, answer, answer, busy, answer, answer])

    async def sleep(seconds: float) -> None:
        pass

    policy = al.ResendPolicy()
    async with al.Runtime(provider, store=store, resend=policy, sleep=sleep) as runtime:
        await talk(runtime, summarise(), 4)
        provider.assert_complete()


# -- who waits, and who leaves


class Slow:
    """Answers as the model does, but holds a summary up until it may go on."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.provider = ScriptedProvider([self._answer] * 40)

    async def _answer(self, request: al.ModelRequest) -> Any:
        if is_summary(request):
            self.asked.set()
            await self.go.wait()
        return answer(request)


@pytest.mark.parametrize("way", ["run", "start", "submit"])
async def test_a_caller_that_is_cancelled_takes_the_summary_with_it(store: str | None, way: str) -> None:
    """The call is recorded as abandoned, and nothing was opened."""
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)

        async def begin() -> None:
            options: Any = {"conversation": "c", "run_id": "r4"}
            if way == "start":
                async with runtime.start(summarise(), said(4), **options):
                    raise AssertionError("it was cancelled before")
            await getattr(runtime, way)(summarise(), said(4), **options)

        task = asyncio.create_task(begin())
        await slow.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "r4" not in await origins(runtime)
        ends = [f for f in await facts_of(runtime) if isinstance(f, SendEnded) and f.run_id == "r4/summary/1"]
        assert [end.outcome for end in ends] == ["abandoned"]
        slow.go.set()
        await talk(runtime, summarise(), 1, first=4)
        assert turn_of(runtime, "r4").opened.context.summaries[0].ref == "r4/summary/2"


async def test_closing_the_runtime_cuts_a_summary_off(store: str | None) -> None:
    before = other_tasks()
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        task = asyncio.create_task(runtime.run(summarise(), said(4), conversation="c", run_id="r4"))
        waiting = asyncio.create_task(runtime.run(summarise(), said(5), conversation="c", run_id="r5"))
        await slow.asked.wait()
    with pytest.raises(al.RunCancelled, match="r4"):
        await task
    with pytest.raises(al.InputError, match="expected an open runtime"):
        await waiting
    assert other_tasks() <= before | {task, waiting}


async def test_two_starts_of_one_run_make_one_summary(store: str | None) -> None:
    """(R82)"""
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        tasks = [
            asyncio.create_task(runtime.run(summarise(), said(4), conversation="c", run_id="r4")) for _ in range(3)
        ]
        await slow.asked.wait()
        slow.go.set()
        results = await asyncio.gather(*tasks)
        assert results[0] == results[1] == results[2]
        assert sum(map(is_summary, slow.provider.requests)) == 1


async def test_of_two_runs_at_once_the_second_is_refused_without_a_summary_of_its_own(store: str | None) -> None:
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        first = asyncio.create_task(runtime.run(summarise(), said(4), conversation="c"))
        second = asyncio.create_task(runtime.run(summarise(), said(5), conversation="c"))
        await slow.asked.wait()
        slow.go.set()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert sum(isinstance(result, al.StaleHeadError) for result in results) == 1
        assert sum(map(is_summary, slow.provider.requests)) == 1


async def test_a_start_beside_a_run_is_refused_without_a_summary(store: str | None) -> None:
    asking, go = asyncio.Event(), asyncio.Event()

    async def wait(_request: al.ModelRequest) -> Any:
        asking.set()
        await go.wait()
        return reply("late")

    provider = ScriptedProvider([answer, answer, answer, wait])
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        live = asyncio.create_task(runtime.run(al.Agent(name="b"), said(4), conversation="c"))
        await asking.wait()
        with pytest.raises(al.StaleHeadError):
            await runtime.run(summarise(), said(5), conversation="c")
        go.set()
        await live
        provider.assert_complete()


async def test_a_run_id_that_is_being_prepared_elsewhere_is_waited_for(store: str | None) -> None:
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        await talk(runtime, summarise(), 3, first=11, name="d")
        first = asyncio.create_task(runtime.run(summarise(), said(4), conversation="c", run_id="r4"))
        await slow.asked.wait()
        second = asyncio.create_task(runtime.run(summarise(), said(4), conversation="d", run_id="r4"))
        await asyncio.sleep(0)
        slow.go.set()
        assert (await first).outcome == "completed"
        with pytest.raises(ConflictError, match="expected the input this run was started with"):
            await second
        assert sum(map(is_summary, slow.provider.requests)) == 1


async def test_what_earlier_starts_of_a_run_spent_is_spent(store: str | None) -> None:
    bad = al.HTTPStatusError("HTTP 500", status=500)
    provider = ScriptedProvider([answer, answer, answer, bad, answer, answer])
    agent = summarise(limits=al.LoopLimits(max_model_calls=2))
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, agent, 3)
        with pytest.raises(al.ProviderError):
            await talk(runtime, agent, 1, first=4)
        with pytest.raises(BudgetError, match="model_calls: allowed 1, got at least 2"):
            await talk(runtime, agent, 1, first=4)
        assert provider.left == 2
        await talk(runtime, agent, 1, first=5)


async def test_in_memory_a_summary_is_kept_as_long_as_its_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_KEPT_CALLS", 1)
    monkeypatch.setattr(host, "_DROPPED_CALLS", 1)
    async with al.Runtime(model()) as runtime:
        await talk(runtime, summarise(), 4)
        for _ in range(4):
            await runtime.runner().invoke("hi")
        assert (await runtime.read("r4/summary/1")).state == "found"


async def test_other_conversations_do_not_wait_for_a_summary(store: str | None) -> None:
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        task = asyncio.create_task(runtime.run(summarise(), said(4), conversation="c"))
        await slow.asked.wait()
        await runtime.run(summarise(), said(1), conversation="d")
        slow.go.set()
        await task


async def test_a_run_id_that_is_taken_is_refused_without_a_summary(store: str | None) -> None:
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        await runtime.run(summarise(), said(1), conversation="d", run_id="x")
        with pytest.raises(ConflictError):
            await runtime.run(summarise(), said(4), conversation="c", run_id="x")
        assert not any(map(is_summary, provider.requests))


@pytest.mark.parametrize("way", ["start", "submit", "text"])
async def test_every_way_to_begin_goes_the_same_way(store: str | None, way: str) -> None:
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        options: Any = {"conversation": "c", "run_id": "r4"}
        if way == "start":
            async with runtime.start(summarise(), said(4), **options) as run:
                assert (await run.result()).text == "answer...."
        elif way == "submit":
            assert (await runtime.result(await runtime.submit(summarise(), said(4), **options))).text == "answer...."
        else:
            assert [piece async for piece in runtime.text(summarise(), said(4), **options)] == ["answer...."]
    assert shown(provider.requests[-1])[1] == "Of 1+2"


# -- a process that dies

APPENDS = 6
"""Of a fourth turn: origin, claim and reply of the summary; origin, claim and reply of the run. Then its end."""


async def die(ground: Ground, provider: al.Provider, *, at: int, when: Literal["before", "after"] = "before") -> None:
    """Take a fourth turn in a process that dies at an append, and wait until its leases have run out."""
    async with ground.mortal(provider, at=at, when=when) as (dying, medium):
        task = asyncio.create_task(dying.run(summarise(), said(4), conversation="c", run_id="r4"))
        await medium.dead.wait()
        task.cancel()
        medium.bury()
        await asyncio.gather(task, return_exceptions=True)
    ground.clock.advance(60)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
async def test_a_second_start_sends_no_summary_twice(ground: Ground, at: int, when: Literal["before", "after"]) -> None:
    """What is stored is used; of what nobody knows the host decides (R82, R121, R285)."""
    first, second = model(), model()
    async with ground.runtime(model()) as runtime:
        await talk(runtime, summarise(), 3)
    await die(ground, first, at=at, when=when)
    async with ground.runtime(second) as runtime:
        sent = sum(map(is_summary, first.requests))
        lost = {(2, "after"), (3, "before")}
        if (at, when) in lost:
            for _ in range(2):
                with pytest.raises(UnsettledError, match="r4/summary/1"):
                    await runtime.run(summarise(), said(4), conversation="c", run_id="r4")
            assert second.requests == []
            assert [item.ref for item in await runtime.unsettled()] == ["r4/summary/1"]
            await runtime.cancel("r4/summary/1", author="host")
        for item in await runtime.unsettled():  # a send of the run itself
            assert item.ref == "r4"
            await runtime.settle_send("r4", item.effect_id, author="host")
        result = await runtime.run(summarise(), said(4), conversation="c", run_id="r4")
        assert result.outcome == "completed"
        again = sum(map(is_summary, second.requests))
        stored = (at, when) == (3, "after") or at > 3
        assert again == (0 if stored else 1)
        assert sent <= 1
        opened = await origins(runtime)
        (summary,) = opened["r4"].context.summaries  # type: ignore[union-attr]
        assert summary.text == "Of 1+2"
        assert [row.run_id for row in await runtime.unfinished()] == []
        for fact in await facts_of(runtime):
            if isinstance(fact, OriginOpened) and fact.call is not None:
                assert fact.call.parent == "r4"


async def test_what_another_start_made_of_other_turns_is_not_used(ground: Ground) -> None:
    """The conversation went on between the two: its newest turns are in the summary that is made then."""
    async with ground.runtime(model()) as runtime:
        await talk(runtime, summarise(), 3)
    await die(ground, model(), at=4)
    provider = model()
    async with ground.runtime(provider) as runtime:
        await talk(runtime, al.Agent(name="a", instructions="Be brief."), 3, first=5)
        await talk(runtime, summarise(), 1, first=4)
        summary = turn_of(runtime, "r4").opened.context.summaries[0]
        assert (summary.ref, summary.text) == ("r4/summary/2", "Of 1+2+3+5+6")


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_resumed_run_asks_with_the_cut_that_is_stored_and_has_paid_for_it(ground: Ground, limit: int) -> None:
    """Nothing is built again, whatever the agent's plan says now (R86)."""
    async with ground.runtime(model()) as runtime:
        await talk(runtime, summarise(), 3)
    await die(ground, model(), at=4, when="after")
    provider = model()
    async with ground.runtime(provider) as runtime:
        now = al.Agent(
            name="a",
            instructions="Be brief.",
            context=al.ContextPlan(max_chars=KEPT),
            limits=al.LoopLimits(max_model_calls=limit),
        )
        result = await runtime.resume("r4", now)
        if limit == 1:
            assert (result.outcome, result.reason) == ("limit_reached", "max_model_calls")
            assert provider.requests == []
        else:
            assert [shown(request) for request in provider.requests] == [["S", "Of 1+2", "3", "A", "4"]]
        await talk(runtime, summarise(), 1, first=5)


# -- known summaries


async def test_a_branch_goes_on_with_the_summaries_of_what_it_branched_off(store: str | None) -> None:
    """Also where another process reads it."""
    provider = model()
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 4)
        await runtime.branch("c", (await runtime.exchanges("c"))[-1], "d")
        count = sum(map(is_summary, provider.requests))
        await runtime.run(summarise(), said(9), conversation="d")
        assert shown(provider.requests[-1]) == ["S", "Of 1+2", "3", "A", "4", "A", "9"]
        if store is not None:
            await runtime.branch("c", (await runtime.exchanges("c"))[-1], "e")
            async with al.Runtime(provider, store=store) as other:
                await other.run(summarise(), said(9), conversation="e")
            assert shown(provider.requests[-1]) == ["S", "Of 1+2", "3", "A", "4", "A", "9"]
        assert sum(map(is_summary, provider.requests)) == count


turn_lengths = st.lists(st.integers(0, 2), min_size=1, max_size=7)


def history_of(turns: list[int]) -> History:
    """A history of turns with so many exchanges of tools each, before one that has just begun."""
    history = History((SystemMessage(content="S"), UserMessage(content="q" * 10)), [1, 10])
    for number, calls in enumerate(turns):
        exchanges = [*[exchange("x")] * calls, exchange()]
        history = history.following(f"o{number}", exchanges, 1, (UserMessage(content="q" * 10),), [10])
    return history


@given(turns=turn_lengths, budget=st.integers(60, 250), strategy=st.sampled_from(["drop", "summarise"]))
def test_a_cut_that_is_known_builds_the_same_again(turns: list[int], budget: int, strategy: Any) -> None:
    """A cut as a fact, read back into the history, is what the plan had built; and still is after one more turn."""
    plan = al.ContextPlan(max_chars=budget, strategy=strategy, summary=al.Summary(max_chars=6))
    history = history_of(turns)
    known: list[SummaryOf] = []
    try:
        while type(built := plan.build(history.messages, summaries=known)) is NeedsSummary:
            known.append(SummaryOf(start=built.start, end=built.end, text="brief", ref="x"))
    except LimitExceeded:
        return
    assert type(built) is BuiltContext
    cut = cut_of(history, built)
    if cut is None:
        assert (built.dropped, built.summaries) == ((), ())
        return
    summaries, dropped = known_in(history, [cut])
    assert plan.build(history.messages, summaries=summaries, dropped=dropped) == built
    longer = history.following("more", [exchange()], 1, (UserMessage(content="q"),), [1])
    again = known_in(longer, [cut])
    if messages_chars(longer.without(cut).messages) <= budget:
        rebuilt = plan.build(longer.messages, summaries=again[0], dropped=again[1])
        assert type(rebuilt) is BuiltContext
        assert cut_of(longer, rebuilt) in (cut, None)


def gone(first: str, last: str | None = None) -> DroppedTurns:
    return DroppedTurns(first=first, last=last or first, count=2 if last else 1)


def test_summaries_of_turns_that_are_gone_or_redacted_are_not_known() -> None:
    history = history_of([0, 0, 0])
    cuts = [
        ContextCut(dropped=(gone("o0"), gone("lost"), gone("gone", "o2"))),
        ContextCut(summaries=(TurnSummary(origins=("o0", "gone"), text="x"),)),
        ContextCut(summaries=(TurnSummary(origins=("o1", "o2"), text="newer"),)),
        ContextCut(summaries=(TurnSummary(origins=("o0", "o1"), text="crosses"),)),
        ContextCut(summaries=(TurnSummary(origins=("o0",), text="older"),)),
        ContextCut(summaries=(TurnSummary(origins=("o0", "o2"), text="not in a row"),)),
    ]
    summaries, dropped = known_in(history, cuts)
    assert [one.text for one in summaries] == ["newer", "older"]
    assert dropped == [(1, 3)]
    assert known_in(history, []) == ([], [])


def test_a_summary_of_texts_that_were_removed_since_is_not_known() -> None:
    """Nor is its turn left out again: there is nothing of it."""
    question = (UserMessage(content="q"),)
    before = History((SystemMessage(content="S"), *question), [1, 1]).following("there", [exchange()], 1, (), [])
    history = before.following("redacted", [], 0, question, [1])
    assert history.turns == (("there", 1, 3), ("redacted", 3, 3))
    both = TurnSummary(origins=("there", "redacted"), text="of both")
    assert known_in(history, [ContextCut(summaries=(both,))]) == ([], [])
    assert known_in(history, [ContextCut(dropped=(gone("there", "redacted"),))]) == ([], [(1, 3)])


# -- removing


async def test_a_summary_is_redacted_before_what_it_was_made_of(store: str | None) -> None:
    async with al.Runtime(model(), store=store) as runtime:
        await talk(runtime, summarise(), 4)
        with pytest.raises(ConflictError, match=r"'r4/summary/1', 'r4'"):
            await runtime.redact("r1", author="Ada")
        with pytest.raises(ConflictError, match="'r4/summary/1'"):
            await runtime.redact("r4", author="Ada")
        for ref in ("r4/summary/1", "r4", "r1"):
            await runtime.redact(ref, author="Ada")
        for ref in ("r1", "r4", "r4/summary/1"):
            facts = [fact for fact in await facts_of(runtime) if fact.run_id == ref]
            assert [type(fact).__name__ for fact in facts] == ["RunRedacted"]
        assert b"question 1" not in b"".join(repr(fact).encode() for fact in await facts_of(runtime))
        await talk(runtime, summarise(), 3, first=5)


async def test_a_summary_of_which_no_run_came_is_redacted_first_as_well(store: str | None) -> None:
    provider = ScriptedProvider([answer, answer, answer, reply("", usage=(1, 1))])
    async with al.Runtime(provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        with pytest.raises(al.OutputRefused):
            await talk(runtime, summarise(), 1, first=4)
        with pytest.raises(ConflictError, match="'r4/summary/1'"):
            await runtime.redact("r1", author="Ada")
        await runtime.redact("r3", author="Ada")
        await runtime.redact("r4/summary/1", author="Ada")
        await runtime.redact("r1", author="Ada")


async def test_a_run_that_is_read_for_a_summary_right_now_is_not_redacted(store: str | None) -> None:
    slow = Slow()
    async with al.Runtime(slow.provider, store=store) as runtime:
        await talk(runtime, summarise(), 3)
        task = asyncio.create_task(runtime.run(summarise(), said(4), conversation="c", run_id="r4"))
        await slow.asked.wait()
        with pytest.raises(ConflictError, match="'r4/summary/1'"):
            await runtime.redact("r1", author="Ada")
        await runtime.redact("r3", author="Ada")
        slow.go.set()
        await task
    assert shown(slow.provider.requests[-1]) == ["S", "Of 1+2", "4"]


async def test_a_conversation_is_forgotten_with_its_summaries(store: str | None) -> None:
    async with al.Runtime(model(), store=store) as runtime:
        await talk(runtime, summarise(), 6)
        await talk(runtime, summarise(), 4, first=11, name="d")
        await runtime.forget(conversation="c")
        assert {fact.run_id for fact in await facts_of(runtime)} == {f"r{n}" for n in range(11, 15)} | {"r14/summary/1"}
        with pytest.raises(LostError):
            await runtime.history("c")


# -- over HTTP, and the command line


async def test_over_http_a_summary_is_a_request_of_its_own(store: str | None) -> None:
    streams = [_stream("one"), _stream("two"), _stream("three"), _stream("They met."), _stream("four")]
    async with ReplayServer() as server:
        server.script(*streams)
        provider = al.ChatCompletions(server.url, model="m", api_key=None)
        async with al.Runtime(provider, store=store) as runtime:
            agent = summarise()
            texts = [(await runtime.run(agent, said(n), conversation="c")).text for n in range(1, 5)]
            assert texts == ["one", "two", "three", "four"]
        sent = [request.json for request in server.requests]
        assert sent[3]["messages"][-1] == {"role": "user", "content": ASK}
        assert sent[4]["messages"][1]["content"] == f"{SUMMARY_HEADING}\n\nThey met."
        assert (sent[3]["max_completion_tokens"], sent[3].get("tools")) == (1024, None)


def _stream(text: str) -> bytes:
    head = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m",'
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}'
    return b"".join(
        [
            head + b'"choices":[{"index":0,"delta":{"role":"assistant","content":"%s"}}]}\n\n' % text.encode(),
            head + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
            head + b'"choices":[],' + usage + b"}\n\n",
            b"data: [DONE]\n\n",
        ]
    )


async def test_inspect_shows_a_cut_and_the_call_that_made_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "store.db")
    async with al.Runtime(model(), store=path) as runtime:
        await talk(runtime, summarise(), 4)
        await talk(runtime, drop(), 1, first=5)

    def inspect(*words: str) -> str:
        assert main(["inspect", path, *words]) == 0
        return capsys.readouterr().out

    assert "asked        with 1 summary of 2 turns (r4/summary/1)" in await asyncio.to_thread(inspect, "--run", "r4")
    assert "asked        without 3 turns" in await asyncio.to_thread(inspect, "--run", "r5")
    assert "made for     r4" in await asyncio.to_thread(inspect, "--run", "r4/summary/1")
    assert "asked" not in await asyncio.to_thread(inspect, "--run", "r3")
    views = {run["run_id"]: run for run in json.loads(await asyncio.to_thread(inspect, "--json"))["runs"]}
    shown = {name: views["r4"][name] for name in ("left_out", "summarised", "summaries", "call")}
    assert shown == {"left_out": 0, "summarised": 2, "summaries": ["r4/summary/1"], "call": None}
    assert views["r5"]["left_out"] == 3
    assert views["r4/summary/1"]["call"]["parent"] == "r4"
    page = tmp_path / "page.html"
    await asyncio.to_thread(inspect, "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert "with 1 summary of 2 turns (r4/summary/1)" in text
