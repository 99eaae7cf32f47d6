"""Plain text for people: labelled lines, colour only on a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, TextIO

from ..messages import Usage
from .inert import clean

__all__ = ["Screen", "counted", "server_words", "usage_words"]

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}

_LABEL_WIDTH: Final = 9


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it is not one: ``1 call``, ``2 calls``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def server_words(error: BaseException) -> str | None:
    """A line with what the server said about an error, shortened; None where it said nothing.

    It may quote the request, so it is for the person who sent that and stands in no error's text.
    """
    words = getattr(error, "vendor_message", None)
    return f"the server said: {''.join(c if c.isprintable() else ' ' for c in words)}" if words else None


def usage_words(usage: Usage | None) -> str:
    """Tokens in words, as the provider reported them."""
    if usage is None:
        return "usage not reported"
    return f"{counted(usage.input_tokens, 'token')} in, {usage.output_tokens} out"


class Screen:
    """Writes to one text stream, flushed at once so that streamed text is seen as it arrives.

    Colour is off when the stream is no terminal, when ``NO_COLOR`` is set (no-color.org), and on a
    terminal that says it is dumb. On a terminal, what would steer it in what is shown is replaced (`clean`).
    """

    def __init__(self, out: TextIO, *, environ: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._colour = self._terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._open = False  # whether a line of streamed text is not ended yet

    def style(self, text: str, style: str) -> str:
        """The text, in colour where there is colour."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour else text

    def line(self, text: str = "") -> None:
        """One line; ends streamed text that is still open."""
        self.end_text()
        self._write(text + "\n")

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        """One line with a label before it."""
        self.line(f"  {self.style(label.ljust(_LABEL_WIDTH), style)}{self._safe(text)}")

    def text(self, label: str, piece: str) -> None:
        """A piece of streamed text; the first one of a line gets the label."""
        if not self._open:
            self._write(f"  {self.style(label.ljust(_LABEL_WIDTH), 'cyan')}")
        self.piece(piece.replace("\n", "\n" + " " * (_LABEL_WIDTH + 2)))

    def piece(self, piece: str) -> None:
        """A piece of streamed text as it is."""
        self._open = True
        self._write(self._safe(piece))

    def end_text(self) -> None:
        """End the line of streamed text, if one is open."""
        if self._open:
            self._open = False
            self._write("\n")

    def _safe(self, text: str) -> str:
        return clean(text) if self._terminal else text

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
        except UnicodeEncodeError:
            self._out.write(text.encode(self._out.encoding, "backslashreplace").decode(self._out.encoding))
        self._out.flush()
