"""A scripted provider stands in for a real one, and fails loudly on what the script does not expect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from agentloop.errors import ConnectionFailed, InputError, LimitExceeded, StreamRefused
from agentloop.messages import (
    FunctionSpec,
    JsonText,
    ModelExchange,
    ModelReply,
    ModelRequest,
    Termination,
    Text,
    TextContent,
    ToolCall,
    ToolFeedback,
    ToolResult,
    Usage,
    UserMessage,
    require_model_reply,
)
from agentloop.providers import Provider
from agentloop.testing import ScriptedProvider, ScriptError, broken, call, reply
from agentloop.wire.deltas import CallDelta, Delta, ReasoningDelta, TextDelta


def request(text: str = "hi", *exchanges: ModelExchange, tools: tuple[FunctionSpec, ...] = ()) -> ModelRequest:
    return ModelRequest(messages=(UserMessage(content=text),), exchanges=exchanges, tools=tools)


def answered(given: ModelReply, text: str = "ok") -> ModelExchange:
    feedback = tuple(ToolFeedback.of(item.id, ToolResult.ok(text)) for item in given.calls)
    return ModelExchange(reply=given, feedback=feedback)


async def ask(provider: ScriptedProvider, asked: ModelRequest, **options: Any) -> tuple[list[Delta], ModelReply]:
    async with provider.stream(asked, attempt_id=f"a{len(provider.requests)}", **options) as stream:
        deltas = [delta async for delta in stream]
        return deltas, await stream.reply()


class TestReply:
    def test_a_reply_has_the_literal_shape_of_a_real_one(self) -> None:
        """(R166, R167, R168)"""
        made = reply("let me see", calls=[call("read_note", id="n1")])
        assert made.output == (
            Text(text="let me see"),
            ToolCall(id="call_1", name="read_note", arguments=JsonText(text='{"id":"n1"}', encoding="json-text")),
        )
        assert made.termination == Termination(kind="completed", reason="tool_calls")
        assert (made.format_version, made.usage, made.native.format, made.native.version) == (
            1, None, "chat-completions", 1,
        )  # fmt: skip
        assert require_model_reply(made) is made
        assert reply("x").termination == Termination(kind="completed", reason="stop")

    def test_finish_usage_reasoning_and_refusal_can_be_given(self) -> None:
        made = reply("x", finish="length", usage=(3, 4), reasoning="hm", refusal="no", id="i", model="m")
        assert made.termination == Termination(kind="incomplete", reason="length")
        assert made.usage == Usage(input_tokens=3, output_tokens=4, total_tokens=7)
        assert json.loads(made.native.data) == {"reasoning_content": "hm", "refusal": "no"}
        assert (made.id, made.model) == ("i", "m")

    def test_calls_have_ids_of_their_own_raw_text_or_arguments(self) -> None:
        made = reply(calls=[call("a", arguments_text="{bad"), call("b", call_id="mine", x=1), call("c")])
        assert [(item.id, item.arguments.text) for item in made.calls] == [
            ("call_1", "{bad"), ("mine", '{"x":1}'), ("call_3", "{}"),
        ]  # fmt: skip
        with pytest.raises(InputError, match="either"):
            call("a", arguments_text="{}", x=1)

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (
                lambda: reply(calls=call("x")),
                r'reply\.calls: expected a list, as in calls=\[call\("read_note"\)\], got',
            ),
            (lambda: reply(calls=["x"]), r"reply\.calls\[0\]: expected call\(…\), got str"),
            (lambda: reply(3), r"reply\.text: expected str, got int"),
            (lambda: call(3), r"call\.name: expected str, got int"),
            (lambda: call("x", call_id=3), r"call\.call_id: expected str, got int"),
            (lambda: call("x", arguments_text={"a": 1}), r"call\.arguments_text: expected str, got dict"),
            (lambda: call("x", b=1, a=object()), r"argument 'a': expected a value that JSON can hold, got object"),
            (lambda: call("x", a="\udc80"), r"argument 'a': expected a value that JSON can hold, got str"),
        ],
    )
    def test_what_is_no_call_or_reply_is_refused_where_it_is_written(self, make: Any, says: str) -> None:
        with pytest.raises(InputError, match=says):
            make()


async def test_it_is_a_provider_and_answers_in_order() -> None:
    """(R163)"""
    provider = ScriptedProvider([reply("one"), reply("two")])
    assert isinstance(provider, Provider)
    assert (await ask(provider, request("a")))[1].text == "one"
    assert provider.left == 1
    assert (await ask(provider, request("b")))[1].text == "two"
    assert [sent.messages[0] for sent in provider.requests] == [UserMessage(content="a"), UserMessage(content="b")]
    assert provider.attempts == ["a0", "a1"]
    provider.assert_complete()


async def test_a_request_without_exchanges_is_a_first_request() -> None:
    """(R165)"""
    provider = ScriptedProvider([reply("one")])
    await ask(provider, ModelRequest(messages=(UserMessage(content="a"),)))
    assert provider.requests[0].exchanges == ()


async def test_previews_come_in_pieces_with_offsets_and_join_to_the_reply() -> None:
    given = reply("hello there", calls=[call("a", x=12), call("b", arguments_text="")], reasoning="why")
    deltas, got = await ask(ScriptedProvider([given], deltas=4), request())
    assert got is given
    assert [d for d in deltas if isinstance(d, ReasoningDelta)] == [ReasoningDelta(text="why", offset=0)]
    texts = [d for d in deltas if isinstance(d, TextDelta)]
    assert [(d.text, d.offset) for d in texts] == [("hell", 0), ("o th", 4), ("ere", 8)]
    calls = [d for d in deltas if isinstance(d, CallDelta)]
    assert "".join(d.arguments for d in calls if d.position == 0) == '{"x":12}'
    assert [d.name for d in calls if d.position == 1] == ["b"]


async def test_a_reply_not_read_is_drained() -> None:
    provider = ScriptedProvider([reply("hello")], deltas=1)
    async with provider.stream(request(), attempt_id="a") as stream:
        assert (await anext(stream)).text == "h"  # type: ignore[union-attr]
        assert (await stream.reply()).text == "hello"
    provider.assert_complete()


async def test_the_answer_may_depend_on_the_request() -> None:
    """(R172)"""

    async def later(asked: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        return reply(asked.exchanges[-1].feedback[0].text)

    provider = ScriptedProvider([lambda asked: reply(calls=[call("echo", text=asked.messages[0].content)]), later])  # type: ignore[union-attr]
    _, first = await ask(provider, request("ping"))
    assert first.calls[0].arguments.text == '{"text":"ping"}'
    _, second = await ask(provider, request("ping", answered(first, "pong")))
    assert second.text == "pong"


async def test_an_unexpected_request_fails_and_is_not_recorded() -> None:
    """(R164)"""
    provider = ScriptedProvider([reply("one")])
    await ask(provider, request())
    with pytest.raises(ScriptError, match="at most 1 requests, got number 2"):
        await ask(provider, request())
    assert len(provider.requests) == 1
    assert issubclass(ScriptError, AssertionError)


async def test_a_script_that_was_not_used_up_is_told() -> None:
    provider = ScriptedProvider([reply("one"), reply("two")])
    await ask(provider, request())
    with pytest.raises(ScriptError, match="expected 2 requests, got 1"):
        provider.assert_complete()


async def test_an_open_stream_is_told() -> None:
    provider = ScriptedProvider([reply("one")])
    async with provider.stream(request(), attempt_id="a"):
        with pytest.raises(ScriptError, match="1 open"):
            provider.assert_complete()
    provider.assert_complete()


async def test_each_exchange_must_continue_what_was_answered() -> None:
    """(R164)"""
    given = reply(calls=[call("read_note", id="n1")])
    provider = ScriptedProvider([given, reply("done")])
    _, first = await ask(provider, request())
    with pytest.raises(ScriptError, match=r"request\.exchanges\[0\]"):
        await ask(provider, request("hi", answered(reply(calls=[call("other")]))))
    assert (await ask(provider, request("hi", answered(first))))[1].text == "done"


async def test_exchanges_of_an_earlier_process_are_taken() -> None:
    provider = ScriptedProvider([reply("done")])
    assert (await ask(provider, request("hi", answered(reply(calls=[call("a")])))))[1].text == "done"


async def test_a_request_that_is_not_complete_is_refused() -> None:
    """One feedback a call, addressed to it (R164)."""
    given = reply(calls=[call("a")])
    provider = ScriptedProvider([reply("x")])
    exchange = answered(given)
    stranger = ToolFeedback(tool_call_id="other", status="ok", content=(TextContent(text="x"),))
    msgspec.structs.force_setattr(exchange, "feedback", (stranger,))
    with pytest.raises(ValueError, match="feedback"):
        await ask(provider, request("hi", exchange))
    assert provider.requests == []


async def test_a_provider_error_is_raised_before_the_stream_begins() -> None:
    error = ConnectionFailed("no route")
    provider = ScriptedProvider([error, lambda _: error])
    for _ in range(2):
        with pytest.raises(ConnectionFailed) as caught:
            async with provider.stream(request(), attempt_id="a"):
                pytest.fail("entered")
        assert caught.value is error
    assert len(provider.requests) == 2
    provider.assert_complete()


REFUSED = StreamRefused("truncated", 3, 40, "[DONE]", "end of stream")


async def test_a_broken_answer_shows_previews_and_has_no_reply() -> None:
    provider = ScriptedProvider([broken(reply("partial"), REFUSED), REFUSED], deltas=4)
    async with provider.stream(request(), attempt_id="a") as stream:
        assert [await anext(stream), await anext(stream)] == [TextDelta("part", 0), TextDelta("ial", 4)]
        for read in (stream.__anext__, stream.reply):
            with pytest.raises(StreamRefused) as caught:
                await read()
            assert caught.value is REFUSED
    with pytest.raises(StreamRefused):
        await ask(provider, request())


async def test_size_limits_hold_as_for_a_real_provider() -> None:
    provider = ScriptedProvider([reply("x" * 500)], max_request_bytes=2_000)
    with pytest.raises(LimitExceeded, match="max_request_bytes"):
        await ask(provider, request("y" * 2_000))
    with pytest.raises(StreamRefused) as caught:
        await ask(provider, request(), max_reply_bytes=400)
    assert (caught.value.code, caught.value.limit, caught.value.allowed) == ("oversized", "max_reply_bytes", 400)


def test_an_inspection_weighs_and_sends_nothing() -> None:
    provider = ScriptedProvider([])
    small = provider.inspect_request(request("x"))
    large = provider.inspect_request(request("x" * 100, tools=(FunctionSpec(name="t"),)))
    assert large.body_bytes - small.body_bytes > 99
    assert (small.tool_bytes, small.messages, small.exchanges) == (0, 1, 0)
    assert provider.requests == []


async def test_a_send_is_entered_once() -> None:
    provider = ScriptedProvider([reply("x"), reply("y")])
    send = provider.stream(request(), attempt_id="a")
    async with send:
        pass
    with pytest.raises(InputError, match="entered once"):
        async with send:
            pytest.fail("entered twice")
    await provider.aclose()


def test_a_bad_script_is_refused_when_it_is_made() -> None:
    with pytest.raises(InputError, match=r"script\[1\]: got str"):
        ScriptedProvider([reply("x"), "y"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="script: expected a list of entries, got ModelReply"):
        ScriptedProvider(reply("hi"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="deltas"):
        ScriptedProvider([], deltas=0)


async def test_a_function_that_answers_nothing_fails() -> None:
    with pytest.raises(ScriptError, match="got NoneType"):
        await ask(ScriptedProvider([lambda _: None]), request())  # type: ignore[list-item, return-value]
