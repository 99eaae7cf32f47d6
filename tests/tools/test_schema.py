"""Admission of schemas: what is refused, what is rewritten, and what the model sees."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any

import pytest

from agentloop.errors import ToolDefinitionError
from agentloop.tools.keywords import ends_like_ecma
from agentloop.tools.schema import admit_schema
from agentloop.tools.validator import SchemaMismatch, compile_check


def check_of(schema: dict[str, Any]) -> Callable[[Any], None]:
    return compile_check("t", admit_schema("t", schema))


def accepts(schema: dict[str, Any], value: Any) -> bool:
    try:
        check_of({"type": "object", "properties": {"v": schema}})({"v": value})
    except SchemaMismatch:
        return False
    return True


def refusal(schema: Any) -> ToolDefinitionError:
    with pytest.raises(ToolDefinitionError) as caught:
        compile_check("t", admit_schema("t", schema))
    assert caught.value.code == "unsupported_schema"
    return caught.value


@pytest.fixture
def without_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in {"jsonschema", "referencing"}:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)


MODERN = {
    "unevaluatedProperties": ({"unevaluatedProperties": False}, "$.unevaluatedProperties"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "$.dependentRequired"),
    "dependentSchemas in items": (
        {"properties": {"l": {"type": "array", "items": {"dependentSchemas": {"a": {}}}}}},
        "$.properties.l.items.dependentSchemas",
    ),
    "unevaluatedItems in anyOf": ({"anyOf": [{}, {"unevaluatedItems": False}]}, "$.anyOf[1].unevaluatedItems"),
    "minContains in $defs": (
        {"$defs": {"x": {"contains": {}, "minContains": 2}}},
        "$.$defs.x.minContains",
    ),
    "$dynamicRef": ({"properties": {"a": {"$dynamicRef": "#node"}}}, "$.properties.a.$dynamicRef"),
}


@pytest.mark.parametrize(("schema", "path"), MODERN.values(), ids=MODERN)
@pytest.mark.usefixtures("without_jsonschema")
def test_a_keyword_of_newer_drafts_is_refused_by_its_path_without_the_extra(schema: dict[str, Any], path: str) -> None:
    """The validator would pass over it (R58)."""
    error = refusal({"type": "object", **schema})
    assert f"schema at {path}:" in error.rule
    assert "extra 'schema'" in error.rule


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown keyword": ({"minlength": 3}, "$.minlength"),
    "an unknown keyword far inside": (
        {"properties": {"a": {"allOf": [{"not": {"foo": 1}}]}}},
        "$.properties.a.allOf[0].not.foo",
    ),
    "a keyword of OpenAPI that changes the meaning": (
        {"properties": {"a": {"nullable": True}}},
        "$.properties.a.nullable",
    ),
    "a remote reference": ({"properties": {"a": {"$ref": "https://example.org/x"}}}, "$.properties.a.$ref"),
    "a reference to nothing": ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "$.properties.a.$ref"),
    "a reference to no schema": ({"required": [], "properties": {"a": {"$ref": "#/required"}}}, "$.properties.a"),
    "a reference in a circle": ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "back to itself"),
    "a nested identifier": ({"properties": {"a": {"$id": "x"}}}, "$.properties.a"),
    "a bad pattern": ({"properties": {"a": {"pattern": "("}}}, "$.properties.a.pattern"),
    "a pattern of another dialect": ({"properties": {"a": {"pattern": r"\p{L}"}}}, "$.properties.a.pattern"),
    "a bad property pattern": ({"patternProperties": {"[": {}}}, "$.patternProperties"),
    "an unknown type": ({"properties": {"a": {"type": "text"}}}, "$.properties.a.type"),
    "an unknown dialect": ({"$schema": "https://example.org/schema"}, "expected draft-04"),
    "a count below zero": ({"minProperties": -1}, "$.minProperties"),
    "a bound that is no number": ({"properties": {"a": {"minimum": "3"}}}, "$.properties.a.minimum"),
    "a boolean bound outside draft-04": ({"properties": {"a": {"exclusiveMinimum": True}}}, "exclusiveMinimum"),
    "a multiple of zero": ({"properties": {"a": {"multipleOf": 0}}}, "above 0"),
    "an empty enum": ({"properties": {"a": {"enum": []}}}, "$.properties.a.enum"),
    "a reference as a constant": ({"properties": {"a": {"const": [{"$ref": "http://x"}]}}}, "$.properties.a.const"),
    "required that is no list": ({"required": "a"}, "$.required"),
    "a schema that is no schema": ({"properties": {"a": 3}}, "$.properties.a"),
    "two kinds of item lists": ({"properties": {"a": {"items": [{}], "prefixItems": [{}]}}}, "$.properties.a.items"),
    "a property required and forbidden": (
        {"required": ["a"], "additionalProperties": False},
        "required but not allowed",
    ),
}


@pytest.mark.parametrize(("schema", "words"), REFUSED.values(), ids=REFUSED)
def test_what_no_validator_enforces_is_refused_at_registration(schema: dict[str, Any], words: str) -> None:
    assert words in str(refusal({"type": "object", **schema}))


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, [], "[]", '{"type":"object","type":"object"}', "{", True])
def test_the_root_is_a_schema_of_an_object(schema: Any) -> None:
    assert "schema at $" in str(refusal(schema))


def test_annotations_are_allowed_and_stay_in_what_the_model_sees() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/notes",
        "title": "T",
        "type": "object",
        "properties": {
            "a": {
                "type": "string",
                "description": "d",
                "default": "x",
                "examples": ["y"],
                "format": "zip-code",
                "contentMediaType": "application/json",
                "contentEncoding": "base64",
                "deprecated": True,
                "x-order": 1,
            }
        },
    }
    admitted = admit_schema("t", schema)
    assert json.loads(admitted.text) == schema
    given = {"a": "no JSON, no base64"}
    compile_check("t", admitted)(given)
    assert given == {"a": "no JSON, no base64"}


def test_a_check_fills_converts_and_drops_nothing() -> None:
    """(R52, R53, R54)"""
    check = check_of(
        {
            "type": "object",
            "properties": {"a": {"default": 1}, "b": {"type": "object", "properties": {"c": {"default": 2}}}},
            "additionalProperties": True,
        }
    )
    value = {"b": {"x": "3"}, "other": -0.0}
    before = repr(value)
    check(value)
    assert repr(value) == before


TUPLE = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}


def test_a_tuple_schema_is_translated_for_the_validator_and_shown_as_it_is() -> None:
    schema = {"type": "object", "properties": {"v": {**TUPLE, "items": False, "minItems": 2}}}
    admitted = admit_schema("t", schema)
    assert json.loads(admitted.text) == schema
    assert admitted.rules is not None
    assert "prefixItems" not in admitted.rules
    for value, fits in [([1, "a"], True), ([1, "a", 2], False), ([1], False), (["a", 1], False)]:
        assert accepts({**TUPLE, "items": False, "minItems": 2}, value) is fits, value


def test_an_open_tuple_checks_the_items_after_the_listed_ones() -> None:
    assert accepts({**TUPLE, "items": {"type": "boolean"}}, [1, "a", True])
    assert not accepts({**TUPLE, "items": {"type": "boolean"}}, [1, "a", 1])
    assert accepts(TUPLE, [1, "a", None])


def test_names_that_differ_in_case_or_punctuation_stay_different_definitions() -> None:
    schema = {
        "type": "object",
        "$defs": {"Note": {"type": "integer"}, "note": {"type": "string"}, "no/te": {"type": "boolean"}},
        "properties": {"a": {"$ref": "#/$defs/Note"}, "b": {"$ref": "#/$defs/note"}, "c": {"$ref": "#/$defs/no~1te"}},
    }
    check_of(schema)({"a": 1, "b": "x", "c": True})
    for wrong in ({"a": "x"}, {"b": 1}, {"c": 1}):
        with pytest.raises(SchemaMismatch):
            check_of(schema)(wrong)


def test_keywords_beside_a_reference_are_enforced_too() -> None:
    schema = {
        "type": "object",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/n", "minimum": 3, "description": "d"}},
    }
    check_of(schema)({"a": 3})
    with pytest.raises(SchemaMismatch, match="at least 3"):
        check_of(schema)({"a": 2})


def test_a_recursive_schema_checks_every_level() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
        "additionalProperties": False,
    }
    check_of(schema)({"next": {"next": {"n": 1}}})
    with pytest.raises(SchemaMismatch) as caught:
        check_of(schema)({"next": {"next": {"n": "1"}}})
    assert caught.value.path == "$.next.next.n"


def test_a_deeply_nested_schema_is_one_python_can_compile() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = 1
    for _ in range(20):
        schema, value = {"type": "array", "items": {"anyOf": [schema, {"type": "null"}]}}, [value]
    check = check_of({"type": "object", "properties": {"a": schema}})
    check({"a": value})
    for _ in range(20):
        value = value[0]
    assert value == 1


def test_the_end_of_a_pattern_is_the_end_of_the_text() -> None:
    """ECMA-262: without a flag ``$`` matches at the end only; Python's also before a last line feed."""
    assert accepts({"pattern": "^ab$"}, "ab")
    assert not accepts({"pattern": "^ab$"}, "ab\n")
    assert accepts({"pattern": "^[$]$"}, "$")
    assert accepts({"pattern": r"^\$$"}, "$")
    assert accepts({"type": "object", "patternProperties": {"^a$": {"type": "integer"}}}, {"a": 1, "a\n": "x"})


