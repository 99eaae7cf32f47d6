"""Which types may change what they decode, and how a change is found (R59)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from agentloop.errors import ToolDefinitionError
from agentloop.tools import ArgumentsRefused, Tool, tool
from agentloop.tools.exactness import difference, may_change


class Color(enum.Enum):
    RED = "red"


class Plain(msgspec.Struct, rename="camel", omit_defaults=True):
    first_name: str
    tags: list[str] = []


class Cat(msgspec.Struct, tag=True):
    lives: float


class Dog(msgspec.Struct, tag=True):
    legs: float


class Row(msgspec.Struct, array_like=True):
    a: float
    b: int = 0


class Point(NamedTuple):
    x: float
    y: float = 0


class Typed(TypedDict, total=False):
    x: float


@dataclasses.dataclass
class Data:
    x: float
    y: int = 3


class Own(msgspec.Struct):
    x: int

    def __post_init__(self) -> None: ...


def arguments_of(kind: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Arguments", [("v", kind)])


@pytest.mark.parametrize(
    "kind",
    [int, str, bool, None, Any, Literal["a", 1], Color, list[int], tuple[int, str], dict[str, int], Plain, int | None],
)
def test_plain_types_are_never_compared(kind: Any) -> None:
    assert may_change("t", arguments_of(kind)) == (False, False)


@pytest.mark.parametrize(
    "kind",
    [
        float, dt.datetime, dt.time, dt.timedelta, bytes, set[int], frozenset[str], dict[int, int], list[float],
        Data, Typed, Point, Row, Cat | Dog, dict[str, list[float]], Annotated[float, msgspec.Meta(gt=0)],
    ],
)  # fmt: skip
def test_types_that_may_change_are_compared(kind: Any) -> None:
    assert may_change("t", arguments_of(kind)) == (True, False)


def test_a_class_with_code_of_its_own_is_compared_and_blamed() -> None:
    assert may_change("t", arguments_of(list[Own])) == (True, True)


@pytest.mark.parametrize("kind", [msgspec.Raw, msgspec.msgpack.Ext])
def test_a_type_that_no_json_decodes_to_is_refused(kind: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="no JSON decodes to"):
        may_change("t", arguments_of(kind))


def of_type(kind: Any) -> Tool:
    def f(v: Any) -> None: ...

    f.__annotations__["v"] = kind
    return tool(f)


ID = "0B8C0F4E-0b8c-4f4e-8b8c-0f4e0b8c0f4e"
EXACT: list[tuple[Any, Any]] = [
    (Plain, {"firstName": "Ada", "tags": []}),
    (Cat | Dog, {"type": "Cat", "lives": 9}),
    (Row, [1, 2]),
    (Row, [1]),
    (Point, [1, 2]),
    (Point, [1]),
    (Typed, {"x": 1}),
    (Data, {"x": 1}),
    (set[float], [3, 1, 2]),
    (frozenset[str], ["b", "a"]),
    (set[uuid.UUID], [ID]),
    (uuid.UUID, ID),
    (dt.datetime, "2026-01-02T03:04:05+00:00"),
    (dt.datetime, "2026-01-02T03:04:05.120000Z"),
    (dt.time, "03:04:05"),
    (dt.timedelta, "PT90S"),
    (dt.date, "2026-01-02"),
    (decimal.Decimal, "1.10"),
    (bytes, "AAEC"),
    (dict[int, float], {"1": 1, "-2": 2.5}),
    (dict[float, int], {"1": 1, "2.50": 2, "1e16": 3}),
    (dict[uuid.UUID, int], {ID: 1}),
    (Color, "red"),
    (float, 3),
]


@pytest.mark.parametrize(("kind", "value"), EXACT, ids=str)
def test_values_that_the_type_holds_are_admitted_whatever_their_spelling(kind: Any, value: Any) -> None:
    of_type(kind).admit(msgspec.json.encode({"v": value}).decode())


CHANGED: list[tuple[Any, Any, str]] = [
    (float, 2**53 + 1, "$.v"),
    (list[float], [1, 2**60 + 1], "$.v[1]"),
    (Data, {"x": 2**53 + 1}, "$.v.x"),
    (Row, [2**53 + 1], "$.v[0]"),
    (Cat | Dog, {"type": "Dog", "legs": 2**53 + 1}, "$.v.legs"),
    (dt.datetime, "2026-01-02T03:04:05.1234567Z", "$.v"),
    (set[dt.datetime], ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00"], "$.v"),
    (dict[float, int], {"1": 1, "1.0": 2}, "$.v"),
]


@pytest.mark.parametrize(("kind", "value", "path"), CHANGED, ids=str)
def test_values_that_the_type_would_change_are_refused_by_their_path(kind: Any, value: Any, path: str) -> None:
    with pytest.raises(ArgumentsRefused) as caught:
        of_type(kind).admit(msgspec.json.encode({"v": value}).decode())
    assert f"The argument {path} does not fit" in caught.value.feedback


def test_a_difference_is_found_at_any_depth() -> None:
    assert difference({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}) is None
    assert difference({"a": [{"b": 1}]}, {"a": [{"b": 2}]}) == "$.a[0].b"
    assert difference({"a": [1, 2]}, {"a": [1]}) == "$.a"
    assert difference({"a": 1}, {}) == "$"
    assert difference({"a": 1, "b": 1}, {"a": 1, "c": 2}) == "$.b"
    assert difference({"a": True}, {"a": 1}) == "$.a"
    assert difference({"a": {}}, {"a": []}) == "$.a"
    assert difference({"a": "x"}, {"a": "y"}) == "$.a"
