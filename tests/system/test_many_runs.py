"""Many runs at once on one store, in one process and in several: nothing lost, nothing doubled, few commits."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentloop.exchange import Fact, OriginOpened, ReplyTaken, RunClosed, SendEnded, SendStarted, SlotMoved
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.sqlite import SQLiteBackend
from tests.source import ROOT
from tests.system.load_child import OWN, SHARED, TURNS, backend_at, effects, text_of, together

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RUNS = 50
PROCESSES = 4

ASKED = [SendStarted, SendEnded, ReplyTaken]
FACTS = [OriginOpened, *([*ASKED, SlotMoved, SlotMoved] * (TURNS - 1)), *ASKED, RunClosed]
BATCHES = 2 + TURNS * 2 + (TURNS - 1)
"""Of one run: its beginning and its end, two a model call, one a tool."""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A medium: the file or the database, and the schema there."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db"), ""
    return request.getfixturevalue("postgres").dsn, request.getfixturevalue("schema")


async def check(backend: SQLiteBackend | PostgresBackend, runs: list[str], folder: Path) -> None:
    """Every run is there whole and once, and each of its tools was run once."""
    for run in runs:
        held: list[Fact] = await backend.load_run(run)
        assert [type(fact) for fact in held] == FACTS
        assert len(set(map(repr, held))) == len(held)
    assert len(await backend.load()) == len(runs) * len(FACTS)
    assert await backend.runs(unfinished=True) == []
    expected = Counter(f"{run}/{turn}.0 {run}-{turn}" for run in runs for turn in range(TURNS - 1))
    assert Counter(effects(folder)) == expected


def tell(what: str, runs: int, batches: int, commits: int) -> None:
    print(
        f"\n{what}: {runs} runs of {TURNS} model calls and {TURNS - 1} tools, {batches} batches in {commits} commits: "
        f"{batches / runs / TURNS:.1f} batches and {commits / runs / TURNS:.2f} commits a turn"
    )


async def test_runs_at_once_in_one_process_share_their_commits(place: tuple[str, str], tmp_path: Path) -> None:
    """(R90)"""
    runs = [f"r-{number}" for number in range(RUNS)]
    backend = backend_at(*place)
    assert await together(backend, runs, tmp_path) == {run: text_of(run) for run in runs}
    assert backend.batches == RUNS * BATCHES
    assert backend.commits < backend.batches / 2
    tell(f"one process, {type(backend).__name__}", RUNS, backend.batches, backend.commits)

    again = backend_at(*place)
    await again.open()
    await check(again, runs, tmp_path)
    await again.close()


async def test_one_run_makes_one_commit_for_each_thing_that_must_not_be_guessed(tmp_path: Path) -> None:
    """Before a send, with its reply, with each tool's answer, at the beginning and at the end.

    What comes before a tool is in the commit that is made just before it anyway.
    """
    backend = backend_at(str(tmp_path / "store.db"), "")
    assert await together(backend, ["alone"], tmp_path) == {"alone": text_of("alone")}
    assert backend.batches == BATCHES
    assert backend.commits == BATCHES + 2  # its lease is taken and given up
    tell("one run alone", 1, backend.batches, backend.commits)


async def test_processes_that_run_at_once_lose_and_double_nothing(place: tuple[str, str], tmp_path: Path) -> None:
    """(R90)"""
    first = backend_at(*place)
    await first.open()
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.load_child", f"p{number}", *place, str(tmp_path)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * PROCESSES
    reports: list[dict[str, Any]] = [json.loads(printed) for printed, _ in ended]

    own = [f"p{number}-{at}" for number in range(PROCESSES) for at in range(OWN)]
    for number, report in enumerate(reports):
        assert {run for run in report["done"] if run not in SHARED} == {f"p{number}-{at}" for at in range(OWN)}
        assert all(said == text_of(run) for run, said in report["done"].items())
    assert {run for report in reports for run in report["done"]} == {*own, *SHARED}
    await check(first, [*own, *SHARED], tmp_path)
    await first.close()
    batches, commits = (sum(report[name] for report in reports) for name in ("batches", "commits"))
    assert batches == (len(own) + len(SHARED)) * BATCHES
    tell(f"{PROCESSES} processes, {type(first).__name__}", len(own) + len(SHARED), batches, commits)
