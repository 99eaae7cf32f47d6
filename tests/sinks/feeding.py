"""A feed with an emitter in front of it, and short ways to say what happens."""

from __future__ import annotations

import asyncio
from typing import Any

from agentloop.events import (
    Event,
    ModelParsed,
    ModelStart,
    ReasoningPreview,
    RequestRejected,
    TextPreview,
)
from agentloop.messages import Termination
from agentloop.sinks import Emitter, Feed, Follower, ObserverHub, Sink

__all__ = ["Line", "taken"]


class Line:
    """One run's emitter and feed; model calls are ``a1``, ``a2``…"""

    def __init__(
        self, *, sink: Sink | None = None, observers: ObserverHub | None = None, high_water: int = 256, run: str = "run"
    ) -> None:
        self.feed = Feed(high_water=high_water)
        self.now = 1_000
        self.emitter = Emitter(run, self.feed, sink=sink, observers=observers, now_ms=lambda: self.now)
        self._call = 0
        self._offsets: dict[type[Event], int] = {}

    @property
    def attempt(self) -> str:
        return f"a{self._call}"

    async def start(self) -> None:
        self._call += 1
        self._offsets = {TextPreview: 0, ReasoningPreview: 0}
        await self.emitter.output(ModelStart, self.attempt, attempt_id=self.attempt, call_sequence=self._call)

    async def show(self, text: str, kind: type[TextPreview | ReasoningPreview] = TextPreview) -> None:
        offset = self._offsets[kind]
        self._offsets[kind] += len(text)
        await self.emitter.output(kind, self.attempt, attempt_id=self.attempt, offset=offset, text=text)

    async def parsed(self) -> None:
        await self.emitter.output(
            ModelParsed,
            self.attempt,
            attempt_id=self.attempt,
            text_chars=self._offsets[TextPreview],
            calls=0,
            termination=Termination.of("stop"),
        )

    async def end(self, status: str = "success", **fields: Any) -> None:
        await self.emitter.end(
            self.attempt,
            attempt_id=self.attempt,
            call_sequence=self._call,
            status=status,
            retracted=status != "success",
            **fields,
        )

    async def call(self, *texts: str, status: str = "success") -> None:
        await self.start()
        for text in texts:
            await self.show(text)
        await self.end(status)

    def note(self, code: str = "x") -> None:
        self.emitter.process(RequestRejected, code=code, limit="l", allowed=1, got=2)


async def taken(follower: Follower, count: int | None = None) -> list[Event]:
    """The events that are there to read now, ``count`` at most; waits for none."""
    events: list[Event] = []
    while count is None or len(events) < count:
        reading = asyncio.ensure_future(follower.__anext__())
        for _ in range(3):
            await asyncio.sleep(0)
        if not reading.done():
            reading.cancel()
            await asyncio.wait({reading})
            break
        if isinstance(reading.exception(), StopAsyncIteration):
            break
        events.append(reading.result())
    return events
