"""One part of a run, seen by who tells of it: its span, its journal, and where its events go.

A run's parts share its id and its numbering, so that their events have one order; each has a span
of its own below the part that made it. A part tells of one runner, and stays with its run (R276).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Self

from ..errors import InputError
from ..events import Event, Journal
from ..events.envelope import random_id, wall_ms
from ..limits import check_name
from .emitter import Emitter
from .observers import ObserverHub
from .sink import Sink, require_sink

__all__ = ["Diagnostics"]


class Diagnostics:
    """Where a part of a run is told.

    Args:
        output: gets the output events of this part, awaited in order; not those of its children.
        run_id: the run it belongs to; by default a new one.
        span_id: its own id; by default the run's.

    Attributes:
        run_id, span_id, parent_span_id: as its events have them.
        above: the part that made it; None is the run itself.
        journal: what was told, as records.

    Raises:
        InputError: a value of another type, by name.
    """

    __slots__ = (
        "_emitter",
        "_new_id",
        "_now_ms",
        "_numbers",
        "_spans",
        "above",
        "journal",
        "output",
        "parent_span_id",
        "run_id",
        "span_id",
    )

    def __init__(
        self,
        *,
        output: Sink | None = None,
        run_id: str | None = None,
        span_id: str | None = None,
        new_id: Callable[[], str] = random_id,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        for name, value in (("run_id", run_id), ("span_id", span_id)):
            if value is not None:
                check_name(f"Diagnostics.{name}", value)
        if output is not None:
            require_sink("Diagnostics.output", output)
        self.run_id = new_id() if run_id is None else run_id
        self.span_id = self.run_id if span_id is None else span_id
        self.parent_span_id: str | None = None if span_id in (None, self.run_id) else self.run_id
        self.output = output
        self._new_id, self._now_ms = new_id, now_ms
        self.above: Self | None = None
        self._numbers: Iterator[int] = itertools.count(1)
        self._spans = {self.run_id, self.span_id}
        self._emitter: Emitter | None = None
        self.journal = Journal(run_id=self.run_id, new_id=new_id, now_ms=now_ms)

    @classmethod
    def part_of(cls, run_id: str, span_id: str, *, numbers: Iterator[int], now_ms: Callable[[], int] = wall_ms) -> Self:
        """A part of a run that somebody else tells of, with whom it shares ``numbers``."""
        part = cls(run_id=run_id, span_id=span_id, now_ms=now_ms)
        part._numbers = numbers
        return part

    def child(self, span_id: str | None = None, *, output: Sink | None = None) -> Self:
        """A part below this one, with a journal of its own.

        Args:
            span_id: one that no other part of the run has; by default a new one.

        Raises:
            InputError: as for the class, or the run has a part of that id.
        """
        part = type(self)(
            output=output,
            run_id=self.run_id,
            span_id=self._new_id() if span_id is None else span_id,
            new_id=self._new_id,
            now_ms=self._now_ms,
        )
        if part.span_id in self._spans:
            raise InputError(f"Diagnostics.span_id: expected one that is new in its run, got {part.span_id!r} again")
        self._spans.add(part.span_id)
        part.parent_span_id, part.above = self.span_id, self
        part._numbers, part._spans = self._numbers, self._spans
        return part

    def check_free(self) -> None:
        """Refuse a part that a runner has.

        Raises:
            InputError: it has.
        """
        if self._emitter is not None:
            raise InputError("Diagnostics: expected a part that no runner has, got one that is in use")

    def bind(self, observers: ObserverHub | None) -> Emitter:
        """What tells the events of this part; for one runner, or one run of an engine.

        Raises:
            InputError: a runner has it already.
        """
        self.check_free()
        self._emitter = Emitter(
            self.run_id,
            None,
            sink=self.output,
            observers=observers,
            journal=self._record,
            span_id=self.span_id,
            parent_span_id=self.parent_span_id,
            numbers=self._numbers,
            now_ms=self._now_ms,
        )
        return self._emitter

    def within(self, span_id: str, parent_span_id: str | None) -> AbstractContextManager[None]:
        """A block in which what is told here is part of another execution of the same run.

        Raises:
            InputError: nobody tells anything of this part.
        """
        if self._emitter is None:
            raise InputError("Diagnostics: expected a part that a runner has, got one that nobody tells of")
        return self._emitter.within(span_id, parent_span_id)

    def _record(self, event: Event) -> None:
        self.journal.apply(event)

    def __repr__(self) -> str:
        return f"Diagnostics(run_id={self.run_id!r}, span_id={self.span_id!r})"
