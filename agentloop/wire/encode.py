"""From a `ModelRequest` to the bytes of a Chat Completions request.

The members of a request stand in one fixed order and ``messages`` comes last, so a request without
its closing ``]}`` is a byte prefix of the conversation's next request, in the same turn and in the
turns after it (as long as options and tools stay the same): prompt caches hold, and an encoded
message is never encoded again. The bytes of a message are kept in the ``__dict__`` of the message,
under one key an encode profile; equality, hashing and records know nothing of it. A turn therefore
costs the encoding of what is new, plus one copy of the whole.

What a message says is sent as it is. A tool's result is a ``tool`` message and nothing else (R34);
its status is not a field of the protocol, and no word is added to its text (R33).

Where a dialect has its calls in text, a request has no ``tools``, and what it would say there ends the leading
system message; an assistant message is the text as the model wrote it, and the results of its calls are one user
message. The order and the prefix stay. An exchange that holds a call which could not be read is written so in every
dialect, since no server takes such a call.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

from ..admission.canonical import canonical
from ..admission.strict_json import parse
from ..errors import AdmissionError, HistoryError, InputError
from ..messages.exchange import ModelExchange
from ..messages.instruction import leading_system, lengthened
from ..messages.parts import ImagePart, TextPart, ToolCall
from ..messages.reply import ModelReply
from ..messages.request import (
    FunctionSpec,
    Message,
    ModelOptions,
    ModelRequest,
    ResponseFormat,
    SystemMessage,
    ToolChoice,
    UserMessage,
)
from .call_text import MALFORMED_CALL, CallText, ToolCallParser, call_instruction, written_result, written_text
from .catalogue import declared_tool, schema_text
from .dialect import Dialect

__all__ = ["EncodedRequest", "encode_message", "encode_request"]

_TO_JSON: Final = msgspec.json.Encoder().encode
_KINDS: Final = frozenset({SystemMessage, UserMessage, ModelExchange})
_OWN_MEMBERS: Final = frozenset(
    {
        "messages",
        "model",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    }
)


class EncodedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An encoded request in two parts, and its sizes; joined only when the body is asked for.

    Attributes:
        head: everything up to and with the ``[`` of ``messages``.
        parts: the bytes of each message and exchange, in order.
        tool_bytes: size of the ``tools`` array inside ``head``, or of what is said of the tools in the first of
            ``parts``; 0 without tools.
        messages, exchanges: how many elements of each the request has.
        fresh: how many of ``parts`` had to be encoded now.
    """

    head: bytes
    parts: tuple[bytes, ...]
    tool_bytes: int
    messages: int
    exchanges: int
    fresh: int

    @property
    def body(self) -> bytes:
        """The bytes to send."""
        return b"".join((self.head, b",".join(self.parts), b"]}"))

    @property
    def message_bytes(self) -> int:
        """Size of the messages with the commas between them."""
        return sum(map(len, self.parts)) + max(0, len(self.parts) - 1)

    @property
    def body_bytes(self) -> int:
        """Size of ``body``, without building it."""
        return len(self.head) + self.message_bytes + 2


def encode_request(request: ModelRequest, *, model: str, dialect: Dialect) -> EncodedRequest:
    """Encode a request, reusing the bytes of every message that was encoded before.

    Raises:
        AdmissionError: a value of another type than the types say, a lone surrogate, or a schema
            that is not a JSON object; names the path.
        HistoryError: an exchange whose feedback does not answer its calls one by one (R32).
        InputError: ``extra`` names a member that is written here; a forced tool is not visible;
            usage is switched off under a dialect that requires it; the dialect's ``call_text`` writes what is no text.
    """
    if type(request) is not ModelRequest:
        raise AdmissionError("$", f"expected ModelRequest, got {type(request).__name__}")
    key = _memory_key(dialect)
    fresh = 0
    parts: list[bytes] = []
    for place, items in (("messages", request.messages), ("exchanges", request.exchanges)):
        for at, item in enumerate(items):
            if type(item) not in _KINDS:
                raise AdmissionError(f"$.{place}[{at}]", f"expected a message, got {type(item).__name__}")
            found = item.__dict__.get(key)
            if found is None:
                fresh += 1
                found = item.__dict__[key] = _encode_new(item, dialect, f"$.{place}[{at}]")
            parts.append(found)
    head = _HEADS.of(request, model, dialect)
    if head.instruction:
        fresh += _OPENINGS.put(parts, request.messages, head.instruction)
    return EncodedRequest(
        head=head.data,
        parts=tuple(parts),
        tool_bytes=head.tool_bytes,
        messages=len(request.messages),
        exchanges=len(request.exchanges),
        fresh=fresh,
    )


