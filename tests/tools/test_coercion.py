"""What a model wrote in another JSON type is converted where its meaning is beyond doubt, and nowhere else."""

from __future__ import annotations

import json
import math
import random
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.admission import canonical, canonical_text, parse
from agentloop.errors import InputError, ToolDefinitionError
from agentloop.limits import JSON_DEPTH
from agentloop.tools import ArgumentsRefused, Tool, ToolPolicy, ToolSet, selection, tool
from agentloop.tools.coercion import CONVERSION_CHARS, CONVERSIONS, Coercion
from agentloop.tools.schema import admit_schema
from agentloop.tools.validator import SchemaMismatch, compile_check

from .schemas import random_root, random_value

COERCE = ToolPolicy(coerce=True)


class Place(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    floor: int | None = None


@tool(coerce=True)
def order(count: int, ratio: float = 1.0, note: str = "", urgent: bool = False) -> str:
    """Order something."""
    return f"{count} {ratio} {note} {urgent}"


@tool(coerce=True)
def visit(place: Place, tags: list[str] = [], at: int | None = None, when: int | str = "") -> str:  # noqa: B006
    """Visit a place."""
    return place.name


def of_schema(parameters: dict[str, Any], *, coerce: bool = True) -> Tool:
    policy = ToolPolicy(coerce=coerce)
    return Tool.from_schema("t", "", parameters=parameters, call=lambda arguments, _: arguments, policy=policy)


def of_member(schema: dict[str, Any], *, coerce: bool = True) -> Tool:
    return of_schema({"type": "object", "properties": {"a": schema}}, coerce=coerce)


def converted(schema: dict[str, Any], text: str) -> tuple[Any, tuple[str, ...]]:
    """What a member ``a`` of that schema becomes, and what is told."""
    got, told = of_member(schema).admitted(f'{{"a":{text}}}')
    return got["a"], told


def refused(of: Tool, text: str) -> str:
    with pytest.raises(ArgumentsRefused) as caught:
        of.admit(text)
    return caught.value.feedback


# -- what is converted


@pytest.mark.parametrize(
    ("schema", "text", "value", "told"),
    [
        ({"type": "integer"}, '"3"', 3, "string to integer"),
        ({"type": "integer"}, '"-12"', -12, "string to integer"),
        ({"type": "integer"}, '"3.0"', 3, "string to integer"),
        ({"type": "integer"}, '"2e3"', 2000, "string to integer"),
        ({"type": "integer"}, '"123456789012345678901234567890"', 123456789012345678901234567890, "string to integer"),
        ({"type": "number"}, '"3"', 3, "string to integer"),
        ({"type": "number"}, '"0.1"', 0.1, "string to number"),
        ({"type": "number"}, '"3.0"', 3.0, "string to number"),
        ({"type": "boolean"}, '"true"', True, "string to boolean"),
        ({"type": "boolean"}, '"false"', False, "string to boolean"),
        ({"type": "null"}, '"null"', None, "string to null"),
        ({"type": ["integer", "null"]}, '"null"', None, "string to null"),
        ({"type": ["integer", "null"]}, '"7"', 7, "string to integer"),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, '"true"', True, "string to boolean"),
        ({"enum": [1, 2]}, '"2"', 2, "string to integer"),
        ({"const": True}, '"true"', True, "string to boolean"),
        ({"type": "string"}, "12", "12", "integer to string"),
        ({"type": "string"}, "1.50", "1.50", "number to string"),
        ({"type": "string"}, "1e3", "1e3", "number to string"),
        ({"type": "string"}, "-0", "-0", "number to string"),
        ({"type": "string"}, "123456789012345678901234567890", "123456789012345678901234567890", "integer to string"),
        ({"type": "string"}, "true", "true", "boolean to string"),
        ({"type": ["string", "null"]}, "false", "false", "boolean to string"),
        ({"enum": ["1", "2"]}, "1", "1", "integer to string"),
        ({"type": "object"}, '"{\\"b\\": [1]}"', {"b": [1]}, "string to object"),
        ({"type": "array"}, '" [1, 2]\\n"', [1, 2], "string to array"),
        ({"type": ["array", "object", "null"]}, '"[]"', [], "string to array"),
        ({"type": "integer"}, "3.0", 3, "number to integer"),
        ({"type": "integer"}, "9007199254740992.0", 2**53, "number to integer"),
    ],
)
def test_a_value_of_another_type_is_converted_and_told(
    schema: dict[str, Any], text: str, value: object, told: str
) -> None:
    got, lines = converted(schema, text)
    assert (got, type(got)) == (value, type(value))
    assert lines == (f"$.a: {told}",)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, '" 3"'),
        ({"type": "integer"}, '"3 "'),
        ({"type": "integer"}, '"+3"'),
        ({"type": "integer"}, '"03"'),
        ({"type": "integer"}, '"3."'),
        ({"type": "integer"}, '"1_000"'),
        ({"type": "integer"}, '"\\u0663"'),
        ({"type": "integer"}, '"3\\n"'),
        ({"type": "integer"}, '"3.5"'),
        ({"type": "integer"}, '"-0"'),
        ({"type": "integer"}, '"-0.0"'),
        ({"type": "integer"}, '"9007199254740993.0"'),
        ({"type": "integer"}, '"1e-400"'),
        ({"type": "integer"}, '"true"'),
        ({"type": "integer"}, "true"),
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, '""'),
        ({"type": "number"}, '"1e400"'),
        ({"type": "number"}, '"NaN"'),
        ({"type": "number"}, '"' + "9" * 4301 + '"'),
        ({"type": "boolean"}, '"True"'),
        ({"type": "boolean"}, '"yes"'),
        ({"type": "boolean"}, "1"),
        ({"type": "boolean"}, '"1"'),
        ({"type": "null"}, '""'),
        ({"type": "null"}, '"None"'),
        ({"type": "string"}, "null"),
        ({"type": "string"}, "[]"),
        ({"type": "string", "contentEncoding": "base64"}, "1234"),
        ({"type": ["string", "array"]}, "5"),
        ({"type": "object"}, "\"{'b': 1}\""),
        ({"type": "object"}, '"{\\"b\\": 1,}"'),
        ({"type": "object"}, '"{\\"b\\": 1, \\"b\\": 1}"'),
        ({"type": "object"}, '"{} {}"'),
        ({"type": "object"}, '"[1]"'),
        ({"type": "object"}, '"{\\"b\\": NaN}"'),
        ({"type": ["object", "integer"]}, '"{}"'),
        ({"type": "array"}, "3"),
        ({"type": "array", "items": {"type": "integer"}}, '"[\\"x\\"]"'),
        ({"type": "integer", "maximum": 2}, '"3"'),
        ({"enum": [1, 2]}, '"3"'),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, '"3"'),
        ({"type": "integer", "not": {"const": 3}}, '"3"'),
    ],
)
def test_what_has_no_sure_meaning_is_refused_in_the_words_of_a_tool_that_converts_nothing(
    schema: dict[str, Any], text: str
) -> None:
    """(R19, R53, R57)"""
    arguments = f'{{"a":{text}}}'
    assert refused(of_member(schema), arguments) == refused(of_member(schema, coerce=False), arguments)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["integer", "string"]}, '"3"'),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"3"'),
        ({"enum": ["auto", 1]}, '"auto"'),
        ({}, '"3"'),
        ({"not": {"type": "array"}}, '"3"'),
        ({"type": "string"}, '"true"'),
        ({"type": "number"}, "3.0"),
        ({"type": ["number", "string"]}, "3"),
        ({"type": "integer"}, "-0.0"),
        ({"type": "integer"}, "9007199254740993.0"),
        ({"type": "integer"}, "1e20"),
        ({"type": "object"}, '{"b": "3"}'),
    ],
)
def test_what_the_schema_takes_stays_as_it_is(schema: dict[str, Any], text: str) -> None:
    got, told = converted(schema, text)
    assert told == ()
    assert canonical(got) == canonical(parse(text))
    assert type(got) is type(parse(text))


