"""Canonical JSON: RFC 8785 with exact integers and a kept minus zero."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.admission import canonical, canonical_text, parse
from agentloop.errors import AdmissionError

# RFC 8785 appendix B: the bits of a double and its canonical form. Its "-0" row reads "0" there.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "-0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal values; a float may have come back as the integer of its digits, signs of zero must agree."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return float(b) == a and math.copysign(1, b) == math.copysign(1, a)
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_doubles_are_written_as_the_rfc_samples_say(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_text(value) == text
    assert same(value, parse(text))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_has_no_canonical_form(value: float) -> None:
    """(R46)"""
    with pytest.raises(AdmissionError, match=r"^\$\.a\[0\]: expected a finite number$"):
        canonical({"a": [value]})


def test_keys_are_sorted_by_utf_16_code_units() -> None:
    """The sample of RFC 8785 section 3.2.3: an emoji sorts before U+FB33."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    wanted = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(names, 0)))) == wanted


def test_strings_escape_only_what_they_must() -> None:
    assert (
        canonical('\u20ac$\u000f\nA\'B"\\\\"/\x7f\b\t\f\r')
        == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\\b\\t\\f\\r"'.encode()
    )


def test_white_space_and_nesting_are_fixed() -> None:
    assert canonical({"b": [1, {}, []], "a": {"y": None, "x": True}}) == b'{"a":{"x":true,"y":null},"b":[1,{},[]]}'


def test_integers_are_exact_and_minus_zero_stays() -> None:
    """(R89)"""
    big = 10**40 + 1
    assert canonical([big, -big, 0, -0.0, 0.0]) == f"[{big},-{big},0,-0,0]".encode()
    assert canonical(0) != canonical(-0.0)


@given(values)
def test_reading_the_canonical_form_gives_the_value_again(value: Any) -> None:
    text = canonical(value)
    back = parse(text)
    assert same(value, back)
    assert canonical(back) == text


@given(st.dictionaries(texts, values, min_size=2), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(floats)
def test_a_double_is_written_with_its_shortest_digits(value: float) -> None:
    digits = canonical_text(value).lower().partition("e")[0].strip("-0").replace(".", "").strip("0")
    shortest = repr(value).partition("e")[0].strip("-0").replace(".", "").strip("0")
    assert digits == shortest


class Words(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {1: 2}}, "$.a"),
        ({"a": (1,)}, "$.a"),
        ([b"x"], "$[0]"),
        ({"a": [Words()]}, "$.a[0]"),
        ([object()], "$[0]"),
        (["\ud800"], "$[0]"),
        ({"\ud800": 1}, "$"),
        ([10**4300], "$[0]"),
        ({"b": 1, "a": {"c": {1, 2}}}, "$.a.c"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_path(value: Any, path: str) -> None:
    """(R46, R47)"""
    with pytest.raises(AdmissionError) as caught:
        canonical(value)
    assert caught.value.path == path
    assert caught.value.__context__ is None


def test_a_cycle_is_refused() -> None:
    """(R45)"""
    value: dict[str, Any] = {"a": []}
    value["a"].append(value)
    with pytest.raises(AdmissionError, match=r"^\$\.a\[0\]: expected no cycle$"):
        canonical(value)


def test_deeper_than_64_levels_is_refused() -> None:
    """(R107)"""
    value: list[Any] = []
    for _ in range(63):
        value = [value]
    assert canonical(value) == b"[" * 64 + b"]" * 64
    with pytest.raises(AdmissionError, match="64 levels"):
        canonical([value])
