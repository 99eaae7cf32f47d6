"""Admission of a JSON Schema: what the validator would not enforce is refused at registration.

A validator that skips a keyword accepts arguments that the schema forbids, and nobody notices. So
every keyword, at every depth, is looked up in one table. It either

- is enforced by the draft-07 validator (fastjsonschema), or rewritten into what it enforces,
- only annotates (the typed decode of a function tool holds what it says), or
- belongs to JSON Schema 2019-09 or 2020-12 and hands the whole schema to the validator of the
  optional ``jsonschema`` package, or
- is refused, with its path.

The validator gets a rewritten copy (`agentloop.tools.rules`); the model sees the original.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ..admission import canonical_text, parse, require_plain
from ..admission.paths import path_step
from ..errors import AdmissionError, ToolDefinitionError
from .keywords import ANNOTATIONS, COUNTS, LISTS, MAPS, MODERN, NUMBERS, ONE, ends_like_ecma, pointed_at
from .rules import draft_07_rules

__all__ = ["AdmittedSchema", "admit_schema"]

_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_DRAFTS: Final = r"https?://json-schema\.org/(?:draft-0[467]|draft/20(?:19-09|20-12))/schema#?\Z"
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


class AdmittedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema whose every keyword will be enforced.

    Attributes:
        text: the schema as given, members in its order, without spaces; what the model sees.
        rules: canonical JSON for the draft-07 validator; None when 2020-12 rules are needed.
        needs: path of the keyword that needs them, "" when none does.
        used: every enforced keyword with the path of its first use.
    """

    text: str
    rules: str | None
    needs: str = ""
    used: tuple[tuple[str, str], ...] = ()


def admit_schema(tool: str, schema: object) -> AdmittedSchema:
    """Check the JSON Schema of a tool's arguments.

    Args:
        tool: the tool's name, for the error.
        schema: a plain dict or its JSON text; ``type`` must be ``"object"`` at the root.

    Raises:
        ToolDefinitionError: ``unsupported_schema``, with the JSON path of what is not supported.
    """
    try:
        root = parse(schema) if isinstance(schema, (str, bytes)) else require_plain(schema)
    except AdmissionError as error:
        raise ToolDefinitionError("unsupported_schema", tool, f"schema at {error}") from error
    if type(root) is not dict or root.get("type") != "object":
        raise ToolDefinitionError("unsupported_schema", tool, "schema at $: expected an object with type 'object'")
    walk = _Walk(tool, root)
    walk.schema(root, "$")
    walk.check_refs()
    rules = None if walk.needs else canonical_text(draft_07_rules(root))
    text = json.dumps(root, ensure_ascii=False, separators=(",", ":"))  # models fill members in the order written
    return AdmittedSchema(text=text, rules=rules, needs=walk.needs, used=tuple(walk.used.items()))


