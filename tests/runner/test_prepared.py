"""Calls before they are made: what a handle fixes, what it weighs, and when it can no longer be used."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import BudgetError, ConflictError, HandleError, InputError
from agentloop.limits import SAFE_INTEGER
from agentloop.messages import FunctionSpec, ImagePart, ModelReply, SystemMessage, TextPart, UserMessage
from agentloop.testing import RecordingSink, ScriptedProvider, reply
from agentloop.wire import encode_request
from agentloop.wire.call_text import call_instruction
from tests.messages.values import exchange


class Ticket(msgspec.Struct):
    """A typed value."""

    title: str


class Echo:
    """A collector of any text; the characters it takes are counted."""

    def __init__(self, mark: str = "") -> None:
        self.output_chars, self._mark = 0, mark

    def push(self, fragment: Any, /) -> None:
        self.output_chars += len(fragment)

    def finish(self, reply: ModelReply, /) -> str:
        return self._mark + reply.text


class Own:
    """A transport of one's own, whose parts can be changed afterwards."""

    id = "own"

    def __init__(self, **parts: Any) -> None:
        self.parts: dict[str, Any] = {"create_response": Echo, "route": "own", **parts}
        self.prepared = 0

    def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
        self.prepared += 1
        return al.Interaction(**self.parts)


class Words:
    """Counts a token for each word that is asked: of messages, tools and response format.

    Attributes:
        seen: the requests it was asked about.
    """

    identity = "words"

    def __init__(self, answer: Callable[[int], Any] = int) -> None:
        self.seen: list[al.ModelRequest] = []
        self._answer = answer

    def count(self, request: al.ModelRequest, /) -> int:
        self.seen.append(request)
        words = sum(len(str(getattr(message, "content", "")).split()) for message in request.messages)
        return self._answer(words + 10 * len(request.tools))  # type: ignore[no-any-return]


def runner(*script: Any, **options: Any) -> tuple[al.ModelRunner, ScriptedProvider]:
    provider = ScriptedProvider(script)
    return al.ModelRunner(provider, **options), provider


def counters(made: al.ModelRunner) -> tuple[int, ...]:
    return (made.call_count, made.total_call_count, made.remaining_calls, len(made.journal.model))


# -- preparing and measuring


async def test_a_call_needs_no_preparation() -> None:
    """(R237)"""
    made, provider = runner(reply("hi"))
    assert (await made.invoke("q")).value == "hi"
    assert len(provider.requests) == 1


async def test_one_preparation_is_measured_as_often_as_one_likes_and_makes_one_call() -> None:
    """(R238, R239)"""
    own = Own(instruction="Be brief.")
    made, provider = runner(reply("hi"), transports=(own,))
    prepared = made.prepare(stage_id="triage", transport=own, max_output_tokens=7)
    state = {"kept": prepared}  # a handle is a value to be kept for a later step
    before = counters(made)
    assert made.measure("abc", prepared) == made.measure([UserMessage(content="abc")], prepared)
    assert [made.measure("x" * size, prepared).message_chars for size in range(1, 9)] == list(range(1, 9))
    assert (own.prepared, provider.requests, counters(made)) == (1, [], before)
    result = await made.invoke("abc", prepared=state["kept"])
    assert (own.prepared, len(provider.requests), made.call_count) == (1, 1, 1)
    assert (result.value, result.invocation.stage_id, result.invocation.transport) == ("hi", "triage", "own")
    assert repr(prepared) == "<Prepared 'triage' by 'own' (own)>"


async def test_a_handle_fixes_what_is_asked_and_who_collects() -> None:
    """(R241, R250)"""
    tools = [FunctionSpec(name="one")]
    own = Own(instruction="first", options=al.ModelOptions(temperature=0), tools=tuple(tools), schema_chars=3)
    made, provider = runner(reply("hi"), reply("hi"), transports=(own,))
    earlier = made.prepare(transport=own)
    tools.append(FunctionSpec(name="two"))
    own.parts.update(
        create_response=lambda: Echo("later: "),
        instruction="second",
        options=al.ModelOptions(temperature=1),
        tools=tuple(tools),
    )
    assert (await made.invoke("q", prepared=earlier)).value == "hi"
    assert (await made.invoke("q", transport=own)).value == "later: hi"
    first, second = provider.requests
    assert [spec.name for spec in first.tools] == ["one"]
    assert [spec.name for spec in second.tools] == ["one", "two"]
    assert (first.options.temperature, second.options.temperature) == (0, 1)
    assert [message.content for message in first.messages if type(message) is SystemMessage] == ["first"]


