"""How a message ends: the chunk for what its turn came to, and the facts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..serving.turn import TurnView
from .chunks import Abort, Chunk, Error, Finish, FinishReason

__all__ = ["ending_of", "summary_of"]

_FINISH: Final[Mapping[str, FinishReason]] = {"completed": "stop", "refused": "content-filter"}
_INCOMPLETE: Final[Mapping[str | None, FinishReason]] = {"length": "length", "content_filter": "content-filter"}
_UNENDED: Final = {
    "running": "The turn goes on; reconnect to its stream.",
    "elsewhere": "The turn goes on in another process; reconnect to its stream.",
    "paused": "The turn was left unfinished, and may be resumed.",
    "unsettled": "Nobody knows what became of an effect of the turn; a person has to say.",
}
"""Why a turn that has not ended, and waits for no decision, is told as an error: it must not look finished."""


def summary_of(turn: TurnView) -> dict[str, Any]:
    """What of a turn has no word in the protocol."""
    budget = turn.budget
    return {
        "turn": turn.id,
        "state": turn.state,
        "outcome": turn.outcome,
        "reason": turn.reason,
        "usage": _usage(turn),
        "budget": {
            "modelCalls": {"used": budget.model_calls.used, "limit": budget.model_calls.limit},
            "toolCalls": {"used": budget.tool_calls.used, "limit": budget.tool_calls.limit},
            "tokens": {"used": budget.tokens.used, "limit": budget.tokens.limit},
        },
    }


def _usage(turn: TurnView) -> dict[str, int | None] | None:
    usage = turn.usage
    if usage is None:
        return None
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }


def ending_of(turn: TurnView) -> Chunk:
    """The last chunk: a turn that failed, or has not ended, must not look finished."""
    if turn.state == "waiting":
        return _finish("tool-calls", turn)
    if turn.state != "ended":
        return Error(error_text=f"{turn.state}: {_UNENDED[turn.state]}")
    if turn.outcome == "cancelled":
        return Abort(reason=turn.reason or "cancelled")
    if turn.outcome == "failed":
        return Error(error_text=f"{turn.reason or 'failed'}: The turn failed.")
    if turn.outcome == "incomplete":
        return _finish(_INCOMPLETE.get(turn.reason, "other"), turn)
    return _finish(_FINISH.get(turn.outcome or "", "other"), turn)


def _finish(reason: FinishReason, turn: TurnView) -> Chunk:
    usage = _usage(turn)
    return Finish(finish_reason=reason, message_metadata=None if usage is None else {"usage": usage})
