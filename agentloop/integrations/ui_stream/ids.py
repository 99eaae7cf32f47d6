"""Under which ids a client has messages and tool calls, all made of the turn's."""

from __future__ import annotations

from typing import Final

__all__ = ["below_id_of", "call_id_of", "is_below", "message_id_of", "turn_id_of"]

_SUFFIX: Final = ".reply"


def message_id_of(turn: str) -> str:
    """The id of the message that answers a turn. It has a full stop, so no client's id is equal to it."""
    return turn + _SUFFIX


def turn_id_of(message: str) -> str | None:
    """The turn that a message answers, None where its id is not one of `message_id_of`."""
    return message.removesuffix(_SUFFIX) if message.endswith(_SUFFIX) else None


def call_id_of(turn: str, exchange: int, position: int) -> str:
    """A tool call's id for a client, which looks for it in all messages of a chat: a model's ids repeat."""
    return f"{turn}.{exchange}.{position}"


def below_id_of(turn: str, ref: str) -> str:
    """The id of a call of a run below: its place there, and the places of the calls above it."""
    return f"{turn}.{ref.partition('/')[2].rpartition(':')[0]}"


def is_below(call: str) -> bool:
    """Whether a call's id is one of `below_id_of`."""
    return "/" in call
