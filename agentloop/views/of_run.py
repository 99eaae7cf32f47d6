"""From the facts of one run to what a person looks at."""

from __future__ import annotations

import msgspec

from ..errors import RestoreError
from ..exchange import (
    ConversationBranched,
    ExchangeRef,
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
    checkpoint_in,
)
from ..messages import Message, ModelExchange, SystemMessage, TextContent, TextPart, UserMessage
from ..persistence import RunRow
from ..persistence.records import encode_record
from .values import AttemptView, CallView, MessageView, ReplyView, RunView, SteerView

__all__ = ["run_view"]


def run_view(row: RunRow, facts: list[Fact]) -> RunView:
    """One run from its facts.

    Raises:
        RestoreError: they do not fit together.
    """
    view = RunView(run_id=row.run_id, conversation=row.conversation, agent=row.agent, opened_at_ms=row.opened_at_ms)
    if row.lease is not None:
        view.owner, view.owned_for_seconds = row.lease.owner, round(row.lease.seconds_left, 3)
    for at, fact in enumerate(facts):
        view.facts += 1
        view.bytes += len(encode_record(fact))
        try:
            _take(view, fact)
        except (LookupError, StopIteration):
            rule = "expected a fact that fits those before it"
            raise RestoreError("bad_record", f"run {row.run_id!r}, fact {at}", rule) from None
    if view.kind != "branch":
        try:
            view.checkpoint = checkpoint_in(facts)
        except LookupError:
            raise RestoreError("bad_record", f"run {row.run_id!r}", "expected facts that fit together") from None
    _time(view)
    if view.ended_at_ms is None:
        view.state = "unfinished" if row.lease is None else "running"
        view.unsettled = 0 if row.lease is not None else _unsettled(view)
        view.waiting = sum(call.state == "waiting" and not call.waits_for_child for call in view.calls)
    return view


def _take(view: RunView, fact: Fact) -> None:
    match fact:
        case OriginOpened():
            view.continues, view.recovery_points = _place(fact.continues), fact.checkpoint
            view.call = fact.call
            view.messages = [_message(message) for message in fact.messages]
            view.tools = [spec.name for spec in fact.tools]
            if fact.context is not None:
                cut = fact.context
                view.left_out, view.summarised = sum(one.count for one in cut.dropped), len(cut.summarised)
                view.summaries = [one.ref for one in cut.summaries]
        case SendStarted():
            view.model_calls += 1
            view.attempts.append(
                AttemptView(
                    attempt_id=fact.attempt_id,
                    number=fact.call_sequence,
                    model=fact.model,
                    started_at_ms=fact.at_ms,
                )
            )
        case SendEnded():
            attempt = next(item for item in view.attempts if item.attempt_id == fact.attempt_id)
            attempt.state, attempt.code, attempt.author = fact.outcome, fact.code, fact.author
            attempt.may_have_been_processed, attempt.usage = fact.may_have_been_processed, fact.usage
            attempt.status, attempt.retry_after = fact.status, fact.retry_after
            attempt.ended_at_ms = fact.at_ms
            if fact.author is None:
                attempt.duration_ms = _between(attempt.started_at_ms, fact.at_ms)
            if fact.usage is not None:
                view.usage = fact.usage if view.usage is None else view.usage + fact.usage
        case ReplyTaken():
            next(item for item in view.attempts if item.attempt_id == fact.attempt_id).reply = _reply(fact)
        case SlotMoved():
            _move(view, fact)
        case OutputKept():
            _call(view, fact.exchange, fact.position).kept_bytes = fact.size
        case RerunAllowed():
            call = _call(view, fact.exchange, fact.position)
            call.rerun, call.author = True, fact.author
        case Steered() | StopAsked():
            message = _message(fact.message) if isinstance(fact, Steered) else None
            view.steers.append(
                SteerView(message=message, model_calls=view.model_calls, author=fact.author, at_ms=fact.at_ms)
            )
        case RunClosed():
            view.state, view.reason, view.ended_at_ms = fact.outcome, fact.reason, fact.at_ms
        case ConversationBranched():
            view.kind, view.state, view.source = "branch", "branched", fact.source
            view.continues, view.ended_at_ms = _place(fact.continues), fact.at_ms
        case RunRedacted():
            view.kind, view.state, view.reason, view.author = "redacted", fact.outcome, fact.reason, fact.author
            view.continues, view.ended_at_ms = _place(fact.continues), fact.ended_at_ms
            view.model_calls, view.tool_calls, view.usage = fact.model_calls, fact.tool_calls, fact.usage


