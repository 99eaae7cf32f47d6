"""The collector of one attempt, held to its contract.

A refusal while the reply arrives ends nothing yet: the reply is read to its end, so that it is stored and
what it cost is known, and the collector, which is asked nothing more, has refused it then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ..errors import BudgetError, InputError, OutputRefused
from ..limits import SAFE_INTEGER, number_or_type
from ..messages import ModelReply
from ..wire.deltas import CallDelta, TextDelta
from .transport import Collector

__all__ = ["Collection"]

T = TypeVar("T")

_WORD: Final = 128


class Collection(Generic[T]):
    """Feeds a collector the fragments of one attempt, and counts what it holds after each (R188-R191).

    Args:
        create: makes the collector, once the attempt is admitted.
        max_chars: what it may hold, ``math.inf`` for no limit.
        transport: its id, and ``ref`` the run of the call, for errors.
        check: raises where the value is no longer wanted.

    Attributes:
        peak: the most characters that it held and said so.
    """

    __slots__ = ("_collector", "_create", "_max_chars", "_ref", "_refusal", "_transport", "_value", "_wanted", "peak")

    def __init__(
        self,
        create: Callable[[], Collector[T]],
        *,
        max_chars: float,
        transport: str,
        ref: str | None = None,
        check: Callable[[], object] = bool,
    ) -> None:
        self._create, self._max_chars = create, max_chars
        self._transport, self._ref = transport, ref
        self._collector: Collector[T] | None = None
        self._value: tuple[T] | None = None
        self._refusal: OutputRefused | None = None
        self._wanted = check
        self.peak = 0

    @property
    def value(self) -> T:
        """What was made of the reply; there is one once `finish` returned None."""
        assert self._value is not None, "a value is made before it is asked for"
        return self._value[0]

    def begin(self) -> None:
        """Make the collector (R186).

        Raises:
            Exception: what the transport raised; OutputRefused, BudgetError: as `take`.
            InputError: what it made is no collector.
        """
        try:
            collector = self._collector = self._create()
        except OutputRefused as error:
            self._name(error)
            raise
        for name in ("push", "finish"):
            method = getattr(collector, name, None)
            if not callable(method) or inspect.iscoroutinefunction(method):
                got = "an async one" if callable(method) else "none"
                rule = f"expected a collector with a method {name}, not async, got {got}"
                raise InputError(f"transport {self._transport!r}: {rule}")
        self._count(collector)

    def take(self, delta: TextDelta | CallDelta) -> None:
        """Hand on the next fragment; once the collector has refused one, hand on nothing.

        Raises:
            OutputRefused: ``bad_output_chars``. BudgetError: ``max_output_chars``.
        """
        if self._refusal is not None:
            return
        collector = self._collector
        assert collector is not None, "a collector is made before the first fragment"
        try:
            collector.push(delta.text if type(delta) is TextDelta else delta)  # type: ignore[arg-type]  # as above
        except OutputRefused as error:
            self._name(error)
            self._refusal = error
            return
        self._count(collector)

    def check(self) -> None:
        """Go on, or raise: whoever was told of the value may have kept a cancel to itself (R263, R267)."""
        self._wanted()

    def finish(self, reply: ModelReply) -> Exception | None:
        """Make the value of the checked reply; return why there is none: the refusal of `take`, where it kept one."""
        if self._refusal is not None:
            return self._refusal
        collector = self._collector
        assert collector is not None, "a collector is made before the reply"
        try:
            value = collector.finish(reply)
            self._count(collector)
        except Exception as error:  # noqa: BLE001  # it ends the attempt once the reply is stored
            if isinstance(error, OutputRefused):
                self._name(error)
            return error
        self._value = (value,)
        return None

    def call(self) -> str | None:
        """The collector's word on the call; None where it has none, or reading it fails (R200)."""
        try:
            word = getattr(self._collector, "call", None)
        except Exception:  # noqa: BLE001  # diagnostics at best: it may not hide how the call ended
            return None
        return word if type(word) is str and 0 < len(word) <= _WORD else None

    def _count(self, collector: Collector[T]) -> None:
        chars: object = collector.output_chars
        if type(chars) is not int or not 0 <= chars <= SAFE_INTEGER:
            rule = f"expected output_chars to be an integer of 0 or more, got {number_or_type(chars)}"
            raise OutputRefused("bad_output_chars", rule, transport=self._transport, ref=self._ref)
        self.peak = max(self.peak, chars)
        if chars > self._max_chars:
            raise BudgetError("max_output_chars", int(self._max_chars), chars)

    def _name(self, error: OutputRefused) -> None:
        error.transport = error.transport or self._transport
        error.ref = error.ref or self._ref
