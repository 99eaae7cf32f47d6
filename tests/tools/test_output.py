"""A type as an output: its schema, and the strict way from text to value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agentloop.errors import InputError, OutputRefused, ToolDefinitionError
from agentloop.tools import ArgumentsRefused, ToolSet, TypedOutput
from tests.tools.outputs import NAMED, types_and_values


class Ticket(msgspec.Struct):
    """A ticket."""

    title: str
    priority: Literal["low", "high"] = "low"


class Node(msgspec.Struct):
    children: list[Node]


class Row(msgspec.Struct, array_like=True):
    a: int


def refused(of: Any, text: str) -> OutputRefused:
    with pytest.raises(OutputRefused) as caught:
        TypedOutput(of).decode(text)
    assert "secret" not in f"{caught.value} {caught.value!r}"
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize(
    ("of", "wrapped"),
    [
        (Ticket, False),
        (Node, False),
        (Annotated[Ticket, msgspec.Meta(description="One.")], False),
        (dict[str, int], False),
        (Ticket | None, True),
        (Row, True),
        (list[Ticket], True),
        (int, True),
        (Any, True),
        (Literal["a"], True),
        *((of, isinstance(of, type) is False) for of, _ in NAMED),
    ],
)
def test_the_schema_is_always_one_of_an_object(of: Any, wrapped: bool) -> None:
    output = TypedOutput(of)
    schema = json.loads(output.schema)
    assert schema["type"] == "object"
    assert output.wrapped is wrapped
    assert (list(schema.get("properties", {})) == ["value"]) is wrapped


def test_the_schema_is_closed_at_every_level_and_keeps_the_words_for_the_model() -> None:
    schema = json.loads(TypedOutput(list[Ticket]).schema)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Ticket"]["additionalProperties"] is False
    assert schema["$defs"]["Ticket"]["description"] == "A ticket."
    annotated = TypedOutput(Annotated[Ticket, msgspec.Meta(description="One.")])
    assert json.loads(annotated.schema)["description"] == "One."


class Exact(TypedDict):
    when: dt.date
    label: Literal["a"] | None


class Partial(TypedDict, total=False):
    a: int


@dataclasses.dataclass
class Optional:
    a: int = 0


@pytest.mark.parametrize(
    ("of", "strict"),
    [
        (Exact, True),
        (list[Exact], True),
        (Annotated[int, msgspec.Meta(ge=0, le=9)], True),
        (Optional, False),  # a member that may be left out
        (list[Optional], False),
        (Partial, False),
        (dict[str, int], False),  # an open object
        (Any, False),  # no type
        (set[int], False),  # uniqueItems
        (tuple[int, str], False),  # prefixItems
        (Annotated[str, msgspec.Meta(max_length=3)], False),
        (list[Annotated[Exact, msgspec.Meta(description="d")]], False),  # words beside a reference
        (UUID, True),
        (Decimal, False),  # a format that it does not know
    ],
)
def test_strict_mode_takes_closed_objects_with_every_member_required(of: Any, strict: bool) -> None:
    assert TypedOutput(of).strict is strict


def test_a_value_is_decoded_as_arguments_are() -> None:
    assert TypedOutput(Ticket).decode('{"title": "a"}') == Ticket("a", "low")
    assert TypedOutput(Node).decode('{"children": [{"children": []}]}') == Node([Node([])])
    assert TypedOutput(int).decode('{"value": 3.0}') == 3
    assert TypedOutput(dict[int, int]).decode('{"1": 2}') == {1: 2}
    assert TypedOutput(dt.date).decode('{"value": "2026-01-02"}') == dt.date(2026, 1, 2)
    assert TypedOutput(Row).decode('{"value": [1]}') == Row(1)
    assert TypedOutput(type(None)).decode('{"value": null}') is None


@pytest.mark.parametrize(
    ("text", "code", "rule"),
    [
        ("", "invalid_json", "expected one JSON text at character 0: expected a JSON value, got the end of the text"),
        ("null", "not_an_object", "expected one JSON object, got null"),
        ("[]", "not_an_object", "expected one JSON object, got an array"),
        ('{"title": "secret", "title": 1}', "invalid_json", "at character 20: expected each key once"),
        ('{"title": 1}', "schema_mismatch", "$.title: expected string, got an integer"),
        (
            '{"title": "a", "secret": 1}',
            "schema_mismatch",
            "$: expected no member that the schema does not name, got 1",
        ),
        ('{"title": "a", "priority": "secret"}', "schema_mismatch", '$.priority: expected one of "high", "low", got a'),
        ("{}", "schema_mismatch", '$: expected "title", which is missing'),
    ],
)
def test_what_does_not_fit_is_refused_by_code_and_rule(text: str, code: str, rule: str) -> None:
    error = refused(Ticket, text)
    assert error.code == code
    assert rule in error.rule
    assert (error.transport, error.ref) == ("", None)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert error.feedback is not None
    assert error.feedback.startswith("The argument")
    assert error.feedback not in f"{error!r} {error}"


class Named(msgspec.Struct):
    labels: dict[str, dict[str, int]]
    items: list[Ticket] = []


def test_a_path_ends_where_the_model_chose_the_names() -> None:
    assert refused(Named, '{"labels": {"secret": {"a": "x"}}}').rule == "$.labels…: expected integer, got a string"
    assert refused(Named, '{"labels": {"items.secret": {"a": 1.5}}}').rule.startswith("$.labels")
    error = refused(Named, '{"labels": {}, "items": [{"title": "a"}, {"title": 1}]}')
    assert error.rule == "$.items[1].title: expected string, got an integer"
    assert refused(Node, '{"children": [{"children": [{"secret": 1, "children": []}]}]}').rule.startswith(
        "$.children[0].children[0]: expected no member"
    )


class Even(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError(f"secret {self.n} - at `$.secret`")


class Holder(msgspec.Struct):
    even: Even


class Own(msgspec.Struct):
    name: str

    def __post_init__(self) -> None:
        raise msgspec.ValidationError(f"{self.name} - at `$.{self.name}`")


def test_words_of_the_types_own_code_stay_out_of_the_rule() -> None:
    assert refused(Even, '{"n": 3}').rule == "$: expected a value that fits, got another"
    assert refused(Holder, '{"even": {"n": 3}}').rule == "$.even: expected a value that fits, got another"
    assert refused(list[dt.datetime], '{"value": ["secret"]}').rule == "$.value[0]: invalid RFC3339 encoded datetime"
    assert refused(Own, '{"name": "secret"}').rule == "$: expected a value that fits, got another"
    big = refused(dict[str, float], '{"secret": 9007199254740993}')
    assert big.rule == "expected values that the type holds exactly"


def test_a_type_that_changes_what_it_is_given_is_at_fault_itself() -> None:
    class Lowered(msgspec.Struct):
        name: str

        def __post_init__(self) -> None:
            self.name = self.name.lower()

    with pytest.raises(ToolDefinitionError, match=r"changed \$\.name"):
        TypedOutput(Lowered).decode('{"name": "Ada"}')


@pytest.mark.parametrize("of", [object, complex, list[object], msgspec.Raw])
def test_a_type_without_a_schema_is_refused_when_the_output_is_made(of: Any) -> None:
    with pytest.raises(InputError, match="output"):
        TypedOutput(of)


def test_a_type_whose_annotations_nobody_can_resolve_is_refused() -> None:
    class Local(msgspec.Struct):
        a: int

    class Holder(msgspec.Struct):
        local: Local

    assert TypedOutput(Local).decode('{"a": 1}') == Local(1)
    with pytest.raises(InputError, match="annotations can be resolved: NameError: name 'Local'"):
        TypedOutput(Holder)


def test_an_output_is_named_by_its_class_and_fixed() -> None:
    assert [TypedOutput(of).name for of in (Ticket, int, list[int], Any)] == ["Ticket", "output", "output", "output"]
    assert TypedOutput(int, name="n-1").name == "n-1"
    for name in ("", "a b", "x" * 65, "é"):
        with pytest.raises(InputError, match="output name"):
            TypedOutput(int, name=name)
    with pytest.raises(AttributeError, match="fixed"):
        TypedOutput(int).schema = ""
    with pytest.raises(AttributeError, match="fixed"):
        del TypedOutput(int).schema


@given(st.data())
def test_the_output_function_admits_what_the_output_takes_from_a_call(data: DataObject) -> None:
    """(R175)"""
    of, values = data.draw(types_and_values())
    output = TypedOutput(of)
    function = output.tool("Give it.")
    value = data.draw(values)
    text = msgspec.json.encode({"value": value} if output.wrapped else value).decode()
    assert function.resolve(text, stage_id="s") == output.from_call(text) == output.decode(text)


class Easy(msgspec.Struct):
    title: str = "none"


def test_a_call_without_arguments_is_an_empty_object_for_both() -> None:
    """(R175)"""
    for text in ("", "null", "{}"):
        assert TypedOutput(Easy).from_call(text) == Easy()
        assert TypedOutput(Easy).tool("").resolve(text, stage_id="s") == Easy()
        with pytest.raises(OutputRefused, match="schema_mismatch"):
            TypedOutput(Ticket).from_call(text)
        with pytest.raises(ArgumentsRefused, match="title"):
            TypedOutput(Ticket).tool("").admit(text)
    with pytest.raises(OutputRefused, match="invalid_json"):
        TypedOutput(Easy).decode("")


def test_the_output_function_is_a_selection_and_tells_the_model_only_that_its_answer_is_taken() -> None:
    """(R174)"""
    function = TypedOutput(Ticket).tool("Give it.")
    assert (function.kind, function.name, function.spec.description) == ("selection", "Ticket", "Give it.")
    assert function.spec.parameters == TypedOutput(Ticket).schema
    assert (function.owner, function.policy.recovery_kind) == ("output 'Ticket'", "repeat")
    same, other = TypedOutput(Ticket).tool("Give it."), TypedOutput(Easy, name="Ticket").tool("Give it.")
    digests = [ToolSet([one]).digest for one in (function, same, other)]
    assert digests[0] == digests[1] != digests[2]
