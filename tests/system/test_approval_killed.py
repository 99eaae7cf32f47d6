"""One process suspends a run, another one decides, a third one resumes it; each is killed anywhere."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.system.approval_child import ANSWERED
from tests.system.counting_model import CountingModel, calls, text
from tests.system.kill_child import effects, said
from tests.system.lives import Case, Nursery, Place

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROLES = ("suspend", "decide", "resume")
TEXT = " ".join([said("look", "up"), said("pay", "1"), ANSWERED])
_numbers = count(1)


def answer(messages: list[dict[str, Any]]) -> bytes:
    """Two turns: three calls, and what came of them."""
    if not any(message["role"] == "assistant" for message in messages):
        return calls(("look", "up"), ("pay", "1"), ("person", "why"))
    return text(" ".join(message["content"] for message in messages if message["role"] == "tool"))


@pytest_asyncio.fixture
async def model() -> AsyncIterator[CountingModel]:
    async with CountingModel(answer).serve() as serving:
        yield serving


class Stage:
    """Plays cases, each on a medium of its own."""

    def __init__(self, dsn: str, folder: Path, model: CountingModel, nurseries: asyncio.Queue[Nursery]) -> None:
        self._dsn, self._folder, self._model, self._nurseries = dsn, folder, model, nurseries

    async def play(self, deaths: dict[str, list[int]]) -> Case:
        """One case: for each role a life for each of these deaths, and one more that is not killed."""
        nursery = await self._nurseries.get()
        try:
            case = self._case()
            for role in ROLES:
                for kill_at in deaths.get(role, []):
                    life = await case.live(nursery, kill_at=kill_at, ROLE=role)
                    assert life.killed
                    assert len(life.points) == kill_at
                await case.live(nursery, ROLE=role)
            return case
        finally:
            self._nurseries.put_nowait(nursery)

    async def sweep(self, deaths: list[dict[str, list[int]]]) -> list[str]:
        """Play a case for each way to die; the faults, with the points at which processes were killed."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.play(one)) for one in deaths]
        cases = [task.result() for task in tasks]
        return [
            f"killed {', '.join(life.points[-1] for life in case.lives if life.killed)}: {fault}"
            for case in cases
            for fault in self.faults(case)
        ]

    def faults(self, case: Case) -> list[str]:
        """What went wrong, of all that was promised."""
        found = [f"a life ended with {life.status}" for life in case.lives if not life.killed and life.status != 0]
        done = Counter((item["tool"], item["effect_id"]) for item in effects(case.folder))
        if done["pay", "order-1/0.1"] != 1 or sum(number for (tool, _), number in done.items() if tool != "look") != 1:
            found.append(f"effects {dict(done)}")
        last = case.lives[-1]
        if (last.one("outcome"), last.one("text")) != ("completed", TEXT):
            found.append(f"ended with {last.one('outcome')!r}, {last.one('text')!r}")
        left = last.one("left") or []
        if left != [record for life in case.lives for record in life.held]:
            found.append("the facts at the end are not those that were acknowledged, in their order")
        moves = [fact for fact in map(json.loads, left) if fact["fact"] == "slot_moved"]
        decided = [
            (fact["position"], fact["state"], fact["author"]) for fact in moves if fact["author"] in ("Ann", "Bob")
        ]
        if decided != [(1, "open", "Ann"), (2, "done", "Bob")]:
            found.append(f"decisions {decided}")
        asked = [(fact["position"], fact["code"]) for fact in moves if fact["state"] == "waiting"]
        if asked != [(1, "approval"), (2, "external")]:
            found.append(f"asked for decisions about {asked}")
        requests = self._model.of(case.name)
        again = {attempt for life in case.lives for attempt in life.all("sends_again_after")}
        turns = Counter(item.turn for item in requests if item.attempt_id not in again)
        if len({item.attempt_id for item in requests}) != len(requests) or max(turns.values(), default=0) > 1:
            found.append(f"sends {requests}")
        return found

    def _case(self) -> Case:
        name = f"a{next(_numbers)}"
        folder = self._folder / name
        folder.mkdir()
        place = Place(self._dsn, f"approval_{name}") if self._dsn else Place(str(folder / "store.db"))
        return Case(name, self._model, place, folder, text=TEXT)


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path, model: CountingModel) -> AsyncIterator[Stage]:
    dsn = "" if request.param == "sqlite" else request.getfixturevalue("postgres").dsn
    async with AsyncExitStack() as stack:
        free: asyncio.Queue[Nursery] = asyncio.Queue()
        for _ in range(os.cpu_count() or 1):
            free.put_nowait(await stack.enter_async_context(Nursery.open("tests.system.approval_child")))
        yield Stage(dsn, tmp_path, model, free)


async def test_a_call_that_was_approved_runs_once_wherever_each_process_is_killed(stage: Stage) -> None:
    """(R84, R90, R134, R139, R337)"""
    whole = await stage.play({})
    assert stage.faults(whole) == []
    suspended, decided, _ = whole.lives
    assert (suspended.one("outcome"), suspended.one("reason")) == ("waiting_for_approval", "approval+external")
    assert (decided.one("waiting"), decided.one("left_waiting")) == (["pay", "person"], [])
    points = {role: len(life.points) for role, life in zip(ROLES, whole.lives, strict=True)}
    assert all(number > 6 for number in points.values())
    once: list[dict[str, list[int]]] = [{role: [at]} for role in ROLES for at in range(1, points[role] + 1)]
    between = {role: [number] for role, number in points.items()}  # each dies when it has done its part
    stored = decided.points.index("after append SlotMoved open+SlotMoved done") + 1
    twice: list[dict[str, list[int]]] = [{"decide": [at, at]} for at in range(1, stored)]
    twice.append({"decide": [stored, 1]})  # once it is stored, nothing is left but to confirm it
    assert await stage.sweep([*once, between, *twice]) == []
