"""Writes that no cancel can meet half way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import agentloop as al
from agentloop.effects import deliver_cancel, send, settle
from agentloop.errors import ConflictError, PersistenceError
from agentloop.exchange import Book, Fact
from agentloop.testing import ScriptedProvider, call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend


async def work(steps: int, log: list[str]) -> str:
    for _ in range(steps):
        await asyncio.sleep(0)
    log.append("done")
    return "value"


async def test_settling_returns_what_the_work_returned() -> None:
    assert await settle(work(3, [])) == "value"


async def test_settling_raises_what_the_work_raised() -> None:
    async def fail() -> None:
        raise ConflictError("x", "y")

    with pytest.raises(ConflictError):
        await settle(fail())


@pytest.mark.parametrize("cancels", [1, 2, 5])
async def test_the_work_ends_whatever_cancels_arrive_and_one_is_passed_on(cancels: int) -> None:
    """(R324)"""
    log: list[str] = []

    async def caller() -> None:
        log.append(await settle(work(8, log)))
        log.append("after")
        await deliver_cancel()
        log.append("never")

    task = asyncio.create_task(caller())
    for _ in range(cancels):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["done", "value", "after"]
    assert task.cancelling() == cancels


async def test_a_cancel_that_comes_too_late_is_dropped() -> None:
    log: list[str] = []

    async def caller() -> str:
        return await settle(work(8, log), last=True)

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "value"
    assert not task.cancelled()


async def test_a_clock_around_settled_work_still_knows_its_own_cancel() -> None:
    """(R324)"""
    log: list[str] = []

    async def late() -> None:
        await asyncio.sleep(0.03)
        log.append("done")

    with pytest.raises(TimeoutError):  # noqa: PT012  # the block is what is tested
        async with asyncio.timeout(0.01):
            await settle(late())
            log.append("after")
            await deliver_cancel()
    assert log == ["done", "after"]


async def test_no_cancel_means_nothing_to_deliver() -> None:
    log: list[str] = []
    await settle(work(1, log))
    await deliver_cancel()
    log.append("went on")
    assert log[-1] == "went on"
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # a test is a task


@pytest.mark.parametrize("slow", [False, True])
async def test_a_commit_says_whether_a_cancel_was_held_back(slow: bool) -> None:
    stage = Stage(backend=SlowBackend() if slow else None)
    scope = await stage.open()
    held: list[bool] = []

    def begin(book: Book) -> tuple[Fact, ...]:
        return book.begin_send(book.reference(scope.turn), attempt_id="t1", model="m", at_ms=1)

    async def caller() -> None:
        held.append(await scope.commit(begin))

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert held == [slow]  # memory does not wait, so no cancel can meet it
    assert stage.store.fault is None
    assert list(scope.turn.sends) == ["t1"]


async def test_a_commit_that_is_refused_adds_nothing_and_one_that_fails_stops_the_store() -> None:
    class Failing(SlowBackend):
        async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
            if self.log:
                raise OSError("disk full")
            await super().append(facts, token=token, after=after)

    stage = Stage(backend=Failing())
    scope = await stage.open()
    with pytest.raises(ConflictError):
        await scope.commit(
            lambda book: book.fail_send(
                scope.receipt("nobody"), abandoned=False, code="x", may_have_been_processed=False, at_ms=4
            )
        )
    assert stage.store.fault is None
    with pytest.raises(PersistenceError):
        await scope.commit(lambda book: book.close_run(scope.turn, outcome="failed", reason="x", at_ms=0))
    assert stage.store.fault is not None
    assert scope.turn.closed is None


async def test_a_receipt_is_of_this_run() -> None:
    """(R80)"""
    scope = await Stage().open()
    receipt = scope.receipt("t1")
    assert (receipt.invocation_id, receipt.parent_id) == ("t1", "r")


async def test_elapsed_is_told_by_the_hosts_clock() -> None:
    stage = Stage()
    scope = await stage.open()
    stage.clock.advance(2.5)
    assert scope.elapsed == 2.5


async def test_the_next_request_goes_to_whoever_has_not_refused_it_and_the_one_after_a_reply_to_the_first_again() -> (
    None
):
    busy = al.HTTPStatusError("HTTP 429", status=429)
    fallbacks = (ScriptedProvider([busy]), ScriptedProvider([reply(calls=[call("t")])]))
    stage = Stage([busy, busy])
    scope = await stage.open(resend=al.ResendPolicy(max_resends=1, fallbacks=fallbacks[:1]))
    assert (scope.provider_index, scope.provider) == (0, stage.provider)
    scope.resend = al.ResendPolicy(max_resends=0, fallbacks=fallbacks)
    for index, provider in ((1, fallbacks[0]), (2, fallbacks[1])):
        with pytest.raises(al.HTTPStatusError):
            await send(scope)
        assert (scope.provider_index, scope.provider) == (index, provider)
    await send(scope)
    assert (scope.provider_index, scope.provider) == (0, stage.provider)
    scope.resend = None
    assert (scope.provider_index, scope.provider) == (0, stage.provider)
