"""The chunks of a Chat Completions stream, read by the rules: every shape checked, every path named.

`plain` reads the chunks that need none of this, which are nearly all. Vendor chunks tolerate unknown
fields; where a key comes twice the last one counts, which is the vendor's affair.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final, NoReturn

import msgspec

from ..admission import pattern
from .dialect import Dialect
from .fault import Fault, kind_of

__all__ = [
    "CallPiece",
    "ChoicePiece",
    "error_event",
    "find_error",
    "join_fields",
    "read_choices",
    "read_identity",
    "read_json",
    "thinking_text",
]

_SHORT: Final = 300  # characters of a vendor's error message that are kept
_WORD: Final = pattern(r"[A-Za-z0-9_.:/-]{1,64}")  # what a code or a type looks like


_decode: Final = msgspec.json.Decoder().decode


class CallPiece(msgspec.Struct):
    """One entry of ``tool_calls``, checked for shape only.

    Attributes:
        index: None when absent or null.
        id, name: ``""`` when absent or null.
        arguments: text, ``""`` when absent or null; bytes are a whole object sent as JSON.
        extras: fields that we do not know; those of the function under ``function``.
    """

    index: int | None
    id: str
    name: str
    arguments: str | bytes
    extras: dict[str, Any]


class ChoicePiece(msgspec.Struct):
    """One choice of a chunk, checked for shape only; absent and null texts are ``""``.

    Attributes:
        parts: content sent as parts, as it came; ``content`` is the text in them then.
        extras: continuation material of the delta, by key.
        finish: the finish word, None before the end.
        usage: a usage inside the choice, as it came.
    """

    content: str
    parts: list[dict[str, Any]]
    reasoning_content: str
    reasoning: str
    details: list[dict[str, Any]]
    refusal: str
    calls: list[CallPiece]
    extras: dict[str, Any]
    finish: str | None
    usage: Any

    @property
    def has_calls(self) -> bool:
        """Whether it brings anything of a call."""
        return any(call.id or call.name or call.arguments or call.extras for call in self.calls)

    @property
    def has_text(self) -> bool:
        """Whether it brings anything of a reply that is not a call."""
        texts = self.content or self.reasoning_content or self.reasoning or self.refusal
        return bool(texts or self.parts or self.details)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a reply is in it (a finish word or a usage may be)."""
        return not (self.has_text or self.has_calls)


def read_json(data: bytes, *, split_surrogates: bool) -> dict[str, Any]:
    """Decode one event's data to an object.

    With ``split_surrogates`` strings may hold lone surrogates: half a character that another
    delta completes.

    Raises:
        Fault: ``invalid_json`` or ``bad_shape``.
    """
    try:
        value = _decode(data)
    except RecursionError:
        raise Fault("invalid_json", "JSON that is not nested too deep", "more levels than can be decoded") from None
    except msgspec.MsgspecError as error:
        value = _read_surrogates(data, error, allowed=split_surrogates)
    if type(value) is not dict:
        raise Fault("bad_shape", "a chunk that is one JSON object", kind_of(value))
    return value


def _read_surrogates(data: bytes, error: msgspec.MsgspecError, *, allowed: bool) -> Any:
    """Tell a lone surrogate, which msgspec calls truncated input, from text that is not JSON."""
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        got = "a number out of range" if "out of range" in str(error) else "text that is none"
        raise Fault("invalid_json", "one JSON text as the data of an event", got) from None
    if not allowed:
        raise Fault("invalid_json", "whole characters in each delta", "half a surrogate pair in a string")
    return value


def _no_constant(_word: str) -> NoReturn:
    raise ValueError("not JSON")


def _finite(literal: str) -> float:
    value = float(literal)
    if value in (float("inf"), float("-inf")):
        raise ValueError("out of range")
    return value


def find_error(chunk: dict[str, Any]) -> None:
    """Refuse a chunk that reports an error, wherever it does so.

    Raises:
        Fault: ``vendor_error`` with the vendor's code, type and shortened message.
    """
    if chunk.get("error") is not None:
        raise _vendor_fault(chunk["error"])
    if "choices" not in chunk and "error" in (chunk.get("object"), chunk.get("type")):
        raise _vendor_fault(chunk)  # vLLM and others: the chunk itself is the error
    x_groq = chunk.get("x_groq")
    if type(x_groq) is dict and x_groq.get("error") is not None:
        raise _vendor_fault(x_groq["error"])
    choices = chunk.get("choices")
    for choice in choices if type(choices) is list else ():
        if type(choice) is dict:
            delta = choice.get("delta")
            for owner in (choice, delta if type(delta) is dict else {}):
                if owner.get("error") is not None:
                    raise _vendor_fault(owner["error"])


