"""What a host can ask about the effects of a run: what is unsettled, and what became of a send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from .errors import UnsettledError
from .exchange import Fact, ReplyTaken, SendEnded, SendStarted, Turn
from .messages import ModelReply

__all__ = ["SendStatus", "Unsettled", "require_settled", "status_of", "unsettled_of"]


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
        at_ms: when the send or the execution was claimed, None where its record told none.
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
            at_ms=slot.started_at_ms,
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


class SendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one send (`Runtime.read`).

    Attributes:
        state: ``found``: its outcome is stored. ``pending``: it goes on, here or in the process
            that owns its run. ``unknown``: it has no outcome, and nobody is at it any more.
            ``lost``: nothing of it is kept.
        ref, attempt_id: the run's id, and the attempt's as the server saw it.
        outcome: how it ended, when it is found; None otherwise.
        reply: the checked reply, when it brought one.
    """

    state: Literal["found", "pending", "unknown", "lost"]
    ref: str
    attempt_id: str | None
    outcome: SendEnded | None = None
    reply: ModelReply | None = None


def status_of(ref: str, attempt_id: str | None, facts: Sequence[Fact], *, goes_on: bool) -> SendStatus:
    """What the facts of a run say of an attempt; of its newest one, when that is None.

    Args:
        goes_on: whether somebody owns the run, who may still be at it.
    """
    sends = [fact.attempt_id for fact in facts if type(fact) is SendStarted]
    if attempt_id is None and sends:
        attempt_id = sends[-1]
    if attempt_id not in sends:
        return SendStatus(state="lost", ref=ref, attempt_id=attempt_id)
    outcome = next((f for f in facts if type(f) is SendEnded and f.attempt_id == attempt_id), None)
    if outcome is None:
        return SendStatus(state="pending" if goes_on else "unknown", ref=ref, attempt_id=attempt_id)
    reply = next((f.reply for f in facts if type(f) is ReplyTaken and f.attempt_id == attempt_id), None)
    return SendStatus(state="found", ref=ref, attempt_id=attempt_id, outcome=outcome, reply=reply)
