"""Calls that wait for a decision of a host, and what each decision makes of them.

A call waits for one of these reasons, which is the code of its slot while it does:

    approval    its tool may run, once somebody has approved it
    external    it runs elsewhere, and its result is given

Or for its child run (``child``), of which calls wait for one of these. It was started, and nobody decides about
it: who resumes the run asks the child again.

A decision is a `SlotMoved` with an author. It is bound to the digest of the call: who decides about
what he was shown can decide about nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ..admission import chain
from ..errors import ConflictError, LimitExceeded
from ..messages import ToolFeedback
from .encoding import sorted_bytes
from .facts import Fact
from .recovery import Recovery
from .slots import SlotState, move
from .turn import Turn

__all__ = ["CHILD", "OUTCOMES", "WaitKind", "Waiting", "call_digest", "is_suspended", "waiting_calls"]

_CALL_DOMAIN: Final = "agentloop/call/v1"

WaitKind = Literal["approval", "external"]
"""Why a call waits for a host."""

CHILD: Final = "child"
"""The code of a call that waits for its child run."""

OUTCOMES: Final[Mapping[str, frozenset[SlotState]]] = {
    "approval": frozenset({"open", "skipped", "done", "failed"}),
    "external": frozenset({"skipped", "done", "failed"}),
}
"""What a host may decide about a call, by the reason for which it waits."""


def waiting_calls(turn: Turn) -> tuple[int, ...]:
    """Positions of the calls of the newest reply that wait for a host, or for their child runs."""
    last = turn.last
    return () if last is None else tuple(p for p, slot in enumerate(last.slots) if slot.state == "waiting")


def is_suspended(turn: Turn) -> bool:
    """Whether a run has nothing to do but what a host decides, or has decided: a call of it waits.

    Calls that were decided to run, and are not run yet, are left out of account: the run goes on with them
    when it is resumed.
    """
    if turn.closed is not None or turn.sends or not waiting_calls(turn):
        return False
    assert turn.last is not None, "it has a call that waits"
    return all(
        slot.feedback is not None or slot.state == "waiting" or (slot.state == "open" and slot.decided is not None)
        for slot in turn.last.slots
    )


def call_digest(turn: Turn, exchange: int, position: int) -> str:
    """Hex SHA-256 over all that a call was asked for in, and all that it asks for.

    That is the chain over the origin and the exchanges before it, its place, its id, the tool's name, the
    arguments as the model wrote them, and the tool as the model was shown it.
    """
    call = turn.entries[exchange].slots[position].call
    shown = next((sorted_bytes(spec) for spec in turn.opened.tools if spec.name == call.name), b"")
    parts = (f"{exchange}.{position}", call.id, call.name, call.arguments.text)
    return chain(_CALL_DOMAIN, turn.digests[exchange], *(part.encode() for part in parts), shown)


class Waiting(Recovery):
    """The steps of waiting and deciding, checked against the state."""

    def hold_slot(self, turn: Turn, exchange: int, position: int, *, kind: WaitKind, at_ms: int) -> tuple[Fact, ...]:
        """Let an open call wait for a host. Letting it wait again for the same adds nothing.

        Raises:
            ConflictError: the run is closed, the slot is not open, or a host has decided about it.
        """
        self._running(turn)
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        if slot.state == "waiting" and slot.code == kind:
            return ()
        if slot.decided is not None:
            raise ConflictError(where, f"expected a call that nobody has decided about, got one {slot.decided.code}")
        if slot.state != "open":
            raise ConflictError(where, f"expected an open call, got one that is {slot.state}")
        move(slot.state, "waiting", where=where)
        return (self._moved(turn, exchange, position, "waiting", at_ms=at_ms, code=kind),)

    def decide_slot(
        self,
        turn: Turn,
        exchange: int,
        position: int,
        *,
        digest: str,
        state: SlotState,
        code: str,
        feedback: ToolFeedback | None,
        author: str,
        at_ms: int,
        max_bytes: int,
    ) -> tuple[Fact, ...]:
        """Decide about a call that waits. The same decision again is confirmed and adds nothing (R82).

        Args:
            digest: of the call, as whoever decides was shown it (`call_digest`).
            state: what becomes of it: ``open`` to run, ``skipped``, or ``done`` or ``failed`` elsewhere.
            code: the decision as a word. feedback: what the model reads of it; None where the tool says that.
            max_bytes: of the feedback with its call id, as JSON. A host's words are not cut.

        Raises:
            LostError: there is no such call.
            ConflictError: the digest is another call's, another decision was made, the call does not wait,
                or one that waits for this reason cannot become ``state``.
            LimitExceeded: ``feedback_bytes``: the feedback is larger (R98).
        """
        where = f"call {exchange}.{position} of run {turn.run_id!r}"
        slot = self._slot(turn, exchange, position)
        if call_digest(turn, exchange, position) != digest:
            raise ConflictError(where, "expected the digest of the stored call, got another")
        made = slot.decided
        if made is not None:
            if (made.state, made.code, made.feedback, made.author) == (state, code, feedback, author):
                return ()
            raise ConflictError(where, f"expected the decision that was made ({made.code} by {made.author!r})")
        if slot.state != "waiting":
            raise ConflictError(where, f"expected a call that waits for a decision, got one that is {slot.state}")
        self._running(turn)
        if slot.code == CHILD:
            rule = f"expected a call that waits for a host, got one that waits for run {slot.effect_id!r}: decide there"
            raise ConflictError(where, rule)
        move(slot.state, state, where=where)
        if state not in OUTCOMES[slot.code or ""]:
            allowed = ", ".join(sorted(OUTCOMES[slot.code or ""]))
            rule = f"a call that waits ({slot.code}) cannot be {code}: expected it to become {allowed}"
            if slot.code == "external":
                rule += "; its result is given (Answer), or it is denied"
            raise ConflictError(where, rule)
        if feedback is not None:
            self._check_feedback(exchange, slot, feedback)
            size = len(self.encoded(feedback))
            if size > max_bytes:
                raise LimitExceeded("feedback_bytes", max_bytes, size)
        return (self._moved(turn, exchange, position, state, at_ms=at_ms, feedback=feedback, code=code, author=author),)
