"""Plain values: exact types only."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

from agentloop.admission import is_unicode, require_plain
from agentloop.errors import AdmissionError


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Items(list[Any]):
    pass


class Table(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise AssertionError("asked")


class Flag(enum.IntEnum):
    ON = 1


class Liar:
    """Claims to be a dict wherever a class can claim anything."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return dict


@pytest.mark.parametrize(
    "value", [Text("a"), Number(1), Real(1.0), Items(), Table(), Flag.ON, Liar(), (), {1}, 1j, b""]
)
def test_subclasses_proxies_and_other_types_are_refused(value: Any) -> None:
    """Nothing that may answer differently the second time gets in (R43, R44, R46)."""
    with pytest.raises(AdmissionError) as caught:
        require_plain({"a": [0, value]})
    assert caught.value.path == "$.a[1]"
    assert type(value).__name__ in caught.value.rule


def test_the_same_object_comes_back() -> None:
    value = {"a": [1, 2.5, "x", None, True, {"b": []}]}
    assert require_plain(value) is value


def test_a_container_may_occur_twice_without_a_cycle() -> None:
    shared = [1]
    assert require_plain([shared, shared, {"a": shared}])


def test_cycles_are_refused_however_long() -> None:
    """(R45)"""
    a: dict[str, Any] = {}
    b = [a]
    a["b"] = {"c": b}
    with pytest.raises(AdmissionError, match=r"^\$\.b\.c\[0\]: expected no cycle$"):
        require_plain(a)


def test_depth_and_count_are_bounded_without_recursion() -> None:
    """(R107)"""
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    with pytest.raises(AdmissionError, match="64 levels"):
        require_plain(value)
    assert require_plain(value, max_depth=5_001) is value
    with pytest.raises(AdmissionError, match=r"^\$\[2\]: expected at most 3 values, got more$"):
        require_plain([1, 2, 3], max_values=3)


def test_numbers_and_keys_have_rules() -> None:
    for value in (math.nan, math.inf, 10**4300, -(10**4300), "\udfff", {"\ud800": 1}, {1: 1}, {Text("a"): 1}):
        with pytest.raises(AdmissionError):
            require_plain(value)
    assert require_plain(10**4300 - 1)


def test_a_path_begins_where_the_caller_says() -> None:
    with pytest.raises(AdmissionError, match=r"^\$\.arguments\.a: expected a finite number$"):
        require_plain({"a": math.nan}, "$.arguments")


def test_a_key_that_is_no_name_is_shown_by_its_length() -> None:
    """(R47)"""
    with pytest.raises(AdmissionError) as caught:
        require_plain({"my SECRET": math.nan})
    assert caught.value.path == "$[key of 9 characters]"


def test_unicode_is_scalars_only() -> None:
    assert is_unicode("aé😀\U0010ffff")
    assert not is_unicode("a\ud800")