def test_a_typed_function_gets_its_types() -> None:
    got = order.admitted('{"count": "3", "ratio": "0.5", "note": 1.50, "urgent": "true"}')
    assert got.arguments == {"count": 3, "ratio": 0.5, "note": "1.50", "urgent": True}
    assert got.converted == (
        "$.count: string to integer",
        "$.ratio: string to number",
        "$.note: number to string",
        "$.urgent: string to boolean",
    )
    assert order.admit('{"count": "3"}') == {"count": 3, "ratio": 1.0, "note": "", "urgent": False}


def test_the_walk_follows_references_members_items_and_the_one_branch_that_fits() -> None:
    text = '{"place": "{\\"name\\": 7, \\"floor\\": \\"2\\"}", "tags": [1, "b", true], "at": "null", "when": "3"}'
    got = visit.admitted(text)
    assert got.arguments == {"place": Place("7", 2), "tags": ["1", "b", "true"], "at": None, "when": "3"}
    assert got.converted == (
        "$.place: string to object",
        "$.place.name: integer to string",
        "$.place.floor: string to integer",
        "$.tags[0]: integer to string",
        "$.tags[2]: boolean to string",
        "$.at: string to null",
    )


def test_arguments_that_were_encoded_twice_are_one_object() -> None:
    got = order.admitted(json.dumps('{"count": "3"}'))
    assert got.arguments["count"] == 3
    assert got.converted == ("$: string to object", "$.count: string to integer")
    assert "must be one JSON object, got a string" in refused(order, json.dumps("[1]"))


