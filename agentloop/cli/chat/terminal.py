"""A chat on a terminal: a prompt with editing, and answers as Markdown while they stream.

Imported where the packages of the extra ``cli`` are needed. What streams is a region at the end of the screen
that shows the newest lines only, so that it never outgrows the screen, and that is cleared when the attempt
ends; a text that stands is then printed once, into the scrollback.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from ..inert import clean, exact, folded, one_line
from .front import EDGE
from .markdown import inert_markdown
from .prompt import Prompt
from .quiet import unechoed

__all__ = ["TerminalFront"]

_LABEL_WIDTH: Final = 9
_REFRESH_SECONDS: Final = 0.1
_SHARE: Final = 9
"""After a refresh as many times its own duration pass at least, so that long texts do not take the event loop."""
_STYLED_CHARS: Final = 8_192
"""A longer text is shown as Markdown only once it stands: laying it out again and again would take too long."""
_BELOW: Final = 2
"""Rows of the screen that a streaming text leaves free: for the mark of what is above, and for the cursor."""


class TerminalFront:
    """A `Front` on a terminal.

    Args:
        prompt: reads what the person types.
        out: the terminal; None is standard output. height, width: of it, None as it says itself.
    """

    def __init__(
        self, prompt: Prompt, *, out: TextIO | None = None, height: int | None = None, width: int | None = None
    ) -> None:
        self._prompt = prompt
        self._console = Console(file=out, height=height, width=width, markup=False, emoji=False, highlight=False)
        self._live: Live | None = None
        self._newest = _Newest()
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0  # when the region may be refreshed again, on the clock of the event loop

    async def read(self, prompt: str, *, remember: bool = False) -> str:
        """What is typed at the prompt; see `Front`."""
        return await self._prompt.read(prompt, remember=remember)

    def line(self, text: str = "") -> None:
        """Lines as they are; the terminal wraps those that are too long."""
        self._console.print(Text(clean(text)), soft_wrap=True)

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        """A line, above what streams."""
        head = (f"  {label.ljust(_LABEL_WIDTH)}", style)
        self._console.print(Text.assemble(head, one_line(text)), soft_wrap=True)

    def quoted(self, text: str) -> None:
        """Rows that fit the terminal, so that none is wrapped to where a mark is missing."""
        for row in folded(exact(text), max(1, self._console.width - len(EDGE))):
            self._console.print(Text(f"{EDGE}{row}"), soft_wrap=True)

    def document(self, text: str) -> None:
        """The text as Markdown."""
        self._console.print(inert_markdown(text))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is typed is not echoed meanwhile; it waits for the next prompt."""
        with unechoed(sys.stdin):
            try:
                yield
            finally:
                self._end()

    def begin(self) -> None:
        """Open the region."""
        self._end()
        self._newest.text = ""
        self._live = Live(self._newest, console=self._console, auto_refresh=False, transient=True)
        self._live.start(refresh=True)
        self._next = 0.0

    def preview(self, text: str) -> None:
        """Show the newest lines, now or when the region may be refreshed again."""
        self._newest.text = text
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_at(self._next, self._refresh)

    def stands(self, text: str) -> None:
        """Clear the region and print the text."""
        self._end()
        if text.strip():
            self.document(text)

    def withdrawn(self) -> None:
        """Clear the region."""
        self._end()

    def _refresh(self) -> None:
        self._timer = None
        if self._live is not None:
            clock = asyncio.get_running_loop().time
            began = clock()
            self._live.refresh()
            self._next = clock() + max(_REFRESH_SECONDS, _SHARE * (clock() - began))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        live, self._live = self._live, None
        if live is not None:
            self._newest.text = ""  # stopping draws once more, and that is cleared at once
            live.stop()


class _Newest:
    """The newest lines of a text, as many as there is room for."""

    def __init__(self) -> None:
        self.text = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.text.strip():
            yield Text("  …", style="dim")
            return
        long = len(self.text) > _STYLED_CHARS
        shown = Text(clean(self.text[-_STYLED_CHARS:])) if long else inert_markdown(self.text)
        lines = console.render_lines(shown, options.update(height=None), pad=False)
        room = max(1, console.height - _BELOW)
        if len(lines) > room or long:
            yield Text("  … there is more above", style="dim")
        for line in lines[-room:]:
            yield from line
            yield Segment.line()
