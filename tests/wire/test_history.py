"""Histories kept elsewhere: plain message JSON in, exchanges out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import AdmissionError, HistoryError
from agentloop.messages import ModelExchange, ModelRequest, SystemMessage, UserMessage
from agentloop.wire.dialect import Dialect
from agentloop.wire.encode import encode_request
from agentloop.wire.history import decode_messages
from agentloop.wire.presets import OPENAI

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"
FILE_IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/hosts"}}


def call(call_id: str, arguments: str = "{}", name: str = "t") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def assistant(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def refusal(*messages: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(HistoryError) as caught:
        decode_messages(json.dumps(messages))
    return caught.value.code, caught.value.path


def wire(data: str | bytes, dialect: Dialect = OPENAI) -> list[dict[str, Any]]:
    encoded = encode_request(ModelRequest(messages=decode_messages(data)), model="m", dialect=dialect)
    return list(json.loads(encoded.body)["messages"])


def test_each_role_becomes_its_message() -> None:
    history = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        assistant(call("a"), content="wait"),
        result("a", [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]),
        assistant(content="done"),
    ]
    system, user, first, last = decode_messages(json.dumps({"messages": history}))
    assert isinstance(system, SystemMessage)
    assert isinstance(user, UserMessage)
    assert isinstance(first, ModelExchange)
    assert isinstance(last, ModelExchange)
    assert (first.reply.text, first.feedback[0].text, first.feedback[0].status) == ("wait", "xy", "ok")
    assert (last.reply.text, last.feedback) == ("done", ())


def test_a_history_goes_back_to_the_wire_as_it_came() -> None:
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://e.com/a.png"}}]},
        assistant(call("a", '{"x": 1}'), call("b", "{}")),
        result("a"),
        result("b"),
        assistant(content="done"),
    ]
    assert wire(json.dumps(history)) == history


def test_results_are_put_in_call_order() -> None:
    history = [assistant(call("a"), call("b")), result("b", "2"), result("a", "1")]
    (exchange,) = decode_messages(json.dumps(history))
    assert isinstance(exchange, ModelExchange)
    assert [(item.tool_call_id, item.text) for item in exchange.feedback] == [("a", "1"), ("b", "2")]


def test_a_result_without_its_call_is_an_orphan() -> None:
    assert refusal(result("a")) == ("orphan_tool_result", "$[0]")
    assert refusal(assistant(call("a")), result("a"), result("zz")) == ("orphan_tool_result", "$[2]")
    assert refusal(assistant(content="x"), result("a")) == ("orphan_tool_result", "$[1]")


def test_a_call_without_its_result_is_missing_one() -> None:
    user = {"role": "user", "content": "u"}
    assert refusal(assistant(call("a"), call("b")), result("a")) == ("missing_tool_result", "$[0].tool_calls[1]")
    assert refusal(assistant(call("a")), user, result("a")) == ("missing_tool_result", "$[0].tool_calls[0]")


def test_a_second_result_for_one_call_is_invalid() -> None:
    assert refusal(assistant(call("a")), result("a"), result("a")) == ("invalid_tool_result", "$[2]")


def test_ids_may_repeat_in_a_later_assistant_message() -> None:
    history = [assistant(call("a")), result("a", "1"), assistant(call("a")), result("a", "2")]
    texts = [m.feedback[0].text for m in decode_messages(json.dumps(history)) if isinstance(m, ModelExchange)]
    assert texts == ["1", "2"]


def test_native_material_and_call_extras_are_kept() -> None:
    signed = {**call("a"), "extra_content": {"google": {"thought_signature": "c2ln"}}}
    history = [assistant(signed, reasoning_content="because"), result("a")]
    replaying = Dialect(name="r", replay=("reasoning_content", "calls"))
    message = wire(json.dumps(history), replaying)[0]
    assert message["reasoning_content"] == "because"
    assert message["tool_calls"] == [signed]


@pytest.mark.parametrize(
    ("history", "path"),
    [
        ([1], "$[0]"),
        ([{"role": "robot", "content": ""}], "$[0].role"),
        ([{"role": "user"}], "$[0].content"),
        ([{"role": "user", "content": []}], "$[0].content"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "$[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
            "$[0].content[0].image_url",
        ),
        ([{"role": "user", "content": "x", "name": "Ann"}], "$[0]"),
        ([assistant(call("a", name=""))], "$[0].tool_calls[0].function.name"),
        ([assistant(call("a"), call("a")), result("a")], "$[0].tool_calls"),
        ([assistant({**call("a"), "type": "custom"})], "$[0].tool_calls[0].type"),
        ([assistant({"id": "a", "function": {"name": "t", "arguments": {}}})], "$[0].tool_calls[0].function.arguments"),
        ([assistant(call("a")), result("a", None)], "$[1].content"),
        ([assistant(content="x", audio={"id": "1"})], "$[0]"),
        ({"model": "m"}, "$"),
    ],
)
def test_what_is_no_message_is_refused_with_its_path(history: Any, path: str) -> None:
    with pytest.raises(AdmissionError) as caught:
        decode_messages(json.dumps(history))
    assert caught.value.path == path


def test_null_and_empty_members_that_libraries_write_are_let_pass() -> None:
    message = assistant(content="x", audio=None, function_call=None, annotations=[], tool_calls=None)
    assert wire(json.dumps([message])) == [{"role": "assistant", "content": "x"}]


def test_json_with_two_equal_keys_is_refused() -> None:
    with pytest.raises(AdmissionError):
        decode_messages('[{"role":"user","content":"a","content":"b"}]')


@settings(max_examples=60)
@given(rounds=st.lists(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=3), max_size=4))
def test_encoding_a_decoded_history_is_the_identity(rounds: list[list[str]]) -> None:
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for texts in rounds:
        ids = [f"call_{at}" for at in range(len(texts))]
        history.append(assistant(*(call(i, '{"a":1}') for i in ids), content=None if ids else "end"))
        history += [result(i, text) for i, text in zip(ids, texts, strict=True)]
    assert wire(json.dumps(history)) == history


@pytest.mark.skipif(not CASES.exists(), reason="the case collection is not there")
def test_the_collected_histories_do_what_is_expected_of_them() -> None:
    with pytest.raises(HistoryError) as caught:
        decode_messages((CASES / "149-history-orphan-result.json").read_bytes())
    assert caught.value.code == "orphan_tool_result"
    repeated = decode_messages((CASES / "150-history-ids-repeat-across-turns.json").read_bytes())
    pairs = [(m.feedback[0].text, at * 2 - 1) for at, m in enumerate(repeated) if isinstance(m, ModelExchange)]
    assert pairs == [("a", 1), ("b", 3)]
    assert "tool_calls" not in wire((CASES / "154-history-empty-tool-calls-list.json").read_bytes())[1]
    emptied = wire((CASES / "155-history-arguments-normalised.json").read_bytes())[1]
    assert emptied["tool_calls"][0]["function"]["arguments"] == "{}"
