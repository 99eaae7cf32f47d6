"""What a run came to."""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import LostError, OutcomeError
from .exchange import Turn
from .messages import Usage

__all__ = ["Outcome", "RunResult", "result_of"]

Outcome = Literal["completed", "refused", "incomplete", "limit_reached"]


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run that did not raise.

    Attributes:
        outcome: ``completed``: the model gave a final reply. ``refused``: it, or a filter,
            refused. ``incomplete``: its reply was cut off (``length``) or ended with another word.
            ``limit_reached``: a `LoopLimits` field or a budget ended the run; open calls were not
            run, and the history stays usable.
        reason: the model's finish word, or the name of the limit.
        text: body text of the newest reply; may be empty or partial unless ``completed``.
        refusal: what the model wrote instead of a body, None when nothing.
        ref: the run's id, for `Runtime.result` and `Runtime.follow`.
        conversation: name of the conversation it belongs to, None for a run of its own.
        usage: tokens over all calls as reported; None when no call reported any. A call whose
            usage is unknown adds nothing.
        model_calls, tool_calls: how many were started.
    """

    outcome: Outcome
    reason: str | None
    text: str
    refusal: str | None
    ref: str
    conversation: str | None
    usage: Usage | None
    model_calls: int
    tool_calls: int

    def require_text(self) -> str:
        """The text of a completed run.

        Raises:
            OutcomeError: the run ended otherwise; says how.
        """
        if self.outcome != "completed":
            raise OutcomeError(self.outcome, self.reason, self.ref)
        return self.text


def result_of(turn: Turn) -> RunResult:
    """The result of a run that was closed with an outcome.

    Raises:
        OutcomeError: it ended with an error or a cancel, or has not ended.
        LostError: its texts were redacted.
    """
    closed, last = turn.closed, turn.last
    if closed is None or closed.outcome == "failed" or closed.outcome == "cancelled":  # noqa: PLR1714  # mypy narrows ==
        raise OutcomeError(closed.outcome if closed else "running", closed.reason if closed else None, turn.run_id)
    if turn.redacted is not None:
        raise LostError("text of run", turn.run_id)
    return RunResult(
        outcome=closed.outcome,
        reason=closed.reason,
        text=last.reply.text if last else "",
        refusal=last.reply.refusal if last else None,
        ref=turn.run_id,
        conversation=turn.opened.conversation,
        usage=turn.usage,
        model_calls=turn.model_calls,
        tool_calls=turn.tool_calls,
    )
