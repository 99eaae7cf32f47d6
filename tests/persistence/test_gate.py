"""One at a time, by name."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.persistence import Gate


async def hold(gate: Gate[str], name: str, log: list[str], go: asyncio.Event, who: str) -> None:
    async with gate(name):
        log.append(who)
        await go.wait()


async def test_those_of_one_name_go_in_one_after_the_other_and_others_do_not_wait() -> None:
    gate, log = Gate[str](), list[str]()
    goes = [asyncio.Event() for _ in range(3)]
    tasks = [asyncio.create_task(hold(gate, "a", log, go, f"a{at}")) for at, go in enumerate(goes)]
    other = asyncio.create_task(hold(gate, "b", log, goes[0], "b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["a0", "b"]
    for go, task in zip(goes, tasks, strict=True):
        assert gate.busy("a")
        go.set()
        await task
    await other
    assert log == ["a0", "b", "a1", "a2"]
    assert not gate.busy("a")
    assert gate._held == {}


async def test_who_is_cancelled_while_waiting_or_fails_inside_leaves_it_free() -> None:
    gate, log, go = Gate[str](), list[str](), asyncio.Event()
    first = asyncio.create_task(hold(gate, "a", log, go, "first"))
    second = asyncio.create_task(hold(gate, "a", log, go, "second"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    first.cancel()
    await asyncio.wait({first})
    with pytest.raises(LookupError):
        async with gate("a"):
            raise LookupError
    assert (log, gate._held) == (["first"], {})


async def test_idle_is_when_nobody_is_in_and_nobody_waits() -> None:
    gate, log, go = Gate[str](), list[str](), asyncio.Event()
    await gate.idle()
    tasks = [asyncio.create_task(hold(gate, name, log, go, name)) for name in ("a", "a", "b")]
    await asyncio.sleep(0)
    idle = [asyncio.create_task(gate.idle()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in idle)
    go.set()
    await asyncio.gather(*tasks, *idle)
    assert gate._idle is None


async def test_who_is_cancelled_when_it_is_handed_over_hands_it_on() -> None:
    gate, log, go = Gate[str](), list[str](), asyncio.Event()
    go.set()
    async with gate("a"):
        tasks = [asyncio.create_task(hold(gate, "a", log, go, f"{at}")) for at in range(3)]
        await asyncio.sleep(0)
    tasks[0].cancel()  # it has its turn, and has not gone in
    await asyncio.wait(tasks)
    assert (log, gate._held) == (["1", "2"], {})
