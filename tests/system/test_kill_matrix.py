"""A process is killed at every point where something durable, a send or a tool begins or ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.system.counting_model import CountingModel, calls, text
from tests.system.kill_child import LEFT, LOOKUP, said
from tests.system.lives import Case, Nursery, Place, State, Verdict

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TEXT = " ".join([said("look", "up"), said("pay", "1"), said("mail", "a")])
SECOND_DEATHS = ("after send", "after tool look", "after tool mail")
LOST_SECOND_DEATHS = ("after send", "before tool pay", "after tool pay", "after tool mail")
Nurseries = asyncio.Queue[Nursery]
_numbers = count(1)


class Kill(NamedTuple):
    """The point at which a process dies; point 0 where it closes and ends."""

    at: int
    name: str
    settings: dict[str, str] = {}  # noqa: RUF012  # read only


def answer(messages: list[dict[str, Any]]) -> bytes:
    """Three turns: two calls in one reply, one call, and what the tools said."""
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == 0:
        return calls(("look", "up"), ("pay", "1"))
    if turn == 1:
        return calls(("mail", "a"))
    return text(" ".join(message["content"] for message in messages if message["role"] == "tool"))


@pytest_asyncio.fixture
async def model() -> AsyncIterator[CountingModel]:
    async with CountingModel(answer).serve() as serving:
        yield serving


@pytest_asyncio.fixture
async def nurseries() -> AsyncIterator[Nurseries]:
    """As many as there are processors."""
    async with AsyncExitStack() as stack:
        free: Nurseries = asyncio.Queue()
        for _ in range(os.cpu_count() or 1):
            free.put_nowait(await stack.enter_async_context(Nursery.open()))
        yield free


class Stage:
    """Makes cases, each on a medium of its own, and plays them.

    Attributes:
        recovery: whether the runs of its cases have recovery points.
    """

    def __init__(self, medium: str, dsn: str, folder: Path, model: CountingModel, nurseries: Nurseries) -> None:
        self.medium, self.recovery = medium, False
        self._dsn, self._folder, self._model, self._nurseries = dsn, folder, model, nurseries

    async def play(self, *kills: Kill) -> Case:
        """One case: a life for each of these deaths, and one more that is not killed."""
        nursery = await self._nurseries.get()
        try:
            case = self._case()
            for kill in kills:
                life = await case.live(nursery, kill_at=kill.at, **kill.settings)
                if kill.at:
                    assert life.killed
                    assert (len(life.points), life.points[-1]) == (kill.at, kill.name)
            await case.live(nursery)
            return case
        finally:
            self._nurseries.put_nowait(nursery)

    async def sweep(self, what: str, deaths: Iterable[tuple[Kill, ...]]) -> list[Case]:
        """Play a case for each way to die, and print how they went."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.play(*kills)) for kills in deaths]
        cases = [task.result() for task in tasks]
        verdicts = [case.judge() for case in cases]
        sends, effects = sum(one.double_sends for one in verdicts), sum(one.double_effects for one in verdicts)
        facts = sum(one.lost_facts for one in verdicts)
        print(
            f"\n{what}, {self.medium}: {len(cases)} points, "
            f"double sends {sends}, double effects {effects}, lost facts {facts}"
        )
        return cases

    def _case(self) -> Case:
        name = f"k{next(_numbers)}"
        folder = self._folder / name
        folder.mkdir()
        place = Place(self._dsn, f"kill_{name}") if self._dsn else Place(str(folder / "store.db"))
        return Case(name, self._model, place, folder, text=TEXT, recovery=self.recovery)


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, model: CountingModel, nurseries: Nurseries) -> Stage:
    dsn = "" if request.param == "sqlite" else request.getfixturevalue("postgres").dsn
    return Stage(request.param, dsn, tmp_path, model, nurseries)


@pytest.fixture
def recovering(stage: Stage) -> Stage:
    """The same, for runs with recovery points."""
    stage.recovery = True
    return stage


def faults(cases: list[Case]) -> list[str]:
    """Every fault, with the points at which the process was killed."""
    return [
        f"killed {', '.join(life.points[-1] for life in case.lives if life.killed)}: {verdict}"
        for case in cases
        if (verdict := case.judge()) != Verdict()
    ]


def ways(points: list[str], *before: Kill, settings: dict[str, str] | None = None) -> list[tuple[Kill, ...]]:
    """To die at each of these points, after these deaths."""
    return [(*before, Kill(at, name, settings or {})) for at, name in enumerate(points, 1)]


async def points_of(stage: Stage) -> list[str]:
    """The points of a run that nobody kills."""
    whole = await stage.play()
    assert whole.judge() == Verdict()
    return whole.lives[0].points


