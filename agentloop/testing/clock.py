"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio

from ..errors import InputError
from ..limits import check_seconds

__all__ = ["FakeClock"]


class FakeClock:
    """Monotonic seconds, wall milliseconds and sleep, all on one hand.

        clock = FakeClock()
        runtime = Runtime(provider, clock=clock, now_ms=clock.now_ms)
        clock.advance(15)

    Args:
        now: seconds it begins at. epoch_ms: wall time at 0 seconds, in milliseconds.
    """

    def __init__(self, *, now: float = 0.0, epoch_ms: int = 1_700_000_000_000) -> None:
        self.now = now
        self._epoch_ms = epoch_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        """Monotonic seconds."""
        return self.now

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch."""
        return self._epoch_ms + round(self.now * 1000)

    def advance(self, seconds: float) -> None:
        """Move on, and wake who sleeps until then, in the order of their times."""
        check_seconds("FakeClock.advance", seconds)
        self.now += seconds
        due = sorted((item for item in self._sleepers if item[0] <= self.now), key=lambda item: item[0])
        self._sleepers = [item for item in self._sleepers if item[0] > self.now]
        for _, waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Return when the clock was advanced far enough; 0 gives other tasks a turn."""
        if seconds < 0:
            raise InputError(f"FakeClock.sleep: expected 0 seconds or more, got {seconds}")
        if seconds == 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        entry = (self.now + seconds, waiter)
        self._sleepers.append(entry)
        try:
            await waiter
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)

    @property
    def sleepers(self) -> int:
        """How many tasks sleep."""
        return len(self._sleepers)
