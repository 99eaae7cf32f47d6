"""What a stream yields while it runs: previews of the reply, never facts."""

from __future__ import annotations

import msgspec

__all__ = ["CallDelta", "Delta", "ReasoningDelta", "TextDelta"]


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """Body text of one read, joined. ``offset`` counts the characters before it."""

    text: str
    offset: int


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    """Reasoning text of one read, joined. ``offset`` counts the characters before it."""

    text: str
    offset: int


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of one tool call. ``position`` is its place in the reply's calls, from 0."""

    position: int
    id: str
    name: str
    arguments: str


Delta = TextDelta | ReasoningDelta | CallDelta
