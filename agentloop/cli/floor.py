"""What decoding a stream costs without any check: the least that ours can be compared with.

Lines are split, each event is decoded into a typed struct that knows only text and call pieces,
and the pieces are joined. It believes everything and reads only lines that end in a line feed: it is
for measuring and for nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FloorReply"]


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None


_DECODE: Final = msgspec.json.Decoder(_Chunk).decode
_SHORTEST: Final = len(b"data: [DONE]\r") + 1  # shorter lines are blank, or the end


class FloorReply:
    """One reply of ``data:`` lines: `feed` bytes, then read ``text`` and ``calls``."""

    __slots__ = ("_calls", "_tail", "_text")

    def __init__(self) -> None:
        self._tail = b""
        self._text: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []

    @property
    def text(self) -> str:
        """The body."""
        return "".join(self._text)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call."""
        return [(call_id, name, "".join(pieces)) for call_id, name, pieces in self._calls]

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            msgspec.MsgspecError: a line is no chunk by itself.
        """
        lines = (self._tail + data).split(b"\n")
        self._tail = lines.pop()
        for line in lines:
            if len(line) < _SHORTEST or not line.startswith(b"data:"):
                continue
            choices = _DECODE(line[5:]).choices
            delta = choices[0].delta if choices else None
            if delta is None:
                continue
            if delta.content:
                self._text.append(delta.content)
            if delta.tool_calls:
                self._take_calls(delta.tool_calls)

    def _take_calls(self, pieces: list[_Call]) -> None:
        for piece in pieces:
            function = piece.function
            if piece.id:
                self._calls.append((piece.id, (function and function.name) or "", []))
            if function is not None and function.arguments and self._calls:
                self._calls[-1][2].append(function.arguments)