def error_event(data: bytes) -> Fault:
    """The refusal for an ``event: error``, whose data may hold an error, be one, be plain text or be missing."""
    try:
        value = read_json(data, split_surrogates=True)
    except Fault:
        return _vendor_fault(data.decode())
    return _vendor_fault(value.get("error") or value)


def _vendor_fault(error: object) -> Fault:
    """The refusal for what a vendor calls an error: an object, a text, or anything."""
    fields = error if type(error) is dict else {"message": error} if type(error) is str else {}
    facts = {f"vendor_{key}": _short(fields.get(key)) for key in ("code", "type", "message")}
    words = ((key, facts[f"vendor_{key}"]) for key in ("code", "type"))
    said = [f"{key} {word!r}" for key, word in words if word and _WORD().fullmatch(word)]  # else it may be a text
    return Fault("vendor_error", "a chunk of the reply", f"an error ({', '.join(said) or 'no code'})", **facts)


def _short(value: object) -> str | None:
    """A fact of an error as a short, printable string; numbers are written out."""
    if type(value) in (int, float):
        value = str(value)
    if type(value) is not str or not value:
        return None
    text = value.encode("utf-8", "replace").decode()
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def read_identity(chunk: dict[str, Any]) -> tuple[str, str]:
    """The chunk's ``id`` and ``model``; absent and null are ``""``.

    Raises:
        Fault: ``bad_shape`` or, for half a character, ``invalid_json``.
    """
    return _text(chunk, "id", "$"), _text(chunk, "model", "$")


def read_choices(chunk: dict[str, Any], data: bytes, dialect: Dialect) -> list[ChoicePiece]:
    """The chunk's choices, checked for shape.

    Raises:
        Fault: ``bad_shape``, ``unexpected_choice`` or ``invalid_json``.
    """
    choices = chunk.get("choices")
    if choices is None and chunk.get("usage") is not None and dialect.choices_absent:
        return []
    if type(choices) is not list:
        raise _shape("$.choices", "an array", choices)
    pieces = []
    for at, choice in enumerate(choices):
        path = f"$.choices[{at}]"
        choice = _object(choice, path)
        _check_index(choice.get("index"), path)
        pieces.append(_read_choice(choice, path, data, at, dialect))
    return pieces


def _check_index(index: object, path: str) -> None:
    if type(index) is not int or index < 0:
        raise _shape(f"{path}.index", "a non-negative integer", index)
    if index != 0:
        raise Fault("unexpected_choice", "only the choice with index 0", f"index {index}")


def _read_choice(choice: dict[str, Any], path: str, data: bytes, at: int, dialect: Dialect) -> ChoicePiece:
    delta = choice.get("delta")
    if delta is None and dialect.delta_absent and choice.get("message") is None and choice.get("text") is None:
        delta = {}
    delta = _object(delta, f"{path}.delta")
    finish = choice.get("finish_reason")
    if finish == "" and dialect.finish_empty:
        finish = None
    if finish is not None:
        if type(finish) is not str or not finish:
            raise _shape(f"{path}.finish_reason", "a word or null", finish)
        _whole(finish)
    where = f"{path}.delta"
    content, parts = _read_content(delta.get("content"), f"{where}.content", dialect)
    _check_function_call(delta.get("function_call"), f"{where}.function_call")
    return ChoicePiece(
        content=content,
        parts=parts,
        reasoning_content=_half_text(delta, "reasoning_content", where),
        reasoning=_half_text(delta, "reasoning", where),
        details=_objects(delta.get("reasoning_details"), f"{where}.reasoning_details"),
        refusal=_half_text(delta, "refusal", where),
        calls=_read_calls(delta.get("tool_calls"), f"{where}.tool_calls", data, at, dialect),
        extras={key: delta[key] for key in ("extra_content", "thinking_blocks") if delta.get(key)},
        finish=finish,
        usage=choice.get("usage"),
    )


def _read_content(content: object, path: str, dialect: Dialect) -> tuple[str, list[dict[str, Any]]]:
    if content is None or type(content) is str:
        return content or "", []
    if type(content) is not list or not dialect.content_parts:
        raise _shape(path, "a string or null", content)
    texts = []
    for at, part in enumerate(content):
        where = f"{path}[{at}]"
        kind = _object(part, where).get("type")
        if kind == "text":
            texts.append(_half_text(part, "text", where))
        elif kind == "thinking":
            thinking_text(part, where)
        elif kind != "reference":  # Mistral's numbers of sources: kept, not text
            raise _shape(f"{where}.type", "text, thinking or reference", kind)
    return "".join(texts), content


