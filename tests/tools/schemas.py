"""Random schemas and values for property tests: every keyword the draft-07 validator enforces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["random_root", "random_value"]

NAMES = ["a", "b", "A", "a-b", "a_b", "$ref", "id", "{x}", '"q', "\\", "é", "a.b", "data", "", "x\n", "type"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, -1, 3, 0.5, 1.0, -0.0, 2.0, 1e3, "", "a", "b", "ab", "1", "{", '"', "a\n",
]  # fmt: skip


def random_value(source: random.Random, depth: int = 0) -> Any:
    kind = source.randrange(6 if depth < 3 else 4)
    if kind < 4:
        return source.choice(SCALARS)
    if kind == 4:
        return [random_value(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(NAMES): random_value(source, depth + 1) for _ in range(source.randrange(4))}


def random_root(source: random.Random) -> dict[str, Any]:
    root = _schema(source, 0)
    members = dict(root) if isinstance(root, dict) else {}
    properties = members.pop("properties", {})
    properties.setdefault("a", _schema(source, 1))
    parts = {name: _schema(source, 2) for name in ("Note", "note", "a/b")}
    return {**members, "type": "object", "properties": properties, "$defs": parts}


def _constant(source: random.Random) -> Any:
    while True:
        value = random_value(source, 1)
        if "$ref" not in str(value):
            return value


def _schema(source: random.Random, depth: int) -> Any:
    if depth > 4 or source.random() < 0.12:
        return source.choice([True, False, {}, {"type": "integer"}, {"type": "string"}])
    makers = _makers(source, lambda: _schema(source, depth + 1))
    made = {key: makers[key]() for key in source.sample(sorted(makers), source.randrange(1, 4))}
    if "items" in made and source.random() < 0.5:
        made["type"] = "array"
    return made


def _makers(source: random.Random, child: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    def count() -> int:
        return source.randrange(3)

    def bound() -> float:
        return source.choice([-1, 0, 1.5])

    def several() -> list[Any]:
        return [child() for _ in range(source.randrange(1, 4))]

    def named(names: list[str]) -> dict[str, Any]:
        return {source.choice(names): child() for _ in range(source.randrange(3))}

    return {
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), count),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bound),
        **dict.fromkeys(("additionalProperties", "propertyNames", "items", "contains", "not"), child),
        **dict.fromkeys(("if", "then", "else"), child),
        **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), several),
        "$ref": lambda: source.choice(["#/$defs/Note", "#/$defs/note", "#/$defs/a~1b", "#/properties/a"]),
        "const": lambda: _constant(source),
        "default": lambda: random_value(source, 1),
        "enum": lambda: [_constant(source) for _ in range(source.randrange(1, 4))],
        "multipleOf": lambda: source.choice([1, 2, 0.5]),
        "pattern": lambda: source.choice(["^a", "a$", "[$]", "b", "^[^$]+$"]),
        "patternProperties": lambda: named(["^a", "b$", "x", "\\$"]),
        "properties": lambda: named(NAMES),
        "required": lambda: source.sample(NAMES, source.randrange(3)),
        "title": lambda: "t",
        "type": lambda: source.choice([source.choice(TYPES), source.sample(TYPES, 2)]),
        "uniqueItems": lambda: source.random() < 0.7,
    }
