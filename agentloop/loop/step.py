"""Which effect is next: a pure function of the facts, the ledger and the limits.

Plain, streamed and submitted runs all go through it, and so does whatever continues a run later:
it holds no state of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..effects import Ledger, has_room
from ..exchange import Entry, RunOutcome, Turn
from ..limits import LoopLimits
from .states import Phase

__all__ = ["Action", "Answer", "Ask", "Close", "Skip", "phase_of", "step", "verdict"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Make the next model call."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the call at this place: run its tool, or refuse it with feedback."""

    exchange: int
    position: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Answer these open calls without running them; the run closes next."""

    exchange: int
    positions: tuple[int, ...]
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the run."""

    outcome: RunOutcome
    reason: str | None


Action = Ask | Answer | Skip | Close

_WIRE_FRAME = 64

_REPLY_CODES = {"refused": "reply_refused", "incomplete": "reply_incomplete"}


def phase_of(turn: Turn) -> Phase:
    """Where the facts say a run is."""
    if turn.closed is not None:
        return Phase.ENDED
    last = turn.last
    return Phase.ANSWERING if last is not None and not last.complete else Phase.ASKING


def step(
    turn: Turn,
    ledger: Ledger,
    limits: LoopLimits,
    *,
    elapsed: float,
    sent_bytes: int = 0,
    max_request_bytes: int | None = None,
) -> Action:
    """Decide the next action of a run that has not ended.

    Args:
        elapsed: seconds since the run began.
        sent_bytes: what the newest request was on the wire at most.
        max_request_bytes: the provider's own ceiling of it.

    A reply that was refused or cut off runs none of its calls. A limit that would leave a tool's
    answer unread skips the calls of the reply, so no effect is made in vain. What a reply's words
    say of its end decides nothing about its calls: ``stop`` with calls runs them.
    """
    last = turn.last
    if last is None:
        return _ask_or_close(ledger, limits, elapsed)
    at = len(turn.entries) - 1
    kind = verdict(last)
    open_calls = tuple(p for p, slot in enumerate(last.slots) if slot.feedback is None)
    if kind != "completed":
        if open_calls:
            return Skip(at, open_calls, _REPLY_CODES[kind], f"the reply that asked for it was {kind}")
        return Close(kind, last.reply.termination.reason)
    if not last.slots:
        return Close("completed", last.reply.termination.reason)
    if not open_calls:
        skipped = next((slot.code for slot in last.slots if slot.state == "skipped"), None)
        return _ask_or_close(ledger, limits, elapsed) if skipped is None else Close("limit_reached", skipped)
    limit = _limit_of_calls(turn, last, open_calls, ledger, limits, elapsed)
    if limit is None:
        limit = _limit_of_wire(last, len(open_calls), limits, sent_bytes, max_request_bytes)
    if limit is not None:
        return Skip(at, open_calls, limit, f"the run reached its limit ({limit})")
    return Answer(at, open_calls[0])


def verdict(entry: Entry) -> RunOutcome:
    """What a reply means for its run: completed, refused or incomplete."""
    kind = entry.reply.termination.kind
    if kind == "completed" and entry.reply.refusal is not None:
        return "refused"
    return kind


def _ask_or_close(ledger: Ledger, limits: LoopLimits, elapsed: float) -> Action:
    limit = _limit_of_asking(ledger, limits, elapsed)
    return Ask() if limit is None else Close("limit_reached", limit)


def _limit_of_asking(ledger: Ledger, limits: LoopLimits, elapsed: float) -> str | None:
    if ledger.left("model_calls") == 0:
        return "max_model_calls"
    if ledger.left("tokens") == 0:
        return "max_tokens"
    if limits.max_seconds is not None and elapsed >= limits.max_seconds:
        return "max_seconds"
    return None


def _limit_of_calls(
    turn: Turn, last: Entry, open_calls: tuple[int, ...], ledger: Ledger, limits: LoopLimits, elapsed: float
) -> str | None:
    """The limit that forbids running the open calls, judged for all of them before the first (R102)."""
    limit = _limit_of_asking(ledger, limits, elapsed)
    if limit is not None:
        return limit
    left = ledger.left("tool_calls")
    if left is not None and left < len(open_calls):
        return "max_tool_calls"
    if limits.max_equal_calls is not None:
        for position in open_calls:
            call = last.slots[position].call
            if turn.equal_calls[call.name, call.arguments.text] > limits.max_equal_calls:
                return "max_equal_calls"
    if not all(has_room(limits, last.slots[position].call.id) for position in open_calls):
        return "feedback_bytes"
    reserve = len(open_calls) * limits.feedback_bytes
    if turn.request_size + reserve > limits.request_bytes:
        return "request_bytes"
    if turn.size - turn.origin_size + reserve > limits.collection_bytes:
        return "collection_bytes"
    return None


def _limit_of_wire(
    last: Entry, open_calls: int, limits: LoopLimits, sent_bytes: int, max_request_bytes: int | None
) -> str | None:
    """The limit on the encoded request that the next one could be over, with room for every answer.

    As canonical JSON a reply and its feedback are no shorter than on the wire, apart from a frame.
    """
    size = sent_bytes + last.size + open_calls * limits.feedback_bytes + _WIRE_FRAME
    if limits.max_wire_request_bytes is not None and size > limits.max_wire_request_bytes:
        return "max_wire_request_bytes"
    if max_request_bytes is not None and size > max_request_bytes:
        return "max_request_bytes"
    return None