@pytest.mark.parametrize(
    ("pattern", "python"), [("a$", r"a\Z"), (r"\$", r"\$"), ("[$]", r"[\$]"), (r"\\$", r"\\\Z"), ("[[]", r"[\[]")]
)
def test_patterns_are_rewritten_where_python_reads_them_differently(pattern: str, python: str) -> None:
    assert ends_like_ecma(pattern) == python


def test_draft_04_bounds_keep_their_meaning() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}},
    }
    check_of(schema)({"a": 1})
    with pytest.raises(SchemaMismatch, match="above 0"):
        check_of(schema)({"a": 0})


class TestWithTheExtra:
    """2020-12 rules, by the optional package."""

    @pytest.fixture(autouse=True)
    def jsonschema(self) -> Any:
        return pytest.importorskip("jsonschema")

    def test_a_2020_12_keyword_is_enforced(self) -> None:
        schema = {"type": "object", "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}
        check_of(schema)({"a": 1})
        with pytest.raises(SchemaMismatch) as caught:
            check_of(schema)({"b": 1})
        assert caught.value.path == "$"

    def test_its_mismatches_name_the_path_and_never_the_value(self) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
            "dependentRequired": {"a": ["b"]},
        }
        with pytest.raises(SchemaMismatch) as caught:
            check_of(schema)({"a": [1, "secret"], "b": 1})
        assert (caught.value.path, caught.value.rule) == ("$.a[1]", "expected integer, got a string")

    def test_an_older_keyword_beside_a_newer_one_is_refused_if_it_would_be_passed_over(self) -> None:
        error = refusal({"type": "object", "dependencies": {"a": ["b"]}, "unevaluatedProperties": False})
        assert "schema at $.dependencies" in error.rule

    def test_a_schema_that_the_package_refuses_is_refused(self) -> None:
        error = refusal({"type": "object", "properties": {"a": {"items": [{}]}}, "unevaluatedProperties": False})
        assert error.rule.startswith("schema at $")
