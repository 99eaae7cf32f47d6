"""The conversation as facts: what may be added, and what follows from what was added.

A method named after a step checks it against the facts so far and returns the new facts; it
changes nothing. `install` then applies facts that are on the medium. So a caller can never see,
send or run anything that was not stored first.

Cost: each step is proportional to what it adds. Rebuilding a request copies references to the
exchanges so far and encodes none of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from ..admission import chain, digest_bytes
from ..errors import ConflictError, HistoryError, InputError, LimitExceeded, LostError, StaleHeadError
from ..limits import (
    STORE_EXCHANGES,
    STORE_ITEM_BYTES,
    STORE_ORIGINS,
    STORE_TOTAL_BYTES,
)
from ..messages import (
    FunctionSpec,
    Message,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    SystemMessage,
    ToolFeedback,
    Usage,
    UserMessage,
)
from .encoding import canonical_bytes
from .facts import (
    ExchangeRef,
    Fact,
    OriginOpened,
    ReplyTaken,
    RequestRef,
    RunClosed,
    RunOutcome,
    SendEnded,
    SendStarted,
    SlotMoved,
)
from .receipts import Receipt, ReceiptMint
from .slots import SlotState, move
from .turn import Entry, Slot, Turn

__all__ = ["Book", "BookLimits", "Conversation"]

ORIGIN_DOMAIN = "agentloop/origin/v1"
EXCHANGE_DOMAIN = "agentloop/exchange/v1"

_encode = msgspec.json.Encoder(order="sorted").encode
"""RFC 8785 for the values it is used on: ASCII member names, text and integers, no floats."""


class BookLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceilings of one book (R112); they never relax a provider's limits (R113)."""

    origins: int = STORE_ORIGINS
    exchanges: int = STORE_EXCHANGES
    total_bytes: int = STORE_TOTAL_BYTES
    item_bytes: int = STORE_ITEM_BYTES


class Conversation:
    """The turns of one conversation.

    Attributes:
        head: the newest complete exchange, None before the first.
        live: id of the run that is on it now.
        runs: ids of its runs, oldest first.
    """

    __slots__ = ("head", "live", "name", "runs")

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: ExchangeRef | None = None
        self.live: str | None = None
        self.runs: list[str] = []


