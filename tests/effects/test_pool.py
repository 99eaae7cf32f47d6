"""Where tools run: nothing that a tool does with its cancels holds its caller, and nothing of it is lost."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentloop.effects import ToolPool
from agentloop.effects.pool import Execution, LeftOver, NoThreadError, OutOfTimeError

SOON = 0.02
LONG = 30.0

ME = Execution("r", "stubborn", "r/0.0")


class Stubborn:
    """Work that keeps every cancel to itself until it is released, then does ``last``.

    Attributes:
        begun: set in its first step. cancels: how many met it. release: ends it.
    """

    def __init__(self, last: Callable[[], Any] = lambda: "at last") -> None:
        self.begun, self.release, self.cancels, self._last = asyncio.Event(), asyncio.Event(), 0, last

    async def __call__(self) -> Any:
        self.begun.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancels += 1
        return self._last()


def raising(error: BaseException) -> Callable[[], Any]:
    def last() -> Any:
        raise error

    return last


@pytest.fixture
def pool() -> ToolPool:
    return ToolPool(2, now_ms=lambda: 7)


async def test_work_that_waits_for_nothing_is_over_before_its_caller_goes_on(pool: ToolPool) -> None:
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "turn")

    async def work() -> str:
        return "done"

    assert await pool.run_task(ME, work, seconds=LONG, grace=LONG) == ("done", None)
    assert turns == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert pool.run_here is None


async def test_work_has_a_task_of_its_own_and_the_callers_context(pool: ToolPool) -> None:
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place")
    place.set("caller")

    async def work() -> list[Any]:
        seen = [asyncio.current_task(), place.get(), pool.run_here]
        place.set("work")
        await asyncio.sleep(0)
        return [*seen, asyncio.current_task(), place.get(), pool.run_here]

    (first, before, run, second, after, run_after), error = await pool.run_task(ME, work, seconds=LONG, grace=LONG)
    assert first is second
    assert first is not asyncio.current_task()
    assert (before, after, run, run_after, error) == ("caller", "work", "r", "r", None)
    assert place.get() == "caller"
    assert pool.run_here is None


async def test_work_that_keeps_the_clocks_cancel_to_itself_is_left_over(
    pool: ToolPool, caplog: pytest.LogCaptureFixture
) -> None:
    """(R336)"""
    work = Stubborn()
    with caplog.at_level(logging.WARNING, "agentloop.effects"):
        with pytest.raises(OutOfTimeError) as caught:
            await pool.run_task(ME, work, seconds=SOON, grace=SOON)
        assert caught.value.left
        assert work.cancels == 1
        assert pool.left_over == (LeftOver(run_id="r", tool="stubborn", effect_id="r/0.0", kind="task", since_ms=7),)
        assert (pool.busy("r"), pool.busy("other")) == ("stubborn", None)
        assert "tool stubborn of run r has not ended though its call is over (task)" in caplog.text
        work.release.set()
        assert await pool.wait_idle(LONG) == 0
    assert pool.left_over == ()
    assert "tool stubborn of run r ended" in caplog.text
    assert "with a value" in caplog.text


@pytest.mark.parametrize("error", [ValueError("late"), asyncio.CancelledError(), GeneratorExit()], ids=repr)
async def test_what_left_over_work_raises_at_last_is_retrieved_and_said_in_the_log(
    pool: ToolPool, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """An error that nobody retrieved would be a warning of asyncio's, and fail the test."""
    work = Stubborn(raising(error))
    with pytest.raises(OutOfTimeError):
        await pool.run_task(ME, work, seconds=SOON, grace=SOON)
    with caplog.at_level(logging.WARNING):
        work.release.set()
        assert await pool.wait_idle(LONG) == 0
    assert f"with {type(error).__name__}" in caplog.text
    assert "never retrieved" not in caplog.text


async def test_work_that_is_cut_off_by_the_clock_and_ends_in_its_grace_is_out_of_time_and_not_left(
    pool: ToolPool,
) -> None:
    error = ValueError("on the way out")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise error

    with pytest.raises(OutOfTimeError) as caught:
        await pool.run_task(ME, work, seconds=SOON, grace=LONG)
    assert (caught.value.left, caught.value.__cause__) == (False, error)
    assert pool.left_over == ()


async def test_a_value_that_comes_within_the_grace_is_the_truth(pool: ToolPool) -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "written"

    assert await pool.run_task(ME, work, seconds=SOON, grace=LONG) == ("written", None)


async def test_a_cancel_of_the_caller_is_passed_on_and_waits_no_longer_than_the_grace(pool: ToolPool) -> None:
    work = Stubborn()
    task = asyncio.create_task(pool.run_task(ME, work, seconds=None, grace=SOON))
    await work.begun.wait()
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert work.cancels == 1
    assert pool.busy("r") == "stubborn"
    work.release.set()
    assert await pool.wait_idle(LONG) == 0


async def test_a_second_cancel_reaches_work_that_kept_the_first(pool: ToolPool) -> None:
    work = Stubborn()
    task = asyncio.create_task(pool.run_task(ME, work, seconds=None, grace=LONG))
    await work.begun.wait()
    for expected in (1, 2):
        task.cancel()
        while work.cancels < expected:  # noqa: ASYNC110  # a few turns of the loop
            await asyncio.sleep(0)
        assert not task.done()
    work.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.left_over == ()


