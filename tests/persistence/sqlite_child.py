"""Another process at a SQLite file: ``python -m tests.persistence.sqlite_child JOB PATH NAME COUNT``.

It says what it has done, a line at a time, as soon as the backend has said so.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentloop.errors import NotOwnerError
from agentloop.exchange import Fact
from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import solo
from tests.persistence.sqlite_files import store

__all__ = ["batches_of"]

TASKS = 4


def batches_of(name: str, count: int) -> list[list[tuple[Fact, ...]]]:
    """What the process ``name`` appends: the batches of each of its runs."""
    return [solo(f"{name}{at}", "x" * 300) for at in range(count)]


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece, since it may be killed at any moment
    sys.stdout.flush()


async def append(backend: SQLiteBackend, name: str, count: int) -> None:
    """Append runs, several at once; say "RUN NUMBER" for each batch that is held."""
    todo = iter(batches_of(name, count))

    async def work() -> None:
        for batches in todo:
            for at, batch in enumerate(batches):
                await backend.append(batch)
                say(batch[0].run_id, at)

    await asyncio.gather(*(work() for _ in range(TASKS)))


async def race(backend: SQLiteBackend, name: str, count: int) -> None:
    """Try to own runs; say "RUN TOKEN" for each that was won."""
    for at in range(count):
        try:
            lease = await backend.acquire(f"run {at}", name, seconds=1_000)
        except NotOwnerError:
            continue
        say(at, lease.token)


async def main(job: str, path: str, name: str, count: str) -> None:
    """Wait for a line on the standard input before each part, so that processes do it at once."""
    say("up")
    sys.stdin.readline()
    async with store(Path(path), busy_seconds=30) as backend:
        say("open")
        if job != "open":
            sys.stdin.readline()
            await {"append": append, "race": race}[job](backend, name, int(count))
        say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
