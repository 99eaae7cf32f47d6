"""The clocks of a stream, with one timer.

A timer that is moved at every read costs more than the read. So one timer is set for the earliest
moment at which a clock *can* run out; when it fires, the clocks are compared with what happened
since, and it is set again. No read ever touches it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..limits import Timeouts
from .reading import ReplyStream

__all__ = ["ClockExpired", "Inbox", "Watchdog"]


class ClockExpired(Exception):
    """A clock ran out; ``code`` and ``expected`` are those of the refusal it becomes."""

    def __init__(self, code: str, expected: str) -> None:
        super().__init__(code, expected)
        self.code, self.expected = code, expected


class Inbox(Protocol):
    """What a `Watchdog` asks of a stream reader."""

    total_bytes: int
    """How many bytes of the body have come."""

    def set_exception(self, error: ClockExpired, /) -> object:
        """Wake the read that waits, or the next one, with an error."""
        ...


class Watchdog:
    """Watches one stream from the answer's head to its end.

    - ``total`` runs from the start of the send to the end of the reply.
    - ``first_event`` runs from the start of the send to the first event with data.
    - ``idle`` runs between two events with data, while a read is waited for: a slow reader is not
      the server's delay. Comments and empty events are no progress.

    Args:
        stream: asked for its progress; ``waiting_since`` must be in the loop's time.
        started: when the send began, in the loop's time.
        inbox: where the bytes come in. Bytes that the stream did not take yet may be an event. It is told once
            what ran out.
    """

    __slots__ = ("_first_at", "_idle", "_inbox", "_loop", "_stream", "_timeouts", "_timer", "_total_at")

    def __init__(
        self,
        stream: ReplyStream,
        timeouts: Timeouts,
        *,
        started: float,
        loop: asyncio.AbstractEventLoop,
        inbox: Inbox,
    ) -> None:
        self._stream, self._timeouts, self._loop = stream, timeouts, loop
        self._inbox = inbox
        self._total_at = None if timeouts.total is None else started + timeouts.total
        self._first_at = None if timeouts.first_event is None else started + timeouts.first_event
        self._idle = timeouts.idle
        self._timer: asyncio.TimerHandle | None = None
        self._arm(loop.time())

    def stop(self) -> None:
        """The stream ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._total_at is not None and now >= self._total_at:
            self._inbox.set_exception(
                ClockExpired("total_timeout", f"the whole reply within {self._timeouts.total:g} s")
            )
            return
        expired = self._late_event(now)
        if expired is None:
            self._arm(now)
        elif (
            self._inbox.total_bytes > self._stream.bytes_seen
        ):  # it came in this turn of the loop, and the reader comes after the timer
            self._timer = self._loop.call_at(now, self._check)
        else:
            self._inbox.set_exception(expired)

    def _late_event(self, now: float) -> ClockExpired | None:
        """Whether the next event is overdue."""
        if not self._stream.progress:
            if self._first_at is None or now < self._first_at:
                return None
            seconds = self._timeouts.first_event
            return ClockExpired("first_event_timeout", f"the first event within {seconds:g} s of the send")
        if self._idle is None or not self._stream.reading or now < self._stream.waiting_since + self._idle:
            return None
        return ClockExpired("idle_timeout", f"an event within {self._idle:g} s of the one before")

    def _arm(self, now: float) -> None:
        moments = []
        if self._total_at is not None:
            moments.append(self._total_at)
        if not self._stream.progress:
            if self._first_at is not None:
                moments.append(self._first_at)
            if self._idle is not None:
                moments.append(now + self._idle)
        elif self._idle is not None:
            moments.append(self._stream.waiting_since + self._idle if self._stream.reading else now + self._idle)
        if moments:
            self._timer = self._loop.call_at(min(moments), self._check)
