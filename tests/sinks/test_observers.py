"""Observers stand at the side: whatever they do, a run does not notice."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.events import Event
from agentloop.sinks import ObserverHub
from agentloop.testing import RecordingSink
from tests.sinks.feeding import Line


class Blocked:
    """Takes events only while its gate is open."""

    def __init__(self) -> None:
        self.gate, self.reached = asyncio.Event(), asyncio.Event()
        self.events: list[Event] = []

    async def observe(self, event: Event) -> None:
        self.reached.set()
        await self.gate.wait()
        self.events.append(event)


class Broken:
    """Fails on every event, in a way of its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    async def observe(self, event: Event) -> None:
        self.calls += 1
        raise self.error


async def test_every_observer_gets_every_event_of_every_run_in_order() -> None:
    """(R261)"""
    one, two = RecordingSink(), RecordingSink()
    hub = ObserverHub([one, two])
    for run in ("r1", "r2"):
        line = Line(observers=hub, run=run)
        line.note()
        await line.call("x")
    await hub.close()
    assert one.events == two.events
    assert [event.run_id for event in one.events] == ["r1"] * 4 + ["r2"] * 4
    assert (hub.dropped, hub.failed) == (0, 0)


@pytest.mark.parametrize(
    "error", [RuntimeError("secret text"), asyncio.CancelledError(), TimeoutError(), GeneratorExit(), BaseException()]
)
async def test_an_observer_that_raises_is_counted_and_gets_the_next_event(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken, healthy = Broken(error), RecordingSink()
    hub = ObserverHub([broken, healthy])
    line = Line(observers=hub)
    with caplog.at_level(logging.ERROR, "agentloop.observers"):
        for _ in range(3):
            line.note()
        await hub.close()
    assert (broken.calls, hub.failed, hub.dropped) == (3, 3, 0)
    assert len(healthy.events) == 3
    assert len(caplog.records) == 1  # once an observer, not once an event


async def test_an_observer_that_is_no_coroutine_is_counted_as_failing() -> None:
    class Plain:
        def observe(self, event: Event) -> None:
            return

    wrong: Any = Plain()
    hub = ObserverHub([wrong])
    Line(observers=hub).note()
    await hub.close()
    assert hub.failed == 1


async def test_a_slow_observer_holds_neither_a_run_nor_another_observer_up() -> None:
    slow, quick = Blocked(), RecordingSink()
    hub = ObserverHub([slow, quick], max_events=4)
    line = Line(observers=hub)
    await asyncio.wait_for(line.call(*"abcdefgh"), 1)
    await slow.reached.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert quick.events
    slow.gate.set()
    await hub.close()


async def test_a_full_queue_drops_its_oldest_event_and_counts_it() -> None:
    slow = Blocked()
    hub = ObserverHub([slow], max_events=3)
    line = Line(observers=hub)
    line.note("0")
    await slow.reached.wait()  # one is in its hands, the queue is empty
    for code in "12345":
        line.note(code)
    assert hub.dropped == 2
    slow.gate.set()
    await hub.close()
    assert [event.code for event in slow.events] == ["0", "3", "4", "5"]  # type: ignore[attr-defined]


async def test_closing_lets_the_queues_run_empty() -> None:
    observer = RecordingSink()
    hub = ObserverHub([observer])
    line = Line(observers=hub)
    for _ in range(50):
        line.note()
    await hub.close()
    assert len(observer.events) == 50


async def test_closing_ends_observers_that_do_not_end_and_counts_what_they_did_not_get() -> None:
    hub = ObserverHub([Blocked(), Blocked(), RecordingSink()])
    line = Line(observers=hub)
    for _ in range(3):
        line.note()
    before = asyncio.get_running_loop().time()
    await hub.close(0.05)
    assert asyncio.get_running_loop().time() - before < 1
    assert hub.dropped == 4  # two of three for each; the first was in their hands
    assert [task for task in asyncio.all_tasks() if task.get_name() == "agentloop observer"] == []


async def test_a_cancelled_closing_still_ends_the_observers() -> None:
    stuck = Blocked()
    hub = ObserverHub([stuck])
    Line(observers=hub).note()
    await stuck.reached.wait()
    closing = asyncio.ensure_future(hub.close(60))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    for _ in range(3):
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "agentloop observer"] == []


async def test_a_hub_without_observers_is_false_and_harmless() -> None:
    hub = ObserverHub([])
    assert not hub
    await hub.close()
    assert (hub.dropped, hub.failed) == (0, 0)


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_a_queue_holds_at_least_one_event(size: Any) -> None:
    with pytest.raises(InputError, match=r"ObserverHub.max_events: expected an integer from 1"):
        ObserverHub([], max_events=size)


async def test_an_observer_ends_with_its_loop_also_when_the_hub_was_not_closed() -> None:
    stuck = Blocked()
    Line(observers=ObserverHub([stuck])).note()
    await stuck.reached.wait()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "agentloop observer"]
    task.cancel()  # as `asyncio.run` does at its end
    await asyncio.wait_for(asyncio.wait({task}), 1)
    assert task.cancelled()
