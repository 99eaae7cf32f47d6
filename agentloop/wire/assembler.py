"""A stream's bytes, checked to the end, become one `ModelReply`.

Sans-IO: no socket, task, clock or logger. A driver feeds what it read and shows the deltas that come
back; when `ReplyAssembler.done` is set, or the body ended, it calls `finish`. Whatever breaks a rule
raises `StreamRefused` at once, with the event and the byte, and nothing of the stream becomes a reply.

Each event goes one of two ways. `_read_block` decodes it as a plain delta (`chunks.decode_plain`): a
few checks an event, everything else once a read. What does not decode as one, and everything after
the finish, goes through `_event`, where the rules are written out in the order in which they are judged:
JSON, error, identity, shape, choice, delta, calls, finish, usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Final, NoReturn

import msgspec

from ..errors import StreamRefused
from ..limits import EVENT_BYTES, RESPONSE_BYTES
from ..messages.parts import Termination, Text, ToolCall
from ..messages.reply import ModelReply
from .calls import OpenCall, OpenCalls
from .chunks import (
    UNDECODABLE,
    CallPiece,
    ChoicePiece,
    PlainChunk,
    PlainDelta,
    decode_plain,
    find_error,
    read_choices,
    read_identity,
    read_json,
    vendor_fault,
)
from .deltas import CallDelta, Delta, ReasoningDelta, TextDelta
from .dialect import Dialect
from .fault import Fault
from .identity import Identity
from .native import NativeParts, details_text, parts_thinking
from .presets import OPENAI
from .sse import SSEDecoder
from .surrogates import Halves
from .usage import UsageReport

__all__ = ["ReplyAssembler"]

_DONE: Final = b"[DONE]"
_FRAME: Final = len(b"data: ") + len(b"\n\n")


class ReplyAssembler:
    """Bytes of one response body in, previews out, one checked reply at the end.

    The result never depends on where the bytes were cut. Cost is linear in the bytes.

    Attributes:
        dialect: the allowances in force.
        done: ``[DONE]`` was read and the reply is complete; whatever follows is ignored.
    """

    def __init__(
        self,
        dialect: Dialect = OPENAI,
        *,
        max_event_bytes: int = EVENT_BYTES,
        max_response_bytes: int = RESPONSE_BYTES,
        max_reply_bytes: int | None = None,
    ) -> None:
        self.dialect = dialect
        self.done = False
        self._sse = SSEDecoder(max_event_bytes=max_event_bytes, max_response_bytes=max_response_bytes)
        self._max_reply_bytes = max_reply_bytes
        # no reply is larger than its body, so up to here nothing has to be measured
        self._quick_bytes = max_response_bytes if max_reply_bytes is None else min(max_response_bytes, max_reply_bytes)
        self._identity = Identity(dialect)
        self._last_id: str | None = None  # as in the last chunk: an equal one needs no check
        self._last_model: str | None = None
        self._halves = Halves()
        self._calls = OpenCalls(dialect, self._halves)
        self._usage = UsageReport(dialect)
        self._native = NativeParts()
        self._quick = False  # the next event may be a plain delta; not before the first chunk
        self._ready = False  # and the next byte begins an event
        self._finished = False
        self._finish: str | None = None
        self._text: list[str] = []  # body text, one string a read
        self._text_chars = 0
        self._text_at: int | None = None  # number of calls that began before the text
        self._reasoning_chars = 0
        self._new_text: list[str] = []  # of this read
        self._new_reasoning: list[str] = []
        self._touched: dict[int, OpenCall] = {}  # the calls of this read, by position
        self._silent = 0  # events without data
        self._reply: ModelReply | None = None
        self._refusal: StreamRefused | None = None

    @property
    def progress(self) -> int:
        """Events so far that carried data: what the idle clock watches. Comments are none."""
        return self._sse.dispatched - self._silent

    @property
    def events(self) -> int:
        """Complete server-sent events so far."""
        return self._sse.dispatched

    @property
    def bytes_seen(self) -> int:
        """Bytes of the body so far."""
        return self._sse.bytes_seen

    def feed(self, chunk: bytes) -> list[Delta]:
        """Take the next bytes; return what they show: at most one text, one reasoning, one piece a call.

        Raises:
            StreamRefused: any code of the table; the same again when fed once more.
        """
        # One plain event and nothing else, as a server sends it that writes each token at once.
        if self._ready and (decoded := self._decode_one(chunk)) is not None:
            delta = decoded.choices[0].delta
            text = delta.content
            if text and not (delta.tool_calls or delta.reasoning_content or delta.reasoning):
                offset = self._text_chars
                self._text_chars = offset + len(text)
                self._text.append(text)
                return [TextDelta(text, offset)]
            self._take_plain(delta)
            return self._show()
        if self._refusal is not None:
            raise self._refusal
        if self.done:
            return []
        pieces = self._sse.plain(chunk)
        if pieces is None:
            self._read_lines(chunk)
        elif pieces:
            self._read_block(pieces)
        self._ready = self._quick and self._sse.is_idle
        return self._show()

    def finish(self) -> ModelReply:
        """The reply. Call it when `done`, or when the body has ended.

        Raises:
            StreamRefused: ``truncated``, ``missing_done``, or whatever `feed` raised.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._reply is None:
            self._ready = False
            try:
                self._sse.end()
            except Fault as fault:
                self._refuse(fault, self._sse.dispatched, self._sse.started)
            try:
                return self._end()
            except Fault as fault:
                self._refuse(fault, self._sse.dispatched, self._sse.bytes_seen)
        return self._reply

    def refusal(self, code: str, expected: str, got: str) -> StreamRefused:
        """The refusal for what only the driver sees (a clock, a reset), at the present position."""
        return Fault(code, expected, got).at(self._sse.dispatched, self._sse.bytes_seen, dialect=self.dialect.name)

    # reading

    def _decode_one(self, chunk: bytes) -> PlainChunk | None:
        """The chunk's only event, when it is plain and nothing of it needs the rules; None takes nothing.

        Everything is done in here that costs anything: this runs once for each token of a live stream.
        """
        line, _, rest = chunk.partition(b"\n")
        if rest != b"\n" or line[:6] != b"data: " or 13 in line:
            return None
        sse = self._sse
        seen = sse.bytes_seen + len(chunk)
        if seen > self._quick_bytes or len(line) > sse.max_event_bytes:
            return None
        try:
            if not line.isascii():
                line.decode()
            decoded = decode_plain(line[6:])
        except UNDECODABLE:
            return None
        if decoded.id != self._last_id or decoded.model != self._last_model:
            return None
        sse.bytes_seen = seen
        sse.dispatched += 1
        return decoded

    def _read_block(self, pieces: list[bytes]) -> None:
        walk = iter(pieces)
        try:
            if self._sse.bytes_seen <= self._quick_bytes:
                self._walk(walk)
            else:
                self._walk_measured(walk)
        except Fault as fault:
            at = len(pieces) - length_hint(walk) - 1
            byte = self._sse.started + sum(map(len, pieces[:at])) + _FRAME * at
            self._refuse(fault, self._sse.dispatched + at, byte)
        self._sse.passed(len(pieces) - length_hint(walk))

    def _read_lines(self, chunk: bytes) -> None:
        try:
            for event in self._sse.events(chunk):
                if event.name:
                    self._event(event.data, event.name)
                elif self._sse.bytes_seen <= self._quick_bytes:
                    self._walk(iter((event.data,)))
                else:
                    self._walk_measured(iter((event.data,)))
                if self.done:
                    return
        except Fault as fault:
            self._refuse(fault, self._sse.dispatched, self._sse.started)

    def _walk(self, walk: Iterator[bytes]) -> None:
        """Read events until ``[DONE]``; when it raises, the one at fault is the last one taken from ``walk``."""
        if self._quick:
            self._glide(walk)
        if self.done:
            return
        for data in walk:
            self._event(data, "")
            if self._quick:
                self._glide(walk)
            if self.done:
                return

    def _walk_measured(self, walk: Iterator[bytes]) -> None:
        """`_walk` for a body that is larger than its reply may be: the reply is measured after each event."""
        size = self._text_chars + self._reasoning_chars
        size += sum(map(len, self._new_text)) + sum(map(len, self._new_reasoning))
        for data in walk:
            texts, thoughts = len(self._new_text), len(self._new_reasoning)
            self._walk(iter((data,)))
            if self.done:
                return
            size += sum(map(len, self._new_text[texts:])) + sum(map(len, self._new_reasoning[thoughts:]))
            self._check_size(size + self._calls.chars)

    def _glide(self, walk: Iterator[bytes]) -> None:
        """Read plain deltas, and what lies between them, until something ends that: a finish, half a character."""
        last_id, last_model = self._last_id, self._last_model
        add_text = self._new_text.append
        for data in walk:
            try:
                chunk = decode_plain(data)
            except UNDECODABLE:
                self._event(data, "")
                if not self._quick:
                    return
                last_id, last_model = self._last_id, self._last_model
                continue
            if chunk.id != last_id or chunk.model != last_model:
                self._check_identity(chunk.id, chunk.model)
                last_id, last_model = chunk.id, chunk.model
            delta = chunk.choices[0].delta
            if delta.content and not (delta.tool_calls or delta.reasoning_content or delta.reasoning):
                add_text(delta.content)
            else:
                self._take_plain(delta)

    def _take_plain(self, delta: PlainDelta) -> None:
        if delta.content:
            self._new_text.append(delta.content)
        if delta.tool_calls:
            opened, calls = self._calls, self._calls.calls
            for piece in delta.tool_calls:
                function = piece.function
                if opened.plain and piece.index < len(calls) and not piece.id and function and not function.name:
                    if function.arguments:
                        self._touched[piece.index] = call = calls[piece.index]
                        call.pieces.append(function.arguments)
                        opened.chars += len(function.arguments)
                else:
                    name, arguments = (function.name, function.arguments) if function else ("", "")
                    self._add_call(CallPiece(piece.index, piece.id or "", name or "", arguments or "", {}))
        if delta.reasoning_content:
            self._native.reasoning_content.append(delta.reasoning_content)
            self._new_reasoning.append(delta.reasoning_content)
        if delta.reasoning:
            self._native.reasoning.append(delta.reasoning)
            if not delta.reasoning_content:
                self._new_reasoning.append(delta.reasoning)

    def _event(self, data: bytes, name: str) -> None:
        """Judge one event by all rules, in their order."""
        if not data or data.isspace():
            if name == "error":
                raise vendor_fault(None)
            self._silent += 1
            return
        if name != "error" and data.strip() == _DONE:
            self._complete()
            return
        split = self.dialect.surrogates_split
        if name == "error":
            raise _error_event(data)
        chunk = read_json(data, split_surrogates=split)
        find_error(chunk)
        id_, model = read_identity(chunk)
        self._check_identity(id_, model)
        usage = chunk.get("usage")
        if usage is None and self.dialect.usage_in_x_groq:
            x_groq = chunk.get("x_groq")
            usage = x_groq.get("usage") if type(x_groq) is dict else None
        for choice in read_choices(chunk, data, self.dialect):
            self._choice(choice)
            if usage is None and self.dialect.usage_in_choice:
                usage = choice.usage
        if usage is not None:
            self._usage.add(usage, finished=self._finished)
        self._quick = not self._finished and not self._halves.held

    def _check_identity(self, id_: str | None, model: str | None) -> None:
        self._identity.check(id_ or "", model or "")
        self._last_id, self._last_model = id_, model

    # one choice

    def _choice(self, choice: ChoicePiece) -> None:
        if self._finished and not choice.is_empty:
            self._check_late(choice)
        take = self._halves.take
        content = take("content", choice.content)
        if content:
            self._new_text.append(content)
        if choice.parts:
            self._native.add_parts(choice.parts)
        elif content:
            self._native.add_text(content)
        for call in choice.calls:
            self._add_call(call)
        shown = ""
        if choice.reasoning:
            shown = take("reasoning", choice.reasoning)
            self._native.reasoning.append(shown)
        if choice.reasoning_content:
            shown = take("reasoning_content", choice.reasoning_content)
            self._native.reasoning_content.append(shown)
        if not choice.reasoning and not choice.reasoning_content:
            shown = take("thinking", parts_thinking(choice.parts) or details_text(choice.details))
        if shown:
            self._new_reasoning.append(shown)
        self._native.refusal.append(take("refusal", choice.refusal))
        self._native.add(choice.details, choice.extras)
        if choice.finish is not None:
            self._take_finish(choice.finish)

    def _check_late(self, choice: ChoicePiece) -> None:
        calls = any(call.id or call.name or call.arguments for call in choice.calls)
        other = choice.content or choice.parts or choice.reasoning or choice.reasoning_content or choice.refusal
        if calls and not self.dialect.calls_after_finish:
            raise Fault("after_terminal", "no delta after the finish", "a piece of a call")
        if (other or choice.details or not calls) and not self.dialect.delta_after_finish:
            raise Fault("after_terminal", "no delta after the finish", "a delta that is not empty")

    def _add_call(self, piece: CallPiece) -> None:
        before = len(self._calls.calls)
        call = self._calls.add(piece)
        self._touched[call.position] = call
        if len(self._calls.calls) > before and self._text_at is None and (self._new_text or self._text):
            self._text_at = before

    def _take_finish(self, word: str) -> None:
        if self._finished:
            if self.dialect.finish_first or (self.dialect.finish_repeated and word == self._finish):
                return
            raise Fault("duplicate_terminal", "one finish", f"a second one, {_word(word)}")
        self._finished, self._finish = True, word
        self._usage.finish()
        if self._halves.held:
            raise Fault("invalid_json", "surrogates in pairs", "half a surrogate pair before the finish")
        if not self.dialect.calls_after_finish:
            self._settle_calls()

    def _settle_calls(self) -> list[tuple[int, ToolCall]]:
        calls = self._calls.settle()
        if self._finish == "tool_calls" and not calls:
            raise Fault("terminal_conflict", "a call before the finish tool_calls", "none")
        return calls

    # the end

    def _end(self) -> ModelReply:
        """The body ended without a ``[DONE]`` that a blank line ends."""
        pending = self._sse.pending
        is_done = pending is not None and not pending.name and pending.data.strip() == _DONE
        if is_done and (self.dialect.done_unended or (self.dialect.done_absent and self._finished)):
            return self._complete()
        if not self._finished:
            raise Fault("truncated", "a finish and [DONE]", "the end of the body")
        if self.dialect.done_absent and not self._sse.is_cut:
            return self._complete()
        raise Fault("missing_done", "[DONE] and a blank line", "the end of the body after the finish")

    def _complete(self) -> ModelReply:
        """The end is there; whatever a reply needs must be too."""
        if not self._finished:
            self._infer_finish()
        if self._halves.held:
            raise Fault("invalid_json", "surrogates in pairs", "half a surrogate pair before the end")
        usage = self._usage.settle()
        calls = self._settle_calls()
        reply = ModelReply(
            id=self._identity.id,
            model=self._identity.model,
            output=self._output(calls),
            termination=Termination.of(self._finish),
            usage=usage,
            native=self._native.build(self._calls.calls),
        )
        if self._max_reply_bytes is not None:
            self._check_size(len(msgspec.json.encode(reply)))
        self._reply = reply
        self.done = True
        self._quick = self._ready = False
        return reply

    def _infer_finish(self) -> None:
        if not (self.dialect.finish_inferred and self._calls.calls and self._calls.are_json()):
            raise Fault("missing_terminal", "a finish before [DONE]", "none")

    def _output(self, calls: list[tuple[int, ToolCall]]) -> tuple[Text | ToolCall, ...]:
        """Text and calls in the order in which they began; all text is one item."""
        output: list[Text | ToolCall] = [call for _, call in calls]
        text = "".join(self._text) + "".join(self._new_text)
        if text:
            at = self._text_at
            before = len(output) if at is None else sum(position < at for position, _ in calls)
            output.insert(before, Text(text=text))
        return tuple(output)

    def _check_size(self, size: int) -> None:
        allowed = self._max_reply_bytes
        if allowed is not None and size > allowed:
            expected = f"at most {allowed} bytes (max_reply_bytes)"
            raise Fault("oversized", expected, f"at least {size}", limit="max_reply_bytes", allowed=allowed)

    # what a read shows

    def _show(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._new_reasoning:
            text = "".join(self._new_reasoning)
            self._new_reasoning.clear()
            deltas.append(ReasoningDelta(text, self._reasoning_chars))
            self._reasoning_chars += len(text)
        if self._new_text:
            text = "".join(self._new_text)
            self._new_text.clear()
            self._text.append(text)
            deltas.append(TextDelta(text, self._text_chars))
            self._text_chars += len(text)
        if self._touched:
            for position, call in self._touched.items():
                deltas.append(CallDelta(position, call.id, call.name, call.take_new()))
            self._touched.clear()
        return deltas

    def _refuse(self, fault: Fault, event: int, byte: int) -> NoReturn:
        self._ready = False
        self._refusal = fault.at(event, byte, dialect=self.dialect.name)
        raise self._refusal from None


def _word(word: str) -> str:
    """A finish word for a message: short, and quoted."""
    return repr(word if len(word) <= 24 else word[:24] + "…")


def _error_event(data: bytes) -> Fault:
    """The refusal for an ``event: error``, whose data may be an error, hold one, or be plain text."""
    try:
        value = read_json(data, split_surrogates=True)
    except Fault:
        return vendor_fault(data.decode())
    return vendor_fault(value.get("error") or value)
