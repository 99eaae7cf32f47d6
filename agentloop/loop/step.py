"""Which effect is next: a pure function of the facts, the ledger and the limits.

Plain, streamed and submitted runs all go through it, and so does whatever continues a run later:
it holds no state of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Final

import msgspec

from ..effects import Ledger, Resend, ResendPolicy, has_room, next_attempt
from ..exchange import CHILD, Entry, RunOutcome, Slot, Turn, waiting_calls
from ..limits import LoopLimits
from ..messages import ModelReply
from .states import Phase

__all__ = [
    "Action",
    "Answer",
    "Ask",
    "Close",
    "Recover",
    "Skip",
    "Suspend",
    "Wait",
    "ahead",
    "calls_after",
    "cancelled_end",
    "phase_of",
    "step",
    "verdict",
]


class Ask(msgspec.Struct, frozen=True):
    """Make the next model call."""


class Answer(msgspec.Struct, frozen=True):
    """Answer the call at this place: run its tool, or refuse it with feedback."""

    exchange: int
    position: int


class Skip(msgspec.Struct, frozen=True):
    """Answer these calls without running them, or without running them again; the run closes next.

    One whose outcome is unknown stays so, and is told that.
    """

    exchange: int
    positions: tuple[int, ...]
    code: str
    text: str


class Close(msgspec.Struct, frozen=True):
    """End the run."""

    outcome: RunOutcome
    reason: str | None


class Recover(msgspec.Struct, frozen=True):
    """Ask the lookups of these calls of an owner that ended what became of them."""

    exchange: int
    positions: tuple[int, ...]


class Wait(msgspec.Struct, frozen=True):
    """Do nothing: nobody knows what became of these effects of an owner that ended.

    ``sends`` are attempt ids, ``calls`` positions in the newest reply.
    """

    sends: tuple[str, ...]
    calls: tuple[int, ...]


class Suspend(msgspec.Struct, frozen=True):
    """Leave the run as it is: these calls of the newest reply wait, and nothing else is to be done."""

    exchange: int
    positions: tuple[int, ...]


_Check = Callable[[ModelReply], str | None]
"""Says why a reply does not give the output of a run, as a code; None where it does. Pure."""

Action = Ask | Resend | Answer | Skip | Close | Recover | Suspend | Wait

_WIRE_FRAME = 64

_WIRE_OF_STEERS = 2
"""A user message is no longer on the wire than so often its canonical JSON: an image has more words around it."""

_LIMITS: Final = frozenset(
    {
        "collection_bytes",
        "feedback_bytes",
        "max_equal_calls",
        "max_model_calls",
        "max_request_bytes",
        "max_seconds",
        "max_tokens",
        "max_tool_calls",
        "max_wire_request_bytes",
        "request_bytes",
    }
)
"""Codes of a skipped call that stand for a limit."""

_SEVERAL: Final = "several_calls"
"""The code of a reply that gives the output more than once."""

_CRASHES: Final = frozenset({"invalid_tool_result", "tool_crashed"})

_ENDED: Final[dict[RunOutcome, str]] = {
    "cancelled": "the run was cancelled",
    "failed": "the run ended with an error",
    "limit_reached": "the run reached its limit ({})",
}

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
    repeatable: Container[str] = (),
    lookups: Container[str] = (),
    resend: ResendPolicy | None = None,
    check: _Check | None = None,
    final: str | None = None,
    held: Container[tuple[int, int]] = (),
) -> Action:
    """Decide the next action of a run that has not ended.

    Args:
        elapsed: seconds since the run began.
        sent_bytes: what the newest request was on the wire at most.
        max_request_bytes: the provider's own ceiling of it.
        repeatable: names of tools whose lost calls run again. lookups: of those with a lookup.
        resend: what the host decided about a request that was refused.
        check: holds a reply against the output of the run; None where any final reply will do.
        final: name of the tool that gives the output, where one does.
        held: calls, by exchange and position, whose child runs were found to wait since the run was taken up.

    A final reply that gives no output ends the run as incomplete; so does a run of `final` more than once
    in one reply. One call of it that is done ends the run once the other calls of its reply are answered.
    Nothing is asked after it, so limits on that do not hold it up.

    A call that is claimed comes first: it was judged when it was claimed, and only time passes in between.

    An effect that an earlier owner began and nobody has answered is settled before anything else.
    Lookups come first, so that what they find is stored even where the run must wait. When no call
    is left of which nobody knows, what may run again does: an idempotent tool, or one that a host
    or a lookup allowed once more. Where no tool call is left to run idempotent ones again, that
    limit ends the run, and they stay unknown. An end that
    an earlier owner began to record is recorded to the end: an attempt that failed is not made
    again, unless ``resend`` and what is left of the budget allow it, and nothing runs after a tool
    that crashed (R142).

    Where a user has said more after a reply that would end the run, it is asked again with that. A run that was
    asked to stop ends where it would be asked again: the calls of the reply under way are answered first, as
    no limit on a next request holds them up, and a final reply still completes it.

    A call that waits for its child run is asked about first, once: the child may have gone on. It was judged when
    it began, like one that is claimed. Else a call that waits is passed over. When the others have feedback the
    run is suspended, whatever a limit says: waiting uses nothing up. A limit that ends the run skips such calls too.

    A reply that was refused or cut off runs none of its calls. A limit that would leave a tool's
    answer unread skips the calls of the reply, so no effect is made in vain. What a reply's words
    say of its end decides nothing about its calls: ``stop`` with calls runs them.
    """
    last = turn.last
    if turn.sends:
        return Wait(tuple(turn.sends), ())
    failed = _failed(turn)
    if failed is not None:
        again = next_attempt(turn, resend)
        return failed if again is None or _limit_of_asking(ledger, limits, elapsed) is not None else again
    if last is None:
        return _ask_or_close(turn, ledger, limits, elapsed)
    at = len(turn.entries) - 1
    claimed = next((p for p, slot in enumerate(last.slots) if slot.state == "started"), None)
    if claimed is not None and not _is_out_of_time(limits, elapsed):
        return Answer(at, claimed)
    unknown = tuple(p for p, slot in enumerate(last.slots) if slot.state == "unknown" and slot.feedback is None)
    if unknown:
        return _recovery(last, at, unknown, ledger, repeatable, lookups)
    kind = verdict(last)
    open_calls = tuple(p for p, slot in enumerate(last.slots) if slot.feedback is None)
    if kind != "completed":
        if open_calls:
            return Skip(at, open_calls, _REPLY_CODES[kind], f"the reply that asked for it was {kind}")
        end: Close | None = Close(kind, last.reply.termination.reason)
        return _unless_steered(turn, end, ledger, limits, elapsed)
    if not last.slots:
        fault = None if check is None else check(last.reply)
        end = Close("completed", last.reply.termination.reason) if fault is None else Close("incomplete", fault)
        return _unless_steered(turn, end, ledger, limits, elapsed)
    ending = _ending(last)
    if not open_calls:
        return (
            _end(ending) if ending is not None else _unless_steered(turn, _given(last, final), ledger, limits, elapsed)
        )
    if ending is not None:  # an owner ended half way through
        return Skip(at, open_calls, ending, _words(_end(ending)))
    waiting = waiting_calls(turn)
    left = _left(last, at, held)
    if left is not None and not _is_out_of_time(limits, elapsed):
        return Answer(at, left)
    if waiting == open_calls:
        return Suspend(at, waiting)
    ends = _will_end(turn, last.reply, check, final)
    limit = _limit_of_calls(turn, last, open_calls, ledger, limits, elapsed, sent_bytes, max_request_bytes, ends=ends)
    if limit is not None:
        return Skip(at, open_calls, limit, f"the run reached its limit ({limit})")
    return Answer(at, next(position for position in open_calls if position not in waiting))


def ahead(
    turn: Turn,
    entry: Entry,
    ledger: Ledger,
    limits: LoopLimits,
    *,
    elapsed: float,
    answered: int | None = None,
    feedback_bytes: int = 0,
    sent_bytes: int = 0,
    max_request_bytes: int | None = None,
    check: _Check | None = None,
    final: str | None = None,
    held: Container[tuple[int, int]] = (),
) -> int | None:
    """The open call that `step` will have answered after something is stored, decided before it is.

    None where it will do anything else, or more than this is to be looked at. So the claim of that call
    can be stored together with it.

    Args:
        entry: the newest one; or of the reply that is about to be stored.
        answered: position of the call whose answer is about to be stored; it neither ends the run nor is
            refused again. feedback_bytes: of that answer, as canonical JSON.
    """
    open_calls = calls_after(entry, answered)
    if not open_calls or verdict(entry) != "completed" or _ending(entry) is not None:
        return None
    if any(entry.slots[position].state not in ("open", "waiting") for position in open_calls):
        return None
    coming = next((position for position in open_calls if entry.slots[position].state == "open"), None)
    if coming is None or (entry is turn.last and _left(entry, len(turn.entries) - 1, held) is not None):
        return None
    limit = _limit_of_calls(
        turn,
        entry,
        open_calls,
        ledger,
        limits,
        elapsed,
        sent_bytes,
        max_request_bytes,
        feedback_bytes,
        ends=_will_end(turn, entry.reply, check, final),
    )
    return coming if limit is None else None


def _left(last: Entry, at: int, held: Container[tuple[int, int]]) -> int | None:
    """The first call that waits for its child run, of which nobody has asked what that is at now."""
    return next((p for p, slot in enumerate(last.slots) if _has_child(slot) and (at, p) not in held), None)


def _has_child(slot: Slot) -> bool:
    """Whether a call waits for its child run; it was debited when it began."""
    return slot.state == "waiting" and slot.code == CHILD


def calls_after(entry: Entry, answered: int | None) -> tuple[int, ...]:
    """The calls that are without feedback once this one is answered."""
    return tuple(p for p, slot in enumerate(entry.slots) if slot.feedback is None and p != answered)


def _will_end(turn: Turn, reply: ModelReply, check: _Check | None, final: str | None) -> bool:
    """Whether the run ends with the calls of this reply, so that what they find is not read in it."""
    if turn.stopping or turn.steers.pending:
        return turn.stopping
    if final is None or check is None or not any(call.name == final for call in reply.calls):
        return False
    return check(reply) in (None, _SEVERAL)


def _given(last: Entry, final: str | None) -> Close | None:
    """The end of a run whose output was given by an answered call; facts say which calls were done."""
    if final is None:
        return None
    done = sum(slot.call.name == final and slot.state == "done" for slot in last.slots)
    if done > 1:
        return Close("incomplete", _SEVERAL)
    return Close("completed", last.reply.termination.reason) if done else None


def cancelled_end(turn: Turn) -> tuple[RunOutcome, str, str]:
    """How a run ends that is cancelled where it goes on nowhere: outcome, reason, and the words for its calls.

    An end that an owner began to record stays the run's end (R142).
    """
    last = turn.last
    end = _failed(turn)
    if end is None and last is not None and verdict(last) == "completed":
        ending = _ending(last)
        end = None if ending is None else _end(ending)
    if end is None:
        end = _end("cancelled")
    return end.outcome, end.reason or end.outcome, _words(end)


def _failed(turn: Turn) -> Close | None:
    """The end of a run whose newest attempt ended without a reply, unless a host settled it or it never left."""
    ended = turn.ended
    if ended is None or ended.author is not None or ended.code == "paused":
        return None
    return _end(ended.code or "abandoned")


def _ending(last: Entry) -> str | None:
    """The code under which an owner began to end the run at one of these calls."""
    return next((code for slot in last.slots if (code := _ending_of(slot)) is not None), None)


def _words(end: Close) -> str:
    return _ENDED[end.outcome].format(end.reason)


def _ending_of(slot: Slot) -> str | None:
    """The code under which an owner began to end the run at this call, None where it did not."""
    if slot.state == "skipped":
        denied = slot.decided is not None and slot.decided.state == "skipped"
        return None if denied else slot.code  # denied by a host, the run goes on
    if slot.state != "unknown" or slot.feedback is None:
        return None
    if slot.code in _CRASHES:
        return "tool_crashed"
    return slot.code if slot.code in _LIMITS else None


def _end(code: str) -> Close:
    if code in _LIMITS:
        return Close("limit_reached", code)
    return Close("cancelled" if code == "cancelled" else "failed", code)


def _recovery(
    last: Entry,
    at: int,
    unknown: tuple[int, ...],
    ledger: Ledger,
    repeatable: Container[str],
    lookups: Container[str],
) -> Action:
    """Run lost calls again, or none of them: one that a host must decide about holds up the others.

    So does one that a host allowed and no call is left for: the host was asked what became of it, and
    can still say. Nobody need be asked about a tool that is declared idempotent (R8).
    """
    asked = tuple(p for p in unknown if not last.slots[p].rerun and last.slots[p].call.name in lookups)
    if asked:
        return Recover(at, asked)
    ending = _ending(last)  # which an owner began, and another one goes through with
    left = ledger.left("tool_calls")
    enough = ending is None and (left is None or left >= len(unknown))
    declared = [last.slots[p].call.name in repeatable for p in unknown]
    if enough and all(is_so or last.slots[p].rerun for p, is_so in zip(unknown, declared, strict=True)):
        return Answer(at, unknown[0])
    if all(declared):
        unanswered = tuple(p for p, slot in enumerate(last.slots) if slot.feedback is None)
        code = ending or "max_tool_calls"
        return Skip(at, unanswered, code, _words(_end(code)))
    return Wait((), unknown)


def verdict(entry: Entry) -> RunOutcome:
    """What a reply means for its run: completed, refused or incomplete."""
    kind = entry.reply.termination.kind
    if kind == "completed" and entry.reply.refusal is not None:
        return "refused"
    return kind


def _unless_steered(turn: Turn, end: Close | None, ledger: Ledger, limits: LoopLimits, elapsed: float) -> Action:
    """The end that a reply gives, unless it gives none or a user has said more."""
    if end is not None and (turn.stopping or not turn.steered):
        return end
    return _ask_or_close(turn, ledger, limits, elapsed)


def _ask_or_close(turn: Turn, ledger: Ledger, limits: LoopLimits, elapsed: float) -> Action:
    if turn.stopping:
        return Close("incomplete", "stopped")
    limit = _limit_of_asking(ledger, limits, elapsed)
    return Ask() if limit is None else Close("limit_reached", limit)


def _limit_of_asking(ledger: Ledger, limits: LoopLimits, elapsed: float) -> str | None:
    if ledger.left("model_calls") == 0:
        return "max_model_calls"
    if ledger.left("tokens") == 0:
        return "max_tokens"
    return "max_seconds" if _is_out_of_time(limits, elapsed) else None


def _is_out_of_time(limits: LoopLimits, elapsed: float) -> bool:
    return limits.max_seconds is not None and elapsed >= limits.max_seconds


def _limit_of_calls(
    turn: Turn,
    last: Entry,
    open_calls: tuple[int, ...],
    ledger: Ledger,
    limits: LoopLimits,
    elapsed: float,
    sent_bytes: int,
    max_request_bytes: int | None,
    added: int = 0,
    *,
    ends: bool = False,
) -> str | None:
    """The limit that forbids running the open calls, judged for all of them before the first (R102).

    ``last`` is the newest entry or the next one; ``added`` are bytes that it is about to grow by. Where the
    run ``ends`` with them there is no next request that a limit could be on.
    """
    limit = _limit_of_asking(ledger, limits, elapsed)
    if ends:
        limit = "max_seconds" if _is_out_of_time(limits, elapsed) else None
    if limit is not None:
        return limit
    left = ledger.left("tool_calls")
    if left is not None and left < sum(not _has_child(last.slots[position]) for position in open_calls):
        return "max_tool_calls"
    new = last is not turn.last
    if limits.max_equal_calls is not None:
        coming = Counter(_asked(slot) for slot in last.slots) if new else Counter()
        for position in open_calls:
            asked = _asked(last.slots[position])
            if turn.equal_calls.get(asked, 0) + coming[asked] > limits.max_equal_calls:
                return "max_equal_calls"
    if not all(has_room(limits, last.slots[position].call.id) for position in open_calls):
        return "feedback_bytes"
    reserve = len(open_calls) * limits.feedback_bytes + added
    coming_bytes = reserve + (last.size if new else 0)
    if not ends and turn.request_size + coming_bytes > limits.request_bytes:
        return "request_bytes"
    if turn.size - turn.origin_size + coming_bytes > limits.collection_bytes:
        return "collection_bytes"
    waiting = _WIRE_OF_STEERS * turn.steers.pending_size
    return None if ends else _limit_of_wire(last.size + reserve + waiting, limits, sent_bytes, max_request_bytes)


def _asked(slot: Slot) -> tuple[str, str]:
    return slot.call.name, slot.call.arguments.text


def _limit_of_wire(added: int, limits: LoopLimits, sent_bytes: int, max_request_bytes: int | None) -> str | None:
    """The limit on the encoded request that the next one could be over, with room for every answer.

    As canonical JSON a reply and its feedback are no shorter than on the wire, apart from a frame.
    """
    size = sent_bytes + added + _WIRE_FRAME
    if limits.max_wire_request_bytes is not None and size > limits.max_wire_request_bytes:
        return "max_wire_request_bytes"
    if max_request_bytes is not None and size > max_request_bytes:
        return "max_request_bytes"
    return None
