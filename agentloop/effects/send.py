"""One attempt: a checked request, one send, one checked reply.

reserve in the ledger -> store the claim -> send once -> store the outcome -> publish it.
Nothing here repeats a send, and nothing of a failed one reaches a fact but that it failed.
"""

from __future__ import annotations

from ..errors import AgentLoopError, LimitExceeded
from ..events import ModelParsed, ModelStart, ReasoningPreview, RequestRejected, TextPreview
from ..exchange import RequestRef
from ..messages import ModelReply, ModelRequest
from ..wire.deltas import ReasoningDelta, TextDelta
from .scope import Scope, settle

__all__ = ["Rejected", "send"]


class Rejected(Exception):
    """A request was refused before it left; nothing was sent. ``error`` says which limit."""

    def __init__(self, error: LimitExceeded) -> None:
        super().__init__(error)
        self.error = error


async def send(scope: Scope) -> ModelReply:
    """Make the next model call of the run; return its reply, which is a stored fact then.

    Raises:
        Rejected: a budget or a size limit refused it before anything left.
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
    await scope.store.commit(
        lambda book: book.begin_send(ref, attempt_id=attempt_id, model=scope.provider.model, at_ms=scope.now_ms())
    )
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
        reply = await attempt.run(request)
        await scope.store.commit(lambda book: book.intake(scope.receipt(attempt_id), reply))
    except BaseException as error:
        await _fail(scope, attempt, call, error, began)
        if isinstance(error, LimitExceeded) and not attempt.opened:
            _tell_rejected(scope, error)
            raise Rejected(error) from None
        raise
    if reply.usage is not None:
        scope.ledger.charge("tokens", reply.usage.total_tokens)
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


def _preflight(scope: Scope, ref: RequestRef) -> ModelRequest:
    """Check every limit that can be checked before the request leaves (R102, R103)."""
    limits, turn = scope.limits, scope.turn
    scope.ledger.check("model_calls")
    scope.ledger.check("tokens")
    collection = turn.size - turn.origin_size
    if collection > limits.collection_bytes:
        raise LimitExceeded("collection_bytes", limits.collection_bytes, collection)
    request = scope.store.book.request(ref, max_bytes=limits.request_bytes)
    wire = limits.max_wire_request_bytes
    if wire is not None:
        size = scope.provider.inspect_request(request).body_bytes
        if size > wire:
            raise LimitExceeded("max_wire_request_bytes", wire, size)
    return request


class _Attempt:
    """The send itself, and what of it was shown."""

    def __init__(self, scope: Scope, attempt_id: str) -> None:
        self._scope, self.attempt_id = scope, attempt_id
        self.opened = False
        self.shown = False

    async def run(self, request: ModelRequest) -> ModelReply:
        scope, attempt_id = self._scope, self.attempt_id
        output, limit = scope.emitter.output, scope.limits.reply_bytes
        async with scope.provider.stream(request, attempt_id=attempt_id, max_reply_bytes=limit) as stream:
            self.opened = True
            async for delta in stream:
                if type(delta) is TextDelta:
                    self.shown = True
                    await output(TextPreview, attempt_id, attempt_id=attempt_id, offset=delta.offset, text=delta.text)
                elif scope.reasoning and type(delta) is ReasoningDelta:
                    self.shown = True
                    await output(
                        ReasoningPreview, attempt_id, attempt_id=attempt_id, offset=delta.offset, text=delta.text
                    )
            reply = await stream.reply()
        await output(
            ModelParsed,
            attempt_id,
            attempt_id=attempt_id,
            text_chars=len(reply.text),
            calls=len(reply.calls),
            termination=reply.termination,
        )
        return reply


async def _fail(scope: Scope, attempt: _Attempt, call: int, error: BaseException, began: float) -> None:
    """Record that the attempt ended without a reply, and retract what was shown of it."""
    known = isinstance(error, AgentLoopError)
    if known:
        code = error.code  # type: ignore[attr-defined]
    else:
        code = "delivery" if isinstance(error, Exception) else "cancelled"
    processed = error.may_have_been_processed if known else True  # type: ignore[attr-defined]
    receipt = scope.receipt(attempt.attempt_id)
    try:
        if scope.store.fault is None:  # a stopped store is settled by reloading it
            await settle(
                scope.store.commit(
                    lambda book: book.fail_send(
                        receipt, abandoned=not known, code=code, may_have_been_processed=processed
                    )
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
            duration_ms=_ms(scope, began),
        )


def _tell_rejected(scope: Scope, error: LimitExceeded) -> None:
    scope.emitter.process(RequestRejected, code=error.code, limit=error.limit, allowed=error.allowed, got=error.got)


def _ms(scope: Scope, began: float) -> int:
    return int((scope.clock() - began) * 1000)
