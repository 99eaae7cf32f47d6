"""The thin driver: take the next step until the run is closed, and leave a usable history always."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, cast

from ..decisions import WAITING, joined_kinds
from ..effects import (
    Overtaken,
    PendingSend,
    Rejected,
    Resend,
    Scope,
    answer_call,
    answer_calls,
    code_of,
    give_back,
    join,
    limit_of,
    measure,
    recover_calls,
    rest,
    send,
    settle,
    skip_calls,
)
from ..errors import (
    AgentLoopError,
    BudgetError,
    ModelPending,
    NotOwnerError,
    ProviderError,
    RunPaused,
    StreamRefused,
    UnsettledError,
)
from ..events import RunEnded, RunStarted
from ..exchange import BY_REPLY, CHILD, Book, Entry, Fact, RunOutcome, Slot
from ..messages import ToolFeedback
from .states import Phase, Signal, follow
from .step import Action, Answer, Ask, Close, Recover, Skip, Suspend, Wait, ahead, calls_after, phase_of, step

__all__ = ["advance", "close", "drive"]

_RESUMABLE = (ModelPending, RunPaused, UnsettledError)
"""What leaves a run without its end."""

_OVER: Final = (Phase.ENDED, Phase.SUSPENDED)

_NO_CLOCK: Final = nullcontext()

_LIMIT_FIELDS = {"model_calls": "max_model_calls", "tool_calls": "max_tool_calls", "tokens": "max_tokens"}


async def advance(scope: Scope) -> Phase:
    """Read the facts, do the next durable action, return where the run is then.

    Engine-free: the embedded driver calls it in a loop, and another engine may as well. A limit
    ends the run with an outcome; see `drive` for what is raised. What a host's policy has sent once
    more is waited for first.
    """
    turn = scope.turn
    phase = phase_of(turn)
    if phase is Phase.ENDED:
        return phase
    if phase is Phase.ANSWERING and not scope.sent_bytes:
        measure(scope)  # of a request that an earlier owner sent, or a fallback
    action = _next(scope)
    if type(action) is Resend:
        await rest(scope, action)
        return follow(phase, await _ask(scope))
    if type(action) is Ask:
        return follow(phase, await _ask(scope))
    if type(action) is Answer:
        return follow(phase, await _answer(scope, action))
    if type(action) is Skip:
        await give_back(scope)
        await skip_calls(scope, action.exchange, action.positions, code=action.code, text=action.text)
        return follow(phase, Signal.ANSWERED_ALL)
    if type(action) is Recover:
        await recover_calls(scope, action.exchange, action.positions)
        return follow(phase, Signal.ANSWERED_ALL if phase_of(turn) is Phase.ASKING else Signal.RECOVERED)
    if type(action) is Wait:
        pending = None if scope.sends is None else scope.sends.of(scope.run_id)
        if pending is not None:
            return follow(phase, await _ask(scope, pending))
        raise _unsettled(scope.run_id, len(turn.entries) - 1, action)
    if type(action) is Suspend:
        return follow(phase, Signal.SUSPENDED)
    assert type(action) is Close
    closed = await close(scope, action.outcome, action.reason)
    return follow(phase, Signal.CLOSED if closed else Signal.OVERTAKEN)


async def drive(scope: Scope, *, cancelled: bool = False) -> None:
    """Advance until the run is closed, or suspended, as calls of it wait for a host.

    However it ends, every call of every stored reply has feedback afterwards and the run has its
    `RunClosed` fact, so the conversation can go on; unless the store itself has stopped, another
    owner took the run over, or it waits to be decided about, settled or resumed.

    Args:
        cancelled: it was cancelled before it began; record that and do nothing else.

    Raises:
        StreamRefused, ProviderError, ToolCrashed, ApprovalFailed, PersistenceError, ConflictError: what ended
            the run (outcome ``failed``).
        ModelPending: it left a send that goes on; the run has not ended.
        UnsettledError: an effect of an earlier owner must be settled first; the run has not ended.
            ``__cause__`` is the error of a lookup that was asked.
        RunPaused: the scope said so; the run has not ended.
        NotOwnerError: another owner took the run over; it goes on there.
        asyncio.CancelledError: it was cancelled (outcome ``cancelled``).
    """
    opened = scope.turn.opened
    scope.emitter.process(
        RunStarted,
        agent=scope.agent,
        conversation=opened.conversation,
        origin_id=opened.origin_id,
        catalogue_digest=opened.catalogue_digest,
    )
    me = cast("asyncio.Task[object]", asyncio.current_task())
    requests = me.cancelling()
    seconds = scope.limits.max_seconds
    clock = None if seconds is None else asyncio.timeout(seconds)
    try:
        if cancelled:
            raise asyncio.CancelledError
        async with clock or _NO_CLOCK:
            try:
                while not scope.paused():
                    phase = await advance(scope)
                    if phase is Phase.SUSPENDED:
                        _tell_end(scope, WAITING, _kinds(scope))
                    if phase in _OVER:
                        return
                    if me.cancelling() > requests:  # whoever was waited for kept the cancel to itself
                        raise asyncio.CancelledError
            finally:
                if scope.claim is not None:  # of a tool that will not begin
                    await settle(give_back(scope))
        raise RunPaused(scope.run_id)
    except TimeoutError as error:
        if clock is None or not clock.expired():
            await _abort(scope, "failed", error)
            raise
        _check_settled(scope)
        try:
            await _finish(scope, "limit_reached", "max_seconds", "the run reached its limit (max_seconds)")
        except AgentLoopError as fault:
            _tell_end(scope, "failed", fault.code)
            raise
    except asyncio.CancelledError:
        if not scope.store.owns(scope.run_id):
            _tell_end(scope, "failed", NotOwnerError.code)
            raise NotOwnerError(f"run {scope.run_id!r}", "expected its owner, got one whose lease is gone") from None
        if scope.paused():  # its effect did not end in time
            _tell_end(scope, "paused", "paused")
            raise RunPaused(scope.run_id) from None
        await _abort(scope, "cancelled", None)
        raise
    except BaseException as error:
        if isinstance(error, _RESUMABLE) and error.ref == scope.run_id:
            _tell_end(scope, error.code, error.code)
            raise
        if isinstance(error, NotOwnerError) and not scope.store.owns(scope.run_id):  # it goes on elsewhere
            _tell_end(scope, "failed", error.code)
            raise
        await _abort(scope, "failed" if isinstance(error, Exception) else "cancelled", error)
        raise


async def close(scope: Scope, outcome: RunOutcome, reason: str | None) -> bool:
    """Store the end of the run and tell it. A cancel that arrives meanwhile comes too late.

    Returns:
        False where a reply would have been the end, and a user said more just before: nothing was stored.
    """
    turn = scope.turn

    def step(book: Book) -> Sequence[Fact]:
        if outcome in BY_REPLY and turn.steered and not turn.stopping:
            return ()
        return book.close_run(turn, outcome=outcome, reason=reason, at_ms=scope.now_ms())

    await scope.commit(step, last=True)
    if turn.closed is None:
        return False
    _tell_end(scope, outcome, reason)
    return True


def _next(scope: Scope) -> Action:
    return step(
        scope.turn,
        scope.ledger,
        scope.limits,
        elapsed=scope.elapsed,
        sent_bytes=scope.sent_bytes,
        max_request_bytes=scope.provider.max_request_bytes,
        repeatable=scope.repeatable,
        lookups=scope.lookups,
        resend=scope.resend,
        check=scope.check,
        final=scope.final,
        held=scope.held,
    )


def _choose(scope: Scope, entry: Entry, answered: int | None, feedback: ToolFeedback | None) -> int | None:
    """What `_next` will answer once the entry, or the answer of one of its calls, is stored."""
    if scope.turn.refused or not calls_after(entry, answered):  # the next request may be another provider's
        return None
    return ahead(
        scope.turn,
        entry,
        scope.ledger,
        scope.limits,
        elapsed=scope.elapsed,
        answered=answered,
        feedback_bytes=0 if feedback is None else len(scope.store.book.encoded(feedback)),
        sent_bytes=scope.sent_bytes,
        max_request_bytes=scope.provider.max_request_bytes,
        check=scope.check,
        final=scope.final,
        held=scope.held,
    )


async def _ask(scope: Scope, pending: PendingSend | None = None) -> Signal:
    """Make a model call, or wait for the one that is under way."""
    provider = scope.provider
    try:
        reply = await (send(scope, partial(_choose, scope)) if pending is None else join(scope, pending))
    except (ProviderError, StreamRefused):
        if type(_next(scope)) is not Resend:
            raise
        return Signal.REFUSED
    except Overtaken:
        return Signal.OVERTAKEN
    except Rejected as rejected:
        limit = limit_of(rejected.error)
        await close(scope, "limit_reached", _LIMIT_FIELDS.get(limit, limit))
        return Signal.CLOSED
    if scope.provider is not provider:  # the next request is another's, which may encode it otherwise
        scope.sent_bytes = 0
    return Signal.ASKED if reply.calls else Signal.REPLIED


async def _answer(scope: Scope, action: Answer) -> Signal:
    together = _together(scope, action)
    try:
        if len(together) > 1:
            await answer_calls(scope, action.exchange, together)
        else:
            await answer_call(scope, action.exchange, action.position, partial(_choose, scope))
    except BudgetError as error:  # another user of the shared ledger was quicker
        await give_back(scope)
        limit = _LIMIT_FIELDS.get(error.limit, error.limit)
        await skip_calls(scope, action.exchange, _open(scope), code=limit, text=f"the run reached its limit ({limit})")
    last = scope.turn.last
    return Signal.ANSWERED_ALL if last is not None and last.complete else Signal.ANSWERED_ONE


def _together(scope: Scope, action: Answer) -> tuple[int, ...]:
    """The calls that may run at the same time: all that nobody began, once none is left that somebody did.

    Those whose child runs are to be asked again are among them.
    """
    if scope.limits.max_parallel_tools == 1 or scope.turn.last is None:
        return ()
    claimed = None if scope.claim is None else scope.claim.position
    slots = scope.turn.last.slots
    together = tuple(
        p
        for p, slot in enumerate(slots)
        if slot.state == "open" or p == claimed or (_waits_for_child(slot) and (action.exchange, p) not in scope.held)
    )
    return together if action.position in together else ()


def _waits_for_child(slot: Slot) -> bool:
    return slot.state == "waiting" and slot.code == CHILD


def _kinds(scope: Scope) -> str:
    """For what the run waits: for hosts, by itself or by its child runs."""
    last, at = scope.turn.last, len(scope.turn.entries) - 1
    slots = enumerate(() if last is None else last.slots)
    waiting = ((p, slot) for p, slot in slots if slot.state == "waiting")
    return joined_kinds(
        scope.held.get((at, p), "") if _waits_for_child(slot) else slot.code or "" for p, slot in waiting
    )


def _open(scope: Scope) -> tuple[int, ...]:
    """The calls of the newest reply that nothing was begun of, and those that wait."""
    last = scope.turn.last
    return () if last is None else tuple(p for p, slot in enumerate(last.slots) if slot.state in ("open", "waiting"))


def _unsettled(run_id: str, exchange: int, wait: Wait) -> UnsettledError:
    return UnsettledError(run_id, wait.sends, tuple(f"{exchange}.{position}" for position in wait.calls))


def _waiting(scope: Scope) -> Wait | None:
    """What keeps the run from being closed, since nobody can say what became of it."""
    last = scope.turn.last
    slots = enumerate(() if last is None else last.slots)
    calls = tuple(position for position, slot in slots if slot.state == "unknown" and slot.feedback is None)
    return Wait(tuple(scope.turn.sends), calls) if scope.turn.sends or calls else None


def _check_settled(scope: Scope) -> None:
    wait = _waiting(scope)
    if wait is not None:
        _tell_end(scope, UnsettledError.code, UnsettledError.code)
        raise _unsettled(scope.run_id, len(scope.turn.entries) - 1, wait)


async def _abort(scope: Scope, outcome: RunOutcome, error: BaseException | None) -> None:
    reason = "cancelled" if outcome == "cancelled" or error is None else code_of(error)
    if scope.store.fault is not None or scope.turn.closed is not None:
        _tell_end(scope, outcome, reason)
        return
    if _waiting(scope) is not None:
        _tell_end(scope, UnsettledError.code, reason)
        return
    words = "the run was cancelled" if outcome == "cancelled" else "the run ended with an error"
    try:
        await _finish(scope, outcome, reason, words)
    except AgentLoopError as fault:  # what ended the run is raised, not what followed from it
        if error is not None:
            error.add_note(f"The end of the run could not be stored: {fault}")
        _tell_end(scope, outcome, reason)


async def _finish(scope: Scope, outcome: RunOutcome, reason: str, words: str) -> None:
    """Leave a usable history, whatever cancels arrive: feedback for every call, and the end of the run."""
    await settle(_close_up(scope, outcome, reason, words), last=True)


async def _close_up(scope: Scope, outcome: RunOutcome, reason: str, words: str) -> None:
    if scope.turn.entries:
        await skip_calls(scope, len(scope.turn.entries) - 1, _open(scope), code=reason, text=words)
    await close(scope, outcome, reason)


def _tell_end(scope: Scope, outcome: str, reason: str | None) -> None:
    turn = scope.turn
    scope.emitter.process(
        RunEnded,
        outcome=outcome,
        reason=reason,
        model_calls=turn.model_calls,
        tool_calls=turn.tool_calls,
        usage=turn.usage,
        duration_ms=int(scope.elapsed * 1000),
    )
