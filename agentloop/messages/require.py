"""The checks of what a host hands in: everything, every time, and the same object back (R36-R47).

A constructor checks what it is given, but a host can hand in a subclass, an object that claims
another class, or a value that was changed behind the constructor's back; so nothing is trusted
because it was checked before. Types are compared exactly by ``type()``, which no property and no
proxy can answer for an object. The checks of the fields are read once from the struct
definitions, so a new field cannot be forgotten here; the rules of each struct are its own
``__post_init__``, run again; what remains are rules between values, written out below.

What the assembler and the decoders of this package built needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from ..admission import is_unicode, parse, pattern, to_type
from ..errors import AdmissionError, HistoryError, InputError
from ..limits import JSON_BYTES, JSON_VALUES
from .exchange import ModelExchange
from .feedback import ToolFeedback, ToolResult
from .parts import Native, Value
from .reply import ModelReply
from .request import FunctionSpec, ModelOptions, ModelRequest, ResponseFormat, ToolChoice, UserMessage

__all__ = [
    "decode_model_exchange",
    "decode_model_reply",
    "decode_model_request",
    "decode_tool_feedback",
    "decode_tool_result",
    "is_tool_name",
    "require_model_exchange",
    "require_model_reply",
    "require_model_request",
    "require_tool_feedback",
    "require_tool_result",
    "user_text",
]

_V = TypeVar("_V", bound=Value)
_Check = Callable[[Any, "_Walk"], None]

_INTEGER_BOUND: Final = 10**4_300
_TOOL_NAME: Final = pattern(r"[A-Za-z0-9_-]{1,64}\Z")

_SHORT: Final = JSON_BYTES // 8
"""Characters that are within the limit of a value however JSON escapes them."""


def require_model_request(value: ModelRequest) -> ModelRequest:
    """Check a whole request; return it.

    Besides its parts: at least one message, tool names unique and valid on the wire, a forced
    tool that is in the catalogue.

    Raises:
        AdmissionError: path and rule of the first fault; never the value.
        HistoryError: an exchange whose feedback is not complete and in call order.
    """
    return _require(value, ModelRequest)


def require_model_reply(value: ModelReply) -> ModelReply:
    """Check a whole reply; return it. Raises as `require_model_request`."""
    return _require(value, ModelReply)


def require_tool_result(value: ToolResult) -> ToolResult:
    """Check a tool's result; return it. Raises as `require_model_request`."""
    return _require(value, ToolResult)


def require_tool_feedback(value: ToolFeedback) -> ToolFeedback:
    """Check a result addressed to a call; return it. Raises as `require_model_request`."""
    return _require(value, ToolFeedback)


def require_model_exchange(value: ModelExchange) -> ModelExchange:
    """Check a reply with its feedback; return it. Raises as `require_model_request`."""
    return _require(value, ModelExchange)


def decode_model_request(data: bytes | str) -> ModelRequest:
    """A request from our own JSON, checked in full; unknown fields and versions are refused."""
    return _decode(data, ModelRequest)


def decode_model_reply(data: bytes | str) -> ModelReply:
    """A reply from our own JSON, checked in full; unknown fields and versions are refused."""
    return _decode(data, ModelReply)


def decode_tool_result(data: bytes | str) -> ToolResult:
    """A tool's result from our own JSON, checked in full."""
    return _decode(data, ToolResult)


def decode_tool_feedback(data: bytes | str) -> ToolFeedback:
    """Addressed feedback from our own JSON, checked in full."""
    return _decode(data, ToolFeedback)


def decode_model_exchange(data: bytes | str) -> ModelExchange:
    """A reply with its feedback from our own JSON, checked in full."""
    return _decode(data, ModelExchange)


def _decode(data: bytes | str, kind: type[_V]) -> _V:
    return _require(to_type(parse(data), kind), kind)


