"""From what a tool returned to what a model reads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ToolResultError
from agentloop.messages import TextContent, ToolResult
from agentloop.tools import clean_text, cut_result
from agentloop.tools.result import encode_result


class Note(msgspec.Struct):
    title: str


@dataclasses.dataclass
class Page:
    notes: list[Note]


class Word(enum.StrEnum):
    YES = "yes"


def text_of(value: Any) -> str:
    result = encode_result("t", value)
    assert result.status == "ok"
    assert len(result.content) == 1
    return result.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('plain "text"\n', 'plain "text"\n'),
        ("", ""),
        (Word.YES, "yes"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (2**70, "1180591620717411303424"),
        (-0.0, "-0.0"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": {"b": 1}, 1: 2}, '{"a":{"b":1},"1":2}'),
        ((1, 2), "[1,2]"),
        (Note("é"), '{"title":"é"}'),
        (Page([Note("a")]), '{"notes":[{"title":"a"}]}'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), '"2026-01-02T00:00:00Z"'),
        (Decimal("1.10"), '"1.10"'),
    ],
    ids=repr,
)
def test_text_is_sent_as_it_is_and_everything_else_as_json(value: Any, text: str) -> None:
    """(R160)"""
    assert text_of(value) == text


def test_making_a_result_changes_nothing_and_gives_the_same_again() -> None:
    """(R64)"""
    value = {"notes": [Note("a")], "bad": "\udc97"}
    before = repr(value)
    assert encode_result("t", value) == encode_result("t", value)
    assert repr(value) == before


def test_a_result_made_by_the_tool_is_taken_as_it_is() -> None:
    result = ToolResult(status="error", content=(TextContent(text="a"), TextContent(text="b")))
    assert encode_result("t", result) is result


class Loop:
    def __init__(self) -> None:
        self.self = self


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(70):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "$: expected a finite number"),
    "infinity": ({"a": [1, math.inf]}, "$.a[1]: expected a finite number"),
    "NaN in a struct": (Page([Note(math.nan)]), "$.notes[0].title: expected a finite number"),  # type: ignore[arg-type]
    "bytes": (b"\x00", "$: expected text, got bytes"),
    "bytes inside": ({"image": bytearray(b"x")}, "$.image: expected text, got bytearray"),
    "a view": ([memoryview(b"x")], "$[0]: expected text, got memoryview"),
    "an object": (object(), "expected a value with a JSON form"),
    "a class": (Note, "expected a value with a JSON form"),
    "a generator": ((n for n in [1]), "expected a value with a JSON form"),
    "raw JSON nobody checked": (msgspec.Raw(b"{bad"), "expected a value with a JSON form"),
    "a key that is no name": ({(1, 2): 3}, "expected a value with a JSON form"),
    "a cycle": (cycle(), "expected a value with a JSON form"),
    "depth": (deep(), "expected at most 64 levels"),
}


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=REFUSED)
def test_a_value_without_json_is_refused_by_its_place(value: Any, words: str) -> None:
    """msgspec alone would write null for NaN and base64 for bytes."""
    with pytest.raises(ToolResultError) as caught:
        encode_result("t", value)
    assert caught.value.code == "invalid_tool_result"
    assert caught.value.tool == "t"
    assert words in caught.value.rule


def test_a_subclass_of_a_result_is_refused() -> None:
    class Other(ToolResult, frozen=True):
        pass

    with pytest.raises(ToolResultError, match="subclass Other"):
        encode_result("t", Other(status="ok", content=()))


def test_a_lone_surrogate_becomes_the_replacement_character_wherever_it_is() -> None:
    bad = "bad \udc97 byte"
    good = "bad \ufffd byte"
    assert text_of(bad) == good
    assert json.loads(text_of({"a": [bad], bad: 1})) == {"a": [good], good: 1}
    assert encode_result("t", ToolResult.error(bad)) == ToolResult.error(good)
    assert clean_text("\ud83d\ude00") == "\U0001f600"


@given(st.text(st.characters(codec=None)))  # surrogates included
def test_cleaned_text_is_unicode_and_good_text_stays(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert cleaned == text


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda c: st.lists(c) | st.dictionaries(st.text(st.characters(codec="utf-8")), c),
        max_leaves=10,
    )
)
def test_json_says_exactly_what_was_returned(value: Any) -> None:
    if not isinstance(value, str):
        assert repr(json.loads(text_of(value))) == repr(value)


@given(st.text(st.characters(codec="utf-8") | st.sampled_from('"\\\n\x01é€😀'), max_size=400), st.integers(160, 500))
def test_a_cut_result_fits_and_says_the_full_size(text: str, limit: int) -> None:
    """(R98, R101)"""
    result = ToolResult.ok(text)
    size = len(msgspec.json.encode(result))
    cut = cut_result(result, limit)
    if size <= limit:
        assert cut is result
        return
    assert limit - 12 < len(msgspec.json.encode(cut)) <= limit
    head, mark, size_text = cut.text.rpartition("\n[cut: the full output is ")
    assert mark
    assert text.startswith(head)
    assert size_text == f"{len(text.encode())} bytes]"


def test_the_mark_of_a_cut_may_say_more() -> None:
    cut = cut_result(ToolResult.ok("a" * 5_000), 500, note=", kept")
    assert cut.text.endswith("a\n[cut: the full output is 5000 bytes, kept]")
    assert len(msgspec.json.encode(cut)) == 500
    whole = ToolResult.ok("a")
    assert cut_result(whole, 500, note=", kept") is whole


def test_a_cut_text_takes_all_the_room_there_is() -> None:
    """(R101)"""
    for limit in range(200, 220):
        assert len(msgspec.json.encode(cut_result(ToolResult.ok("a" * 5_000), limit))) == limit


def test_a_cut_joins_several_texts_and_keeps_the_status() -> None:
    result = ToolResult(status="error", content=(TextContent(text="a" * 300), TextContent(text="b" * 300)))
    cut = cut_result(result, 500)
    assert cut.status == "error"
    assert cut.text.startswith("a" * 300 + "b")
    assert cut.text.endswith("[cut: the full output is 600 bytes]")


def test_a_huge_text_is_cut_without_being_escaped_whole() -> None:
    cut = cut_result(ToolResult.ok("\x01" * 4_000_000), 50_000)
    assert len(msgspec.json.encode(cut)) <= 50_000
    assert "4000000 bytes" in cut.text


def test_a_limit_below_the_mark_leaves_the_mark_alone() -> None:
    assert cut_result(ToolResult.ok("x" * 500), 10).text == "\n[cut: the full output is 500 bytes]"
