"""What follows from the facts: turns, conversations, requests. Facts are only applied here.

`Book` adds the steps that make them. Cost: an install is proportional to what it adds, but for a
request that brings in a steer: that one copies references to all that was said. So does rebuilding a
request, which encodes none of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

import msgspec

from ..admission import chain
from ..errors import ConflictError, HistoryError, InputError, LimitExceeded, LostError
from ..messages import (
    FunctionSpec,
    Message,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    ToolFeedback,
    UserMessage,
)
from .cut import ContextCut
from .encoding import EncodedFrame, EncodedOrigin, sorted_bytes
from .facts import (
    ConversationBranched,
    ExchangeRef,
    Fact,
    OriginOpened,
    OutputKept,
    ReplyTaken,
    RequestRef,
    RerunAllowed,
    RunClosed,
    RunRedacted,
    SendEnded,
    SendStarted,
    SlotMoved,
    Steered,
    StopAsked,
)
from .history import History
from .room import BookLimits, Room, Rooms
from .turn import Conversation, Entry, Turn

__all__ = ["State"]

_EXCHANGE_DOMAIN: Final = "agentloop/exchange/v1"


class State:
    """Facts to state to requests. Pure: no clock, no task, no medium.

    Attributes:
        holds_outputs: whether the full texts of outputs stay in this process, and so take room here; they
            do in a store in memory. Where they do not, each conversation has room of its own, as it is only held
            while it is in use. Said before there is anything.
    """

    def __init__(self, *, limits: BookLimits | None = None) -> None:
        self.holds_outputs = True
        self._rooms = Rooms(limits or BookLimits())
        self._turns: dict[str, Turn] = {}
        self._origins: dict[str, Turn] = {}
        self._conversations: dict[str, Conversation] = {}
        self._branches: dict[str, ConversationBranched] = {}
        self._newest: tuple[ModelReply | ToolFeedback | UserMessage | None, bytes] = (None, b"")
        self._frame: EncodedFrame | None = None  # of the newest origin
        self._opening: EncodedOrigin | None = None  # of a step whose fact is not installed yet

    # -- reading

    @property
    def size(self) -> int:
        """Bytes of all origins, replies, feedback and full texts of outputs held."""
        return self._rooms.size

    def has_room_for_output(self, size: int, conversation: str | None, run_id: str) -> bool:
        """Whether the full text of an output of a run can be kept, of so many bytes."""
        return self._room_of(conversation, run_id).takes_output(size, held=self.holds_outputs)

    def has_run(self, run_id: str) -> bool:
        """Whether a run, or a branch, of that id is held."""
        return run_id in self._turns or run_id in self._branches

    def run_conversation(self, run_id: str) -> str | None:
        """The conversation that a run, or a branch, belongs to.

        Raises:
            LostError: no such run is held.
        """
        branched = self._branches.get(run_id)
        return branched.conversation if branched is not None else self.turn(run_id).opened.conversation

    def has_origin(self, origin_id: str) -> bool:
        """Whether an origin of that id is held."""
        return origin_id in self._origins

    def exchange(self, ref: ExchangeRef) -> Turn:
        """The turn of one complete exchange.

        Raises:
            LostError: its origin is not held, or has no such exchange.
            ConflictError: the digest is another exchange's.
        """
        turn = self._origins.get(ref.origin_id)
        if turn is None or not 0 <= ref.index < len(turn.digests) - 1:
            raise LostError("exchange", f"{ref.origin_id}/{ref.index}")
        if turn.digests[ref.index + 1] != ref.digest:
            raise ConflictError(f"exchange {ref.origin_id}/{ref.index}", "expected its digest, got another")
        return turn

    def messages(self, ref: ExchangeRef) -> tuple[Message, ...]:
        """All that was said up to an exchange, which is the last of it.

        Raises:
            LostError, ConflictError: as `exchange`.
        """
        return self._up_to(ref, self.exchange(ref)).messages

    def past(
        self,
        conversation: str | None,
        continues: ExchangeRef | None,
        messages: tuple[Message, ...],
    ) -> History:
        """All that was said up to a turn that would say ``messages`` after an exchange, and these.

        Args:
            continues: the newest exchange of the conversation, None before its first.
        """
        return self._past(conversation, continues, messages, [len(sorted_bytes(message)) for message in messages])

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

    def branches_of(self, name: str) -> list[Conversation]:
        """Conversations held that branched off from this one, or from one that did; older ones first."""
        found = [known for known in self._conversations.values() if known.source == name]
        for known in found:
            found += [other for other in self._conversations.values() if other.source == known.name]
        return found

    def reference(self, turn: Turn) -> RequestRef:
        """What the next model call of ``turn`` is given: all exchanges, and the steers that wait."""
        return RequestRef(origin_id=turn.opened.origin_id, exchanges=len(turn.exchanges), digest=turn.next_digest)

    def closed(self, ref: RequestRef) -> Turn:
        """Check that ``ref`` names an ordered prefix of one origin whose feedback is complete (R77).

        Raises:
            LostError: the origin is not held; it is never made up again (R88).
            HistoryError: ``missing_tool_result``: the prefix is longer than what is complete.
            ConflictError: the digest is another prefix's.
        """
        turn = self._origins.get(ref.origin_id)
        if turn is None or turn.redacted is not None:
            raise LostError("origin", ref.origin_id)
        if not 0 <= ref.exchanges <= len(turn.exchanges):
            raise HistoryError(
                "missing_tool_result",
                f"$.exchanges[{len(turn.exchanges)}]",
                f"expected {ref.exchanges} complete exchanges, got {len(turn.exchanges)}",
            )
        if not turn.is_asked(ref):
            raise ConflictError(f"origin {ref.origin_id}", "expected the digest of this prefix, got another")
        return turn

    def request(self, ref: RequestRef, *, max_bytes: int) -> ModelRequest:
        """Rebuild the full request at the send boundary (R76, R78).

        Raises:
            InputError: the last exchange asks for nothing and no steer follows it, so there is nothing to continue.
            LimitExceeded: ``request_bytes``: the expanded request is over ``max_bytes``.
        """
        turn = self.closed(ref)
        messages, exchanges, size = turn.asked(ref)
        self._check_continues(exchanges)
        if size > max_bytes:
            raise LimitExceeded("request_bytes", max_bytes, size)
        opened = turn.opened
        options = opened.options
        if ref.exchanges and options.forces_call:  # a forced call is for the first model call only
            options = msgspec.structs.replace(options, tool_choice=None)
        return ModelRequest(messages=messages, options=options, tools=opened.tools, exchanges=exchanges)

    # -- installing what is stored

    def install(self, facts: Iterable[Fact]) -> None:
        """Apply facts that the medium holds, in order."""
        for fact in facts:
            if type(fact) is SlotMoved:
                self._install_slot(fact)
            elif type(fact) is SendStarted:
                turn = self._turns[fact.run_id]
                turn.place_steers(fact.request.digest)
                turn.sends[fact.attempt_id], turn.sent, turn.ended = fact, fact, None
                turn.claims[fact.attempt_id] = None
                turn.model_calls += 1
            elif type(fact) is SendEnded:
                self._install_send_end(fact)
            elif type(fact) is ReplyTaken:
                self._install_reply(fact)
            elif type(fact) is OriginOpened:
                self._install_origin(fact)
            elif type(fact) is RunClosed:
                self._install_close(fact)
            elif type(fact) is Steered:
                self._install_steer(fact)
            elif type(fact) is StopAsked:
                self._turns[fact.run_id].stopping = True
            elif type(fact) is RerunAllowed:
                self._turns[fact.run_id].entries[fact.exchange].slots[fact.position].rerun = True
            elif type(fact) is OutputKept:
                self._install_output(fact)
            elif type(fact) is ConversationBranched:
                self._install_branch(fact)
            elif type(fact) is RunRedacted:
                self._install_redacted(fact)
            else:
                assert_never(fact)  # type: ignore[arg-type]  # mypy does not narrow unions by type()

    def check_forget(self, run_ids: Sequence[str]) -> set[str]:
        """Refuse to drop what must be kept; return the conversations that go. Changes nothing.

        Raises:
            LostError: one is not held.
            ConflictError: one is running, or a conversation would lose a turn that others continue.
        """
        drop, names = set(run_ids), set()
        for run_id in drop:
            name = self.run_conversation(run_id)
            if run_id in self._turns and self._turns[run_id].closed is None:
                raise ConflictError(f"run {run_id!r}", "expected a run that ended")
            if name is not None and not drop.issuperset(self._conversations[name].runs):
                raise ConflictError(f"run {run_id!r}", "expected its whole conversation to be forgotten with it")
            if name is not None:
                names.add(name)
        return names

    def forget(self, run_ids: Sequence[str]) -> None:
        """Drop runs and the room they take. The caller has dropped them from the medium.

        Raises:
            LostError, ConflictError: as `check_forget`; nothing was dropped.
        """
        self.check_forget(run_ids)
        self.unload(run_ids)

    def unload(self, run_ids: Iterable[str]) -> None:
        """Drop the state of runs, whatever they are at; their facts stay on the medium.

        A conversation is dropped whole: the caller names all its runs.
        """
        for run_id in set(run_ids):
            branched = self._branches.pop(run_id, None)
            if branched is not None:
                self._conversations.pop(branched.conversation, None)
            turn = self._turns.pop(run_id, None)
            if turn is not None:
                del self._origins[turn.opened.origin_id]
                kept = turn.kept if self.holds_outputs else 0
                self._count(turn, -turn.size, origins=-1, exchanges=-len(turn.entries), output=-kept)
                if turn.opened.conversation is not None:
                    self._conversations.pop(turn.opened.conversation, None)

    def encoded(self, value: ModelReply | ToolFeedback | UserMessage) -> bytes:
        """Canonical bytes of ``value``; a step and the install of its facts share one encoding."""
        if self._newest[0] is not value:
            self._newest = (value, sorted_bytes(value))
        return self._newest[1]

    # -- private

    def _room_of(self, conversation: str | None, run_id: str) -> Room:
        """What a run is counted in."""
        return self._rooms.of(conversation, run_id, apart=not self.holds_outputs)

    def _count(self, turn: Turn, size: int, *, origins: int = 0, exchanges: int = 0, output: int = 0) -> None:
        self._rooms.add(
            size,
            turn.opened.conversation,
            turn.run_id,
            apart=not self.holds_outputs,
            origins=origins,
            exchanges=exchanges,
            output=output,
        )

    def _encoded_origin(
        self,
        messages: tuple[Message, ...],
        options: ModelOptions,
        tools: tuple[FunctionSpec, ...],
        context: ContextCut | None,
    ) -> EncodedOrigin:
        """An origin as bytes: a step and the install of its fact share one encoding, and runs of an agent its frame."""
        opening, frame = self._opening, self._frame
        if frame is None or frame.options is not options or frame.tools is not tools:
            frame = self._frame = EncodedFrame(options, tools)
        same = opening is not None and opening.messages is messages and opening.context is context
        if opening is None or not same or opening.frame is not frame:
            opening = self._opening = EncodedOrigin(messages, frame, context)
        return opening

    def _install_origin(self, fact: OriginOpened) -> None:
        encoded = self._encoded_origin(fact.messages, fact.options, fact.tools, fact.context)
        self._opening = None
        past = self._past(fact.conversation, fact.continues, fact.messages, encoded.sizes)
        own_size = sum(encoded.sizes) + encoded.context_size
        turn = Turn(fact, past, own_size=own_size, frame_size=encoded.frame.size)
        self._turns[fact.run_id] = self._origins[fact.origin_id] = turn
        self._count(turn, turn.size, origins=1)
        if fact.conversation is not None:
            conversation = self._conversations.setdefault(fact.conversation, Conversation(fact.conversation))
            conversation.live = fact.run_id
            conversation.runs.append(fact.run_id)

    def _install_branch(self, fact: ConversationBranched) -> None:
        self._branches[fact.run_id] = fact
        conversation = self._conversations[fact.conversation] = Conversation(fact.conversation)
        conversation.runs.append(fact.run_id)
        conversation.head, conversation.source = fact.continues, fact.source
        conversation.base = (fact.continues, self._up_to(fact.continues, self._origins[fact.continues.origin_id]))

    def _install_redacted(self, fact: RunRedacted) -> None:
        opened = OriginOpened(
            run_id=fact.run_id,
            origin_id=fact.origin_id,
            digest=fact.digests[0],
            conversation=fact.conversation,
            continues=fact.continues,
            messages=(),
            options=ModelOptions(),
            tools=(),
            catalogue_digest=fact.catalogue_digest,
            input_digest=fact.input_digest,
            agent=fact.agent,
            at_ms=fact.at_ms,
            parent=fact.parent,
        )
        turn = Turn(opened, self._past(fact.conversation, fact.continues, (), ()), own_size=0, frame_size=0)
        turn.redacted, turn.digests = fact, list(fact.digests)
        turn.model_calls, turn.tool_calls, turn.usage = fact.model_calls, fact.tool_calls, fact.usage
        turn.closed = RunClosed(run_id=fact.run_id, outcome=fact.outcome, reason=fact.reason, at_ms=fact.ended_at_ms)
        self._turns[fact.run_id] = self._origins[fact.origin_id] = turn
        self._count(turn, 0, origins=1)
        if fact.conversation is not None:
            conversation = self._conversations.setdefault(fact.conversation, Conversation(fact.conversation))
            conversation.runs.append(fact.run_id)
            if len(fact.digests) > 1:
                conversation.head = ExchangeRef(
                    origin_id=fact.origin_id, index=len(fact.digests) - 2, digest=fact.digests[-1]
                )

    def _past(
        self,
        name: str | None,
        continues: ExchangeRef | None,
        messages: tuple[Message, ...],
        sizes: Sequence[int],
    ) -> History:
        """What a turn's requests begin with, when it says ``messages`` after an exchange."""
        if continues is None:
            return History(messages, sizes)
        known = None if name is None else self._conversations.get(name)
        if known is not None and known.base is not None and known.base[0] == continues:
            return known.base[1].following(None, (), 0, messages, sizes)
        return self._up_to(continues, self._origins[continues.origin_id], messages, sizes)

    @staticmethod
    def _up_to(
        ref: ExchangeRef,
        turn: Turn,
        messages: tuple[Message, ...] = (),
        sizes: Sequence[int] = (),
    ) -> History:
        spoken, size = turn.said(ref.index + 1)
        return turn.past.following(turn.opened.origin_id, spoken, size, messages, sizes)

    def _install_send_end(self, fact: SendEnded) -> None:
        turn = self._turns[fact.run_id]
        del turn.sends[fact.attempt_id]
        turn.ended = fact
        if fact.usage is not None:
            turn.usage = fact.usage if turn.usage is None else turn.usage + fact.usage
        if fact.outcome == "failed" and fact.author is None:
            turn.refused += (fact,)
        if fact.outcome != "replied" and fact.may_have_been_processed:
            turn.unknown_sends += (fact.attempt_id,)

    def _install_reply(self, fact: ReplyTaken) -> None:
        turn = self._turns[fact.run_id]
        sent, ended = turn.sent, turn.ended
        assert sent is not None, "a reply follows the claim of its attempt"
        assert ended is not None, "a reply follows the end of its attempt"
        entry = Entry(fact.reply, fact.attempt_id, self.encoded(fact.reply), sent.at_ms, ended.at_ms)
        turn.entries.append(entry)
        turn.ended, turn.refused = None, ()
        turn.size += entry.size
        self._count(turn, entry.size, exchanges=1)
        for slot in entry.slots:
            asked = (slot.call.name, slot.call.arguments.text)
            turn.equal_calls[asked] = turn.equal_calls.get(asked, 0) + 1
        if not entry.slots:
            self._complete(turn, entry)

    def _install_steer(self, fact: Steered) -> None:
        turn = self._turns[fact.run_id]
        encoded = self.encoded(fact.message)
        turn.steers.add(fact.message, encoded)
        turn.size += len(encoded)
        self._count(turn, len(encoded))

    def _install_slot(self, fact: SlotMoved) -> None:
        turn = self._turns[fact.run_id]
        entry = turn.entries[fact.exchange]
        slot = entry.slots[fact.position]
        given_back = fact.state == "open" and slot.state == "started"
        if slot.state == "waiting" and fact.author is not None:
            slot.decided = fact
        goes_on = fact.state == "started" and slot.state == "waiting"
        slot.state, slot.code = fact.state, fact.code
        if given_back:  # as if it had not been claimed
            assert slot.effect_id is not None, "who claims says for which execution"
            del turn.claims[slot.effect_id]
            slot.effect_id, slot.attempt, slot.started_at_ms = None, 0, None
            turn.tool_calls -= 1
        elif fact.state == "started":
            slot.effect_id, slot.attempt, slot.rerun = fact.effect_id, fact.attempt, False
            slot.started_at_ms = fact.at_ms
            if not goes_on:  # the same execution asks its child again
                turn.tool_calls += 1
            if fact.effect_id is not None:
                turn.claims[fact.effect_id] = None
        elif fact.state == "waiting":
            slot.waits_since_ms = fact.at_ms
            slot.asked = fact.effect_id is not None
        if fact.feedback is None:
            return
        slot.feedback, slot.encoded, slot.ended_at_ms = fact.feedback, self.encoded(fact.feedback), fact.at_ms
        added = len(slot.encoded)
        entry.size += added
        turn.size += added
        self._count(turn, added)
        entry.unanswered -= 1
        if not entry.unanswered:
            self._complete(turn, entry)

    def _install_output(self, fact: OutputKept) -> None:
        turn = self._turns[fact.run_id]
        turn.entries[fact.exchange].slots[fact.position].kept = fact.size
        turn.kept += fact.size
        if self.holds_outputs:
            self._count(turn, 0, output=fact.size)

    def _complete(self, turn: Turn, entry: Entry) -> None:
        feedback = tuple(slot.feedback for slot in entry.slots if slot.feedback is not None)
        entry.exchange = ModelExchange(reply=entry.reply, feedback=feedback)
        tip = turn.tip
        turn.exchanges.append(entry.exchange)
        digest = chain(_EXCHANGE_DOMAIN, tip, entry.encoded, *(slot.encoded for slot in entry.slots))
        entry.encoded = b""  # the digest covers it now, and the feedback
        for slot in entry.slots:
            slot.encoded = b""
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

    @staticmethod
    def _check_continues(exchanges: Sequence[ModelExchange]) -> None:
        if exchanges and not exchanges[-1].feedback:
            raise InputError("request: expected an exchange with tool calls to continue, got a final reply")
