"""Requests that somebody else wrote: a Chat Completions request body in, a `ModelRequest` out."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission.canonical import canonical_text
from ..admission.strict_json import parse
from ..errors import AdmissionError, InputError
from ..messages.request import FunctionSpec, ModelOptions, ModelRequest, ResponseFormat, ToolChoice
from .history import read_messages

__all__ = ["ForeignRequest", "decode_request"]

_SAME_NAME: Final = ("temperature", "top_p", "seed", "parallel_tool_calls", "reasoning_effort")
_READ: Final = frozenset(
    {
        *_SAME_NAME,
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "response_format",
        "stop",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
    }
)


class ForeignRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request body asks for.

    Attributes:
        model: the model it names, ``""`` when it names none.
        stream: whether it asks for a stream.
        request: everything else.
    """

    model: str
    stream: bool
    request: ModelRequest


def decode_request(data: bytes | str) -> ForeignRequest:
    """Decode the body of a Chat Completions request.

    Members that no option carries are kept in ``ModelOptions.extra`` and so sent on; null members
    count as absent. The whole history is in ``ModelRequest.messages``.

    Raises:
        AdmissionError: JSON or a member that is not what it must be, with the path.
        HistoryError: calls and results that do not belong together.
    """
    body = parse(data)
    if type(body) is not dict:
        raise AdmissionError("$", f"expected an object, got {type(body).__name__}")
    if "messages" not in body:
        raise AdmissionError("$.messages", "expected an array of messages, got none")
    given = {name: value for name, value in body.items() if value is not None}
    return ForeignRequest(
        model=_typed(given, "model", str, ""),
        stream=_typed(given, "stream", bool, False),
        request=ModelRequest(
            messages=read_messages(given.get("messages"), "$.messages"),
            options=_options(given),
            tools=tuple(_tool(item, f"$.tools[{at}]") for at, item in enumerate(_typed(given, "tools", list, []))),
        ),
    )


def _typed(given: dict[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = given.get(name, absent)
    if type(value) is not kind:
        raise AdmissionError(f"$.{name}", f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _options(given: dict[str, Any]) -> ModelOptions:
    stop = given.get("stop", [])
    ceiling = given.get("max_completion_tokens", given.get("max_tokens"))
    usage = _typed(given, "stream_options", dict, {}).get("include_usage", True)
    try:
        return ModelOptions(
            **{name: given.get(name) for name in _SAME_NAME},
            max_output_tokens=ceiling,
            stop=(stop,) if type(stop) is str else tuple(stop),
            tool_choice=_tool_choice(given.get("tool_choice")),
            response_format=_response_format(given.get("response_format")),
            include_usage=usage,
            extra=canonical_text({name: value for name, value in given.items() if name not in _READ}),
        )
    except (InputError, TypeError) as error:
        if isinstance(error, AdmissionError):
            raise
        raise AdmissionError("$", str(error)) from error


def _tool(item: Any, path: str) -> FunctionSpec:
    function = item.get("function") if type(item) is dict and item.get("type") == "function" else None
    if type(function) is not dict:
        raise AdmissionError(path, "expected a tool of type function")
    try:
        return FunctionSpec(
            name=function.get("name"),  # type: ignore[arg-type]  # checked there
            description=function.get("description") or "",
            parameters=canonical_text(function.get("parameters") or {"properties": {}, "type": "object"}),
            strict=function.get("strict"),
        )
    except InputError as error:
        raise AdmissionError(path, str(error)) from error


def _tool_choice(value: Any) -> Any:
    if type(value) is not dict:
        return value
    function = value.get("function")
    if value.get("type") != "function" or type(function) is not dict:
        raise AdmissionError("$.tool_choice", "expected a word, or an object of type function")
    return ToolChoice(name=function.get("name"))  # type: ignore[arg-type]  # checked there


def _response_format(value: Any) -> ResponseFormat | None:
    if value is None or value == {"type": "text"}:
        return None
    if value == {"type": "json_object"}:
        return ResponseFormat(kind="json")
    shape = value.get("json_schema") if type(value) is dict and value.get("type") == "json_schema" else None
    if type(shape) is not dict or type(shape.get("schema")) is not dict:
        raise AdmissionError("$.response_format", "expected type text, json_object, or json_schema with a schema")
    strict = shape.get("strict")
    return ResponseFormat(
        kind="json_schema",
        name=shape.get("name", "output"),
        schema=canonical_text(shape["schema"]),
        strict=False if strict is None else strict,
    )
