"""Markdown of a model for a terminal, by the ``rich`` package; imported by those who have it.

Nothing of it steers the terminal. What could is replaced after parsing, as an entity (``&#8238;``) hides it
before that. There are no links of the terminal (OSC 8), which could show one address and open another: an
address is printed behind its text. And nothing of it is left out: HTML and pictures, which a terminal has no
form for, are shown as they were written, and what is nested too deeply to be parsed is not parsed at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table
from rich.text import Text

from ..inert import clean

__all__ = ["inert_markdown"]

_DEEPEST: Final = 18
"""Level of a block from which on the parser, which stops at 20, may leave out what is in it."""
_COLUMN_WIDTH: Final = 6
"""The least that a column of a table needs, its space included."""


def inert_markdown(text: str) -> Markdown | Text:
    """A text of a model, to be printed."""
    made = _Markdown(clean(text), hyperlinks=False)
    if any(token.level >= _DEEPEST for token in made.parsed):
        return Text(clean(text))
    _make_inert(made.parsed)
    return made


def _make_inert(tokens: Iterable[Any]) -> None:
    for token in tokens:
        token.content, token.info = clean(token.content), clean(token.info)
        for name, value in token.attrs.items():
            if isinstance(value, str):
                token.attrs[name] = clean(value)
        if token.type == "image":
            token.content = f"{token.content or 'image'} ({token.attrs.get('src', '')})"
            token.type, token.tag, token.children = "text", "", None
        elif token.type == "html_inline":
            token.type = "text"
        elif token.type == "html_block":
            token.type, token.info = "fence", "html"
        if token.children:
            _make_inert(token.children)


class _Table(TableElement):
    """A table that folds what is too long for a column, where the original cuts it off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [] if self.header is None or self.header.row is None else self.header.row.cells
        rows = [] if self.body is None else [row.cells for row in self.body.rows]
        if len(head) * _COLUMN_WIDTH > options.max_width:
            for cells in (head, *rows):
                yield Text(" | ").join(cell.content for cell in cells)
            return
        table = Table(box=box.SIMPLE, pad_edge=False, style="markdown.table.border", collapse_padding=True)
        for cell in head:
            title = cell.content.copy()
            title.stylize("markdown.table.header")
            table.add_column(title, overflow="fold")
        for cells in rows:
            table.add_row(*(cell.content for cell in cells))
        yield table


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "table_open": _Table}
