"""Stores and snapshots of version 1: they open, are checked like any, and go on in today's form."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import agentloop as al
from agentloop.errors import RestoreError
from agentloop.exchange import Fact, OriginOpened, RerunAllowed, SendEnded, SlotMoved
from agentloop.messages import ToolResult
from agentloop.persistence import MemoryBackend
from agentloop.persistence.snapshot import read_snapshot, write_snapshot
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground
from tests.persistence.facts import as_told_by_v1, v1_record
from tests.persistence.sqlite_files import asked, made_v1, store
from tests.persistence.test_snapshot import resealed


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


AGENT = al.Agent(name="a", tools=[note])


async def left(path: Path, *, at: int) -> Ground:
    """A store of version 1 whose owner died at an append of its second turn, after it was written."""
    ground = Ground(path)
    async with ground.runtime(ScriptedProvider([reply(calls=[call("note", text="x")]), reply("one")])) as runtime:
        await runtime.run(AGENT, "first", conversation="c", run_id="r1")
    script = [reply(calls=[call("note", text="y")])]
    async with ground.mortal(ScriptedProvider(script), at=at, when="after") as (runtime, medium):
        await runtime.submit(AGENT, "second", conversation="c", run_id="r2")
        await medium.dead.wait()
    ground.clock.advance(31)
    made_v1(path)
    return ground


def versions(path: Path) -> list[int]:
    return [json.loads(record)["version"] for (record,) in asked(path, "SELECT record FROM facts ORDER BY seq")]


def untimed(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if type(fact) in (SendEnded, SlotMoved, RerunAllowed) and fact.at_ms is None]  # type: ignore[union-attr]


async def test_a_call_that_was_left_in_a_store_of_version_1_is_settled_and_its_run_resumed(tmp_path: Path) -> None:
    """(R89, R136)"""
    path = tmp_path / "store.db"
    ground = await left(path, at=3)
    assert set(versions(path)) == {1}
    before = await ground.facts()
    assert not any(type(fact) is OriginOpened and fact.checkpoint for fact in before)
    provider = ScriptedProvider([reply("two"), reply("three")])
    async with ground.runtime(provider) as runtime:
        (item,) = await runtime.unsettled()
        assert (item.kind, item.tool, item.at_ms) == ("call", "note", None)
        await runtime.settle_call("r2", 0, 0, author="Ada", result=ToolResult.ok("noted y"))
        assert (await runtime.resume("r2", AGENT)).text == "two"
        assert (await runtime.run(AGENT, "third", conversation="c")).text == "three"
        assert [text for _, text in await said(runtime)] == ["first", "one", "second", "two", "third", "three"]
    after = await ground.facts()
    assert after[: len(before)] == before
    assert untimed(after[len(before) :]) == []
    assert versions(path) == [1] * len(before) + [2] * (len(after) - len(before))


async def said(runtime: al.Runtime) -> list[tuple[str, str]]:
    """What was said in the conversation, tools left out."""
    told = []
    for message in await runtime.history("c"):
        text = message.reply.text if isinstance(message, al.ModelExchange) else str(message.content)  # type: ignore[union-attr]
        if text:
            told.append((type(message).__name__, text))
    return told


async def test_a_send_that_was_left_in_a_store_of_version_1_says_when_it_was_claimed(tmp_path: Path) -> None:
    ground = await left(tmp_path / "store.db", at=2)
    async with ground.runtime(ScriptedProvider([reply("two")])) as runtime:
        (item,) = await runtime.unsettled()
        assert item.at_ms is not None
        await runtime.settle_send("r2", item.effect_id, author="Ada")
        assert (await runtime.resume("r2", AGENT)).text == "two"


async def test_a_store_of_version_1_is_held_to_the_same_rules(tmp_path: Path) -> None:
    """(R86)"""
    path = tmp_path / "store.db"
    ground = await left(path, at=3)
    started = next(at for at, fact in enumerate(await ground.facts(), 1) if type(fact) is SlotMoved)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM facts WHERE seq = ?", (started,))
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(RestoreError, match="a slot that is open cannot become done"):
            await runtime.resume("r2", AGENT)


async def v1_snapshot(path: Path) -> bytes:
    """A snapshot as it was written when the records were."""
    async with store(path) as backend:
        await write_snapshot(backend, out := io.BytesIO())
        facts = await backend.load()
    first = out.getvalue().splitlines()[0]
    return resealed([first, *(b'{"record":' + v1_record(fact) + b"}" for fact in facts)])


async def test_a_snapshot_with_records_of_version_1_is_read_and_written_in_todays_form(tmp_path: Path) -> None:
    """(R85, R89)"""
    path = tmp_path / "store.db"
    ground = await left(path, at=3)
    facts = await ground.facts()
    data = await v1_snapshot(path)
    assert b'"version":1}' in data
    target = MemoryBackend()
    await target.open()
    await read_snapshot(target, io.BytesIO(data))
    assert await target.load() == facts == [as_told_by_v1(fact) for fact in facts]
    await write_snapshot(target, out := io.BytesIO())
    assert {json.loads(line)["record"]["version"] for line in out.getvalue().splitlines()[1:-1]} == {2}
    again = MemoryBackend()
    await again.open()
    await read_snapshot(again, io.BytesIO(out.getvalue()))
    assert await again.load() == facts


async def test_a_run_of_version_1_is_redacted_in_todays_form(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    ground = await left(path, at=3)
    async with ground.runtime(ScriptedProvider([reply("two"), reply("three")])) as runtime:
        await runtime.settle_call("r2", 0, 0, author="Ada")
        assert (await runtime.resume("r2", AGENT)).text == "two"
        await runtime.redact("r1", author="Ada")
        assert (await runtime.run(AGENT, "third", conversation="c")).text == "three"
    assert versions(path)[:2] == [2, 1]  # its tombstone, and the origin of the next one