def _move(view: RunView, fact: SlotMoved) -> None:
    call = _call(view, fact.exchange, fact.position)
    if fact.state == "open" and call.state == "started":  # the claim was given back: nothing ran
        call.state, call.effect_id, call.executions, call.started_at_ms = "open", None, 0, None
        call.converted = ()
        view.tool_calls -= 1
        return
    if call.state == "waiting" and fact.author is not None:
        call.decided, call.decided_by = fact.code, fact.author
    else:
        call.author = fact.author or call.author
    call.state, call.code = fact.state, fact.code
    call.effect_id = fact.effect_id or call.effect_id
    if fact.state == "started":
        view.tool_calls += fact.attempt - call.executions  # none for one that goes on after it waited for its child
        call.executions, call.rerun, call.started_at_ms = fact.attempt, False, fact.at_ms
        call.converted = fact.converted
    if fact.feedback is not None:
        call.feedback = "\n".join(item.text for item in fact.feedback.content if type(item) is TextContent)
        call.feedback_bytes, call.feedback_status = len(call.feedback.encode()), fact.feedback.status
        call.ended_at_ms = fact.at_ms
        if fact.author is None:
            call.duration_ms = _between(call.started_at_ms, fact.at_ms)


def _call(view: RunView, exchange: int, position: int) -> CallView:
    return next(call for call in view.calls if (call.exchange, call.position) == (exchange, position))


def _reply(fact: ReplyTaken) -> ReplyView:
    calls = [
        CallView(
            exchange=fact.index,
            position=position,
            tool=call.name,
            call_id=call.id,
            arguments=call.arguments.text,
            argument_bytes=len(call.arguments.text.encode()),
        )
        for position, call in enumerate(fact.reply.calls)
    ]
    return ReplyView(
        exchange=fact.index,
        text=fact.reply.text,
        refusal=fact.reply.refusal,
        finish=fact.reply.termination.reason,
        bytes=len(msgspec.json.encode(fact.reply)),
        calls=calls,
    )


def _message(message: Message) -> MessageView:
    if type(message) is SystemMessage:
        return MessageView(role="system", text=message.content, images=0, bytes=len(message.content.encode()))
    if type(message) is ModelExchange:
        return MessageView(role="assistant", text=message.reply.text, images=0, bytes=len(message.reply.text.encode()))
    assert type(message) is UserMessage, "a message is one of three"
    content = message.content
    parts = (TextPart(text=content),) if type(content) is str else content
    text = "\n".join(part.text for part in parts if type(part) is TextPart)
    images = sum(type(part) is not TextPart for part in parts)
    return MessageView(role="user", text=text, images=images, bytes=len(text.encode()))


def _place(ref: ExchangeRef | None) -> str | None:
    return None if ref is None else f"{ref.origin_id}.{ref.index}"


def _time(view: RunView) -> None:
    """The times of the run, and of its steps."""
    starts = [attempt.started_at_ms for attempt in view.attempts]
    ends: list[int | None] = [*starts[1:], view.ended_at_ms]
    for attempt, end in zip(view.attempts, ends, strict=False):
        attempt.step_ms = _between(attempt.started_at_ms, end)
    view.duration_ms = _between(view.opened_at_ms, view.ended_at_ms)


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None or end < start else end - start


def _unsettled(view: RunView) -> int:
    sends = sum(attempt.state == "open" for attempt in view.attempts)
    return sends + sum(call.feedback is None and call.state in ("started", "unknown") for call in view.calls)
