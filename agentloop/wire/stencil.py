"""The bytes around the text of plain deltas, which most servers repeat from chunk to chunk.

One reply's chunks usually differ in nothing but the text. Once the bytes before and after it are known,
a chunk that begins and ends with them needs no JSON decoder: only what is between can differ.

Why nothing can slip through. `Stencil.learn` takes a chunk that was decoded and judged as a plain
text delta, cuts it around the text, and decodes it again with another text in the gap. Only when
that gives the same chunk with the other text is the gap known to be the inside of the JSON string
that ``content`` is read from. From then on bytes in the gap are either the inside of one JSON
string, and the chunk is the known one with that text, or they are not, and the stencil declines; so
does it when anything else differs by a byte. A stencil holds for the identity it was learned under,
and is dropped when the last one judged is another.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .plain import UNDECODABLE, PlainChunk, plain_decoder

__all__ = ["Stencil", "StencilMaker"]

_OPEN: Final = b"data: "
_CLOSE: Final = b"\n\n"
_BORDER: Final = _CLOSE + _OPEN
_SPECIAL: Final = bytes([*range(0x20), 0x22, 0x5C])  # what a JSON string cannot hold as it is
_FIELDS: Final = ("content", "reasoning_content", "reasoning")
_decode_text: Final = msgspec.json.Decoder(str).decode


class Stencil:
    """Reads the text out of events that are alike.

    Attributes:
        field: which text it is: ``content``, ``reasoning_content`` or ``reasoning``.
        hits: how many events it has read.
        events: how many the last block had.
    """

    __slots__ = ("_between", "_head", "_head_size", "_size", "_tail", "_tail_size", "events", "field", "hits")

    def __init__(self, field: str, before: bytes, after: bytes) -> None:
        self.field = field
        self._head = _OPEN + before
        self._tail = after + _CLOSE
        self._between = self._tail + self._head
        self._head_size, self._tail_size = len(self._head), len(self._tail)
        self._size = self._head_size + self._tail_size
        self.hits = 0
        self.events = 0

    def read_one(self, event: bytes) -> str | None:
        """The text of one whole event; None when it is not alike."""
        if not (event.startswith(self._head) and event.endswith(self._tail)) or len(event) < self._size:
            return None
        inside = event[self._head_size : -self._tail_size]
        try:
            text = inside.decode()
            if 0x22 in inside or 0x5C in inside or not text.isprintable():
                text = _decode_text(b'"%b"' % inside)
        except UNDECODABLE:
            return None
        self.hits += 1
        return text

    def read_block(self, block: bytes) -> list[str] | None:
        """The texts of several whole events; None when any of them is not alike."""
        if not (block.startswith(self._head) and block.endswith(self._tail)) or len(block) < self._size:
            return None
        begin, end = self._head_size - len(_OPEN), len(_CLOSE) - self._tail_size
        insides = [data[begin:end] for data in block[len(_OPEN) : -len(_CLOSE)].split(_BORDER)]
        if self._between.join(insides) != block[self._head_size : -self._tail_size]:
            return None
        joined = b"".join(insides)
        try:
            if len(joined.translate(None, _SPECIAL)) == len(joined):
                texts = [joined.decode()]
            else:
                joined.decode()
                texts = [_decode_text(b'"%b"' % inside) for inside in insides]
        except UNDECODABLE:
            return None
        self.hits += len(insides)
        self.events = len(insides)
        return texts


class StencilMaker:
    """Decides when to learn a stencil, so that streams which have none to offer cost nothing to speak of.

    Attributes:
        current: the stencil in use, if any.
    """

    __slots__ = ("_patience", "_waiting", "current")

    def __init__(self) -> None:
        self.current: Stencil | None = None
        self._patience = 1
        self._waiting = 2  # the first text of a reply is shown before anything is learned

    def drop(self) -> None:
        """What it was learned under does not hold any more."""
        self.current = None

    def missed(self, data: bytes, chunk: PlainChunk) -> None:
        """A plain delta, judged, had to be decoded: learn from it, now or later.

        Each stencil that read too little doubles the number of deltas until the next try.
        """
        if self.current is not None:
            self._patience = 1 if self.current.hits > 4 else min(2 * self._patience, 1 << 20)
            self._waiting = self._patience
            self.current = None
        self._waiting -= 1
        if self._waiting <= 0:
            self.current = _learn(data, chunk)
            if self.current is None:
                self._patience = min(2 * self._patience, 1 << 20)
                self._waiting = self._patience


def _learn(data: bytes, chunk: PlainChunk) -> Stencil | None:
    """The stencil of one judged chunk, proven by a second text in the gap; None when there is none."""
    delta = chunk.choices[0].delta
    told = [field for field in _FIELDS if getattr(delta, field)]
    if len(told) != 1 or delta.tool_calls:
        return None
    text: str = getattr(delta, told[0])
    inside = text.encode()
    at = data.find(b'"%b"' % inside) + 1
    if at == 0:
        return None
    before, after = data[:at], data[at + len(inside) :]
    try:
        proof = plain_decoder()(b"%b%b+%b" % (before, inside, after))
    except UNDECODABLE:
        return None
    if getattr(proof.choices[0].delta, told[0]) != text + "+":
        return None
    setattr(proof.choices[0].delta, told[0], text)
    return Stencil(told[0], before, after) if proof == chunk else None
