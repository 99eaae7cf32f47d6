"""One request's model calls as its host sees them: prepared, measured and made, on one budget with its children."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from ..effects import Ledger, Signal
from ..errors import ConflictError, HandleError, InputError
from ..events import Journal, ModelCallTrace
from ..exchange import SUMMARY_STAGE
from ..limits import check_count, check_name, check_seconds
from ..messages import Message
from ..providers import Provider
from ..sinks import Diagnostics, Observer, ObserverHub, Sink, require_observer
from .built import BuiltContext, NeedsSummary, Summary, SummaryOf
from .calls import Calls, ModelResult
from .children import Family
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
from .prepared import Measurement, Prepared, measured, prepared_by
from .summaries import Purpose, build_context, counter_of, require_summary
from .transport import Stage, Transport

__all__ = ["ModelRunner"]

T = TypeVar("T")


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
    def ledger(self) -> Ledger:
        """What its calls are debited to; whatever else works for the same request can be debited to it too."""
        return self._ledger

    @property
    def observers(self) -> ObserverHub | None:
        """What tells the observers, for whatever else is told of the same request; None where there are none.

        Observers of a runner without a runtime begin here, in the running event loop.
        """
        return self._host.observing() or None

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
        return self._calls.count

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
            self._check_counted(input)
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
            Any of these, for a summary that a plan needs: what was made before it stays stored, and is
            not made again where it is handed to `build` as known.
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
                began = self._host.clock()  # the calls that were made for it have times of their own
            return await self._calls.make(context, prepared, began)

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
        self._busy = False
        self._calls = Calls(
            self._host,
            self._models,
            self._per_call,
            ledger=self._ledger,
            signal=self._signal,
            family=self._family,
            diagnostics=self._diagnostics,
        )

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

    def _check_counted(self, plan: ContextPlan) -> None:
        if plan.max_tokens is not None and self._per_call.sizes.tokens is None:
            raise InputError("input: expected a runner with a token_budget, for a plan with max_tokens")

    async def _build(self, plan: ContextPlan, summaries: Sequence[SummaryOf]) -> BuiltContext:
        async def ask(needed: NeedsSummary, messages: tuple[Message, ...]) -> tuple[str, str]:
            return await self.summarise(needed.summary, messages)

        self._check_counted(plan)
        sizes = self._per_call.sizes
        return await build_context(
            plan, plan.messages, ask, summaries=summaries, tokens=sizes.tokens, max_chars=sizes.max_input_chars
        )

    async def summarise(
        self, summary: Summary, messages: tuple[Message, ...], purpose: Purpose | None = None
    ) -> tuple[str, str]:
        """Make the call of one summary, for whoever builds a context; return its text and what it is stored as.

        Args:
            messages: what is read; the last one asks.

        Raises:
            As `invoke`. OutputRefused: also for an empty text.
        """
        prepared = self.prepare(stage_id=SUMMARY_STAGE, max_output_tokens=summary.max_tokens)
        context = BuiltContext(messages=messages, max_chars=math.inf, source_messages=len(messages))
        result = await self._calls.make(context, prepared, self._host.clock(), purpose)
        ref = result.invocation.ref
        return require_summary(result.value, ref), ref

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
