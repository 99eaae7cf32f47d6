"""A process that dies in a run that an agent does for another: the same run goes on, and nothing is done twice."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider
from tests.source import ROOT
from tests.system.delegate_child import WRITER, answer
from tests.system.runner_child import medium
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    if request.param == "sqlite":
        return (str(tmp_path / "runs.db"),)
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.dsn, request.getfixturevalue("schema")


async def killed(where: str, effects: Path, store: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.system.delegate_child", where, str(effects), *store),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"there\n"
    finally:
        process.kill()
        await process.wait()
    assert process.returncode == -9


async def resumed(runtime: al.Runtime, effects: Path) -> al.RunResult[None]:
    while True:
        try:
            return await runtime.resume("r", WRITER, deps=(effects, False))
        except al.NotOwnerError as error:
            await asyncio.sleep(error.seconds_left or 0.05)


@pytest.mark.parametrize("where", ["tool", "send"])
async def test_what_nobody_knows_is_settled_where_it_happened_and_the_caller_goes_on(
    where: str, store: tuple[str, ...], tmp_path: Path
) -> None:
    """(R8, R139)"""
    effects = tmp_path / "effects"
    await killed(where, effects, store)
    model = ScriptedProvider([answer] * 5)
    async with al.Runtime(model, store=medium(*store), lease_seconds=0.5) as runtime:
        with pytest.raises(al.UnsettledError) as caught:
            await resumed(runtime, effects)
        inner = caught.value.__cause__
        assert isinstance(inner, al.UnsettledError)
        assert (caught.value.ref, caught.value.calls, inner.ref) == ("r", ("0.0",), "r/0.0")
        assert model.requests == []
        found = {(item.ref, item.kind, item.tool): item for item in await runtime.unsettled()}
        if where == "tool":
            assert set(found) == {("r", "call", "ask"), ("r/0.0", "call", "pay")}
            await runtime.settle_call("r/0.0", 1, 0, author="Ada", result=al.ToolResult.ok("paid"))
        else:
            (send,) = [item for item in found.values() if item.kind == "send"]
            assert send.ref == "r/0.0"
            await runtime.settle_send("r/0.0", send.effect_id, author="Ada")
        result = await resumed(runtime, effects)
        assert (result.outcome, result.text) == ("completed", "done")
        assert (await runtime.result("r/0.0")).text == "It is paid."
        assert len(model.requests) == (2 if where == "tool" else 3)
        assert (await runtime.unfinished(), await runtime.unsettled()) == ([], [])
    assert effects.read_text() == "r/0.0/1.0\n"
