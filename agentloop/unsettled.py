"""Effects of which nobody knows what became of them, as a host sees them."""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import UnsettledError
from .exchange import Turn

__all__ = ["Unsettled", "require_settled", "unsettled_of"]


class Unsettled(msgspec.Struct, frozen=True, kw_only=True):
    """One send or call to be settled (`Runtime.settle_send`, `Runtime.settle_call`).

    Attributes:
        ref: the run's id.
        kind: ``send``: a request that may have been sent and has no reply. ``call``: a tool that
            was started and has no answer.
        effect_id: the attempt's id, as the server saw it; or the execution's (`ToolContext.effect_id`).
        exchange, position: which call, for a ``call``.
        tool, arguments: what was asked for, as the model wrote it, for a ``call``.
        attempt: number of the model call, or of the execution.
        rerun: whether a host has allowed one more run already.
        at_ms: when the send was claimed, None for a call.
    """

    ref: str
    kind: Literal["send", "call"]
    effect_id: str
    attempt: int
    exchange: int | None = None
    position: int | None = None
    tool: str | None = None
    arguments: str | None = None
    rerun: bool = False
    at_ms: int | None = None


def unsettled_of(turn: Turn) -> list[Unsettled]:
    """What is unsettled of one run that goes on nowhere."""
    sends = [
        Unsettled(ref=turn.run_id, kind="send", effect_id=send.attempt_id, attempt=send.call_sequence, at_ms=send.at_ms)
        for send in turn.sends.values()
    ]
    calls = [
        Unsettled(
            ref=turn.run_id,
            kind="call",
            effect_id=slot.effect_id or "",
            attempt=slot.attempt,
            exchange=exchange,
            position=position,
            tool=slot.call.name,
            arguments=slot.call.arguments.text,
            rerun=slot.rerun,
        )
        for exchange, entry in enumerate(turn.entries)
        for position, slot in enumerate(entry.slots)
        if slot.feedback is None and slot.state in ("started", "unknown")
    ]
    return [*sends, *calls]


def require_settled(turn: Turn) -> None:
    """Refuse a run that goes on nowhere while an effect of it is unsettled.

    Raises:
        UnsettledError: names the sends and the calls.
    """
    found = unsettled_of(turn)
    if found:
        sends = tuple(item.effect_id for item in found if item.kind == "send")
        calls = tuple(f"{item.exchange}.{item.position}" for item in found if item.kind == "call")
        raise UnsettledError(turn.run_id, sends, calls)