class _Walk:
    """Looks every keyword up, and remembers where subschemas and references are."""

    def __init__(self, tool: str, root: dict[str, Any]) -> None:
        self._tool, self._root = tool, root
        self._seen: dict[int, Any] = {}  # every subschema by identity
        self._refs: list[tuple[str, str]] = []  # path, reference
        self._draft4 = "draft-04" in str(root.get("$schema", ""))
        self.needs = ""
        self.used: dict[str, str] = {}

    def refuse(self, path: str, rule: str) -> ToolDefinitionError:
        return ToolDefinitionError("unsupported_schema", self._tool, f"schema at {path}: {rule}")

    def schema(self, node: Any, path: str) -> None:
        if type(node) is bool:
            self._seen[id(node)] = node
            return
        if type(node) is not dict:
            raise self.refuse(path, "expected a schema (an object or a boolean)")
        self._seen[id(node)] = node
        for key, value in node.items():
            self._keyword(node, key, value, path + _step(key))

    def _keyword(self, node: dict[str, Any], key: str, value: Any, path: str) -> None:
        if key in MODERN and not self.needs:
            self.needs = path
        if key in ANNOTATIONS or key.startswith("x-"):
            return
        self.used.setdefault("items as a list" if key == "items" and type(value) is list else key, path)
        if key in ONE:
            self.schema(value, path)
        elif key in LISTS:
            self._schemas(value, path)
        elif key in MAPS:
            self._map(value, path, patterns=key == "patternProperties")
        elif key == "items":
            if type(value) is list and "prefixItems" in node:
                raise self.refuse(path, "expected one schema beside prefixItems")
            if type(value) is list:
                self._schemas(value, path)
            else:
                self.schema(value, path)
        elif key in {"dependencies", "dependentRequired"}:
            self._dependencies(value, path, schemas=key == "dependencies")
        else:
            self._value(node, key, value, path)

    def _value(self, node: dict[str, Any], key: str, value: Any, path: str) -> None:
        """Keywords that hold no subschema."""
        if key in COUNTS:
            if not _is_number(value) or value != int(value) or value < 0:
                raise self.refuse(path, "expected an integer of 0 or more")
        elif key in NUMBERS:
            self._number(key, value, path)
        elif key in {"enum", "const"}:
            if key == "enum" and (type(value) is not list or not value):
                raise self.refuse(path, "expected an array with at least one value")
            if _holds_ref(value):  # the validator would follow it
                raise self.refuse(path, "expected values without a member named $ref")
        elif key == "type":
            words = value if type(value) is list else [value]
            if not words or any(type(word) is not str or word not in _TYPES for word in words):
                raise self.refuse(path, "expected one or more of the seven JSON types")
        elif key == "pattern":
            self._pattern(value, path)
        elif key == "required":
            self._names(value, path)
        elif key == "uniqueItems":
            if type(value) is not bool:
                raise self.refuse(path, "expected true or false")
        elif key == "format":
            if type(value) is not str:
                raise self.refuse(path, "expected a string")
        elif key in {"$ref", "$dynamicRef", "$recursiveRef"}:
            if type(value) is not str or not value.startswith("#"):
                raise self.refuse(path, "expected a local reference beginning with '#'; nothing is fetched")
            self._refs.append((path, value))
        elif key in {"$anchor", "$dynamicAnchor", "$recursiveAnchor"}:
            pass  # names a place; the 2020-12 validator resolves it
        elif node is self._root and key in {"$schema", "$id", "id"}:
            if key == "$schema" and not (type(value) is str and re.match(_DRAFTS, value)):
                raise self.refuse(path, "expected draft-04, -06, -07, 2019-09 or 2020-12")
        else:
            raise self.refuse(path, "no validator here enforces this keyword; use an x- name for an annotation")

    def _number(self, key: str, value: Any, path: str) -> None:
        if type(value) is bool and key.startswith("exclusive") and self._draft4:
            return
        if not _is_number(value) or (key == "multipleOf" and value <= 0):
            raise self.refuse(path, "expected a number" + (" above 0" if key == "multipleOf" else ""))

    def _pattern(self, value: Any, path: str) -> None:
        if type(value) is not str:
            raise self.refuse(path, "expected a string")
        try:
            re.compile(ends_like_ecma(value))
        except (re.error, RecursionError, OverflowError) as error:
            raise self.refuse(path, f"expected a regular expression that Python reads too: {error}") from error

    def _names(self, value: Any, path: str) -> None:
        if type(value) is not list or any(type(name) is not str for name in value) or len(set(value)) < len(value):
            raise self.refuse(path, "expected an array of unique strings")

    def _schemas(self, value: Any, path: str) -> None:
        if type(value) is not list or not value:
            raise self.refuse(path, "expected an array of schemas")
        for at, item in enumerate(value):
            self.schema(item, f"{path}[{at}]")

    def _map(self, value: Any, path: str, *, patterns: bool) -> None:
        if type(value) is not dict:
            raise self.refuse(path, "expected an object of schemas")
        for name, item in value.items():
            if patterns:
                self._pattern(name, path + _step(name))
            self.schema(item, path + _step(name))

    def _dependencies(self, value: Any, path: str, *, schemas: bool) -> None:
        if type(value) is not dict:
            raise self.refuse(path, "expected an object")
        for name, item in value.items():
            if schemas and type(item) is not list:
                self.schema(item, path + _step(name))
            else:
                self._names(item, path + _step(name))

    def check_refs(self) -> None:
        """Every reference leads to a subschema, and none comes back to itself without descending."""
        for path, ref in self._refs:
            if self.needs and ref != "#" and not ref.startswith("#/"):
                continue  # an anchor: the 2020-12 validator resolves it
            try:
                target = pointed_at(self._root, ref)
            except LookupError:
                target = None
            if id(target) not in self._seen:
                raise self.refuse(path, "expected a reference to a schema inside this schema")
        done: set[int] = set()
        for node in self._seen.values():
            self._check_loop(node, done)

    def _check_loop(self, start: Any, done: set[int]) -> None:
        """Depth-first over subschemas that judge the same value; a way back to the way itself is a loop."""
        way: list[tuple[Any, Iterator[Any]]] = []
        on_way: set[int] = set()
        pending = start
        while True:
            if pending is not None and id(pending) not in done:
                if id(pending) in on_way:
                    raise self.refuse("$", "a $ref leads back to itself without going deeper into the value")
                on_way.add(id(pending))
                way.append((pending, iter(self._same_value(pending))))
            if not way:
                return
            node, rest = way[-1]
            pending = next(rest, None)
            if pending is None:
                way.pop()
                on_way.discard(id(node))
                done.add(id(node))

    def _same_value(self, node: Any) -> list[Any]:
        if type(node) is not dict:
            return []
        found: list[Any] = []
        for key in _IN_PLACE:
            value = node.get(key)
            found.extend(value if type(value) is list else [value] if type(value) is dict else ())
        found.extend(item for item in node.get("dependencies", {}).values() if type(item) is dict)
        ref = node.get("$ref")
        if type(ref) is str and (ref == "#" or ref.startswith("#/")):
            found.append(pointed_at(self._root, ref))
        return [item for item in found if type(item) is dict]


def _step(key: str) -> str:
    """One step of a path: keywords with a dollar sign are shown as they are."""
    return f".{key}" if key in {"$defs", "$ref", "$id", "$anchor"} or key in MODERN else path_step(key)


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float


def _holds_ref(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is dict:
            if "$ref" in item:
                return True
            pending.extend(item.values())
        elif type(item) is list:
            pending.extend(item)
    return False
