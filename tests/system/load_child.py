"""One of several processes that run agents on one store: ``python -m tests.system.load_child NAME STORE SCHEMA DIR``.

It waits for a line on standard input, so that all begin at once; then it runs its own runs and
tries to run those that every process wants, all concurrently. It prints what came of them, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import agentloop as al
from agentloop.persistence import Backend
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, call, reply

__all__ = ["OWN", "SHARED", "TURNS", "backend_at", "effects", "main", "text_of", "together"]

OWN = 20
SHARED = tuple(f"shared{number}" for number in range(5))
TURNS = 4
"""Model calls a run: each but the last one asks for a tool."""


def backend_at(store: str, schema: str) -> SQLiteBackend | PostgresBackend:
    """The medium: a file, or a schema of a database."""
    return PostgresBackend(store, schema=schema) if schema else SQLiteBackend(store)


@al.tool
async def note(word: str, ctx: al.ToolContext[Path]) -> str:
    """Append one line: the effect to be counted."""
    file = os.open(ctx.deps / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{ctx.effect_id} {word}\n".encode())
    os.close(file)
    return word


writer = al.Agent(name="writer", tools=[note], policy_version="v1")


def effects(folder: Path) -> list[str]:
    """What was done so far."""
    return (folder / "effects").read_text().splitlines()


def text_of(run: str) -> str:
    """What a run ends with, when all its tools were run once."""
    return " ".join(f"{run}-{turn}" for turn in range(TURNS - 1))


def answer(request: al.ModelRequest) -> al.ModelReply:
    """The run's name is its input; what follows depends on what was answered so far."""
    asked = request.messages[-1]
    assert isinstance(asked, al.UserMessage)
    run = asked.content
    turn = len(request.exchanges)
    if turn < TURNS - 1:
        return reply(calls=[call("note", word=f"{run}-{turn}")], usage=(1, 1))
    return reply(text=" ".join(exchange.feedback[0].text for exchange in request.exchanges), usage=(1, 1))


async def together(backend: Backend, runs: list[str], folder: Path) -> dict[str, str]:
    """Run all at once; the text of each that was not another process's."""
    provider = ScriptedProvider([answer] * (len(runs) * TURNS))
    done: dict[str, str] = {}

    async def one(runtime: al.Runtime, run: str) -> None:
        try:
            result = await runtime.run(writer, run, run_id=run, conversation=f"c-{run}", deps=folder)
        except (al.NotOwnerError, al.StaleHeadError):
            return
        done[run] = result.require_text()

    async with al.Runtime(provider, store=backend) as runtime, asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(one(runtime, run))
    return done


async def main(process: str, store: str, schema: str, folder: str) -> dict[str, Any]:
    """Run, and say what was acknowledged."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    backend = backend_at(store, schema)
    done = await together(backend, [*(f"{process}-{number}" for number in range(OWN)), *SHARED], Path(folder))
    return {"done": done, "commits": backend.commits, "batches": backend.batches}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
