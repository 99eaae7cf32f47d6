"""A process that dies in a model call of a runner: its call is known, unsettled, and not made again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

import agentloop as al
from agentloop.testing import Answer, ReplayServer, ScriptedProvider, reply
from tests.source import ROOT
from tests.system.runner_child import BRIEF, medium
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system

PIECE = b'data: {"id":"r","model":"m","choices":[{"index":0,"delta":{"content":"They met"},"finish_reason":null}]}\n\n'


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    if request.param == "sqlite":
        return (str(tmp_path / "calls.db"),)
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.dsn, request.getfixturevalue("schema")


@asynccontextmanager
async def killed(job: Literal["call", "context"], store: tuple[str, ...]) -> AsyncIterator[ReplayServer]:
    """What is left by a process that was killed with SIGKILL while its answer came, and the server it asked."""
    async with ReplayServer() as server:
        server.script(Answer(body=PIECE, ending="stall"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.runner_child", job, server.url, *store),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"shown\n"
        finally:
            process.kill()
            await process.wait()
        assert process.returncode == -9
        yield server


async def taken_over(runtime: al.Runtime, ref: str, author: str) -> None:
    """End a run whose owner is dead, once its lease is over."""
    while True:
        try:
            return await runtime.cancel(ref, author=author)
        except al.NotOwnerError as error:
            await asyncio.sleep(error.seconds_left or 0.05)


async def found_unsettled(runtime: al.Runtime) -> str:
    """What a second start of the run finds, once the lease of the dead process is over."""
    while True:
        try:
            await runtime.run(BRIEF, "go on", conversation="c", run_id="r2")
        except al.NotOwnerError as error:
            await asyncio.sleep(error.seconds_left or 0.05)
        except al.UnsettledError as error:
            return error.ref


async def test_a_call_of_a_process_that_was_killed_is_unsettled_until_a_host_decides(store: tuple[str, ...]) -> None:
    """(R114, R135)"""
    async with killed("call", store) as server, al.Runtime(ScriptedProvider([]), store=medium(*store)) as runtime:
        (row,) = await runtime.unfinished()
        assert row.agent == "triage"
        assert (await runtime.read(row.run_id)).state in ("pending", "unknown")  # as long as its lease lives
        await taken_over(runtime, row.run_id, "Ada")
        status = await runtime.read(row.run_id)
        assert status.state == "found"
        assert status.outcome is not None
        assert (status.outcome.outcome, status.outcome.author, status.reply) == ("abandoned", "Ada", None)
        assert await runtime.unfinished() == []
        assert len(server.requests) == 1


async def test_a_summary_of_a_process_that_was_killed_is_not_asked_for_again(
    store: tuple[str, ...],
) -> None:
    """(R285, R114)"""
    async with al.Runtime(ScriptedProvider([reply("x" * 100)] * 4), store=medium(*store)) as runtime:
        for at in range(4):
            await runtime.run(al.Agent(name="brief"), "y" * 50, conversation="c", run_id=f"r1.{at}")
    async with killed("context", store) as server:
        model = ScriptedProvider([reply("They met."), reply("Done.")])
        async with al.Runtime(model, store=medium(*store)) as runtime:
            ref = await found_unsettled(runtime)
            assert ref == "r2/summary/1"
            assert model.requests == []
            await taken_over(runtime, ref, "Ada")
            result = await runtime.run(BRIEF, "go on", conversation="c", run_id="r2")
            assert (result.text, len(model.requests), len(server.requests)) == ("Done.", 2, 1)
            assert [row.run_id for row in await runtime.unfinished()] == []
