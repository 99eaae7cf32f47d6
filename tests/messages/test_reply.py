"""The complete reply."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agentloop.errors import InputError
from agentloop.messages import ModelReply, Native, Termination, Text, reply_text
from tests.messages.values import call, reply


def test_a_reply_holds_identity_output_termination_usage_and_native() -> None:
    """(R16, R166)"""
    made = ModelReply(id="r1", model="m", output=(Text(text="hi"),), termination=Termination.of("stop"), usage=None)
    assert json.loads(msgspec.json.encode(made)) == {
        "format_version": 1,
        "id": "r1",
        "model": "m",
        "output": [{"kind": "text", "text": "hi"}],
        "termination": {"kind": "completed", "reason": "stop"},
        "usage": None,
        "native": {"format": "chat-completions", "version": 1, "data": "{}"},
    }


def test_output_is_texts_and_calls_in_their_order() -> None:
    """(R17)"""
    made = reply(Text(text="a"), call("c1"), Text(text="b"), call("c2"))
    assert [type(item).__name__ for item in made.output] == ["Text", "ToolCall", "Text", "ToolCall"]
    assert [item.id for item in made.calls] == ["c1", "c2"]
    assert made.text == "ab"
    with pytest.raises(InputError, match=r"ModelReply\.output\[1\]: expected Text or ToolCall, got str"):
        reply(Text(text="a"), "b")  # type: ignore[arg-type]


def test_a_reply_without_usage_is_valid() -> None:
    """(R168)"""
    assert ModelReply(id="", model="", output=(), termination=Termination.of("stop"), usage=None).usage is None


def test_common_fields_and_native_are_the_only_continuation_material() -> None:
    """Nothing else of a reply can be edited into a second continuation (R20)."""
    assert set(ModelReply.__struct_fields__) == {
        "format_version",
        "id",
        "model",
        "output",
        "termination",
        "usage",
        "native",
    }
    made = reply(native={"reasoning_content": "thought"})
    assert made != reply()


def test_reasoning_lives_in_native_and_is_no_body_text() -> None:
    """A reply without its reasoning is another reply (R21, R22)."""
    made = reply(Text(text="body"), native={"reasoning_content": "thought"})
    assert made.native == Native(data='{"reasoning_content":"thought"}')
    assert made.text == "body"
    plain = reply(Text(text="body"))
    assert plain.text == made.text
    assert plain != made


def test_the_text_of_a_reply_with_calls_is_no_answer() -> None:
    """(R28)"""
    with pytest.raises(InputError, match="expected a reply without tool calls, got 2"):
        reply_text(reply(Text(text="SECRET"), call("c1"), call("c2")))
    assert reply_text(reply(Text(text="a"), Text(text="b"))) == "ab"


@pytest.mark.parametrize("word", ["stop", "length", "content_filter"])
def test_the_text_of_a_reply_is_not_judged(word: str) -> None:
    """We do not claim that a body is non-empty or that its reply ended well (R29)."""
    assert reply_text(reply(Text(text=""), word=word)) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"format_version": 2},
        {"format_version": True},
        {"format_version": "1"},
        {"id": None},
        {"model": 1},
        {"output": [Text(text="a")]},
        {"output": (call("c"), call("c"))},
        {"termination": "stop"},
        {"usage": {}},
        {"native": {}},
    ],
)
def test_a_reply_of_another_shape_or_version_cannot_be_made(fields: dict[str, Any]) -> None:
    """(R40, R41)"""
    good: dict[str, Any] = {"id": "", "model": "", "output": (), "termination": Termination.of("stop"), "usage": None}
    with pytest.raises(InputError, match=f"ModelReply.{next(iter(fields))}"):
        ModelReply(**{**good, **fields})


def test_no_list_or_dict_can_be_reached_from_a_reply() -> None:
    """(R38)"""
    made = reply(Text(text="a"), call(), native={"reasoning_details": [{"a": [1]}]})

    def kinds(value: Any) -> set[type]:
        if isinstance(value, msgspec.Struct):
            return {type(value)}.union(*(kinds(getattr(value, name)) for name in value.__struct_fields__))
        if isinstance(value, tuple):
            return {tuple}.union(*map(kinds, value))
        return {type(value)}

    found = kinds(made)
    assert {ModelReply, Text, str, int, tuple} < found
    assert not found & {list, dict, set, bytearray}
    assert all(kind.__struct_config__.frozen for kind in found if issubclass(kind, msgspec.Struct))
