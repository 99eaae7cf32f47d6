"""The conversation as facts: what may be added, and what follows from what was added.

A method named after a step checks it against the facts so far and returns the new facts; it
changes nothing. `install` then applies facts that are on the medium. So a caller can never see,
send or run anything that was not stored first.

Cost: each step is proportional to what it adds.
"""

from __future__ import annotations

from ..errors import ConflictError, HistoryError, StaleHeadError
from ..messages import FunctionSpec, Message, ModelOptions, ModelReply, ToolFeedback, Usage
from .cut import ContextCut
from .facts import (
    CallBasis,
    ExchangeRef,
    Fact,
    OriginOpened,
    OutputKept,
    ReplyTaken,
    RequestRef,
    RunClosed,
    RunOutcome,
    SendEnded,
    SendStarted,
    SlotMoved,
)
from .receipts import Receipt, ReceiptMint
from .room import BookLimits
from .slots import SlotState, move
from .steering import BY_REPLY, Steering
from .turn import Slot, Turn
from .waiting import CHILD, Waiting, waiting_calls

__all__ = ["Book"]

_ANSWERS = frozenset({"done", "failed", "unknown"})
"""States in which an execution that was claimed may answer."""

_UNRUN = frozenset({("open", "failed"), ("open", "skipped"), ("waiting", "skipped")})
"""Steps of a call that is answered and never ran."""