def _require(value: _V, kind: type[_V]) -> _V:
    walk = _Walk()
    fault: InputError | None = None
    try:
        _struct(kind)(value, walk)
    except _Fault as found:
        path = "$" + "".join(reversed(found.path))
        fault = HistoryError(found.code, path, found.rule) if found.code else AdmissionError(path, found.rule)
    if fault is not None:
        raise fault
    size = len(msgspec.json.encode(value))
    if size > JSON_BYTES:
        raise AdmissionError("$", f"expected at most {JSON_BYTES} bytes of JSON, got {size}")
    return value


class _Walk:
    """What one check has seen so far; ends a walk over far too much before it is encoded."""

    __slots__ = ("characters", "values")

    def __init__(self) -> None:
        self.values = 0
        self.characters = 0

    def count(self) -> None:
        self.values += 1
        if self.values > JSON_VALUES:
            raise _Fault(f"expected at most {JSON_VALUES} values, got more")

    def text(self, value: str) -> None:
        self.characters += len(value)
        if self.characters > JSON_BYTES:
            raise _Fault(f"expected at most {JSON_BYTES} bytes of JSON, got more")
        if not is_unicode(value):
            raise _Fault("expected Unicode text, got half a surrogate pair")


class _Fault(Exception):
    """A rule that is broken; the path gathers on the way out, innermost step first."""

    def __init__(self, rule: str, *path: str, code: str = "") -> None:
        super().__init__(rule)
        self.rule, self.path, self.code = rule, list(path), code


def _wrong(wanted: str, value: object) -> _Fault:
    return _Fault(f"expected {wanted}, got {type(value).__name__}")


# -- checks of types, read from the struct definitions ------------------------------------------


def _check_str(value: Any, walk: _Walk) -> None:
    if type(value) is not str:
        raise _wrong("str", value)
    walk.count()
    walk.text(value)


def _check_int(value: Any, walk: _Walk) -> None:
    if type(value) is not int:
        raise _wrong("int", value)
    walk.count()
    if not -_INTEGER_BOUND < value < _INTEGER_BOUND:
        raise _Fault("expected an integer of at most 4300 digits, got more")


def _check_float(value: Any, walk: _Walk) -> None:
    if type(value) is not float:
        raise _wrong("float", value)
    walk.count()
    if not math.isfinite(value):
        raise _Fault("expected a finite number")


def _check_bool(value: Any, walk: _Walk) -> None:
    if type(value) is not bool:
        raise _wrong("bool", value)
    walk.count()


def _check_none(value: Any, walk: _Walk) -> None:
    if value is not None:
        raise _wrong("None", value)
    walk.count()


def _literal(words: tuple[Any, ...]) -> _Check:
    def check(value: Any, walk: _Walk) -> None:
        walk.count()
        if not any(type(value) is type(word) and value == word for word in words):
            raise _Fault(f"expected {' or '.join(map(repr, words))}, got another {type(value).__name__}")

    return check


def _tuple(item: _Check) -> _Check:
    def check(value: Any, walk: _Walk) -> None:
        if type(value) is not tuple:
            raise _wrong("tuple", value)
        walk.count()
        for at, member in enumerate(value):
            try:
                item(member, walk)
            except _Fault as fault:
                fault.path.append(f"[{at}]")
                raise

    return check


def _union(checks: dict[type, _Check]) -> _Check:
    wanted = " or ".join(kind.__name__ for kind in checks).replace("NoneType", "None")

    def check(value: Any, walk: _Walk) -> None:
        found = checks.get(type(value))
        if found is None:
            raise _wrong(wanted, value)
        found(value, walk)

    return check


def _struct(kind: type[Any]) -> _Check:
    if kind in _CHECKS:
        return _CHECKS[kind]
    fields: list[tuple[str, _Check]] = []
    rules = _RULES.get(kind)
    again: Callable[[Any], None] | None = getattr(kind, "__post_init__", None)

    def check(value: Any, walk: _Walk) -> None:
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        walk.count()
        for name, field in fields:
            try:
                field(getattr(value, name), walk)
            except _Fault as fault:
                fault.path.append(f".{name}")
                raise
        if again is not None:
            try:
                again(value)
            except HistoryError as error:
                raise _Fault(error.rule, error.path.removeprefix("$"), code=error.code) from None
            except InputError as error:
                raise _Fault(str(error)) from None
        if rules is not None:
            rules(value)

    _CHECKS[kind] = check
    described: Any = inspect.type_info(kind)
    fields.extend((field.name, _compile(field.type)) for field in described.fields)
    return check


