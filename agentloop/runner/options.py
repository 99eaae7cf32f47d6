"""What a model runner is made of, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar

import msgspec

from ..effects import Ledger, ResendPolicy, Signal
from ..errors import InputError
from ..limits import (
    CALL_TIMEOUT,
    MAX_CALL_TIMEOUT,
    MAX_INPUT_CHARS,
    MAX_OUTPUT_CHARS,
    MAX_OUTPUT_TOKENS,
    MAX_RUNNER_CALLS,
    MAX_SCHEMA_CHARS,
    check_chars,
    check_count,
    check_name,
    check_seconds,
)
from ..messages import ModelOptions
from ..providers import Provider
from ..sinks import Diagnostics, Sink, require_sink
from .children import ChildLimits
from .prepared import Sizes, require_asked
from .tokens import TokenBudget
from .transport import Transport
from .transports import PlainText

__all__ = [
    "Execution",
    "Models",
    "PLAIN",
    "PerCall",
    "RunnerOptions",
    "check_names",
    "checked_children",
    "checked_execution",
    "checked_ledger",
    "per_call",
    "registry",
]

T = TypeVar("T")

PLAIN: Final = PlainText()
"""The transport of a call that names none."""

_LEAST_TIMEOUT: Final = 0.001


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
        options: `ModelOptions` of every call, without ``max_output_tokens``; what a transport asks for
            overrides them.
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


class Models:
    """The models of one runner: its provider, others by name, and where a call goes after a refusal.

    Args:
        given: see `RunnerOptions`.

    Attributes:
        default: name of the runner's own provider, None where it is the only one.

    Raises:
        InputError: a value of another type, or names that do not fit together.
    """

    __slots__ = ("_fallback", "_own", "_resend", "by_name", "default")

    def __init__(self, provider: Provider, given: RunnerOptions) -> None:
        self._own = provider
        self.by_name = _named(provider, given.get("models") or {})
        self.default = "default" if self.by_name else None
        self._resend = given.get("resend")
        self._fallback = _order(given.get("fallback", ()), self.by_name, self._resend)

    def name(self, model_id: str | None) -> str | None:
        """The name of the model that a call asks for; None where there is one model.

        Raises:
            InputError: there is none of that name.
        """
        if model_id is None:
            return self.default
        if type(model_id) is not str or model_id not in self.by_name:
            choices = ", ".join(self.by_name) or "no name: there is one model"
            raise InputError(f"model_id: expected one of {choices}, got {str(model_id)[:80]!r}")
        return model_id

    def provider(self, name: str | None) -> Provider:
        """The provider of a name that `name` gave."""
        return self._own if name is None else self.by_name[name]

    def asked(self, name: str | None) -> tuple[tuple[str, ...], ResendPolicy | None]:
        """Names of the models a call may go to, the first of them first, and when it goes to the others."""
        resend = self._resend
        if name is None:
            return (), resend
        others = tuple(other for other in self._fallback if other != name)
        if resend is not None and others:
            resend = msgspec.structs.replace(resend, fallbacks=tuple(self.by_name[other] for other in others))
        return (name, *others), resend


class PerCall(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds each call of a runner and of its children; see `RunnerOptions`.

    ``options`` have the reservation of a call that says none.
    """

    options: ModelOptions
    timeout: float
    sizes: Sizes
    reasoning: bool

    def reserving(self, max_output_tokens: int | None) -> ModelOptions:
        """The options of a call that may write so much; None is the runner's reservation, which is in them."""
        if max_output_tokens is None:
            return self.options  # the very object, whose encoding the calls of a runner share
        check_count("max_output_tokens", max_output_tokens, 1)
        return msgspec.structs.replace(self.options, max_output_tokens=max_output_tokens)


def per_call(given: RunnerOptions) -> PerCall:
    """Check what bounds each call.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """
    timeout = given.get("call_timeout", CALL_TIMEOUT)
    check_seconds("ModelRunner.call_timeout", timeout)
    if not _LEAST_TIMEOUT <= timeout <= MAX_CALL_TIMEOUT:
        raise InputError(
            f"ModelRunner.call_timeout: expected {_LEAST_TIMEOUT} to {MAX_CALL_TIMEOUT} seconds, got {timeout}"
        )
    max_output_tokens = given.get("max_output_tokens", MAX_OUTPUT_TOKENS)
    check_count("ModelRunner.max_output_tokens", max_output_tokens, 1)
    options = _typed("options", given.get("options", ModelOptions()), ModelOptions)
    if options.max_output_tokens is not None:
        raise InputError("ModelRunner.options: expected no max_output_tokens, which the runner has by itself")
    options = msgspec.structs.replace(options, max_output_tokens=max_output_tokens)
    require_asked(options)
    return PerCall(
        options=options,
        timeout=timeout,
        sizes=_sizes(given, max_output_tokens),
        reasoning=_typed("reasoning", given.get("reasoning", False), bool),
    )


