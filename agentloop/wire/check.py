"""Admit a recorded stream, or say why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..errors import StreamRefused
from ..limits import EVENT_BYTES, RESPONSE_BYTES
from ..messages.reply import ModelReply
from .assembler import ReplyAssembler
from .call_text import CallText
from .dialect import Dialect
from .presets import LENIENT, OPENAI, narrowest_first
from .presets import dialect as preset

__all__ = ["Verdict", "check_stream", "narrowest_verdict"]


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
    return _verdict(
        ReplyAssembler(dialect, max_event_bytes=max_event_bytes, max_response_bytes=max_response_bytes), chunks
    )


def _verdict(assembler: ReplyAssembler, chunks: Iterable[bytes]) -> Verdict:
    name = assembler.dialect.name
    try:
        for chunk in chunks:
            assembler.feed(chunk)
            if assembler.done:
                break
        return Verdict(reply=assembler.finish(), refusal=None, dialect=name)
    except StreamRefused as refusal:
        return Verdict(reply=None, refusal=refusal, dialect=name)


def narrowest_verdict(
    chunks: Iterable[bytes],
    *,
    call_text: CallText | None = None,
    max_event_bytes: int = EVENT_BYTES,
    max_response_bytes: int = RESPONSE_BYTES,
) -> Verdict:
    """Admit a stream under the narrowest preset that does; at most ``max_response_bytes`` are held.

    The widest preset reads first, and no further than its ``[DONE]`` or its refusal: what it refuses no
    preset admits, and its refusal is the verdict then, because it read furthest.

    Args:
        call_text: how calls are written in the text, in every preset; None for native calls.
    """
    limits: dict[str, int] = {"max_event_bytes": max_event_bytes, "max_response_bytes": max_response_bytes}
    widest = ReplyAssembler(preset(LENIENT.name, call_text=call_text), **limits)
    held: list[bytes] = []

    def reading() -> Iterator[bytes]:
        for chunk in chunks:
            held.append(chunk)
            yield chunk

    wide = _verdict(widest, reading())
    if wide.reply is None:
        return wide
    body = b"".join(held)
    for known in narrowest_first():
        verdict = check_stream([body], preset(known.name, call_text=call_text), **limits)
        if verdict.reply is not None:
            return verdict
    return wide
