"""Arguments of another JSON type than the schema takes, converted where their meaning is beyond doubt.

Only for tools that ask for it (`ToolPolicy.coerce`). The schema is walked along with the value, and what is
converted is a value whose type no part of the schema takes:

    a string that is exactly a number, true, false or null    where the schema takes that and no string
    a string that is one JSON object or array, strictly read  where it takes objects or arrays alone
    a number, or a boolean                                    where it takes strings alone
    3.0, which is the number 3                                where it takes integers alone

``null`` beside what is taken changes none of this. A value whose type is taken stays as it is, whatever
else is wrong with it, and so does one that several branches of ``anyOf`` or ``oneOf`` could judge, inside; of
objects, a member with one of a few given texts (a tag) says which branch it is.
Nothing is filled in, dropped, trimmed or mended. A number becomes the text that the model wrote, and a text
becomes an integer only where it has exactly that value.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ..admission import parse, pattern, require_plain
from ..admission.paths import path_step
from ..errors import AdmissionError
from ..limits import JSON_DEPTH
from .exactness import is_exactly
from .keywords import ends_like_ecma, pointed_at

__all__ = ["CONVERSIONS", "CONVERSION_CHARS", "Coerced", "Coercion"]

CONVERSIONS: Final = 16
"""How many lines tell what was converted; the last one counts the rest where there are more."""

CONVERSION_CHARS: Final = 200
"""Ceiling of one such line."""

_ALL: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_NULL: Final = frozenset({"null"})
_TEXT: Final = frozenset({"string"})
_CONTAINERS: Final = frozenset({"array", "object"})
_WORDS: Final = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string",
                 list: "array", dict: "object"}  # fmt: skip
_SCALAR: Final = functools.cache(
    lambda: re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)\Z")
)
_CONTAINER: Final = pattern(r"[ \t\n\r]*[\[{]")
_EXACT: Final = 2**53  # beyond it a float stands for several integers


class Coerced(msgspec.Struct, frozen=True):
    """What became of a value.

    Attributes:
        value: the value itself where nothing was converted; else a copy in which something was.
        told: what was, as ``$.count: string to integer``: up to 16 lines of up to 200 characters, without
            values, and with no name that the schema does not declare.
    """

    value: Any
    told: tuple[str, ...]


class Coercion:
    """Converts by one schema. Any number of values, in any thread.

    Args:
        schema: JSON text of an admitted schema (`agentloop.tools.schema`).
    """

    __slots__ = ("_kinds", "_root", "_schema")

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._root: Any = None
        self._kinds: dict[int, frozenset[str]] = {}  # by identity of a part of the root

    def convert(self, value: Any, text: str) -> Coerced:
        """Convert what can be, all or nothing: whoever asks has the result checked by the schema.

        Args:
            value: as `admission.parse` read it. text: what it was read from.
        """
        if self._root is None:
            self._root = parse(self._schema)
        walk = _Walk(self)
        made = walk.value([self._root], value, _Source(text), 0)
        if walk.opened:  # texts within the limits may come to more than these together
            try:
                require_plain(made)
            except AdmissionError:
                return Coerced(value, ())
        return Coerced(made, walk.told())

    def kinds(self, schema: Any) -> frozenset[str]:
        """The JSON types that a schema takes, or more. ``number`` is one with a fraction."""
        if type(schema) is not dict:
            return frozenset() if schema is False else _ALL
        known = self._kinds.get(id(schema))
        if known is None:
            known = self._kinds[id(schema)] = self._read_kinds(schema)
        return known

    def _read_kinds(self, schema: dict[str, Any]) -> frozenset[str]:
        known = _ALL
        if "type" in schema:
            words = schema["type"] if type(schema["type"]) is list else [schema["type"]]
            known = frozenset([*words, "integer"] if "number" in words else words)
        if "enum" in schema:
            known &= frozenset(map(_kind, schema["enum"]))
        if "const" in schema:
            known &= {_kind(schema["const"])}
        for part in (*self._target(schema), *schema.get("allOf", ())):
            known &= self.kinds(part)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                known &= frozenset().union(*map(self.kinds, schema[key]))
        return known

    def parts(self, schema: Any, kind: str, value: Any) -> Iterator[dict[str, Any]]:
        """A schema and all that surely judges the same value, which is of this type."""
        if type(schema) is not dict:
            return
        yield schema
        for part in (*self._target(schema), *schema.get("allOf", ())):
            yield from self.parts(part, kind, value)
        for key in ("anyOf", "oneOf"):
            fitting = [branch for branch in schema.get(key, ()) if kind in self.kinds(branch)]
            if len(fitting) > 1 and kind == "object":
                fitting = [branch for branch in fitting if not self._is_tagged_otherwise(branch, value)]
            if len(fitting) == 1:
                yield from self.parts(fitting[0], kind, value)

    def _is_tagged_otherwise(self, schema: Any, value: dict[str, Any]) -> bool:
        """Whether a member has a text that is none of the few texts which a schema gives for it."""
        if type(schema) is not dict:
            return False
        for part in (schema, *self._target(schema)):
            for name, member in part.get("properties", {}).items() if type(part) is dict else ():
                if type(value.get(name)) is str and type(member) is dict:
                    given = member["enum"] if "enum" in member else [member["const"]] if "const" in member else []
                    if given and value[name] not in given and all(type(text) is str for text in given):
                        return True
        return False

    def _target(self, schema: dict[str, Any]) -> tuple[Any, ...]:
        """What its ``$ref`` points at; nothing of one that names an anchor."""
        try:
            return (pointed_at(self._root, schema["$ref"]),) if "$ref" in schema else ()
        except LookupError:
            return ()


class _Source:
    """A text that a value was read from, and the numbers in it as they were written."""

    __slots__ = ("_numbers", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._numbers: Any = None

    def literal(self, steps: list[str | int]) -> str:
        if self._numbers is None:
            self._numbers = (json.loads(self.text, parse_float=str, parse_int=str),)
        (found,) = self._numbers
        for step in steps:
            found = found[step]
        return str(found)


class _Walk:
    """One value on its way along the schema.

    Attributes:
        opened: whether a text was read as an object or an array.
    """

    def __init__(self, coercion: Coercion) -> None:
        self._coercion = coercion
        self._steps: list[str | int] = []  # to the value, within its source
        self._shown: list[str] = []
        self._told: list[str] = []
        self._count = 0
        self.opened = False

    def told(self) -> tuple[str, ...]:
        over = self._count - CONVERSIONS
        return tuple(self._told) if over <= 0 else (*self._told[:-1], f"and {over + 1} more")

    def value(self, schemas: list[Any], value: Any, source: _Source, depth: int) -> Any:
        """The value, or what it is converted to, by all of these schemas together."""
        kind = _kind(value)
        kinds = _ALL
        for schema in schemas:
            kinds &= self._coercion.kinds(schema)
        if kind in kinds:
            if type(value) is float and "number" not in kinds:
                made = _integer_of(source.literal(self._steps), value)
                if made is not None:
                    self._tell(value, made)
                    return made
            return self._inside(schemas, kind, value, source, depth) if kind in _CONTAINERS else value
        if type(value) is str:
            return self._from_text(schemas, kinds, value, depth)
        if kinds - _NULL == _TEXT and type(value) in (bool, int, float) and self._is_plain_text(schemas, value):
            literal = ("false", "true")[value] if type(value) is bool else source.literal(self._steps)
            self._tell(value, literal)
            return literal
        return value

    def _from_text(self, schemas: list[Any], kinds: frozenset[str], text: str, depth: int) -> Any:
        alone = kinds - _NULL
        is_container = bool(alone) and alone <= _CONTAINERS and _CONTAINER().match(text) is not None
        if not is_container and not _SCALAR().match(text):
            return text
        try:
            made = parse(text, max_depth=JSON_DEPTH - depth)
        except AdmissionError:
            return text
        if type(made) is float and "number" not in kinds:
            made = _integer_of(text, made)
            if made is None:
                return text
        kind = _kind(made)
        if kind not in kinds:
            return text
        self._tell(text, made)
        if not is_container:
            return made
        self.opened = True
        steps, self._steps = self._steps, []
        try:
            return self._inside(schemas, kind, made, _Source(text), depth)
        finally:
            self._steps = steps

    def _is_plain_text(self, schemas: list[Any], value: Any) -> bool:
        """Whether a text means its characters; base64 means others."""
        parts = (part for schema in schemas for part in self._coercion.parts(schema, "string", value))
        return not any("contentEncoding" in part for part in parts)

    def _inside(self, schemas: list[Any], kind: str, value: Any, source: _Source, depth: int) -> Any:
        parts = [part for schema in schemas for part in self._coercion.parts(schema, kind, value)]
        steps: Iterable[tuple[Any, Any]] = value.items() if kind == "object" else enumerate(value)
        made = value
        for step, item in steps:
            inner = _members(parts, step) if kind == "object" else _items(parts, step)
            if not inner:
                continue
            declared = kind == "array" or any(step in part.get("properties", ()) for part in parts)
            self._steps.append(step)
            self._shown.append(path_step(step) if declared else f"[key of {len(step)} characters]")
            new = self.value(inner, item, source, depth + 1)
            self._steps.pop()
            self._shown.pop()
            if new is not item:
                if made is value:
                    made = value.copy()
                made[step] = new
        return made

    def _tell(self, before: Any, after: Any) -> None:
        self._count += 1
        if self._count <= CONVERSIONS:
            end = f": {_WORDS[type(before)]} to {_WORDS[type(after)]}"
            path = "$" + "".join(self._shown)
            room = CONVERSION_CHARS - len(end)
            self._told.append((path if len(path) <= room else path[: room - 1] + "…") + end)


def _members(parts: list[dict[str, Any]], name: str) -> list[Any]:
    """The schemas of one member of an object."""
    found: list[Any] = []
    for part in parts:
        before = len(found)
        if name in part.get("properties", ()):
            found.append(part["properties"][name])
        for form, schema in part.get("patternProperties", {}).items():
            if re.search(ends_like_ecma(form), name):
                found.append(schema)
        if len(found) == before and "additionalProperties" in part:
            found.append(part["additionalProperties"])
    return found


def _items(parts: list[dict[str, Any]], at: int) -> list[Any]:
    """The schemas of one item of an array."""
    found: list[Any] = []
    for part in parts:
        first, rest = part.get("prefixItems"), part.get("items")
        if type(rest) is list:
            first, rest = rest, part.get("additionalItems")
        if first is not None and at < len(first):
            found.append(first[at])
        elif rest is not None:
            found.append(rest)
    return found


def _kind(value: Any) -> str:
    return "integer" if type(value) is float and value.is_integer() else _WORDS[type(value)]


def _integer_of(literal: str, value: float) -> int | None:
    """The integer that a number is; None where it is none, or is read as one that it is not, or is -0."""
    if not value.is_integer() or abs(value) > _EXACT or not is_exactly(literal, value):
        return None
    return int(value) if value or not literal.startswith("-") else None
