"""Server-sent events: bytes in, events out.

Source: WHATWG HTML Living Standard, section 9.2.6 "Interpreting an event stream", with three
deliberate differences. A line whose field name is none of the four is refused, where the standard
drops it and the text in it. Invalid UTF-8 is refused, where the standard puts U+FFFD. A bare
``event: error`` without data is an event here, so that nobody overlooks it.

Two readers share one position. `SSEDecoder.peek`, `split` and `take` read what nearly every chat server
sends, one ``data: `` line and a blank line an event, with a handful of C calls a block; they decline
anything else and consume nothing. `SSEDecoder.events` reads line by line, takes everything, and gives
the stream back to the quick reader at the next event border. What they return never depends on where
the bytes were cut, and each byte is searched at most twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ..errors import StreamRefused
from ..limits import EVENT_BYTES, RESPONSE_BYTES
from .fault import Fault

__all__ = ["SSEDecoder", "ServerSentEvent"]

_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = (b"data", b"event", b"id", b"retry")
_FIELDS = (b"data", b"event", b"id", b"retry")
"""Another name than these is not quoted: a line that was broken may begin with text of the reply."""

_NAME = re.compile(rb"[A-Za-z][A-Za-z_-]{0,23}\Z")
_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event.

    Attributes:
        data: its data lines, joined by line feeds; valid UTF-8.
        name: the event's name, ``""`` for the default one (``message``).
        byte: offset in the body of the first byte after the blank line before it.
    """

    data: bytes
    name: str
    byte: int