def checked_execution(given: RunnerOptions) -> Execution:
    """What the runner works for.

    Raises:
        InputError: it is no `Execution`, the sink is none, or there is one beside its diagnostics.
    """
    execution, sink = given.get("execution"), given.get("sink")
    if sink is not None:
        require_sink("ModelRunner.sink", sink)
    if execution is None:
        return Execution()
    _typed("execution", execution, Execution)
    if execution.diagnostics is not None and sink is not None:
        raise InputError("ModelRunner.sink: expected none beside diagnostics, whose output it would be")
    return execution


def checked_children(given: RunnerOptions) -> ChildLimits:
    """What the children of the runner share.

    Raises:
        InputError: another type.
    """
    return _typed("children", given.get("children", ChildLimits()), ChildLimits)


def registry(transports: Sequence[Transport[Any]]) -> dict[str, Transport[Any]]:
    """Transports by id, plain text among them.

    Raises:
        InputError: something that is no transport, or an id that is no text, or there twice, or that of
            plain text.
    """
    if isinstance(transports, str) or not isinstance(transports, Sequence):
        raise InputError(f"transports: expected a sequence of transports, got {type(transports).__name__}")
    known: dict[str, Transport[Any]] = {}
    for at, transport in enumerate(transports):
        if isinstance(transport, type) or not isinstance(transport, Transport):
            raise InputError(f"transports[{at}]: expected a transport, got {type(transport).__name__}")
        name = transport.id
        check_name(f"transports[{at}].id", name)
        if name in known:
            raise InputError(f"transports[{at}].id: expected unique ids, got {name!r} twice")
        if name == PLAIN.id and type(transport) is not PlainText:
            raise InputError(f"transports[{at}].id: expected another id than {name!r}, which is plain text")
        known[name] = transport
    known.setdefault(PLAIN.id, PLAIN)
    return known


def _named(provider: Provider, models: Mapping[str, Provider]) -> dict[str, Provider]:
    """The models by name, the runner's own as ``default``; empty where there are no others."""
    if not isinstance(provider, Provider):
        raise InputError(f"ModelRunner.provider: expected a Provider, got {type(provider).__name__}")
    if not isinstance(models, Mapping):
        raise InputError(f"ModelRunner.models: expected names with providers, got {type(models).__name__}")
    for name, other in models.items():
        check_name("ModelRunner.models: a name", name)
        if name == "default":
            raise InputError("ModelRunner.models: expected other names than 'default', which is the runner's own")
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


def _sizes(given: RunnerOptions, max_output_tokens: int) -> Sizes:
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
        sizes.tokens.input_limit(max_output_tokens)
    return sizes


def checked_ledger(given: RunnerOptions) -> Ledger:
    """The budget of the runner, below the one it was given.

    Raises:
        InputError: a grant outside its range, or no ledger.
    """
    above, max_calls = given.get("ledger"), given.get("max_calls", MAX_RUNNER_CALLS)
    check_count("ModelRunner.max_calls", max_calls, 0)
    if given.get("max_tokens") is not None:
        check_count("ModelRunner.max_tokens", given["max_tokens"], 0)
    if above is None:
        return Ledger(model_calls=max_calls, tokens=given.get("max_tokens"))
    return _typed("ledger", above, Ledger).child(model_calls=max_calls, tokens=given.get("max_tokens"))


def check_names(given: RunnerOptions) -> None:
    """Refuse what is no option.

    Raises:
        TypeError: as for any keyword.
    """
    unknown = next(iter(given.keys() - RunnerOptions.__annotations__.keys()), None)
    if unknown is not None:
        known = ", ".join(RunnerOptions.__annotations__)
        raise TypeError(f"ModelRunner: expected the options {known}, got {unknown!r}")