class Book(Steering, Waiting):
    """The steps, checked against the state.

    One task at a time may call it; between a step and its `install` no other step may run on the
    same run or conversation (`persistence.Store` sees to that).
    """

    def __init__(self, mint: ReceiptMint, *, limits: BookLimits | None = None) -> None:
        super().__init__(limits=limits)
        self._mint = mint

    def open_origin(
        self,
        *,
        run_id: str,
        origin_id: str,
        conversation: str | None,
        messages: tuple[Message, ...],
        options: ModelOptions,
        tools: tuple[FunctionSpec, ...],
        catalogue_digest: str,
        input_digest: str | None,
        agent: str,
        at_ms: int,
        checkpoint: bool = False,
        call: CallBasis | None = None,
        context: ContextCut | None = None,
        parent: str | None = None,
        brought: int = 0,
    ) -> tuple[Fact, ...]:
        """Fix a run's origin. Starting the same run again with the same input adds nothing (R82).

        Args:
            context: what its requests do not hold of the turns before. That of a run which is there
                already stands, whatever it is.
            brought: how many of the messages, just before the last, its host brought as said before.

        Raises:
            ConflictError: the run id is taken by another input, or the origin id by another run; or
                ``context`` does not fit the turns before.
            StaleHeadError: another run is on the conversation.
            LimitExceeded: the book is full (``origins``, ``total_bytes``, ``item_bytes``).
        """
        known = self._turns.get(run_id)
        if known is not None:
            if (
                input_digest is not None
                and known.opened.input_digest == input_digest
                and known.opened.conversation == conversation
            ):
                return ()
            raise ConflictError(f"run {run_id!r}", "expected the input this run was started with, got another")
        if origin_id in self._origins:
            raise ConflictError(f"origin {origin_id!r}", "expected an id that no other run has")
        continues = self._free_head(conversation)
        if context is not None:
            self.past(conversation, continues, messages).without(context)
        encoded = self._encoded_origin(messages, options, tools, context)
        self._room_of(conversation, run_id).check(encoded.size, origins=1)
        before = None if continues is None else continues.digest
        opened = OriginOpened(
            run_id=run_id,
            origin_id=origin_id,
            digest=encoded.digest(before),
            conversation=conversation,
            continues=continues,
            messages=messages,
            options=options,
            tools=tools,
            catalogue_digest=catalogue_digest,
            input_digest=input_digest,
            agent=agent,
            at_ms=at_ms,
            checkpoint=checkpoint,
            call=call,
            context=context,
            parent=parent,
            brought=brought,
        )
        return (opened,)

    def begin_send(self, ref: RequestRef, *, attempt_id: str, model: str, at_ms: int) -> tuple[Fact, ...]:
        """Claim one send.

        Raises:
            ConflictError: the run is closed, a send of it has not ended, the attempt id was used
                before, or ``ref`` is an older prefix, or one without a steer that waits: reading that one is no
                permission to send it (R79). Or the run was asked to stop, and repeats no refused request.
            HistoryError: ``missing_tool_result``: a call of the newest reply has no feedback (R13).
            InputError: the last exchange asks for nothing, and no steer follows it.
        """
        turn = self.closed(ref)
        self._running(turn)
        if turn.sends:
            raise ConflictError(f"run {turn.run_id!r}", "expected no other send under way")
        if attempt_id in turn.claims:
            raise ConflictError(f"attempt {attempt_id!r}", "expected an id that was not used before")
        if ref.exchanges != len(turn.exchanges):
            raise ConflictError(
                f"origin {ref.origin_id!r}", f"expected all {len(turn.exchanges)} exchanges, got {ref.exchanges}"
            )
        if len(turn.entries) != ref.exchanges:
            raise HistoryError(
                "missing_tool_result", f"$.exchanges[{ref.exchanges}]", "expected the feedback of every call"
            )
        if ref.digest != turn.next_digest:
            raise ConflictError(
                f"origin {ref.origin_id!r}", "expected all steers that were stored, got an older request"
            )
        if turn.stopping and not turn.refused:
            raise ConflictError(f"run {turn.run_id!r}", "expected a run that was not asked to stop")
        if not turn.steered:
            self._check_continues(turn.exchanges)
        started = SendStarted(
            run_id=turn.run_id,
            attempt_id=attempt_id,
            request=ref,
            call_sequence=turn.model_calls + 1,
            model=model,
            at_ms=at_ms,
        )
        return (started,)

    def intake(
        self,
        receipt: Receipt,
        reply: ModelReply,
        *,
        at_ms: int,
        reserve: int = 0,
        start: tuple[int, str] | None = None,
        converted: tuple[str, ...] = (),
        close: tuple[RunOutcome, str | None] | None = None,
    ) -> tuple[Fact, ...]:
        """Take in a checked reply, for the attempt that asked for it (R80), and claim one of its calls with it.

        The same reply of the same attempt is confirmed and adds nothing (R82).

        Args:
            reserve: bytes there must be room for to answer each of its calls. An answer itself is
                never refused for want of room: it tells what has happened.
            start: position and effect id of the execution that comes next, and ``converted``: as for
                `start_slot`.
            close: outcome and reason, where the reply is all that its run was for. Its calls are not
                asked to be run by anybody, and stay open.

        Raises:
            ConflictError: no such attempt is under way, it brought another reply (R83), the reply has
                no such call, or the effect id is another's.
            StaleHeadError: the conversation moved on meanwhile.
            LimitExceeded: the book is full.
        """
        turn = self._received(receipt)
        started = turn.sends.get(receipt.invocation_id)
        if started is None:
            known = next((e for e in turn.entries if e.attempt_id == receipt.invocation_id), None)
            if known is not None and known.reply == reply:
                return ()
            rule = "an attempt that is under way" if known is None else "the reply that it brought before"
            raise ConflictError(f"attempt {receipt.invocation_id!r}", f"expected {rule}")
        self._check_head(turn)
        room = self._room_of(turn.opened.conversation, turn.run_id)
        room.check(len(self.encoded(reply)) + reserve * len(reply.calls), exchanges=1)
        ended = SendEnded(
            run_id=turn.run_id,
            attempt_id=receipt.invocation_id,
            outcome="replied",
            usage=reply.usage,
            at_ms=at_ms,
        )
        taken = ReplyTaken(
            run_id=turn.run_id,
            origin_id=turn.opened.origin_id,
            index=started.request.exchanges,
            attempt_id=receipt.invocation_id,
            reply=reply,
        )
        if close is not None:
            outcome, reason = close
            return (ended, taken, RunClosed(run_id=turn.run_id, outcome=outcome, reason=reason, at_ms=at_ms))
        if start is None:
            return (ended, taken)
        position, effect_id = start
        where = f"call {taken.index}.{position}"
        if not 0 <= position < len(reply.calls):
            raise ConflictError(where, f"expected one of the {len(reply.calls)} calls of the reply")
        if effect_id in turn.claims:
            raise ConflictError(where, "expected the id of this slot's execution, got another's")
        claimed = SlotMoved(
            run_id=turn.run_id,
            origin_id=taken.origin_id,
            exchange=taken.index,
            position=position,
            state="started",
            effect_id=effect_id,
            attempt=1,
            converted=converted,
            at_ms=at_ms,
        )
        return (ended, taken, claimed)

    def fail_send(
        self,
        receipt: Receipt,
        *,
        abandoned: bool,
        code: str,
        may_have_been_processed: bool,
        at_ms: int,
        usage: Usage | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        stream_refused: bool = False,
        previewed: bool | None = None,
    ) -> tuple[Fact, ...]:
        """End an attempt without a reply; `SendEnded` has what the fields mean.

        Raises:
            ConflictError: no such attempt is under way.
        """
        turn = self._received(receipt)
        if receipt.invocation_id not in turn.sends:
            raise ConflictError(f"attempt {receipt.invocation_id!r}", "expected an attempt that is under way")
        ended = SendEnded(
            run_id=turn.run_id,
            attempt_id=receipt.invocation_id,
            outcome="abandoned" if abandoned else "failed",
            code=code,
            may_have_been_processed=may_have_been_processed,
            usage=usage,
            at_ms=at_ms,
            status=status,
            retry_after=retry_after,
            stream_refused=stream_refused,
            previewed=previewed,
        )
        return (ended,)

    def start_slot(
        self,
        turn: Turn,
        exchange: int,
        position: int,
        *,
        effect_id: str,
        at_ms: int,
        converted: tuple[str, ...] = (),
    ) -> tuple[Fact, ...]:
        """Claim one execution of a tool, before its first instruction; or go on with one that waits for its child.

        Args:
            effect_id: identity of the execution, of this slot alone; the same when it is repeated.
            converted: what of its arguments was converted, for the record.

        Raises:
            ConflictError: the run is closed, the slot holds feedback or may not start, or the id is
                another's.
        """
        self._running(turn)
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        move(slot.state, "started", where=where)
        if slot.feedback is not None:
            raise ConflictError(where, "expected a slot without feedback")
        if slot.effect_id != effect_id and (slot.effect_id is not None or effect_id in turn.claims):
            raise ConflictError(where, "expected the id of this slot's execution, got another's")
        if slot.state == "waiting":
            if slot.code != CHILD:
                raise ConflictError(where, f"expected a call that waits for its child run, got {slot.code}")
            return (self._moved(turn, exchange, position, "started", at_ms=at_ms, converted=converted),)
        return (self._moved(turn, exchange, position, "started", at_ms=at_ms, claim=effect_id, converted=converted),)

    def hold_for_child(self, receipt: Receipt, exchange: int, position: int, *, at_ms: int) -> tuple[Fact, ...]:
        """Let an execution wait for its child run, of which calls wait for a host. Doing so again adds nothing.

        Raises:
            ConflictError: the run is closed, another execution owns the slot, or it is not under way.
        """
        turn, slot, where = self._executing(receipt, exchange, position)
        self._running(turn)
        if slot.state == "waiting" and slot.code == CHILD:
            return ()
        if slot.state != "started":
            raise ConflictError(where, f"expected an execution that is started, got one that is {slot.state}")
        move(slot.state, "waiting", where=where)
        return (self._moved(turn, exchange, position, "waiting", at_ms=at_ms, code=CHILD),)

    def give_back(self, receipt: Receipt, exchange: int, position: int, *, at_ms: int) -> tuple[Fact, ...]:
        """Give back the claim of an execution that has not begun: its call is open again, as it was before.

        Only who made the claim can know that nothing ran. Of a repeated execution the one before it
        may have, so its claim is not given back.

        Raises:
            ConflictError: another execution owns the slot, it has an answer, or it is not the first one.
        """
        turn, slot, where = self._executing(receipt, exchange, position)
        self._running(turn)
        if slot.state != "started" or slot.attempt != 1:
            raise ConflictError(
                where, f"expected a first execution that is started, got one that is {slot.state} ({slot.attempt})"
            )
        if slot.asked:
            raise ConflictError(
                where, "expected an execution that has not begun, got one that has waited for its child"
            )
        return (self._moved(turn, exchange, position, move(slot.state, "open", where=where), at_ms=at_ms),)

    def repeat_slot(
        self, receipt: Receipt, exchange: int, position: int, *, at_ms: int, converted: tuple[str, ...] = ()
    ) -> tuple[Fact, ...]:
        """Claim an execution once more after it ran out of time, with the same id.

        What became of the one before is unknown, and stays so as a fact of its own.

        Args:
            converted: as for `start_slot`.

        Raises:
            ConflictError: the run is closed, another execution owns the slot, or it is not under way.
        """
        turn, slot, where = self._executing(receipt, exchange, position)
        self._running(turn)
        if slot.state != "started":
            raise ConflictError(where, f"expected an execution that is started, got one that is {slot.state}")
        return (
            self._moved(turn, exchange, position, "unknown", at_ms=at_ms, code="timeout"),
            self._moved(turn, exchange, position, "started", at_ms=at_ms, claim=slot.effect_id, converted=converted),
        )

    def receive(
        self,
        receipt: Receipt,
        exchange: int,
        position: int,
        *,
        state: SlotState,
        feedback: ToolFeedback,
        at_ms: int,
        code: str | None = None,
    ) -> tuple[Fact, ...]:
        """Take in a tool's answer, for the execution that was claimed (R80).

        The same answer of the same execution is confirmed and adds nothing (R82).

        Raises:
            ConflictError: another execution owns the slot, it has another answer (R83), or
                ``state`` is not what an execution can come to.
        """
        turn, slot, where = self._executing(receipt, exchange, position)
        if slot.feedback is not None:
            if slot.state == state and slot.feedback == feedback:
                return ()
            raise ConflictError(where, "expected the feedback it already holds, got another")
        if state not in _ANSWERS:
            raise ConflictError(where, f"expected done, failed or unknown, got {state}")
        if slot.state == "waiting":
            raise ConflictError(where, "expected an execution that goes on, got one that waits for its child run")
        move(slot.state, state, where=where)
        self._check_feedback(exchange, slot, feedback)
        return (self._moved(turn, exchange, position, state, at_ms=at_ms, feedback=feedback, code=code),)

    def keep_output(self, turn: Turn, exchange: int, position: int, *, text: str, at_ms: int) -> tuple[Fact, ...]:
        """Keep the full text of an output, in the batch of the answer that has its beginning, and after that.

        There is no check for room: who cuts the answer asks for it before (`State.has_room_for_output`), as
        the answer says whether the text is kept. Keeping it again adds nothing.

        Raises:
            ConflictError: the run is closed.
        """
        slot = self._slot(turn, exchange, position)
        if slot.kept is not None:
            return ()
        self._running(turn)
        kept = OutputKept(
            run_id=turn.run_id,
            origin_id=turn.opened.origin_id,
            exchange=exchange,
            position=position,
            text=text,
            size=len(text.encode()),
            at_ms=at_ms,
        )
        return (kept,)

    def complete(
        self,
        turn: Turn,
        exchange: int,
        position: int,
        *,
        state: SlotState,
        feedback: ToolFeedback,
        code: str,
        at_ms: int,
    ) -> tuple[Fact, ...]:
        """Answer a call that never ran (``failed`` or ``skipped``); no execution is forged (R81).

        One that waits for its child run is ``skipped`` so as well, once that has ended without its answer.

        The same answer again is confirmed and adds nothing (R82).

        Raises:
            ConflictError: the run is closed, or the slot is not open; one that waits may be skipped.
        """
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        unrun = slot.effect_id is None or slot.state == "skipped"
        if unrun and (slot.state, slot.code) == (state, code) and slot.feedback == feedback:
            return ()
        self._running(turn)
        if (slot.state, state) not in _UNRUN:
            raise ConflictError(where, f"expected an open slot to fail or skip, got {slot.state} to {state}")
        move(slot.state, state, where=where)
        self._check_feedback(exchange, slot, feedback)
        return (self._moved(turn, exchange, position, state, at_ms=at_ms, feedback=feedback, code=code),)

    def close_run(self, turn: Turn, *, outcome: RunOutcome, reason: str | None, at_ms: int) -> tuple[Fact, ...]:
        """End a run. Closing it again the same way adds nothing.

        Raises:
            ConflictError: it ended otherwise, a send is under way, or a slot has no feedback; or a reply would
                be its end, which a user has said more after (`Turn.steered`).
        """
        if turn.closed is not None:
            if (turn.closed.outcome, turn.closed.reason) == (outcome, reason):
                return ()
            raise ConflictError(f"run {turn.run_id!r}", f"expected a running run, got one that {turn.closed.outcome}")
        if turn.sends or len(turn.exchanges) != len(turn.entries):
            raise ConflictError(f"run {turn.run_id!r}", "expected every send ended and every slot answered")
        if outcome in BY_REPLY and turn.steered and not turn.stopping:
            raise ConflictError(f"run {turn.run_id!r}", "expected its steers to be asked with before a reply ends it")
        return (RunClosed(run_id=turn.run_id, outcome=outcome, reason=reason, at_ms=at_ms),)

    # -- private

    def _free_head(self, conversation: str | None) -> ExchangeRef | None:
        if conversation is None:
            return None
        known = self._conversations.get(conversation)
        if known is None:
            return None
        if known.live is not None:
            digest = known.head.digest if known.head else ""
            live = self._turns[known.live]
            rule = f"expected no other run on it, got run {known.live!r}"
            if waiting_calls(live):
                rule += ", which waits for a decision: decide and resume it, or cancel it"
            raise StaleHeadError(conversation, digest, live.digests[-1], rule)
        return known.head

    def _check_head(self, turn: Turn) -> None:
        name = turn.opened.conversation
        if name is None:
            return
        head = self._conversations[name].head
        if head != turn.opened.continues and (head is None or head.origin_id != turn.opened.origin_id):
            expected = turn.opened.continues.digest if turn.opened.continues else ""
            actual = head.digest if head else ""
            raise StaleHeadError(name, expected, actual, "expected the head this run began from, got another")

    def _executing(self, receipt: Receipt, exchange: int, position: int) -> tuple[Turn, Slot, str]:
        """The turn and slot of an execution that is received from its own source, and the place for errors."""
        turn = self._received(receipt)
        slot = self._slot(turn, exchange, position)
        where = f"call {exchange}.{position}"
        if slot.effect_id != receipt.invocation_id:
            raise ConflictError(where, "expected the execution that claimed this slot, got another source")
        return turn, slot, where

    def _received(self, receipt: Receipt) -> Turn:
        if not self._mint.made(receipt):
            raise ConflictError("receipt", "expected a receipt of this book's own effects")
        return self.turn(receipt.parent_id)
