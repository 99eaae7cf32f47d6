"""One call of a reply: refused with feedback, or run and answered.

reserve in the ledger -> store the claim -> run once -> store the answer -> publish it. The claim of the
next call goes with the answer of the one before it (`claims`). A tool that ran out of time and may be
repeated is claimed again first: its slot says in between that nobody knows what became of it. A slot
whose tool began always ends in a state with feedback while this process lives: ``done``, ``failed``, or
``unknown`` with words that say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from ..errors import BudgetError, InputError, RunPaused, ToolCrashed, UnsettledError
from ..events import ToolEnded, ToolProgress, ToolSkipped, ToolStarted
from ..exchange import CHILD, Book, Fact, Slot, SlotState, unrun_words
from ..limits import LoopLimits
from ..messages import ToolFeedback, ToolResult
from ..persistence import Step
from ..tools import Tool, ToolContext, cut_result
from .approval import Hold, hold_call
from .child import ChildWaits
from .claims import Choose, Refusal, admitted, claim_next, commit_claim, hindrance, release, reserve, reserved
from .kept import LONGEST_NOTE, answer_of
from .reasons import type_name
from .scope import Claim, Scope, deliver_cancel
from .tool_call import ToolOutcome, run_tool

__all__ = [
    "answer_call",
    "context_of",
    "fit",
    "give_back",
    "has_room",
    "refuse",
    "room_for",
    "run_claimed",
    "skip_calls",
    "store_claim",
]

_FRAME = len(b'"tool_call_id":,')
"""What a feedback has as JSON that its result has not, besides the call id."""

_UNKNOWN = "Error: the run ended while this tool ran; whether its effect happened is unknown."

_LEAST = len(msgspec.json.encode(cut_result(ToolResult.error("x" * 1024), 1, note=LONGEST_NOTE))) + 16
"""The shortest result that text can be cut to, with room for the digits of its full size."""


def has_room(limits: LoopLimits, call_id: str) -> bool:
    """Whether a call's id leaves room for an answer within ``feedback_bytes`` (R98, R102)."""
    spare = limits.feedback_bytes - _FRAME - _LEAST
    return 6 * len(call_id) + 2 <= spare or len(msgspec.json.encode(call_id)) <= spare


async def answer_call(scope: Scope, exchange: int, position: int, choose: Choose | None = None) -> None:
    """Answer one open call, or the one that is claimed; or let it wait for a host (see `approval`).

    Where its tool has a child run, and calls of that wait for a host, the call waits for the child (`child`). One
    that waits so is asked again: the same execution goes on.

    Bad arguments, an unknown name, or a tool that has not ended though its call is over give error
    feedback and start nothing (R55-R57).

    Args:
        choose: says which call comes next. Its claim is stored with this one's answer then, and is
            ``scope.claim``; None claims none.

    Raises:
        BudgetError: no tool call is left in the ledger; the slot stays open.
        UnsettledError: an execution that was begun before may still go on.
        ApprovalFailed: whether the call waits could not be asked; the slot stays open.
        ToolCrashed: the tool raised what it did not declare; its slot is ``unknown`` (R62).
        RunPaused, UnsettledError: the child run that its tool waits for has not ended and cannot go on
            now. Its slot stays ``started``: whoever resumes the run goes on with that child. UnsettledError also
            where that waits for a host and the tool may not be repeated.
        asyncio.CancelledError: the run was cancelled. Its slot is ``unknown`` with feedback; where the
            run is paused it stays ``started``. Where the tool had not begun, `give_back` is to follow.
    """
    claim = scope.claim
    if claim is None:
        claim = await _claim(scope, exchange, position, choose)
    if claim is not None:
        await run_claimed(scope, claim, choose)


async def _claim(scope: Scope, exchange: int, position: int, choose: Choose | None) -> Claim | None:
    """Claim a call's execution by itself; or refuse the call, or let it wait, and return None."""
    entry = scope.turn.entries[exchange]
    slot = entry.slots[position]
    claim = admitted(scope, exchange, position, entry)
    if isinstance(claim, Hold):
        await hold_call(scope, exchange, position, claim)
        return None
    refusal = claim if isinstance(claim, Refusal) else reserved(scope, claim)
    if isinstance(claim, Refusal) or refusal is not None:
        assert refusal is not None, "one that is refused has a reason"
        if slot.state == "unknown" and refusal.code == "thread_busy":  # that may be its earlier execution
            raise UnsettledError(scope.run_id, (), (f"{exchange}.{position}",))
        await refuse(scope, exchange, position, refusal, choose)
        return None
    held = await store_claim(scope, claim)
    scope.claim = claim
    if held:
        await deliver_cancel()
    return claim