@pytest.mark.parametrize("route", ["json_schema", "call", "json_text"])
def test_a_schema_is_counted_once_wherever_it_stands(route: Any) -> None:
    """(R242, R244, R245)"""
    ticket = al.Structured(Ticket, instruction="Be kind.", route=route)
    made, _ = runner(transports=(ticket,))
    prepared = made.prepare(transport=ticket)
    measurement = made.measure("abc", prepared)
    instruction, schema = prepared.interaction.instruction or "", ticket.output.schema
    own_words = len(instruction) - (len(schema) if route == "json_text" else 0)
    assert (schema in instruction) == (route == "json_text")
    assert measurement.instruction_chars == own_words
    assert measurement.schema_chars >= len(schema)
    assert measurement.transport_chars == own_words + measurement.schema_chars
    assert measurement.message_chars == 3
    assert measurement.input_chars == 3 + measurement.transport_chars
    assert (measurement.max_input_chars, measurement.max_schema_chars) == (32_000, 16_000)
    assert measurement.within_budget


def test_images_and_earlier_exchanges_are_weighed_by_their_texts() -> None:
    """(R242, R245)"""
    made, _ = runner()
    parts = (TextPart(text="abc"), ImagePart(url="https://example.test/a.png"))
    said: list[al.Message] = [
        SystemMessage(content="12345"),
        UserMessage(content=parts),
        exchange("x"),
        UserMessage(content="z"),
    ]
    assert made.measure(said, made.prepare()).message_chars == 5 + 3 + (9 + 2 + 11) + 1


def test_the_instruction_stands_with_the_leading_instructions() -> None:
    """(R242)"""
    made, _ = runner(transports=(own := Own(instruction="I"),))
    prepared = made.prepare(transport=own)
    user, system = UserMessage(content="u"), SystemMessage(content="s")
    assert prepared.messages((user,)) == (SystemMessage(content="I"), user)
    assert prepared.messages((system, system, user, system)) == (system, SystemMessage(content="s\n\nI"), user, system)
    assert made.prepare().messages((user,)) == (user,)


# -- tokens


async def test_tokens_are_counted_for_the_whole_request_less_what_is_reserved() -> None:
    """(R242, R243)"""
    counter = Words()
    own = Own(instruction="a b c", tools=(FunctionSpec(name="t"),))
    budget = al.TokenBudget(window=100, counter=counter, margin=5)
    made, provider = runner(reply("hi"), transports=(own,), token_budget=budget, max_output_tokens=20)
    prepared = made.prepare(transport=own)
    measurement = made.measure("d e", prepared)
    assert (measurement.input_tokens, measurement.max_input_tokens) == (3 + 2 + 10, 100 - 20 - 5)
    assert made.measure("d e", made.prepare(transport=own, max_output_tokens=60)).max_input_tokens == 35
    await made.invoke("d e", prepared=prepared)
    assert counter.seen[0] == counter.seen[-1] == provider.requests[0]


def test_without_a_counter_no_tokens_are_told() -> None:
    """(R243)"""
    made, _ = runner()
    measurement = made.measure("a b c", made.prepare())
    assert (measurement.input_tokens, measurement.max_input_tokens) == (None, None)


async def test_a_window_is_kept_to_the_token() -> None:
    """(R242)"""
    budget = al.TokenBudget(window=30, counter=Words(), margin=2)
    made, provider = runner(reply("hi"), token_budget=budget, max_output_tokens=20)
    await made.invoke("1 2 3 4 5 6 7 8")
    with pytest.raises(BudgetError) as caught:
        await made.invoke("1 2 3 4 5 6 7 8 9")
    assert str(caught.value) == "max_input_tokens: allowed 8, got at least 9"
    assert len(provider.requests) == 1
    with pytest.raises(InputError, match="max_output_tokens: expected at most 27"):
        made.prepare(max_output_tokens=28)
    with pytest.raises(InputError, match="max_output_tokens: expected at most 27"):
        runner(token_budget=budget, max_output_tokens=28)


