"""The keywords of JSON Schema by what they hold, and the two readings they need."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

__all__ = [
    "ANNOTATIONS",
    "COUNTS",
    "LISTS",
    "MAPS",
    "MODERN",
    "NUMBERS",
    "ONE",
    "ends_like_ecma",
    "pointed_at",
]

ANNOTATIONS: Final = frozenset({
    "$comment", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated", "description",
    "discriminator", "example", "examples", "readOnly", "title", "writeOnly",
})  # fmt: skip
ONE: Final = frozenset({
    "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
MODERN: Final = frozenset({
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "dependentRequired",
    "dependentSchemas", "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
COUNTS: Final = frozenset({
    "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties",
})  # fmt: skip
NUMBERS: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})


def ends_like_ecma(pattern: str) -> str:
    """Rewrite an ECMA-262 pattern where Python reads the same characters in another way."""
    out: list[str] = []
    in_class = escaped = False
    for char in pattern:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
            if char in "$[&~|":  # the validator replaces a bare $; the others may become set operations
                out.append("\\")
        elif char == "[":
            in_class = True
        elif char == "$":  # in Python it also matches before a last line feed
            out.append(r"\Z")
            continue
        out.append(char)
    return "".join(out)


def pointed_at(root: Any, ref: str) -> Any:
    """The value at a local reference (``#`` or ``#/…``, RFC 6901).

    Raises:
        LookupError: there is none, or the reference is not local.
    """
    if ref != "#" and not ref.startswith("#/"):
        raise LookupError(ref)
    node = root
    for step in unquote(ref[2:]).split("/") if len(ref) > 2 else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if type(node) is list and not name.isdecimal():
            raise LookupError(ref)
        if type(node) not in (list, dict):
            raise LookupError(ref)
        node = node[int(name)] if type(node) is list else node[name]
    return node