_SCALARS: Final[dict[type, tuple[type, _Check]]] = {
    inspect.StrType: (str, _check_str),
    inspect.IntType: (int, _check_int),
    inspect.FloatType: (float, _check_float),
    inspect.BoolType: (bool, _check_bool),
    inspect.NoneType: (type(None), _check_none),
}


def _compile(described: Any) -> _Check:
    """The check of one annotation."""
    if isinstance(described, inspect.StructType):
        return _struct(described.cls)
    if isinstance(described, inspect.LiteralType):
        return _literal(described.values)
    if isinstance(described, inspect.VarTupleType):
        return _tuple(_compile(described.item_type))
    if isinstance(described, inspect.UnionType):
        return _union({_class_of(member): _compile(member) for member in described.types})
    return _SCALARS[type(described)][1]


def _class_of(described: Any) -> type:
    if isinstance(described, inspect.StructType):
        return described.cls
    if isinstance(described, inspect.LiteralType):
        return type(described.values[0])
    if isinstance(described, inspect.VarTupleType):
        return tuple
    return _SCALARS[type(described)][0]


# -- rules between values -----------------------------------------------------------------------


def _json_object(text: str, field: str) -> None:
    try:
        value = parse(text)
    except AdmissionError as error:
        raise _Fault(f"expected the text of a JSON object: {error}", f".{field}") from None
    if type(value) is not dict:
        raise _Fault(f"expected the text of a JSON object, got {type(value).__name__}", f".{field}")


def _request_rules(request: ModelRequest) -> None:
    if not request.messages:
        raise _Fault("expected at least one message", ".messages")
    names: set[str] = set()
    for at, spec in enumerate(request.tools):
        if spec.name in names:
            raise _Fault("expected a name unique in the request", ".name", f"[{at}]", ".tools")
        names.add(spec.name)
    choice = request.options.tool_choice
    if type(choice) is ToolChoice and choice.name not in names:
        raise _Fault("expected the name of a tool in the request", ".tool_choice", ".options")


def is_tool_name(name: str) -> bool:
    """Whether a name is valid on the wire for a function, or for an output: 1 to 64 of ``A-Z a-z 0-9 _ -``."""
    return _TOOL_NAME().match(name) is not None


def user_text(text: str) -> UserMessage:
    """The user message that says ``text``, checked whole; the short ones, which most are, the quick way.

    Raises:
        AdmissionError: it is too large, or UTF-8 cannot encode it.
    """
    message = UserMessage(content=text)
    if len(text) > _SHORT or not is_unicode(text):  # a short str that UTF-8 encodes has nothing else to check
        require_model_request(ModelRequest(messages=(message,)))
    return message


def _function_rules(spec: FunctionSpec) -> None:
    if not is_tool_name(spec.name):
        raise _Fault("expected 1 to 64 of A-Z a-z 0-9 _ -", ".name")
    _json_object(spec.parameters, "parameters")


def _options_rules(options: ModelOptions) -> None:
    _json_object(options.extra, "extra")


def _format_rules(wanted: ResponseFormat) -> None:
    if wanted.schema is not None:
        _json_object(wanted.schema, "schema")


def _native_rules(native: Native) -> None:
    _json_object(native.data, "data")


_RULES: Final[dict[type[Value], Callable[[Any], None]]] = {
    FunctionSpec: _function_rules,
    ModelOptions: _options_rules,
    ModelRequest: _request_rules,
    Native: _native_rules,
    ResponseFormat: _format_rules,
}
_CHECKS: Final[dict[type[Value], _Check]] = {}
"""Made when first asked for, from the struct definitions."""
