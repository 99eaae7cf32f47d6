"""One request's model calls: typed values, budgets that are checked before anything leaves, one call at a time.

A call goes the way of every other one: its budgets are checked and debited, its origin and its claim
are stored, it is sent once, and what its transport made of the checked reply is returned only when
that reply is stored. Nothing asks again by itself.

What ended a call, where several things did, is for `agentloop.effects.Bound` to say. A call whose value
is stored has ended well: whatever comes after that changes nothing of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar, Unpack, overload

import msgspec

from ..effects import Bound, Label, Rejected, Scope, Signal, code_of, limit_of, next_attempt, rest, send
from ..errors import (
    AgentLoopError,
    BudgetError,
    ConflictError,
    HandleError,
    InputError,
    LimitExceeded,
    ProviderError,
    StreamRefused,
)
from ..events import Journal, ModelCallRecord, ModelCallTrace, RequestRejected
from ..exchange import CallBasis, Turn
from ..limits import JSON_BYTES, LoopLimits, check_count, check_name, check_seconds
from ..messages import Message
from ..providers import Provider
from ..sinks import Diagnostics, Observer, Sink, put_off, require_observer
from ..tools import ToolSet
from .built import BuiltContext, Summary, SummaryOf
from .children import Family
from .collection import Collection
from .context import ContextPlan
from .host import Host
from .input import ModelInput, taken
from .options import (
    PLAIN,
    Execution,
    Models,
    RunnerOptions,
    check_names,
    checked_children,
    checked_execution,
    checked_ledger,
    per_call,
    registry,
)
from .prepared import Measurement, Prepared, check_measured, measured, prepared_by
from .summaries import SUMMARY_STAGE, build_context, counter_of
from .transport import Stage, Transport

__all__ = ["ModelResult", "ModelRunner"]

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


class ModelRunner:
    """Makes the model calls of one request, one at a time; concurrent tasks have a `child` each (R236).

        ticket = al.Structured(Ticket)
        runner = al.ModelRunner(provider, transports=(ticket,), max_calls=4)
        result = await runner.invoke("The printer is on fire", transport=ticket)
        result.value.title

    `Runtime.runner` makes one on the runtime's provider and store. One that is made without a runtime
    keeps its calls in memory, 128 and up of those that ended last, and closes no provider. Use it in one event
    loop; ``async with`` is needed only where it has ``observers``.

    Args:
        provider: what sends.
        observers: watch every event, isolated and bounded; of a runner without a runtime.
        options: see `RunnerOptions`.

    Raises:
        InputError: a value of another type or outside its range, by name. TypeError: an unknown name.
    """

    _busy: bool
    _count: int

    def __init__(
        self, provider: Provider, *, observers: Sequence[Observer] = (), **options: Unpack[RunnerOptions]
    ) -> None:
        if not isinstance(observers, Iterable):
            raise InputError(f"ModelRunner.observers: expected a list of observers, got {type(observers).__name__}")
        for at, observer in enumerate(observers):
            require_observer(f"ModelRunner.observers[{at}]", observer)
        self._set_up(Host.alone(tuple(observers)), provider, options)
        self._owns_host = True

    @classmethod
    def of(cls, host: Host, provider: Provider, options: RunnerOptions) -> Self:
        """A runner on a host that somebody else closes."""
        runner = cls.__new__(cls)
        runner._owns_host = False
        runner._set_up(host, provider, options)
        return runner

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cut off the call under way, and let observers hear of it. Idempotent; a runtime does it for its own."""
        self._signal.cancel()
        if self._owns_host:
            await self._host.close()

    # -- reading

    @property
    def signal(self) -> Signal:
        """Whether the work of this runner is still wanted."""
        return self._signal

    @property
    def execution(self) -> Execution:
        """Signal and diagnostics, to be handed to whatever else works for the same request."""
        return Execution(signal=self._signal, diagnostics=self._diagnostics)

    @property
    def journal(self) -> Journal:
        """What was told of this runner's own calls."""
        return self._diagnostics.journal

    @property
    def remaining_calls(self) -> int:
        """Calls it may still make: the least of its own budget and those above, what is kept for them taken off."""
        left = self._ledger.left("model_calls")
        assert left is not None, "a runner has a budget of calls"
        return left

    @property
    def call_count(self) -> int:
        """Calls that this runner made, attempts counted, those of its children not."""
        return self._count

    @property
    def total_call_count(self) -> int:
        """Calls that it and all below it made."""
        return self._ledger.spent("model_calls")

    @property
    def last_call(self) -> ModelCallTrace | None:
        """The newest call of its own that ended; to look at, not to match results by."""
        return self.journal.last_model

    # -- calling

    @overload
    def prepare(
        self,
        *,
        stage_id: str = ...,
        transport: Literal["core:plain-text"] | None = ...,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[str]: ...
    @overload
    def prepare(
        self,
        *,
        stage_id: str = ...,
        transport: Transport[T],
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[T]: ...
    @overload
    def prepare(
        self,
        *,
        stage_id: str = ...,
        transport: str,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> Prepared[object]: ...
    def prepare(
        self,
        *,
        stage_id: str = "model",
        transport: Transport[Any] | str | None = None,
        max_output_tokens: int | None = None,
        model_id: str | None = None,
    ) -> Prepared[Any]:
        """Fix what one call asks for; sends nothing, and takes nothing from a budget.

        Args:
            stage_id: your word for where the call is made, 1 to 128 characters; in events and records.
            transport: one of the runner's, or its id; plain text by default, whatever else is there (R222).
            max_output_tokens: what this call may write; the runner's by default.
            model_id: one of the runner's models by name.

        Raises:
            InputError: a value that is not one of these, or a transport that cannot be used there.
        """
        check_name("stage_id", stage_id)
        per_call, name = self._per_call, self._models.name(model_id)
        options = per_call.reserving(max_output_tokens)
        if per_call.sizes.tokens is not None and max_output_tokens is not None:
            per_call.sizes.tokens.input_limit(max_output_tokens)
        return prepared_by(
            self,
            self._transport(transport),
            Stage(stage_id=stage_id, dialect=self._models.provider(name).dialect),
            model_id=name,
            options=options,
        )

    def measure(self, input: ModelInput, prepared: Prepared[Any]) -> Measurement:
        """What a prepared call would weigh with these messages; as often as you like.

        Raises:
            InputError: no messages. HandleError: the handle is another runner's.
        """
        self._check_owner(prepared)
        context = taken(input)
        if type(input) is ContextPlan:
            built = input.build(count=counter_of(self._per_call.sizes.tokens))
            if type(built) is not BuiltContext:
                raise InputError("input: expected a plan that fits without a summary; make it with build() first")
            context = built
        return measured(prepared, context.messages, self._per_call.sizes, max_chars=context.max_chars)

    async def build(self, plan: ContextPlan, *, summaries: Sequence[SummaryOf] = ()) -> BuiltContext:
        """Build a plan's context; each summary that it needs is a call of this runner, of stage ``summary``.

        Args:
            summaries: known ones, of whole turns of the plan's messages.

        Raises:
            InputError, LimitExceeded: the plan cannot be built. Otherwise as `invoke`, for a summary.
        """
        if type(plan) is not ContextPlan:
            raise InputError(f"build: expected a ContextPlan, got {type(plan).__name__}")
        taken(plan)
        with self._alone():
            return await self._build(plan, summaries)

    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: Literal["core:plain-text"] | None = ...,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[str]: ...
    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: Transport[T],
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[T]: ...
    @overload
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = ...,
        transport: str,
        max_output_tokens: int | None = ...,
        model_id: str | None = ...,
    ) -> ModelResult[object]: ...
    @overload
    async def invoke(self, input: ModelInput, *, prepared: Prepared[T]) -> ModelResult[T]: ...
    async def invoke(
        self,
        input: ModelInput,
        *,
        stage_id: str | None = None,
        transport: Transport[Any] | str | None = None,
        max_output_tokens: int | None = None,
        model_id: str | None = None,
        prepared: Prepared[Any] | None = None,
    ) -> ModelResult[Any]:
        """Make one model call, and return what its transport made of the reply.

        Args:
            input: text, a message, messages, a context, or a plan, which is built first (`build`); taken
                as they are now.
            prepared: a handle of `prepare`, which then says all the rest.
            The others are as for `prepare`.

        Raises:
            InputError: bad input. HandleError: the handle cannot be used. ConflictError: a call of this
                runner goes on. Nothing was sent or charged.
            BudgetError: a budget does not cover the call; only ``max_output_chars`` is met while it goes on.
            OutputRefused: the reply is complete, stored, and not what was asked for.
            StreamRefused, ProviderError: the call failed. CallTimeout: it took too long.
            LimitExceeded: the request is too large for the provider, or the store is full.
            PersistenceError: the store stopped. BaseException: what the signal was cancelled with.
            Exception: what the sink, or a transport of your own, raised.
        """
        began = self._host.clock()
        if prepared is None:
            self._signal.check()
        else:
            if any(value is not None for value in (stage_id, transport, max_output_tokens, model_id)):
                raise InputError("invoke: expected prepared= alone, got it with what it has fixed already")
            self._check_handle(prepared)
        context = taken(input)
        with self._alone():
            if prepared is None:
                prepared = self.prepare(
                    stage_id="model" if stage_id is None else stage_id,
                    transport=transport,
                    max_output_tokens=max_output_tokens,
                    model_id=model_id,
                )
            if type(input) is ContextPlan:
                context = await self._build(input, ())
            return await self._invoke(context, prepared, began)

    # -- children

    def child(
        self,
        id: str | None = None,
        *,
        max_calls: int | None = None,
        reserve_calls: int = 0,
        timeout: float | None = None,
        transports: Sequence[Transport[Any]] = (),
        sink: Sink | None = None,
        signal: Signal | None = None,
        diagnostics: Diagnostics | None = None,
    ) -> ModelRunner:
        """A runner for a part of the same request, on the same budget (R273).

        It inherits the models, the limits of one call, the token counter, the resend policy and the
        observers; not the sink, the journal or the transports (R274). What it spends is taken from every
        runner above it as well.

        Args:
            id: of its span, unique in the run, 1 to 128 characters; a new one by default.
            max_calls: its own budget of calls; None is all that is left above.
            reserve_calls: calls that it must leave to those above it (R277).
            timeout: seconds from now until it is cancelled.
            transports: its own; plain text alone by default (R275).
            signal: cancels it as well, beside this runner's own.
            diagnostics: a part of this runner's (`Diagnostics.child`), in place of ``id`` and ``sink``.

        Raises:
            BudgetError: ``children.max_depth`` or ``children.max_children`` of the root.
            InputError: a value of another type or outside its range, an id that the run has already,
                diagnostics of another run or of another runner.
            BaseException: what this runner's signal was cancelled with.
        """
        self._signal.check()
        self._family.check()
        if signal is not None and not isinstance(signal, Signal):
            raise InputError(f"child.signal: expected a Signal or None, got {type(signal).__name__}")
        if diagnostics is not None:
            if id is not None or sink is not None:
                raise InputError("child: expected either diagnostics= or id= and sink=, got both")
            self._check_part(diagnostics)
        if max_calls is not None:
            check_count("child.max_calls", max_calls, 0)
        check_count("child.reserve_calls", reserve_calls, 0)
        if timeout is not None:
            check_seconds("child.timeout", timeout)
        known = registry(transports)
        part = self._diagnostics.child(id, output=sink) if diagnostics is None else diagnostics
        parents = (self._signal,) if signal is None else (self._signal, signal)
        below = Signal(part.span_id, parents=parents, seconds=timeout, clock=self._host.clock)
        child = type(self).__new__(type(self))
        child._host, child._models, child._per_call = self._host, self._models, self._per_call
        child._owns_host = False
        child._ledger = self._ledger.child(model_calls=max_calls, reserve=reserve_calls)
        child._transports, child._signal, child._diagnostics = known, below, part
        child._family = self._family.below()
        child._begin()
        return child

    # -- private

    def _set_up(self, host: Host, provider: Provider, given: RunnerOptions) -> None:
        check_names(given)
        execution = checked_execution(given)
        self._host, self._models, self._per_call = host, Models(provider, given), per_call(given)
        self._transports, self._ledger = registry(given.get("transports", ())), checked_ledger(given)
        self._family = Family(checked_children(given))
        part = execution.diagnostics
        if part is None:
            part = Diagnostics(output=given.get("sink"), new_id=host.new_id, now_ms=host.now_ms)
        above = (host.signal,) if execution.signal is None else (host.signal, execution.signal)
        self._diagnostics = part
        self._signal = Signal(part.span_id, parents=above, clock=host.clock)
        self._begin()

    def _begin(self) -> None:
        self._emitter = self._diagnostics.bind(self._host.hub)
        self._busy = False
        self._count = 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time."""
        if self._busy:
            rule = "expected one call at a time, got another one; concurrent tasks have a child() each"
            raise ConflictError(f"runner {self._diagnostics.span_id!r}", rule)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _build(self, plan: ContextPlan, summaries: Sequence[SummaryOf]) -> BuiltContext:
        async def ask(messages: tuple[Message, ...], summary: Summary) -> tuple[str, str]:
            prepared = self.prepare(stage_id=SUMMARY_STAGE, max_output_tokens=summary.max_tokens)
            context = BuiltContext(messages=messages, max_chars=math.inf, source_messages=len(messages))
            result = await self._invoke(context, prepared, self._host.clock())
            return result.value, result.invocation.ref or ""

        sizes = self._per_call.sizes
        return await build_context(
            plan, plan.messages, ask, summaries=summaries, tokens=sizes.tokens, max_chars=sizes.max_input_chars
        )

    async def _invoke(self, context: BuiltContext, prepared: Prepared[T], began: float) -> ModelResult[T]:
        """Preflight; wait for a turn among children; then the call, within its time."""
        self._emitter.observers = self._host.observing() or None
        self._preflight(prepared, context)
        turn = self._family.turn
        if turn is None:
            return await self._bounded(context, prepared, began)
        async with Bound(self._signal), turn:
            return await self._bounded(context, prepared, began)

    async def _bounded(self, context: BuiltContext, prepared: Prepared[T], began: float) -> ModelResult[T]:
        with self._host.inside():
            async with Bound(self._signal, self._per_call.timeout) as bound:
                return await self._call(bound, prepared.messages(context.messages), prepared, began)

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
        self, bound: Bound, messages: tuple[Message, ...], prepared: Prepared[T], began: float
    ) -> ModelResult[T]:
        host, ref = self._host, self._host.new_id()
        basis = CallBasis(
            parent=self._diagnostics.span_id,
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
            prepared.used = prepared.used or turn.model_calls > 0
            self._count += turn.model_calls
            await host.leave(ref)
        last = self.journal.last_model
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
            threads=host.threads,
            emitter=self._emitter,
            new_id=host.new_id,
            clock=host.clock,
            now_ms=host.now_ms,
            reasoning=self._per_call.reasoning,
            reason=lambda: bound.reason,
            resend=resend,
            sleep=host.sleep,
            random=host.random,
            label=Label(prepared.stage_id, prepared.transport, prepared.route, self._count),
            model_names=names,
        )

    def _transport(self, given: Transport[Any] | str | None) -> Transport[Any]:
        if given is None:
            return PLAIN
        if type(given) is str:
            known = self._transports.get(given)
            if known is None:
                raise InputError(f"transport: expected one of {', '.join(self._transports)}, got {given[:80]!r}")
            return known
        if not isinstance(given, Transport):
            raise InputError(f"transport: expected a transport or its id, got {type(given).__name__}")
        if self._transports.get(given.id) is not given:
            raise InputError(f"transport: expected one that this runner was given, got another ({given.id!r})")
        return given

    def _check_owner(self, prepared: Prepared[Any]) -> None:
        if not isinstance(prepared, Prepared):
            raise InputError(f"prepared: expected a Prepared, got {type(prepared).__name__}")
        if prepared.owner is not self:
            raise HandleError("foreign_handle", "expected a call that this runner prepared, got another's")

    def _check_handle(self, prepared: Prepared[Any]) -> None:
        self._check_owner(prepared)
        if prepared.used:
            raise HandleError("used_handle", "expected a handle that made no call, got one that did")
        reason = self._signal.reason
        if reason is not None:
            rule = f"expected a runner whose work is wanted, got one that ended ({type(reason).__name__})"
            raise HandleError("expired_handle", rule) from reason

    def _check_part(self, part: Diagnostics) -> None:
        if not isinstance(part, Diagnostics):
            raise InputError(f"child.diagnostics: expected Diagnostics, got {type(part).__name__}")
        if part.above is not self._diagnostics:
            raise InputError("child.diagnostics: expected a part of this runner's, got one of another run or parent")
        part.check_free()

    def __repr__(self) -> str:
        return f"<ModelRunner {self._diagnostics.span_id!r}: {self.remaining_calls} calls left>"


def _ending(error: BaseException, reason: BaseException | None) -> tuple[Any, str]:
    """Outcome and reason of a call that brought no value; ``reason`` is why it was cancelled, if not by its caller."""
    if isinstance(error, BudgetError):
        return "limit_reached", limit_of(error)
    if not isinstance(error, Exception):
        return "cancelled", code_of(reason) if isinstance(reason, AgentLoopError) else "cancelled"
    return "failed", code_of(error)