def test_several_branches_that_fit_leave_what_is_inside_alone() -> None:
    branch = {"type": "object", "properties": {"n": {"type": "integer"}}}
    other = {"type": "object", "properties": {"m": {"type": "integer"}}}
    assert converted({"oneOf": [branch, {"type": "null"}]}, '{"n": "3"}')[0] == {"n": 3}
    assert "$.a" in refused(of_member({"anyOf": [branch, other]}), '{"a": {"n": "3", "m": "3"}}')
    assert converted({"anyOf": [branch, {**other, "properties": {}}]}, '{"n": "3"}') == ({"n": "3"}, ())


class Cash(msgspec.Struct, tag="cash"):
    cents: int


class Card(msgspec.Struct, tag="card"):
    cents: int
    number: str


@pytest.mark.parametrize(
    ("text", "value", "told"),
    [
        ('{"type": "cash", "cents": "5"}', Cash(5), 1),
        ('{"type": "card", "cents": "5", "number": 4111}', Card(5, "4111"), 2),
        ('{"type": "gold", "cents": "5", "number": 4111}', None, 0),
        ('{"cents": "5"}', None, 0),
        ('{"type": 1, "cents": "5"}', None, 0),
    ],
)
def test_a_tag_says_which_branch_it_is(text: str, value: object, told: int) -> None:
    @tool(coerce=True)
    def pay(by: Cash | Card) -> str:
        """Pay."""
        return str(by)

    if value is None:
        assert "$.by" in refused(pay, f'{{"by": {text}}}')
    else:
        got = pay.admitted(f'{{"by": {text}}}')
        assert got.arguments == {"by": value}
        assert len(got.converted) == told


def test_a_tag_is_one_of_a_few_texts() -> None:
    one = {"type": "object", "properties": {"k": {"const": "a"}, "n": {"type": "integer"}}}
    members = [{"enum": ["b"]}, {"enum": ["b", 1]}, {"const": 1}, {"type": "string"}, {"enum": ["a", "b"]}, True]
    taken = []
    for member in members:
        other = {"type": "object", "properties": {"k": member, "n": {"type": "boolean"}}}
        told = _admitted(of_member({"anyOf": [one, other]}), '{"a": {"k": "a", "n": "3"}}')[1]
        taken.append(told == ("$.a.n: string to integer",))
    assert taken == [True, False, False, False, False, False]


def test_members_are_judged_by_name_by_pattern_and_by_what_is_left() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "patternProperties": {"^x": {"type": "boolean"}, "^xn": {"enum": [True]}},
        "additionalProperties": {"type": "number"},
    }
    got = of_schema(schema).admitted('{"n": "1", "xy": "false", "xn": "true", "Jane": "2", "x y": "true"}')
    assert got.arguments == {"n": 1, "xy": False, "xn": True, "Jane": 2, "x y": True}
    assert got.converted == (  # a name that the schema does not declare may be what a model wrote of somebody
        "$.n: string to integer",
        "$[key of 2 characters]: string to boolean",
        "$[key of 2 characters]: string to boolean",
        "$[key of 4 characters]: string to integer",
        "$[key of 3 characters]: string to boolean",
    )


def test_items_are_judged_by_their_place() -> None:
    first = [{"type": "integer"}, {"type": "boolean"}]
    for schema in (
        {"type": "array", "prefixItems": first, "items": {"type": "null"}},
        {"type": "array", "items": first, "additionalItems": {"type": "null"}},
    ):
        assert converted(schema, '["1", "true", "null"]')[0] == [1, True, None]
    assert converted({"type": "array", "items": first}, '["1", "true", "3"]')[0] == [1, True, "3"]