async def test_a_process_killed_at_any_point_sends_nothing_twice_and_loses_nothing(stage: Stage) -> None:
    """(R84, R90, R91, R132-R135, R139)"""
    points = await points_of(stage)
    assert len(points) > 35
    cases = await stage.sweep("killed once", ways(points))
    assert faults(cases) == []
    found = [State.of(case.lives[1].one("found")) for case in cases]
    assert {kind for state in found for kind, _, _ in state.unsettled} == {"send", "call"}
    assert {tool for state in found for _, _, tool in state.unsettled} == {None, "look", "pay", "mail"}


async def test_a_process_killed_again_while_it_resumes_sends_nothing_twice(stage: Stage) -> None:
    """(R84, R90, R91, R132-R135, R139)"""
    points = await points_of(stage)
    deaths: list[tuple[Kill, ...]] = []
    for name in SECOND_DEATHS:
        first = Kill(points.index(name) + 1, name)
        resumed = await stage.play(first)
        assert resumed.judge() == Verdict()
        deaths += ways(resumed.lives[1].points, first)
    assert faults(await stage.sweep("killed twice", deaths)) == []


@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
async def test_claims_that_are_stored_late_are_seen_as_double_effects(stage: Stage) -> None:
    """The test can fail: on a medium that keeps a claim only with what came of it, effects are doubled."""
    deaths = [
        (Kill(at, name, {"CLAIMS": "late"}),)
        for at, name in enumerate(await points_of(stage), 1)
        if name in ("after send", "after tool mail")
    ]
    cases = await stage.sweep("claims stored late", deaths)
    assert sum(case.judge().double_sends for case in cases) == 3
    assert sum(case.judge().double_effects for case in cases) == 1
    assert all("never claimed" in case.judge().faults[0] for case in cases)


async def test_with_recovery_points_only_a_send_and_what_a_host_wants_to_settle_wait_for_one(recovering: Stage) -> None:
    """(R129, R132-R135, R139, R141)"""
    points = await points_of(recovering)
    assert len(points) > 35
    cases = await recovering.sweep("recovery, killed once", ways(points))
    assert faults(cases) == []
    found = [case.state(1) for case in cases]
    assert {tool for state in found for _, _, tool in state.waits} == {None, "mail"}
    assert {tool for state in found for _, _, tool in state.asks} == {"pay"}
    settled = {name for case in cases for life in case.lives for name in life.all("settles")}
    assert settled == {"send", "mail"}
    assert all(json.loads(case.lives[-1].one("left")[0])["checkpoint"] for case in cases)


async def test_with_recovery_points_a_process_killed_again_looks_up_and_sends_nothing_twice(recovering: Stage) -> None:
    """(R134, R139, R141)"""
    points = await points_of(recovering)
    deaths: list[tuple[Kill, ...]] = []
    for name in LOST_SECOND_DEATHS:
        first = Kill(points.index(name) + 1, name)
        resumed = await recovering.play(first)
        assert resumed.judge() == Verdict()
        deaths += ways(resumed.lives[1].points, first)
    cases = await recovering.sweep("recovery, killed twice", deaths)
    assert faults(cases) == []
    names = [case.lives[1].points[-1] for case in cases]
    assert names.count(LOOKUP) == names.count("after lookup pay") == 2  # that find it done, and not done


async def test_a_process_killed_after_its_run_has_left_a_send_sends_nothing_twice(recovering: Stage) -> None:
    """(R141)"""
    leaves = {"LEAVES": "resume"}
    whole = await recovering.play(Kill(0, "", leaves))
    points = whole.lives[0].points
    left = points.index(LEFT)
    assert whole.judge() == Verdict()
    assert points.count("before send") == 3  # one a turn
    cases = await recovering.sweep("recovery, left and resumed", ways(points, settings=leaves)[left:])
    assert faults(cases) == []


async def test_closing_in_order_stores_the_reply_of_a_send_that_was_left(recovering: Stage) -> None:
    """(R141, R143)"""
    leaves = {"LEAVES": "close"}
    whole = await recovering.play(Kill(0, "", leaves))
    assert whole.judge() == Verdict()
    first, second = whole.lives
    assert first.status == 0
    asked = [fact["attempt_id"] for fact in map(json.loads, second.one("found")) if fact["fact"] == "reply_taken"]
    assert asked == first.all("left_attempt")
    assert whole.state(1).unsettled == []
    assert second.points.count("before send") == 2  # the other turns
    cases = await recovering.sweep("recovery, left and closed", ways(first.points, settings=leaves))
    assert faults(cases) == []


async def test_a_run_whose_owner_may_live_is_not_resumed(stage: Stage) -> None:
    """(R83, R92)"""
    at = (await points_of(stage)).index("after tool pay") + 1
    second = (await stage.play(Kill(at, "after tool pay", {"LEASE": "600"}))).lives[1]
    assert second.all("refused") == ["owned", "owned"]
    assert second.one("unfinished") == ["order-1"]
    assert second.one("unsettled") == []  # of a run that may go on, nothing is lost
    assert re.search(r"for \d+\.\d+ s more", second.one("message"))
    assert second.held == []
