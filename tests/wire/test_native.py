"""Continuation material: put together as one message would have it, in the order in which it came."""

from __future__ import annotations

import json
from typing import Any

from agentloop.messages import ModelExchange, Native, ToolFeedback, ToolResult
from agentloop.wire import PRESETS, encode_message, reasoning_text, refusal_text
from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    STOP,
    accepted,
    allowing,
    calls,
    choice,
    chunk,
    refused,
    text,
)


def native(*deltas: dict[str, Any], allowances: tuple[str, ...] = ()) -> dict[str, Any]:
    events = [chunk(choice(delta)) for delta in deltas]
    reply = accepted(FIRST, *events, STOP, COUNTED, DONE, dialect=allowing(*allowances))
    found: dict[str, Any] = json.loads(reply.native.data)
    return found


def detail(words: str, **fields: Any) -> dict[str, Any]:
    return {"reasoning_details": [{"type": "reasoning.text", "text": words, "index": 0, **fields}]}


def test_a_plain_reply_has_none() -> None:
    assert accepted(FIRST, text("Hi"), STOP, COUNTED, DONE).native == Native()


def test_details_of_one_thought_are_joined_and_its_signature_is_kept() -> None:
    """R21."""
    found = native(
        detail("Think", format="a1", signature=""), detail("ing.", signature=None), detail("", signature="s1")
    )
    assert found == {
        "reasoning_details": [
            {"type": "reasoning.text", "text": "Thinking.", "index": 0, "format": "a1", "signature": "s1"}
        ]
    }


def test_details_of_other_thoughts_stand_apart() -> None:
    encrypted = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    found = native(
        detail("a"),
        {"reasoning_details": [encrypted, encrypted]},
        detail("b", index=2),
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "c", "index": 2}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": 7, "index": 2}]},
    )
    assert [item["type"] for item in found["reasoning_details"]] == [
        "reasoning.text",
        "reasoning.encrypted",
        "reasoning.encrypted",
        "reasoning.text",
        "reasoning.summary",
        "reasoning.text",
    ]


def test_details_alone_are_the_reasoning() -> None:
    reply = accepted(FIRST, chunk(choice(detail("Hm"))), chunk(choice(detail(", yes"))), STOP, COUNTED, DONE)
    assert reasoning_text(reply.native) == "Hm, yes"


def test_thinking_blocks_grow_until_they_are_signed() -> None:
    """R21."""
    blocks = [{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b", "signature": "s"}]
    found = native(
        *({"thinking_blocks": [block]} for block in [*blocks, *blocks, {"type": "redacted_thinking", "data": "x"}])
    )
    assert found["thinking_blocks"] == [
        {"type": "thinking", "thinking": "ab", "signature": "s"},
        {"type": "thinking", "thinking": "ab", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]


def test_extra_content_of_the_message_is_kept_key_by_key() -> None:
    """R21."""
    found = native({"extra_content": {"google": {"thought": True}}}, {"extra_content": {"other": 1}})
    assert found == {"extra_content": {"google": {"thought": True}, "other": 1}}


def test_text_before_between_and_after_parts_keeps_its_place() -> None:
    thought = {"content": [{"type": "thinking", "thinking": "t", "closed": True}]}
    found = native(
        {"content": "a"},
        {"content": "b"},
        thought,
        {"content": "c"},
        thought,
        {"content": "d"},
        allowances=("content_parts",),
    )
    assert found["content"] == [
        {"type": "text", "text": "ab"},
        {"type": "thinking", "thinking": "t", "closed": True},
        {"type": "text", "text": "c"},
        {"type": "thinking", "thinking": "t", "closed": True},
        {"type": "text", "text": "d"},
    ]


def test_the_supplement_is_canonical_text() -> None:
    reply = accepted(FIRST, chunk(choice({"refusal": "No é", "reasoning": "b"})), STOP, COUNTED, DONE)
    assert reply.native.data == '{"reasoning":"b","refusal":"No é"}'
    assert refusal_text(reply.native) == "No é"


def test_half_characters_are_joined_here_too() -> None:
    events = [
        b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"reasoning":"\\u%s",'
        b'"reasoning_details":[{"type":"reasoning.text","text":"\\u%s","index":0}]}}]}\n\n' % (half, half)
        for half in (b"d83d", b"de00")
    ]
    reply = accepted(FIRST, *events, STOP, COUNTED, DONE, dialect=allowing("surrogates_split"))
    assert json.loads(reply.native.data)["reasoning_details"][0]["text"] == "😀"
    assert reasoning_text(reply.native) == "😀"


def test_what_cannot_be_kept_is_refused() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    odd = chunk(choice({"extra_content": {"deep": deep}}))
    assert refused(FIRST, odd, STOP, COUNTED, DONE).code == "bad_shape"
    odd = chunk(choice({"thinking_blocks": ["x"]}))
    assert refused(FIRST, odd, STOP, COUNTED, DONE).code == "bad_shape"


def test_what_a_call_brought_goes_back_with_it() -> None:
    """R21: beside the name and the arguments, never in their place."""
    entry = {
        "index": 0,
        "id": "a",
        "function": {"name": "f", "arguments": "{}", "signature": "s1"},
        "extra_content": {"x": 1},
    }
    reply = accepted(FIRST, calls(entry), CALLED, COUNTED, DONE)
    exchange = ModelExchange(reply=reply, feedback=(ToolFeedback.of("a", ToolResult.ok("done")),))
    message = json.loads(b"[" + encode_message(exchange, PRESETS["gemini"]) + b"]")[0]
    assert message["tool_calls"] == [
        {
            "id": "a",
            "type": "function",
            "function": {"name": "f", "arguments": "{}", "signature": "s1"},
            "extra_content": {"x": 1},
        }
    ]
    plain = json.loads(b"[" + encode_message(exchange, PRESETS["openai"]) + b"]")[0]
    assert plain["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