def test_parts_that_hold_together_are_asked_together() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/n"}, {"type": ["integer", "string"]}]}
    root = {"type": "object", "properties": {"a": schema}, "$defs": {"n": {"type": ["integer", "null"]}}}
    assert of_schema(root).admitted('{"a": "3"}') == ({"a": 3}, ("$.a: string to integer",))


def test_a_schema_of_newer_rules_converts_too() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#n"}, "b": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"$anchor": "n", "type": "integer"}},
    }
    got = of_schema(schema)
    assert got.admit('{"b": "3"}') == {"b": 3}
    assert "$.a" in refused(got, '{"a": "3"}')  # an anchor is not followed


# -- all or nothing


def test_a_refusal_speaks_of_what_the_model_wrote() -> None:
    """(R55, R57)"""
    text = '{"count": "3", "note": 5, "urgent": "maybe"}'
    assert refused(order, text) == refused(of_order(), text)


def of_order() -> Tool:
    @tool(name="order")
    def plain(count: int, ratio: float = 1.0, note: str = "", urgent: bool = False) -> str:
        """Order something."""
        return ""

    return plain


def test_a_decode_that_refuses_what_was_converted_speaks_of_what_was_written() -> None:
    @tool(coerce=True)
    def book(day: Literal["1", "2"], nights: Annotated[int, msgspec.Meta(le=3)]) -> str:
        """Book a room."""
        return day

    assert book.admit('{"day": 1, "nights": "3"}') == {"day": "1", "nights": 3}
    assert "got an integer" in refused(book, '{"day": 1, "nights": "4"}')  # of the day


def test_texts_within_texts_keep_the_limits_together() -> None:
    deep = of_member({"type": "array"})
    for levels, taken in ((JSON_DEPTH - 1, True), (JSON_DEPTH, False)):
        text = json.dumps({"a": "[" * levels + "]" * levels})
        if taken:
            assert deep.admitted(text).converted == ("$.a: string to array",)
        else:
            assert "$.a does not fit: expected array, got a string" in refused(deep, text)
    many = of_schema({"type": "object", "additionalProperties": {"type": "array"}})
    half = "[" + ",".join(["1"] * 60_000) + "]"
    assert len(many.admit(json.dumps({"a": half}))["a"]) == 60_000
    assert "array" in refused(many, json.dumps({"a": half, "b": half}))


def test_deep_texts_within_deep_texts_are_read_no_deeper_than_one_may_be() -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    of = of_schema({"type": "object", "properties": {"a": tree}, "$defs": {"tree": tree}})
    text = "[]"
    for _ in range(10):
        text = "[" * 60 + json.dumps(text) + "]" * 60
    assert "expected array, got a string" in refused(of, json.dumps({"a": text}))


def test_a_pattern_of_names_is_read_as_the_check_reads_it() -> None:
    schema = {"type": "object", "patternProperties": {"^n$": {"type": "integer"}}, "additionalProperties": {}}
    coercion = Coercion(admit_schema("t", schema).text)
    assert coercion.convert({"n": "3"}, "").value == {"n": 3}
    assert coercion.convert({"n\n": "3"}, "").value == {"n\n": "3"}


def test_the_record_is_bounded_and_holds_no_value() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    told = of_schema(schema).admitted(json.dumps({"a": [str(7_000 + n) for n in range(40)]})).converted
    assert len(told) == CONVERSIONS
    assert told[-1] == f"and {40 - CONVERSIONS + 1} more"
    assert "700" not in str(told)
    exact = of_schema(schema).admitted(json.dumps({"a": ["1"] * CONVERSIONS})).converted
    assert exact[-1] == f"$.a[{CONVERSIONS - 1}]: string to integer"
    inner: dict[str, Any] = {"type": "integer"}
    value: Any = "1"
    for _ in range(20):
        inner, value = (
            {"type": "object", "properties": {"member_of_a_long_name": inner}},
            {"member_of_a_long_name": value},
        )
    (line,) = of_schema(inner).admitted(json.dumps(value)).converted
    assert len(line) == CONVERSION_CHARS
    assert line.endswith("…: string to integer")


# -- who asks for it