class SSEDecoder:
    """Bytes in, events out; owns no socket, task, clock or logger.

    Use one instance for one body. `feed` and `close` are all that most callers need; the assembler
    uses the two readers themselves. After a refusal it must not be fed again.

    Attributes:
        bytes_seen: bytes taken so far.
        started: offset of the first byte of the event that is being gathered.
        dispatched: number of complete events so far.
        pending: after `close`, the event that no blank line ended; the standard drops it.
        is_cut: after `close`, whether the body stops inside of an event or a field.
    """

    __slots__ = (
        "_after_cr",
        "_at_border",
        "_data",
        "_first_line",
        "_has_data",
        "_has_field",
        "_name",
        "_partial",
        "_partial_size",
        "_rest",
        "_size",
        "_tail",
        "_tail_size",
        "bytes_seen",
        "dispatched",
        "is_cut",
        "max_event_bytes",
        "max_response_bytes",
        "pending",
        "started",
    )

    def __init__(self, *, max_event_bytes: int = EVENT_BYTES, max_response_bytes: int = RESPONSE_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self.max_response_bytes = max_response_bytes
        self.bytes_seen = 0
        self.started = 0
        self.dispatched = 0
        self.pending: ServerSentEvent | None = None
        self.is_cut = False
        self._tail: list[bytes] = []  # the quick reader's bytes after the last event border
        self._tail_size = 0
        self._rest = b""  # between `peek` and `take`: what comes after the block
        self._at_border = True  # the line reader holds nothing: the quick one may go on
        self._partial: list[bytes] = []  # the line reader's bytes after the last line end
        self._partial_size = 0
        self._after_cr = False  # a line feed opening the next bytes ends no line
        self._first_line = True
        self._data: list[bytes] = []
        self._has_data = False
        self._has_field = False
        self._name = ""
        self._size = 0  # bytes of the complete lines of the event being gathered, without line ends

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes; return the events they complete, oldest first.

        Raises:
            StreamRefused: ``bad_framing``, ``invalid_utf8`` or ``oversized``, after the events before
                it were lost to the caller; read `events` where they matter.
        """
        try:
            return list(self.events(chunk))
        except Fault as fault:
            raise self._refused(fault) from None

    def close(self) -> list[ServerSentEvent]:
        """The body ended. Always empty: see `pending` for an event that no blank line ended.

        Raises:
            StreamRefused: ``bad_framing``, when the last line can be no field.
        """
        try:
            self.end()
        except Fault as fault:
            raise self._refused(fault) from None
        return []

    def peek(self, chunk: bytes) -> bytes | None:
        """The whole events that ``chunk`` completes, as one block, when it may be read quickly.

        Empty when it completes none: ``chunk`` was taken then. Otherwise nothing is taken before
        `take`. None when the block needs the line reader: then `events` wants the same chunk.
        """
        if not self._at_border or self._after_cr or 13 in chunk:
            return None
        seen = self.bytes_seen + len(chunk)
        if seen > self.max_response_bytes:
            return None
        cut = chunk.rfind(b"\n\n") + 2
        if cut == 1:
            if not self._tail or not (chunk.startswith(b"\n") and self._tail[-1].endswith(b"\n")):
                return self._keep(chunk, seen)
            cut = 1
        self._rest = chunk[cut:]
        if len(self._rest) > self.max_event_bytes:
            return None
        return b"".join([*self._tail, chunk[:cut]]) if self._tail else chunk[:cut]

    def split(self, block: bytes) -> list[bytes] | None:
        """The data of a block's events, when each is one ``data: `` line of valid UTF-8; else None."""
        if not block.startswith(b"data: "):
            return None
        pieces = block[6:-2].split(b"\n\ndata: ")
        if 10 in b"".join(pieces):
            return None
        if len(block) > self.max_event_bytes and max(map(len, pieces)) + 6 > self.max_event_bytes:
            return None
        if not block.isascii():
            try:
                block.decode()
            except UnicodeDecodeError:
                return None
        return pieces

    def take(self, chunk: bytes, block: bytes) -> None:
        """Take ``chunk``, of which `peek` made ``block``; `started` is left at the block's first event.

        The events are counted when they are done with, by `passed`.
        """
        self.bytes_seen += len(chunk)
        self._tail = [self._rest] if self._rest else []
        self._tail_size = len(self._rest)
        self.started = self.bytes_seen - self._tail_size - len(block)
        self._first_line = False

    def passed(self, count: int) -> None:
        """``count`` events of the block that was taken are done with, and no more of it will be read."""
        self.dispatched += count
        self.started = self.bytes_seen - self._tail_size

    def events(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Take the next bytes; give the events they complete one by one.

        The caller may stop early, for good. ``dispatched`` and ``started`` move past an event only when the
        next one is asked for, so they tell the place of the event in hand.

        Raises:
            Fault: the refusal, without its place, which is ``dispatched`` and ``started``.
        """
        data = b"".join([*self._tail, chunk]) if self._tail else chunk
        self._tail, self._tail_size = [], 0
        offset = self.bytes_seen - (len(data) - len(chunk))
        if self._at_border:
            self.started = offset
        self.bytes_seen += len(chunk)
        excess = self.bytes_seen - self.max_response_bytes
        if excess > 0:
            data = data[: len(data) - excess]
            self.bytes_seen = self.max_response_bytes
        yield from self._lines(data, offset)
        if excess > 0:
            raise self._too_big("max_response_bytes", self.max_response_bytes)

    def end(self) -> None:
        """The body ended: settle `pending`.

        Raises:
            Fault: ``bad_framing``, when the last line can be no field.
        """
        for _ in self.events(b""):
            raise AssertionError("no event can end without bytes")
        if self._partial:
            line = b"".join(self._partial)
            if self._first_line:
                line = line.removeprefix(_BOM)
            name, colon, _ = line.partition(b":")
            if not (line.startswith(b":") or name in _FIELDS or (not colon and _is_beginning(line))):
                raise _bad_line(line)
            if name == b"data":
                self._field(line)
            self.is_cut = not line.startswith(b":")
        self.is_cut = self.is_cut or self._has_field
        if self._has_data:
            self.pending = ServerSentEvent(b"\n".join(self._data), self._name, self.started)

    @property
    def is_idle(self) -> bool:
        """Whether the next byte begins an event, with nothing before it still undecided."""
        return self._at_border and not self._tail and not self._after_cr

    def _keep(self, chunk: bytes, seen: int) -> bytes | None:
        """No event ends in ``chunk``: hold it, unless the event may be too big already."""
        size = self._tail_size + len(chunk)
        if size > self.max_event_bytes:
            return None
        if chunk:
            self._tail.append(chunk)
        self._tail_size = size
        self.bytes_seen = seen
        return b""

    def _lines(self, data: bytes, offset: int) -> Iterator[ServerSentEvent]:
        begin = 0
        if data and self._after_cr:
            self._after_cr = False
            if data.startswith(b"\n"):
                begin = 1
                if self._at_border:
                    self.started = offset + 1
        for found in _LINE_END.finditer(data, begin):
            line = data[begin : found.start()]
            begin = found.end()
            self._after_cr = begin == len(data) and data.endswith(b"\r")
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)
                self._partial, self._partial_size = [], 0
            self._size += len(line)
            if self._size > self.max_event_bytes:
                raise self._too_big("max_event_bytes", self.max_event_bytes)
            if line:
                self._line(line)
                continue
            event = self._dispatch()
            if event is not None:
                yield event
                self.dispatched += 1
            self.started = offset + begin
        rest = data[begin:]
        if rest:
            self._at_border = False
            self._partial.append(rest)
            self._partial_size += len(rest)
            if self._size + self._partial_size > self.max_event_bytes:
                raise self._too_big("max_event_bytes", self.max_event_bytes)

    def _line(self, line: bytes) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        self._at_border = False
        if not line.isascii():
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise Fault(
                    "invalid_utf8", "UTF-8", f"byte {line[error.start]:#04x} where no character can hold it"
                ) from None
        if line and not line.startswith(b":"):
            self._field(line)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name not in _FIELDS:
            raise _bad_line(line)
        self._has_field = True
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._has_data = True
        elif name == b"event":
            self._name = value.decode()

    def _dispatch(self) -> ServerSentEvent | None:
        event = None
        if self._has_data or self._name == "error":
            event = ServerSentEvent(b"\n".join(self._data), self._name, self.started)
        self._data, self._has_data, self._has_field, self._name, self._size = [], False, False, "", 0
        self._at_border, self._first_line = True, False
        return event

    def _too_big(self, limit: str, allowed: int) -> Fault:
        """How much came is not known: the first byte too many decides."""
        got = f"at least {allowed + 1}"
        return Fault("oversized", f"at most {allowed} bytes ({limit})", got, limit=limit, allowed=allowed)

    def _refused(self, fault: Fault) -> StreamRefused:
        return fault.at(self.dispatched, self.started, dialect="openai")


def _is_beginning(line: bytes) -> bool:
    """Whether a line that was cut off may have become one with a known field name."""
    return any(name.startswith(line) for name in (*_FIELDS, _BOM))


def _bad_line(line: bytes) -> Fault:
    name = line.partition(b":")[0]
    if _NAME.match(name):
        known = any(word.startswith(name.lower()) for word in _FIELDS)
        got = f"field {name.decode()!r}" if known else f"a field of another name, {len(name)} letters long"
    elif line.startswith(b"<"):
        got = "a line of HTML or XML"
    elif line.startswith((b"{", b"[", b'"', b"}", b"]", b" ")):
        got = "a line of JSON outside a data field"
    else:
        got = f"a line of {len(line)} bytes that is no field"
    return Fault("bad_framing", "a line with the field data, event, id or retry, or a comment", got)
