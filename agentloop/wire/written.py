"""A text with calls in it as what its visible text and its calls do not already say.

A reply holds its visible text and its calls' arguments once. What the model wrote is kept as pieces, in order:

- a string: these characters;
- an array ``[at, size]``: so many characters of the visible text, from there on;
- an integer: the arguments of the call at this position.
"""

from __future__ import annotations

from typing import Any, Final

from ..errors import AdmissionError
from ..messages.reply import ModelReply

__all__ = ["Piece", "WrittenText", "join_written"]

Piece = str | int | list[int]

_WORTH: Final = 8
"""Characters of arguments below which a reference to them saves nothing."""


class WrittenText:
    """Takes a text apart while it is read. The pieces do not depend on how it came."""

    __slots__ = ("_literal", "_pieces", "_visible")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._literal: list[str] = []
        self._visible = 0  # characters of visible text so far

    def add(self, text: str) -> None:
        """Text that is not visible where it was written."""
        if text:
            self._literal.append(text)

    def skip(self, chars: int) -> None:
        """Visible text that was not written here."""
        self._visible += chars

    def show(self, chars: int) -> None:
        """So many characters of visible text."""
        if not chars:
            return
        last = self._pieces[-1] if self._pieces and not self._literal else None
        if isinstance(last, list) and last[0] + last[1] == self._visible:
            last[1] += chars
        else:
            self._settle()
            self._pieces.append([self._visible, chars])
        self._visible += chars

    def add_call(self, text: str, arguments: list[str], *, first: int) -> None:
        """The text of calls; their arguments are parts of it, and ``first`` is the position of the first."""
        at = 0
        for position, part in enumerate(arguments, first):
            found = text.find(part, at) if len(part) >= _WORTH else -1
            if found >= 0:
                self.add(text[at:found])
                self._settle()
                self._pieces.append(position)
                at = found + len(part)
        self.add(text[at:])

    def build(self) -> list[Piece]:
        """The pieces of the whole text."""
        self._settle()
        return self._pieces

    def _settle(self) -> None:
        if self._literal:
            self._pieces.append("".join(self._literal))
            self._literal.clear()


def join_written(reply: ModelReply, pieces: Any) -> str:
    """The whole text again.

    Raises:
        AdmissionError: a piece is none, or says what the reply does not hold.
    """
    if type(pieces) is not list:
        raise AdmissionError("$.native.call_text.written", f"expected an array, got {type(pieces).__name__}")
    text, calls = reply.text, reply.calls
    joined: list[str] = []
    for at, piece in enumerate(pieces):
        if isinstance(piece, str):
            joined.append(piece)
        elif type(piece) is int and 0 <= piece < len(calls):
            joined.append(calls[piece].arguments.text)
        elif isinstance(piece, list) and len(piece) == 2 and _is_range(piece[0], piece[1], len(text)):
            joined.append(text[piece[0] : piece[0] + piece[1]])
        else:
            rule = "expected a string, the position of a call, or a range of the visible text"
            raise AdmissionError(f"$.native.call_text.written[{at}]", rule)
    return "".join(joined)


def _is_range(begin: object, size: object, length: int) -> bool:
    return type(begin) is int and type(size) is int and begin >= 0 and size >= 0 and begin + size <= length
