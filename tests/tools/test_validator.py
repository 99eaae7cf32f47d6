"""The check itself: the same verdicts as a full validator, and words a model can act on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentloop.errors import ToolDefinitionError
from agentloop.tools import draft7
from agentloop.tools.schema import admit_schema
from agentloop.tools.validator import SchemaMismatch, compile_check, json_type

from .schemas import random_root, random_value


@pytest.mark.parametrize("block", range(4))
def test_verdicts_equal_those_of_a_complete_validator(block: int) -> None:
    """Random schemas and arguments against the reference implementation of JSON Schema 2020-12."""
    jsonschema = pytest.importorskip("jsonschema")
    judged = 0
    for seed in range(block * 60, block * 60 + 60):
        source = random.Random(seed)
        root = random_root(source)
        try:
            check = compile_check("t", admit_schema("t", root))
        except ToolDefinitionError:
            continue  # a reference in a circle, or a member both required and forbidden
        reference = jsonschema.Draft202012Validator(root)
        for _ in range(4):
            value = {name: random_value(source, 1) for name in source.sample(["a", "b", "a-b", "A", "{x}"], 2)}
            before = repr(value)
            assert fits(check, value) is reference.is_valid(value), (seed, root, value)
            assert repr(value) == before
            judged += 1
    assert judged > 150


def fits(check: Any, value: Any) -> bool:
    try:
        check(value)
    except SchemaMismatch as error:
        short = len(error.rule) <= 240 and len(error.path) <= 120
        return False if short else pytest.fail(f"{len(error.rule)} and {len(error.path)} characters")
    return True


S = {"type": "string"}
WORDS: dict[str, tuple[dict[str, Any], Any, str, str]] = {
    "type": ({"type": "integer"}, "secret", "$.v", "expected integer, got a string"),
    "types": ({"type": ["integer", "null"]}, [], "$.v", "expected integer or null, got an array"),
    "boolean for a number": ({"type": "number"}, True, "$.v", "expected number, got a boolean"),
    "missing": ({"type": "object", "required": ["x", "y"]}, {"x": 1}, "$.v", 'expected "y", which is missing'),
    "missing two": ({"type": "object", "required": ["x", "y"]}, {}, "$.v", 'expected "x", "y", which are missing'),
    "unknown": (
        {"type": "object", "properties": {"x": {}}, "additionalProperties": False},
        {"x": 1, "z": "secret"},
        "$.v",
        'unknown "z"; it has "x"',
    ),
    "unknown in an empty object": ({"type": "object", "additionalProperties": False}, {"z": 1}, "$.v", 'unknown "z"'),
    "enum": ({"enum": ["a", 1]}, "secret", "$.v", 'expected one of "a", 1, got a string'),
    "const": ({"const": "a"}, "secret", "$.v", 'expected "a", got a string'),
    "in a list": ({"items": {"type": "integer"}}, [1, 2, None], "$.v[2]", "expected integer, got null"),
    "in a dict": ({"additionalProperties": S}, {"k": 1}, "$.v.k", "expected string, got an integer"),
    "short": ({"minLength": 3}, "ab", "$.v", "expected at least 3 characters, got 2"),
    "long": ({"maxLength": 1}, "ab", "$.v", "expected at most 1 characters, got 2"),
    "small": ({"minimum": 3}, 2, "$.v", "expected a number of at least 3, got an integer"),
    "too few": ({"minItems": 2}, [1], "$.v", "expected at least 2 items, got 1"),
    "too many": ({"prefixItems": [{}], "items": False}, [1, 2], "$.v", "expected no more items"),
    "twice": ({"uniqueItems": True}, [1, 1.0], "$.v", "expected items that differ"),
    "pattern": ({"pattern": "^a"}, "secret", "$.v", "expected a string that matches '^a', got a string"),
    "format": ({"format": "uuid"}, "secret", "$.v", "expected a string in the format 'uuid', got a string"),
    "any": ({"anyOf": [{"type": "integer"}, {"enum": ["a"]}]}, None, "$.v", 'expected one of: integer, "a", got null'),
    "one": ({"oneOf": [{}, {}]}, 1, "$.v", "expected exactly one of: another form, got an integer"),
    "never": ({"not": {}}, 1, "$.v", "expected a value that fits 'not' of the schema"),
    "forbidden": (False, 1, "$.v", "expected nothing here, got an integer"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize(("schema", "value", "path", "rule"), WORDS.values(), ids=WORDS)
def test_a_mismatch_says_where_what_was_expected_and_what_came(schema: Any, value: Any, path: str, rule: str) -> None:
    """(R57)"""
    check = compile_check("t", admit_schema("t", {"type": "object", "properties": {"v": schema}}))
    with pytest.raises(SchemaMismatch) as caught:
        check({"v": value})
    assert caught.value.path == path
    assert caught.value.rule.startswith(rule)
    assert "secret" not in str(caught.value)


def test_words_stay_short_however_long_the_schema_and_the_arguments_are() -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"enum": ["x" * 5_000, *[str(n) for n in range(500)]]}},
        "additionalProperties": False,
    }
    check = compile_check("t", admit_schema("t", schema))
    for value in ({"v": 1}, {"k" * 10_000: 1}, {str(n): n for n in range(1_000)}):
        with pytest.raises(SchemaMismatch) as caught:
            check(value)
        assert len(caught.value.rule) <= 240


def test_a_number_no_float_holds_is_refused_instead_of_ending_the_run() -> None:
    check = compile_check("t", admit_schema("t", {"type": "object", "properties": {"v": {"multipleOf": 0.01}}}))
    with pytest.raises(SchemaMismatch, match="too large"):
        check({"v": 10**400})


def test_a_validator_that_breaks_is_a_fault_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the run; the model has no part in it (R58)."""

    def broken(value: Any) -> None:
        raise RecursionError

    monkeypatch.setattr(draft7, "draft7_check", lambda rules: broken)
    check = compile_check("t", admit_schema("t", {"type": "object"}))
    with pytest.raises(ToolDefinitionError) as caught:
        check({})
    assert caught.value.code == "unsupported_schema"
    assert isinstance(caught.value.__cause__, RecursionError)


def test_compiled_rules_are_kept() -> None:
    schema = {"type": "object", "properties": {"kept": {"type": "integer"}}}
    compile_check("t", admit_schema("t", schema))
    before = draft7.draft7_check.cache_info().hits
    compile_check("other", admit_schema("other", schema))
    assert draft7.draft7_check.cache_info().hits == before + 1


def test_json_types_have_their_json_names() -> None:
    assert [json_type(value) for value in (None, True, 1, 1.5, "", [], {})] == [
        "null", "a boolean", "an integer", "a number", "a string", "an array", "an object",
    ]  # fmt: skip