def test_nothing_is_converted_unless_the_tool_asks_for_it() -> None:
    """(R53, R175)"""
    assert "count" in refused(of_order(), '{"count": "3"}')
    assert of_order().admitted('{"count": 3.0}') == ({"count": 3, "ratio": 1.0, "note": "", "urgent": False}, ())
    with pytest.raises(InputError, match=r"ToolPolicy.coerce: expected a bool, got int"):
        ToolPolicy(coerce=1)  # type: ignore[arg-type]


def test_a_selection_may_ask_for_it() -> None:
    @selection(coerce=True)
    def pick(n: int) -> int:
        """Pick one."""
        return n * 2

    made = Tool.selection(
        "made",
        "",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
        resolve=lambda arguments, _: arguments["n"],
        coerce=True,
    )
    assert pick.resolve('{"n": "4"}', stage_id="s") == 8
    assert made.resolve('{"n": "4"}', stage_id="s") == 4


def test_the_pipeline_calls_a_tool_with_what_was_converted() -> None:
    assert al.ToolPipeline().invoke(order, {"count": "2"}).value == "2 1.0  False"


def test_the_digest_of_a_catalogue_covers_it_and_is_as_before_without_it() -> None:
    """(R67)"""
    schema = {"type": "object"}
    plain, asking = of_schema(schema, coerce=False), of_schema(schema)
    assert ToolSet([plain]).digest != ToolSet([asking]).digest
    assert "coerce" not in plain.digest_basis


# -- properties


def _texts(value: Any) -> Any:
    """The same value with its scalars, or its containers, written as texts here and there."""
    if type(value) is dict:
        return {name: _texts(item) for name, item in value.items()}
    if type(value) is list:
        return [_texts(item) for item in value]
    return value if type(value) is str else json.dumps(value)


@given(st.integers(0, 2**32))
@settings(max_examples=400)
def test_a_value_that_the_schema_takes_is_never_another_and_twice_is_as_once(seed: int) -> None:
    source = random.Random(seed)
    root = random_root(source)
    try:
        admitted = admit_schema("t", root)
        check = compile_check("t", admitted)
    except ToolDefinitionError:
        return
    coercion = Coercion(admitted.text)
    value = random_value(source)
    for given_value in (value, _texts(value), {"a": value}, {"a": _texts(value)}, {"a": json.dumps(value)}):
        text = canonical_text(given_value)
        read = parse(text)
        coerced = coercion.convert(read, text)
        made, told = coerced.value, coerced.told
        assert canonical(read) == canonical(parse(text))  # what was given is not changed
        assert len(told) <= CONVERSIONS
        if not told:
            assert made is read or canonical(made) == canonical(read)
        if _fits(check, read):
            assert made == read  # 3.0 may be 3
            assert all(line.endswith(": number to integer") for line in told)
        again = canonical_text(made)
        assert canonical(coercion.convert(parse(again), again).value) == canonical(made)


def _fits(check: Any, value: Any) -> bool:
    try:
        check(value)
    except SchemaMismatch:
        return False
    return True


@given(st.integers(0, 2**32))
@settings(max_examples=400)
def test_arguments_are_converted_as_a_whole_or_refused_as_they_are(seed: int) -> None:
    source = random.Random(seed)
    root = random_root(source)
    try:
        asking, plain = of_schema(root), of_schema(root, coerce=False)
    except ToolDefinitionError:
        return
    value = random_value(source)
    for text in (canonical_text({"a": value}), canonical_text({"a": _texts(value)}), canonical_text(_texts(value))):
        expected, _ = _admitted(plain, text)
        got, told = _admitted(asking, text)
        assert got == expected or (told and type(expected) is str)
        if type(got) is dict:
            again = asking.admitted(canonical_text(got))
            assert canonical(again.arguments) == canonical(got)


def _admitted(of: Tool, text: str) -> tuple[Any, tuple[str, ...]]:
    """The arguments and what was converted; or the feedback."""
    try:
        return of.admitted(text)
    except ArgumentsRefused as error:
        return error.feedback, ()


@given(number=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30))
def test_a_number_in_a_string_is_that_number(number: float) -> None:
    text = json.dumps(number)
    got, told = converted({"type": "number"}, json.dumps(text))
    assert told
    assert (got, math.copysign(1, got), type(got)) == (number, math.copysign(1, number), type(number))
    back, told = converted({"type": "string"}, text)
    assert (back, len(told)) == (text, 1)
