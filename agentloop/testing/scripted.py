"""A provider that answers from a script, without a network and without bytes.

    provider = ScriptedProvider([
        reply(calls=[call("read_note", id="n1")]),
        reply(text="The note says hello."),
    ])

It takes the same requests and gives the same replies as a real one, so it can replace it anywhere
(R163). It records every request, checks each, and fails loudly on one that the script does not
expect (R164). An entry of the script is

- a reply, made by `reply` or by hand;
- an exception: raised instead of a reply, before the stream begins if it is a `ProviderError`,
  where the reply would be otherwise; `broken` shows previews first;
- a function of the request, sync or async, that returns either: the answer then depends on what
  was really asked (R172).

Its replies are made of parts, so nothing is read out of their text: under a dialect with ``call_text`` a scripted
call is a call, a tag in a scripted text stays text, and only the measured request is written as for such a model.
`ReplayServer` and `ReplayProvider` hand over the bytes that a model wrote, and those are read as on the wire.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from ..admission import canonical_text, require_plain
from ..errors import InputError, LimitExceeded, ProviderError, StreamRefused
from ..limits import ENCODED_REQUEST_BYTES
from ..messages import (
    JsonText,
    ModelReply,
    ModelRequest,
    Native,
    Termination,
    Text,
    ToolCall,
    Usage,
    require_model_reply,
    require_model_request,
)
from ..providers import ModelStream, RequestInspection
from ..wire.deltas import CallDelta, Delta, ReasoningDelta, TextDelta
from ..wire.dialect import Dialect
from ..wire.encode import encode_request
from ..wire.presets import dialect as preset

__all__ = ["Broken", "ScriptError", "ScriptedCall", "ScriptedProvider", "broken", "call", "reply"]


class ScriptError(AssertionError):
    """What was sent is not what the script expects; a test fails on it, and no run survives it."""


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call in a script; ``id`` None is numbered by its place in the reply."""

    name: str
    arguments: str
    id: str | None = None


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that shows the previews of ``reply`` and then ends with ``error``."""

    reply: ModelReply
    error: Exception


_Answer = ModelReply | Exception | Broken
_Entry = _Answer | Callable[[ModelRequest], _Answer | Awaitable[_Answer]]


def call(
    name: str, /, *, call_id: str | None = None, arguments_text: str | None = None, **arguments: Any
) -> ScriptedCall:
    """A tool call for `reply`.

    Args:
        name: the tool's.
        call_id: by default ``call_1``, ``call_2``… by its place in the reply.
        arguments_text: the raw text, also of invalid JSON; instead of ``arguments``.
        arguments: encoded as JSON; a parameter of the tool with a name taken here needs ``arguments_text``.

    Raises:
        InputError: a name or text that is no string, or an argument that JSON cannot hold, by name.
    """
    _require_text("call.name", name)
    if call_id is not None:
        _require_text("call.call_id", call_id)
    if arguments_text is not None:
        _require_text("call.arguments_text", arguments_text)
    if arguments_text is not None and arguments:
        raise InputError("call: expected either arguments_text or single arguments, got both")
    text = _encoded(arguments) if arguments_text is None else arguments_text
    return ScriptedCall(name=name, arguments=text, id=call_id)


def _require_text(where: str, value: object) -> None:
    if type(value) is not str:
        raise InputError(f"{where}: expected str, got {type(value).__name__}")


def _encoded(arguments: dict[str, Any]) -> str:
    """The arguments as JSON; looks for the one to blame when there is one."""
    try:
        return msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        for name, value in arguments.items():
            try:
                msgspec.json.encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError):
                got = type(value).__name__
                raise InputError(f"call: argument {name!r}: expected a value that JSON can hold, got {got}") from error
        raise


def reply(
    text: str = "",
    *,
    calls: Iterable[ScriptedCall | ToolCall] = (),
    finish: str | None = None,
    usage: Usage | tuple[int, int] | None = None,
    reasoning: str | None = None,
    refusal: str | None = None,
    id: str = "scripted-reply",
    model: str = "scripted-model",
) -> ModelReply:
    """A complete reply: text, then calls.

    Args:
        finish: the finish word; by default ``tool_calls`` with calls, else ``stop``.
        usage: as reported, or (input tokens, output tokens); None is valid (R168).
        reasoning, refusal: kept in the reply's native part, as a stream would.

    Raises:
        InputError: ``text`` is no string, or ``calls`` no list of calls.
    """
    _require_text("reply.text", text)
    if not isinstance(calls, Iterable):
        raise InputError(f'reply.calls: expected a list, as in calls=[call("read_note")], got {type(calls).__name__}')
    output: list[Text | ToolCall] = [Text(text=text)] if text else []
    for at, item in enumerate(calls, 1):
        if isinstance(item, ScriptedCall):
            item = ToolCall(id=item.id or f"call_{at}", name=item.name, arguments=JsonText(text=item.arguments))
        elif not isinstance(item, ToolCall):
            raise InputError(f"reply.calls[{at - 1}]: expected call(…), got {type(item).__name__}")
        output.append(item)
    asked = any(isinstance(item, ToolCall) for item in output)
    native = {
        name: value for name, value in (("reasoning_content", reasoning), ("refusal", refusal)) if value is not None
    }
    if isinstance(usage, tuple):
        usage = Usage(input_tokens=usage[0], output_tokens=usage[1], total_tokens=usage[0] + usage[1])
    return ModelReply(
        id=id,
        model=model,
        output=tuple(output),
        termination=Termination.of(finish or ("tool_calls" if asked else "stop")),
        usage=usage,
        native=Native(data=canonical_text(require_plain(native))),
    )


def broken(shown: ModelReply, error: Exception) -> Broken:
    """An answer whose previews are those of ``shown``, and which then fails: no reply comes of it."""
    return Broken(reply=shown, error=error)


class ScriptedProvider:
    """Answers each send with the next entry of its script. See the module's docstring.

    Args:
        script: the entries, in order.
        deltas: characters of text, reasoning or arguments in one preview; None gives each whole.
        model, dialect: as a real provider's; the dialect decides how a request is measured, and
            what an agent asks; see the module's docstring for one with ``call_text``.
        max_request_bytes: as for `ChatCompletions`.

    Attributes:
        requests: every request sent, in order. attempts: their attempt ids.
    """

    name: Final = "scripted"

    def __init__(
        self,
        script: Sequence[_Entry],
        *,
        deltas: int | None = None,
        model: str = "scripted-model",
        dialect: str | Dialect = "openai",
        max_request_bytes: int = ENCODED_REQUEST_BYTES,
    ) -> None:
        if deltas is not None and (type(deltas) is not int or deltas < 1):
            raise InputError("ScriptedProvider.deltas: expected None or an integer of 1 or more")
        if not isinstance(script, Sequence):
            raise InputError(f"ScriptedProvider.script: expected a list of entries, got {type(script).__name__}")
        for at, entry in enumerate(script):
            if not isinstance(entry, (ModelReply, Exception, Broken)) and not callable(entry):
                raise InputError(f"ScriptedProvider.script[{at}]: got {type(entry).__name__}, which answers nothing")
        self.model = model
        self.dialect = preset(dialect) if isinstance(dialect, str) else dialect
        self.requests: list[ModelRequest] = []
        self.attempts: list[str] = []
        self._script: deque[_Entry] = deque(script)
        self._size, self._deltas, self.max_request_bytes = len(script), deltas, max_request_bytes
        self._given: list[ModelReply | None] = []  # the reply to each request, None where there was none
        self._open = 0

    def __repr__(self) -> str:
        return f"ScriptedProvider({len(self.requests)} of {self._size} entries used)"

    @property
    def left(self) -> int:
        """How many entries were not used yet."""
        return len(self._script)

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        """Say what the request would weigh. See `Provider.inspect_request`."""
        return RequestInspection.of(encode_request(request, model=self.model, dialect=self.dialect))

    def stream(
        self, request: ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """Take the next entry as the answer. See `Provider.stream`.

        Raises (when entered):
            ScriptError: the script has no entry left, or the request's exchanges are not what this
                provider answered before.
        """
        return _Send(self, request, attempt_id, max_reply_bytes)

    async def aclose(self) -> None:
        """Nothing is held."""

    def assert_complete(self) -> None:
        """Every entry was used, and no stream is open.

        Raises:
            ScriptError: says how many are left.
        """
        if self._script:
            raise ScriptError(f"script: expected {self._size} requests, got {len(self.requests)}")
        if self._open:
            raise ScriptError(f"script: expected every stream to be closed, got {self._open} open")

    async def _begin(self, request: ModelRequest, attempt_id: str, max_reply_bytes: int | None) -> _ScriptedStream:
        weight = self.inspect_request(request).body_bytes
        if weight > self.max_request_bytes:
            raise LimitExceeded("max_request_bytes", self.max_request_bytes, weight)
        require_model_request(request)
        self._check_exchanges(request)
        number = len(self.requests) + 1
        if not self._script:
            raise ScriptError(f"script: expected at most {self._size} requests, got number {number}")
        self.requests.append(request)
        self.attempts.append(attempt_id)
        self._given.append(None)
        answer = await _answer_of(self._script.popleft(), request)
        if isinstance(answer, ProviderError):
            raise answer
        stream = _ScriptedStream(answer, self._deltas)
        if stream.result is not None:
            self._given[number - 1] = stream.result
            _check_size(stream, self.dialect, max_reply_bytes)
        return stream

    def _check_exchanges(self, request: ModelRequest) -> None:
        """The last exchange answers the reply this provider gave, where it was this provider (R164)."""
        if not request.exchanges:
            return
        *before, last = request.exchanges
        parents = [
            given
            for sent, given in zip(self.requests, self._given, strict=True)
            if sent.messages == request.messages and list(sent.exchanges) == before and given is not None
        ]
        if parents and last.reply not in parents:
            at = len(before)
            raise ScriptError(f"request.exchanges[{at}]: expected the reply this provider gave there, got another")


async def _answer_of(entry: _Entry, request: ModelRequest) -> _Answer:
    if isinstance(entry, (ModelReply, Exception, Broken)):
        return entry
    made = entry(request)
    answer = await made if inspect.isawaitable(made) else made
    if isinstance(answer, ModelReply):
        return require_model_reply(answer)
    if isinstance(answer, (Exception, Broken)):
        return answer
    raise ScriptError(f"script: expected the function to return a reply or an error, got {type(answer).__name__}")


def _check_size(stream: _ScriptedStream, dialect: Dialect, allowed: int | None) -> None:
    """Hold the ceiling of a reply as a real stream would, at the end of the reply."""
    if allowed is None or stream.size <= allowed:
        return
    stream.error = StreamRefused(
        "oversized",
        0,
        0,
        f"a reply of at most {allowed} bytes",
        f"at least {stream.size}",
        dialect=dialect.name,
        limit="max_reply_bytes",
        allowed=allowed,
    )


class _Send:
    """One send of the script."""

    def __init__(self, owner: ScriptedProvider, request: ModelRequest, attempt_id: str, limit: int | None) -> None:
        self._owner, self._request, self._attempt_id, self._limit = owner, request, attempt_id, limit
        self._state: Literal["new", "entered", "open"] = "new"
        self._stream: _ScriptedStream | None = None

    async def __aenter__(self) -> ModelStream:
        if self._state != "new":
            raise InputError("stream: expected to be entered once; one send is one request")
        self._state = "entered"
        self._stream = await self._owner._begin(self._request, self._attempt_id, self._limit)
        self._state = "open"
        self._owner._open += 1
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "open":
            self._owner._open -= 1
            self._state = "entered"
        if self._stream is not None:
            self._stream.leave()


class _ScriptedStream:
    """Previews of one answer, then its reply or its error. Other tasks get a turn before each preview."""

    def __init__(self, answer: _Answer, deltas: int | None) -> None:
        shown = answer.reply if isinstance(answer, Broken) else answer if isinstance(answer, ModelReply) else None
        self.result = answer if isinstance(answer, ModelReply) else None
        self.error = answer.error if isinstance(answer, Broken) else answer if isinstance(answer, Exception) else None
        self.size = 0 if shown is None else len(msgspec.json.encode(shown))
        self._deltas = iter(()) if shown is None else _deltas(shown, deltas)
        self._over = False

    def leave(self) -> None:
        """The reader goes: what was not read is lost."""
        if not self._over:
            self._over, self._deltas, self.result = True, iter(()), None
            self.error = InputError("stream: expected to be read inside its async with block, got a read after it")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        await asyncio.sleep(0)
        for delta in self._deltas:
            return delta
        self._over = True
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    async def reply(self) -> ModelReply:
        async for _ in self:
            pass
        if self.result is None:
            raise ScriptError("script: a broken answer has no reply")
        return self.result


def _deltas(shown: ModelReply, size: int | None) -> Iterator[Delta]:
    """The previews a stream of this reply would give: reasoning, then the output in its order."""
    native = msgspec.json.decode(shown.native.data)
    for at, piece in _pieces(native.get("reasoning_content", ""), size):
        yield ReasoningDelta(text=piece, offset=at)
    chars = position = 0
    for item in shown.output:
        if isinstance(item, Text):
            for at, piece in _pieces(item.text, size):
                yield TextDelta(text=piece, offset=chars + at)
            chars += len(item.text)
        else:
            for _, piece in _pieces(item.arguments.text, size) or [(0, "")]:
                yield CallDelta(position=position, id=item.id, name=item.name, arguments=piece)
            position += 1


def _pieces(text: str, size: int | None) -> list[tuple[int, str]]:
    step = size or max(1, len(text))
    return [(at, text[at : at + step]) for at in range(0, len(text), step)]
