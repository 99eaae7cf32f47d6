"""Who receives events."""

from __future__ import annotations

from typing import Protocol

from ..events import Event, OutputEvent

__all__ = ["Observer", "Sink"]


class Sink(Protocol):
    """Receives a run's output events: previews and their start and end.

    Calls are awaited one after the other, at most one a network read, so a slow sink slows its own
    run down and nothing else. An error it raises ends the run; only for `ModelEnd` it does not
    (that notice has 250 ms, also after a cancel).
    """

    async def emit(self, event: OutputEvent) -> None:
        """Take one event."""


class Observer(Protocol):
    """Watches every event of every run, on the side.

    It has its own bounded queue and task: what it raises is logged and counted, what it is too
    slow for is dropped and counted, and neither reaches a run.
    """

    async def observe(self, event: Event) -> None:
        """Take one event."""
