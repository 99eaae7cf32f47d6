"""A quick reader for plain deltas.

What `plain_decoder` makes decodes, at C speed, a chunk that holds exactly one choice with index 0 and nothing
in it but text, reasoning text or pieces of calls. Its types leave room for nothing else: a finish
word, a usage, an error, a second choice, an unknown field inside a call all fail to decode, and such
chunks are read by `chunks` instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec

__all__ = ["PlainCall", "PlainChunk", "PlainDelta", "UNDECODABLE", "plain_decoder"]


class _PlainFunction(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    arguments: str = ""
    name: str | None = None


class PlainCall(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A piece of a call. Closed: a field that we do not know may have to be sent back, so none may be skipped."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    function: _PlainFunction
    id: str | None = None
    type: Literal["function", ""] | None = None


class PlainDelta(msgspec.Struct, gc=False):
    """Text, reasoning text or pieces of calls."""

    content: str | None = None
    tool_calls: list[PlainCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[()] | None = None
    refusal: Literal[""] | None = None
    function_call: None = None
    thinking_blocks: None = None
    extra_content: None = None
    error: None = None


class _PlainChoice(msgspec.Struct, gc=False):
    delta: PlainDelta
    index: Literal[0]
    finish_reason: None = None
    usage: None = None
    error: None = None


class PlainChunk(msgspec.Struct, gc=False):
    """A chunk with one plain delta; ``id`` and ``model`` are as they came."""

    choices: tuple[_PlainChoice]
    id: str | None = None
    model: str | None = None
    usage: None = None
    x_groq: None = None
    error: None = None


UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What it raises when a chunk is anything else, or not JSON, or not UTF-8."""


@functools.cache
def plain_decoder() -> Callable[[bytes], PlainChunk]:
    """What decodes a plain chunk; made when the first stream is read, as that takes a while."""
    return msgspec.json.Decoder(PlainChunk).decode
