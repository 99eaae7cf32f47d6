"""From plain Chat Completions message JSON to messages: for histories kept elsewhere.

An assistant message and the tool messages that answer it become one `ModelExchange`, so a history
cannot be cut inside an exchange without being told. Call ids are unique inside one assistant
message only; the same id in a later one is another call. Results are put in call order. The wire
has no word for a failed tool, so every result comes back with status ``ok``.
"""

from __future__ import annotations

from typing import Any, Final

from ..admission.canonical import canonical_text
from ..admission.strict_json import parse
from ..errors import AdmissionError, HistoryError, InputError
from ..messages.exchange import ModelExchange
from ..messages.feedback import ToolFeedback
from ..messages.parts import ImagePart, JsonText, Native, Termination, Text, TextContent, TextPart, ToolCall
from ..messages.reply import ModelReply
from ..messages.request import Message, SystemMessage, UserMessage

__all__ = ["decode_messages", "read_messages"]

_NATIVE: Final = ("reasoning_content", "reasoning", "reasoning_details", "refusal")
_CALL: Final = frozenset({"id", "type", "function", "index"})


def decode_messages(data: bytes | str) -> tuple[Message, ...]:
    """Decode a history: a JSON array of messages, or an object whose ``messages`` is one.

    Roles are ``system`` and ``developer``, ``user``, ``assistant`` and ``tool``. A member that is
    not known here is refused unless it is null or empty, because dropping it would change what the
    model reads.

    Raises:
        AdmissionError: JSON or a message that is not what it must be, with the path.
        HistoryError: ``missing_tool_result``, ``orphan_tool_result`` or ``invalid_tool_result``.
    """
    value = parse(data)
    if type(value) is dict and "messages" in value:
        value = value["messages"]
    return read_messages(value)


def read_messages(value: Any, path: str = "$") -> tuple[Message, ...]:
    """The same for a value that was parsed before; ``path`` is where it stood.

    Raises:
        AdmissionError, HistoryError: as `decode_messages`.
    """
    if type(value) is not list:
        raise AdmissionError(path, f"expected an array of messages, got {type(value).__name__}")
    messages: list[Message] = []
    root, at = path, 0
    while at < len(value):
        path = f"{root}[{at}]"
        item = _object(value[at], path)
        role = item.get("role")
        at += 1
        if role == "assistant":
            end = at
            while end < len(value) and type(value[end]) is dict and value[end].get("role") == "tool":
                end += 1
            messages.append(_exchange(item, path, value[at:end], [f"{root}[{n}]" for n in range(at, end)]))
            at = end
        elif role == "tool":
            raise HistoryError("orphan_tool_result", path, "expected the assistant message that asks for it before it")
        elif role in ("system", "developer"):
            _only(item, path, "role", "content")
            messages.append(SystemMessage(content=_joined(item.get("content"), f"{path}.content")))
        elif role == "user":
            _only(item, path, "role", "content")
            messages.append(UserMessage(content=_user_content(item.get("content"), f"{path}.content")))
        else:
            raise AdmissionError(f"{path}.role", "expected system, developer, user, assistant or tool")
    return tuple(messages)


def _exchange(item: dict[str, Any], path: str, results: list[Any], places: list[str]) -> ModelExchange:
    _only(item, path, "role", "content", "tool_calls", *_NATIVE)
    native = {name: item[name] for name in _NATIVE if item.get(name) is not None}
    raw_calls = item.get("tool_calls") or []
    if type(raw_calls) is not list:
        raise AdmissionError(f"{path}.tool_calls", f"expected an array, got {type(raw_calls).__name__}")
    calls, extras = [], {}
    for at, raw in enumerate(raw_calls):
        call, extra = _call(raw, f"{path}.tool_calls[{at}]")
        calls.append(call)
        if extra:
            extras[str(at)] = extra
    if extras:
        native["calls"] = extras
    content = item.get("content")
    text = "" if content is None else _joined(content, f"{path}.content")
    try:
        reply = ModelReply(
            id="",
            model="",
            output=((Text(text=text),) if text else ()) + tuple(calls),
            termination=Termination.of("tool_calls" if calls else "stop"),
            usage=None,
            native=Native(data=canonical_text(native)),
        )
    except InputError as error:
        raise AdmissionError(f"{path}.tool_calls", str(error)) from error
    return ModelExchange(reply=reply, feedback=_feedback(reply, path, results, places))


