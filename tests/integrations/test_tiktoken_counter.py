"""Counts by tiktoken, offline: an encoding of the 256 bytes, so that a token is a byte."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.integrations.tiktoken_counter import TOKENS_PER_MESSAGE, TiktokenCounter
from agentloop.messages import (
    FunctionSpec,
    ImagePart,
    Message,
    ModelExchange,
    ModelOptions,
    ModelRequest,
    ResponseFormat,
    SystemMessage,
    TextPart,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from agentloop.runner.tokens import TokenBudget, TokenCounter
from agentloop.testing import call, reply

BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"(?s).",
    mergeable_ranks={bytes([number]): number for number in range(256)},
    special_tokens={"<|end|>": 256},
)
COUNTER = TiktokenCounter(BYTES)
SEEN = UserMessage(content="abc")


def count(*messages: Message, **parts: Any) -> int:
    return COUNTER.count(ModelRequest(messages=messages, **parts))


def test_a_counter_says_which_encoding_it_estimates_by() -> None:
    """(R214)"""
    assert COUNTER.identity == "tiktoken:bytes"
    assert isinstance(COUNTER, TokenCounter)
    assert repr(COUNTER) == "<TiktokenCounter tiktoken:bytes>"
    budget = TokenBudget(window=100, counter=COUNTER)
    assert budget.count(ModelRequest(messages=(SEEN,))) == 3 + TOKENS_PER_MESSAGE


@given(st.lists(st.text(max_size=20), max_size=5))
def test_each_message_is_its_text_and_a_constant(texts: list[str]) -> None:
    messages = [UserMessage(content=text) if at % 2 else SystemMessage(content=text) for at, text in enumerate(texts)]
    assert count(*messages) == sum(len(text.encode()) + TOKENS_PER_MESSAGE for text in texts)


def test_images_are_not_counted() -> None:
    image = ImagePart(url="https://example.org/a.png")
    assert count(UserMessage(content=(TextPart(text="ab"), image, TextPart(text="c")))) == count(SEEN)


def test_an_exchange_is_its_text_its_calls_and_a_message_for_each_result() -> None:
    asked = reply("one", calls=[call("f", arguments_text='{"n":1}'), call("gg", arguments_text="{}")])
    exchange = ModelExchange(
        reply=asked,
        feedback=tuple(ToolFeedback.of(each.id, ToolResult.ok("four")) for each in asked.calls),
    )
    expected = 3 + len('f{"n":1}') + len("gg{}") + 2 * 4 + 3 * TOKENS_PER_MESSAGE
    assert count(exchanges=(exchange,)) == count(exchange) == expected


def test_tools_and_a_schema_are_counted_as_their_json() -> None:
    tool = FunctionSpec(name="f", description="says é", parameters='{"type": "object"}')
    text = '{"name":"f","description":"says é","parameters":{"type": "object"}}'
    assert count(SEEN, tools=(tool, tool)) - count(SEEN) == 2 * len(text.encode())
    schema = '{"type":"object"}'
    wanted = ModelOptions(response_format=ResponseFormat(kind="json_schema", schema=schema))
    assert count(SEEN, options=wanted) - count(SEEN) == len(schema)
    assert count(SEEN, options=ModelOptions(response_format=ResponseFormat(kind="json"))) == count(SEEN)


def test_the_name_of_a_special_token_in_a_text_is_text() -> None:
    assert count(UserMessage(content="<|end|>")) == len("<|end|>") + TOKENS_PER_MESSAGE


def test_an_encoding_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["bytes", "other"])
    monkeypatch.setattr(tiktoken, "get_encoding", {"bytes": BYTES}.__getitem__)
    assert TiktokenCounter("bytes").identity == "tiktoken:bytes"
    with pytest.raises(InputError, match=r"TiktokenCounter\.encoding: expected one of bytes, other, got 'gpt'"):
        TiktokenCounter("gpt")


@pytest.mark.parametrize("fault", [OSError("no network"), ValueError("hash"), ImportError("requests")], ids=repr)
def test_a_table_that_cannot_be_loaded_says_what_to_do(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def load(_: str) -> Any:
        raise fault

    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["bytes"])
    monkeypatch.setattr(tiktoken, "get_encoding", load)
    with pytest.raises(InputError) as caught:
        TiktokenCounter("bytes")
    assert str(caught.value) == (
        f"TiktokenCounter.encoding: expected the table of 'bytes', got {type(fault).__name__}; hand over a "
        "tiktoken.Encoding, or set TIKTOKEN_CACHE_DIR to a directory that holds the table"
    )
    assert caught.value.__cause__ is fault


def test_what_is_no_encoding_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected a tiktoken\.Encoding or its name, got NoneType"):
        TiktokenCounter(None)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(InputError, match="expected the package tiktoken; install the extra 'tokens'"):
        TiktokenCounter("bytes")
