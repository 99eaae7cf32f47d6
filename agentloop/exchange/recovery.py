"""What a host may write about effects whose process died: each decision is a fact with its author.

Nothing here guesses. A started slot becomes ``unknown`` when its run is taken over; a send without
an end stays as it is. Both wait until somebody who knows says what became of them, or allows one
more try, or ends the run without knowing.
"""

from __future__ import annotations

from ..errors import ConflictError, HistoryError, LimitExceeded, LostError
from ..limits import FEEDBACK_BYTES
from ..messages import ToolFeedback, ToolResult, Usage
from .facts import Fact, RerunAllowed, RunClosed, RunOutcome, SendEnded, SlotMoved
from .slots import SlotState, move
from .state import State
from .turn import Slot, Turn

__all__ = ["Recovery", "unrun_words"]


class Recovery(State):
    """The steps of settling, checked against the state."""

    def lose_slots(self, turn: Turn, *, at_ms: int) -> tuple[Fact, ...]:
        """Take over a run: every execution that was started and not answered is ``unknown`` now.

        One that waits for its child run goes on waiting: what that has done is in its own facts.
        """
        self._running(turn)
        return tuple(
            self._moved(turn, exchange, position, "unknown", at_ms=at_ms, code="owner_ended")
            for exchange, entry in enumerate(turn.entries)
            for position, slot in enumerate(entry.slots)
            if slot.state == "started"
        )

    def settle_send(
        self, turn: Turn, attempt_id: str, *, author: str, at_ms: int, usage: Usage | None = None
    ) -> tuple[Fact, ...]:
        """Declare that an attempt brought no reply that can be used. It stays charged.

        Raises:
            ConflictError: no such attempt is without an end.
        """
        self._running(turn)
        if attempt_id not in turn.sends:
            raise ConflictError(f"attempt {attempt_id!r}", "expected an attempt without an end")
        ended = SendEnded(
            run_id=turn.run_id,
            attempt_id=attempt_id,
            outcome="failed",
            code="declared_failed",
            may_have_been_processed=True,
            usage=usage,
            author=author,
            at_ms=at_ms,
        )
        return (ended,)

    def settle_slot(
        self,
        turn: Turn,
        exchange: int,
        position: int,
        *,
        state: SlotState,
        feedback: ToolFeedback,
        author: str,
        at_ms: int,
        max_bytes: int = FEEDBACK_BYTES,
    ) -> tuple[Fact, ...]:
        """Say what became of an execution whose outcome is unknown (``done`` or ``failed``).

        Args:
            max_bytes: of the feedback with its call id, as JSON. A host's words are not cut.

        Raises:
            ConflictError: the slot is not unknown, or holds feedback already.
            LimitExceeded: ``feedback_bytes``: the feedback is larger (R98).
        """
        self._running(turn)
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        if slot.state != "unknown" or slot.feedback is not None or state not in ("done", "failed"):
            raise ConflictError(
                where, f"expected an unknown slot to be done or failed, got {slot.state} to {state}{_hint(slot)}"
            )
        move(slot.state, state, where=where)
        self._check_feedback(exchange, slot, feedback)
        size = len(self.encoded(feedback))
        if size > max_bytes:
            raise LimitExceeded("feedback_bytes", max_bytes, size)
        return (
            self._moved(turn, exchange, position, state, at_ms=at_ms, feedback=feedback, code="settled", author=author),
        )

    def allow_rerun(self, turn: Turn, exchange: int, position: int, *, author: str, at_ms: int) -> tuple[Fact, ...]:
        """Allow one more execution of a call whose outcome is unknown. Allowing it twice adds nothing.

        Raises:
            ConflictError: the slot is not unknown, or holds feedback.
        """
        self._running(turn)
        slot = self._slot(turn, exchange, position)
        if slot.state != "unknown" or slot.feedback is not None:
            raise ConflictError(
                f"call {exchange}.{position}", f"expected an unknown slot, got one that is {slot.state}{_hint(slot)}"
            )
        if slot.rerun:
            return ()
        allowed = RerunAllowed(
            run_id=turn.run_id,
            origin_id=turn.opened.origin_id,
            exchange=exchange,
            position=position,
            author=author,
            at_ms=at_ms,
        )
        return (allowed,)

    def leave_slot(
        self,
        turn: Turn,
        exchange: int,
        position: int,
        *,
        feedback: ToolFeedback,
        code: str,
        at_ms: int,
        author: str | None = None,
    ) -> tuple[Fact, ...]:
        """Answer a call whose outcome nobody will know: it stays ``unknown``, and its feedback says so.

        Args:
            author: the host that decided it; None where the run itself did.

        Raises:
            ConflictError: the slot is not unknown, or holds feedback already.
        """
        self._running(turn)
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        if slot.state != "unknown" or slot.feedback is not None:
            raise ConflictError(where, f"expected an unknown slot to stay so, got one that is {slot.state}")
        self._check_feedback(exchange, slot, feedback)
        return (
            self._moved(turn, exchange, position, "unknown", at_ms=at_ms, feedback=feedback, code=code, author=author),
        )

    def end_run(
        self, turn: Turn, outcome: RunOutcome, reason: str, words: str, *, author: str | None, at_ms: int
    ) -> tuple[Fact, ...]:
        """End a run that was taken over as it is, in one batch; its conversation can go on then.

        Open calls are skipped, and so are those that wait, for a child run too: whoever ends it has ended
        that. A send without an end is abandoned: the server may have worked on it. A
        call whose outcome is unknown stays so, with feedback that says it.

        Args:
            reason: also the code of each of these. words: why, for the model: "the run was cancelled".
            author: who decides that nobody will know what became of an effect.

        Raises:
            ConflictError: it has ended, or an effect needs a decision and there is no author.
        """
        self._running(turn)
        sends = tuple(
            SendEnded(
                run_id=turn.run_id,
                attempt_id=attempt_id,
                outcome="abandoned",
                code=reason,
                may_have_been_processed=True,
                author=author,
                at_ms=at_ms,
            )
            for attempt_id in turn.sends
        )
        last = len(turn.entries) - 1
        calls: list[Fact] = []
        for position, slot in enumerate(turn.entries[last].slots if turn.entries else ()):
            if slot.feedback is None and slot.state in ("open", "waiting"):
                result = ToolResult.error(unrun_words(slot, words))
                feedback = ToolFeedback.of(slot.call.id, result)
                state = move(slot.state, "skipped", where=f"call {last}.{position}")
                calls.append(self._moved(turn, last, position, state, at_ms=at_ms, feedback=feedback, code=reason))
            elif slot.feedback is None:
                result = ToolResult.error(f"Error: {words}; whether the effect of this call happened is unknown.")
                feedback = ToolFeedback.of(slot.call.id, result)
                calls += self.leave_slot(
                    turn, last, position, feedback=feedback, code=reason, at_ms=at_ms, author=author
                )
        if author is None and (sends or any(type(fact) is SlotMoved and fact.state == "unknown" for fact in calls)):
            raise ConflictError(f"run {turn.run_id!r}", "expected an author who decides what nobody knows, got none")
        return (*sends, *calls, RunClosed(run_id=turn.run_id, outcome=outcome, reason=reason, at_ms=at_ms))

    def slot(self, turn: Turn, exchange: int, position: int) -> Slot:
        """The slot of one call.

        Raises:
            LostError: there is no such call.
        """
        return self._slot(turn, exchange, position)

    @staticmethod
    def _moved(
        turn: Turn,
        exchange: int,
        position: int,
        state: SlotState,
        *,
        at_ms: int,
        claim: str | None = None,
        feedback: ToolFeedback | None = None,
        code: str | None = None,
        author: str | None = None,
        converted: tuple[str, ...] = (),
    ) -> SlotMoved:
        """One step of a slot, of the execution it has; ``claim`` is the id of one more."""
        slot = turn.entries[exchange].slots[position]
        return SlotMoved(
            run_id=turn.run_id,
            origin_id=turn.opened.origin_id,
            exchange=exchange,
            position=position,
            state=state,
            effect_id=slot.effect_id if claim is None else claim,
            attempt=slot.attempt if claim is None else slot.attempt + 1,
            feedback=feedback,
            code=code,
            author=author,
            converted=converted,
            at_ms=at_ms,
        )

    @staticmethod
    def _running(turn: Turn) -> None:
        if turn.closed is not None:
            raise ConflictError(f"run {turn.run_id!r}", f"expected a running run, got one that {turn.closed.outcome}")

    @staticmethod
    def _slot(turn: Turn, exchange: int, position: int) -> Slot:
        if not 0 <= exchange < len(turn.entries) or not 0 <= position < len(turn.entries[exchange].slots):
            raise LostError("call", f"{turn.run_id}/{exchange}.{position}")
        return turn.entries[exchange].slots[position]

    @staticmethod
    def _check_feedback(exchange: int, slot: Slot, feedback: ToolFeedback) -> None:
        if feedback.tool_call_id != slot.call.id:
            raise HistoryError(
                "orphan_tool_result", f"call {exchange}", "expected the feedback of the call at this position"
            )


def unrun_words(slot: Slot, why: str) -> str:
    """What the model reads of a call that is skipped, open or waiting.

    Args:
        why: "the run was cancelled".
    """
    if slot.asked:
        return f"The agent that this call asked was cancelled: {why}."
    return f"This call was not run: {why}."


def _hint(slot: Slot) -> str:
    if slot.state != "waiting":
        return ""
    if slot.asked:
        return f"; it waits for run {slot.effect_id!r}: decide about the calls of that"
    return "; a call that waits is decided about, not settled"
