"""One attempt: a checked request, one send, one checked reply.

reserve in the ledger -> store the claim -> send once -> store the outcome -> publish it.
Nothing here repeats a send, and nothing of a failed one reaches a fact but that it failed.
"""

from __future__ import annotations

import sys

from ..errors import AgentLoopError, LimitExceeded, StreamRefused
from ..events import ModelParsed, ModelStart, ReasoningPreview, RequestRejected, TextPreview
from ..exchange import RequestRef
from ..messages import ModelReply, ModelRequest, Usage
from ..persistence import Step
from ..wire.deltas import ReasoningDelta, TextDelta
from .scope import Scope, deliver_cancel

__all__ = ["Rejected", "measure", "send"]

_WIRE_SLACK = 128 * 1024
"""A request is no longer on the wire than twice its canonical size and this; only one that may be near its
ceiling is encoded to be measured, and then once more to be sent."""


class Rejected(Exception):
    """A limit of the run ended the model call: nothing was sent, or the reply was too large to take.

    ``error`` says which limit.
    """

    def __init__(self, error: LimitExceeded) -> None:
        super().__init__(error)
        self.error = error


async def send(scope: Scope) -> ModelReply:
    """Make the next model call of the run; return its reply, which is a stored fact then.

    Raises:
        Rejected: a budget or a size limit refused it before anything left, or the reply is over
            the run's ``reply_bytes``.
        StreamRefused, ProviderError: the attempt failed; its previews are retracted.
        PersistenceError: the store stopped.
        asyncio.CancelledError: the attempt is recorded as abandoned, its usage unknown.
        Exception: what a sink raised.
    """
    began = scope.clock()
    ref = scope.store.book.reference(scope.turn)
    try:
        request = _preflight(scope, ref)
        scope.ledger.debit("model_calls")
    except LimitExceeded as error:
        _tell_rejected(scope, error)
        raise Rejected(error) from None
    attempt_id = scope.new_id()
    cancelled = await scope.commit(_claim(scope, ref, attempt_id))
    call = scope.turn.model_calls
    attempt = _Attempt(scope, attempt_id)
    try:
        await scope.emitter.output(
            ModelStart,
            attempt_id,
            attempt_id=attempt_id,
            call_sequence=call,
            model=scope.provider.model,
            dialect=scope.provider.dialect.name,
        )
        if cancelled:
            await deliver_cancel()
        reply = await attempt.run(request)
        await scope.commit(_intake(scope, attempt_id, reply))
    except BaseException as error:
        await _fail(scope, attempt, call, error, began)
        limit = _limit_of(scope, attempt, error)
        if limit is not None:
            raise Rejected(limit) from error
        raise
    await scope.emitter.end(
        attempt_id,
        attempt_id=attempt_id,
        call_sequence=call,
        status="success",
        retracted=False,
        usage=reply.usage,
        duration_ms=_ms(scope, began),
    )
    return reply


def _claim(scope: Scope, ref: RequestRef, attempt_id: str) -> Step:
    # Steps are made outside of `send`: a closure would turn what `send` keeps while it waits into cells.
    return lambda book: book.begin_send(ref, attempt_id=attempt_id, model=scope.provider.model, at_ms=scope.now_ms())


def _intake(scope: Scope, attempt_id: str, reply: ModelReply) -> Step:
    return lambda book: book.intake(scope.receipt(attempt_id), reply, reserve=scope.limits.feedback_bytes)


def _preflight(scope: Scope, ref: RequestRef) -> ModelRequest:
    """Check every limit that can be checked before the request leaves (R102, R103)."""
    limits, turn = scope.limits, scope.turn
    scope.ledger.check("model_calls")
    scope.ledger.check("tokens")
    collection = turn.size - turn.origin_size
    if collection > limits.collection_bytes:
        raise LimitExceeded("collection_bytes", limits.collection_bytes, collection)
    request = scope.store.book.request(ref, max_bytes=limits.request_bytes)
    wire, own = limits.max_wire_request_bytes, scope.provider.max_request_bytes
    if _measured(scope, request, turn.request_size):
        if wire is not None and scope.sent_bytes > wire:
            raise LimitExceeded("max_wire_request_bytes", wire, scope.sent_bytes)
        if own is not None and scope.sent_bytes > own:
            raise LimitExceeded("max_request_bytes", own, scope.sent_bytes)
    return request


