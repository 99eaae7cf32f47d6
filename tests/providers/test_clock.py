"""The three clocks, with a loop whose time is turned by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentloop.limits import Timeouts
from agentloop.providers.clock import ClockExpired, Watchdog


class HandLoop:
    """Time stands still until it is moved; timers fire in order of their moment."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Any] = []
        self.made = 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        self.made += 1
        timer = SimpleNamespace(when=when, callback=callback)
        timer.cancel = lambda: self.timers.remove(timer)
        self.timers.append(timer)
        return timer

    def step(self, seconds: float) -> None:
        """Move, and fire what is due then, once."""
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.when <= self.now]:
            self.timers.remove(timer)
            timer.callback()

    def move(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((timer for timer in self.timers if timer.when <= end), key=lambda timer: timer.when):
            self.timers.remove(due[0])
            self.now = due[0].when
            due[0].callback()
        self.now = end


class Watched:
    """A stream as the watchdog sees it, its loop, and what ran out."""

    def __init__(self, **timeouts: float | None) -> None:
        self.loop = HandLoop()
        self.bytes_seen = self.total_bytes = 0
        self.progress, self.reading, self.waiting_since = 0, True, self.loop.now
        self.expired: list[ClockExpired] = []
        self.dog = Watchdog(
            self,  # type: ignore[arg-type]  # the four attributes it asks for
            Timeouts(**{"total": None, "first_event": None, "idle": None, **timeouts}),
            started=self.loop.now,
            loop=self.loop,  # type: ignore[arg-type]
            inbox=self,
        )

    def set_exception(self, error: ClockExpired, /) -> None:
        self.expired.append(error)

    def event(self) -> None:
        self.progress += 1
        self.waiting_since = self.loop.now

    @property
    def codes(self) -> list[str]:
        return [expired.code for expired in self.expired]


def test_the_total_clock_runs_whatever_happens() -> None:
    watched = Watched(total=10, idle=3)
    for _ in range(9):
        watched.event()
        watched.loop.move(1)
    assert watched.codes == []
    watched.event()
    watched.loop.move(1)
    assert watched.codes == ["total_timeout"]
    assert watched.expired[0].expected == "the whole reply within 10 s"


def test_the_first_event_stops_the_first_clock() -> None:
    late, early = Watched(first_event=5), Watched(first_event=5)
    early.loop.move(4)
    early.event()
    early.loop.move(60)
    late.loop.move(5)
    assert (late.codes, early.codes) == (["first_event_timeout"], [])


def test_the_idle_clock_begins_with_the_first_event() -> None:
    watched = Watched(idle=3)
    watched.loop.move(30)
    assert watched.codes == []
    watched.event()
    watched.loop.move(2.9)
    assert watched.codes == []
    watched.loop.move(0.2)
    assert watched.codes == ["idle_timeout"]


def test_each_event_starts_the_idle_clock_again() -> None:
    watched = Watched(idle=3)
    for _ in range(20):
        watched.event()
        watched.loop.move(2)
    assert watched.codes == []
    watched.loop.move(1)
    assert watched.codes == ["idle_timeout"]


def test_a_slow_reader_is_not_the_servers_delay() -> None:
    watched = Watched(idle=3)
    watched.event()
    watched.reading = False
    watched.loop.move(100)
    assert watched.codes == []
    watched.reading, watched.waiting_since = True, watched.loop.now
    watched.loop.move(2.9)
    assert watched.codes == []
    watched.loop.move(3)
    assert watched.codes == ["idle_timeout"]


def test_bytes_that_came_in_the_last_moment_are_read_first() -> None:
    watched = Watched(idle=3)
    watched.event()
    watched.total_bytes = 1
    watched.loop.step(3)
    assert watched.codes == []
    watched.event()
    watched.bytes_seen = 1
    watched.loop.move(2.9)
    assert watched.codes == []
    watched.loop.move(0.2)
    assert watched.codes == ["idle_timeout"]


def test_a_clock_runs_out_once() -> None:
    watched = Watched(total=1, idle=1)
    watched.loop.move(100)
    assert watched.codes == ["total_timeout"]
    assert watched.loop.timers == []


@pytest.mark.parametrize("timeouts", [{}, {"total": 5.0, "idle": 1.0, "first_event": 2.0}])
def test_a_stopped_watchdog_leaves_no_timer(timeouts: dict[str, float]) -> None:
    watched = Watched(**timeouts)
    watched.dog.stop()
    watched.dog.stop()
    assert watched.loop.timers == []


def test_timers_are_made_by_the_clock_and_not_by_the_events() -> None:
    watched = Watched(total=60, idle=30)
    for _ in range(10_000):
        watched.event()
        watched.loop.move(0.002)
    assert watched.loop.made == 1