async def store_claim(scope: Scope, claim: Claim) -> bool:
    """Store that an execution is about to begin, which is reserved; whether a cancel was held back meanwhile."""
    return await commit_claim(scope, lambda book: _start(book, scope, claim), claim)


def _start(book: Book, scope: Scope, claim: Claim) -> Sequence[Fact]:
    return book.start_slot(
        scope.turn,
        claim.exchange,
        claim.position,
        effect_id=claim.effect_id,
        at_ms=scope.now_ms(),
        converted=claim.converted,
    )


async def give_back(scope: Scope, claim: Claim | None = None) -> None:
    """Give back the claim of a tool that has not begun: its call is open again, and nothing ran.

    Of a repeated execution the one before it may have run, so its call is unknown, with feedback that
    says so; where the run is paused it stays ``started``. One that was to go on with its child run waits for it
    as before.

    Args:
        claim: by default ``scope.claim``, if there is one.
    """
    if claim is None:
        claim, scope.claim = scope.claim, None
    if claim is None or scope.store.fault is not None or not scope.store.owns(scope.run_id):
        return  # who reads it from the medium finds it started, and cannot know
    exchange, position = claim.exchange, claim.position
    slot = scope.turn.entries[exchange].slots[position]
    receipt = scope.receipt(claim.effect_id)
    if claim.goes_on:
        await scope.commit(lambda book: book.hold_for_child(receipt, exchange, position, at_ms=scope.now_ms()))
    elif slot.attempt == 1:
        await scope.commit(lambda book: book.give_back(receipt, exchange, position, at_ms=scope.now_ms()))
        release(scope, claim)
    elif not scope.paused():
        feedback = fit(scope, slot, ToolResult.error(_UNKNOWN))
        await scope.commit(
            lambda book: book.receive(
                receipt,
                exchange,
                position,
                state="unknown",
                feedback=feedback,
                at_ms=scope.now_ms(),
                code="cancelled",
            )
        )
        _tell_skipped(scope, exchange, position, "unknown", "cancelled")


async def skip_calls(scope: Scope, exchange: int, positions: Sequence[int], *, code: str, text: str) -> None:
    """Answer calls without running them: one that is open or waits is ``skipped``, one that is unknown stays so.

    The child run that a call waits for is ended first.
    """
    for position in positions:
        slot = scope.turn.entries[exchange].slots[position]
        if slot.state == "waiting" and slot.code == CHILD:
            await _end_child(scope, slot)
        if slot.state == "unknown":
            words = f"Error: {text}; whether the effect of this call happened is unknown."
            await _complete(scope, exchange, position, "unknown", code, words)
        else:
            await _complete(scope, exchange, position, "skipped", code, unrun_words(slot, text))


async def _end_child(scope: Scope, slot: Slot) -> None:
    if scope.end_child is None:
        raise InputError(
            f"run {scope.run_id!r}: expected a run that can end run {slot.effect_id!r}, which it waits for"
        )
    await scope.end_child(slot.effect_id or "")


async def refuse(scope: Scope, exchange: int, position: int, refusal: Refusal, choose: Choose | None = None) -> None:
    """Answer a call that runs nothing. One whose outcome is unknown stays so, and is told that as well."""
    code, text = refusal.code, refusal.text
    if scope.turn.entries[exchange].slots[position].state == "unknown":
        text = f"{text} An earlier execution of this call may have taken effect."
        await _complete(scope, exchange, position, "unknown", code, text)
    else:
        await _complete(scope, exchange, position, "failed", code, text, choose)


async def _complete(
    scope: Scope,
    exchange: int,
    position: int,
    state: SlotState,
    code: str,
    text: str,
    choose: Choose | None = None,
) -> None:
    slot = scope.turn.entries[exchange].slots[position]
    feedback, now = fit(scope, slot, ToolResult.error(text)), scope.now_ms()
    if state == "unknown":
        await scope.commit(
            lambda book: book.leave_slot(scope.turn, exchange, position, feedback=feedback, code=code, at_ms=now)
        )
    else:
        await _answer(
            scope,
            lambda book: book.complete(
                scope.turn, exchange, position, state=state, feedback=feedback, code=code, at_ms=now
            ),
            exchange,
            position,
            feedback,
            choose,
        )
    _tell_skipped(scope, exchange, position, state, code)


