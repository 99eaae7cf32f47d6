"""The copy of a schema that the draft-07 validator gets.

It differs from the schema where fastjsonschema 2.22 would be wrong: ``prefixItems`` becomes a list of
``items``; keywords beside a ``$ref`` go into ``allOf``; each referenced subschema gets a name of its
own (its function names ignore case and punctuation, so ``Note`` and ``note`` would be one); deep
nesting is cut into functions (Python nests 20 blocks); ``$`` in a pattern is the end of the text, as
in ECMA-262; annotations go, since ``contentMediaType`` would parse and ``default`` would fill.
"""

from __future__ import annotations

from typing import Any, Final

from .keywords import COUNTS, LISTS, NUMBERS, ONE, ends_like_ecma, pointed_at

__all__ = ["draft_07_rules"]

_LEVELS_IN_ONE_FUNCTION: Final = 4


def draft_07_rules(root: dict[str, Any]) -> dict[str, Any]:
    """Rewrite an admitted schema that needs no newer rules."""
    return _Rewrite(root).rules()


class _Rewrite:
    """One rewriting; gathers the subschemas that get a definition of their own."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._draft4 = "draft-04" in str(root.get("$schema", ""))
        self._names: dict[int, str] = {}
        self._pending: list[tuple[str, Any]] = []

    def rules(self) -> dict[str, Any]:
        rules: dict[str, Any] = self._schema(self._root, 0)
        parts: dict[str, Any] = {}
        while self._pending:
            name, node = self._pending.pop()
            parts[name] = self._schema(node, 0)
        if parts:
            rules["definitions"] = parts
        return rules

    def _apart(self, node: Any) -> dict[str, Any]:
        name = self._names.get(id(node))
        if name is None:
            name = self._names[id(node)] = f"p{len(self._names)}"
            self._pending.append((name, node))
        return {"$ref": f"#/definitions/{name}"}

    def _sub(self, node: Any, level: int) -> Any:
        if type(node) is not dict:
            return node
        deep = level >= _LEVELS_IN_ONE_FUNCTION and any(type(value) in (dict, list) for value in node.values())
        return self._apart(node) if deep else self._schema(node, level + 1)

    def _schema(self, node: Any, level: int) -> Any:
        if type(node) is not dict:
            return node
        made: dict[str, Any] = {}
        for key, value in node.items():
            self._keyword(made, node, key, value, level)
        if "$ref" not in node:
            return made
        target = self._apart(pointed_at(self._root, node["$ref"]))
        return {"allOf": [target, made]} if made else target

    def _keyword(self, made: dict[str, Any], node: dict[str, Any], key: str, value: Any, level: int) -> None:
        if key in ONE:
            if key != "additionalItems" or type(node.get("items")) is list:  # otherwise it means nothing
                made[key] = self._sub(value, level)
        elif key in LISTS or (key == "items" and type(value) is list):
            made["items" if key == "prefixItems" else key] = [self._sub(item, level) for item in value]
        elif key == "items":
            made["additionalItems" if "prefixItems" in node else key] = self._sub(value, level)
        elif key == "properties":
            made[key] = {name: self._sub(item, level) for name, item in value.items()}
        elif key == "patternProperties":
            made[key] = {ends_like_ecma(name): self._sub(item, level) for name, item in value.items()}
        elif key == "dependencies":
            made[key] = {k: v if type(v) is list else self._sub(v, level) for k, v in value.items()}
        elif key == "pattern":
            made[key] = ends_like_ecma(value)
        elif key in COUNTS:
            made[key] = int(value)
        elif key in {"const", "enum", "format", "required", "type", "uniqueItems"}:
            made[key] = value
        elif key in NUMBERS:
            self._number(made, node, key, value)

    def _number(self, made: dict[str, Any], node: dict[str, Any], key: str, value: Any) -> None:
        exclusive = "exclusive" + key.capitalize()
        if self._draft4 and node.get(exclusive) is True:
            made[exclusive] = value
        elif type(value) is not bool:
            made[key] = value
