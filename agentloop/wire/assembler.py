"""A stream's bytes, checked to the end, become one `ModelReply`.

Sans-IO: no socket, task, clock or logger. A driver feeds what it read and shows the deltas that come
back; when `ReplyAssembler.done` is set, or the body ended, it calls `finish`. Whatever breaks a rule
raises `StreamRefused` at once, with the event and the byte, and nothing of the stream becomes a reply.

The rules are in `draft`; here is how events get to them at little cost. The quickest way that can take an
event does: a `Stencil` (the chunk is like the last one but for its text), `plain_decoder` (a plain
delta, decoded at C speed), `Draft.judge` (anything). Each way hands on what it cannot take, and no way takes
what a slower one would refuse. Counting, joining and size checks are done once a read; the place of a
refusal is worked out when there is one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, islice
from operator import length_hint
from typing import Final, NoReturn

from ..errors import StreamRefused
from ..limits import EVENT_BYTES, RESPONSE_BYTES
from ..messages.reply import ModelReply
from .deltas import CallDelta, Delta, TextDelta
from .dialect import Dialect
from .draft import DONE, Draft
from .fault import Fault
from .plain import UNDECODABLE, PlainChunk, plain_decoder
from .presets import OPENAI
from .sse import SSEDecoder

__all__ = ["ReplyAssembler"]

_FRAME: Final = len(b"data: ") + len(b"\n\n")


class ReplyAssembler:
    """Bytes of one response body in, previews out, one checked reply at the end.

    The result never depends on where the bytes were cut. Cost is linear in the bytes.

    Attributes:
        dialect: the allowances in force.
        done: ``[DONE]`` was read and the reply is complete; whatever follows is ignored.
    """

    __slots__ = ("_decode_plain", "_draft", "_failure", "_quick_bytes", "_ready", "_sse", "dialect", "done")

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
        self._draft = Draft(dialect, max_reply_bytes=max_reply_bytes)
        self._decode_plain = plain_decoder()
        self._ready = False  # the next byte begins an event, which may be a plain delta
        self._quick_bytes = 0  # as far as here the body fits every limit, whatever it says
        self._failure: Exception | None = None

    @property
    def progress(self) -> int:
        """Events so far that carried data: what the idle clock watches. Comments are none."""
        return self._sse.dispatched - self._draft.silent

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
            InputError: the dialect's ``call_text`` answered with what are no calls; again so too.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if self._ready and (deltas := self._feed_one(chunk)) is not None:
                return deltas
            if self.done:
                return []
            block = self._sse.peek(chunk)
            if block is None or (block and not self._read_block(chunk, block)):
                self._read_lines(chunk)
            self.done = self._draft.reply is not None
            self._ready = self._draft.quick and self._sse.is_idle
            return self._draft.show()
        except Exception as error:
            self._failure = error
            raise

    def finish(self) -> ModelReply:
        """The reply. Call it when `done`, or when the body has ended.

        Raises:
            StreamRefused: ``truncated``, ``missing_done``, or whatever `feed` raised.
            InputError: as `feed`.
        """
        if self._failure is not None:
            raise self._failure
        reply = self._draft.reply
        if reply is not None:
            return reply
        try:
            return self._end()
        except Exception as error:
            self._failure = error
            raise

    def refusal(self, code: str, expected: str, got: str) -> StreamRefused:
        """The refusal for what only the driver sees (a clock, a reset), at the present position."""
        return Fault(code, expected, got).at(self._sse.dispatched, self._sse.bytes_seen, dialect=self.dialect.name)

    def _feed_one(self, chunk: bytes) -> list[Delta] | None:
        """`feed` for one plain event that begins and ends with its read; None takes nothing.

        Servers that write each token at once send nothing else, so this runs once for each token and calls
        as little as it can.
        """
        sse, draft, size = self._sse, self._draft, len(chunk)
        seen = sse.bytes_seen + size
        if size > sse.max_event_bytes or (seen > self._quick_bytes and not self._is_quick(seen)):
            return None
        stencil = draft.stencils.current
        if stencil is not None and (text := stencil.read_one(chunk)) is not None:
            sse.bytes_seen = seen
            sse.dispatched += 1
            if stencil.field != draft.direct or not text:
                draft.take_texts(stencil.field, [text])
                return draft.show()
            offset = draft.text_chars
            draft.text_chars = offset + len(text)
            draft.text.append(text)
            return [TextDelta(text, offset)]
        if size < _FRAME or chunk[-1] != 10 or chunk[-2] != 10 or chunk[:6] != b"data: ":
            return None
        data = chunk[6:-2]
        if 10 in data or 13 in data:
            return None
        try:
            if not data.isascii():
                data.decode()
            decoded = self._decode_plain(data)
        except UNDECODABLE:
            return None
        if decoded.id != draft.last_id or decoded.model != draft.last_model:
            return None
        delta = decoded.choices[0].delta
        if pieces := delta.tool_calls:
            piece, arguments = pieces[0], pieces[0].function.arguments
            if len(pieces) > 1 or piece.index >= draft.plain_calls or piece.id or piece.function.name:
                return None
            if delta.content or delta.reasoning_content or delta.reasoning or not arguments:
                return None
            call = draft.calls.calls[piece.index]
            call.pieces.append(arguments)
            call.shown += 1
            draft.calls.chars += len(arguments)
            sse.bytes_seen = seen
            sse.dispatched += 1
            return [CallDelta(call.position, call.id, call.name, arguments)]
        draft.take_plain(delta)
        sse.bytes_seen = seen
        sse.dispatched += 1
        draft.stencils.missed(data, decoded)
        return draft.show()

    def _read_block(self, chunk: bytes, block: bytes) -> bool:
        """Read whole events quickly; False takes nothing."""
        sse, draft = self._sse, self._draft
        quick = self._is_quick(sse.bytes_seen + len(chunk))
        stencil = draft.stencils.current
        if stencil is not None and draft.quick and quick and len(block) <= sse.max_event_bytes:
            texts = stencil.read_block(block)
            if texts is not None:
                sse.take(chunk, block)
                sse.passed(stencil.events)
                draft.take_texts(stencil.field, texts)
                return True
        pieces = sse.split(block)
        if pieces is None:
            return False
        sse.take(chunk, block)
        walk = iter(pieces)
        try:
            if quick:
                self._walk(walk)
            else:
                self._walk_measured(walk, pieces)
        except Fault as fault:
            at = len(pieces) - length_hint(walk) - 1
            byte = sse.started + sum(map(len, pieces[:at])) + _FRAME * at
            self._refuse(fault, sse.dispatched + at, byte)
        sse.passed(len(pieces) - length_hint(walk))
        return True

    def _read_lines(self, chunk: bytes) -> None:
        """Read anything, line by line."""
        try:
            for event in self._sse.events(chunk):
                if event.name:
                    self._draft.judge(event.data, event.name)
                elif self._is_quick(self._sse.bytes_seen):
                    self._walk(iter((event.data,)))
                else:
                    self._walk_measured(iter((event.data,)), [event.data])
                if self._draft.reply is not None:
                    return
        except Fault as fault:
            self._refuse(fault, self._sse.dispatched, self._sse.started)

    def _walk(self, walk: Iterator[bytes]) -> None:
        """Read events until ``[DONE]``; when it raises, the one at fault is the last one taken from ``walk``."""
        draft = self._draft
        if draft.quick:
            self._glide(walk)
        for data in walk:
            draft.judge(data, "")
            if draft.quick:
                self._glide(walk)
            if draft.reply is not None:
                return

    def _walk_measured(self, walk: Iterator[bytes], pieces: list[bytes]) -> None:
        """`_walk` where the reply may come to its limit: it is measured there after each event.

        As many events as cannot reach the limit, whatever they say, are read at once.
        """
        draft = self._draft
        ends = [0, *accumulate(map(len, pieces))]
        at = 0
        while at < len(pieces) and draft.reply is None:
            safe = bisect_right(ends, ends[at] + draft.room()) - 1 - at
            self._walk(islice(walk, max(safe, 1)))
            if safe < 1 and draft.reply is None:
                draft.check_room()
            at += max(safe, 1)

    def _is_quick(self, seen: int) -> bool:
        """Whether the body up to byte ``seen`` fits every limit, whatever it says; no reply outgrows its bytes."""
        if seen <= self._quick_bytes:
            return True
        sse = self._sse
        self._quick_bytes = min(sse.max_response_bytes, sse.started + max(0, self._draft.room()))
        return seen <= self._quick_bytes

    def _glide(self, walk: Iterator[bytes]) -> None:
        """Read plain deltas, and what lies between them, until something ends that: a finish, half a character."""
        draft, decode_plain = self._draft, self._decode_plain
        last_id, last_model = draft.last_id, draft.last_model
        add_text, calls, touched = draft.new_text.append, draft.calls.calls, draft.touched
        chars = 0
        chunk: PlainChunk | None = None
        for data in walk:
            try:
                chunk = decode_plain(data)
            except UNDECODABLE:
                chunk = None
                draft.judge(data, "")
                if not draft.quick:
                    break
                last_id, last_model = draft.last_id, draft.last_model
                continue
            if chunk.id != last_id or chunk.model != last_model:
                draft.check_identity(chunk.id, chunk.model)
                last_id, last_model = chunk.id, chunk.model
            delta = chunk.choices[0].delta
            text, pieces = delta.content, delta.tool_calls
            if delta.reasoning_content or delta.reasoning:
                draft.take_plain(delta)
            elif text and not pieces:
                add_text(text)
            elif pieces and not text:
                for piece in pieces:
                    arguments = piece.function.arguments
                    if arguments and piece.index < draft.plain_calls and not (piece.id or piece.function.name):
                        touched[piece.index] = call = calls[piece.index]
                        call.pieces.append(arguments)
                        chars += len(arguments)
                    else:
                        draft.add_plain_call(piece)
            elif text or pieces:
                draft.take_plain(delta)
        draft.calls.chars += chars
        if chunk is not None:
            draft.stencils.missed(data, chunk)

    def _end(self) -> ModelReply:
        """The body ended without a ``[DONE]`` that a blank line ends."""
        sse, draft, dialect = self._sse, self._draft, self.dialect
        try:
            sse.end()
        except Fault as fault:
            self._refuse(fault, sse.dispatched, sse.started)
        pending = sse.pending
        is_done = pending is not None and not pending.name and pending.data.strip() == DONE
        try:
            if is_done and (dialect.done_unended or (dialect.done_absent and draft.finished)):
                draft.complete()
            elif not draft.finished:
                raise Fault("truncated", "a finish and [DONE]", "the end of the body")
            elif dialect.done_absent and not sse.is_cut and not draft.late:
                draft.complete()
            if draft.reply is None:
                raise Fault("missing_done", "[DONE] and a blank line", "the end of the body after the finish")
        except Fault as fault:
            self._refuse(fault, sse.dispatched, sse.bytes_seen)
        self.done = True
        return draft.reply

    def _refuse(self, fault: Fault, event: int, byte: int) -> NoReturn:
        raise fault.at(event, byte, dialect=self.dialect.name) from None
