"""The way between a send that lives apart and the run that shows it, and the keeping of such sends."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.effects import Patience, PendingSend, Sends
from agentloop.effects.detached import Relay
from agentloop.testing import reply
from agentloop.wire.deltas import TextDelta


def _delta(at: int) -> TextDelta:
    return TextDelta(text=str(at), offset=at)


async def _nothing(run_id: str) -> None:
    """Nobody has to be told."""


@given(count=st.integers(0, 300), reads=st.integers(0, 300))
def test_a_reader_gets_all_in_order_and_one_that_leaves_holds_nobody_up(count: int, reads: int) -> None:
    """(R141, R144)"""

    async def scene() -> list[int]:
        relay, seen = Relay(), []

        async def write() -> None:
            for at in range(count):
                await relay.put(_delta(at))
            relay.end()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            async for delta in relay:
                seen.append(delta.offset)
                if len(seen) == reads:
                    break
            relay.leave()
        return seen

    assert asyncio.run(scene()) == list(range(min(count, reads) if reads else count))


async def test_a_writer_waits_for_a_slow_reader() -> None:
    relay, written = Relay(), 0

    async def write() -> None:
        nonlocal written
        for at in range(200):
            await relay.put(_delta(at))
            written += 1

    task = asyncio.create_task(write())
    for _ in range(5):
        await asyncio.sleep(0)
    assert written == 64
    assert (await anext(relay)).offset == 0
    for _ in range(5):
        await asyncio.sleep(0)
    assert written == 65
    relay.leave()
    await task
    assert written == 200


async def test_a_send_is_kept_until_it_ends_and_its_owner_is_told() -> None:
    """(R141)"""
    told: list[tuple[str, bool]] = []

    async def ended(run_id: str) -> None:
        told.append((run_id, sends.of(run_id) is None))

    sends, pending, go = Sends(ended), PendingSend("r", "a"), asyncio.Event()

    async def work() -> al.ModelReply:
        await go.wait()
        return reply("done")

    sends.begin(pending, work())
    assert sends.of("r") is pending
    go.set()
    assert (await pending.task).text == "done"
    assert told == [("r", True)]


async def test_one_that_is_cut_off_before_its_first_step_learns_of_it() -> None:
    sends, pending = Sends(_nothing), PendingSend("r", "a")
    seen: list[bool] = []

    async def work() -> al.ModelReply:
        seen.append(pending.stopped)
        raise asyncio.CancelledError

    sends.begin(pending, work())
    await pending.stop()
    assert seen == [True]
    assert pending.task.cancelled()
    assert sends.of("r") is None
    await pending.stop()  # harmless


async def test_settling_waits_so_long_and_leaves_the_rest_open() -> None:
    """(R143)"""
    sends = Sends(_nothing)
    quick, slow = PendingSend("q", "a"), PendingSend("s", "b")

    async def at_once() -> al.ModelReply:
        return reply("done")

    async def never() -> al.ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    sends.begin(quick, at_once())
    sends.begin(slow, never())
    assert await sends.settle(0.01) == 1
    assert (quick.left_open, slow.left_open) == (False, True)
    assert slow.task.cancelled()
    assert await sends.settle(0.01) == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (al.PersistenceError("the store stopped"), True),
        (RuntimeError("secret"), True),
        (al.ConnectionFailed("no"), False),  # stored as what became of the attempt
    ],
)
async def test_an_outcome_that_is_stored_nowhere_is_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, said: bool
) -> None:
    sends, pending = Sends(_nothing), PendingSend("r", "a1")

    async def work() -> al.ModelReply:
        raise error

    with caplog.at_level(logging.ERROR):
        sends.begin(pending, work())
        await asyncio.wait({pending.task})
        await asyncio.sleep(0)
    assert (f"a1 ended with {type(error).__name__}" in caplog.text) is said
    assert "secret" not in caplog.text


async def test_patience_grows_and_never_shrinks() -> None:
    """(R96)"""
    patience = Patience(0.01)
    patience.extend(0.005)
    with pytest.raises(TimeoutError):
        async with patience.clock():
            await asyncio.Event().wait()
    patience.over()
    patience.extend(20)  # nothing is waited for
    loop = asyncio.get_running_loop()
    async with patience.clock() as clock:
        assert 19 < (clock.when() or 0) - loop.time() <= 20
        patience.extend(10)
        assert 19 < (clock.when() or 0) - loop.time() <= 20
        patience.extend(40)
        assert 39 < (clock.when() or 0) - loop.time() <= 40
        patience.extend(None)
        assert clock.when() is None
        patience.extend(1)
        assert clock.when() is None
    assert patience.seconds is None
