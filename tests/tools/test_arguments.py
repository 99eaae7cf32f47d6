"""From a model's text to keyword arguments: nothing is repaired, filled, converted or dropped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ToolDefinitionError
from agentloop.tools import ArgumentsRefused, Tool, tool
from agentloop.tools.arguments import FEEDBACK_CHARS


@tool
async def get_note(note_id: int, section: str = "all") -> str:
    """Get one note."""
    return f"{note_id} {section}"


@tool
def take(ratio: float, extra: dict[str, Any]) -> None:
    """Take a ratio and anything."""


@tool
def nothing() -> None:
    """Take nothing."""


raw = Tool.from_schema("raw", "", parameters={"type": "object"}, call=lambda arguments, _: arguments)


def feedback(of: Tool, text: str) -> str:
    with pytest.raises(ArgumentsRefused) as caught:
        of.admit(text)
    assert len(caught.value.feedback) <= FEEDBACK_CHARS < 600
    return caught.value.feedback


def test_good_arguments_arrive_as_they_were_written() -> None:
    """(R154)"""
    assert get_note.admit('{"note_id": 3, "section": "summary"}') == {"note_id": 3, "section": "summary"}


def test_a_default_fills_a_parameter_that_was_not_given() -> None:
    assert get_note.admit('{"note_id": 3}') == {"note_id": 3, "section": "all"}


@pytest.mark.parametrize("text", ["", "null", "{}", " {} "])
def test_no_arguments_are_an_empty_object_and_are_checked(text: str) -> None:
    assert nothing.admit(text) == {}
    assert '"note_id", which is missing' in feedback(get_note, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"note_id": 3',
        '{"note_id": 3,}',
        "{'note_id': 3}",
        '{"note_id": 3} trailing',
        '{"note_id": 3, "note_id": 4}',
        '{"note_id": NaN}',
        '{"note_id": 03}',
        '```json\n{"note_id": 3}\n```',
        '{"note_id": 3, "section": "\\ud800"}',
        '{"note_id": 3, // comment\n}',
        "note_id=3",
        " ",
        "[" * 5_000,
    ],
)
def test_invalid_json_is_refused_with_words_and_never_repaired(text: str) -> None:
    """(R19, R55)"""
    with pytest.raises(ArgumentsRefused) as caught:
        get_note.admit(text)
    assert caught.value.code == "invalid_json"
    assert "at character" in caught.value.feedback


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "an array"), ("3", "an integer"), ('"{}"', "a string"), ("true", "a boolean")]
)
def test_arguments_that_are_no_object_are_refused_by_their_type(text: str, kind: str) -> None:
    with pytest.raises(ArgumentsRefused) as caught:
        get_note.admit(text)
    assert caught.value.code == "not_an_object"
    assert kind in caught.value.feedback


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"note_id": "3"}', "$.note_id does not fit: expected integer, got a string"),
        ('{"note_id": true}', "$.note_id does not fit: expected integer, got a boolean"),
        ('{"note_id": null}', "$.note_id does not fit: expected integer, got null"),
        ('{"note_id": 3.5}', "$.note_id does not fit: expected integer, got a number"),
        ('{"note_id": 3, "section": ["secret"]}', "$.section does not fit: expected string, got an array"),
        ('{"note_id": 3, "sections": "secret"}', 'unknown "sections"; it has "note_id", "section"'),
        ('{"section": "secret"}', 'expected "note_id", which is missing'),
    ],
)
def test_a_mismatch_names_the_argument_what_was_expected_and_what_came(text: str, words: str) -> None:
    """Nothing is converted, stripped or filled to make them fit (R52-R54, R57, R161)."""
    with pytest.raises(ArgumentsRefused) as caught:
        get_note.admit(text)
    assert caught.value.code == "schema_mismatch"
    assert words in caught.value.feedback
    assert "secret" not in caught.value.feedback


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"secret": 1, "secret": 2}', "expected one JSON text at character 14: expected each key once"),
        ('"secret"', "expected one JSON object, got a string"),
        ('{"note_id": 3, "secret": 1}', "$: expected no member that the schema does not name, got 1"),
        ('{"note_id": "secret"}', "$.note_id: expected integer, got a string"),
        ('{"note_id": 1e23}', "$.note_id: expected int, got float"),
    ],
)
def test_the_rule_of_a_refusal_holds_no_word_of_the_arguments(text: str, rule: str) -> None:
    """What the model reads may name a member it wrote; what goes into errors and logs does not."""
    with pytest.raises(ArgumentsRefused) as caught:
        get_note.admit(text)
    assert rule in caught.value.rule
    assert "secret" not in caught.value.rule
    assert (
        ArgumentsRefused("refined", "secret").rule == "expected arguments that the checks of the tool take, got others"
    )


def test_a_schema_tool_gets_what_was_parsed_and_no_default() -> None:
    """(R52-R54)"""
    member = Tool.from_schema(
        "t",
        "",
        parameters={"type": "object", "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": "number"}}},
        call=lambda arguments, _: arguments,
    )
    assert member.admit("{}") == {}
    given = member.admit('{"a": 1.0, "b": -0, "other": {"x": 1e2}}')
    assert json.dumps(given) == '{"a": 1.0, "b": -0.0, "other": {"x": 100.0}}'


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=3),
        st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        max_size=4,
    )
)
def test_numbers_survive_exactly_on_the_way_to_a_tool(numbers: dict[str, int | float]) -> None:
    given_back = raw.admit(json.dumps(numbers))
    assert repr(given_back) == repr(numbers)
    assert repr(take.admit(json.dumps({"ratio": 0.5, "extra": numbers}))["extra"]) == repr(numbers)


def test_big_integers_and_minus_zero_survive() -> None:
    big = 12345678901234567890123456789
    assert get_note.admit(f'{{"note_id": {big}}}')["note_id"] == big
    extra = take.admit('{"ratio": -0.0, "extra": {"x": -0, "y": [-0.0]}}')
    assert math.copysign(1, extra["ratio"]) == -1
    assert repr(extra["extra"]) == "{'x': -0.0, 'y': [-0.0]}"


@pytest.mark.parametrize(("text", "value"), [("3.0", 3), ("1e3", 1000), ("-2E0", -2), ("9007199254740992.0", 2**53)])
def test_an_integral_number_is_the_integer_it_equals(text: str, value: int) -> None:
    """JSON has one number type: JSON Schema counts 1.0 as an integer, and some providers write it so."""
    admitted = get_note.admit(f'{{"note_id": {text}}}')["note_id"]
    assert (type(admitted), admitted) == (int, value)


ROUNDED = ("9007199254740993.0", "3.00000000000000000001", "1e-400", "1e-99999999999999999999")


@pytest.mark.parametrize("text", ["1.5", "1e23", "18014398509481984.0", "-0", "-0.0", *ROUNDED])
def test_a_number_that_is_no_exact_integer_is_refused(text: str) -> None:
    assert "$.note_id does not fit" in feedback(get_note, f'{{"note_id": {text}}}')


def test_an_integral_number_is_taken_only_where_an_integer_is_wanted() -> None:
    class Inner(msgspec.Struct):
        n: int
        any: Any

    @tool
    def f(inner: list[Inner], either: int | str, name: str) -> None:
        """F."""

    admitted = f.admit('{"inner": [{"n": 2.0, "any": 2.0}], "either": 1.0, "name": "1.0"}')
    assert repr(admitted["inner"]) == "[Inner(n=2, any=2.0)]"
    assert (repr(admitted["either"]), admitted["name"]) == ("1", "1.0")
    assert "$.name" in feedback(f, '{"inner": [], "either": 1.0, "name": 1.0}')


def test_an_integer_that_no_float_holds_is_refused_with_words() -> None:
    assert take.admit('{"ratio": 9007199254740992, "extra": {}}')["ratio"] == 2.0**53
    assert "$.ratio does not fit: expected a value that the tool's type holds exactly" in feedback(
        take, '{"ratio": 9007199254740993, "extra": {}}'
    )


def test_a_type_that_changes_its_arguments_ends_the_run() -> None:
    """(R59)"""

    class Lowered(msgspec.Struct):
        name: str

        def __post_init__(self) -> None:
            self.name = self.name.lower()

    @tool
    def f(who: Lowered) -> None:
        """F."""

    assert f.admit('{"who": {"name": "ada"}}')["who"].name == "ada"
    with pytest.raises(ToolDefinitionError) as caught:
        f.admit('{"who": {"name": "Ada"}}')
    assert caught.value.code == "bad_tool"
    assert "changed $.who.name" in caught.value.rule
    assert "Ada" not in str(caught.value)


def test_code_of_a_type_that_breaks_ends_the_run_and_one_that_refuses_is_feedback() -> None:
    """A ValueError is a type's way to refuse a value; anything else is its fault (R58)."""

    class Even(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n == 0:
                raise KeyError("broken")
            if self.n % 2:
                raise ValueError("expected an even number")

    @tool
    def f(even: Even) -> None:
        """F."""

    assert f.admit('{"even": {"n": 2}}')["even"].n == 2
    assert "$.even does not fit: expected an even number" in feedback(f, '{"even": {"n": 1}}')
    with pytest.raises(ToolDefinitionError, match="KeyError"):
        f.admit('{"even": {"n": 0}}')


def test_feedback_stays_short_however_long_the_arguments_are() -> None:
    for text in (
        json.dumps({"k" * 100_000: 1}),
        json.dumps({str(n): n for n in range(5_000)}),
        json.dumps({"note_id": "x" * 100_000}),
        '{"note_id": ' + "9" * 5_000 + "}",
        "x" * 100_000,
    ):
        assert "xxxxxxxxxxx" not in feedback(get_note, text)


def test_the_schema_check_is_made_once_and_when_first_needed() -> None:
    made = []

    def make() -> Callable[[Any], None]:
        made.append(1)
        return lambda value: None

    from agentloop.tools.arguments import Arguments

    arguments = Arguments("t", make, None)
    assert not made
    arguments.admit("{}")
    arguments.admit("{}")
    assert made == [1]
