"""The wait before a request is sent once more: told, then slept."""

from __future__ import annotations

import asyncio

import pytest

import agentloop as al
from agentloop.effects import Resend, rest
from tests.effects.stage import Stage


class Told:
    """A sleep that looks at what was told before it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.naps: list[tuple[float, list[str]]] = []

    async def __call__(self, seconds: float) -> None:
        self.naps.append((seconds, self.stage.types))


@pytest.mark.parametrize(
    ("least", "most", "drawn", "seconds", "delay_ms"),
    [(0.0, 2.0, 0.25, 0.5, 500), (1.5, 1.5, 0.9, 1.5, 1500), (0.0, 0.0004, 1.0, 0.0004, 1), (0.0, 0.0, 1.0, None, 0)],
)
async def test_who_is_asked_next_is_told_before_the_wait(
    least: float, most: float, drawn: float, seconds: float | None, delay_ms: int
) -> None:
    stage = Stage()
    nap = Told(stage)
    scope = await stage.open(sleep=nap, random=lambda: drawn)
    await rest(scope, Resend("a-1", "truncated", least, most))
    (event,) = stage.events
    assert isinstance(event, al.ResendScheduled)
    assert (event.invocation_id, event.attempt_id, event.code) == ("a-1", "a-1", "truncated")
    assert (event.delay_ms, event.model) == (delay_ms, "scripted-model")
    assert nap.naps == ([] if seconds is None else [(seconds, ["resend.scheduled"])])


async def test_a_cancel_ends_the_wait() -> None:
    """(R62)"""
    begun = asyncio.Event()

    async def endless(seconds: float) -> None:
        begun.set()
        await asyncio.Event().wait()

    scope = await Stage().open(sleep=endless)
    task = asyncio.create_task(rest(scope, Resend("a-1", "http_status", 1.0, 1.0)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
