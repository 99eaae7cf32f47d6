"""Where a workflow's model calls go: a runner of its own for each run, or one that is there already.

A *definition* makes a runner whenever a run begins (R268), so each run has the definition's whole budget. A
*service* exists already, and its budget, counts, cancellation and observers are those of all that use it: a
later run gets no new quota (R269). A service need not be a `ModelRunner`; whatever has ``invoke`` and
``prepare`` will do. They are looked up once, when it is bound; the service itself is neither copied nor
changed (R272).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, Self, Unpack, cast

from ..effects import Ledger, settle
from ..errors import InputError
from ..limits import CLOSE_SECONDS
from ..providers import Provider
from ..runner import Execution, ModelRunner, RunnerOptions
from ..sinks import Diagnostics, ObserverHub

__all__ = ["BoundModel", "ModelDefinition", "ModelService", "RunnerDefinition", "close_service"]

_log = logging.getLogger("agentloop.workflow")


class ModelService(Protocol):
    """What makes model calls, as `ModelRunner` does.

    ``measure``, ``remaining_calls``, ``call_count`` and ``total_call_count`` are read where it has them.
    """

    @property
    def invoke(self) -> Callable[..., Awaitable[Any]]:
        """Makes one call."""
        ...

    @property
    def prepare(self) -> Callable[..., Any]:
        """Prepares one; the handle is for ``invoke``."""
        ...


ModelDefinition = Callable[[Execution], ModelService]
"""Makes the service of one run. The execution has the run's signal and its diagnostics, to make a part of."""


class RunnerDefinition:
    """A `ModelRunner` for each run of an engine, all with the same options.

        engine = al.Engine(workflow, model=al.RunnerDefinition(provider, max_calls=4))

    Args:
        provider: what sends.
        options: see `RunnerOptions`; without ``execution``, which each run has of its own.

    Raises:
        InputError, TypeError: as of `ModelRunner`.
    """

    __slots__ = ("_make", "_options", "_sink")

    def __init__(self, provider: Provider, **options: Unpack[RunnerOptions]) -> None:
        self._set_up(partial(ModelRunner, provider), options)

    @classmethod
    def of(cls, make: Callable[..., ModelRunner], options: RunnerOptions) -> Self:
        """A definition of runners that somebody else makes of options."""
        definition = cls.__new__(cls)
        definition._set_up(make, options)
        return definition

    def _set_up(self, make: Callable[..., ModelRunner], options: RunnerOptions) -> None:
        if options.get("execution") is not None:
            raise InputError(
                "RunnerDefinition.execution: expected none, since each run has its own; give it the Engine"
            )
        make(**options)  # so that a wrong value is refused here
        rest = {name: value for name, value in options.items() if name not in ("sink", "execution")}
        self._make, self._options, self._sink = make, cast("RunnerOptions", rest), options.get("sink")

    def __call__(self, execution: Execution, /) -> ModelRunner:
        """The runner of one run."""
        above = execution.diagnostics
        part = Diagnostics(output=self._sink) if above is None else above.child(output=self._sink)
        return self._make(**self._options, execution=Execution(signal=execution.signal, diagnostics=part))


class BoundModel:
    """A service with its receivers fixed.

    Attributes:
        service: as it was given.
        invoke, prepare, measure: its own, as they were when it was bound; ``measure`` is None where it has none.

    Raises:
        InputError: it has no ``invoke`` or ``prepare``.
    """

    __slots__ = ("invoke", "measure", "prepare", "service")

    def __init__(self, name: str, service: Any) -> None:
        for method in ("invoke", "prepare"):
            if isinstance(service, type) or not callable(getattr(service, method, None)):
                raise InputError(f"{name}: expected what has invoke and prepare, got {type(service).__name__}")
        self.service = service
        self.invoke: Callable[..., Awaitable[Any]] = service.invoke
        self.prepare: Callable[..., Any] = service.prepare
        measure = getattr(service, "measure", None)
        self.measure: Callable[..., Any] | None = measure if callable(measure) else None

    @property
    def execution(self) -> Execution:
        """What binds its calls: empty where it is no `ModelRunner`."""
        return self.service.execution if isinstance(self.service, ModelRunner) else Execution()

    @property
    def ledger(self) -> Ledger | None:
        """Its budget; None where it is no `ModelRunner`."""
        return self.service.ledger if isinstance(self.service, ModelRunner) else None

    @property
    def observers(self) -> ObserverHub | None:
        """Who watches its calls; None where nobody is known to."""
        return self.service.observers if isinstance(self.service, ModelRunner) else None

    def count(self, name: str) -> int:
        """One of its counts, as it is now.

        Raises:
            InputError: it has none of this name.
        """
        value = getattr(self.service, name, None)
        if type(value) is not int:
            raise InputError(f"context.model.{name}: expected a service that counts, got {type(self.service).__name__}")
        return value


async def close_service(service: object, error: BaseException | None) -> None:
    """End what a definition made for one run, whatever cancels arrive.

    A close that fails, or has not ended after `CLOSE_SECONDS` and is cut off then, changes nothing of what the run
    came to: it is said in the log, and is a note of the run's error.

    Args:
        service: closed by its ``aclose``, where it has one. error: what the run ends with; None for a result.
    """
    if inspect.iscoroutine(service):  # of an async definition, which makes no service
        service.close()
        return
    aclose = getattr(service, "aclose", None)
    if isinstance(service, type) or not callable(aclose):
        return
    closing = asyncio.get_running_loop().create_task(_closed(aclose), name="agentloop engine closing")
    await settle(asyncio.wait({closing}, timeout=CLOSE_SECONDS))
    if not closing.done():
        closing.cancel()
        what = f"had not ended after {CLOSE_SECONDS:g} s"
    elif (fault := closing.result()) is not None:
        what = f"raised {type(fault).__name__}"
    else:
        return
    said = f"the close of the run's own {type(service).__name__} {what}"
    _log.error("%s", said)
    if error is not None:
        error.add_note(f"Besides, {said}.")


async def _closed(aclose: Callable[[], Any]) -> Exception | asyncio.CancelledError | None:
    """Close; what that raised is returned, since nobody may be there any more who would be told."""
    try:
        closing = aclose()
        if inspect.isawaitable(closing):
            await closing
    except (Exception, asyncio.CancelledError) as fault:  # noqa: BLE001  # handed on, and said
        return fault
    return None
