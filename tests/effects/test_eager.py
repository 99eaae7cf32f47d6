"""A task whose first step is taken at once: in everything else it is as any other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.effects.eager import Eager

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="outside")


def begun(work: Any, name: str = "work") -> asyncio.Task[Any]:
    eager = Eager(work)
    task = eager.task(name)
    eager.begin()
    return task


async def test_the_first_step_is_over_when_it_has_begun() -> None:
    seen: list[object] = []

    async def work() -> str:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return "done"

    me = asyncio.current_task()
    task = begun(work())
    assert seen == [task]
    assert asyncio.current_task() is me
    assert await task == "done"
    assert seen == [task, task]
    assert task.get_name() == "work"


async def test_it_has_a_context_of_its_own() -> None:
    async def work() -> str:
        before = PLACE.get()
        PLACE.set("inside")
        await asyncio.sleep(0)
        return f"{before} {PLACE.get()}"

    assert await begun(work()) == "outside inside"
    assert PLACE.get() == "outside"


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_what_the_first_step_raises_is_the_tasks(error: BaseException) -> None:
    async def work() -> None:
        raise error

    task = begun(work())
    with pytest.raises(type(error)):
        await task
    assert task.cancelled() is isinstance(error, asyncio.CancelledError)


async def test_one_that_ends_in_its_first_step_has_its_value_though_it_is_cancelled_then() -> None:
    async def work() -> int:
        return 1

    task = begun(work())
    task.cancel()
    assert await task == 1


async def test_a_cancel_before_the_tasks_own_first_step_reaches_what_it_waits_for() -> None:
    inner = asyncio.create_task(asyncio.Event().wait())

    async def work() -> None:
        await inner

    task = begun(work())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inner.cancelled()


async def test_a_cancel_can_be_kept_in_the_first_wait() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "kept"
        return "slept"

    task = begun(work())
    task.cancel()
    assert await task == "kept"


async def test_what_it_waited_for_and_is_there_before_its_task_steps_costs_no_turn() -> None:
    there = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return str(await there)

    task = begun(work())
    there.set_result("there")
    await asyncio.sleep(0)
    assert task.done()
    assert await task == "there"


async def test_a_clock_of_the_first_step_cancels_this_task_and_no_other() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "never"

    assert await begun(work()) == "late"


async def test_nested_beginnings_give_the_place_back_in_order() -> None:
    async def inner() -> object:
        await asyncio.sleep(0)
        return asyncio.current_task()

    async def outer() -> tuple[object, asyncio.Task[Any]]:
        task = begun(inner(), "inner")
        return asyncio.current_task(), task

    task = begun(outer(), "outer")
    seen, nested = await task
    assert seen is task
    assert await nested is nested


def test_a_first_step_may_be_taken_outside_of_any_task() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def scene() -> str:
        got: asyncio.Future[asyncio.Task[Any]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: got.set_result(begun(work())))
        return str(await (await got))

    assert asyncio.run(scene()) == "done"


STEPS: dict[str, Callable[[], Awaitable[object]]] = {
    "turn": lambda: asyncio.sleep(0),
    "task": lambda: asyncio.ensure_future(asyncio.sleep(0)),
    "clock": lambda: asyncio.wait_for(asyncio.sleep(0), 1),
}


@given(st.lists(st.sampled_from([*STEPS, "fail", "keep"]), max_size=5), st.integers(0, 12))
def test_it_comes_to_the_same_as_any_other_task_one_turn_earlier(steps: list[str], turns: int) -> None:
    async def work(log: list[str]) -> str:
        keep = False
        for step in steps:
            if step == "fail":
                raise ValueError(step)
            keep = keep or step == "keep"
            try:
                await STEPS.get(step, STEPS["turn"])()
            except asyncio.CancelledError:
                log.append("cancelled")
                if not keep:
                    raise
            log.append(step)
        return "done"

    async def scene(make: Callable[[Any], asyncio.Task[Any]], turns: int) -> tuple[list[str], str]:
        log: list[str] = []
        task = make(work(log))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            return log, str(await task)
        except (ValueError, asyncio.CancelledError) as error:
            return log, repr(error)

    assert asyncio.run(scene(begun, turns)) == asyncio.run(scene(asyncio.create_task, turns + 1))
