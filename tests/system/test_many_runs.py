"""Many runs at once on one store, in one process and in several: nothing lost, nothing doubled, few commits."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentloop.exchange import Fact, OriginOpened, ReplyTaken, RunClosed, SendEnded, SendStarted, SlotMoved
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.sqlite import SQLiteBackend
from tests.source import ROOT
from tests.system.load_child import TURNS, backend_at, effects, requests, text_of, together

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RUNS = 50
PROCESSES = 4
OWN = 20
LEFT = 20
SHARED = tuple(f"shared{number}" for number in range(5))

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
    """Every run is there whole and once; each of its tools was run once, and each of its requests sent once."""
    for run in runs:
        held: list[Fact] = await backend.load_run(run)
        assert [type(fact) for fact in held] == FACTS
        assert len(set(map(repr, held))) == len(held)
    assert len(await backend.load()) == len(runs) * len(FACTS)
    assert await backend.runs(unfinished=True) == []
    expected = Counter(f"{run}/{turn}.0 {run}-{turn}" for run in runs for turn in range(TURNS - 1))
    assert Counter(effects(folder)) == expected
    assert Counter(requests(folder)) == Counter(f"{run}/{turn}" for run in runs for turn in range(TURNS))


def tell(what: str, runs: int, batches: int, commits: int) -> None:
    print(
        f"\n{what}: {runs} runs of {TURNS} model calls and {TURNS - 1} tools, {batches} batches in {commits} commits: "
        f"{batches / runs / TURNS:.1f} batches and {commits / runs / TURNS:.2f} commits a turn"
    )


async def at_once(
    work: str, place: tuple[str, str], folder: Path, runs: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """What processes report that begin this work at once, each on some runs."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.load_child", work, *place, str(folder)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in runs
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    lines = [json.dumps(names).encode() + b"\n" for names in runs]
    ended = await asyncio.gather(
        *(process.communicate(line) for process, line in zip(processes, lines, strict=True)),
    )
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(printed) for printed, _ in ended]


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


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_one_run_makes_one_commit_for_each_thing_that_must_not_be_guessed(
    tmp_path: Path, checkpoint: bool
) -> None:
    """Before a send, with its reply, with each tool's answer, at the beginning and at the end.

    What comes before a tool is in the commit that is made just before it anyway.
    """
    backend = backend_at(str(tmp_path / "store.db"), "")
    assert await together(backend, ["alone"], tmp_path, checkpoint=checkpoint) == {"alone": text_of("alone")}
    assert backend.batches == BATCHES
    assert backend.commits == BATCHES + 2  # its lease is taken and given up
    tell(f"one run alone, {'with' if checkpoint else 'without'} recovery points", 1, backend.batches, backend.commits)


async def test_processes_that_run_at_once_lose_and_double_nothing(place: tuple[str, str], tmp_path: Path) -> None:
    """(R90)"""
    first = backend_at(*place)
    await first.open()
    owned = [[f"p{number}-{at}" for at in range(OWN)] for number in range(PROCESSES)]
    reports = await at_once("run", place, tmp_path, [[*runs, *SHARED] for runs in owned])

    own = [run for runs in owned for run in runs]
    for runs, report in zip(owned, reports, strict=True):
        assert {run for run in report["done"] if run not in SHARED} == set(runs)
        assert all(said == text_of(run) for run, said in report["done"].items())
    assert {run for report in reports for run in report["done"]} == {*own, *SHARED}
    await check(first, [*own, *SHARED], tmp_path)
    await first.close()
    batches, commits = (sum(report[name] for report in reports) for name in ("batches", "commits"))
    assert batches == (len(own) + len(SHARED)) * BATCHES
    tell(f"{PROCESSES} processes, {type(first).__name__}", len(own) + len(SHARED), batches, commits)


async def test_runs_that_left_their_sends_are_resumed_by_other_processes(
    place: tuple[str, str], tmp_path: Path
) -> None:
    """One process with 20 runs on a file, two with 10 each on a database (R129, R141, R143)"""
    count = 2 if place[1] else 1
    runs = [[f"p{number}-{at}" for at in range(LEFT // count)] for number in range(count)]
    names = [run for own in runs for run in own]
    store = backend_at(*place)
    await store.open()
    left = await at_once("leave", place, tmp_path, runs)
    attempts = {run: attempt for report in left for run, attempt in report["done"].items()}
    assert set(attempts) == set(names)
    for run, attempt in attempts.items():
        opened, *sent = await store.load_run(run)
        assert isinstance(opened, OriginOpened)
        assert opened.checkpoint
        assert [(type(fact), getattr(fact, "attempt_id", "")) for fact in sent] == [(kind, attempt) for kind in ASKED]
    assert Counter(requests(tmp_path)) == Counter(f"{run}/0" for run in names)
    assert [row.lease for row in await store.runs(unfinished=True)] == [None] * LEFT

    resumed = await at_once("resume", place, tmp_path, runs[::-1])
    assert {run: said for report in resumed for run, said in report["done"].items()} == {
        run: text_of(run) for run in names
    }
    await check(store, names, tmp_path)
    await store.close()
    batches, commits = (sum(report[name] for report in (*left, *resumed)) for name in ("batches", "commits"))
    assert batches == LEFT * (BATCHES + 1)  # a send that was left claims no call with its reply
    tell(f"left and resumed, {count} processes each, {type(store).__name__}", LEFT, batches, commits)
