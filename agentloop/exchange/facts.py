"""What is stored: frozen, versioned facts. Everything else about a conversation is derived.

A run appends, in this order: one `OriginOpened`; for each model call one `SendStarted`, one
`SendEnded` and, when it was replied, one `ReplyTaken` in the same batch; for each call of the
reply its `SlotMoved` steps, of which the claim mostly shares a batch with what came just before it:
the reply, or the answer of another call; an `OutputKept` in the batch of an answer that was cut; at last one
`RunClosed`. `Steered` and `StopAsked` may come anywhere between, but not between an attempt's end and its
reply. Two facts stand alone: `ConversationBranched`
begins a conversation at an exchange of another, and `RunRedacted` takes the place of all facts of
a run whose texts were removed.

This is the form of version 2. Records of version 1 told no end of an effect: read from one, ``at_ms``
of `SendEnded`, `SlotMoved` and `RerunAllowed` is None, and nothing else writes None there; nor did they
tell ``status``, ``retry_after``, ``stream_refused`` and ``previewed`` of `SendEnded`. Early ones of version 2
did not tell the last two either, nor ``converted`` of `SlotMoved`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..messages import (
    FunctionSpec,
    Message,
    ModelOptions,
    ModelReply,
    ToolFeedback,
    Usage,
    UserMessage,
)
from .cut import ContextCut
from .slots import SlotState

__all__ = [
    "CallBasis",
    "ConversationBranched",
    "ExchangeRef",
    "Fact",
    "OriginOpened",
    "OutputKept",
    "ReplyTaken",
    "RequestRef",
    "RerunAllowed",
    "RunClosed",
    "RunOutcome",
    "RunRedacted",
    "SendEnded",
    "SendStarted",
    "SlotMoved",
    "Steered",
    "StopAsked",
]

RunOutcome = Literal["completed", "refused", "incomplete", "limit_reached", "failed", "cancelled"]
"""How a run ended. ``failed`` and ``cancelled`` raise; the others are values of a `RunResult`."""


class ExchangeRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One exchange, by content: ``digest`` chains over everything before it.

    Attributes:
        origin_id: the origin it belongs to.
        index: its place in the origin, from 0.
        digest: hex SHA-256 of the chain up to and including it.
    """

    origin_id: str
    index: int
    digest: str


class RequestRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """All that a model call is given: an origin and an exact prefix of its exchanges (R75).

    Attributes:
        origin_id: the origin.
        exchanges: length of the prefix.
        digest: the chain's digest there, so that another prefix cannot stand in for it.
    """

    origin_id: str
    exchanges: int
    digest: str


class CallBasis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What an origin is of that is no agent's: one model call of a runner.

    Attributes:
        parent: the run, or the runner's request, that it was made for.
        stage_id: the host's word for where it was made.
        transport: id of the transport that asked for a value. route: how it asked.
        model_id: which of several named models was asked first; None where there is one.
        origins: of the turns of a conversation that it was given to read, to summarise them.
    """

    parent: str
    stage_id: str
    transport: str
    route: str
    model_id: str | None = None
    origins: tuple[str, ...] = ()


class _Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="fact"):
    run_id: str
    version: Literal[2] = 2


class OriginOpened(_Fact, frozen=True, tag="origin_opened"):
    """A run began: its fixed origin (R70), with a unique id and a content digest.

    Attributes:
        digest: over messages, options, tools, ``continues`` and, where there is one, ``context``;
            equal content in two runs has equal digests and stays two origins.
        continues: the exchange this user turn follows, None for the first turn.
        messages: this turn's own messages; leading system messages replace those before. Those of
            an agent's run are its instructions, what the host brought as said before, and the input, one
            user message; a model call of a runner may say anything.
        brought: how many of an agent's messages, just before the last, the host brought as said before.
        tools: the visible catalogue; no callable, endpoint or permission (R73).
        catalogue_digest: digest of the executable tool set, policy version included.
        input_digest: over what the host asked for, so that a repeated start is recognised; None
            where the host gave the run no id to repeat.
        checkpoint: whether the host asked for recovery points.
        call: the model call that the run is; None for a run of an agent. ``agent`` is its stage then.
        parent: the execution of a tool, or whatever else, that an agent runs for as a child; None for nobody.
        context: which earlier turns the requests of this run do not hold, and what stands in their
            place; None where they hold all. Later turns continue the same exchanges whatever it is.
    """

    origin_id: str
    digest: str
    conversation: str | None
    continues: ExchangeRef | None
    messages: tuple[Message, ...]
    options: ModelOptions
    tools: tuple[FunctionSpec, ...]
    catalogue_digest: str
    input_digest: str | None
    agent: str
    at_ms: int
    checkpoint: bool = False
    call: CallBasis | None = None
    context: ContextCut | None = None
    parent: str | None = None
    brought: int = 0

    @property
    def instructions(self) -> tuple[Message, ...]:
        """Of an agent's run, the messages before those that the host brought and the input."""
        return self.messages[: max(0, len(self.messages) - 1 - self.brought)]


class SendStarted(_Fact, frozen=True, tag="send_started"):
    """One request is about to leave. Stored before its first byte does."""

    attempt_id: str
    request: RequestRef
    call_sequence: int
    model: str
    at_ms: int