async def test_what_is_left_over_can_be_cancelled_once_more(pool: ToolPool) -> None:
    work = Stubborn()
    with pytest.raises(OutOfTimeError):
        await pool.run_task(ME, work, seconds=SOON, grace=SOON)
    pool.cancel_left()
    while work.cancels < 2:  # noqa: ASYNC110  # a few turns of the loop
        await asyncio.sleep(0)
    work.release.set()
    assert await pool.wait_idle(LONG) == 0


async def test_a_cancel_of_its_own_is_the_works_error_and_no_cancel_of_the_caller(pool: ToolPool) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    value, error = await pool.run_task(ME, work, seconds=LONG, grace=LONG)
    assert (value, type(error)) == (None, asyncio.CancelledError)
    me = asyncio.current_task()
    assert me is not None
    assert me.cancelling() == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_a_caller_that_its_own_work_cancels_gets_that_and_no_value(pool: ToolPool, waits: bool) -> None:
    """Such as a tool that cancels its run: a value is not handed to who was told to stop (R62)."""

    async def work() -> str:
        caller.cancel()
        if waits:
            await asyncio.sleep(0)
        return "value"

    caller = asyncio.create_task(pool.run_task(ME, work, seconds=LONG, grace=LONG))
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert pool.left_over == ()


# -- threads


async def test_a_thread_that_ends_in_its_grace_has_its_value_and_is_out_of_time_with_an_error(
    pool: ToolPool,
) -> None:
    loop = asyncio.get_running_loop()

    def outlast(last: Callable[[], Any]) -> Any:
        release = threading.Event()
        loop.call_soon_threadsafe(loop.call_later, 4 * SOON, release.set)
        release.wait(LONG)
        return last()

    assert await pool.run_thread(ME, lambda: outlast(lambda: "v"), seconds=SOON, grace=LONG) == ("v", None)
    error = ValueError("late")
    with pytest.raises(OutOfTimeError) as caught:
        await pool.run_thread(ME, lambda: outlast(raising(error)), seconds=SOON, grace=LONG)
    assert (caught.value.left, caught.value.__cause__) == (False, error)
    assert pool.left_over == ()


async def test_a_thread_that_does_not_end_is_left_over_and_keeps_its_place(pool: ToolPool) -> None:
    release = threading.Event()
    try:
        for _ in range(2):
            with pytest.raises(OutOfTimeError) as caught:
                await pool.run_thread(ME, lambda: release.wait(LONG), seconds=0.25, grace=SOON)
            assert caught.value.left
        assert [left.kind for left in pool.left_over] == ["thread", "thread"]
        with pytest.raises(NoThreadError):
            await pool.run_thread(ME, lambda: 1, seconds=SOON, grace=SOON)
        pool.cancel_left()  # which no thread can be
        assert len(pool.left_over) == 2
    finally:
        release.set()
    assert await pool.wait_idle(LONG) == 0
    assert await pool.run_thread(ME, lambda: 1, seconds=LONG, grace=LONG) == (1, None)


async def test_a_cancel_of_the_caller_leaves_a_thread_at_once(pool: ToolPool) -> None:
    begun, release = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(LONG)

    task = asyncio.create_task(pool.run_thread(ME, work, seconds=LONG, grace=LONG))
    await asyncio.to_thread(begun.wait, LONG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.busy("r") == "stubborn"
    release.set()
    assert await pool.wait_idle(LONG) == 0


async def test_a_log_handler_may_ask_what_is_left_over(pool: ToolPool) -> None:
    release, seen = threading.Event(), []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(len(pool.left_over))

    handler = Asking()
    logging.getLogger("agentloop.effects").addHandler(handler)
    try:
        with pytest.raises(OutOfTimeError):
            await pool.run_thread(ME, lambda: release.wait(LONG), seconds=SOON, grace=SOON)
        release.set()
        assert await pool.wait_idle(LONG) == 0
    finally:
        release.set()
        logging.getLogger("agentloop.effects").removeHandler(handler)
    assert seen == [1, 0]


async def test_what_is_left_over_of_a_run_holds_back_those_above_it(pool: ToolPool) -> None:
    release = threading.Event()
    try:
        with pytest.raises(OutOfTimeError):
            await pool.run_thread(Execution("r/0.1", "slow"), lambda: release.wait(LONG), seconds=SOON, grace=SOON)
        assert [pool.busy_in([run]) for run in ("r/0.1", "r", "r/0", "r/0.1/2.0", "r2")] == [
            "slow",
            "slow",
            None,
            None,
            None,
        ]
    finally:
        release.set()
    assert await pool.wait_idle(LONG) == 0


async def test_a_first_step_that_cancels_its_caller_has_it_cancelled(pool: ToolPool) -> None:
    async def work() -> str:
        for task in asyncio.all_tasks():
            if task.get_name() == "caller":
                task.cancel()
        return "over at once"

    caller = asyncio.create_task(pool.run_task(ME, work, seconds=LONG, grace=LONG), name="caller")
    await asyncio.wait({caller})
    assert caller.cancelled()
