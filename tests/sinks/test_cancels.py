"""A cancel that is taken is raised later, once, with its words, and counts once."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.sinks import put_off, take_cancel


async def test_where_there_is_no_cancel_none_is_taken() -> None:
    assert await take_cancel() is None


async def test_a_cancel_that_is_put_off_is_raised_by_the_next_await_that_waits() -> None:
    """(R324)"""
    task = asyncio.current_task()
    assert task is not None
    task.cancel("the host's words")
    cancel = await take_cancel()
    assert cancel is not None
    assert cancel.args == ("the host's words",)
    assert await take_cancel() is None
    put_off(cancel)
    assert task.cancelling() == 1
    with pytest.raises(asyncio.CancelledError, match="the host's words"):
        await asyncio.sleep(0)
    assert task.uncancel() == 0
