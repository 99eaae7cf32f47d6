"""Facts that come back from a medium are checked again before they count.

A medium, or a file, can hold anything. So each fact is held against the ones before it: origins
against their digests and the exchange they continue, replies against the attempt that asked and
their place, slots against their table, ends against what must have ended. Nothing is repaired,
published or sent (R86, R87).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from ..admission import pattern
from ..errors import AgentLoopError, RestoreError
from ..messages import ModelRequest, require_model_reply, require_model_request, require_tool_feedback
from .encoding import origin_digest
from .facts import (
    ConversationBranched,
    Fact,
    OriginOpened,
    OutputKept,
    ReplyTaken,
    RerunAllowed,
    RunClosed,
    RunRedacted,
    SendEnded,
    SendStarted,
    SlotMoved,
    Steered,
    StopAsked,
)
from .slots import CLOSING, move
from .state import State
from .steering import BY_REPLY
from .tombstone import branch
from .turn import Slot, Turn
from .waiting import CHILD, OUTCOMES

__all__ = ["restore"]

_DIGEST: Final = pattern("[0-9a-f]{64}")


def restore(state: State, facts: Iterable[Fact]) -> None:
    """Check and install facts, in order.

    Raises:
        RestoreError: ``bad_record``; names the run, the number of the fact and the rule. What was
            installed before it stays installed: throw the state away.
    """
    for at, fact in enumerate(facts):
        try:
            rule = _fault(state, fact)
        except AgentLoopError as error:
            rule = str(error)
        if rule:
            raise RestoreError("bad_record", f"run {fact.run_id!r}, fact {at}", rule)
        state.install((fact,))


def _fault(state: State, fact: Fact) -> str:
    """The rule that a fact breaks, "" when it breaks none."""
    if type(fact) is OriginOpened:
        return _origin_fault(state, fact)
    if type(fact) is RunRedacted:
        return _redacted_fault(state, fact)
    if type(fact) is ConversationBranched:
        branch(
            state,
            run_id=fact.run_id,
            conversation=fact.conversation,
            source=fact.source,
            at=fact.continues,
            at_ms=fact.at_ms,
        )
        return ""
    turn = state.turn(fact.run_id)
    if turn.closed is not None:
        return "expected nothing after the end of the run"
    if turn.ended is not None and turn.ended.outcome == "replied" and type(fact) is not ReplyTaken:
        return "expected the reply of the attempt that ended with one"
    if type(fact) is SendStarted:
        return _send_fault(state, turn, fact)
    if type(fact) is SendEnded:
        return "" if fact.attempt_id in turn.sends else "expected an attempt that was started and has not ended"
    if type(fact) is ReplyTaken:
        return _reply_fault(turn, fact)
    if type(fact) is SlotMoved:
        return _slot_fault(turn, fact)
    if type(fact) is OutputKept:
        return _output_fault(turn, fact)
    if type(fact) is RerunAllowed:
        slot = _slot(turn, fact)
        unknown = slot is not None and slot.state == "unknown" and slot.feedback is None
        return "" if unknown else "expected a call whose outcome is unknown"
    if type(fact) is RunClosed:
        answered = turn.opened.call is not None or len(turn.exchanges) == len(turn.entries)
        ended = not turn.sends and answered  # nobody runs what a model call of its own proposes
        if ended and fact.outcome in BY_REPLY and turn.steered and not turn.stopping:
            return "expected its steers to be asked with before a reply ends it"
        return "" if ended else "expected every send ended and every call answered"
    if type(fact) is Steered or type(fact) is StopAsked:
        return _aside_fault(turn, fact)
    assert_never(fact)  # type: ignore[arg-type]  # mypy does not narrow unions by type()


def _opening_fault(state: State, fact: OriginOpened | RunRedacted) -> str:
    if state.has_run(fact.run_id):
        return "expected a run that is not there yet"
    if state.has_origin(fact.origin_id):
        return "expected an origin id that no other run has"
    known = None if fact.conversation is None else state.conversation(fact.conversation)
    if known is not None and known.live is not None:
        return "expected the run before it on its conversation to have ended"
    if fact.continues != (None if known is None else known.head):
        return "expected it to continue the newest exchange before it"
    return ""


def _redacted_fault(state: State, fact: RunRedacted) -> str:
    if not fact.digests or not all(_DIGEST().fullmatch(digest) for digest in fact.digests):
        return "expected the digests of its origin and its exchanges"
    return _opening_fault(state, fact)


def _origin_fault(state: State, fact: OriginOpened) -> str:
    fault = _opening_fault(state, fact)
    if fault:
        return fault
    require_model_request(ModelRequest(messages=fact.messages, options=fact.options, tools=fact.tools))
    if not 0 <= fact.brought < len(fact.messages):
        return "expected fewer messages that were said before than all of them"
    before = None if fact.continues is None else fact.continues.digest
    if origin_digest(fact.messages, fact.options, fact.tools, before, fact.context) != fact.digest:
        return "expected the digest of its content"
    if fact.context is not None:
        state.past(fact.conversation, fact.continues, fact.messages).without(fact.context)
    return ""


def _send_fault(state: State, turn: Turn, fact: SendStarted) -> str:
    if fact.attempt_id in turn.claims:
        return "expected an attempt id that was not used before"
    if turn.sends or len(turn.exchanges) != len(turn.entries):
        return "expected no other send under way, and every call answered"
    if fact.request != state.reference(turn):
        return "expected the request of all exchanges so far"
    if turn.exchanges and not turn.exchanges[-1].feedback and not turn.steered:
        return "expected nothing to be asked after a final reply"
    if turn.stopping and not turn.refused:
        return "expected nothing to be asked of a run that was asked to stop"
    return "" if fact.call_sequence == turn.model_calls + 1 else "expected the next number of a model call"


def _aside_fault(turn: Turn, fact: Steered | StopAsked) -> str:
    if turn.opened.call is not None:
        return "expected a run of an agent"
    if turn.stopping:
        return "expected neither a steer nor a second stop after a run was asked to stop"
    if type(fact) is Steered:
        require_model_request(ModelRequest(messages=(fact.message,)))
    return ""


def _reply_fault(turn: Turn, fact: ReplyTaken) -> str:
    if fact.origin_id != turn.opened.origin_id or fact.index != len(turn.entries):
        return "expected the next place in its own origin"
    ended = turn.ended
    if ended is None or ended.outcome != "replied" or ended.attempt_id != fact.attempt_id:
        return "expected the attempt that ended with a reply just now"
    require_model_reply(fact.reply)
    return ""


def _slot(turn: Turn, fact: SlotMoved | OutputKept | RerunAllowed) -> Slot | None:
    if fact.origin_id != turn.opened.origin_id or not 0 <= fact.exchange < len(turn.entries):
        return None
    slots = turn.entries[fact.exchange].slots
    return slots[fact.position] if 0 <= fact.position < len(slots) else None


def _slot_fault(turn: Turn, fact: SlotMoved) -> str:
    slot = _slot(turn, fact)
    if slot is None or fact.exchange != len(turn.entries) - 1:
        return "expected a call of the newest reply of its own origin"
    move(slot.state, fact.state, where=f"call {fact.exchange}.{fact.position}")
    if fact.converted and fact.state != "started":
        return "expected what was converted of a call with its claim only"
    if fact.author is not None and slot.state not in ("unknown", "waiting"):
        return "expected a host's word on an unknown outcome only, or on a call that waits"
    waits = _wait_fault(slot, fact)
    if waits:
        return waits
    if slot.feedback is not None:
        return "expected a call without feedback"
    if fact.feedback is None:
        if fact.state in CLOSING:
            return f"expected feedback for a call that is {fact.state}"
        if fact.state == slot.state:
            return f"expected feedback for a call that stays {fact.state}"
    elif fact.state in ("open", "started", "waiting"):
        return f"expected no feedback for a call that is {fact.state}"
    elif require_tool_feedback(fact.feedback).tool_call_id != slot.call.id:
        return "expected the feedback of this call"
    if fact.state == "open" and slot.state == "started" and (slot.attempt != 1 or slot.asked):
        return "expected a first execution to be given back, got a repeated one"
    if fact.state == "started" and slot.state != "waiting":
        if fact.effect_id is None or fact.attempt != slot.attempt + 1:
            return "expected an execution with an id and the next number"
        if slot.effect_id not in (None, fact.effect_id) or (slot.effect_id is None and fact.effect_id in turn.claims):
            return "expected an execution id of this call alone"
    elif (fact.effect_id, fact.attempt) != (slot.effect_id, slot.attempt):
        return "expected the execution that was started, or none where none was"
    return ""


def _output_fault(turn: Turn, fact: OutputKept) -> str:
    slot = _slot(turn, fact)
    if slot is None or fact.exchange != len(turn.entries) - 1:
        return "expected a call of the newest reply of its own origin"
    if slot.feedback is None or slot.feedback.status != "ok" or slot.effect_id is None:
        return "expected the output of a call that was executed and answered with success"
    if slot.kept is not None:
        return "expected one output of a call"
    return "" if fact.size == len(fact.text.encode()) else "expected the size of the text"


def _wait_fault(slot: Slot, fact: SlotMoved) -> str:
    """The rule on waiting, and on what a host decides about it, that a step breaks; "" when it breaks none."""
    if fact.state == "waiting" and slot.state == "started":
        return "" if fact.code == CHILD else "expected a call that was started to wait for its child run"
    if fact.state == "waiting":
        if slot.decided is not None:
            return "expected a call that nobody has decided about"
        return "" if fact.code in OUTCOMES else "expected the reason for which a call waits"
    if slot.state != "waiting":
        return ""
    if slot.code == CHILD:
        fits = fact.author is None and fact.state in ("started", "skipped")
        return "" if fits else "expected a call that waits for its child run to go on, or to be skipped"
    if fact.state == "started":
        return "a call that waits for a host cannot become started"
    if fact.author is None:
        return "" if fact.state == "skipped" else "expected the host that decided about a call that waits"
    return "" if fact.state in OUTCOMES[slot.code or ""] else f"expected no such decision on one for {slot.code}"
