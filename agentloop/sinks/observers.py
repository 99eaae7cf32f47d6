"""Observers: bounded, isolated, one task each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from ..events import Event
from ..limits import check_count
from .sink import Observer

__all__ = ["ObserverHub"]

_log = logging.getLogger("agentloop.observers")


class _Pump:
    """One observer's queue and task."""

    def __init__(self, observer: Observer, max_events: int) -> None:
        self._observer = observer
        self._queue: deque[Event] = deque()
        self._max = max_events
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.dropped = 0
        self.failed = 0
        self.task = asyncio.get_running_loop().create_task(self._run(), name="agentloop observer")

    def push(self, event: Event) -> None:
        if len(self._queue) >= self._max:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(event)
        self.idle.clear()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            while self._queue:
                event = self._queue.popleft()
                try:
                    await self._observer.observe(event)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # whatever a host raises
                    if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
                        raise
                    self.failed += 1
                    if self.failed == 1:  # once an observer, not once an event
                        _log.exception("observer %s failed; the run goes on", type(self._observer).__qualname__)
            self._wake.clear()
            self.idle.set()

    def stop(self) -> None:
        self.dropped += len(self._queue)
        self._queue.clear()
        self.task.cancel()


class ObserverHub:
    """All observers of a runtime.

    Args:
        max_events: how many events wait for one observer; the oldest is dropped for a newer one.

    Attributes:
        dropped, failed: events lost to a full queue or at closing, and errors raised, over all.
    """

    def __init__(self, observers: Sequence[Observer], *, max_events: int = 4096) -> None:
        check_count("ObserverHub.max_events", max_events, 1)
        self._pumps = [_Pump(observer, max_events) for observer in observers]

    def __bool__(self) -> bool:
        return bool(self._pumps)

    @property
    def dropped(self) -> int:
        """Events no observer call was made for."""
        return sum(pump.dropped for pump in self._pumps)

    @property
    def failed(self) -> int:
        """Errors that observers raised."""
        return sum(pump.failed for pump in self._pumps)

    def push(self, event: Event) -> None:
        """Queue one event for every observer; never waits, never raises."""
        for pump in self._pumps:
            pump.push(event)

    async def close(self, seconds: float = 1.0) -> None:
        """Let the queues run empty for at most ``seconds`` over all, then end the tasks."""
        try:
            async with asyncio.timeout(seconds):
                for pump in self._pumps:
                    await pump.idle.wait()
        except TimeoutError:
            pass  # what is left is counted as dropped
        finally:
            for pump in self._pumps:
                pump.stop()
        if self._pumps:
            await asyncio.wait([pump.task for pump in self._pumps])