def encode_message(message: Message, dialect: Dialect) -> bytes:
    """Encode one message; an exchange gives its assistant and tool messages, comma separated.

    Raises:
        AdmissionError, HistoryError, InputError: as `encode_request`.
    """
    if type(message) not in _KINDS:
        raise AdmissionError("$", f"expected a message, got {type(message).__name__}")
    key = _memory_key(dialect)
    found: bytes | None = message.__dict__.get(key)
    if found is None:
        found = message.__dict__[key] = _encode_new(message, dialect, "$")
    return found


def _memory_key(dialect: Dialect) -> str:
    """Name the encode profile: everything of a dialect that changes a message's bytes."""
    profile = f"wire {dialect.assistant_content} {' '.join(dialect.replay)}"
    if dialect.call_text is not None:
        profile += f" text {_WAYS.setdefault(dialect.call_text, len(_WAYS))}"
    return profile


_WAYS: Final[dict[CallText, int]] = {}
"""A number for each way to write calls in text; equal ones write the same."""


def _encode_new(message: Message, dialect: Dialect, path: str) -> bytes:
    if isinstance(message, ModelExchange):
        return _encode_exchange(message, dialect, path)
    if isinstance(message, SystemMessage):
        return _encode_system(message.content, path)
    content = message.content
    return _json({"role": "user", "content": content if isinstance(content, str) else [*map(_part, content)]}, path)


def _encode_system(text: str, path: str) -> bytes:
    return _json({"role": "system", "content": text}, path)


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    image = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
    return {"type": "image_url", "image_url": image}


def _encode_exchange(exchange: ModelExchange, dialect: Dialect, path: str) -> bytes:
    """The assistant message, then one tool message a call, in call order (R32)."""
    calls = exchange.reply.calls
    if [call.id for call in calls] != [item.tool_call_id for item in exchange.feedback]:
        code = "missing_tool_result" if len(exchange.feedback) < len(calls) else "orphan_tool_result"
        raise HistoryError(code, f"{path}.feedback", "expected one feedback a call, in call order")
    call_text = dialect.call_text
    if call_text is None and any(call.name == MALFORMED_CALL for call in calls):
        call_text = _PLAIN_TEXT if "call_text" in parse(exchange.reply.native.data) else None
    if call_text is not None:
        return _encode_in_text(exchange, dialect, call_text, path)
    parts = [_json(_assistant(exchange.reply, dialect), f"{path}.reply")]
    for at, item in enumerate(exchange.feedback):
        message = {"role": "tool", "tool_call_id": item.tool_call_id, "content": item.text}
        parts.append(_json(message, f"{path}.feedback[{at}]"))
    return b",".join(parts)


_PLAIN_TEXT: Final = ToolCallParser()
"""How a reply with a call that could not be read is written whatever the dialect."""