async def _answer(
    scope: Scope,
    step: Step,
    exchange: int,
    position: int,
    feedback: ToolFeedback,
    choose: Choose | None,
) -> None:
    """Store a call's answer, and with it the claim of the call that comes next, if there is one."""
    claim = None
    if choose is not None:
        claim = claim_next(scope, choose, exchange, scope.turn.entries[exchange], position, feedback)
    if claim is None:
        await scope.commit(step)
    else:
        await commit_claim(scope, lambda book: (*step(book), *_start(book, scope, claim)), claim)
        scope.claim = claim


def _tell_skipped(scope: Scope, exchange: int, position: int, state: SlotState, code: str) -> None:
    slot = scope.turn.entries[exchange].slots[position]
    scope.emitter.process(
        ToolSkipped,
        None,
        tool=slot.call.name,
        call_id=slot.call.id,
        exchange=exchange,
        position=position,
        slot=state,
        code=code,
    )


async def run_claimed(scope: Scope, claim: Claim, choose: Choose | None = None) -> None:
    """Run a tool whose claim is stored, as often as its policy allows, and store what came of it.

    Raises:
        RunPaused: it ran out of time in a run that is paused; whoever resumes that goes on with it.
        Otherwise as `answer_call`.
    """
    exchange, position, effect_id, tool, arguments, converted, _ = claim
    slot = scope.turn.entries[exchange].slots[position]
    began = scope.clock()
    if scope.claim is claim:
        scope.claim = None

    async def again(_: int) -> bool:
        nonlocal began
        if scope.paused():
            raise RunPaused(scope.run_id)
        if scope.out_of_time or hindrance(scope, tool) is not None:
            return False
        try:
            reserve(scope, tool)
        except BudgetError:
            return False
        receipt = scope.receipt(effect_id)
        held = await scope.commit(
            lambda book: book.repeat_slot(receipt, exchange, position, at_ms=scope.now_ms(), converted=converted)
        )
        _tell_ended(scope, exchange, position, "unknown", "timeout", "error", "", began)
        began = scope.clock()
        _tell_started(scope, exchange, position, converted)
        if held:
            await deliver_cancel()
        return True

    _tell_started(scope, exchange, position, converted)
    try:
        outcome = await run_tool(
            tool,
            arguments,
            lambda _: context_of(scope, slot, tool, effect_id),
            pool=scope.pool,
            max_output_bytes=room_for(scope, slot, tool),
            before_retry=again,
            attempt=slot.attempt,
        )
    except ChildWaits as waits:
        if waits.kinds is not None and tool.name in scope.repeatable:
            await _hold_for_child(scope, claim, waits.kinds, began)
            return
        code = waits.error.code
        _tell_ended(scope, exchange, position, "unknown", code, "cancelled", "", began)
        if isinstance(waits.error, RunPaused):
            raise RunPaused(scope.run_id) from waits.error
        below = waits.error.below if isinstance(waits.error, UnsettledError) else None
        calls = (f"{exchange}.{position}",)
        raise UnsettledError(scope.run_id, (), calls, below=below or waits.ref) from waits.error
    except BaseException:
        if scope.paused():  # whoever resumes the run finds it unanswered
            _tell_ended(scope, exchange, position, "unknown", "paused", "cancelled", "", began)
        else:
            lost = ToolResult.error(_UNKNOWN)
            await _received(scope, exchange, position, "unknown", lost, "cancelled", "cancelled", began, None)
        raise
    state, status, result = _verdict(outcome)
    crashed = outcome.kind == "crashed"  # nothing comes after it
    await _received(scope, exchange, position, state, result, outcome.code, status, began, None if crashed else choose)
    if crashed:
        error = outcome.error
        kind = "an error" if error is None else type_name(error)
        raise ToolCrashed(tool.name, slot.call.id, effect_id, kind) from error


