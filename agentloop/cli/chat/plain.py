"""A chat over pipes: lines in, plain text out."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..inert import clean, exact, folded, one_line
from ..screen import Screen
from .front import EDGE
from .lines import Lines
from .quiet import drop_typed

__all__ = ["PlainFront"]


class PlainFront:
    """A `Front` of lines. Texts go to standard output, everything about them to standard error.

    Where standard output is no terminal, a text is written once it stands, so that what reads it never
    has one that is withdrawn.
    """

    def __init__(self) -> None:
        self._lines = None if sys.stdin is None else Lines(sys.stdin.fileno())
        self._prompts = sys.stdin is not None and sys.stdin.isatty()
        self._text, self._notices = Screen(sys.stdout), Screen(sys.stderr)
        self._streams = sys.stdout.isatty()
        self._shown = 0

    async def read(self, prompt: str, *, remember: bool = False) -> str:
        """The next line of standard input; see `Front`.

        At a terminal an answer was not typed before its question could be read: what is there of that is dropped.
        """
        if self._lines is None:
            raise EOFError
        if self._prompts:
            if not remember:
                drop_typed(sys.stdin)
                self._lines.drop()
            print(prompt, end="", file=sys.stderr, flush=True)
        return await self._lines.read()

    def line(self, text: str = "") -> None:
        """Lines on standard output."""
        self._text.line(clean(text))

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        """A line on standard error."""
        self._text.end_text()
        self._notices.labelled(label, one_line(text), style=style)

    def quoted(self, text: str) -> None:
        """Rows on standard output; they fit where that is a terminal."""
        shown = exact(text)
        rows = folded(shown, max(1, _columns() - len(EDGE))) if self._streams else shown.split("\n")
        for row in rows:
            self._text.line(f"{EDGE}{row}")

    def document(self, text: str) -> None:
        """The text as it is."""
        self.line(text)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Ends the line of a text that was left open."""
        try:
            yield
        finally:
            self._text.end_text()

    def begin(self) -> None:
        """Nothing is shown yet."""
        self._shown = 0

    def preview(self, text: str) -> None:
        """The part that is new, on a terminal."""
        if self._streams:
            self._text.piece(clean(text[self._shown :]))
            self._shown = len(text)

    def stands(self, text: str) -> None:
        """What was not shown yet."""
        if text[self._shown :]:
            self._text.piece(clean(text[self._shown :]))
        self._text.end_text()

    def withdrawn(self) -> None:
        """The line is ended; what was shown on a terminal stays there."""
        self._text.end_text()


def _columns() -> int:
    return shutil.get_terminal_size().columns