@pytest.mark.parametrize("count", [math.nan, 1.0, -1, True, None, SAFE_INTEGER + 1], ids=repr)
async def test_a_count_that_is_none_is_refused_when_measured_and_when_called(count: Any) -> None:
    """(R252)"""
    budget = al.TokenBudget(window=3_000, counter=Words(lambda _: count))
    made, provider = runner(token_budget=budget)
    before = counters(made)
    with pytest.raises(InputError, match="token counter 'words': expected an integer of 0 or more"):
        made.measure("q", made.prepare())
    with pytest.raises(InputError, match="token counter 'words': expected an integer of 0 or more"):
        await made.invoke("q")
    assert (provider.requests, counters(made)) == ([], before)


# -- one judgement


@given(
    message=st.integers(1, 40),
    instruction=st.integers(0, 20),
    schema=st.integers(0, 20),
    words=st.integers(1, 12),
    limits=st.tuples(st.integers(0, 40) | st.just(math.inf), st.integers(1, 30), st.integers(1, 20)),
)
async def test_measuring_and_calling_judge_alike_and_a_refused_call_costs_nothing(
    message: int, instruction: int, schema: int, words: int, limits: tuple[float, int, int]
) -> None:
    """(R213, R246, R252)"""
    max_input, max_schema, window = limits
    own = Own(instruction="i" * instruction or None, schema_chars=schema)
    sink = RecordingSink()
    made, provider = runner(
        reply("hi"),
        transports=(own,),
        max_input_chars=max_input,
        max_schema_chars=max_schema,
        max_output_tokens=1,
        token_budget=al.TokenBudget(window=window + 1, counter=Words(lambda _: words)),
        sink=sink,
    )
    prepared = made.prepare(transport=own)
    measurement = made.measure("m" * message, prepared)
    fits = message <= max_input and instruction + schema <= max_schema and words <= window
    assert measurement.within_budget == fits
    before = counters(made)
    if fits:
        assert (await made.invoke("m" * message, prepared=prepared)).value == "hi"
        assert prepared.used
        return
    with pytest.raises(BudgetError) as caught:
        await made.invoke("m" * message, prepared=prepared)
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == measurement.over
    assert (provider.requests, sink.events, counters(made), prepared.used) == ([], [], before, False)
    assert [rejected.limit for rejected in made.journal.rejected] == [caught.value.limit]


async def test_a_measurement_is_no_pass() -> None:
    """(R246)"""
    made, provider = runner(max_input_chars=3)
    prepared = made.prepare()
    assert made.measure("abc", prepared).within_budget
    with pytest.raises(BudgetError, match="max_input_chars: allowed 3, got at least 4"):
        await made.invoke("abcd", prepared=prepared)
    assert provider.requests == []


# -- one use


async def test_a_handle_makes_one_call_and_nothing_of_it_can_be_replaced() -> None:
    """(R247, R248)"""
    made, provider = runner(reply("hi"), reply("ho"))
    prepared = made.prepare()
    given: dict[str, Any]
    for given in ({"stage_id": "b"}, {"transport": "core:plain-text"}, {"max_output_tokens": 5}, {"model_id": "m"}):
        with pytest.raises(InputError, match="invoke: expected prepared= alone"):
            await made.invoke("q", prepared=prepared, **given)
    await made.invoke("q", prepared=prepared)
    assert prepared.used
    with pytest.raises(HandleError, match="used_handle: expected a handle that made no call, got one that did"):
        await made.invoke("q", prepared=prepared)
    assert (len(provider.requests), made.total_call_count) == (1, 1)


async def test_a_handle_whose_call_failed_is_used() -> None:
    """(R248)"""
    made, _ = runner(al.ConnectionFailed("no"))
    prepared = made.prepare()
    with pytest.raises(al.ConnectionFailed):
        await made.invoke("q", prepared=prepared)
    with pytest.raises(HandleError, match="used_handle"):
        await made.invoke("q", prepared=prepared)


