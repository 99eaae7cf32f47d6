"""A turn of a conversation as a client sees it: `TurnView`, made of what is stored. JSON is made of it as it is.

It holds no instructions, no digests and nothing of other users; ids are the client's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ...agent import Agent
from ...decisions import WaitingCall
from ...messages import Usage
from ...unsettled import Unsettled
from ...views import AttemptView, CallView, RunView

__all__ = [
    "AttemptOf",
    "Budget",
    "CallOf",
    "Said",
    "State",
    "TurnView",
    "UnsettledOf",
    "Used",
    "WaitingOf",
    "turn_view",
    "unsettled_item",
]

State = Literal["running", "elsewhere", "waiting", "unsettled", "paused", "ended"]
"""``running``: it goes on here. ``elsewhere``: another process owns it. ``waiting``: calls of it wait for a person.
``unsettled``: nobody knows what became of an effect, and a person chooses. ``paused``: it was left unfinished, and may
go on. ``ended``: see its outcome."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the person said.

    Attributes:
        images: how many came with it. after: model calls that had begun by then; 0 for what began the turn.
        author: who said it, where that was named. at_ms: when it was stored.
    """

    text: str
    images: int
    after: int
    author: str | None
    at_ms: int


class CallOf(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call; fields as of `agentloop.views.CallView`.

    Attributes:
        output: what the model reads, None while there is none. status: ``ok`` or ``error`` of that.
    """

    exchange: int
    position: int
    tool: str
    call_id: str
    arguments: str
    state: str
    code: str | None
    executions: int
    output: str | None
    status: str | None
    kept_bytes: int | None
    converted: tuple[str, ...]
    duration_ms: int | None


class AttemptOf(msgspec.Struct, frozen=True, kw_only=True):
    """A model call, with its reply where it brought one; fields as of `agentloop.views.AttemptView`."""

    attempt_id: str
    state: str
    code: str | None
    may_have_been_processed: bool
    started_at_ms: int
    exchange: int | None
    text: str
    refusal: str | None
    finish: str | None
    usage: Usage | None
    calls: tuple[CallOf, ...]


