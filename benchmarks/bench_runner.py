"""One model call of a runner over HTTP on loopback, beside the provider alone.

- ``text``: `ModelRunner.invoke` of a text in 200 deltas; the floor is the same stream of the same
  provider read to its checked reply, without facts, budgets, events and clocks of a call.
- ``typed value``: a value of a type by the route ``json_schema``; the floor is the same bytes as plain text.
- ``child``: a new child and one call of it; the floor is the call of the runner itself.
- ``prepare and measure``: a typed call up to where it would be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

import agentloop as al

from .bench_loop import serving
from .measure import Row, Settings, compare
from .serve import AS_JSON
from .streams import MODEL

__all__ = ["measure"]

PROMPT = "Write the report."
JSON_PROMPT = f"Write the report {AS_JSON}."
ENOUGH = 10**9
FINER = 10


class Note(msgspec.Struct):
    title: str
    stock: int


class Report(msgspec.Struct):
    notes: list[Note]


REPORT = al.Structured(Report)


def measure(settings: Settings) -> list[Row]:
    """One call after the other, on a connection that is kept.

    Rounds are short, and more: how many events one read of the socket brings wanders with the machine, and
    both sides are to meet the same of it.
    """
    settings = msgspec.structs.replace(settings, rounds=settings.rounds * FINER, seconds=settings.seconds / FINER)
    with serving(0) as url, asyncio.Runner() as life:
        loop = life.get_loop()
        provider = al.ChatCompletions(url, model=MODEL)
        runner = life.run(_runner(provider))
        calls = _Calls(provider, runner)

        def on_loop(work: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
            return lambda: loop.run_until_complete(work())

        plain, bare = on_loop(calls.text), on_loop(calls.bare)
        typed, same = on_loop(calls.typed), on_loop(calls.json_as_text)
        assert plain() == bare()
        assert typed() == msgspec.json.decode(str(same()), type=Report)
        cases = {
            "text, over the provider": ("ms", 1e3, plain, bare),
            "typed value, over text": ("ms", 1e3, typed, same),
            "child, over the runner": ("ms", 1e3, on_loop(calls.child), plain),
            "prepare and measure": ("us", 1e6, calls.weigh, None),
        }
        try:
            return [
                compare("runner", name, unit=unit, scale=scale, ours=ours, floor=floor, settings=settings)
                for name, (unit, scale, ours, floor) in cases.items()
            ]
        finally:
            life.run(provider.aclose())


async def _runner(provider: al.Provider) -> al.ModelRunner:
    return al.ModelRunner(
        provider, transports=(REPORT,), max_calls=ENOUGH, children=al.ChildLimits(max_children=ENOUGH)
    )


class _Calls:
    """The calls that are measured."""

    def __init__(self, provider: al.ChatCompletions, runner: al.ModelRunner) -> None:
        self._provider, self._runner = provider, runner
        self._attempts = 0
        self._request = al.ModelRequest(
            messages=(al.UserMessage(content=PROMPT),), options=al.ModelOptions(max_output_tokens=1_024)
        )

    async def text(self) -> str:
        return (await self._runner.invoke(PROMPT)).value

    async def bare(self) -> str:
        self._attempts += 1
        async with self._provider.stream(self._request, attempt_id=f"attempt-{self._attempts}") as stream:
            async for _ in stream:
                pass
            return (await stream.reply()).text

    async def typed(self) -> Report:
        return (await self._runner.invoke(JSON_PROMPT, transport=REPORT)).value

    async def json_as_text(self) -> str:
        return (await self._runner.invoke(JSON_PROMPT)).value

    async def child(self) -> str:
        return (await self._runner.child(max_calls=1).invoke(PROMPT)).value

    def weigh(self) -> al.Measurement:
        return self._runner.measure(JSON_PROMPT, self._runner.prepare(transport=REPORT))