async def test_a_handle_is_its_runners_and_not_a_childs_or_another_ones() -> None:
    """(R247, R248)"""
    made, provider = runner(reply("hi"))
    other, _ = runner()
    for stranger in (other, made.child("part")):
        with pytest.raises(HandleError, match="foreign_handle: expected a call that this runner prepared"):
            await stranger.invoke("q", prepared=made.prepare())
        with pytest.raises(HandleError, match="foreign_handle"):
            stranger.measure("q", made.prepare())
    with pytest.raises(InputError, match="prepared: expected a Prepared, got str"):
        await made.invoke("q", prepared="p")  # type: ignore[call-overload]
    assert (provider.requests, made.total_call_count) == ([], 0)


async def test_a_handle_ends_with_its_runner() -> None:
    """(R248)"""
    made, provider = runner(reply("hi"))
    prepared = made.prepare()
    made.signal.cancel(reason := ValueError("enough"))
    with pytest.raises(HandleError, match=r"expired_handle: .* got one that ended \(ValueError\)") as caught:
        await made.invoke("q", prepared=prepared)
    assert caught.value.__cause__ is reason
    assert (provider.requests, made.total_call_count, prepared.used) == ([], 0, False)


async def test_what_is_refused_before_a_call_leaves_the_handle_for_a_call() -> None:
    """(R248)"""
    waiting = asyncio.Event()

    async def slow(request: al.ModelRequest) -> ModelReply:
        waiting.set()
        await gate.wait()
        return reply("slow")

    gate = asyncio.Event()
    made, provider = runner(slow, reply("hi"), max_input_chars=3, max_calls=2)
    prepared = made.prepare()
    with pytest.raises(BudgetError):
        await made.invoke("long", prepared=prepared)
    with pytest.raises(InputError):
        await made.invoke([], prepared=prepared)
    first = asyncio.create_task(made.invoke("q"))
    await waiting.wait()
    with pytest.raises(ConflictError):
        await made.invoke("q", prepared=prepared)
    gate.set()
    await first
    assert not prepared.used
    assert (await made.invoke("q", prepared=prepared)).value == "hi"
    unused = made.prepare()
    with pytest.raises(BudgetError, match="model_calls: allowed 2, got at least 3"):
        await made.invoke("q", prepared=unused)
    assert (unused.used, len(provider.requests)) == (False, 2)


# -- what a transport of one's own prepared


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"create_response": 3}, "expected create_response to be callable"),
        ({"instruction": 3}, "expected an instruction of type str or None"),
        ({"instruction": "\ud800"}, "expected an instruction that UTF-8 can encode, got a lone surrogate"),
        ({"route": ""}, "route: expected a string of 1 to 128 characters, got 0 characters"),
        ({"route": None}, "route: expected a string of 1 to 128 characters, got NoneType"),
        ({"route": "\ud800"}, "route: expected text that UTF-8 can encode, got a lone surrogate"),
        ({"route": "x" * 129}, "route: expected a string of 1 to 128 characters, got 129 characters"),
        ({"options": None}, "expected ModelOptions without max_output_tokens, which the call says"),
        (
            {"options": al.ModelOptions(max_output_tokens=3)},
            "expected ModelOptions without max_output_tokens, which the call says",
        ),
        ({"schema_chars": -1}, f"schema_chars: expected an integer from 0 to {SAFE_INTEGER}, got -1"),
        ({"schema_chars": math.nan}, f"schema_chars: expected an integer from 0 to {SAFE_INTEGER}, got nan"),
        ({"schema_chars": 5, "embedded_chars": 1}, "embedded_chars: expected an integer from 0 to 0, got 1"),
    ],
)
async def test_what_is_no_interaction_is_refused_before_anything_is_counted(
    parts: dict[str, Any], expected: str
) -> None:
    """(R252)"""
    made, provider = runner(transports=(own := Own(**parts),))
    with pytest.raises(InputError) as caught:
        await made.invoke("q", transport=own)
    assert str(caught.value) == f"transport 'own': {expected}"
    assert (provider.requests, made.total_call_count) == ([], 0)