class Book:
    """Facts to state to requests. Pure: no clock, no task, no medium.

    One task at a time may call it; between a step and its `install` no other step may run on the
    same run or conversation (`persistence.Store` sees to that).
    """

    def __init__(self, mint: ReceiptMint, *, limits: BookLimits = BookLimits()) -> None:
        self._mint, self._limits = mint, limits
        self._turns: dict[str, Turn] = {}
        self._origins: dict[str, Turn] = {}
        self._conversations: dict[str, Conversation] = {}
        self._exchanges = 0
        self._bytes = 0

    # -- reading

    @property
    def size(self) -> int:
        """Bytes of all origins, replies and feedback held."""
        return self._bytes

    def has_run(self, run_id: str) -> bool:
        """Whether a run of that id is held."""
        return run_id in self._turns

    def turn(self, run_id: str) -> Turn:
        """The turn of a run.

        Raises:
            LostError: no such run is held.
        """
        try:
            return self._turns[run_id]
        except KeyError:
            raise LostError("run", run_id) from None

    def conversation(self, name: str) -> Conversation | None:
        """The conversation of that name, None when it has no turn yet."""
        return self._conversations.get(name)

    def reference(self, turn: Turn) -> RequestRef:
        """What the next model call of ``turn`` is given."""
        count = len(turn.exchanges)
        return RequestRef(origin_id=turn.opened.origin_id, exchanges=count, digest=turn.digests[count])

    def closed(self, ref: RequestRef) -> Turn:
        """Check that ``ref`` names an ordered prefix of one origin whose feedback is complete (R77).

        Raises:
            LostError: the origin is not held; it is never made up again (R88).
            HistoryError: ``missing_tool_result``: the prefix is longer than what is complete.
            ConflictError: the digest is another prefix's.
        """
        turn = self._origins.get(ref.origin_id)
        if turn is None:
            raise LostError("origin", ref.origin_id)
        if not 0 <= ref.exchanges <= len(turn.exchanges):
            raise HistoryError(
                "missing_tool_result",
                f"$.exchanges[{len(turn.exchanges)}]",
                f"expected {ref.exchanges} complete exchanges, got {len(turn.exchanges)}",
            )
        if turn.digests[ref.exchanges] != ref.digest:
            raise ConflictError(f"origin {ref.origin_id}", "expected the digest of this prefix, got another")
        return turn

    def request(self, ref: RequestRef, *, max_bytes: int) -> ModelRequest:
        """Rebuild the full request at the send boundary (R76, R78).

        Raises:
            InputError: the last exchange asks for nothing, so there is nothing to continue.
            LimitExceeded: ``request_bytes``: the expanded request is over ``max_bytes``.
        """
        turn = self.closed(ref)
        exchanges = tuple(turn.exchanges if ref.exchanges == len(turn.exchanges) else turn.exchanges[: ref.exchanges])
        if exchanges and not exchanges[-1].feedback:
            raise InputError("request: expected an exchange with tool calls to continue, got a final reply")
        if turn.request_size > max_bytes:
            raise LimitExceeded("request_bytes", max_bytes, turn.request_size)
        opened = turn.opened
        options = opened.options
        if exchanges and options.forces_call:  # a forced call is for the first model call only
            options = msgspec.structs.replace(options, tool_choice=None)
        return ModelRequest(messages=turn.history, options=options, tools=opened.tools, exchanges=exchanges)

    # -- steps: check, and return the facts to store

    def open_origin(
        self,
        *,
        run_id: str,
        origin_id: str,
        conversation: str | None,
        messages: tuple[SystemMessage | UserMessage, ...],
        options: ModelOptions,
        tools: tuple[FunctionSpec, ...],
        catalogue_digest: str,
        input_digest: str,
        agent: str,
        at_ms: int,
    ) -> tuple[Fact, ...]:
        """Fix a run's origin. Starting the same run again with the same input adds nothing (R82).

        Raises:
            ConflictError: the run id is taken by another input.
            StaleHeadError: another run is on the conversation.
            LimitExceeded: the book is full (``origins``, ``total_bytes``, ``item_bytes``).
        """
        known = self._turns.get(run_id)
        if known is not None:
            if known.opened.input_digest == input_digest and known.opened.conversation == conversation:
                return ()
            raise ConflictError(f"run {run_id!r}", "expected the input this run was started with, got another")
        continues = self._free_head(conversation)
        encoded = canonical_bytes(
            {
                "messages": messages,
                "options": options,
                "tools": tools,
                "continues": None if continues is None else continues.digest,
            }
        )
        self._admit(len(encoded), origins=1)
        opened = OriginOpened(
            run_id=run_id,
            origin_id=origin_id,
            digest=digest_bytes(ORIGIN_DOMAIN, encoded),
            conversation=conversation,
            continues=continues,
            messages=messages,
            options=options,
            tools=tools,
            catalogue_digest=catalogue_digest,
            input_digest=input_digest,
            agent=agent,
            at_ms=at_ms,
        )
        return (opened,)

    def begin_send(self, ref: RequestRef, *, attempt_id: str, model: str, at_ms: int) -> tuple[Fact, ...]:
        """Claim one send.

        Raises:
            ConflictError: the run is closed, or a send of it has not ended.
        """
        turn = self.closed(ref)
        self._running(turn)
        if turn.sends:
            raise ConflictError(f"run {turn.run_id!r}", "expected no other send under way")
        if len(turn.entries) != ref.exchanges:
            raise HistoryError(
                "missing_tool_result", f"$.exchanges[{ref.exchanges}]", "expected the feedback of every call"
            )
        started = SendStarted(
            run_id=turn.run_id,
            attempt_id=attempt_id,
            request=ref,
            call_sequence=turn.model_calls + 1,
            model=model,
            at_ms=at_ms,
        )
        return (started,)

    def intake(self, receipt: Receipt, reply: ModelReply) -> tuple[Fact, ...]:
        """Take in a checked reply, for the attempt that asked for it (R80).

        The same reply of the same attempt is confirmed and adds nothing (R82).

        Raises:
            ConflictError: no such attempt is under way, or it brought another reply (R83).
            StaleHeadError: the conversation moved on meanwhile.
            LimitExceeded: the book is full.
        """
        turn = self._received(receipt)
        started = turn.sends.get(receipt.invocation_id)
        if started is None:
            for entry in turn.entries:
                if entry.attempt_id == receipt.invocation_id and entry.reply == reply:
                    return ()
            raise ConflictError(f"attempt {receipt.invocation_id!r}", "expected an attempt that is under way")
        self._check_head(turn)
        self._admit(len(_encode(reply)), exchanges=1)
        return (
            SendEnded(
                run_id=turn.run_id,
                attempt_id=receipt.invocation_id,
                outcome="replied",
                usage=reply.usage,
            ),
            ReplyTaken(
                run_id=turn.run_id,
                origin_id=turn.opened.origin_id,
                index=started.request.exchanges,
                attempt_id=receipt.invocation_id,
                reply=reply,
            ),
        )

    def fail_send(
        self,
        receipt: Receipt,
        *,
        abandoned: bool,
        code: str,
        may_have_been_processed: bool,
        usage: Usage | None = None,
    ) -> tuple[Fact, ...]:
        """End an attempt without a reply.

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
        )
        return (ended,)

    def start_slot(self, turn: Turn, exchange: int, position: int, *, effect_id: str) -> tuple[Fact, ...]:
        """Claim one execution of a tool, before its first instruction."""
        self._running(turn)
        slot = self._slot(turn, exchange, position)
        move(slot.state, "started", where=f"call {exchange}.{position}")
        return (
            SlotMoved(
                run_id=turn.run_id,
                origin_id=turn.opened.origin_id,
                exchange=exchange,
                position=position,
                state="started",
                effect_id=effect_id,
                attempt=slot.attempt + 1,
            ),
        )

    def receive(
        self,
        receipt: Receipt,
        exchange: int,
        position: int,
        *,
        state: SlotState,
        feedback: ToolFeedback,
        code: str | None = None,
    ) -> tuple[Fact, ...]:
        """Take in a tool's answer, for the execution that was claimed (R80).

        The same answer of the same execution is confirmed and adds nothing (R82).

        Raises:
            ConflictError: another execution owns the slot, or it has another answer (R83).
        """
        turn = self._received(receipt)
        slot = self._slot(turn, exchange, position)
        where = f"call {exchange}.{position}"
        if slot.effect_id != receipt.invocation_id:
            raise ConflictError(where, "expected the execution that claimed this slot, got another source")
        if slot.feedback is not None:
            if slot.state == state and slot.feedback == feedback:
                return ()
            raise ConflictError(where, "expected the feedback it already holds, got another")
        move(slot.state, state, where=where)
        self._check_feedback(slot, feedback, where)
        self._admit(len(_encode(feedback)))
        return (
            SlotMoved(
                run_id=turn.run_id,
                origin_id=turn.opened.origin_id,
                exchange=exchange,
                position=position,
                state=state,
                effect_id=slot.effect_id,
                attempt=slot.attempt,
                feedback=feedback,
                code=code,
            ),
        )

    def complete(
        self, turn: Turn, exchange: int, position: int, *, state: SlotState, feedback: ToolFeedback, code: str
    ) -> tuple[Fact, ...]:
        """Answer a call that never ran (``failed`` or ``skipped``); no execution is forged (R81)."""
        self._running(turn)
        where = f"call {exchange}.{position}"
        slot = self._slot(turn, exchange, position)
        if slot.state != "open" or state not in ("failed", "skipped"):
            raise ConflictError(where, f"expected an open slot to fail or skip, got {slot.state} to {state}")
        move(slot.state, state, where=where)
        self._check_feedback(slot, feedback, where)
        self._admit(len(_encode(feedback)))
        return (
            SlotMoved(
                run_id=turn.run_id,
                origin_id=turn.opened.origin_id,
                exchange=exchange,
                position=position,
                state=state,
                feedback=feedback,
                code=code,
            ),
        )

    def close_run(self, turn: Turn, *, outcome: RunOutcome, reason: str | None, at_ms: int) -> tuple[Fact, ...]:
        """End a run. Closing it again the same way adds nothing.

        Raises:
            ConflictError: it ended otherwise, a send is under way, or a slot has no feedback.
        """
        if turn.closed is not None:
            if (turn.closed.outcome, turn.closed.reason) == (outcome, reason):
                return ()
            raise ConflictError(f"run {turn.run_id!r}", f"expected a running run, got one that {turn.closed.outcome}")
        if turn.sends or len(turn.exchanges) != len(turn.entries):
            raise ConflictError(f"run {turn.run_id!r}", "expected every send ended and every slot answered")
        return (RunClosed(run_id=turn.run_id, outcome=outcome, reason=reason, at_ms=at_ms),)

    # -- installing what is stored

    def install(self, facts: Iterable[Fact]) -> None:
        """Apply facts that the medium holds, in order."""
        for fact in facts:
            if type(fact) is SlotMoved:
                self._install_slot(fact)
            elif type(fact) is SendStarted:
                turn = self._turns[fact.run_id]
                turn.sends[fact.attempt_id] = fact
                turn.model_calls += 1
            elif type(fact) is SendEnded:
                self._install_send_end(fact)
            elif type(fact) is ReplyTaken:
                self._install_reply(fact)
            elif type(fact) is OriginOpened:
                self._install_origin(fact)
            elif type(fact) is RunClosed:
                self._install_close(fact)
            else:
                assert_never(fact)  # type: ignore[arg-type]  # mypy does not narrow unions by type()

    def forget(self, run_ids: Sequence[str]) -> None:
        """Drop runs and the room they take. The caller has dropped them from the medium.

        Raises:
            ConflictError: one is running, or a conversation would lose a turn that others continue.
        """
        drop = set(run_ids)
        for run_id in drop:
            turn = self.turn(run_id)
            if turn.closed is None:
                raise ConflictError(f"run {run_id!r}", "expected a run that ended")
            name = turn.opened.conversation
            if name is not None and not drop.issuperset(self._conversations[name].runs):
                raise ConflictError(f"run {run_id!r}", "expected its whole conversation to be forgotten with it")
        for run_id in drop:
            turn = self._turns.pop(run_id)
            del self._origins[turn.opened.origin_id]
            self._exchanges -= len(turn.entries)
            self._bytes -= turn.size
            if turn.opened.conversation is not None:
                self._conversations.pop(turn.opened.conversation, None)

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
            raise StaleHeadError(
                conversation, digest, live.digests[-1], f"expected no other run on it, got run {known.live!r}"
            )
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

    def _admit(self, size: int, *, origins: int = 0, exchanges: int = 0) -> None:
        limits = self._limits
        if size > limits.item_bytes:
            raise LimitExceeded("item_bytes", limits.item_bytes, size)
        if self._bytes + size > limits.total_bytes:
            raise LimitExceeded("total_bytes", limits.total_bytes, self._bytes + size)
        if origins and len(self._turns) + origins > limits.origins:
            raise LimitExceeded("origins", limits.origins, len(self._turns) + origins)
        if exchanges and self._exchanges + exchanges > limits.exchanges:
            raise LimitExceeded("exchanges", limits.exchanges, self._exchanges + exchanges)

    def _received(self, receipt: Receipt) -> Turn:
        if not self._mint.made(receipt):
            raise ConflictError("receipt", "expected a receipt of this book's own effects")
        turn = self.turn(receipt.parent_id)
        self._running(turn)
        return turn

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
    def _check_feedback(slot: Slot, feedback: ToolFeedback, where: str) -> None:
        if feedback.tool_call_id != slot.call.id:
            raise HistoryError("orphan_tool_result", where, "expected the feedback of the call at this position")

    def _install_origin(self, fact: OriginOpened) -> None:
        history: tuple[Message, ...] = fact.messages
        history_size = 0
        if fact.continues is not None:
            before = self._origins[fact.continues.origin_id]
            own = next((at for at, m in enumerate(fact.messages) if type(m) is not SystemMessage), len(fact.messages))
            earlier = (*before.history, *before.exchanges[: fact.continues.index + 1])
            systems = fact.messages[:own] or tuple(m for m in earlier if type(m) is SystemMessage)
            spoken = tuple(m for m in earlier if type(m) is not SystemMessage)
            history = (*systems, *spoken, *fact.messages[own:])
            history_size = before.request_size
        size = len(_encode(fact.messages)) + len(_encode(fact.tools))
        turn = Turn(fact, history, size, history_size)
        self._turns[fact.run_id] = self._origins[fact.origin_id] = turn
        self._bytes += size
        if fact.conversation is not None:
            conversation = self._conversations.setdefault(fact.conversation, Conversation(fact.conversation))
            conversation.live = fact.run_id
            conversation.runs.append(fact.run_id)

    def _install_send_end(self, fact: SendEnded) -> None:
        turn = self._turns[fact.run_id]
        del turn.sends[fact.attempt_id]
        if fact.usage is not None:
            turn.usage = fact.usage if turn.usage is None else turn.usage + fact.usage
        if fact.outcome != "replied" and fact.may_have_been_processed:
            turn.unknown_sends.append(fact.attempt_id)

    def _install_reply(self, fact: ReplyTaken) -> None:
        turn = self._turns[fact.run_id]
        entry = Entry(fact.reply, fact.attempt_id, _encode(fact.reply))
        turn.entries.append(entry)
        turn.size += entry.size
        self._bytes += entry.size
        self._exchanges += 1
        for slot in entry.slots:
            turn.equal_calls[slot.call.name, slot.call.arguments.text] += 1
        if not entry.slots:
            self._complete(turn, entry, ())

    def _install_slot(self, fact: SlotMoved) -> None:
        turn = self._turns[fact.run_id]
        entry = turn.entries[fact.exchange]
        slot = entry.slots[fact.position]
        slot.state, slot.code = fact.state, fact.code
        if fact.state == "started":
            slot.effect_id, slot.attempt = fact.effect_id, fact.attempt
            turn.tool_calls += 1
        if fact.feedback is None:
            return
        slot.feedback = fact.feedback
        if entry.exchange is None and all(s.feedback is not None for s in entry.slots):
            self._complete(turn, entry, tuple(s.feedback for s in entry.slots if s.feedback is not None))

    def _complete(self, turn: Turn, entry: Entry, feedback: tuple[ToolFeedback, ...]) -> None:
        encoded = [_encode(item) for item in feedback]
        added = sum(map(len, encoded))
        entry.exchange = ModelExchange(reply=entry.reply, feedback=feedback)
        entry.size += added
        turn.size += added
        self._bytes += added
        turn.exchanges.append(entry.exchange)
        digest = chain(EXCHANGE_DOMAIN, turn.digests[-1], entry.encoded, *encoded)
        entry.encoded = b""  # the digest covers it now
        turn.digests.append(digest)
        if turn.opened.conversation is not None:
            self._conversations[turn.opened.conversation].head = ExchangeRef(
                origin_id=turn.opened.origin_id, index=len(turn.exchanges) - 1, digest=digest
            )

    def _install_close(self, fact: RunClosed) -> None:
        turn = self._turns[fact.run_id]
        turn.closed = fact
        name = turn.opened.conversation
        if name is not None and self._conversations[name].live == fact.run_id:
            self._conversations[name].live = None
