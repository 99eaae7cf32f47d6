"""Text of others made inert: what a model, a tool or a server wrote steers no terminal."""

from __future__ import annotations

from typing import Final

__all__ = ["clean", "one_line"]

_CONTROLS: Final = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SURROGATES: Final = range(0xD800, 0xE000)
_SHOWN: Final = dict.fromkeys((*_CONTROLS, *_DIRECTIONS, *_SURROGATES), "\ufffd") | {9: "\t", 10: "\n"}
"""Controls move the cursor or reprogram a terminal, embeddings and overrides of direction turn the text around them
about, and no encoding has a lone surrogate. Marks of direction stay: they move nothing but what stands beside them, and
texts in scripts from right to left need them."""


def clean(text: str) -> str:
    """Text that can be shown anywhere; what steers a screen is replaced."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """As `clean`, on one line: a text of others begins no line of its own."""
    return clean(text).replace("\n", " ").replace("\t", " ")
