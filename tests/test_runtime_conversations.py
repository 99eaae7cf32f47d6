"""Several turns on one conversation: by reference, in order, and at a flat cost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import Book, Fact, OriginOpened
from agentloop.messages import ModelExchange, SystemMessage, UserMessage
from agentloop.persistence import MemoryBackend
from agentloop.testing import ReplayServer, ScriptedProvider, call, reply
from agentloop.wire.encode import EncodedRequest, encode_request
from agentloop.wire.presets import dialect
from tests.runs import SlowBackend, body_of, check_end, facts_of, on_backend, pairs_in, turn_of
from tests.test_unsafe_streams import AGENT as PAYING
from tests.test_unsafe_streams import ANSWER, GOOD, Till


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[note])


def said(request: al.ModelRequest) -> list[str]:
    """Who said what, as a reader of the request sees it."""
    words = []
    for message in request.messages:
        match message:
            case SystemMessage():
                words.append(f"system: {message.content}")
            case UserMessage():
                words.append(f"user: {message.content}")
            case ModelExchange():
                words.append(f"model: {message.reply.text or message.reply.calls[0].name}")
    return words


async def test_a_turn_continues_the_one_before_and_results_are_part_of_its_history() -> None:
    """(R20, R341)"""
    script = [reply(calls=[call("note", text="x")]), reply("one"), reply("two"), reply("three")]
    provider = ScriptedProvider(script)
    async with al.Runtime(provider) as runtime:
        for text in ("first", "second", "third"):
            await runtime.run(AGENT, text, conversation="c")
    assert said(provider.requests[-1]) == [
        "system: Be brief.",
        "user: first",
        "model: note",
        "model: one",
        "user: second",
        "model: two",
        "user: third",
    ]
    assert pairs_in(provider.requests[-1]) == [("call_1", "noted x")]
    assert provider.requests[-1].exchanges == ()


async def test_each_turn_is_an_origin_that_continues_by_reference_and_copies_nothing() -> None:
    """(R71, R74, R77)"""
    async with al.Runtime(ScriptedProvider([reply("one"), reply("two")])) as runtime:
        first = (await runtime.run(AGENT, "first", conversation="c")).ref
        second = (await runtime.run(AGENT, "second", conversation="c")).ref
        origins = [fact for fact in await facts_of(runtime) if isinstance(fact, OriginOpened)]
        head = turn_of(runtime, first).digests[-1]
    assert [origin.run_id for origin in origins] == [first, second]
    assert origins[0].origin_id != origins[1].origin_id
    assert origins[0].continues is None
    assert origins[1].continues is not None
    assert origins[1].continues.digest == head
    assert origins[1].messages == (*AGENT.system, UserMessage(content="second"))


async def test_equal_turns_of_two_runs_are_two_origins_with_one_digest() -> None:
    """(R71, R74)"""
    async with al.Runtime(ScriptedProvider([reply("one")] * 2)) as runtime:
        for run in ("r1", "r2"):
            await runtime.run(AGENT, "same", run_id=run)
        one, two = turn_of(runtime, "r1").opened, turn_of(runtime, "r2").opened
    assert one.digest == two.digest
    assert one.origin_id != two.origin_id


async def test_another_agent_takes_over_with_its_own_instructions_and_tools() -> None:
    provider = ScriptedProvider([reply(calls=[call("note", text="x")]), reply("one"), reply("two"), reply("three")])
    other = al.Agent(name="b", instructions="Be long.")
    silent = al.Agent(name="c")
    async with al.Runtime(provider) as runtime:
        await runtime.run(AGENT, "first", conversation="c")
        await runtime.run(other, "second", conversation="c")
        await runtime.run(silent, "third", conversation="c")
    assert said(provider.requests[2])[0] == "system: Be long."
    assert [words for words in said(provider.requests[2]) if words.startswith("system")] == ["system: Be long."]
    assert provider.requests[2].tools == ()
    assert said(provider.requests[3])[0] == "system: Be long."  # an agent that has none keeps them
    assert said(provider.requests[3])[1:] == [
        "user: first",
        "model: note",
        "model: one",
        "user: second",
        "model: two",
        "user: third",
    ]


async def test_a_forced_tool_choice_is_for_the_first_model_call_of_each_turn() -> None:
    forcing = al.Agent(name="a", tools=[note], options=al.ModelOptions(tool_choice="required"))
    script = [reply(calls=[call("note", text="x")]), reply("one")] * 2
    provider = ScriptedProvider(script)
    async with al.Runtime(provider) as runtime:
        for text in ("first", "second"):
            await runtime.run(forcing, text, conversation="c")
    assert [request.options.tool_choice for request in provider.requests] == ["required", None] * 2


async def test_a_request_without_its_closing_brackets_is_a_prefix_of_the_next_one() -> None:
    """Over turns and tool rounds, in the bytes that are sent."""
    script = []
    for turn in range(4):
        script += [reply("Hm. ", calls=[call("note", text=f"{turn}é")], reasoning="think"), reply(f"turn {turn}")]
    provider = ScriptedProvider(script)
    async with al.Runtime(provider) as runtime:
        for turn in range(4):
            await runtime.run(AGENT, f"say {turn}", conversation="c")
    bodies = [body_of(request) for request in provider.requests]
    assert len(bodies) == 8
    for before, after in itertools.pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))
        assert len(after) > len(before)


async def test_the_same_over_http() -> None:
    till = Till()
    async with ReplayServer() as server:
        server.script(GOOD, ANSWER, GOOD, ANSWER)
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            for text in ("Pay.", "Again."):
                await runtime.run(PAYING, text, deps=till, conversation="c")
    bodies = [request.body for request in server.requests]
    assert len(bodies) == 4
    for before, after in itertools.pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))
    assert till.paid == [700, 700]


# -- one run at a time


async def test_two_runs_at_once_on_one_conversation_are_one_too_many() -> None:
    """The loser gets a conflict, and the history is not braided. (R83)"""
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> Any:
        reached.set()
        await release.wait()
        return reply("one")

    provider = ScriptedProvider([slow, reply("two")])
    async with al.Runtime(provider) as runtime:
        first = asyncio.create_task(runtime.run(AGENT, "first", conversation="c"))
        await reached.wait()
        with pytest.raises(al.StaleHeadError, match="expected no other run on it") as caught:
            await runtime.run(AGENT, "second", conversation="c")
        assert (caught.value.code, caught.value.conversation) == ("stale_head", "c")
        release.set()
        await first
        await runtime.run(AGENT, "second", conversation="c")
    assert said(provider.requests[-1])[1:] == ["user: first", "model: one", "user: second"]


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_of_two_starts_at_the_same_moment_one_wins(slow: bool) -> None:
    async with on_backend(SlowBackend() if slow else None, ScriptedProvider([reply("one")] * 2)) as runtime:
        ends = await asyncio.gather(
            *(runtime.run(AGENT, text, conversation="c") for text in ("a", "b")), return_exceptions=True
        )
    assert [type(end).__name__ for end in ends] == ["RunResult", "StaleHeadError"]


async def test_many_conversations_go_on_side_by_side() -> None:
    """(R71)"""
    most = here = 0

    async def answer(request: al.ModelRequest) -> Any:
        nonlocal most, here
        here += 1
        most = max(most, here)
        for _ in range(3):
            await asyncio.sleep(0)
        here -= 1
        if request.exchanges:
            return reply(str(request.messages[-1].content))  # type: ignore[union-attr]
        return reply(calls=[call("note", text=str(request.messages[-1].content))])  # type: ignore[union-attr]

    provider = ScriptedProvider([answer] * 200)
    async with al.Runtime(provider) as runtime:

        async def talk(name: str) -> list[str]:
            return [(await runtime.run(AGENT, f"{name}{turn}", conversation=name)).require_text() for turn in range(5)]

        names = [f"c{number}-" for number in range(20)]
        answers = await asyncio.gather(*map(talk, names))
    assert most == 20
    assert answers == [[f"{name}{turn}" for turn in range(5)] for name in names]


async def test_a_turn_that_failed_before_its_first_exchange_leaves_the_conversation_as_it_was() -> None:
    refused = al.StreamRefused("truncated", 0, 0, "x", "y")
    provider = ScriptedProvider([reply("one"), refused, reply("two")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(AGENT, "first", conversation="c")
        with pytest.raises(al.StreamRefused):
            await runtime.run(AGENT, "lost", conversation="c", run_id="r")
        await check_end(runtime, "r", "failed")
        await runtime.run(AGENT, "second", conversation="c")
    assert said(provider.requests[-1])[1:] == ["user: first", "model: one", "user: second"]


# -- cost


class CountingBook(Book):
    """A book that counts its steps and the facts that are installed."""

    steps = 0

    def install(self, facts: Any) -> None:
        kept = list(facts)
        self.steps += len(kept)
        super().install(kept)


class CountingProvider(ScriptedProvider):
    """Counts, for each send, how many messages had to be encoded and how many bytes they have."""

    def __init__(self, script: Sequence[Any]) -> None:
        super().__init__(script)
        self.fresh: list[tuple[int, int]] = []

    def inspect_request(self, request: al.ModelRequest) -> Any:
        encoded: EncodedRequest = encode_request(request, model=self.model, dialect=dialect("openai"))
        if encoded.fresh:
            self.fresh.append((encoded.fresh, sum(map(len, encoded.parts[-encoded.fresh :]))))
        return super().inspect_request(request)


@pytest.mark.parametrize("shape", ["turns", "tool rounds"])
async def test_the_work_of_a_turn_does_not_grow_with_the_turns_before_it(shape: str) -> None:
    """Counted, not timed: messages and bytes encoded, and facts written, are those of what is new. (R127)"""
    count = 50
    rounds = [reply(calls=[call("note", text=f"{at:02}")]) for at in range(count)]
    batches: list[int] = []

    class Backend(MemoryBackend):
        async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
            batches.append(len(facts))
            await super().append(facts, token=token, after=after)

    if shape == "turns":
        provider = CountingProvider([item for at in range(count) for item in (rounds[at], reply(f"{at:02}"))])
    else:
        provider = CountingProvider([*rounds, reply("done")])
    agent = al.Agent(name="a", tools=[note], limits=al.LoopLimits(max_model_calls=count + 1, ceiling=count + 1))
    async with on_backend(Backend(), provider) as runtime:
        book = CountingBook(runtime._runs._mint)
        runtime._store.book = book
        marks = []
        for at in range(count if shape == "turns" else 1):
            await runtime.run(agent, f"{at:02}", conversation="c")
            marks.append((book.steps, len(batches), sum(batches)))
    per_turn = 2 if shape == "turns" else 1
    costs = [provider.fresh[at : at + per_turn] for at in range(per_turn, len(provider.fresh) - 1, per_turn)]
    assert len(costs) >= count - 2
    assert len({str(cost) for cost in costs}) == 1, costs
    if shape == "turns":
        steps = [tuple(b - a for a, b in zip(one, two, strict=True)) for one, two in itertools.pairwise(marks)]
        assert len(set(steps)) == 1
        assert steps[0] == (10, 7, 10)


async def test_nothing_of_a_long_conversation_is_dropped_by_itself() -> None:
    """(R128)"""
    provider = ScriptedProvider([reply(f"answer {at}") for at in range(60)])
    async with al.Runtime(provider) as runtime:
        for at in range(60):
            await runtime.run(AGENT, f"question {at}", conversation="c")
    words = said(provider.requests[-1])
    expected = [f"{who} {at}" for at in range(60) for who in ("user: question", "model: answer")]
    assert words == ["system: Be brief.", *expected[:-1]]