def _call(raw: Any, path: str) -> tuple[ToolCall, dict[str, Any]]:
    item = _object(raw, path)
    if item.get("type", "function") != "function":
        raise AdmissionError(f"{path}.type", "expected 'function'")
    function = _object(item.get("function"), f"{path}.function")
    _only(function, f"{path}.function", "name", "arguments")
    for name, value in (("id", item.get("id")), ("function.name", function.get("name"))):
        if type(value) is not str or not value:
            raise AdmissionError(f"{path}.{name}", "expected a non-empty string")
    arguments = function.get("arguments", "")
    if type(arguments) is not str:
        raise AdmissionError(f"{path}.function.arguments", f"expected a string, got {type(arguments).__name__}")
    call = ToolCall(id=item["id"], name=function["name"], arguments=JsonText(text=arguments))
    return call, {name: value for name, value in item.items() if name not in _CALL and value is not None}


def _feedback(reply: ModelReply, path: str, results: list[Any], places: list[str]) -> tuple[ToolFeedback, ...]:
    found: dict[str, ToolFeedback] = {}
    wanted = {call.id for call in reply.calls}
    for where, item in zip(places, results, strict=True):
        _only(item, where, "role", "content", "tool_call_id", "name")
        call_id = item.get("tool_call_id")
        if type(call_id) is not str or call_id not in wanted:
            raise HistoryError("orphan_tool_result", where, "expected the id of a call of the assistant message before")
        if call_id in found:
            raise HistoryError("invalid_tool_result", where, "expected one result a call, got a second one")
        content = (TextContent(text=_joined(item.get("content"), f"{where}.content")),)
        found[call_id] = ToolFeedback(tool_call_id=call_id, status="ok", content=content)
    for at, call in enumerate(reply.calls):
        if call.id not in found:
            raise HistoryError(
                "missing_tool_result", f"{path}.tool_calls[{at}]", "expected a tool message that answers it"
            )
    return tuple(found[call.id] for call in reply.calls)


def _user_content(value: Any, path: str) -> str | tuple[TextPart | ImagePart, ...]:
    if type(value) is str:
        return value
    if type(value) is not list or not value:
        raise AdmissionError(path, "expected a string or a non-empty array of parts")
    return tuple(_user_part(part, f"{path}[{at}]") for at, part in enumerate(value))


def _user_part(value: Any, path: str) -> TextPart | ImagePart:
    part = _object(value, path)
    if part.get("type") != "image_url":
        return TextPart(text=_text_part(part, path))
    _only(part, path, "type", "image_url")
    image = _object(part.get("image_url"), f"{path}.image_url")
    _only(image, f"{path}.image_url", "url", "detail")
    try:
        return ImagePart(url=image.get("url"), detail=image.get("detail"))  # type: ignore[arg-type]  # checked there
    except InputError as error:
        raise AdmissionError(f"{path}.image_url", str(error)) from error


def _joined(value: Any, path: str) -> str:
    """A string, or the texts of an array of text parts."""
    if type(value) is str:
        return value
    if type(value) is not list:
        raise AdmissionError(path, f"expected a string or an array of text parts, got {type(value).__name__}")
    return "".join(_text_part(_object(part, f"{path}[{at}]"), f"{path}[{at}]") for at, part in enumerate(value))


def _text_part(part: dict[str, Any], path: str) -> str:
    if part.get("type") != "text" or type(part.get("text")) is not str:
        raise AdmissionError(path, "expected a part of type text with a text")
    _only(part, path, "type", "text")
    text: str = part["text"]
    return text


def _object(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise AdmissionError(path, f"expected an object, got {type(value).__name__}")
    return value


def _only(item: dict[str, Any], path: str, *known: str) -> None:
    for name, value in item.items():
        if name not in known and value not in (None, "", [], {}):
            raise AdmissionError(path, f"expected only {', '.join(known)}, got another member")
