"""One of several processes that write to one database: ``python -m tests.system.appender NAME DSN SCHEMA``.

It waits for a line on standard input, so that all begin at once; then, concurrently,

- opens its own runs and appends to them, as their owner;
- tries to own every run of a list that all processes want, and writes as owner those it won;
- opens runs on one conversation that all processes use, each after the newest it knows.

It prints what it was promised, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agentloop.errors import NotOwnerError, StaleHeadError
from agentloop.persistence.postgres import PostgresBackend
from tests.contracts.backend_contract import history, solo

__all__ = ["CONTESTED", "OWN_RUNS", "TURNS", "main"]

OWN_RUNS = 20
CONTESTED = 20
TURNS = 5


async def own(backend: PostgresBackend, run: str, process: str) -> int:
    lease = await backend.acquire(run, process, seconds=60)
    facts = 0
    for batch in solo(run):
        await backend.append(batch, token=lease.token)
        facts += len(batch)
    return facts


async def contend(backend: PostgresBackend, run: str, process: str) -> bool:
    try:
        lease = await backend.acquire(run, process, seconds=60)
    except NotOwnerError:
        return False
    for batch in solo(run, text=process):
        await backend.append(batch, token=lease.token)
    return True


async def converse(backend: PostgresBackend, process: str) -> tuple[list[str], int]:
    """Open and end some runs on the common conversation; return them, and how often another was faster."""
    opened: list[str] = []
    refused = 0
    while len(opened) < TURNS:
        row = await backend.conversation("c")
        run = f"{process}.turn{len(opened)}"
        batches = history(run)
        try:
            await backend.append(batches[0], after="" if row is None else row.runs[-1])
        except StaleHeadError:
            refused += 1
            continue
        opened.append(run)
        for batch in batches[1:]:
            await backend.append(batch)
    return opened, refused


async def main(process: str, dsn: str, schema: str) -> dict[str, Any]:
    """Write, and say what was acknowledged."""
    backend = PostgresBackend(dsn, schema=schema)
    await backend.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    runs = [f"{process}.{number}" for number in range(OWN_RUNS)]
    wanted = [f"contested{number}" for number in range(CONTESTED)]
    facts, won, (opened, refused) = await asyncio.gather(
        asyncio.gather(*(own(backend, run, process) for run in runs)),
        asyncio.gather(*(contend(backend, run, process) for run in wanted)),
        converse(backend, process),
    )
    await backend.close()
    return {
        "facts": dict(zip(runs, facts, strict=True)),
        "won": [run for run, is_mine in zip(wanted, won, strict=True) if is_mine],
        "opened": opened,
        "refused": refused,
        "commits": backend.commits,
        "batches": backend.batches,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
