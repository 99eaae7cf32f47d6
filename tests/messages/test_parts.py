"""The pieces of messages: closed, frozen, exact about their types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.messages import (
    ImagePart,
    JsonText,
    Native,
    Termination,
    Text,
    TextContent,
    TextPart,
    ToolCall,
    Usage,
)
from agentloop.messages.parts import Value
from tests.messages.values import call, usages


class Sub(str):
    __slots__ = ()


@pytest.mark.parametrize("word", ["stop", "tool_calls"])
def test_an_ordinary_end_is_completed(word: str) -> None:
    """(R24)"""
    assert Termination.of(word) == Termination(kind="completed", reason=word)


def test_a_content_filter_is_a_refusal() -> None:
    """(R25)"""
    assert Termination.of("content_filter") == Termination(kind="refused", reason="content_filter")


@given(st.text().filter(lambda word: word not in ("stop", "tool_calls", "content_filter")))
def test_every_other_end_is_incomplete_and_keeps_its_word(word: str) -> None:
    """(R26)"""
    assert Termination.of(word) == Termination(kind="incomplete", reason=word)


@pytest.mark.parametrize("word", ["length", "function_call", "STOP", "stop ", "Content_Filter", ""])
def test_finish_words_are_compared_exactly(word: str) -> None:
    """(R26)"""
    assert Termination.of(word).kind == "incomplete"


def test_an_end_that_a_dialect_inferred_has_no_word() -> None:
    assert Termination.of(None) == Termination(kind="completed", reason=None)


def test_a_termination_knows_nothing_about_tools_or_tasks() -> None:
    """(R27)"""
    assert Termination.__struct_fields__ == ("kind", "reason")
    with pytest.raises(InputError, match=r"Termination\.kind"):
        Termination(kind="success", reason="stop")  # type: ignore[arg-type]


@given(st.text())
def test_arguments_keep_the_raw_text(text: str) -> None:
    """(R18, R167)"""
    made = call(arguments=text)
    assert made.arguments.text == text
    assert msgspec.to_builtins(made) == {
        "kind": "tool-call",
        "id": "c1",
        "name": "read_note",
        "arguments": {"encoding": "json-text", "text": text},
    }


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '{"a": 1', "{'a': 1}", '{"a":1}}', "", "null", '{"a":-0}', "{ }"])
def test_arguments_that_are_no_good_json_are_neither_repaired_nor_refused_here(text: str) -> None:
    """(R18, R19)"""
    assert call(arguments=text).arguments == JsonText(text=text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Text(text=1),  # type: ignore[arg-type]
        lambda: Text(text=Sub("a")),
        lambda: TextPart(text=b"a"),  # type: ignore[arg-type]
        lambda: TextContent(text=None),  # type: ignore[arg-type]
        lambda: JsonText(text={}),  # type: ignore[arg-type]
        lambda: JsonText(text="{}", encoding="json"),  # type: ignore[arg-type]
        lambda: ToolCall(id="", name="n", arguments=JsonText(text="{}")),
        lambda: ToolCall(id="c", name="", arguments=JsonText(text="{}")),
        lambda: ToolCall(id="c", name="n", arguments="{}"),  # type: ignore[arg-type]
        lambda: Termination(kind="completed", reason=1),  # type: ignore[arg-type]
        lambda: Native(format="responses"),  # type: ignore[arg-type]
        lambda: Native(version=2),  # type: ignore[arg-type]
        lambda: Native(version=True),  # type: ignore[arg-type]
        lambda: Native(data={}),  # type: ignore[arg-type]
        lambda: ImagePart(url="http://example.org/a.png"),
        lambda: ImagePart(url="file:///etc/passwd"),
        lambda: ImagePart(url="https://example.org/a.png", detail="huge"),  # type: ignore[arg-type]
    ],
)
def test_a_constructor_refuses_what_the_field_cannot_be(make: Any) -> None:
    """(R46)"""
    with pytest.raises(InputError, match="expected"):
        make()


def test_only_one_native_protocol_is_known() -> None:
    """We do not claim any other vendor's native protocol (R23)."""
    assert Native() == Native(format="chat-completions", version=1, data="{}")


def test_values_are_frozen_equal_by_content_and_hashable() -> None:
    """(R38)"""
    made = call()
    with pytest.raises(AttributeError):
        made.id = "other"  # type: ignore[misc]
    assert made == call()
    assert hash(made) == hash(call())
    assert made != call(id="c2")


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", None])
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "total_tokens"])
def test_usage_counts_are_integers_of_zero_or_more(field: str, wrong: Any) -> None:
    counts: dict[str, Any] = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, field: wrong}
    with pytest.raises(InputError, match=f"Usage.{field}"):
        Usage(**counts)


def test_a_total_may_be_more_than_its_parts() -> None:
    assert Usage(input_tokens=1, output_tokens=2, total_tokens=50).total_tokens == 50


@given(usages, usages)
def test_usage_is_summed_field_by_field(a: Usage, b: Usage) -> None:
    both = a + b
    assert both == b + a
    assert both.total_tokens == a.total_tokens + b.total_tokens
    assert (both.reasoning_tokens is None) == (a.reasoning_tokens is None and b.reasoning_tokens is None)
    assert (both.cached_input_tokens or 0) == (a.cached_input_tokens or 0) + (b.cached_input_tokens or 0)


@pytest.mark.parametrize("kind", Value.__subclasses__())
def test_a_value_is_in_no_cycle_so_the_collector_does_not_look_at_it(kind: type[Value]) -> None:
    """msgspec has no way to say it of a struct with a ``__dict__``."""
    config = kind.__struct_config__
    assert config.gc is config.dict
