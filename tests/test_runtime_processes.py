"""Two processes on one store: what one does with a run of the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider
from tests.runtime_child import AGENT
from tests.source import ROOT


class Child:
    """A process of `runtime_child`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def running(store: Path) -> AsyncIterator[Child]:
    """Another process that has asked its model, killed at the end of the block if it is still there."""
    child = Child(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runtime_child", str(store)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    )
    try:
        assert await child.says() == "asked"
        yield child
    finally:
        await child.kill()


async def test_a_run_that_lives_in_another_process_is_refused_and_it_is_told_until_when(tmp_path: Path) -> None:
    """(R83)"""
    store = tmp_path / "store.db"
    async with running(store) as child, al.Runtime(ScriptedProvider([]), store=store) as runtime:
        (row,) = await runtime.unfinished()
        assert row.lease is not None
        for attempt in (runtime.resume("r", AGENT), runtime.settle_send("r", "any", author="Ann")):
            with pytest.raises(al.NotOwnerError) as caught:
                await attempt
            assert caught.value.owner == row.lease.owner
            assert caught.value.seconds_left is not None
            assert 0 < caught.value.seconds_left <= 30
        child.go()
        assert await child.says() == "ended"
        assert (await runtime.resume("r", AGENT)).text == "done there"


async def test_a_conversation_on_which_another_process_has_a_run_is_not_forgotten(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with running(store) as child, al.Runtime(ScriptedProvider([]), store=store) as runtime:
        with pytest.raises(al.ConflictError, match="run 'r': expected a run that ended"):
            await runtime.forget(conversation="c")
        child.go()
        assert await child.says() == "ended"
        assert (await runtime.result("r")).text == "done there"
        await runtime.forget(conversation="c")
        assert await runtime.conversations() == []
