"""One attempt: a checked request, one send, one checked reply.

reserve in the ledger -> store the claim -> send once -> store the outcome -> publish it.
Nothing here repeats a send, and nothing of a failed one reaches a fact but that it failed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Literal, Self

from ..errors import AgentLoopError, HTTPStatusError, LimitExceeded, ModelPending, StreamRefused
from ..events import ModelParsed, ModelStart, ReasoningPreview, RequestRejected, TextPreview
from ..exchange import Book, Entry, Fact, RequestRef, RunOutcome
from ..limits import SAFE_INTEGER
from ..messages import ModelReply, ModelRequest, Usage
from ..wire.deltas import ReasoningDelta, TextDelta
from .claims import Choose, claim_next, commit_claim
from .collecting import Collecting
from .detached import Patience, PendingSend, Preview, Sends
from .reasons import code_of
from .scope import Scope, deliver_cancel, settle

__all__ = ["Overtaken", "Rejected", "join", "measure", "send"]

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


class Overtaken(Exception):
    """The run was asked to stop just before its request was claimed: nothing was sent."""


async def send(
    scope: Scope, choose: Choose | None = None, *, collecting: Collecting | None = None, began: float | None = None
) -> ModelReply:
    """Make the next model call of the run; return its reply, which is a stored fact then.

    Args:
        collecting: makes a value of the answer, and is all that the run is for: the run is closed with
            the reply. None takes any reply, and the run goes on.
        began: when its preparation began, on the scope's clock; None is now.
        choose: says which of the reply's calls comes next. Its claim is stored with the reply then, and
            is ``scope.claim``; None claims none.

    Raises:
        Rejected: a budget or a size limit refused it before anything left, or the reply is over
            the run's ``reply_bytes``.
        Overtaken: a stop came first; nothing was sent or charged.
        StreamRefused, ProviderError: the attempt failed; its previews are retracted.
        PersistenceError: the store stopped.
        OutputRefused: ``collecting`` refused the answer. LimitExceeded: it is longer than that takes.
        ModelPending: the send goes on by itself; the run waited for it as long as ``scope.patience``, or its
            caller has left.
        asyncio.CancelledError: the attempt is recorded as abandoned, its usage unknown.
        Exception: what a sink raised.
    """
    began = scope.clock() if began is None else began
    ref, room = scope.store.book.reference(scope.turn), scope.limits.reply_bytes if collecting is None else 0
    try:
        scope.ledger.check("model_calls")
        scope.ledger.check("tokens")
        request = _preflight(scope, ref, room=room)
        attempt = _Attempt(scope, scope.new_id(), began, choose=choose, collecting=collecting)
        request, held = await attempt.claim(ref, request, room=room)
    except LimitExceeded as error:
        _tell_rejected(scope, error)
        raise Rejected(error) from None
    async with attempt:
        await attempt.tell_start()
        if held:
            await deliver_cancel()
        if scope.paused():  # nothing has left, and nothing shall that closing would not wait for
            raise asyncio.CancelledError
        if scope.sends is None:
            reply = await attempt.carry(request, attempt.show)
        else:
            reply = await _wait_for(scope, attempt.detach(request, scope.sends), attempt)
            await attempt.tell_parsed(reply)
    return reply


async def join(scope: Scope, pending: PendingSend) -> ModelReply:
    """Wait for a send that an earlier driver of the run has left; its previews are not shown again.

    Raises:
        As `send`.
    """
    attempt = _Attempt(scope, pending.attempt_id, scope.clock(), pending=pending)
    attempt.call = scope.label.before + scope.turn.model_calls
    async with attempt:
        await attempt.tell_start()
        reply = await _wait_for(scope, pending, attempt)
        attempt.charge(reply)
        await attempt.tell_parsed(reply)
    return reply


async def _wait_for(scope: Scope, pending: PendingSend, attempt: _Attempt) -> ModelReply:
    """Show what a detached send brings, until it ends, the local wait is over, or the caller has left.

    Any other cancel, and a sink that fails, cut the send off. Once it claims a call for this run, its end
    is waited for: that is a short write.
    """
    task, patience = pending.task, scope.patience or Patience(None)
    clock = patience.clock()
    try:
        async with clock:
            async for delta in pending.relay:
                await attempt.show(delta)
            await asyncio.wait({task})
    except TimeoutError:
        if not clock.expired():  # a sink's own
            raise
        if pending.claims:
            await asyncio.wait({task})
        elif not task.done():
            raise ModelPending(scope.run_id, pending.attempt_id) from None
    except asyncio.CancelledError:
        if scope.left() and not task.done():
            if pending.claims:  # and the claim is given back
                await settle(_ended(task), last=True)
            raise ModelPending(scope.run_id, pending.attempt_id) from None
        raise
    finally:
        patience.over()
        pending.attended = False
        pending.relay.leave()
    return task.result()


async def _ended(task: asyncio.Task[ModelReply]) -> None:
    await asyncio.wait({task})


def _preflight(scope: Scope, ref: RequestRef, *, room: int) -> ModelRequest:
    """Check every limit that can be checked before the request leaves (R102, R103).

    ``room`` is what the next request of the run is longer by at most; 0 where there is none.
    """
    limits, turn = scope.limits, scope.turn
    collection = turn.size - turn.origin_size
    if collection > limits.collection_bytes:
        raise LimitExceeded("collection_bytes", limits.collection_bytes, collection)
    request = scope.store.book.request(ref, max_bytes=limits.request_bytes)
    wire, own = limits.max_wire_request_bytes, scope.provider.max_request_bytes
    if _measured(scope, request, turn.request_size, room):
        if wire is not None and scope.sent_bytes > wire:
            raise LimitExceeded("max_wire_request_bytes", wire, scope.sent_bytes)
        if own is not None and scope.sent_bytes > own:
            raise LimitExceeded("max_request_bytes", own, scope.sent_bytes)
    return request


def measure(scope: Scope) -> None:
    """Set ``scope.sent_bytes`` to what the newest request was, which this scope may not have sent."""
    turn = scope.turn
    assert turn.sent is not None, "asked while calls of a reply are answered"
    request = scope.store.book.request(turn.sent.request, max_bytes=sys.maxsize)
    answering = sum(entry.size for entry in turn.entries[len(turn.exchanges) :])
    _measured(scope, request, turn.request_size - answering, scope.limits.reply_bytes)


def _measured(scope: Scope, request: ModelRequest, size: int, room: int) -> bool:
    """Bound the request on the wire, and measure it where it may be near a ceiling; say whether it was measured."""
    limits, own = scope.limits, scope.provider.max_request_bytes
    scope.sent_bytes = bound = 2 * size + _WIRE_SLACK
    near = own is not None and bound + room > own
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
    """One send: what is stored and told of it. A block around it tells how it ended, and stores a failure.

    Attributes:
        sending: whether the provider was given the request. opened: whether it gave a stream.
        refused: whether the provider refused the stream.
        handed: whether a preview was handed on, be it to the run that may show it. shown: whether the run did.
        ended: whether its end is stored.
    """

    __slots__ = (
        "_began",
        "_choose",
        "_collecting",
        "_pending",
        "_scope",
        "attempt_id",
        "call",
        "ended",
        "handed",
        "opened",
        "refused",
        "sending",
        "shown",
        "usage",
    )

    def __init__(
        self,
        scope: Scope,
        attempt_id: str,
        began: float,
        *,
        choose: Choose | None = None,
        collecting: Collecting | None = None,
        pending: PendingSend | None = None,
    ) -> None:
        self._collecting = collecting
        self._scope, self.attempt_id, self._began = scope, attempt_id, began
        self._choose, self._pending = choose, pending
        self.call = 0
        self.sending = self.opened = self.refused = self.handed = self.shown = self.ended = False
        self.usage: Usage | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.tell_end("success")
        elif isinstance(error, ModelPending) and error.attempt_id == self.attempt_id:
            await self.tell_end("pending", code=error.code)
        else:
            await self.fail(error)
            limit = _limit_of(self._scope, self, error)
            if limit is not None:
                raise Rejected(limit) from error

    async def claim(self, ref: RequestRef, request: ModelRequest, *, room: int) -> tuple[ModelRequest, bool]:
        """Reserve the call and store that the request is about to leave; say whether a cancel was held back meanwhile.

        What a user said since it was made is in it: the request that is returned is the one to send.

        Raises:
            LimitExceeded: with that it is over a limit, or another user of the ledger was quicker.
            Overtaken: a stop came first. Nothing was charged.
        """
        scope, turn = self._scope, self._scope.turn
        model, now = scope.provider.model, scope.now_ms()

        def step(book: Book) -> Sequence[Fact]:
            nonlocal ref, request
            if turn.stopping and not turn.refused:
                raise Overtaken
            newest = book.reference(turn)
            if newest != ref:
                ref, request = newest, _preflight(scope, newest, room=room)
            facts = book.begin_send(ref, attempt_id=self.attempt_id, model=model, at_ms=now)
            scope.ledger.debit("model_calls")  # last, so that a step that is refused or asked again takes nothing
            return facts

        held = await scope.commit(step)
        self.call = scope.label.before + turn.model_calls
        return request, held

    async def carry(self, request: ModelRequest, deliver: Callable[[Preview], Awaitable[None]]) -> ModelReply:
        """Send the request, hand on what may be shown, and store the checked reply."""
        scope, reasoning, limit = self._scope, self._scope.reasoning, self._scope.limits.reply_bytes
        collecting = self._collecting
        if collecting is not None:
            collecting.check()
            collecting.begin()
        self.sending, handing = True, False
        try:
            async with scope.provider.stream(request, attempt_id=self.attempt_id, max_reply_bytes=limit) as stream:
                self.opened = True
                async for delta in stream:
                    kind = type(delta)
                    if collecting is not None and kind is not ReasoningDelta:
                        handing = True
                        collecting.take(delta)  # type: ignore[arg-type]  # mypy does not narrow unions by a variable
                        handing = False
                    if kind is TextDelta or (reasoning and kind is ReasoningDelta):
                        self.handed = handing = True
                        await deliver(delta)  # type: ignore[arg-type]  # as above
                        handing = False
                reply = await stream.reply()
        except StreamRefused:
            self.refused = not handing  # else it is a sink's, of another request
            raise
        self.charge(reply)
        fault = None if collecting is None else collecting.finish(reply)
        if self._pending is None and fault is None:
            await self.tell_parsed(reply)
        if collecting is not None and fault is None:
            collecting.check()
        await self._take(reply, fault)
        if fault is not None:
            raise fault
        return reply

    def detach(self, request: ModelRequest, sends: Sends) -> PendingSend:
        """Carry it out in a task of its own, which stores a failure as well; the run tells of it."""
        self._pending = PendingSend(self._scope.run_id, self.attempt_id)
        sends.begin(self._pending, self._carry_apart(request, self._pending))
        return self._pending

    async def _carry_apart(self, request: ModelRequest, pending: PendingSend) -> ModelReply:
        try:
            if pending.stopped:
                raise asyncio.CancelledError
            pending.reply = await self.carry(request, pending.relay.put)
            return pending.reply
        except BaseException as error:
            await self._store_failure(pending.cause or error)
            raise

    def charge(self, reply: ModelReply) -> None:
        """Debit what the reply cost: it is spent, whatever becomes of it."""
        self.usage = reply.usage
        if reply.usage is not None:
            self._scope.ledger.charge("tokens", reply.usage.total_tokens)

    async def _take(self, reply: ModelReply, fault: Exception | None) -> None:
        """Store the reply, and with it the claim of its first call where the run is there to carry that out.

        A reply that a value is made of ends its run, also where none can be made of it.
        """
        scope, pending = self._scope, self._pending
        receipt, reserve = scope.receipt(self.attempt_id), scope.limits.feedback_bytes
        now, claim = scope.now_ms(), None
        if self._choose is not None and reply.calls and (pending is None or pending.attended):
            entry = Entry(reply, self.attempt_id, scope.store.book.encoded(reply), now, None)
            claim = claim_next(scope, self._choose, len(scope.turn.entries), entry)
            if pending is not None:
                pending.claims = claim is not None
        start = None if claim is None else (claim.position, claim.effect_id)
        converted = () if claim is None else claim.converted
        close = None if self._collecting is None else _end_of(reply, fault)
        await commit_claim(
            scope,
            lambda book: book.intake(
                receipt, reply, at_ms=now, reserve=reserve, start=start, converted=converted, close=close
            ),
            claim,
        )
        self.ended, scope.claim = True, claim

    async def fail(self, error: BaseException) -> None:
        """Store that the attempt ended without a reply, and retract what was shown of it.

        The reply of a detached send may be stored already when the run is cancelled, or its sink
        fails; it stands then, and is told as a success.
        """
        reply: ModelReply | None = None
        try:
            if self._pending is not None:  # it stores its own end
                await settle(self._pending.stop(error))
                reply = self._pending.reply
            elif not self.ended:
                await self._store_failure(error)
        finally:
            if reply is None:
                await self.tell_failed(error)
            else:
                self.usage = reply.usage
                await self.tell_end("success")

    async def _store_failure(self, error: BaseException) -> None:
        """Store how the attempt ended.

        One that is cut off in a run that is paused stays without an end, unless nothing had left:
        the run goes on later, and whether to ask again is for the host to say.
        """
        scope, known = self._scope, isinstance(error, AgentLoopError)
        processed, code = self.sending, self._code(error)
        of_send = self.sending and (self._pending is None or self._pending.cause is None)  # no sink's, nor the run's
        refused, previewed = of_send and self.refused, self.handed
        status: int | None = None
        retry_after: float | None = None
        if known and of_send and not self.opened:
            processed = bool(error.may_have_been_processed)  # type: ignore[attr-defined]
            status, retry_after = _answered(error)
        if self.ended or scope.store.fault is not None or (self._paused(error) and processed):
            return  # a stopped store is settled by reloading it
        receipt, usage, now = scope.receipt(self.attempt_id), self.usage, scope.now_ms()
        await scope.commit(
            lambda book: book.fail_send(
                receipt,
                abandoned=not (known and of_send),
                code=code,
                may_have_been_processed=processed,
                at_ms=now,
                usage=usage,
                status=status,
                retry_after=retry_after,
                stream_refused=refused,
                previewed=previewed,
            )
        )
        self.ended = True

    def _paused(self, error: BaseException) -> bool:
        left_open = self._pending is not None and self._pending.left_open
        return not isinstance(error, Exception) and (left_open or self._scope.paused())

    def _code(self, error: BaseException) -> str:
        if isinstance(error, AgentLoopError):
            return code_of(error)
        if self._paused(error):
            return "paused"
        if isinstance(error, Exception):
            return "delivery"
        reason = self._scope.reason()
        return code_of(reason) if isinstance(reason, AgentLoopError) else "cancelled"

    # -- telling

    async def tell_start(self) -> None:
        scope = self._scope
        provider, label = scope.provider, scope.label
        await scope.emitter.output(
            ModelStart,
            self.attempt_id,
            attempt_id=self.attempt_id,
            call_sequence=self.call,
            stage_id=label.stage_id,
            model=provider.model,
            dialect=provider.dialect.name,
            model_id=scope.model_id,
            transport=label.transport,
            route=label.route,
            ref=None if scope.run_id == scope.emitter.run_id else scope.run_id,
        )

    def show(self, delta: Preview) -> Awaitable[None]:
        self.shown = True
        kind = TextPreview if type(delta) is TextDelta else ReasoningPreview
        attempt_id = self.attempt_id
        return self._scope.emitter.output(kind, attempt_id, attempt_id=attempt_id, offset=delta.offset, text=delta.text)

    async def tell_parsed(self, reply: ModelReply) -> None:
        await self._scope.emitter.output(
            ModelParsed,
            self.attempt_id,
            attempt_id=self.attempt_id,
            text_chars=len(reply.text),
            calls=len(reply.calls),
            termination=reply.termination,
        )

    async def tell_failed(self, error: BaseException) -> None:
        await self.tell_end("error" if isinstance(error, Exception) else "cancelled", code=self._code(error))

    async def tell_end(
        self, status: Literal["success", "error", "cancelled", "pending"], *, code: str | None = None
    ) -> None:
        collecting = self._collecting
        await self._scope.emitter.end(
            self.attempt_id,
            attempt_id=self.attempt_id,
            call_sequence=self.call,
            status=status,
            retracted=self.shown and status != "success",
            code=code,
            usage=self.usage,
            duration_ms=int((self._scope.clock() - self._began) * 1000),
            output_chars=0 if collecting is None else collecting.peak,
            call=None if collecting is None else collecting.call(),
        )


def _end_of(reply: ModelReply, fault: Exception | None) -> tuple[RunOutcome, str | None]:
    """How the run of a reply that a value is made of ends."""
    if fault is None:
        return "completed", reply.termination.reason
    return "failed", code_of(fault)


def _answered(error: BaseException) -> tuple[int | None, float | None]:
    """What the server answered in place of a stream: the status, and the seconds it asked to wait."""
    if not isinstance(error, HTTPStatusError):
        return None, None
    status, seconds = error.status, error.retry_after  # of any provider, so not checked before
    known = status if type(status) is int and 0 <= status <= SAFE_INTEGER else None
    if type(seconds) not in (int, float) or not 0 <= seconds <= SAFE_INTEGER:  # type: ignore[operator]  # a number
        return known, None
    return known, float(seconds)  # type: ignore[arg-type]  # as above


def _tell_rejected(scope: Scope, error: LimitExceeded) -> None:
    scope.emitter.process(RequestRejected, code=error.code, limit=error.limit, allowed=error.allowed, got=error.got)