@pytest.mark.parametrize("length", [1, 128])
def test_a_route_and_a_stage_have_1_to_128_characters(length: int) -> None:
    made, _ = runner(transports=(own := Own(route="r" * length),))
    prepared = made.prepare(stage_id="s" * length, transport=own)
    assert (prepared.route, prepared.stage_id) == ("r" * length, "s" * length)


async def test_a_transport_prepares_an_interaction_of_a_valid_request() -> None:
    class Nothing:
        id = "nothing"

        def prepare(self, stage: al.Stage, /) -> Any:
            return None

    made, _ = runner(transports=(nothing := Nothing(),))
    with pytest.raises(InputError, match="transport 'nothing': expected an Interaction, got NoneType"):
        await made.invoke("q", transport=nothing)
    made, _ = runner(transports=(own := Own(tools=[1]),))
    with pytest.raises(InputError, match="tools"):
        await made.invoke("q", transport=own)
    stage_id: Any
    for stage_id in ("", "x" * 129, 3):
        with pytest.raises(InputError, match="stage_id: expected a string of 1 to 128 characters"):
            made.prepare(stage_id=stage_id)


# -- models that write their calls in text


@al.selection
def pick(number: int) -> int:
    """Pick a number."""
    return number


@pytest.mark.parametrize("transport", [al.Session("talk", [pick]), al.NativeCall("pick", [pick])])
async def test_what_stands_in_the_instructions_for_tools_is_what_they_weigh(transport: Any) -> None:
    """The words of a choice too; what is counted is what is sent. (R242, R244, R348)"""
    counter = Words()
    dialect = al.dialect("openai", call_text=al.ToolCallParser())
    provider = ScriptedProvider([], dialect=dialect)
    options = al.ModelOptions(parallel_tool_calls=False, tool_choice="required")
    tokens = al.TokenBudget(window=1_000_000, counter=counter)
    for instructions in ((), (SystemMessage(content="Be brief."),)):
        made = al.ModelRunner(provider, transports=(transport,), options=options, token_budget=tokens)
        prepared = made.prepare(transport=transport)
        messages = (*instructions, UserMessage(content="go"))
        weighed = made.measure(messages, prepared)
        request = al.ModelRequest(messages=messages, options=prepared.options, tools=prepared.interaction.tools)
        body = json.loads(encode_request(request, model="m", dialect=dialect).body)
        told = body["messages"][0]["content"].removeprefix("Be brief.\n\n")
        assert told.endswith("Your next answer must call a function.\nMake at most one call in an answer.")
        assert (weighed.schema_chars, weighed.instruction_chars) == (len(told), 0)
        (seen,) = counter.seen
        assert seen.tools == ()
        assert [message.content for message in seen.messages] == [item["content"] for item in body["messages"]]
        counter.seen.clear()


async def test_an_instruction_on_tools_that_is_too_long_is_refused_before_anything_is_sent() -> None:
    """(R213, R244)"""
    session = al.Session("talk", [pick])
    for dialect, room in ((al.dialect("openai"), 200), (al.dialect("openai", call_text=al.ToolCallParser()), 200)):
        provider = ScriptedProvider([reply(text="hi")], dialect=dialect)
        made = al.ModelRunner(provider, transports=(session,), max_schema_chars=room)
        fits = made.measure("q", made.prepare(transport=session)).within_budget
        assert fits == (dialect.call_text is None)
        if not fits:
            with pytest.raises(BudgetError, match="max_schema_chars"):
                await made.invoke("q", transport=session)
            assert provider.requests == []


async def test_a_transport_that_counts_no_tools_weighs_what_they_do_in_the_instructions() -> None:
    own = Own(tools=(FunctionSpec(name="one"),))
    dialect = al.dialect("openai", call_text=al.ToolCallParser())
    made = al.ModelRunner(ScriptedProvider([], dialect=dialect), transports=(own,))
    told = call_instruction(al.ToolCallParser(), (FunctionSpec(name="one"),), al.ModelOptions())
    assert made.measure("q", made.prepare(transport=own)).schema_chars == len(told)
