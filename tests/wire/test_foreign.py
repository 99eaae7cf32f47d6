"""Requests written elsewhere, read into our values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop.errors import AdmissionError, HistoryError
from agentloop.messages import ModelOptions, ResponseFormat, ToolChoice
from agentloop.wire.encode import encode_request
from agentloop.wire.foreign import decode_request
from agentloop.wire.presets import OPENAI

TOOL = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}
FULL: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 1,
    "max_completion_tokens": 64,
    "stop": ["END"],
    "seed": 7,
    "reasoning_effort": "low",
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "o", "schema": {"type": "object"}, "strict": True},
    },
    "user": "someone",
    "tool_choice": {"type": "function", "function": {"name": "t"}},
    "parallel_tool_calls": False,
    "tools": [TOOL],
    "messages": [{"role": "user", "content": "hi"}],
}


def ask(**members: Any) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **members})


def test_a_whole_request_goes_through_unchanged() -> None:
    foreign = decode_request(json.dumps(FULL))
    assert (foreign.model, foreign.stream) == ("m", True)
    assert json.loads(encode_request(foreign.request, model="m", dialect=OPENAI).body) == FULL


def test_the_smallest_request_has_the_default_options() -> None:
    foreign = decode_request(ask(temperature=None, tools=None))
    assert (foreign.model, foreign.stream) == ("", False)
    assert foreign.request.options == ModelOptions()


def test_older_and_shorter_forms_mean_the_same() -> None:
    options = decode_request(ask(max_tokens=9, stop="END", response_format={"type": "text"})).request.options
    assert (options.max_output_tokens, options.stop, options.response_format) == (9, ("END",), None)
    assert decode_request(
        ask(response_format={"type": "json_object"})
    ).request.options.response_format == ResponseFormat(kind="json")
    assert decode_request(ask(tool_choice="none")).request.options.tool_choice == "none"
    named = {"type": "function", "function": {"name": "t"}}
    assert decode_request(ask(tool_choice=named)).request.options.tool_choice == ToolChoice(name="t")
    assert decode_request(ask(stream_options={"include_usage": False})).request.options.include_usage is False


@pytest.mark.parametrize(("said", "strict"), [({}, False), ({"strict": None}, False), ({"strict": True}, True)])
def test_a_schema_is_strict_only_where_it_says_so(said: dict[str, Any], strict: bool) -> None:
    shape = {"name": "o", "schema": {"type": "object"}, **said}
    asked = decode_request(ask(response_format={"type": "json_schema", "json_schema": shape}))
    assert asked.request.options.response_format == ResponseFormat(
        kind="json_schema", name="o", schema='{"type":"object"}', strict=strict
    )


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("[]", "$"),
        ("{}", "$.messages"),
        (ask(messages={}), "$.messages"),
        (ask(messages=[{"role": "user"}]), "$.messages[0].content"),
        (ask(model=3), "$.model"),
        (ask(stream=1), "$.stream"),
        (ask(tools={}), "$.tools"),
        (ask(tools=[TOOL, {"type": "web_search"}]), "$.tools[1]"),
        (ask(tools=[{"type": "function", "function": {"name": 1}}]), "$.tools[0]"),
        (ask(tool_choice={"type": "function"}), "$.tool_choice"),
        (ask(tool_choice="sometimes"), "$"),
        (ask(temperature="warm"), "$"),
        (ask(stop=5), "$"),
        (ask(response_format={"type": "xml"}), "$.response_format"),
        ('{"messages":[],"messages":[]}', "$"),
    ],
)
def test_what_is_no_request_is_refused_with_its_path(body: str, path: str) -> None:
    with pytest.raises(AdmissionError) as caught:
        decode_request(body)
    assert caught.value.path.startswith(path)


def test_a_history_that_was_cut_inside_an_exchange_is_refused() -> None:
    with pytest.raises(HistoryError) as caught:
        decode_request(ask(messages=[{"role": "tool", "tool_call_id": "a", "content": "x"}]))
    assert (caught.value.code, caught.value.path) == ("orphan_tool_result", "$.messages[0]")
