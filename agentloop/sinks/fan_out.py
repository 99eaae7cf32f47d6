"""Several sinks as one, and a queue as a sink."""

from __future__ import annotations

import asyncio

from ..events import ModelEnd, OutputEvent
from ..limits import check_count
from .sink import Sink, require_sink

__all__ = ["FanOut", "QueueSink"]


class FanOut:
    """Gives each event to every sink, in the order given; the first error ends the run.

    `ModelEnd` is given to all at once and whatever one of them does, so that none is left with a
    preview that does not stand (R265).

    Raises:
        InputError: one of them is no sink.
    """

    def __init__(self, *sinks: Sink) -> None:
        for at, sink in enumerate(sinks):
            require_sink(f"FanOut[{at}]", sink)
        self._sinks = sinks

    async def emit(self, event: OutputEvent) -> None:
        """Pass one event on.

        Raises:
            Exception: what the first failing sink raised; those after it did not get the event,
                unless it is the `ModelEnd`.
        """
        if type(event) is ModelEnd:
            results = await asyncio.gather(*(sink.emit(event) for sink in self._sinks), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return
        for sink in self._sinks:
            await sink.emit(event)


class QueueSink:
    """A bounded queue of events; a full queue holds the run up until its reader takes one.

    Args:
        max_events: 1 and up.
    """

    def __init__(self, max_events: int = 256) -> None:
        check_count("QueueSink.max_events", max_events, 1)
        self._queue: asyncio.Queue[OutputEvent] = asyncio.Queue(max_events)

    async def emit(self, event: OutputEvent) -> None:
        """Put one event, waiting for room."""
        await self._queue.put(event)

    async def get(self) -> OutputEvent:
        """Take the next event, waiting for one."""
        return await self._queue.get()
