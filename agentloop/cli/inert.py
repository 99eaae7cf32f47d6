"""Text of others made inert: what a model, a tool or a server wrote steers no terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

__all__ = ["clean", "exact", "folded", "one_line"]

_CONTROLS: Final = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_SHOWN: Final = dict.fromkeys((*_CONTROLS, *_DIRECTIONS, *_SURROGATES), "\ufffd") | {9: "\t", 10: "\n"}
"""Controls move the cursor or reprogram a terminal, embeddings and overrides of direction turn the text around them
about, and no encoding has a lone surrogate. Marks of direction stay: they move nothing but what stands beside them, and
texts in scripts from right to left need them."""

_UNSEEN: Final = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"))
"""Categories of characters that show nothing, or that turn about what stands beside them."""
_IGNORED: Final = (
    *(range(0x34F, 0x350), range(0x115F, 0x1161), range(0x17B4, 0x17B6), range(0x180B, 0x1810), range(0x2800, 0x2801)),
    *(range(0x3164, 0x3165), range(0xFE00, 0xFE10), range(0xFFA0, 0xFFA1), range(0xE0000, 0xE1000)),
)
"""Others that show nothing: Default_Ignorable_Code_Point (Unicode 15.1, DerivedCoreProperties.txt), and the empty one
of Braille."""
_JOINER: Final = "\u200d"
_PICTURE: Final = "\ufe0f"
_SYMBOLS: Final = ("So", "Sk")
_TAB: Final = 4


def clean(text: str) -> str:
    """Text that can be shown anywhere; what steers a screen is replaced."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """As `clean`, on one line: a text of others begins no line of its own."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def exact(text: str) -> str:
    """Text of others of which nothing is hidden: what nobody sees is written out as JSON does (``\\u202e``).

    So arguments that show one are still the same JSON. The plain space and the ends of lines stay, a tab becomes
    spaces, and what makes up an emoji is left alone.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_written(text, at, character) for at, character in enumerate(text))


def folded(text: str, width: int) -> Iterator[str]:
    """The rows of a text where none may have more than so many cells of a terminal, counted generously."""
    for line in text.split("\n"):
        row: list[str] = []
        used = 0
        for character in line:
            cells = _cells(character)
            if row and used + cells > width:
                yield "".join(row)
                row, used = [], 0
            row.append(character)
            used += cells
        yield "".join(row)


def _written(text: str, at: int, character: str) -> str:
    if character in " \n":
        return character
    if character == "\t":
        return " " * _TAB
    if not (unicodedata.category(character) in _UNSEEN or any(ord(character) in some for some in _IGNORED)):
        return character
    before = text[at - 1] if at else ""
    if character in (_JOINER, _PICTURE) and before and (_is_symbol(before) or before == _PICTURE != character):
        after = text[at + 1 : at + 2]
        if character == _PICTURE or (after and _is_symbol(after)):
            return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[part : part + 4]}" for part in range(0, len(units), 4))


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character) in _SYMBOLS


def _cells(character: str) -> int:
    if " " <= character <= "~":
        return 1
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    narrow = unicodedata.east_asian_width(character) in ("N", "Na", "H")
    return 1 if narrow and unicodedata.category(character) != "So" else 2
