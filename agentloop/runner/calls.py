"""The way of one model call of a runner: preflight, its turn, its run in the store, its attempts, its end.

A call goes the way of every other one: its budgets are checked and debited, its origin and its claim
are stored, it is sent once, and what its transport made of the checked reply is returned only when
that reply is stored. Nothing asks again by itself.

What ended a call, where several things did, is for `agentloop.effects.Bound` to say. A call whose value
is stored has ended well: whatever comes after that changes nothing of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..effects import Bound, Label, Ledger, Rejected, Scope, Signal, code_of, limit_of, next_attempt, rest, send
from ..errors import AgentLoopError, BudgetError, LimitExceeded, ProviderError, StreamRefused
from ..events import ModelCallRecord, RequestRejected
from ..exchange import CallBasis, Turn
from ..limits import JSON_BYTES, LoopLimits
from ..messages import Message
from ..sinks import Diagnostics, put_off
from ..tools import ToolSet
from .built import BuiltContext
from .children import Family
from .collection import Collection
from .host import Host
from .options import Models, PerCall
from .prepared import Prepared, check_measured, measured
from .summaries import Purpose

__all__ = ["Calls", "ModelResult"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_NO_TOOLS: Final = ToolSet()

_LIMITS: Final = LoopLimits(
    reply_bytes=JSON_BYTES, request_bytes=JSON_BYTES, collection_bytes=JSON_BYTES, feedback_bytes=256
)
"""A call is bounded by the runner's characters and tokens; bytes are the provider's (R106)."""


class ModelResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """Exactly a value and the record of its call (R219).

    Attributes:
        value: what the transport made of the checked reply.
        invocation: the call; made by the runner, never by a model (R221).
    """

    value: T_co
    invocation: ModelCallRecord


class Calls:
    """Makes the calls of one runner, one at a time.

    Args:
        host, models, per_call: what they stand on, whom they ask, and what bounds each of them.
        ledger: what they are debited to. signal: whether they are wanted.
        family: their runner's place among the children of a root.
        diagnostics: where they are told; bound by this.

    Attributes:
        count: how many were made, attempts counted.
    """

    __slots__ = ("_diagnostics", "_emitter", "_family", "_host", "_ledger", "_models", "_per_call", "_signal", "count")

    def __init__(
        self,
        host: Host,
        models: Models,
        per_call: PerCall,
        *,
        ledger: Ledger,
        signal: Signal,
        family: Family,
        diagnostics: Diagnostics,
    ) -> None:
        self._host, self._models, self._per_call = host, models, per_call
        self._ledger, self._signal, self._family = ledger, signal, family
        self._diagnostics, self._emitter = diagnostics, diagnostics.bind(host.hub)
        self.count = 0

    async def make(
        self, context: BuiltContext, prepared: Prepared[T], began: float, purpose: Purpose | None = None
    ) -> ModelResult[T]:
        """Preflight; wait for a turn among children; then the call, within its time."""
        self._emitter.observers = self._host.observing() or None
        self._preflight(prepared, context)
        turn = self._family.turn
        if turn is None:
            return await self._bounded(context, prepared, began, purpose)
        async with Bound(self._signal), turn:
            return await self._bounded(context, prepared, began, purpose)

    async def _bounded(
        self, context: BuiltContext, prepared: Prepared[T], began: float, purpose: Purpose | None
    ) -> ModelResult[T]:
        with self._host.inside():
            async with Bound(self._signal, self._per_call.timeout) as bound:
                return await self._call(bound, prepared.messages(context.messages), prepared, began, purpose)

    def _preflight(self, prepared: Prepared[Any], context: BuiltContext) -> None:
        try:
            check_measured(measured(prepared, context.messages, self._per_call.sizes, max_chars=context.max_chars))
            self._ledger.check("model_calls")
            self._ledger.check("tokens")
        except LimitExceeded as error:
            self._emitter.process(
                RequestRejected, code=error.code, limit=error.limit, allowed=error.allowed, got=error.got
            )
            raise

    async def _call(
        self,
        bound: Bound,
        messages: tuple[Message, ...],
        prepared: Prepared[T],
        began: float,
        purpose: Purpose | None,
    ) -> ModelResult[T]:
        host = self._host
        ref = host.new_id() if purpose is None else purpose.ref
        basis = CallBasis(
            parent=self._emitter.span_id if purpose is None else purpose.parent,
            origins=() if purpose is None else purpose.origins,
            stage_id=prepared.stage_id,
            transport=prepared.transport,
            route=prepared.route,
            model_id=prepared.model_id,
        )
        turn = await host.open(
            ref,
            stage_id=prepared.stage_id,
            messages=messages,
            options=prepared.options,
            tools=prepared.interaction.tools,
            call=basis,
            fresh=purpose is None,
        )
        try:
            bound.check()  # of a cancel that came while it was opened
            collection = await self._attempts(self._scope(bound, turn, prepared), bound, prepared, began)
        except Rejected as rejected:
            await host.end(turn, "limit_reached", limit_of(rejected.error), rejected.error)
            raise rejected.error from None
        except BaseException as error:
            await host.end(turn, *_ending(error, bound.reason), error)
            raise
        finally:
            prepared.used = turn.model_calls > 0
            self.count += turn.model_calls
            await host.leave(ref, keep=purpose is not None)
        last = self._diagnostics.journal.last_model
        assert last is not None, "a call that ended is in the journal"
        return ModelResult(value=collection.value, invocation=last.record())

    async def _attempts(self, scope: Scope, bound: Bound, prepared: Prepared[T], began: float | None) -> Collection[T]:
        """Ask, and ask once more only where the host's policy says so and a budget covers it."""
        while True:
            collection = Collection(
                prepared.interaction.create_response,
                max_chars=self._per_call.sizes.max_output_chars,
                transport=prepared.transport,
                ref=scope.run_id,
                check=bound.check,
            )
            try:
                await send(scope, collecting=collection, began=began)
            except asyncio.CancelledError as cancel:
                if scope.turn.closed is None or scope.turn.closed.outcome != "completed":
                    raise
                put_off(cancel)  # the value is stored, and stands
                return collection
            except (ProviderError, StreamRefused):
                again = None if scope.resend is None else next_attempt(scope.turn, scope.resend)
                if again is None or scope.ledger.left("model_calls") == 0 or scope.ledger.left("tokens") == 0:
                    raise
                began = None
                await rest(scope, again)
            else:
                return collection

    def _scope(self, bound: Bound, turn: Turn, prepared: Prepared[Any]) -> Scope:
        host = self._host
        names, resend = self._models.asked(prepared.model_id)
        return Scope(
            run_id=turn.run_id,
            agent=prepared.stage_id,
            conversation=None,
            deps=None,
            provider=self._models.provider(prepared.model_id),
            store=host.store,
            mint=host.mint,
            ledger=self._ledger,
            limits=_LIMITS,
            tools=_NO_TOOLS,
            pool=host.pool,
            emitter=self._emitter,
            new_id=host.new_id,
            clock=host.clock,
            now_ms=host.now_ms,
            reasoning=self._per_call.reasoning,
            reason=lambda: bound.reason,
            resend=resend,
            sleep=host.sleep,
            random=host.random,
            label=Label(prepared.stage_id, prepared.transport, prepared.route, self.count),
            model_names=names,
        )


def _ending(error: BaseException, reason: BaseException | None) -> tuple[Any, str]:
    """Outcome and reason of a call that brought no value; ``reason`` is why it was cancelled, if not by its caller."""
    if isinstance(error, BudgetError):
        return "limit_reached", limit_of(error)
    if not isinstance(error, Exception):
        return "cancelled", code_of(reason) if isinstance(reason, AgentLoopError) else "cancelled"
    return "failed", code_of(error)
