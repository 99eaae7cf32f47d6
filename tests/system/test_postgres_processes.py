"""Several processes on one Postgres: nothing lost, nothing doubled, one owner a run."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from agentloop.persistence.postgres import PostgresBackend
from tests.contracts.backend_contract import flat, solo
from tests.source import ROOT
from tests.system.appender import CONTESTED, OWN_RUNS, TURNS
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system

PROCESSES = 4


async def together(dsn: str, schema: str) -> dict[str, dict[str, Any]]:
    """What each process reported, by its name; they begin to write at the same moment."""
    processes = {
        f"p{number}": await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.appender", f"p{number}", dsn, schema),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(PROCESSES)
    }
    for process in processes.values():
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes.values()))
    assert [process.returncode for process in processes.values()] == [0] * PROCESSES
    return {name: json.loads(printed) for name, (printed, _) in zip(processes, ended, strict=True)}


async def test_processes_that_write_at_once_lose_and_double_nothing(postgres: PostgresServer, schema: str) -> None:
    """(R83, R91)"""
    reports = await together(postgres.dsn, schema)
    backend = PostgresBackend(postgres.dsn, schema=schema)
    await backend.open()

    promised = {run: count for report in reports.values() for run, count in report["facts"].items()}
    assert len(promised) == PROCESSES * OWN_RUNS
    for run, count in promised.items():
        held = await backend.load_run(run)
        assert held == flat(solo(run))
        assert len(held) == count

    owners = {run: name for name, report in reports.items() for run in report["won"]}
    assert sum(len(report["won"]) for report in reports.values()) == len(owners) == CONTESTED
    for run, owner in owners.items():
        assert await backend.load_run(run) == flat(solo(run, text=owner))

    row = await backend.conversation("c")
    assert row is not None
    opened = [run for report in reports.values() for run in report["opened"]]
    assert sorted(row.runs) == sorted(opened)
    assert len(opened) == PROCESSES * TURNS
    facts = [fact.run_id for fact in await backend.load_conversation("c")]
    assert list(dict.fromkeys(facts)) == list(row.runs)

    everything = await backend.load()
    assert len(everything) == sum(promised.values()) + len(facts) + CONTESTED * len(flat(solo("r")))
    commits, batches = (sum(report[key] for report in reports.values()) for key in ("commits", "batches"))
    assert batches == (PROCESSES * OWN_RUNS + CONTESTED) * len(solo("r")) + len(opened) * len(solo("r"))
    assert commits < batches / 2
    print(f"{PROCESSES} processes: {len(everything)} facts, {batches} batches in {commits} commits")
    await backend.close()
