"""What may be written about conversations at rest: a branch off an exchange, and what a redacted run leaves.

Both keep the chain of digests: a branch continues the exchange's own digest, and a redacted run
keeps the digest of its origin and of each exchange.
"""

from __future__ import annotations

from ..errors import ConflictError, LostError
from .facts import ConversationBranched, ExchangeRef, RunRedacted
from .state import State
from .turn import Turn

__all__ = ["branch", "tombstone"]


def branch(
    state: State, *, run_id: str, conversation: str, source: str, at: ExchangeRef, at_ms: int
) -> tuple[ConversationBranched, ...]:
    """Begin a conversation that goes on from an exchange of another.

    Raises:
        ConflictError: there is a conversation of that name, or the digest is another exchange's.
        LostError: the other conversation has no such exchange.
    """
    if state.conversation(conversation) is not None:
        raise ConflictError(f"conversation {conversation!r}", "expected a name that is not used yet")
    if state.has_run(run_id):
        raise ConflictError(f"run {run_id!r}", "expected an id that is not used yet")
    if state.exchange(at).opened.conversation != source:
        raise LostError("exchange", f"{at.origin_id}/{at.index} of {source}")
    return (ConversationBranched(run_id=run_id, conversation=conversation, source=source, continues=at, at_ms=at_ms),)


def tombstone(turn: Turn, *, author: str, at_ms: int) -> RunRedacted:
    """What takes the place of a run's facts when its texts are removed.

    Raises:
        ConflictError: it has not ended.
    """
    opened, closed = turn.opened, turn.closed
    if turn.redacted is not None:
        return turn.redacted
    if closed is None:
        raise ConflictError(f"run {turn.run_id!r}", "expected a run that ended")
    return RunRedacted(
        run_id=turn.run_id,
        origin_id=opened.origin_id,
        digests=tuple(turn.digests),
        conversation=opened.conversation,
        continues=opened.continues,
        catalogue_digest=opened.catalogue_digest,
        input_digest=opened.input_digest,
        agent=opened.agent,
        at_ms=opened.at_ms,
        outcome=closed.outcome,
        reason=closed.reason,
        ended_at_ms=closed.at_ms,
        model_calls=turn.model_calls,
        tool_calls=turn.tool_calls,
        usage=turn.usage,
        author=author,
        redacted_at_ms=at_ms,
        parent=opened.parent,
    )
