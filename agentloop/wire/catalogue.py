"""Tools as the wire declares them, one JSON object each."""

from __future__ import annotations

from typing import Any

import msgspec

from ..admission.strict_json import parse
from ..errors import AdmissionError
from ..messages.request import FunctionSpec

__all__ = ["declared_tool", "schema_text"]


def declared_tool(spec: FunctionSpec, path: str, *, strict: bool = True) -> dict[str, Any]:
    """One tool as an entry of ``tools``.

    Args:
        strict: whether `FunctionSpec.strict` is said, which only a server can hold.

    Raises:
        AdmissionError: its schema is no JSON object; ``path`` is where the tool stands.
    """
    function: dict[str, Any] = {"name": spec.name}
    if spec.description:
        function["description"] = spec.description
    function["parameters"] = schema_text(spec.parameters, f"{path}.parameters")
    if strict and spec.strict is not None:
        function["strict"] = spec.strict
    return {"type": "function", "function": function}


def schema_text(text: str, path: str) -> msgspec.Raw:
    """A schema's own text, once it is known to be one JSON object.

    Raises:
        AdmissionError: it is none; ``path`` is where it stands.
    """
    try:
        value = parse(text)
    except AdmissionError as error:
        raise AdmissionError(path, f"expected the JSON text of a schema; {error.rule}", error.position) from error
    if type(value) is not dict:
        raise AdmissionError(path, f"expected the JSON text of an object, got {type(value).__name__}")
    return msgspec.Raw(text.encode())