class WaitingOf(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person.

    Attributes:
        ref: what a decision names it by. below: whether it is of a run that an agent does for a call of the turn.
    """

    ref: str
    kind: str
    agent: str
    tool: str
    arguments: str
    exchange: int
    position: int
    below: bool


class UnsettledOf(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of which nobody knows what became of it.

    Attributes:
        id: of a call its place, such as ``0.1``, after that of the call whose run it is in, where it is below one, and
            before the number of the execution from the second one on: ``0.1#2``; of a send the attempt's id. So what
            is said of one effect is never taken for what became of a later one.
        kind: ``send`` or ``call``.
    """

    id: str
    kind: Literal["send", "call"]
    attempt_id: str | None = None
    exchange: int | None = None
    position: int | None = None
    tool: str | None = None
    arguments: str | None = None


class Used(msgspec.Struct, frozen=True):
    """How much of a limit is used; ``limit`` None is none."""

    used: int
    limit: int | None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What of the limits of a turn is used."""

    model_calls: Used
    tool_calls: Used
    tokens: Used


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn.

    Attributes:
        id, conversation: as the client named them. agent: the name of whose turn it is.
        state: ``running``: it goes on here. ``elsewhere``: another process owns it. ``waiting``: calls wait for a
            person. ``unsettled``: nobody knows what became of an effect. ``paused``: it was left unfinished, and may
            go on. ``ended``: see its outcome.
        outcome: how it ended, as a run does, or ``failed`` or ``cancelled``; None before that.
        reason: the word that goes with it.
        opened_at_ms, ended_at_ms: milliseconds since 1970; None where it has not ended.
        said: what the person said, the first of it at its beginning. attempts: its model calls, oldest first.
        waiting: calls to decide about, in the state ``waiting``. unsettled: what to settle, in that state.
        usage: tokens of all model calls, None where none were reported.
        budget: what of the agent's limits is used; a limit is None where there is none.
        seconds_left: of the lease of another process, in the state ``elsewhere``.
        redacted: its texts were removed.
    """

    id: str
    conversation: str
    agent: str
    state: State
    outcome: str | None
    reason: str | None
    opened_at_ms: int
    ended_at_ms: int | None
    said: tuple[Said, ...]
    attempts: tuple[AttemptOf, ...]
    waiting: tuple[WaitingOf, ...]
    unsettled: tuple[UnsettledOf, ...]
    usage: Usage | None
    budget: Budget
    seconds_left: float | None
    redacted: bool


def turn_view(
    view: RunView,
    *,
    turn: str,
    conversation: str,
    agent: Agent[Any] | None,
    live: bool,
    waiting: Sequence[WaitingCall] = (),
    unsettled: Sequence[Unsettled] = (),
) -> TurnView:
    """A run as a turn.

    Args:
        turn, conversation: the client's ids. agent: whose limits the budget has; None where it is served no more.
        live: whether it goes on here. waiting, unsettled: what a person is asked about.
    """
    ended = view.kind == "redacted" or view.state not in ("running", "unfinished")
    state: State
    if ended:
        state = "ended"
    elif live:
        state = "running"
    elif view.state == "running":
        state = "elsewhere"
    elif unsettled:
        state = "unsettled"
    else:
        state = "waiting" if waiting else "paused"
    limits = None if agent is None else agent.limits
    tokens = 0 if view.usage is None else view.usage.total_tokens
    return TurnView(
        id=turn,
        conversation=conversation,
        agent=view.agent,
        state=state,
        outcome=view.state if ended else None,
        reason=view.reason,
        opened_at_ms=view.opened_at_ms,
        ended_at_ms=view.ended_at_ms,
        said=tuple(_said(view)),
        attempts=tuple(map(_attempt, view.attempts)),
        waiting=tuple(_waiting(item, view.run_id) for item in waiting) if state == "waiting" else (),
        unsettled=tuple(unsettled_item(item, view.run_id) for item in unsettled) if state == "unsettled" else (),
        usage=view.usage,
        budget=Budget(
            model_calls=Used(view.model_calls, None if limits is None else limits.max_model_calls),
            tool_calls=Used(view.tool_calls, None if limits is None else limits.max_tool_calls),
            tokens=Used(tokens, None if limits is None else limits.max_tokens),
        ),
        seconds_left=view.owned_for_seconds if state == "elsewhere" else None,
        redacted=view.kind == "redacted",
    )


def unsettled_item(item: Unsettled, run_id: str) -> UnsettledOf:
    """An effect that a person has to settle, of a run or of one below it."""
    if item.kind == "send":
        return UnsettledOf(id=item.effect_id, kind="send", attempt_id=item.effect_id)
    path = item.ref.removeprefix(run_id).removeprefix("/")
    place = f"{item.exchange}.{item.position}" + (f"#{item.attempt}" if item.attempt > 1 else "")
    return UnsettledOf(
        id=f"{path}/{place}" if path else place,
        kind="call",
        exchange=item.exchange,
        position=item.position,
        tool=item.tool,
        arguments=item.arguments,
    )


def _said(view: RunView) -> Iterable[Said]:
    own = [message for message in view.messages if message.role == "user"]
    for message in own[-1:]:
        yield Said(text=message.text, images=message.images, after=0, author=None, at_ms=view.opened_at_ms)
    for steer in view.steers:
        if steer.message is not None:
            yield Said(
                text=steer.message.text,
                images=steer.message.images,
                after=steer.model_calls,
                author=steer.author,
                at_ms=steer.at_ms,
            )


def _attempt(attempt: AttemptView) -> AttemptOf:
    reply = attempt.reply
    return AttemptOf(
        attempt_id=attempt.attempt_id,
        state=attempt.state,
        code=attempt.code,
        may_have_been_processed=attempt.may_have_been_processed,
        started_at_ms=attempt.started_at_ms,
        exchange=None if reply is None else reply.exchange,
        text="" if reply is None else reply.text,
        refusal=None if reply is None else reply.refusal,
        finish=None if reply is None else reply.finish,
        usage=attempt.usage,
        calls=() if reply is None else tuple(map(_call, reply.calls)),
    )


def _call(call: CallView) -> CallOf:
    return CallOf(
        exchange=call.exchange,
        position=call.position,
        tool=call.tool,
        call_id=call.call_id,
        arguments=call.arguments,
        state=call.state,
        code=call.code,
        executions=call.executions,
        output=call.feedback,
        status=call.feedback_status,
        kept_bytes=call.kept_bytes,
        converted=call.converted,
        duration_ms=call.duration_ms,
    )


def _waiting(item: WaitingCall, run_id: str) -> WaitingOf:
    return WaitingOf(
        ref=item.ref,
        kind=item.kind,
        agent=item.agent,
        tool=item.tool,
        arguments=item.arguments,
        exchange=item.exchange,
        position=item.position,
        below=item.run != run_id,
    )
