"""A sink and observer that keeps what it gets."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ..events import Event, TextPreview

__all__ = ["RecordingSink"]

E = TypeVar("E", bound=Event)


class RecordingSink:
    """Keeps every event, in order; serves as a sink and as an observer.

    Args:
        gate: when given, each event is kept only once the gate is open, so a test can hold a run
            at its next event; ``waiting`` says that one has arrived there.
        fails_on: raise this error instead of taking an event of the given type.
    """

    def __init__(
        self, *, gate: asyncio.Event | None = None, fails_on: tuple[type[Event], Exception] | None = None
    ) -> None:
        self.events: list[Event] = []
        self.waiting = asyncio.Event()
        self._gate, self._fails_on = gate, fails_on

    async def emit(self, event: Event) -> None:
        """Take one event."""
        if self._gate is not None and not self._gate.is_set():
            self.waiting.set()
            await self._gate.wait()
        if self._fails_on is not None and isinstance(event, self._fails_on[0]):
            raise self._fails_on[1]
        self.events.append(event)

    async def observe(self, event: Event) -> None:
        """Take one event, as an observer."""
        await self.emit(event)

    @property
    def types(self) -> list[str]:
        """The events' types, in order."""
        return [event.type for event in self.events]

    @property
    def text(self) -> str:
        """All previewed text, joined; includes what was retracted later."""
        return "".join(event.text for event in self.events if isinstance(event, TextPreview))

    def of(self, kind: type[E]) -> list[E]:
        """The events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]