async def _hold_for_child(scope: Scope, claim: Claim, kinds: str, began: float) -> None:
    """Store that an execution waits for its child run; it is asked again when the run is resumed."""
    receipt, exchange, position = scope.receipt(claim.effect_id), claim.exchange, claim.position
    await scope.commit(lambda book: book.hold_for_child(receipt, exchange, position, at_ms=scope.now_ms()))
    scope.held[exchange, position] = kinds
    _tell_ended(scope, exchange, position, "waiting", CHILD, "waiting", "", began)


def context_of(scope: Scope, slot: Slot, tool: Tool, effect_id: str) -> ToolContext[object]:
    """What a tool, or its lookup, is given besides the arguments. Progress is told only while the tool runs."""
    attempt = slot.attempt

    async def progress(message: str, fraction: float | None) -> None:
        if slot.state != "started" or slot.attempt != attempt:
            return  # told by what outlived the execution: a task of the tool, a thread out of time
        scope.emitter.process(
            ToolProgress, effect_id, tool=tool.name, call_id=slot.call.id, message=message, fraction=fraction
        )

    return ToolContext(
        deps=scope.deps,
        run_id=scope.run_id,
        agent=scope.agent,
        conversation=scope.conversation,
        tool=tool.name,
        call_id=slot.call.id,
        effect_id=effect_id,
        attempt=attempt,
        on_progress=progress,
        spawn=None if scope.spawn is None else partial(scope.spawn, effect_id),
    )


def _verdict(outcome: ToolOutcome) -> tuple[SlotState, str, ToolResult]:
    if outcome.kind == "crashed":
        text = "Error: the tool stopped with an unexpected error; whether its effect happened is unknown."
        return "unknown", "error", ToolResult.error(text)
    assert outcome.full is not None, "every outcome but a crash has a result"
    return outcome.kind, "success" if outcome.full.status == "ok" else "error", outcome.full


async def _received(
    scope: Scope,
    exchange: int,
    position: int,
    state: SlotState,
    result: ToolResult,
    code: str | None,
    status: str,
    began: float,
    choose: Choose | None,
) -> None:
    slot = scope.turn.entries[exchange].slots[position]
    effect_id = slot.effect_id or ""
    answer = answer_of(scope, slot, result, room_for(scope, slot, scope.tools.get(slot.call.name)))
    feedback, receipt = answer.feedback, scope.receipt(effect_id)

    def receive(book: Book) -> Sequence[Fact]:
        return book.receive(
            receipt, exchange, position, state=state, feedback=feedback, at_ms=scope.now_ms(), code=code
        )

    step = answer.stored_by(receive, scope, exchange, position)
    await _answer(scope, step, exchange, position, feedback, choose)
    _tell_ended(scope, exchange, position, state, code, status, feedback.text, began, answer.kept)


def _tell_started(scope: Scope, exchange: int, position: int, converted: tuple[str, ...]) -> None:
    slot = scope.turn.entries[exchange].slots[position]
    scope.emitter.process(
        ToolStarted,
        slot.effect_id,
        tool=slot.call.name,
        call_id=slot.call.id,
        exchange=exchange,
        position=position,
        arguments=slot.call.arguments.text,
        attempt=slot.attempt,
        converted=converted,
    )


def _tell_ended(
    scope: Scope,
    exchange: int,
    position: int,
    state: SlotState,
    code: str | None,
    status: str,
    output: str,
    began: float,
    kept: bool | None = None,
) -> None:
    slot = scope.turn.entries[exchange].slots[position]
    scope.emitter.process(
        ToolEnded,
        slot.effect_id,
        tool=slot.call.name,
        call_id=slot.call.id,
        exchange=exchange,
        position=position,
        status=status,
        slot=state,
        code=code,
        output=output,
        output_bytes=len(output.encode()),
        kept=kept,
        duration_ms=int((scope.clock() - began) * 1000),
    )


def fit(scope: Scope, slot: Slot, result: ToolResult) -> ToolFeedback:
    """Address a result to its call, cut to the feedback limit when a tool made it too large."""
    return ToolFeedback.of(slot.call.id, cut_result(result, room_for(scope, slot, None)))


def room_for(scope: Scope, slot: Slot, tool: Tool | None) -> int:
    """Bytes of JSON a result may take: the feedback limit without the call id, or the tool's own (R98, R101)."""
    room = scope.limits.feedback_bytes - len(msgspec.json.encode(slot.call.id)) - _FRAME
    own = tool.policy.max_output_bytes if tool is not None else None
    return room if own is None else min(room, own)
