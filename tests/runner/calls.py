"""What tests of model calls share: a runner on a medium, and what any end of a call must leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import agentloop as al
from agentloop.exchange import Fact, OriginOpened, ReplyTaken, RunClosed, SendEnded, SendStarted
from agentloop.persistence import Backend
from agentloop.testing import RecordingSink
from tests.runs import NEXT, on_backend

__all__ = ["LazySink", "check_calls", "facts_of", "runner_on"]


class LazySink(RecordingSink):
    """A sink that waits in every event, once it has it."""

    async def emit(self, event: al.Event) -> None:
        await super().emit(event)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@asynccontextmanager
async def runner_on(backend: Backend | None, provider: al.Provider, **options: Any) -> AsyncIterator[al.ModelRunner]:
    """A runner on a medium of the test's own, or one that stands alone."""
    observers = options.pop("observers", ())
    if backend is None:
        async with al.ModelRunner(provider, observers=observers, **options) as runner:
            yield runner
        return
    async with on_backend(backend, provider, observers=observers) as runtime:
        yield runtime.runner(**options)


async def facts_of(runner: al.ModelRunner) -> list[Fact]:
    """Every fact that its medium holds."""
    return await runner._host.store._backend.load()


def check_calls(events: Sequence[al.Event], facts: Sequence[Fact], values: Sequence[object]) -> None:
    """Hold the events and facts of one runner's calls to what they promise.

    Args:
        events: what an observer got.
        values: what was returned, in order.
    """
    state, previews = "idle", 0
    for event in events:
        assert event.type in NEXT[state], f"{event.type} in state {state}: {[e.type for e in events]}"
        state = NEXT[state][event.type]
        if isinstance(event, al.ModelStart):
            previews = 0
        elif isinstance(event, al.TextPreview | al.ReasoningPreview):
            previews += 1
        elif isinstance(event, al.ModelEnd):
            assert event.retracted == (event.status != "success" and previews > 0)
    assert state in ("idle", "waiting")
    started = [event.attempt_id for event in events if isinstance(event, al.ModelStart)]
    ends = [event for event in events if isinstance(event, al.ModelEnd)]
    parsed = {event.attempt_id for event in events if isinstance(event, al.ModelParsed)}
    admitted = [fact.attempt_id for fact in facts if isinstance(fact, SendStarted)]
    assert started == [event.attempt_id for event in ends] == admitted
    assert [event.call_sequence for event in ends] == list(range(1, len(ends) + 1))
    assert {event.attempt_id for event in ends if event.status == "success"} <= parsed
    over = {fact.attempt_id: fact.outcome for fact in facts if isinstance(fact, SendEnded)}
    replied = {fact.attempt_id for fact in facts if isinstance(fact, ReplyTaken)}
    assert replied == {attempt for attempt, outcome in over.items() if outcome == "replied"}
    assert set(over) == set(admitted)

    opened = [fact.run_id for fact in facts if isinstance(fact, OriginOpened)]
    closed = {fact.run_id: fact.outcome for fact in facts if isinstance(fact, RunClosed)}
    assert sorted(opened) == sorted(closed)
    assert sum(isinstance(fact, RunClosed) for fact in facts) == len(opened)
    completed = [run_id for run_id in opened if closed[run_id] == "completed"]
    assert len(completed) == len(values)
    of_run = {fact.attempt_id: fact.run_id for fact in facts if isinstance(fact, SendStarted)}
    assert [of_run[event.attempt_id] for event in ends if event.status == "success"] == completed
