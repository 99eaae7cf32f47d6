"""One run's events, kept in order for whoever follows.

A feed holds every event of its run. The previews of an attempt are kept one by one while it runs
and become one event when it ends well (so a late follower still sees the text, and memory is
bounded by the text), or go when it fails (its `ModelEnd` retracts them). A follower that asks for
what comes after an event in the middle of such text gets the rest of it, never a part twice.

One follower may be *attached*: the run waits when that follower is more than ``high_water``
events behind. All others are free: they read from what is kept and never hold the run up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right

import msgspec

from ..events import Event, ModelEnd, ModelStart, ReasoningPreview, TextPreview

__all__ = ["Feed", "Follower"]

HIGH_WATER = 256

_PREVIEWS = (TextPreview, ReasoningPreview)


class Feed:
    """The log of one run. One event loop; `push` never waits."""

    def __init__(self, *, high_water: int = HIGH_WATER) -> None:
        self._events: list[Event] = []
        self._sequences: list[int] = []
        self._edition = 0  # changes when kept events are folded, so that followers look up their place again
        self._attempt_at = 0  # index of the running attempt's ModelStart
        self._pieces: dict[int, list[tuple[int, int]]] = {}  # folded event's sequence -> (sequence, offset) in it
        self._waiters: set[asyncio.Future[None]] = set()
        self._room: asyncio.Future[None] | None = None
        self._attached: Follower | None = None
        self._high = high_water
        self._last = 0
        self.error: BaseException | None = None
        self.closed = False

    def push(self, event: Event, sequence: int) -> None:
        """Append the event with this sequence number and wake those who wait for it."""
        kind = type(event)
        if kind is ModelEnd:
            self._fold(event)  # type: ignore[arg-type]
        elif kind is ModelStart:
            self._attempt_at = len(self._events)
        self._events.append(event)
        self._sequences.append(sequence)
        self._last = sequence
        if self._waiters:
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """No event follows; ``error`` is raised to followers after the last one."""
        self.closed, self.error = True, error
        self._wake()
        self._free()

    @property
    def behind(self) -> bool:
        """Whether the attached follower is so far behind that the run should wait (`room`)."""
        follower = self._attached
        return follower is not None and self._last - follower.seen > self._high

    async def room(self) -> None:
        """Wait until the attached follower has caught up to half of the high-water mark, or left."""
        while self.behind:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def follow(self, *, after: int = 0, attached: bool = False) -> Follower:
        """Read from the event with the next sequence number after ``after``."""
        follower = Follower(self, after)
        if attached:
            self._attached = follower
        return follower

    def detach(self) -> None:
        """The attached follower reads no more; the run need not wait for it."""
        self._attached = None
        self._free()

    # -- private

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _free(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _fold(self, end: ModelEnd) -> None:
        """Replace the previews of the attempt that ends: by one of each kind, or by nothing."""
        start = self._attempt_at + 1
        kept = [e for e in self._events[start:] if type(e) not in _PREVIEWS]
        if len(kept) == len(self._events) - start:
            return
        for kind in _PREVIEWS if end.status == "success" else ():
            pieces = [e for e in self._events[start:] if type(e) is kind]
            if pieces:
                whole = msgspec.structs.replace(
                    pieces[-1], text="".join(e.text for e in pieces), offset=pieces[0].offset
                )
                self._pieces[whole.sequence] = [(e.sequence, e.offset + len(e.text)) for e in pieces]
                kept.append(whole)
        kept.sort(key=lambda e: e.sequence)
        del self._events[start:], self._sequences[start:]
        self._events += kept
        self._sequences += [e.sequence for e in kept]
        self._edition += 1

    def _locate(self, seen: int) -> int:
        return bisect_right(self._sequences, seen)

    def _unseen(self, event: Event, seen: int) -> Event:
        """The part of a folded preview that a reader who has seen ``seen`` has not."""
        pieces = self._pieces.get(event.sequence)
        if pieces is None or seen < pieces[0][0] or not isinstance(event, _PREVIEWS):
            return event
        at = bisect_right(pieces, (seen, 1 << 62)) - 1
        offset = pieces[at][1]
        return msgspec.structs.replace(event, text=event.text[offset - event.offset :], offset=offset)


class Follower:
    """An iterator over one feed. One task at a time may call `__anext__`.

    Attributes:
        seen: sequence number of the newest event it returned.
    """

    __slots__ = ("_at", "_edition", "_feed", "seen")

    def __init__(self, feed: Feed, after: int) -> None:
        self._feed, self.seen = feed, after
        self._edition = -1
        self._at = 0

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> Event:
        """The next event, waiting for one.

        Raises:
            StopAsyncIteration: the run ended well and every event was read.
            AgentLoopError, Exception: what ended the run, after its last event.
        """
        feed = self._feed
        while True:
            if self._edition != feed._edition:
                self._edition = feed._edition
                self._at = feed._locate(self.seen)
            if self._at < len(feed._events):
                event = feed._events[self._at]
                self._at += 1
                if feed._pieces:
                    event = feed._unseen(event, self.seen)
                self.seen = feed._sequences[self._at - 1]
                if feed._room is not None and feed._last - self.seen <= feed._high // 2:
                    feed._free()
                return event
            if feed.closed:
                if feed.error is not None:
                    raise feed.error
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            feed._waiters.add(waiter)
            try:
                await waiter
            finally:
                feed._waiters.discard(waiter)
