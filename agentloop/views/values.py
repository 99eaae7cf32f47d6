"""The values: conversations, runs, attempts, calls. JSON is made of them as they are.

The time of a send or a call is that from its claim to its recorded end. It is None where a record told
none (version 1 did not), where a host settled it long after, and where a clock was set back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..exchange import CHILD, CallBasis, Checkpoint
from ..messages import Usage

__all__ = [
    "AttemptView",
    "CallView",
    "ConversationView",
    "MessageView",
    "ReplyView",
    "RunView",
    "SteerView",
    "StoreView",
    "View",
]


class View(msgspec.Struct, kw_only=True):
    """Base of the values here, filled in as facts are read."""


class MessageView(View):
    """What a turn's request begins with: a host's words, or an earlier reply. ``bytes`` is its text's size.

    ``images`` counts those it came with.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    images: int
    bytes: int


class CallView(View):
    """One tool call of a reply, and its slot.

    Attributes:
        exchange, position: its place. executions: how often its tool was started.
        state: of the slot. code: why, when not done, or what it waits for. author: who settled it.
        decided: what a host decided while it waited, None where it did not. decided_by: who that was.
        rerun: whether a host allowed one more execution that has not begun.
        converted: what of the arguments its tool was given in another JSON type, at its newest execution.
        feedback: what the model reads, None while there is none.
        kept_bytes: of the full text of an output that was cut, where that is kept; None where none is.
        started_at_ms: when its newest execution was claimed, None where nothing ran.
        ended_at_ms: when its feedback was recorded. duration_ms: between the two.
    """

    exchange: int
    position: int
    tool: str
    call_id: str
    arguments: str
    argument_bytes: int
    state: str = "open"
    executions: int = 0
    effect_id: str | None = None
    code: str | None = None
    author: str | None = None
    decided: str | None = None
    decided_by: str | None = None
    rerun: bool = False
    converted: tuple[str, ...] = ()
    feedback: str | None = None
    feedback_bytes: int = 0
    feedback_status: str | None = None
    kept_bytes: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    duration_ms: int | None = None

    @property
    def waits_for_child(self) -> bool:
        """Whether it waits for a run that an agent does for it: nobody decides about it itself."""
        return self.state == "waiting" and self.code == CHILD


class ReplyView(View):
    """A reply that was taken in. ``bytes`` is its stored size; ``finish`` the provider's word."""

    exchange: int
    text: str
    refusal: str | None
    finish: str | None
    bytes: int
    calls: list[CallView]


class AttemptView(View):
    """One model call.

    Attributes:
        state: ``replied``, ``failed``, ``abandoned``, or ``open`` while nobody knows its end.
        status: the HTTP status that answered in place of a stream. retry_after: seconds to wait, as
            the server asked with it. None where it did not.
        ended_at_ms: when its end was recorded. duration_ms: from its claim to that.
        step_ms: to the next attempt or the end of the run, so with the tools that its reply asked for; None
            while there is neither.
    """

    attempt_id: str
    number: int
    model: str
    started_at_ms: int
    state: str = "open"
    code: str | None = None
    may_have_been_processed: bool = True
    status: int | None = None
    retry_after: float | None = None
    author: str | None = None
    usage: Usage | None = None
    ended_at_ms: int | None = None
    duration_ms: int | None = None
    step_ms: int | None = None
    reply: ReplyView | None = None


class SteerView(View):
    """What a user said to a run that went on; or that it shall stop, where there is no ``message``.

    Attributes:
        model_calls: how many had begun when it was stored.
        author: who said it, None where nobody was named. at_ms: when it was stored.
    """

    message: MessageView | None
    model_calls: int
    author: str | None
    at_ms: int


class RunView(View):
    """One run.

    Attributes:
        kind: ``run``; ``branch``: where a conversation begins at another's exchange; ``redacted``:
            a run whose texts were removed.
        state: how it ended; ``running`` while somebody owns it, ``unfinished`` where nobody does.
        recovery_points: whether it was begun with ``checkpoint=True``; None where no record tells.
        checkpoint: where it is, with the evidence; None for a branch.
        call: the model call of a runner that it is, None for a run of an agent; ``agent`` is its stage then.
        continues: the exchange that it follows, as "origin.index".
        source: for a branch, the conversation that it comes from.
        unsettled: sends and calls of an unfinished run of which nobody knows what became.
        waiting: calls of an unfinished run that wait for a host.
        model_calls, tool_calls: how many were started. bytes: of all its records, in the form of today.
        author: who redacted it.
        steers: what its user said while it went on, and that it shall stop, in order.
        left_out, summarised: earlier turns that its requests do not hold, and those that summaries
            stand for. summaries: the calls that made these, oldest first; None where a host wrote one.
    """

    run_id: str
    kind: Literal["run", "branch", "redacted"] = "run"
    conversation: str | None = None
    agent: str = ""
    call: CallBasis | None = None
    state: str = "unfinished"
    reason: str | None = None
    recovery_points: bool | None = None
    checkpoint: Checkpoint | None = None
    opened_at_ms: int = 0
    ended_at_ms: int | None = None
    duration_ms: int | None = None
    owner: str | None = None
    owned_for_seconds: float | None = None
    continues: str | None = None
    source: str | None = None
    author: str | None = None
    left_out: int = 0
    summarised: int = 0
    summaries: list[str | None] = []
    unsettled: int = 0
    waiting: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    usage: Usage | None = None
    facts: int = 0
    bytes: int = 0
    tools: list[str] = []
    messages: list[MessageView] = []
    attempts: list[AttemptView] = []
    steers: list[SteerView] = []

    def steers_after(self, model_calls: int) -> list[SteerView]:
        """Those that were stored when so many model calls had begun."""
        return [steer for steer in self.steers if steer.model_calls == model_calls]

    @property
    def calls(self) -> list[CallView]:
        """All tool calls, in order."""
        return [call for attempt in self.attempts if attempt.reply for call in attempt.reply.calls]


class ConversationView(View):
    """One conversation. ``live`` is the run on it, ``source`` what it branched off from."""

    name: str
    runs: list[str]
    live: str | None
    source: str | None


class StoreView(View):
    """A store, or one run of it. Runs are in the order in which they were opened."""

    store: str
    conversations: list[ConversationView]
    runs: list[RunView]