class SendEnded(_Fact, frozen=True, tag="send_ended"):
    """What became of an attempt.

    Attributes:
        outcome: ``replied``; ``failed`` with a typed error; ``abandoned`` when its caller ended.
        at_ms: when that was recorded.
        code: the error's code, when not replied.
        may_have_been_processed: whether the server may have worked on it.
        usage: tokens as reported; None is unknown, never zero.
        author: who settled an attempt that nobody knows the outcome of; None where it is reported.
        status: the HTTP status that answered in place of a stream; None where none did.
        retry_after: seconds to wait, as the server asked with it; None where it did not.
        stream_refused: whether the provider refused the stream (`StreamRefused`), and ``code`` says why; False
            where the record did not tell.
        previewed: of an attempt that brought no reply, whether something of it had been shown, or handed on
            to be; None where it was replied or settled, or the record did not tell.
    """

    attempt_id: str
    outcome: Literal["replied", "failed", "abandoned"]
    at_ms: int | None
    code: str | None = None
    may_have_been_processed: bool = True
    usage: Usage | None = None
    author: str | None = None
    status: int | None = None
    retry_after: float | None = None
    stream_refused: bool = False
    previewed: bool | None = None


class ReplyTaken(_Fact, frozen=True, tag="reply_taken"):
    """A checked reply, taken in by the attempt that asked for it."""

    origin_id: str
    index: int
    attempt_id: str
    reply: ModelReply


class SlotMoved(_Fact, frozen=True, tag="slot_moved"):
    """One step of one slot (see `slots`).

    Attributes:
        at_ms: when it was recorded.
        effect_id: identity of the execution, stable over repeated runs; None where nothing ran.
        attempt: number of the execution, from 1; 0 where nothing ran.
        feedback: what the model reads; closes the slot.
        code: why, when not ``done``; of a call that waits what for, and of a decision about it which.
        author: who settled an unknown outcome: a host's word, or ``recovery:<tool>`` for a lookup; or the
            host that decided about a call that waited. None where it is reported.
        converted: of a claim, which arguments are given to the tool in another JSON type than the model
            wrote (`ToolPolicy.coerce`), as ``$.count: string to integer``; up to 16 lines of up to 200
            characters. The call itself keeps the text as it was written.
    """

    origin_id: str
    exchange: int
    position: int
    state: SlotState
    at_ms: int | None
    effect_id: str | None = None
    attempt: int = 0
    feedback: ToolFeedback | None = None
    code: str | None = None
    author: str | None = None
    converted: tuple[str, ...] = ()


class OutputKept(_Fact, frozen=True, tag="output_kept"):
    """The full text of an output of which the call's feedback holds the beginning; stored with that.

    No digest covers it, for no model read it.

    Attributes:
        text: all of it. size: its UTF-8 bytes, as the feedback says.
    """

    origin_id: str
    exchange: int
    position: int
    text: str
    size: int
    at_ms: int


class RerunAllowed(_Fact, frozen=True, tag="rerun_allowed"):
    """A host, or a lookup, allowed one more execution of an unknown call. Used up by the next start."""

    origin_id: str
    exchange: int
    position: int
    author: str
    at_ms: int | None


class Steered(_Fact, frozen=True, tag="steered"):
    """A user said more while the run went on; `steers` has where it stands.

    ``author`` is who said it, None where nobody was named.
    """

    message: UserMessage
    at_ms: int
    author: str | None = None


class StopAsked(_Fact, frozen=True, tag="stop_asked"):
    """The run shall end after the exchange under way; no other model call begins.

    ``author`` is who asked for it, None where nobody was named.
    """

    at_ms: int
    author: str | None = None


class RunClosed(_Fact, frozen=True, tag="run_closed"):
    """The run is over. ``reason`` is a finish word, a limit's name or an error's code."""

    outcome: RunOutcome
    reason: str | None
    at_ms: int


class ConversationBranched(_Fact, frozen=True, tag="conversation_branched"):
    """A conversation began at an exchange of another one, which it holds by reference.

    ``run_id`` is an id of its own; nothing runs under it.

    Attributes:
        conversation: the new one. source: the one the exchange is in.
        continues: the exchange that the new one goes on from.
    """

    conversation: str
    source: str
    continues: ExchangeRef
    at_ms: int

    @property
    def agent(self) -> str:
        """No agent ran."""
        return ""

    @property
    def outcome(self) -> str:
        """What a medium lists it as."""
        return "branched"


class RunRedacted(_Fact, frozen=True, tag="run_redacted"):
    """All that is left of an ended run whose messages, replies, calls and feedback were removed.

    The digests stay, so that what follows the run is still checked against it.

    Attributes:
        digests: of its origin, then of the chain after each of its exchanges.
        parent: as of its origin.
        at_ms, ended_at_ms, redacted_at_ms: when it was opened, ended and redacted.
        author: who removed the texts.
    """

    origin_id: str
    digests: tuple[str, ...]
    conversation: str | None
    continues: ExchangeRef | None
    catalogue_digest: str
    input_digest: str | None
    agent: str
    at_ms: int
    outcome: RunOutcome
    reason: str | None
    ended_at_ms: int
    model_calls: int
    tool_calls: int
    usage: Usage | None
    author: str
    redacted_at_ms: int
    parent: str | None = None


Fact = (
    OriginOpened
    | SendStarted
    | SendEnded
    | ReplyTaken
    | SlotMoved
    | OutputKept
    | RerunAllowed
    | Steered
    | StopAsked
    | RunClosed
    | ConversationBranched
    | RunRedacted
)
