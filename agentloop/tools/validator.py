"""From an admitted schema to a check, and from a failed check to words that a model can act on.

A check changes nothing: it fills no default, converts nothing and drops nothing (R52-R54).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ..admission import parse
from ..errors import ToolDefinitionError
from .keywords import pointed_at
from .schema import AdmittedSchema
from .schema_2020 import Fault, modern_check

__all__ = ["SchemaMismatch", "compile_check", "json_type"]

_PATH_CHARS: Final = 120
_RULE_CHARS: Final = 240


class SchemaMismatch(Exception):
    """A value does not fit the schema.

    Attributes:
        path: which argument, as ``$.items[2].name``; up to 120 characters.
        rule: what was expected and what came, without the value; up to 240 characters. It may name
            members that the value has and the schema does not, as the path may.
        outline: path and rule once more, with no name that the schema does not declare.
    """

    def __init__(self, path: str, rule: str, outline: str = "") -> None:
        super().__init__(path, rule)
        self.path, self.rule = _short(path, _PATH_CHARS), _short(rule, _RULE_CHARS)
        self.outline = _short(outline or f"$: {rule}", _PATH_CHARS + _RULE_CHARS)


def compile_check(tool: str, admitted: AdmittedSchema) -> Callable[[Any], None]:
    """A function that raises `SchemaMismatch` when a value does not fit, and changes nothing.

    The function raises `ToolDefinitionError` when the check itself fails: a fault of the schema is
    not the model's, and ends the run (R58).

    Raises:
        ToolDefinitionError: ``unsupported_schema``: no check can be made of the schema.
    """
    if admitted.rules is None:
        modern = modern_check(tool, admitted)
        root = parse(admitted.text)

        def check_modern(value: Any) -> None:
            try:
                fault = modern(value)
            except Exception as error:
                raise _schema_fault(tool, error) from error
            if fault is not None:
                raise _mismatch(fault, root)

        return check_modern
    root = parse(admitted.rules)
    from .draft7 import draft7_check  # noqa: PLC0415  # programs without tools need none

    try:
        judge = draft7_check(admitted.rules)
    except Exception as error:  # generated code: any fault of the schema shows here, as any exception
        raise ToolDefinitionError("unsupported_schema", tool, f"schema at $: {_short(str(error), 200)}") from error

    def check(value: Any) -> None:
        try:
            fault = judge(value)
        except ArithmeticError:  # multipleOf over an integer that no float holds
            raise SchemaMismatch("$", "a number is too large for this tool") from None
        except Exception as error:
            raise _schema_fault(tool, error) from error
        if fault is not None:
            raise _mismatch(fault, root)

    return check


def _schema_fault(tool: str, error: Exception) -> ToolDefinitionError:
    rule = f"its schema cannot judge these arguments: {type(error).__name__}"
    return ToolDefinitionError("unsupported_schema", tool, rule)


def json_type(value: object) -> str:
    """The JSON name of a parsed value's type, with its article."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


def _mismatch(fault: Fault, root: dict[str, Any]) -> SchemaMismatch:
    path, keyword, wanted, value, schema = fault
    place = _declared(path, root)
    if keyword == "required" and type(value) is dict:
        missing = [name for name in wanted if name not in value]
        rule = f"expected {_names(missing)}, which {'is' if len(missing) == 1 else 'are'} missing"
        return SchemaMismatch(path, rule, f"{place}: {rule}")
    if keyword == "additionalProperties" and type(value) is dict:
        known = list(schema.get("properties", {}))
        extra = [
            name for name in value if name not in known and not _matches(name, schema.get("patternProperties", {}))
        ]
        may_be = f"it has {_names(known)}" if known else "it has none"
        outline = f"{place}: expected no member that the schema does not name, got {len(extra)}; {may_be}"
        return SchemaMismatch(path, f"unknown {_names(extra)}; {may_be}", outline)
    rule = f"expected {_wanted(keyword, wanted, root)}, got {_got(keyword, value)}"
    return SchemaMismatch(path, rule, f"{place}: {rule}")


def _declared(path: str, root: dict[str, Any]) -> str:
    """As much of a path as is indices and members that the schema names; what a model named itself is cut off."""
    names: set[str] = set()
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if type(node) is dict:
            members = node.get("properties")
            names.update(members if type(members) is dict else ())
            pending.extend(node.values())
        elif type(node) is list:
            pending.extend(node)
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    step = re.compile(rf"\[[0-9]{{1,9}}\]|\.(?:{known})(?=[.\[]|\Z)" if names else r"\[[0-9]{1,9}\]")
    at = 1
    while (found := step.match(path, at)) is not None:
        at = found.end()
    return path[:at] + ("…" if at < len(path) else "")


def _wanted(keyword: str, wanted: Any, root: dict[str, Any]) -> str:
    if keyword == "type":
        return _types(wanted)
    if keyword in {"anyOf", "oneOf"}:
        forms = list(dict.fromkeys(_form(item, root) for item in wanted))
        return ("exactly one of: " if keyword == "oneOf" else "one of: ") + ", ".join(forms)
    if keyword in {"enum", "const"}:
        values = wanted if keyword == "enum" else [wanted]
        return ("one of " if len(values) > 1 else "") + ", ".join(_literal(item) for item in values)
    words = {
        "format": f"a string in the format {wanted!r}",
        "pattern": f"a string that matches {wanted!r}",
        "minLength": f"at least {wanted} characters",
        "maxLength": f"at most {wanted} characters",
        "minimum": f"a number of at least {wanted}",
        "maximum": f"a number of at most {wanted}",
        "exclusiveMinimum": f"a number above {wanted}",
        "exclusiveMaximum": f"a number below {wanted}",
        "multipleOf": f"a multiple of {wanted}",
        "minItems": f"at least {wanted} items",
        "maxItems": f"at most {wanted} items",
        "uniqueItems": "items that differ from each other",
        "items": "no more items than the schema lists",
        "minProperties": f"at least {wanted} members",
        "maxProperties": f"at most {wanted} members",
    }
    return words.get(keyword) or (f"a value that fits {keyword!r} of the schema" if keyword else "nothing here")


def _got(keyword: str, value: Any) -> str:
    if keyword.endswith("Length") and type(value) is str:
        return f"{len(value)}"
    if keyword in {"minItems", "maxItems", "items", "minProperties", "maxProperties"} and type(value) in (list, dict):
        return f"{len(value)}"
    return json_type(value)


def _types(wanted: Any) -> str:
    return " or ".join(wanted) if type(wanted) is list else str(wanted)


def _form(schema: Any, root: dict[str, Any]) -> str:
    """A few words for one branch of anyOf or oneOf."""
    if type(schema) is dict and "$ref" in schema:
        schema = pointed_at(root, schema["$ref"])
    if type(schema) is not dict:
        return "anything" if schema else "nothing"
    if "enum" in schema:
        return " or ".join(_literal(item) for item in schema["enum"])
    if "const" in schema:
        return _literal(schema["const"])
    if "type" in schema:
        required = f" with {_names(schema['required'])}" if schema.get("required") else ""
        return _types(schema["type"]) + required
    return "another form"


def _literal(value: Any) -> str:
    return _short(msgspec.json.encode(value).decode(), 60)


def _names(names: list[str]) -> str:
    shown = ", ".join(_short(msgspec.json.encode(name).decode(), 66) for name in names[:6])
    return shown + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _matches(name: str, patterns: Mapping[str, Any]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _short(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
