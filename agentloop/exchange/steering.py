"""What a user may write of a run that goes on: one more message, or that it shall stop.

Both are facts at once. When they take effect follows from their place among the others: a steer with
the next request (see `steers`), a stop when the exchange under way is complete.
"""

from __future__ import annotations

from typing import Final

from ..errors import ConflictError
from ..messages import UserMessage
from .facts import Fact, RunOutcome, Steered, StopAsked
from .recovery import Recovery
from .turn import Turn

__all__ = ["BY_REPLY", "Steering"]

BY_REPLY: Final[frozenset[RunOutcome]] = frozenset({"completed", "refused", "incomplete"})
"""Outcomes that a reply gives; where a user has said more after it, the run asks again instead."""


class Steering(Recovery):
    """The steps of a user, checked against the state."""

    def steer(self, turn: Turn, message: UserMessage, *, author: str | None, at_ms: int) -> tuple[Fact, ...]:
        """Say something to a run; its next request that repeats no refused one has it.

        Raises:
            ConflictError: the run has ended, was asked to stop, or is no agent's; what is said would be lost.
            LimitExceeded: the book is full (``total_bytes``, ``item_bytes``).
        """
        self._check_agents(turn)
        if turn.closed is not None:
            rule = f"expected a run that has not ended, got one that {turn.closed.outcome}"
            raise ConflictError(f"run {turn.run_id!r}", rule)
        if turn.stopping:
            raise ConflictError(f"run {turn.run_id!r}", "expected a run that was not asked to stop")
        self._room_of(turn.opened.conversation, turn.run_id).check(len(self.encoded(message)))
        return (Steered(run_id=turn.run_id, message=message, author=author, at_ms=at_ms),)

    def ask_stop(self, turn: Turn, *, author: str | None, at_ms: int) -> tuple[Fact, ...]:
        """Have a run end after the exchange under way. Asking again, or after its end, adds nothing.

        Raises:
            ConflictError: the run is no agent's.
        """
        self._check_agents(turn)
        if turn.stopping or turn.closed is not None:
            return ()
        return (StopAsked(run_id=turn.run_id, author=author, at_ms=at_ms),)

    @staticmethod
    def _check_agents(turn: Turn) -> None:
        if turn.opened.call is not None:
            rule = "expected a run of an agent, got a model call of a runner"
            raise ConflictError(f"run {turn.run_id!r}", rule)
