"""Random types that msgspec decodes, each with a strategy for its values."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypedDict

import msgspec
from hypothesis import strategies as st

__all__ = ["types_and_values"]

Pair = tuple[Any, st.SearchStrategy[Any]]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS: list[Pair] = [
    (int, st.integers()),
    (str, TEXTS),
    (bool, st.booleans()),
    (float, FLOATS),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (None, st.none()),
    (int | str | None, st.integers() | TEXTS | st.none()),
]


@dataclasses.dataclass
class Point:
    """A dataclass."""

    a: int
    b: str


class Pair2(TypedDict):
    """A typed dict."""

    a: float
    b: list[str]


class Tagged(msgspec.Struct, tag="t"):
    """A struct with a tag."""

    a: int


class Other(msgspec.Struct, tag="o"):
    """Another one, which refers to itself."""

    b: list[Other]


NAMED: list[Pair] = [
    (Point, st.builds(Point, st.integers(), TEXTS)),
    (Pair2, st.fixed_dictionaries({"a": FLOATS, "b": st.lists(TEXTS, max_size=2)})),
    (Tagged | Other, st.builds(Tagged, st.integers()) | st.just(Other([Other([])]))),
    (Other, st.just(Other([Other([]), Other([Other([])])]))),
]


def _inside(pair: Pair) -> st.SearchStrategy[Pair]:
    of, values = pair
    made = msgspec.defstruct("Made", [("a", of), ("b", of | None if isinstance(of, type) else of)], kw_only=True)
    return st.sampled_from(
        [
            (list[of], st.lists(values, max_size=3)),  # type: ignore[valid-type]
            (dict[str, of], st.dictionaries(TEXTS, values, max_size=3)),  # type: ignore[valid-type]
            (tuple[of, int], st.tuples(values, st.integers())),  # type: ignore[valid-type]
            (made, st.builds(made, a=values, b=values)),
        ]
    )


def types_and_values() -> st.SearchStrategy[Pair]:
    """A type and a strategy for its values: no value may be decoded as another type of a union."""
    return st.recursive(st.sampled_from([*SCALARS, *NAMED]), lambda inner: inner.flatmap(_inside), max_leaves=3)
