"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.errors import InputError
from agentloop.testing import FakeClock


def test_it_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(now=5, epoch_ms=1_000)
    assert (clock(), clock.now_ms()) == (5, 6_000)
    clock.advance(1.5)
    assert (clock(), clock.now_ms()) == (6.5, 7_500)
    with pytest.raises(InputError):
        clock.advance(-1)


async def test_sleepers_wake_in_the_order_of_their_times_and_not_before() -> None:
    clock, woken = FakeClock(), []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleep(seconds)) for seconds in (3, 1, 2)]
    await asyncio.sleep(0)
    assert clock.sleepers == 3
    clock.advance(0.5)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(1.5)
    await asyncio.sleep(0)
    assert woken == [1, 2]
    clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken == [1, 2, 3]
    assert clock.sleepers == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    clock.advance(2)


async def test_no_seconds_are_a_turn_for_others_and_less_is_refused() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    with pytest.raises(InputError):
        await clock.sleep(-1)
