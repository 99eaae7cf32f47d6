"""Strict JSON: one text, one value, or a refusal that says where and why."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.admission import parse
from agentloop.admission.json_fault import find_fault
from agentloop.errors import AdmissionError, InputError

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def verdict(text: str | bytes) -> AdmissionError | None:
    try:
        parse(text)
    except AdmissionError as error:
        return error
    return None


def refused(text: str | bytes, **limits: int) -> AdmissionError:
    with pytest.raises(AdmissionError) as caught:
        parse(text, **limits)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        (" [true, false]\n", [True, False]),
        (b'{"a": {"b": []}}', {"a": {"b": []}}),
        ('"\\u00e9\\n\\/"', "é\n/"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\\\ud800"', "\\ud800"),
        ('"{[,:-0 NaN"', "{[,:-0 NaN"),
        ("1.5e3", 1500.0),
        ('{"a":1,"A":2,"":3}', {"a": 1, "A": 2, "": 3}),
        ('{"x":{"a":1},"y":{"a":1}}', {"x": {"a": 1}, "y": {"a": 1}}),
    ],
)
def test_plain_json_is_read(text: str | bytes, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "path", "position", "word"),
    [
        ('{"a":1,"a":1}', "$.a", 7, "duplicate"),
        ('{"x":[0,{"b":{"c":1,"d":2,"c":3}}]}', "$.x[1].b.c", 26, "duplicate"),
        ('{"a":1,"\\u0061":2}', "$.a", 7, "duplicate"),
        ('[{"q r":1,"q r":2}]', "$[0][key of 3 characters]", 10, "duplicate"),
        ("[1,NaN]", "$[1]", 3, "NaN"),
        ('{"a":-Infinity}', "$.a", 5, "Infinity"),
        ("[Infinity]", "$[0]", 1, "Infinity"),
        ("[1e400]", "$[0]", 1, "double"),
        ('{"n":[-1.5E+999]}', "$.n[0]", 6, "double"),
        ('["\\ud800"]', "$[0]", 2, "surrogate"),
        ('{"k":"ab\\udc00"}', "$.k", 8, "surrogate"),
        ('"\\ud83d\\ud83d\\ude00"', "$", 1, "surrogate"),
        ('{"\\ud800":1}', "$", 2, "surrogate"),
        ('"\ud800"', "$", 1, "surrogate"),
        ("{} x", "$", 3, "end of the text"),
        ("{}{}", "$", 2, "end of the text"),
        ("\ufeff{}", "$", 0, "byte order mark"),
        (b"\xef\xbb\xbf{}", "$", 0, "byte order mark"),
        (b'{"a":"\xc3\xa9\xff"}', "$", 7, "UTF-8"),
        (b'"\xed\xa0\x80"', "$", 1, "UTF-8"),
        ("", "$", 0, "end of the text"),
        ("  ", "$", 2, "end of the text"),
        ("{", "$", 1, "key"),
        ('{"a"}', "$.a", 4, "':'"),
        ('{"a":1,}', "$", 7, "key"),
        ("[1,]", "$[1]", 3, "value"),
        ("[1 2]", "$[0]", 3, "','"),
        ("01", "$", 1, "end of a number"),
        ("1.", "$", 1, "end of a number"),
        ("-", "$", 1, "digit"),
        ("+1", "$", 0, "value"),
        ("'a'", "$", 0, "value"),
        ('"a\tb"', "$", 2, "control character"),
        ('"\\x41"', "$", 1, "bad escape"),
        ('"\\u12"', "$", 1, "bad escape"),
        ('"abc', "$", 4, "closing quote"),
        ("tru", "$", 0, "value"),
        ("/* no */ 1", "$", 0, "value"),
        ("```json\n{}```", "$", 0, "got '`'"),
        ("[<a>]", "$[0]", 1, "got '<'"),
        ("{'a': 1}", "$", 1, 'got "\'"'),
        ("[s]", "$[0]", 1, "got a letter or digit"),
        ("[\x7f]", "$[0]", 1, "got another character"),
        ("[é]", "$[0]", 1, "got another character"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_path_rule_and_position(
    text: str | bytes, path: str, position: int, word: str
) -> None:
    """Arguments that are no JSON are refused, never repaired (R19, R46)."""
    error = refused(text)
    assert (error.path, error.position) == (path, position)
    assert word in error.rule


def test_a_refused_text_is_refused_as_an_input_error_that_holds_none_of_it() -> None:
    """(R47)"""
    error = refused('{"SECRET word":"SECRET",,}')
    assert isinstance(error, InputError)
    assert isinstance(error, ValueError)
    for shown in (str(error), repr(error), repr(error.__cause__), repr(error.__context__)):
        assert "SECRET" not in shown


@pytest.mark.parametrize("literal", ["-0", "-0.0", "-0e5"])
def test_the_sign_of_zero_survives(literal: str) -> None:
    """(R89)"""
    value = parse(f"[{literal}]")[0]
    assert type(value) is float
    assert math.copysign(1, value) == -1


def test_integers_are_exact_up_to_4300_digits() -> None:
    """(R89)"""
    forty = "1234567890" * 4
    assert parse(forty) == int(forty)
    assert parse(f'{{"a":[-{"9" * 4300}]}}') == {"a": [-int("9" * 4300)]}
    assert "4300" in refused("7" * 4301).rule
    assert refused(f'{{"a":-{"7" * 5000}}}').path == "$.a"


def test_the_digit_limit_is_ours_when_the_interpreter_has_another() -> None:
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        assert "4300" in refused("7" * 4301).rule
        sys.set_int_max_str_digits(700)
        assert "700" in refused("7" * 701).rule
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000]
)
def test_deep_nesting_is_a_typed_error(text: str) -> None:
    error = refused(text)
    assert "64 levels" in error.rule
    assert error.position == text.index(text[0], 0) + 64 * (len('{"a":') if text[0] == "{" else 1)


def test_deep_nesting_is_a_typed_error_also_under_a_raised_recursion_limit() -> None:
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(1_000_000)
        assert "64 levels" in refused("[" * 100_000 + "]" * 100_000).rule
        assert "64 levels" in refused('["[",' * 100_000).rule
        assert len(parse("[" + "[]," * 5_000 + "[]]")) == 5_001
    finally:
        sys.setrecursionlimit(before)


def test_sixty_four_levels_are_admitted_and_one_more_is_not() -> None:
    """(R107)"""
    assert parse("[" * 64 + "]" * 64) is not None
    assert "64 levels" in refused("[" * 65 + "]" * 65).rule
    assert parse('["' + "[" * 100 + '"]') == ["[" * 100]
    assert parse("[{}]", max_depth=2) == [{}]
    assert refused("[{}]", max_depth=1).path == "$[0]"
    assert refused("[]", max_depth=0).path == "$"


def test_values_are_counted_without_keys() -> None:
    """(R107)"""
    assert parse('{"a":1,"b":[2,",,,["]}', max_values=5) == {"a": 1, "b": [2, ",,,["]}
    error = refused('{"a":1,"b":[2,3]}', max_values=4)
    assert (error.path, error.rule) == ("$.b[1]", "expected at most 4 values, got more")
    assert len(parse("[" + "0," * 99_998 + "0]")) == 99_999
    assert "100000 values" in refused("[" + "0," * 99_999 + "0]").rule


def test_size_is_counted_in_bytes() -> None:
    """(R107)"""
    assert parse('"é"', max_bytes=4) == "é"
    assert "3 bytes" in refused('"é"', max_bytes=3).rule
    assert "3 bytes" in refused('"é"'.encode(), max_bytes=3).rule
    assert "got at least 5" in refused("12345", max_bytes=4).rule


@pytest.mark.parametrize("value", [None, 1, bytearray(b"1"), {"a": 1}, memoryview(b"1"), type("S", (str,), {})("1")])
def test_only_str_and_bytes_are_texts(value: Any) -> None:
    assert "expected JSON text as str or bytes" in refused(value).rule


@given(values)
def test_what_the_standard_library_writes_is_read_back(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse(text) == value
        assert parse(text.encode()) == value


@given(values, st.data())
def test_the_fast_reader_and_the_slow_scanner_admit_the_same_language(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    edit = data.draw(
        st.sampled_from(['"', "{", "}", "[", "]", ",", ":", "-", "0", "e", ".", "\\", "\\ud800", "NaN", " ", "\x0b"])
    )
    text = text[:at] + edit + text[at + data.draw(st.integers(0, 2)) :]
    fault, error = find_fault(text, max_depth=64, max_values=100_000), verdict(text)
    assert (error is None) == (fault is None)
    if error is not None and fault is not None:
        assert (fault.path, fault.rule, fault.position) == (error.path, error.rule, error.position)
        assert 0 <= (error.position or 0) <= len(text)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_an_admission_error(data: bytes) -> None:
    error = verdict(data)
    assert error is None or error.path.startswith("$")
