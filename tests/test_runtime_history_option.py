"""Runs whose host brings what was said before: asked as a conversation's next turn, checked whole, started once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.messages import (
    ImagePart,
    ModelExchange,
    SystemMessage,
    TextPart,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.runs import body_of, check_end, pairs_in


@al.tool(idempotent=True, recovery="repeat")
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[note])
PLAIN = al.Agent(name="a", tools=[note])
ASKED = reply(calls=[call("note", text="x")])
EXCHANGE = ModelExchange(reply=ASKED, feedback=(ToolFeedback.of("call_1", ToolResult.ok("noted x")),))
BEFORE = (
    SystemMessage(content="Rhyme."),
    UserMessage(content=(TextPart(text="first"), ImagePart(url="https://example.org/a.png"))),
    EXCHANGE,
    ModelExchange(reply=reply("one")),
    SystemMessage(content="Louder."),
)


@pytest.mark.parametrize("agent", [AGENT, PLAIN], ids=["with instructions", "without"])
async def test_a_run_with_a_conversations_history_asks_what_its_next_turn_asks(agent: al.Agent) -> None:
    """(R20)"""
    provider = ScriptedProvider([ASKED, reply("one"), *[answer for _ in "ab" for answer in (ASKED, reply("two"))]])
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent, "first", conversation="c")
        history = await runtime.history("c")
        await runtime.run(agent, "second", conversation="c")
        result = await runtime.run(agent, "second", history=history)
        assert (result.text, result.conversation) == ("two", None)
        await check_end(runtime, result.ref, "completed")
    asked = [body_of(request) for request in provider.requests]
    assert len(asked) == 6
    assert asked[2:4] == asked[4:6]
    assert pairs_in(provider.requests[5]) == [("call_1", "noted x")] * 2


async def test_the_history_follows_the_instructions_with_its_own_system_messages_in_their_place() -> None:
    provider = ScriptedProvider([reply("two")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(AGENT, "second", history=BEFORE)
    (request,) = provider.requests
    assert request.messages == (SystemMessage(content="Be brief."), *BEFORE, UserMessage(content="second"))
    assert request.exchanges == ()


class Answer(msgspec.Struct):
    text: str


@pytest.mark.parametrize("server", ["openai", "zai"])
async def test_an_agent_with_an_output_asks_for_it_after_a_history_too(server: str) -> None:
    agent = al.Agent(name="a", instructions="Be brief.", output=Answer)
    answer = reply('{"text":"so"}')
    provider = ScriptedProvider([answer, answer, answer], dialect=server)
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent, "first", conversation="c")
        history = await runtime.history("c")
        await runtime.run(agent, "second", conversation="c")
        result = await runtime.run(agent, "second", history=history)
    assert result.require_value() == Answer("so")
    assert provider.requests[1] == provider.requests[2]


@pytest.mark.parametrize(
    ("history", "kind", "rule"),
    [
        ([UserMessage(content="x")], al.InputError, "history: expected a tuple of messages, got list"),
        (None, al.InputError, "history: expected a tuple of messages, got NoneType"),
        (("x",), al.AdmissionError, r"\$\.messages\[0\]: expected SystemMessage or UserMessage or ModelExchange"),
        ((UserMessage(content="x"), ASKED), al.AdmissionError, r"\$\.messages\[1\]"),
        ((UserMessage(content="\ud800"),), al.AdmissionError, r"\$\.messages\[0\]\.content: expected Unicode"),
    ],
    ids=["a list", "none", "a text", "a reply", "half a surrogate"],
)
async def test_a_history_that_is_none_is_refused_before_anything_is_stored(
    history: Any, kind: type[Exception], rule: str
) -> None:
    """(R37)"""
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(kind, match=rule):
            await runtime.run(AGENT, "second", history=history, run_id="r")
        with pytest.raises(al.LostError):
            await runtime.result("r")


async def test_an_exchange_that_was_changed_behind_its_back_is_refused() -> None:
    """(R37)"""
    wrong = ModelExchange(reply=ASKED, feedback=EXCHANGE.feedback)
    msgspec.structs.force_setattr(wrong, "feedback", ())
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.HistoryError) as caught:
            await runtime.run(AGENT, "second", history=(UserMessage(content="first"), wrong))
    assert (caught.value.code, caught.value.path) == ("missing_tool_result", "$.messages[1].feedback[0]")


async def test_a_conversation_has_its_own_history() -> None:
    async with al.Runtime(ScriptedProvider([reply("one")])) as runtime:
        with pytest.raises(al.InputError, match="history: expected none with a conversation"):
            await runtime.submit(AGENT, "second", history=BEFORE, conversation="c")
        assert await runtime.conversations() == []
        assert (await runtime.run(AGENT, "second", history=(), conversation="c")).text == "one"


async def test_a_history_counts_against_the_size_of_what_is_stored() -> None:
    limits = al.BookLimits(item_bytes=2_000)
    async with al.Runtime(ScriptedProvider([reply("one")]), limits=limits) as runtime:
        with pytest.raises(al.LimitExceeded, match="item_bytes: allowed 2000"):
            await runtime.run(AGENT, "second", history=(UserMessage(content="x" * 2_000),))
        await runtime.run(AGENT, "second", history=(UserMessage(content="x" * 20),))


async def test_the_same_start_joins_and_another_history_is_a_conflict() -> None:
    """(R82)"""
    provider = ScriptedProvider([reply("two")])
    async with al.Runtime(provider) as runtime:
        first = await runtime.run(AGENT, "second", history=BEFORE, run_id="r")
        again = await runtime.run(AGENT, "second", history=(*AGENT.system, *BEFORE), run_id="r")
        assert first.text == again.text == "two"
        for other in ((), BEFORE[:-1], (*BEFORE, UserMessage(content="more"))):
            with pytest.raises(al.ConflictError, match="expected the input this run was started with"):
                await runtime.run(AGENT, "second", history=other, run_id="r")
    assert len(provider.requests) == 1


async def test_a_run_with_a_history_goes_on_after_its_process_died(tmp_path: Path) -> None:
    """(R136)"""
    ground = Ground(tmp_path / "store.db")
    provider = ScriptedProvider([ASKED, reply("two")])
    async with ground.mortal(provider, at=5) as (dying, medium):
        await dying.submit(AGENT, "second", history=BEFORE, run_id="r")
        await medium.dead.wait()
    ground.clock.advance(31)
    for changed in (al.Agent(name="a", tools=[note]), al.Agent(name="a", instructions="Rhyme.", tools=[note])):
        async with ground.runtime(ScriptedProvider([])) as runtime:
            with pytest.raises(al.RestoreError, match=r"input_changed.*instructions"):
                await runtime.resume("r", changed)
    after = ScriptedProvider([reply("two")])
    async with ground.runtime(after) as runtime:
        with pytest.raises(al.InputError, match="resume: expected no history"):
            await runtime.resume("r", AGENT, history=BEFORE)
        with pytest.raises(al.RestoreError, match="input_changed"):
            await runtime.resume("r", AGENT, input="first")
        result = await runtime.resume("r", AGENT, input="second")
        assert result.text == "two"
        with pytest.raises(al.ConflictError):
            await runtime.run(AGENT, "second", run_id="r")
        assert (await runtime.run(AGENT, "second", history=BEFORE, run_id="r")).text == "two"
    (request,) = after.requests
    assert request.messages == (*AGENT.system, *BEFORE, UserMessage(content="second"))
    assert [exchange.feedback[0].text for exchange in request.exchanges] == ["noted x"]


async def test_what_is_said_to_a_run_with_a_history_comes_after_its_exchanges() -> None:
    async def steer(request: al.ModelRequest) -> al.ModelReply:
        await runtime.steer("r", "wait")
        return ASKED

    provider = ScriptedProvider([steer, reply("two")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(AGENT, "second", history=BEFORE, run_id="r")
    said = (*AGENT.system, *BEFORE, UserMessage(content="second"), EXCHANGE, UserMessage(content="wait"))
    assert provider.requests[1].messages == said
