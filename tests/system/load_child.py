"""One of several processes that run agents on one store: ``python -m tests.system.load_child WORK STORE SCHEMA DIR``.

It waits for a line on standard input, so that all begin at once: names of runs, as JSON. What it
does with all of them concurrently is its work:

    run      runs each, unless it is another process's
    leave    begins each with recovery points and leaves its first send, which is answered only
             while the runtime closes
    resume   resumes each

It prints what came of them, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import agentloop as al
from agentloop.persistence import Backend
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, call, reply

__all__ = ["TURNS", "backend_at", "effects", "main", "requests", "text_of", "together"]

Work = Callable[[Backend, Sequence[str], Path], Awaitable[dict[str, str]]]

WAIT = 0.001
"""Seconds that a run waits for a send that it shall leave: that is answered later."""

TURNS = 4
"""Model calls a run: each but the last one asks for a tool."""


def backend_at(store: str, schema: str) -> SQLiteBackend | PostgresBackend:
    """The medium: a file, or a schema of a database."""
    return PostgresBackend(store, schema=schema) if schema else SQLiteBackend(store)


def _append(path: Path, line: str) -> None:
    """One line, written whole."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode() + b"\n")
    os.close(file)


@al.tool(recovery="settle")
async def note(word: str, ctx: al.ToolContext[Path]) -> str:
    """Append one line: the effect to be counted."""
    _append(ctx.deps / "effects", f"{ctx.effect_id} {word}")
    return word


writer = al.Agent(name="writer", tools=[note], policy_version="v1")


def effects(folder: Path) -> list[str]:
    """What was done so far."""
    return (folder / "effects").read_text().splitlines()


def requests(folder: Path) -> list[str]:
    """What models were asked so far: the run, and after how many replies."""
    return (folder / "requests").read_text().splitlines()


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


def answering(
    folder: Path, *, until: Callable[[], Awaitable[object]] | None = None
) -> Callable[[al.ModelRequest], Awaitable[al.ModelReply]]:
    """A model that notes what it is asked, and answers when ``until`` is over."""

    async def asked(request: al.ModelRequest) -> al.ModelReply:
        message = request.messages[-1]
        assert isinstance(message, al.UserMessage)
        _append(folder / "requests", f"{message.content}/{len(request.exchanges)}")
        if until is not None:
            await until()
        return answer(request)

    return asked


async def together(backend: Backend, runs: Sequence[str], folder: Path, *, checkpoint: bool = False) -> dict[str, str]:
    """Run all at once; the text of each that was not another process's."""
    provider = ScriptedProvider([answering(folder)] * (len(runs) * TURNS))
    done: dict[str, str] = {}

    async def one(runtime: al.Runtime, run: str) -> None:
        try:
            result = await runtime.run(
                writer, run, run_id=run, conversation=f"c-{run}", deps=folder, checkpoint=checkpoint
            )
        except (al.NotOwnerError, al.StaleHeadError):
            return
        done[run] = result.require_text()

    async with al.Runtime(provider, store=backend) as runtime, asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(one(runtime, run))
    return done


async def leave(backend: Backend, runs: Sequence[str], folder: Path) -> dict[str, str]:
    """Leave each in its first send; the attempt of each that goes on then."""
    all_left = asyncio.Event()
    provider = ScriptedProvider([answering(folder, until=all_left.wait)] * len(runs))
    left: dict[str, str] = {}

    async def one(runtime: al.Runtime, run: str) -> None:
        try:
            await runtime.run(writer, run, run_id=run, conversation=f"c-{run}", deps=folder, checkpoint=True, wait=WAIT)
        except al.ModelPending as pending:
            if (await runtime.read(run, pending.attempt_id)).state == "pending":
                left[run] = pending.attempt_id

    async with al.Runtime(provider, store=backend) as runtime:
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(one(runtime, run))
        closing = asyncio.create_task(runtime.aclose())
        asyncio.get_running_loop().call_soon(all_left.set)  # once closing has begun
        await closing
    provider.assert_complete()
    return left


async def resume(backend: Backend, runs: Sequence[str], folder: Path) -> dict[str, str]:
    """Resume all at once; the text of each. Their first sends were answered."""
    provider = ScriptedProvider([answering(folder)] * (len(runs) * (TURNS - 1)))
    async with al.Runtime(provider, store=backend) as runtime:
        results = await asyncio.gather(*(runtime.resume(run, writer, deps=folder) for run in runs))
    provider.assert_complete()
    return {run: result.require_text() for run, result in zip(runs, results, strict=True)}


WORK: dict[str, Work] = {"run": together, "leave": leave, "resume": resume}


async def main(work: str, store: str, schema: str, folder: str) -> dict[str, Any]:
    """Do it, and say what was acknowledged."""
    print("ready", flush=True)
    runs = json.loads(await asyncio.to_thread(sys.stdin.readline))
    backend = backend_at(store, schema)
    done = await WORK[work](backend, runs, Path(folder))
    return {"done": done, "commits": backend.commits, "batches": backend.batches}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
