"""How a run tells what happens: one numbering, then sink, feed and observers, in that order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from ..events import Event, ModelEnd, ModelParsed, OutputEvent, ReasoningPreview, TextPreview, event_id
from ..events.envelope import wall_ms
from ..limits import MODEL_END_SECONDS
from .cancels import put_off, take_cancel
from .feed import Feed
from .observers import ObserverHub
from .sink import Sink

__all__ = ["Emitter"]

_log = logging.getLogger("agentloop.sinks")

E = TypeVar("E", bound=Event)

_PASSING: Final = (TextPreview, ReasoningPreview, ModelParsed)
"""What a journal takes nothing of, so that it needs no event where nobody else hears."""


class Emitter:
    """Stamps and delivers the events of one run, or of one part of it. One task at a time may call it,
    but for `aside`, which is for all others.

    Args:
        feed: kept for readers; None keeps nothing.
        observers, journal: hear of every event, at once; neither waits nor raises.
        span_id, parent_span_id: of the part, None for the run itself.
        numbers: where the run's numbering goes on, shared by its parts; None where there are none.
    """

    __slots__ = (
        "_delivering",
        "_journal",
        "_later",
        "_now",
        "_numbers",
        "_parent_span_id",
        "_sequence",
        "_sink",
        "_sink_failed",
        "feed",
        "observers",
        "run_id",
        "span_id",
    )

    def __init__(
        self,
        run_id: str,
        feed: Feed | None,
        *,
        sink: Sink | None = None,
        observers: ObserverHub | None = None,
        journal: Callable[[Event], None] | None = None,
        span_id: str | None = None,
        parent_span_id: str | None = None,
        numbers: Iterator[int] | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.run_id, self.feed, self.span_id = run_id, feed, span_id or run_id
        self._sink, self._journal, self._now = sink, journal, now_ms
        self.observers = observers or None
        self._parent_span_id = parent_span_id
        self._numbers, self._sequence = numbers, 0
        self._delivering = False  # an output event is with the sink
        self._later: list[tuple[type[Event], dict[str, Any]]] = []  # told aside meanwhile
        self._sink_failed = False  # a sink's failure ends the call, so it is not told again in the log

    def _make(self, kind: type[E], invocation_id: str | None, fields: dict[str, Any]) -> E:
        numbers = self._numbers
        self._sequence = sequence = self._sequence + 1 if numbers is None else next(numbers)
        inner = invocation_id is not None
        return kind(
            event_id=event_id(self.run_id, sequence),
            occurred_at_ms=self._now(),
            run_id=self.run_id,
            span_id=invocation_id or self.span_id,
            parent_span_id=self.span_id if inner else self._parent_span_id,
            invocation_id=invocation_id,
            **fields,
        )

    def _publish(self, event: Event, sequence: int) -> None:
        if self.feed is not None:
            self.feed.push(event, sequence)
        if self._journal is not None:
            self._journal(event)
        if self.observers is not None:
            self.observers.push(event)

    def _delivered(self, event: Event, sequence: int) -> None:
        """The sink has had an output event: publish it, and what was told aside meanwhile."""
        self._delivering = False
        self._publish(event, sequence)
        if self._later:
            later, self._later = self._later, []
            for kind, fields in later:
                self.process(kind, **fields)

    def process(self, kind: type[E], invocation_id: str | None = None, **fields: Any) -> None:
        """Tell readers and observers what happened. Never waits, never raises."""
        event = self._make(kind, invocation_id, fields)
        self._publish(event, self._sequence)

    def aside(self, kind: type[Event], **fields: Any) -> None:
        """As `process`, for any task of the event loop.

        Where an output event is with the sink, this one comes after it: readers get events in the order of
        their numbers.
        """
        if self._delivering:
            self._later.append((kind, fields))
        else:
            self.process(kind, **fields)

    async def output(self, kind: type[OutputEvent], invocation_id: str, **fields: Any) -> None:
        """Deliver one output event: to the sink first, awaited, then to readers and observers.

        These get it also when the sink fails, so that every `ModelEnd` has its `ModelStart`.

        Raises:
            Exception: what the sink raised.
        """
        if self._sink is None and self.feed is None and self.observers is None and kind in _PASSING:
            return
        event = self._make(kind, invocation_id, fields)
        sequence = self._sequence
        try:
            if self._sink is not None:
                self._delivering = True
                await self._sink.emit(event)
        except Exception:
            self._sink_failed = True
            raise
        finally:
            self._delivered(event, sequence)
        if self.feed is not None and self.feed.behind:
            await self.feed.room()

    async def end(self, invocation_id: str, **fields: Any) -> None:
        """Deliver `ModelEnd` within 250 ms. Its failure changes nothing (R264, R265), and is logged.

        When the run is ending because its sink failed before, the run's own error tells of it.

        A cancel that was put off is raised after it, not in the sink. Another one that arrives meanwhile is
        passed on after the event is published.
        """
        event = self._make(ModelEnd, invocation_id, fields)
        sequence = self._sequence
        if self._sink is None:
            self._publish(event, sequence)
            return
        self._delivering = True
        task = asyncio.current_task()
        kept = None
        if self._sink is not None and task is not None and task.cancelling():
            kept = await take_cancel()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(MODEL_END_SECONDS):
                await self._sink.emit(event)
        except TimeoutError:
            _log.warning("sink took longer than %d ms for model.end", int(MODEL_END_SECONDS * 1000))
        except (Exception, asyncio.CancelledError) as error:  # whatever a host's sink raises
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > cancels:
                raise  # it is this task that is cancelled
            if not self._sink_failed:
                _log.exception("sink failed on model.end; the outcome stands")
        finally:
            self._sink_failed = False  # of this call; a runner's emitter tells of others as well
            self._delivered(event, sequence)
        if kept is not None:
            put_off(kept)