def measure(scope: Scope) -> None:
    """Set ``scope.sent_bytes`` to what the newest request was, which this scope may not have sent."""
    turn = scope.turn
    request = scope.store.book.request(scope.store.book.reference(turn), max_bytes=sys.maxsize)
    answering = sum(entry.size for entry in turn.entries[len(turn.exchanges) :])
    _measured(scope, request, turn.request_size - answering)


def _measured(scope: Scope, request: ModelRequest, size: int) -> bool:
    """Bound the request on the wire, and measure it where it may be near a ceiling; say whether it was measured."""
    limits, own = scope.limits, scope.provider.max_request_bytes
    scope.sent_bytes = bound = 2 * size + _WIRE_SLACK
    near = own is not None and bound + limits.reply_bytes > own
    if limits.max_wire_request_bytes is None and not near:
        return False
    scope.sent_bytes = scope.provider.inspect_request(request).body_bytes
    return True


def _limit_of(scope: Scope, attempt: _Attempt, error: BaseException) -> LimitExceeded | None:
    """The limit of the run that an error of the attempt stands for."""
    if isinstance(error, LimitExceeded):  # the provider's own, before anything left
        return None if attempt.opened else error
    if isinstance(error, StreamRefused) and error.limit == "max_reply_bytes":
        allowed = scope.limits.reply_bytes
        return LimitExceeded("reply_bytes", allowed, allowed + 1)
    return None


class _Attempt:
    """The send itself, and what of it was shown."""

    __slots__ = ("_scope", "attempt_id", "opened", "sending", "shown", "usage")

    def __init__(self, scope: Scope, attempt_id: str) -> None:
        self._scope, self.attempt_id = scope, attempt_id
        self.sending = False
        self.opened = False
        self.shown = False
        self.usage: Usage | None = None

    async def run(self, request: ModelRequest) -> ModelReply:
        scope, attempt_id = self._scope, self.attempt_id
        emitter, limit = scope.emitter, scope.limits.reply_bytes
        self.sending = True
        async with scope.provider.stream(request, attempt_id=attempt_id, max_reply_bytes=limit) as stream:
            self.opened = True
            async for delta in stream:
                if type(delta) is TextDelta:
                    self.shown = True
                    await emitter.output(
                        TextPreview, attempt_id, attempt_id=attempt_id, offset=delta.offset, text=delta.text
                    )
                elif scope.reasoning and type(delta) is ReasoningDelta:
                    self.shown = True
                    await emitter.output(
                        ReasoningPreview, attempt_id, attempt_id=attempt_id, offset=delta.offset, text=delta.text
                    )
            reply = await stream.reply()
        self.usage = reply.usage
        if reply.usage is not None:  # spent, whatever becomes of the reply
            scope.ledger.charge("tokens", reply.usage.total_tokens)
        await emitter.output(
            ModelParsed,
            attempt_id,
            attempt_id=attempt_id,
            text_chars=len(reply.text),
            calls=len(reply.calls),
            termination=reply.termination,
        )
        return reply


async def _fail(scope: Scope, attempt: _Attempt, call: int, error: BaseException, began: float) -> None:
    """Record that the attempt ended without a reply, and retract what was shown of it.

    One that is cut off in a run that is paused stays without an end, unless nothing had left: the
    run goes on later, and whether to ask again is for the host to say.
    """
    known = isinstance(error, AgentLoopError)
    paused = not isinstance(error, Exception) and scope.paused()
    if known:
        code = error.code  # type: ignore[attr-defined]
    elif paused:
        code = "paused"
    else:
        code = "delivery" if isinstance(error, Exception) else "cancelled"
    processed = attempt.sending
    if known and not attempt.opened:
        processed = error.may_have_been_processed  # type: ignore[attr-defined]
    receipt = scope.receipt(attempt.attempt_id)
    try:
        if scope.store.fault is None and not (paused and processed):  # a stopped store is settled by reloading it
            await scope.commit(
                lambda book: book.fail_send(
                    receipt,
                    abandoned=not known,
                    code=code,
                    may_have_been_processed=processed,
                    usage=attempt.usage,
                )
            )
    finally:
        await scope.emitter.end(
            attempt.attempt_id,
            attempt_id=attempt.attempt_id,
            call_sequence=call,
            status="error" if isinstance(error, Exception) else "cancelled",
            retracted=attempt.shown,
            code=code,
            usage=attempt.usage,
            duration_ms=_ms(scope, began),
        )


def _tell_rejected(scope: Scope, error: LimitExceeded) -> None:
    scope.emitter.process(RequestRejected, code=error.code, limit=error.limit, allowed=error.allowed, got=error.got)


def _ms(scope: Scope, began: float) -> int:
    return int((scope.clock() - began) * 1000)
