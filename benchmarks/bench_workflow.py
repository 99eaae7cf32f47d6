"""Engines without a model call: what a round and a node cost by themselves.

- ``1,000 rounds, over 2 x 500``: a step of 1,000 rounds; the floor is two runs of 500. A ratio of 1 says that the
  cost of a round does not grow with their number.
- ``round of a step`` and ``node``: one of 1,000; the floor is one awaited call of the same plain function.
- ``node with a patch``: a node whose patch changes two fields of the state; the floor replaces the struct by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import agentloop as al
from agentloop.workflow import Handler

from .measure import Row, Settings, compare

__all__ = ["measure"]

ROUNDS = 1_000


class Counted(msgspec.Struct, frozen=True):
    count: int = 0
    word: str = ""


async def nothing(_state: Counted, _context: object) -> None:
    """What a node does."""


async def count(state: Counted, _context: object) -> dict[str, Any]:
    """What a node with a patch does."""
    return {"count": state.count + 1, "word": "again"}


def workflow(run: Handler, *provides: str, rounds: int) -> al.Workflow[Counted, int]:
    left = [rounds]

    def again(_: Counted) -> bool:
        left[0] -= 1
        if left[0]:
            return True
        left[0] = rounds
        return False

    routes = (al.Route(to="node", when=again), al.Route(complete=rounds))
    node = al.Node("node", "The only one", run=run, starts_round=True, provides=provides, routes=routes)
    return al.define_workflow("loop", state=Counted, nodes=[node])


async def steps(rounds: int) -> int:
    async def step(number: int, _context: al.NodeContext) -> al.Continue | al.Complete[int]:
        return al.Continue() if number < rounds else al.Complete(number)

    return await al.Engine(max_rounds=rounds).run(step)


async def bare_steps(rounds: int) -> int:
    async def step(number: int, _context: object) -> al.Continue | al.Complete[int]:
        return al.Continue() if number < rounds else al.Complete(number)

    for number in range(1, rounds + 1):
        outcome = await step(number, None)
        if type(outcome) is al.Complete:
            return outcome.value
    raise AssertionError


async def bare_nodes(rounds: int) -> int:
    state = Counted()
    for _ in range(rounds):
        await nothing(state, None)
    return rounds


async def bare_patches(rounds: int) -> int:
    state = Counted()
    for _ in range(rounds):
        state = msgspec.structs.replace(state, **await count(state, None))
    assert state.count == rounds
    return rounds


def measure(settings: Settings) -> list[Row]:
    """Each case is one run of so many rounds in one event loop; times are of one round, unless it says rounds."""
    rounds = ROUNDS // 50 if settings.smoke else ROUNDS
    plain, patching = workflow(nothing, rounds=rounds), workflow(count, "count", "word", rounds=rounds)

    async def nodes(of: al.Workflow[Counted, int]) -> int:
        return await al.Engine(of, max_rounds=rounds).run(Counted())

    async def halves() -> int:
        return await steps(rounds // 2) + await steps(rounds // 2)

    with asyncio.Runner() as life:
        loop = life.get_loop()

        def on_loop(work: Callable[[], Awaitable[int]]) -> Callable[[], object]:
            async def checked() -> None:
                assert await work() == rounds

            return lambda: loop.run_until_complete(checked())

        cases: list[tuple[str, str, float, Callable[[], Awaitable[int]], Callable[[], Awaitable[int]]]] = [
            ("1,000 rounds, over 2 x 500", "ms", 1e3, lambda: steps(rounds), halves),
            ("round of a step", "us", 1e6 / rounds, lambda: steps(rounds), lambda: bare_steps(rounds)),
            ("node", "us", 1e6 / rounds, lambda: nodes(plain), lambda: bare_nodes(rounds)),
            ("node with a patch", "us", 1e6 / rounds, lambda: nodes(patching), lambda: bare_patches(rounds)),
        ]
        return [
            compare(
                "workflow",
                name,
                unit=unit,
                scale=scale,
                ours=on_loop(ours),
                floor=on_loop(floor),
                settings=settings,
            )
            for name, unit, scale, ours, floor in cases
        ]
