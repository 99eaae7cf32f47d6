"""Who follows which turn at the moment, and what becomes of one that nobody follows any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from ...errors import AgentLoopError
from ...runtime import Runtime

__all__ = ["Attendance", "ClientGonePolicy"]

_log = logging.getLogger("agentloop.web")

ClientGonePolicy = Literal["detach", "cancel"]
"""What becomes of a turn that nobody follows any more: it goes on, or it is cancelled after a while."""


class Attendance:
    """The readers of turns, by the ids of their runs. One event loop.

    Args:
        policy: see `ClientGonePolicy`. seconds: how long clients have to come back before a turn is cancelled.
        goes_on: whether a run goes on here.
    """

    def __init__(
        self, runtime: Runtime, *, policy: ClientGonePolicy, seconds: float, goes_on: Callable[[str], bool]
    ) -> None:
        self._runtime, self._policy, self._seconds, self._goes_on = runtime, policy, seconds, goes_on
        self._readers: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._over = False

    @contextmanager
    def reading(self, ref: str) -> Iterator[None]:
        """Say, for the time of a block, that somebody follows a run."""
        self._readers[ref] = self._readers.get(ref, 0) + 1
        self.ended(ref)
        try:
            yield
        finally:
            self._readers[ref] -= 1
            if not self._readers[ref]:
                del self._readers[ref]
                self.unfollowed(ref)

    def unfollowed(self, ref: str) -> None:
        """Perhaps nobody follows a run: give clients time to come back before it is cancelled, where it shall be."""
        self.ended(ref)
        if self._policy == "cancel" and not self._over and self._is_alone(ref):
            loop = asyncio.get_running_loop()
            self._timers[ref] = loop.call_later(self._seconds, self._give_up, ref)

    def ended(self, ref: str) -> None:
        """A run need not be cancelled any more."""
        timer = self._timers.pop(ref, None)
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """Cancel nothing from here on."""
        self._over = True
        for ref in tuple(self._timers):
            self.ended(ref)

    async def close(self) -> None:
        """Let go of what is being cancelled: that goes on in the runtime."""
        self.stop()
        for task in tuple(self._cancelling):
            task.cancel()
        if self._cancelling:
            await asyncio.wait(self._cancelling)

    def _is_alone(self, ref: str) -> bool:
        return self._goes_on(ref) and ref not in self._readers

    def _give_up(self, ref: str) -> None:
        self.ended(ref)
        if self._is_alone(ref):
            task = asyncio.get_running_loop().create_task(self._cancel(ref), name=f"cancel {ref}")
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, ref: str) -> None:
        try:
            await self._runtime.cancel(ref)
        except AgentLoopError as error:
            _log.warning("run %s, which nobody follows, could not be cancelled: %s", ref, type(error).__name__)
