"""One request's model calls: typed values, budgets that are checked before anything leaves, one call at a time.

A call goes the way of every other one: its budgets are checked and debited, its origin and its claim
are stored, it is sent once, and what its transport made of the checked reply is returned only when
that reply is stored. Nothing asks again by itself.

What ended a call, where several things did, is decided in this order: the caller's own cancel; the
signal's reason; the time it was given; then whatever the call met (R324, R325).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from ..effects import Bound, Label, Ledger, Rejected, ResendPolicy, Scope, Signal, next_attempt, rest, send, settle
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
from ..events import Journal, ModelCallTrace, RequestRejected
from ..exchange import CallBasis, Turn
from ..limits import (
    CALL_TIMEOUT,
    JSON_BYTES,
    MAX_CALL_TIMEOUT,
    MAX_INPUT_CHARS,
    MAX_OUTPUT_CHARS,
    MAX_OUTPUT_TOKENS,
    MAX_RUNNER_CALLS,
    MAX_SCHEMA_CHARS,
    LoopLimits,
    check_chars,
    check_count,
    check_seconds,
)
from ..messages import Message, ModelOptions
from ..providers import Provider
from ..sinks import Diagnostics, Observer, Sink, require_observer
from ..tools import ToolSet
from .children import ChildLimits, Family
from .collection import Collection
from .host import Host
from .input import ModelInput, taken
from .prepared import Measurement, Prepared, Sizes, check_measured, measured, prepared_by
from .record import ModelCallRecord, ModelResult
from .tokens import TokenBudget
from .transport import Stage, Transport
from .transports import PlainText

__all__ = ["Execution", "ModelRunner", "RunnerOptions"]

T = TypeVar("T")

_PLAIN: Final = PlainText()
_NO_TOOLS: Final = ToolSet()
_NO_WAIT: Final = nullcontext()

_LIMITS: Final = LoopLimits(
    reply_bytes=JSON_BYTES, request_bytes=JSON_BYTES, collection_bytes=JSON_BYTES, feedback_bytes=256
)
"""A call is bounded by the runner's characters and tokens; bytes are the provider's (R106)."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """What binds the parts of one request together: hand it to whatever else works for it (R210, R284).

    Attributes:
        signal: whether the work is still wanted; None makes one.
        diagnostics: where it is told; None makes a run of its own.
    """

    signal: Signal | None = None
    diagnostics: Diagnostics | None = None

    def __post_init__(self) -> None:
        for name, kind in (("signal", Signal), ("diagnostics", Diagnostics)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InputError(f"Execution.{name}: expected {kind.__name__} or None, got {type(value).__name__}")


class RunnerOptions(TypedDict, total=False):
    """What a runner takes by keyword; a call can override some of it.

    Attributes:
        transports: ways to ask for a value, with unique ids; ``core:plain-text`` alone by default.
        models: other models by name, next to ``default``, which is the runner's provider. They are asked
            where a call names one, and closed by nobody here.
        fallback: names of models that are asked, in this order, when another one may not be asked again;
            needs ``resend``, which says when that is.
        resend: when a call that brought nothing is made once more (`ResendPolicy`); None is never.
        options: `ModelOptions` of every call; what a transport asks for overrides them.
        max_calls: model calls of this runner and its children, attempts counted; 0 and up, 8 by default.
        call_timeout: seconds of one call, 0.001 to 2147483.647; 30 by default. It never extends a deadline.
        max_input_chars: of the application's messages; 0 and up or ``math.inf``, 32000 by default.
        max_output_chars: of what a transport collects; 0 and up or ``math.inf``, 16000 by default.
        max_schema_chars: of instruction and declarations of a transport; 1 and up, 16000 by default.
        max_output_tokens: what one call may write, asked of the server with each request; 1 and up,
            1024 by default.
        token_budget: a window and who counts; None counts no tokens and guesses none.
        max_tokens: reported tokens of this runner and its children; the call that crosses it still
            counts. None is no limit.
        children: how many there may be, how deep, and how many of their calls at a time.
        reasoning: also preview reasoning, as `ReasoningPreview`.
        sink: gets the output events of this runner's own calls, awaited in order.
        ledger: what the calls are debited to as well, above this runner's own.
        execution: the request that this runner works for.
    """

    transports: Sequence[Transport[Any]]
    models: Mapping[str, Provider]
    fallback: Sequence[str]
    resend: ResendPolicy | None
    options: ModelOptions
    max_calls: int
    call_timeout: float
    max_input_chars: float
    max_output_chars: float
    max_schema_chars: int
    max_output_tokens: int
    token_budget: TokenBudget | None
    max_tokens: int | None
    children: ChildLimits
    reasoning: bool
    sink: Sink | None
    ledger: Ledger | None
    execution: Execution | None


class ModelRunner:
    """Makes the model calls of one request, one at a time; concurrent tasks have a `child` each (R236).

        ticket = al.Structured(Ticket)
        runner = al.ModelRunner(provider, transports=(ticket,), max_calls=4)
        result = await runner.invoke("The printer is on fire", transport=ticket)
        result.value.title

    `Runtime.runner` makes one on the runtime's provider and store. One that is made without a runtime
    keeps its calls in memory, the newest 128 that ended, and closes no provider. Use it in one event
    loop; ``async with`` is needed only where it has ``observers``.

    Args:
        provider: what sends.
        observers: watch every event, isolated and bounded; of a runner without a runtime.
        options: see `RunnerOptions`.

    Raises:
        InputError: a value of another type or outside its range, by name. TypeError: an unknown name.
    """

    def __init__(
        self, provider: Provider, *, observers: Sequence[Observer] = (), **options: Unpack[RunnerOptions]
    ) -> None:
        for at, observer in enumerate(observers):
            require_observer(f"ModelRunner.observers[{at}]", observer)
        self._watchers = tuple(observers)
        self._set_up(Host.alone(), provider, options)
        self._owns_host = True
    @classmethod
    def of(cls, host: Host, provider: Provider, options: RunnerOptions) -> Self:
        """A runner on a host that somebody else closes."""
        runner = cls.__new__(cls)
        runner._watchers, runner._owns_host = (), False
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
        return self.journal.model[-1] if self.journal.model else None

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
        if type(stage_id) is not str or not 1 <= len(stage_id) <= 128:
            raise InputError("stage_id: expected a string of 1 to 128 characters")
        if max_output_tokens is None:
            max_output_tokens = self._max_output_tokens
        check_count("max_output_tokens", max_output_tokens, 1)
        if self._sizes.tokens is not None:
            self._sizes.tokens.input_limit(max_output_tokens)
        provider = self._provider_of(model_id)
        return prepared_by(
            self,
            self._transport(transport),
            Stage(stage_id=stage_id, dialect=provider.dialect),
            model_id=model_id or ("default" if self._models else None),
            max_output_tokens=max_output_tokens,
            options=self._options,
        )

    def measure(self, input: ModelInput, prepared: Prepared[Any]) -> Measurement:
        """What a prepared call would weigh with these messages; as often as you like.

        Raises:
            InputError: no messages. HandleError: the handle is another runner's.
        """
        self._check_owner(prepared)
        return measured(prepared, taken(input), self._sizes)

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
            input: text, a message, or messages; taken as they are now.
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
        began, started_at_ms = self._host.clock(), self._host.now_ms()
        if prepared is None:
            self._signal.check()
        else:
            if not (stage_id is transport is max_output_tokens is model_id is None):
                raise InputError("invoke: expected prepared= alone, got it with what it has fixed already")
            self._check_handle(prepared)
        if self._busy:
            rule = "expected one call at a time, got another one; concurrent tasks have a child() each"
            raise ConflictError(f"runner {self._diagnostics.span_id!r}", rule)
        self._busy = True
        try:
            if prepared is None:
                prepared = self.prepare(
                    stage_id="model" if stage_id is None else stage_id,
                    transport=transport,  # type: ignore[arg-type]  # one of the overloads
                    max_output_tokens=max_output_tokens,
                    model_id=model_id,
                )
            return await self._invoke(taken(input), prepared, began, started_at_ms)
        finally:
            self._busy = False

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
            InputError: a value of another type or outside its range; diagnostics of another run.
        """
        self._signal.check()
        if signal is not None and not isinstance(signal, Signal):
            raise InputError(f"child.signal: expected a Signal or None, got {type(signal).__name__}")
        if diagnostics is not None:
            if id is not None or sink is not None:
                raise InputError("child: expected either diagnostics= or id= and sink=, got both")
            self._check_part(diagnostics)
        if max_calls is not None:
            check_count("child.max_calls", max_calls, 0)
        check_count("child.reserve_calls", reserve_calls, 0)
        registry = _registry(transports)
        part = self._diagnostics.child(id, output=sink) if diagnostics is None else diagnostics
        parents = (self._signal,) if signal is None else (self._signal, signal)
        below = Signal(part.span_id, parents=parents, seconds=timeout, clock=self._host.clock)
        family = self._family.below()
        child = type(self).__new__(type(self))
        for name in ("_host", "_models", "_provider", "_fallback", "_resend", "_options", "_call_timeout", "_sizes"):
            setattr(child, name, getattr(self, name))
        child._max_output_tokens, child._reasoning = self._max_output_tokens, self._reasoning
        child._watchers, child._owns_host = (), False
        child._ledger = self._ledger.child(model_calls=max_calls, reserve=reserve_calls)
        child._transports, child._family, child._signal, child._diagnostics = registry, family, below, part
        child._begin()
        return child

    # -- private

    def _set_up(self, host: Host, provider: Provider, given: RunnerOptions) -> None:
        _check_names(given)
        self._host, self._provider = host, provider
        self._models = _named(provider, given.get("models") or {})
        self._resend = given.get("resend")
        self._fallback = _order(given.get("fallback", ()), self._models, self._resend)
        self._options = _typed("options", given.get("options", ModelOptions()), ModelOptions)
        self._transports = _registry(given.get("transports", ()))
        self._call_timeout = given.get("call_timeout", CALL_TIMEOUT)
        check_seconds("ModelRunner.call_timeout", self._call_timeout)
        if not 0.001 <= self._call_timeout <= MAX_CALL_TIMEOUT:
            raise InputError(f"ModelRunner.call_timeout: expected 0.001 to {MAX_CALL_TIMEOUT} seconds")
        self._sizes = _sizes(given)
        self._max_output_tokens = given.get("max_output_tokens", MAX_OUTPUT_TOKENS)
        check_count("ModelRunner.max_output_tokens", self._max_output_tokens, 1)
        self._reasoning = _typed("reasoning", given.get("reasoning", False), bool)
        self._ledger = _ledger(given)
        self._family = Family(_typed("children", given.get("children", ChildLimits()), ChildLimits))
        execution = given.get("execution") or Execution()
        _typed("execution", execution, Execution)
        above = (host.signal,) if execution.signal is None else (host.signal, execution.signal)
        sink = given.get("sink")
        if execution.diagnostics is None:
            self._diagnostics = Diagnostics(output=sink, new_id=host.new_id, now_ms=host.now_ms)
        else:
            self._diagnostics = execution.diagnostics
            if sink is not None:
                raise InputError("ModelRunner.sink: expected none beside diagnostics, whose output it would be")
        self._signal = Signal(self._diagnostics.span_id, parents=above, clock=host.clock)
        self._begin()

    def _begin(self) -> None:
        self._emitter = self._diagnostics.bind(self._host.observers)
        self._busy = False
        self._count = 0

    async def _invoke(
        self, said: tuple[Message, ...], prepared: Prepared[T], began: float, started_at_ms: int
    ) -> ModelResult[T]:
        """Preflight; wait for a turn among children; then the call, within its time."""
        if self._watchers:
            self._host.observe(self._watchers)
            self._emitter.observers = self._host.observers
        self._preflight(prepared, said)
        turn = self._family.turn
        async with _NO_WAIT if turn is None else Bound(self._signal), _NO_WAIT if turn is None else turn:
            async with Bound(self._signal, self._call_timeout):
                return await self._call(prepared.messages(said), prepared, began, started_at_ms)

    def _preflight(self, prepared: Prepared[Any], said: tuple[Message, ...]) -> None:
        try:
            check_measured(measured(prepared, said, self._sizes))
            self._ledger.check("model_calls")
            self._ledger.check("tokens")
        except LimitExceeded as error:
            self._emitter.process(
                RequestRejected, code=error.code, limit=error.limit, allowed=error.allowed, got=error.got
            )
            raise

    async def _call(
        self, messages: tuple[Message, ...], prepared: Prepared[T], began: float, started_at_ms: int
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
            scope = self._scope(turn, prepared, began)
            collection = await self._attempts(scope, prepared)
        except BaseException as error:
            await settle(host.end(turn, *_ending(error)), last=True)
            raise error.error if isinstance(error, Rejected) else error
        finally:
            prepared.used = prepared.used or turn.model_calls > 0
            self._count += turn.model_calls
            await settle(host.leave(ref), last=True)
        return self._result(scope, prepared, collection, started_at_ms)

    async def _attempts(self, scope: Scope, prepared: Prepared[T]) -> Collection[T]:
        """Ask, and ask once more only where the host's policy says so and a budget covers it."""
        while True:
            collection = Collection(
                prepared.interaction.create_response,
                max_chars=self._sizes.max_output_chars,
                transport=prepared.transport,
                ref=scope.run_id,
            )
            try:
                await send(scope, collecting=collection)
            except (ProviderError, StreamRefused):
                again = None if scope.resend is None else next_attempt(scope.turn, scope.resend)
                if again is None or scope.ledger.left("model_calls") == 0 or scope.ledger.left("tokens") == 0:
                    raise
                await rest(scope, again)
            else:
                return collection

    def _scope(self, turn: Turn, prepared: Prepared[Any], began: float) -> Scope:
        host = self._host
        names, provider, resend = self._asked(prepared.model_id)
        return Scope(
            run_id=turn.run_id,
            agent=prepared.stage_id,
            conversation=None,
            deps=None,
            provider=provider,
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
            reasoning=self._reasoning,
            resend=resend,
            sleep=host.sleep,
            random=host.random,
            label=Label(prepared.stage_id, prepared.transport, prepared.route, self._count),
            model_names=names,
            began=began,
        )

    def _asked(self, model_id: str | None) -> tuple[tuple[str, ...], Provider, ResendPolicy | None]:
        """Names of the models a call may go to, the first of them, and when it goes to the others."""
        if model_id is None:
            return (), self._provider, self._resend
        others = tuple(name for name in self._fallback if name != model_id)
        resend = self._resend
        if resend is not None and others:
            resend = msgspec.structs.replace(resend, fallbacks=tuple(self._models[name] for name in others))
        return (model_id, *others), self._models[model_id], resend

    def _result(
        self, scope: Scope, prepared: Prepared[T], collection: Collection[T], started_at_ms: int
    ) -> ModelResult[T]:
        turn = scope.turn
        last, sent = turn.entries[-1], turn.sent
        assert sent is not None, "a reply follows a send"
        return ModelResult(
            value=collection.value,
            invocation=ModelCallRecord(
                invocation_id=last.attempt_id,
                ref=turn.run_id,
                call_sequence=self._count,
                started_at_ms=started_at_ms,
                stage_id=prepared.stage_id,
                model_id=collection.model_id,
                model=sent.model,
                transport=prepared.transport,
                route=prepared.route,
                usage=last.reply.usage,
            ),
        )

    def _transport(self, given: Transport[Any] | str | None) -> Transport[Any]:
        if given is None:
            return _PLAIN
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

    def _provider_of(self, model_id: str | None) -> Provider:
        if model_id is None:
            return self._provider
        known = self._models.get(model_id) if type(model_id) is str else None
        if known is None:
            choices = ", ".join(self._models) or "no name: there is one model"
            raise InputError(f"model_id: expected one of {choices}, got {str(model_id)[:80]!r}")
        return known

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
        own = self._diagnostics
        if (part.run_id, part.parent_span_id) != (own.run_id, own.span_id):
            raise InputError("child.diagnostics: expected a part of this runner's, got one of another run or parent")

    def __repr__(self) -> str:
        return f"<ModelRunner {self._diagnostics.span_id!r}: {self.remaining_calls} calls left>"


def _ending(error: BaseException) -> tuple[Any, str]:
    """Outcome and reason of a call that brought no value."""
    if isinstance(error, Rejected):
        return "limit_reached", error.error.limit
    if isinstance(error, BudgetError):
        return "limit_reached", error.limit
    if not isinstance(error, Exception):
        return "cancelled", "cancelled"
    return "failed", error.code if isinstance(error, AgentLoopError) else type(error).__name__


def _registry(transports: Sequence[Transport[Any]]) -> dict[str, Transport[Any]]:
    """Transports by id, plain text among them."""
    if isinstance(transports, str) or not isinstance(transports, Sequence):
        raise InputError(f"transports: expected a sequence of transports, got {type(transports).__name__}")
    known: dict[str, Transport[Any]] = {}
    for at, transport in enumerate(transports):
        if isinstance(transport, type) or not isinstance(transport, Transport):
            raise InputError(f"transports[{at}]: expected a transport, got {type(transport).__name__}")
        name = transport.id
        if type(name) is not str or not 1 <= len(name) <= 128:
            raise InputError(f"transports[{at}].id: expected a string of 1 to 128 characters")
        if name in known:
            raise InputError(f"transports[{at}].id: expected unique ids, got {name!r} twice")
        known[name] = transport
    known.setdefault(_PLAIN.id, _PLAIN)
    return known


def _named(provider: Provider, models: Mapping[str, Provider]) -> dict[str, Provider]:
    """The models by name, the runner's own as ``default``; empty where there are no others."""
    if not isinstance(provider, Provider):
        raise InputError(f"ModelRunner.provider: expected a Provider, got {type(provider).__name__}")
    if not isinstance(models, Mapping):
        raise InputError(f"ModelRunner.models: expected names with providers, got {type(models).__name__}")
    for name, other in models.items():
        if type(name) is not str or not 1 <= len(name) <= 128 or name == "default":
            raise InputError("ModelRunner.models: expected names of 1 to 128 characters other than 'default'")
        if not isinstance(other, Provider):
            raise InputError(f"ModelRunner.models[{name!r}]: expected a Provider, got {type(other).__name__}")
    return {"default": provider, **models} if models else {}


def _order(names: Sequence[str], models: Mapping[str, Provider], resend: ResendPolicy | None) -> tuple[str, ...]:
    if resend is not None and type(resend) is not ResendPolicy:
        raise InputError(f"ModelRunner.resend: expected a ResendPolicy, got {type(resend).__name__}")
    order = tuple(names) if isinstance(names, (list, tuple)) else None
    if order is None:
        raise InputError(f"ModelRunner.fallback: expected a list of model names, got {type(names).__name__}")
    unknown = [name for name in order if name not in models]
    if unknown:
        raise InputError(f"ModelRunner.fallback: expected names of models=, got {str(unknown[0])[:80]!r}")
    if len(set(order)) < len(order):
        raise InputError("ModelRunner.fallback: expected each name once")
    if order and resend is None:
        raise InputError("ModelRunner.fallback: expected resend= with it, which says when one is turned to")
    if models and resend is not None and resend.fallbacks:
        raise InputError("ModelRunner.resend: expected no fallbacks of its own beside models=; name them in fallback=")
    return order


def _typed(name: str, value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise InputError(f"ModelRunner.{name}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _sizes(given: RunnerOptions) -> Sizes:
    sizes = Sizes(
        max_input_chars=given.get("max_input_chars", MAX_INPUT_CHARS),
        max_output_chars=given.get("max_output_chars", MAX_OUTPUT_CHARS),
        max_schema_chars=given.get("max_schema_chars", MAX_SCHEMA_CHARS),
        tokens=given.get("token_budget"),
    )
    check_chars("ModelRunner.max_input_chars", sizes.max_input_chars)
    check_chars("ModelRunner.max_output_chars", sizes.max_output_chars)
    check_count("ModelRunner.max_schema_chars", sizes.max_schema_chars, 1)
    if sizes.tokens is not None:
        _typed("token_budget", sizes.tokens, TokenBudget)
        sizes.tokens.input_limit(given.get("max_output_tokens", MAX_OUTPUT_TOKENS))
    return sizes


def _ledger(given: RunnerOptions) -> Ledger:
    above, max_calls = given.get("ledger"), given.get("max_calls", MAX_RUNNER_CALLS)
    check_count("ModelRunner.max_calls", max_calls, 0)
    if given.get("max_tokens") is not None:
        check_count("ModelRunner.max_tokens", given["max_tokens"], 0)
    if above is None:
        return Ledger(model_calls=max_calls, tokens=given.get("max_tokens"))
    return _typed("ledger", above, Ledger).child(model_calls=max_calls, tokens=given.get("max_tokens"))


def _check_names(given: RunnerOptions) -> None:
    unknown = next(iter(given.keys() - RunnerOptions.__annotations__.keys()), None)
    if unknown is not None:
        raise TypeError(f"ModelRunner: expected the options {', '.join(RunnerOptions.__annotations__)}, got {unknown!r}")
