"""Validation by JSON Schema 2019-09 or 2020-12 rules, through the optional ``jsonschema`` package.

Used only for schemas that hold a keyword the draft-07 validator does not enforce. References are
local by admission, and the registry given here is empty, so nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ..admission import parse
from ..errors import ToolDefinitionError
from .schema import AdmittedSchema

__all__ = ["Fault", "modern_check"]

Fault = tuple[str, str, Any, Any, dict[str, Any]]
"""Path, keyword, the keyword's value, the value judged, the subschema."""

_STRUCTURE: Final = frozenset({
    "$anchor", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "definitions", "else",
    "maxContains", "minContains", "then",
})  # fmt: skip


def modern_check(tool: str, admitted: AdmittedSchema) -> Callable[[Any], Fault | None]:
    """A function that returns the best first fault of a value, None when there is none.

    Raises:
        ToolDefinitionError: ``unsupported_schema``: the package is not installed, or it does not
            accept the schema either, or it would ignore one of its keywords.
    """
    try:
        import jsonschema  # noqa: PLC0415  # an optional extra
        import referencing  # noqa: PLC0415  # comes with it
    except ImportError as error:
        raise ToolDefinitionError(
            "unsupported_schema",
            tool,
            f"schema at {admitted.needs}: this keyword needs JSON Schema 2020-12; install the extra 'schema'",
        ) from error
    root = parse(admitted.text)
    old = "2019-09" in root.get("$schema", "")
    kind = jsonschema.Draft201909Validator if old else jsonschema.Draft202012Validator
    _require_enforced(tool, admitted.used, kind.VALIDATORS, lists=old)
    try:
        kind.check_schema(root)
    except jsonschema.SchemaError as error:
        raise ToolDefinitionError(
            "unsupported_schema", tool, f"schema at {error.json_path}: {error.message[:200]}"
        ) from None
    judge = kind(root, registry=referencing.Registry(), format_checker=kind.FORMAT_CHECKER)

    def check(value: Any) -> Fault | None:
        error = jsonschema.exceptions.best_match(judge.iter_errors(value))
        if error is None:
            return None
        schema = error.schema if type(error.schema) is dict else {}
        return error.json_path, str(error.validator), error.validator_value, error.instance, schema

    return check


def _require_enforced(tool: str, used: Iterable[tuple[str, str]], known: Iterable[str], *, lists: bool) -> None:
    """Refuse a keyword that these rules would pass over."""
    enforced = {*known, *_STRUCTURE} | ({"items as a list"} if lists else set())
    for keyword, path in used:
        if keyword not in enforced:
            rule = f"{keyword} is not enforced by the newer rules that another keyword of this schema needs"
            raise ToolDefinitionError("unsupported_schema", tool, f"schema at {path}: {rule}")