def _encode_in_text(exchange: ModelExchange, dialect: Dialect, call_text: CallText, path: str) -> bytes:
    """The assistant message as it was written, and one user message with the results, in call order."""
    reply = exchange.reply
    native = parse(reply.native.data) if reply.native.data != "{}" else {}
    content = written_text(reply, native, call_text)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    as_written = not reply.calls or "call_text" in native  # else parts of content lack the calls
    for name in dialect.replay:
        if name in native and name != "calls" and (name != "content" or as_written):
            message[name] = _raw(native[name])
    if "refusal" in message and not content:
        message["content"] = None
    parts = [_json(message, f"{path}.reply")]
    if exchange.feedback:
        pairs = zip(reply.calls, exchange.feedback, strict=True)
        results = "\n".join(written_result(call_text, call, item) for call, item in pairs)
        parts.append(_json({"role": "user", "content": results}, f"{path}.feedback"))
    return b",".join(parts)


def _assistant(reply: ModelReply, dialect: Dialect) -> dict[str, Any]:
    native = parse(reply.native.data) if reply.native.data != "{}" else {}
    calls, text = reply.calls, reply.text
    message: dict[str, Any] = {"role": "assistant"}
    if text or not calls:
        message["content"] = text
    else:
        message["content"] = None if dialect.assistant_content == "null" else ""
    for name in dialect.replay:
        if name != "calls" and name in native and not (name == "content" and "call_text" in native):
            message[name] = _raw(native[name])
    if "refusal" in message and not text:
        message["content"] = None
    if calls:
        extras = native.get("calls", {}) if "calls" in dialect.replay else {}
        message["tool_calls"] = [_call(call, extras.get(str(at), {})) for at, call in enumerate(calls)]
    return message


def _call(call: ToolCall, extras: dict[str, Any]) -> dict[str, Any]:
    """One entry of ``tool_calls``; ``extras`` are fields of it that came from the provider and go back."""
    # an empty text is no JSON and servers refuse it; every other text goes back as it came
    function = {"name": call.name, "arguments": call.arguments.text or "{}"}
    function |= {name: _raw(value) for name, value in extras.get("function", {}).items()}
    others = {name: _raw(value) for name, value in extras.items() if name != "function"}
    return {"id": call.id, "type": "function", "function": function, **others}


class _Head(msgspec.Struct, frozen=True):
    options: ModelOptions
    tools: tuple[FunctionSpec, ...]
    model: str
    dialect: Dialect
    data: bytes
    tool_bytes: int
    instruction: str


class _NewestHead:
    """Keeps the head of the newest request: runs of one agent have the same options and tools, as the same objects.

    They are compared by identity, since equal options may be written differently: ``1`` and ``1.0``.
    """

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest: _Head | None = None

    def of(self, request: ModelRequest, model: str, dialect: Dialect) -> _Head:
        """The head of a request."""
        head, options, tools = self._newest, request.options, request.tools
        if (
            head is None
            or head.options is not options
            or head.tools is not tools
            or head.dialect is not dialect
            or head.model != model
        ):
            instruction = ""
            encoded = b""
            if dialect.call_text is not None:
                instruction = call_instruction(dialect.call_text, tools, options)
            elif tools:
                encoded = _encode_tools(tools)
            data = _encode_head(request, model, dialect, encoded)
            size = len(_json(instruction, "$.tools")) - 2 if instruction else len(encoded)
            head = self._newest = _Head(options, tools, model, dialect, data, size, instruction)
        return head


_HEADS: Final = _NewestHead()


class _NewestOpening:
    """Keeps the newest message that ends with an instruction on tools: a run begins all its requests with it."""

    __slots__ = ("_data", "_instruction", "_message")

    def __init__(self) -> None:
        self._message: Message | None = None
        self._instruction = ""
        self._data = b""

    def put(self, parts: list[bytes], messages: tuple[Message, ...], instruction: str) -> int:
        """Put the message in its place in front of the others; returns how many had to be encoded for it."""
        last = leading_system(messages) - 1
        message = messages[last] if last >= 0 else None
        known = self._data and message is self._message and instruction == self._instruction
        if not known:
            said = instruction if message is None else lengthened(message, instruction)
            self._data = _encode_system(said, "$.messages[0]")
            self._message, self._instruction = message, instruction
        if last >= 0:
            parts[last] = self._data
        else:
            parts.insert(0, self._data)
        return 0 if known else 1


