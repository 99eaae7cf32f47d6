"""Several processes at one SQLite file, and processes that die in the middle of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import flat, solo
from tests.persistence.sqlite_child import batches_of
from tests.persistence.sqlite_files import asked, sound, store
from tests.source import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class Child:
    """A process of `sqlite_child`, killed at the end of the block if it is still there."""

    def __init__(self, job: str, path: Path, name: str = "", count: int = 0) -> None:
        command = [sys.executable, "-m", "tests.persistence.sqlite_child", job, str(path), name, str(count)]
        self.name, self.count = name, count
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.says() == "up"

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._stream(self.process.stdin).close()
        self._stream(self.process.stdout).close()

    def go(self) -> None:
        stream = self._stream(self.process.stdin)
        stream.write("\n")
        stream.flush()

    def says(self) -> str:
        return self._stream(self.process.stdout).readline().strip()

    def rest(self) -> list[str]:
        return [line.strip() for line in self._stream(self.process.stdout)]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def opened(self) -> Child:
        self.go()
        assert self.says() == "open"
        return self

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


def check(path: Path, child: Child, said: list[str]) -> int:
    """Hold that each run is there as a prefix of its batches, with all that was said; count the facts."""

    async def held() -> int:
        async with store(path) as backend:
            total = 0
            for batches in batches_of(child.name, child.count):
                run_id = batches[0][0].run_id
                facts = await backend.load_run(run_id)
                lengths = [len(flat(batches[:at])) for at in range(len(batches) + 1)]
                assert len(facts) in lengths, "a batch is there in part"
                assert facts == flat(batches)[: len(facts)]
                acknowledged = [int(line.split()[1]) + 1 for line in said if line.split()[0] == run_id]
                assert lengths.index(len(facts)) >= max(acknowledged, default=0), "a batch that was held is not there"
                row = await backend.run(run_id)
                assert (row is not None) is bool(facts)
                assert row is None or (row.outcome is not None) is (len(facts) == lengths[-1])
                total += len(facts)
            assert len(await backend.load()) == total
            await backend.append(solo("afterwards")[0])
            await backend.forget(["afterwards"], unfinished=True)
            return total

    count = asyncio.run(held())
    assert sound(path)
    return count


def killed(path: Path, *, after: int, then: float = 0.0) -> None:
    """Kill a process that appends when it has said so many lines, and a moment later; look at what is left."""
    with Child("append", path, "r", 500) as child:
        child.opened().go()
        said = [child.says() for _ in range(after)]
        if then:
            time.sleep(then)
        child.kill()
        assert child.process.returncode == -signal.SIGKILL
        said += child.rest()
    if said:
        assert os.path.getsize(f"{path}-wal") > 0, "the log of the dead process is what is read"
    assert check(path, child, said) >= len(said)


@pytest.mark.parametrize("after", [0, 1, 2, 40, 400])
def test_a_killed_process_leaves_whole_batches_and_all_that_it_was_told_is_held(path: Path, after: int) -> None:
    """(R90)"""
    killed(path, after=after)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_process_killed_at_any_moment_leaves_whole_batches(tmp_path: Path) -> None:
    """A hundred times, at moments within a commit and within a checkpoint (each some thousand pages)."""
    chance = random.Random(20_260_101)
    for at in range(100):
        folder = tmp_path / str(at)
        folder.mkdir()
        killed(folder / "store.db", after=chance.choice([0, 1, 10, 200, 600]), then=chance.random() * 0.004 + 1e-6)


def test_a_file_is_killed_and_reopened_again_and_again(path: Path) -> None:
    total = 0
    for at in range(5):
        with Child("append", path, f"life{at}-", 100) as child:
            child.opened().go()
            said = [child.says() for _ in range(10)]
            child.kill()
            said += child.rest()
        held = len(asked(path, "SELECT seq FROM facts"))
        assert held >= total + len(said)
        total = held
    assert sound(path)


@pytest.fixture
def children(path: Path, request: pytest.FixtureRequest) -> Iterator[list[Child]]:
    """Processes that are up, and wait for each other."""
    job, count, names = request.param
    with ExitStack() as stack:
        yield [stack.enter_context(Child(job, path, name, count)) for name in names]


@pytest.mark.parametrize("children", [("open", 0, "abcd")], indirect=True)
def test_processes_that_make_one_file_at_once_all_get_it(path: Path, children: list[Child]) -> None:
    for child in children:
        child.go()
    for child in children:
        assert child.rest() == ["open", "done"]
        assert child.process.wait(30) == 0
    assert asked(path, "SELECT * FROM meta") == [(1, 0)]
    assert sound(path)


@pytest.mark.parametrize("children", [("append", 25, "abc")], indirect=True)
def test_processes_that_append_at_once_lose_and_double_nothing(path: Path, children: list[Child]) -> None:
    for child in children:
        child.opened()
    for child in children:
        child.go()
    for child in children:
        *said, last = child.rest()
        assert last == "done"
        assert len(said) == sum(map(len, batches_of(child.name, child.count)))
        assert child.process.wait(30) == 0
    assert asked(path, "SELECT count(*) FROM runs") == [(75,)]

    async def held() -> None:
        async with store(path) as backend:
            for child in children:
                for batches in batches_of(child.name, child.count):
                    assert await backend.load_run(batches[0][0].run_id) == flat(batches)

    asyncio.run(held())
    assert sound(path)


@pytest.mark.parametrize("children", [("race", 60, "abc")], indirect=True)
def test_of_processes_that_want_one_run_one_owns_it(path: Path, children: list[Child]) -> None:
    for child in children:
        child.opened()
    for child in children:
        child.go()
    won: dict[int, tuple[str, int]] = {}
    for child in children:
        *said, last = child.rest()
        assert last == "done"
        for line in said:
            run, token = map(int, line.split())
            assert run not in won
            won[run] = (child.name, token)
    assert sorted(won) == list(range(60))
    assert sorted(token for _, token in won.values()) == list(range(1, 61))
    assert {
        (int(run.split()[1]), owner, token)
        for run, owner, token in asked(path, "SELECT run_id, owner, token FROM leases")
    } == {(run, *owner) for run, owner in won.items()}


async def test_a_dead_owner_is_succeeded_when_its_lease_runs_out(path: Path) -> None:
    with Child("race", path, "dead", 1) as child:
        await asyncio.to_thread(child.opened)
        child.go()
        assert await asyncio.to_thread(child.says) == "0 1"
        child.kill()
    now = time.time()
    backend = SQLiteBackend(path, clock=lambda: now)
    await backend.open()
    try:
        row = (await asyncio.gather(backend.acquire("run 0", "me", seconds=10), return_exceptions=True))[0]
        assert "'dead'" in str(row)
        now += 1_001
        assert (await backend.acquire("run 0", "me", seconds=10)).token == 2
    finally:
        await backend.close()
