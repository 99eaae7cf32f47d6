"""What a run came to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec

from .decisions import WaitingCall, joined_kinds, waiting_of
from .errors import LostError, OutcomeError
from .exchange import CHILD, Turn, is_suspended
from .messages import Usage
from .runner import Asking

__all__ = ["Outcome", "RunResult", "result_in", "result_of"]

T_co = TypeVar("T_co", covariant=True)

Outcome = Literal["completed", "refused", "incomplete", "limit_reached", "waiting_for_approval"]


class RunResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """The end of a run that did not raise, or where it waits for a host.

    Attributes:
        outcome: ``completed``: the model gave a final reply. ``refused``: it, or a filter,
            refused. ``incomplete``: its reply was cut off (``length``) or ended with another word, or
            it is not the output that was asked for; or the run was asked to stop.
            ``limit_reached``: a `LoopLimits` field or a budget ended the run; open calls were not
            run, and the history stays usable. ``waiting_for_approval``: calls wait for a host, and the run
            has not ended: `Runtime.decide` about each, and `Runtime.resume` it.
        reason: the model's finish word, or the name of the limit; ``stopped`` where it was asked to stop; of a
            reply that is not the output a code of `OutputRefused`, or ``no_output``: the output function was
            not called; of a run that waits what for: ``approval``, ``external`` or ``approval+external``.
        text: body text of the newest reply; may be empty or partial unless ``completed``.
        refusal: what the model wrote instead of a body, None when nothing.
        ref: the run's id, for `Runtime.result` and `Runtime.follow`.
        conversation: name of the conversation it belongs to, None for a run of its own.
        usage: tokens over all calls as reported; None when no call reported any. A call whose
            usage is unknown adds nothing.
        model_calls, tool_calls: how many were started. Calls that made summaries for the run (`Agent`'s
            ``context``) are runs of their own, and counted there; the run's limits cover them too.
        value: the output of a completed run, made of its last reply; None where there is none.
        has_value: whether there is one, as an output may be None itself.
        waiting: the calls that wait, in call order, those of the runs that agents do for it where their own
            calls are; empty unless ``waiting_for_approval``.
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
    value: T_co | None = None
    has_value: bool = False
    waiting: tuple[WaitingCall, ...] = ()

    def require_text(self) -> str:
        """The text of a completed run.

        Raises:
            OutcomeError: the run ended otherwise; says how.
        """
        if self.outcome != "completed":
            raise OutcomeError(self.outcome, self.reason, self.ref)
        return self.text

    def require_value(self) -> T_co:
        """The output of a completed run.

        Raises:
            OutcomeError: the run ended otherwise, or there is no value: no output was asked for, or the result
                was read without the agent that makes it.
        """
        if not self.has_value:
            missing = "no output was asked for, or the result was read without its agent"
            raise OutcomeError(self.outcome, missing if self.outcome == "completed" else self.reason, self.ref)
        return cast("T_co", self.value)


async def result_in(
    turn: Turn, load: Callable[[str], Awaitable[Turn]], asking: Asking[Any] | None = None, *, left: bool = False
) -> RunResult[Any]:
    """The result of a run, as `result_of`; one that waits is told with what waits in the runs below it.

    Args:
        load: reads another run; raises `LostError` where there is none.
        left: the run was left waiting just now, and that is its result whatever was decided meanwhile.

    Raises:
        OutcomeError, LostError, OutputRefused: as `result_of`. RestoreError, PersistenceError: as ``load``.
    """
    if not is_suspended(turn):
        return result_of(turn, asking)
    waiting = await _waiting_in(turn, load)
    return _suspended(turn, waiting) if left else result_of(turn, asking, waiting)


async def _waiting_in(turn: Turn, load: Callable[[str], Awaitable[Turn]]) -> tuple[WaitingCall, ...]:
    """The calls of a suspended run that wait, and in place of each that waits for a child run those of that."""
    if not is_suspended(turn):
        return ()
    assert turn.last is not None, "it has calls that wait"
    own = {item.position: item for item in waiting_of(turn)}
    found: list[WaitingCall] = []
    for position, slot in enumerate(turn.last.slots):
        if position in own:
            found.append(own[position])
        elif slot.state == "waiting" and slot.code == CHILD:
            try:
                child = await load(slot.effect_id or "")
            except LostError:  # it was forgotten; the call finds out when its run is resumed
                continue
            found += await _waiting_in(child, load)
    return tuple(found)


def result_of(
    turn: Turn, asking: Asking[Any] | None = None, waiting: tuple[WaitingCall, ...] | None = None
) -> RunResult[Any]:
    """The result of a run that was closed with an outcome, or that waits for a host.

    Args:
        asking: what the run asked, which makes its value; None makes none.
        waiting: the calls that wait, in it and below it; None are its own.

    Raises:
        OutcomeError: it ended with an error or a cancel, or has not ended and does not wait, or has more to do.
        LostError: its texts were redacted.
        OutputRefused: the type takes no longer what it took.
    """
    closed, last = turn.closed, turn.last
    if is_suspended(turn):
        waiting = waiting_of(turn) if waiting is None else waiting
        if waiting:
            return _suspended(turn, waiting)
    if closed is None or closed.outcome == "failed" or closed.outcome == "cancelled":  # noqa: PLR1714  # mypy narrows ==
        raise OutcomeError(closed.outcome if closed else "running", closed.reason if closed else None, turn.run_id)
    if turn.redacted is not None:
        raise LostError("text of run", turn.run_id)
    read = None if asking is None or closed.outcome != "completed" else asking.read
    has_value = read is not None and last is not None
    return _result(
        turn,
        outcome=closed.outcome,
        reason=closed.reason,
        value=read(last.reply) if read is not None and last is not None else None,
        has_value=has_value,
    )


def _suspended(turn: Turn, waiting: tuple[WaitingCall, ...]) -> RunResult[Any]:
    reason = joined_kinds(item.kind for item in waiting) or None
    return _result(turn, outcome="waiting_for_approval", reason=reason, waiting=waiting)


def _result(turn: Turn, **fields: Any) -> RunResult[Any]:
    last = turn.last
    return RunResult(
        text=last.reply.text if last else "",
        refusal=last.reply.refusal if last else None,
        ref=turn.run_id,
        conversation=turn.opened.conversation,
        usage=turn.usage,
        model_calls=turn.model_calls,
        tool_calls=turn.tool_calls,
        **fields,
    )