def join_fields(known: dict[str, Any], told: dict[str, Any]) -> None:
    """Add fields that no rule knows to those told before, in place: objects member by member, others replaced."""
    for key, value in told.items():
        before = known.get(key)
        if type(before) is dict and type(value) is dict:
            before.update(value)
        else:
            known[key] = value


def thinking_text(part: dict[str, Any], path: str = "$") -> str:
    """The text of a thinking part: a string, or text parts of its own.

    Raises:
        Fault: ``bad_shape``.
    """
    thinking = part.get("thinking")
    if thinking is None or type(thinking) is str:
        return thinking or ""
    inner = _objects(thinking, f"{path}.thinking")
    for at, item in enumerate(inner):
        if item.get("type") not in ("text", "reference"):
            raise _shape(f"{path}.thinking[{at}].type", "text or reference", item.get("type"))
    return "".join(_half_text(item, "text", f"{path}.thinking") for item in inner)


def _check_function_call(value: object, path: str) -> None:
    """Refuse the call form of 2023: nothing here asks for it, and to skip it would lose a call."""
    if type(value) is dict and not any(value.values()):
        return
    if value is not None:
        raise _shape(path, "null: calls come in tool_calls", value)


def _read_calls(value: object, path: str, data: bytes, choice: int, dialect: Dialect) -> list[CallPiece]:
    pieces = []
    for at, call in enumerate(_objects(value, path)):
        where = f"{path}[{at}]"
        index = call.get("index")
        if index is not None and (type(index) is not int or index < (-1 if dialect.index_base else 0)):
            raise _shape(f"{where}.index", "a non-negative integer", index)
        kind = call.get("type")
        if kind not in (None, "", "function"):
            raise _shape(f"{where}.type", "'function'", kind)
        function = call.get("function")
        function = {} if function is None else _object(function, f"{where}.function")
        arguments = function.get("arguments")
        if arguments is None or type(arguments) is str:
            arguments = arguments or ""
        elif type(arguments) is dict and dialect.arguments_object:
            arguments = _raw_arguments(data, choice, at)
        else:
            raise _shape(f"{where}.function.arguments", "a string", arguments)
        extras = {k: v for k, v in call.items() if k not in ("index", "id", "type", "function") and v is not None}
        inner = {k: v for k, v in function.items() if k not in ("name", "arguments") and v is not None}
        if inner:
            extras["function"] = inner
        pieces.append(
            CallPiece(index, _text(call, "id", where), _text(function, "name", f"{where}.function"), arguments, extras)
        )
    return pieces


class _RawFunction(msgspec.Struct, frozen=True):
    arguments: msgspec.Raw = msgspec.Raw()


class _RawCall(msgspec.Struct, frozen=True):
    function: _RawFunction = _RawFunction()


class _RawDelta(msgspec.Struct):
    tool_calls: list[_RawCall] = []


class _RawChoice(msgspec.Struct):
    delta: _RawDelta


class _RawChunk(msgspec.Struct):
    choices: list[_RawChoice]


@functools.cache
def _raw_decoder() -> msgspec.json.Decoder[_RawChunk]:
    """Made when arguments come as an object."""
    return msgspec.json.Decoder(_RawChunk)


def _raw_arguments(data: bytes, choice: int, call: int) -> bytes:
    """The JSON text of arguments that were sent as an object, untouched by any number conversion."""
    try:
        return bytes(_raw_decoder().decode(data).choices[choice].delta.tool_calls[call].function.arguments)
    except msgspec.MsgspecError:
        raise Fault("bad_shape", "entries that are alike", "an object beside null") from None


def _objects(value: object, path: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if type(value) is not list:
        raise _shape(path, "an array or null", value)
    return [_object(item, f"{path}[{at}]") for at, item in enumerate(value)]


def _object(value: object, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise _shape(path, "an object", value)
    return value


def _half_text(owner: dict[str, Any], key: str, path: str) -> str:
    """A text that may end in half a character, for the assembler to join."""
    value = owner.get(key)
    if value is None:
        return ""
    if type(value) is not str:
        raise _shape(f"{path}.{key}", "a string or null", value)
    return value


def _text(owner: dict[str, Any], key: str, path: str) -> str:
    return _whole(_half_text(owner, key, path))


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Fault("invalid_json", "whole characters", "half a surrogate pair in a name or an id") from None
    return text


def _shape(path: str, expected: str, value: object) -> Fault:
    got = kind_of(value)
    return Fault("bad_shape", f"{path}: {expected}", got)
