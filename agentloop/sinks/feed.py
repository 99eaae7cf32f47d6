"""One run's events, kept in order for whoever follows.

A feed holds every event of its run. The previews of an attempt are kept one by one while it runs.
When it ends well, those of one kind that follow each other become one event (so a late follower
still sees the text, and memory is bounded by the text); when it fails they go (its `ModelEnd`
retracts them). A follower that asks for what comes after an event in the middle of such text gets
the rest of it, never a part twice.

One follower may be *attached*: the run waits when that follower is more than ``high_water``
events behind. All others are free: they read from what is kept and never hold the run up.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from itertools import groupby

import msgspec

from ..events import Event, ModelEnd, ModelStart, ReasoningPreview, TextPreview

__all__ = ["Feed", "Follower"]

_HIGH_WATER = 256

_PREVIEWS = (TextPreview, ReasoningPreview)


class Feed:
    """The log of one run. One event loop; `push` never waits.

    Args:
        high_water: how far the attached follower may be behind.
        told: sequence number of the newest event that was told of the run before, here or elsewhere.
    """

    __slots__ = (
        "_attached",
        "_attempt_at",
        "_edition",
        "_events",
        "_high",
        "_last",
        "_own",
        "_pieces",
        "_room",
        "_sequences",
        "_since",
        "_waiters",
        "closed",
        "error",
    )

    def __init__(self, *, high_water: int = _HIGH_WATER, told: int = 0) -> None:
        self._events: list[Event] = []
        self._sequences = array("q")
        self._edition = 0  # changes when kept events are folded, so that followers look up their place again
        self._attempt_at: int | None = None  # index of the running attempt's ModelStart
        self._pieces: dict[int, _Pieces] = {}  # by the folded event's sequence
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None
        self._attached: Follower | None = None
        self._high = high_water
        self._last = self._own = 0  # index of the first event that was not told before
        self._since = told + 1  # everything from this sequence number on was kept, or taken back
        self.error: BaseException | None = None
        self.closed = False

    def push(self, event: Event, sequence: int) -> None:
        """Append the event with this sequence number and wake those who wait for it."""
        kind = type(event)
        if kind is ModelEnd:
            if self._attempt_at is not None:
                self._fold(self._attempt_at + 1, keep=event.status == "success")  # type: ignore[attr-defined]
            self._attempt_at = None
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
    def last(self) -> int:
        """Sequence number of the newest event, 0 before the first."""
        return self._last

    def again(self, told: int) -> Feed:
        """The log of the same run where it goes on after it had left off.

        What was told of it since it began or went on the last time comes first, so that whoever has read
        a part of that misses nothing. What is older is gone: a host may have it go on again and again.
        """
        feed = Feed(high_water=self._high, told=told)
        feed._events, feed._sequences = self._events[self._own :], self._sequences[self._own :]
        feed._own, feed._last = len(feed._events), self._last
        feed._pieces = {at: pieces for at, pieces in self._pieces.items() if at in feed._sequences}
        if feed._events:
            feed._since = self._since if self._own == 0 else feed._sequences[0]
        return feed

    @property
    def behind(self) -> bool:
        """Whether the attached follower is so far behind that the run should wait (`room`)."""
        follower = self._attached
        return follower is not None and not self.closed and self._last - follower.seen > self._high

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
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _free(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _fold(self, start: int, *, keep: bool) -> None:
        """Replace the previews from ``start`` on: each stretch of one kind by one event, or by nothing.

        A stretch ends at any other event: whoever has seen that one has seen all before it, also
        when what comes before it was folded.
        """
        sequences, events = self._sequences[start:], self._events[start:]
        del self._sequences[start:], self._events[start:]
        for kind, stretch in groupby(zip(sequences, events, strict=True), key=lambda item: type(item[1])):
            if kind not in _PREVIEWS:
                for sequence, event in stretch:
                    self._sequences.append(sequence)
                    self._events.append(event)
            elif keep:
                whole, pieces = _join(
                    [(sequence, event) for sequence, event in stretch if isinstance(event, _PREVIEWS)]
                )
                self._sequences.append(pieces.sequences[-1])
                self._events.append(whole)
                if len(pieces.sequences) > 1:
                    self._pieces[pieces.sequences[-1]] = pieces
        self._edition += 1

    def _locate(self, seen: int) -> int:
        return bisect_right(self._sequences, seen)

    def _unseen(self, event: Event, sequence: int, seen: int) -> Event:
        """The part of a folded preview that a reader who has seen ``seen`` has not."""
        pieces = self._pieces.get(sequence)
        if pieces is None or seen < pieces.sequences[0] or not isinstance(event, _PREVIEWS):
            return event
        offset = pieces.ends[bisect_right(pieces.sequences, seen) - 1]
        return msgspec.structs.replace(event, text=event.text[offset - event.offset :], offset=offset)


class _Pieces:
    """What a folded preview was made of: sequence number and end, in characters, of each piece."""

    __slots__ = ("ends", "sequences")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.ends = array("q")


def _join(stretch: list[tuple[int, TextPreview | ReasoningPreview]]) -> tuple[Event, _Pieces]:
    """One preview with the text of all, the id of the newest and the offset of the oldest."""
    pieces = _Pieces()
    for sequence, event in stretch:
        pieces.sequences.append(sequence)
        pieces.ends.append(event.offset + len(event.text))
    text = "".join(event.text for _, event in stretch)
    return msgspec.structs.replace(stretch[-1][1], text=text, offset=stretch[0][1].offset), pieces


class Follower:
    """An iterator over one feed. One task at a time may call `__anext__`.

    Attributes:
        seen: sequence number of the newest event it returned.
        missed: whether events between the one that it was to read on after, and the first one it gets, are not
            kept any more, as another process told them, or they are old; what came of them is in the facts.
    """

    __slots__ = ("_at", "_edition", "_feed", "missed", "seen")

    def __init__(self, feed: Feed, after: int) -> None:
        self._feed, self.seen = feed, after
        self.missed = after + 1 < feed._since
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
            event = self.next_nowait()
            if event is not None:
                return event
            if feed.closed:
                if feed.error is not None:
                    raise feed.error
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            feed._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in feed._waiters:  # nobody woke it
                    feed._waiters.remove(waiter)
                raise

    def next_nowait(self) -> Event | None:
        """The next event where there is one to read at once; None where there is none yet, or no more."""
        feed = self._feed
        if self._edition != feed._edition:
            self._edition = feed._edition
            self._at = feed._locate(self.seen)
        if self._at >= len(feed._events):
            return None
        event, sequence = feed._events[self._at], feed._sequences[self._at]
        self._at += 1
        if feed._pieces:
            event = feed._unseen(event, sequence, self.seen)
        self.seen = sequence
        if feed._room is not None and feed._last - self.seen <= feed._high // 2:
            feed._free()
        return event