_OPENINGS: Final = _NewestOpening()


def _encode_head(request: ModelRequest, model: str, dialect: Dialect, tools: bytes) -> bytes:
    options = request.options
    members: dict[str, Any] = {"model": model, "stream": True}
    if not options.include_usage:
        if not dialect.usage_absent:
            rule = f"expected True under dialect {dialect.name!r}, which needs usage, got False"
            raise InputError(f"ModelOptions.include_usage: {rule}")
    elif dialect.stream_options:
        members["stream_options"] = {"include_usage": True}
    members.update(_scalars(options, dialect))
    if options.response_format is not None:
        members["response_format"] = _response_format(options.response_format)
    asked = _tool_options(options, request.tools)
    if dialect.call_text is None:  # else it is said in the instruction
        members.update(asked)
    head = _json(members, "$.options")[:-1]
    if options.extra != "{}" and (extra := _extra_members(options.extra, dialect.max_tokens_field)):
        head = b"%b,%b" % (head, extra)
    return b'%b,"tools":%b,"messages":[' % (head, tools) if tools else b'%b,"messages":[' % head


def _scalars(options: ModelOptions, dialect: Dialect) -> dict[str, Any]:
    values = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        dialect.max_tokens_field: options.max_output_tokens,
        "stop": list(options.stop) or None,
        "seed": None if options.seed is None else msgspec.Raw(b"%d" % options.seed),  # any size
        "reasoning_effort": options.reasoning_effort,
    }
    return {name: value for name, value in values.items() if value is not None}


def _tool_options(options: ModelOptions, tools: tuple[FunctionSpec, ...]) -> dict[str, Any]:
    """``tool_choice`` and ``parallel_tool_calls``; servers refuse both in a request without tools."""
    choice = options.tool_choice
    members: dict[str, Any] = {}
    if isinstance(choice, ToolChoice):
        if all(tool.name != choice.name for tool in tools):
            raise InputError(f"ModelOptions.tool_choice: expected the name of a visible tool, got {choice.name!r}")
        members["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        if choice == "required" and not tools:
            raise InputError("ModelOptions.tool_choice: expected tools for 'required', got none")
        members["tool_choice"] = choice
    if not tools:
        return {}
    if options.parallel_tool_calls is not None:
        members["parallel_tool_calls"] = options.parallel_tool_calls
    return members


def _response_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.schema is None:
        return {"type": "json_object"}
    schema = {"name": wanted.name, "schema": schema_text(wanted.schema, "$.options.response_format.schema")}
    return {"type": "json_schema", "json_schema": {**schema, "strict": wanted.strict}}


@functools.lru_cache(maxsize=64)
def _encode_tools(tools: tuple[FunctionSpec, ...]) -> bytes:
    """The ``tools`` array. Remembered: a run sends the same catalogue with every request."""
    return _json([declared_tool(tool, f"$.tools[{at}]") for at, tool in enumerate(tools)], "$.tools")


@functools.lru_cache(maxsize=64)
def _extra_members(text: str, max_tokens_field: str) -> bytes:
    """The members of ``ModelOptions.extra``, as they stand in its text."""
    value = parse(text)
    if type(value) is not dict:
        raise InputError(f"ModelOptions.extra: expected the JSON text of an object, got {type(value).__name__}")
    if taken := sorted((_OWN_MEMBERS | {max_tokens_field}) & value.keys()):
        raise InputError(f"ModelOptions.extra: expected members that no option writes, got {', '.join(taken)}")
    return text.strip()[1:-1].strip().encode()


def _raw(value: Any) -> msgspec.Raw:
    """A value of native data, exactly: integers of any size, the sign of zero."""
    return msgspec.Raw(canonical(value))


def _json(value: Any, path: str) -> bytes:
    try:
        return _TO_JSON(value)
    except UnicodeEncodeError:
        raise AdmissionError(path, "expected text that UTF-8 can encode, got a lone surrogate") from None
