"""Admit a recorded stream, or say why not."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import StreamRefused
from ..limits import EVENT_BYTES, RESPONSE_BYTES
from ..messages.reply import ModelReply
from .assembler import ReplyAssembler
from .dialect import Dialect
from .presets import LENIENT, OPENAI, narrowest_first

__all__ = ["Verdict", "check_stream", "find_dialect"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one stream.

    Attributes:
        reply: the checked reply; None when the stream was refused.
        refusal: why; None when it was admitted.
        dialect: the dialect that says so.
    """

    reply: ModelReply | None
    refusal: StreamRefused | None
    dialect: str


def check_stream(
    chunks: Iterable[bytes],
    dialect: Dialect = OPENAI,
    *,
    max_event_bytes: int = EVENT_BYTES,
    max_response_bytes: int = RESPONSE_BYTES,
) -> Verdict:
    """Admit a stream under one dialect. Reads no further than ``[DONE]`` or the refusal."""
    assembler = ReplyAssembler(dialect, max_event_bytes=max_event_bytes, max_response_bytes=max_response_bytes)
    try:
        for chunk in chunks:
            assembler.feed(chunk)
            if assembler.done:
                break
        return Verdict(reply=assembler.finish(), refusal=None, dialect=dialect.name)
    except StreamRefused as refusal:
        return Verdict(reply=None, refusal=refusal, dialect=dialect.name)


def find_dialect(body: bytes) -> Verdict:
    """Admit a whole body under the narrowest preset that does.

    When none does, the verdict is the most lenient one's: it read furthest.
    """
    strict = check_stream([body], OPENAI)
    if strict.reply is not None:
        return strict
    widest = check_stream([body], LENIENT)
    for preset in narrowest_first():
        if preset not in (OPENAI, LENIENT):
            verdict = check_stream([body], preset)
            if verdict.reply is not None:
                return verdict
    return widest
