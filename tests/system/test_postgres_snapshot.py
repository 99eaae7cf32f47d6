"""Snapshots, redaction and looking into a store, on a real Postgres."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import agentloop as al
from agentloop.cli.inspect.survey import survey
from agentloop.errors import PersistenceError, RestoreError
from agentloop.exchange import SendEnded
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.postgres.reader import PostgresReader
from agentloop.persistence.records import decode_record
from agentloop.persistence.snapshot import read_snapshot, write_snapshot
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, reply
from tests.cli.inspect.stores import fill
from tests.persistence.facts import v1_record
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system


async def test_a_store_goes_from_sqlite_to_postgres_and_back(
    postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    """Equal bytes on every way, names and texts with NUL included (R85, R89)."""
    await fill(tmp_path / "a.db")
    media = [
        SQLiteBackend(tmp_path / "a.db"),
        PostgresBackend(postgres.dsn, schema=schema),
        SQLiteBackend(tmp_path / "b.db"),
    ]
    files = []
    for at, backend in enumerate(media):
        await backend.open()
        if at:
            await read_snapshot(backend, io.BytesIO(files[-1]))
        await write_snapshot(backend, out := io.BytesIO())
        files.append(out.getvalue())
    assert files[0] == files[1] == files[2]
    assert await media[0].runs() == await media[1].runs() == await media[2].runs()
    for backend in media:
        await backend.close()


async def test_a_database_of_version_1_is_read_and_goes_on(postgres: PostgresServer, schema: str) -> None:
    """(R89)"""
    agent = al.Agent(name="a")
    async with al.Runtime(ScriptedProvider([reply("1")]), store=PostgresBackend(postgres.dsn, schema=schema)) as host:
        await host.run(agent, "a", conversation="c", run_id="r1")
    for seq, text in await postgres.sql(f"SELECT seq, record FROM {schema}.facts ORDER BY seq"):
        record = v1_record(decode_record(text, where="here")).decode()
        await postgres.sql(f"UPDATE {schema}.facts SET record = $1 WHERE seq = $2", record, seq)
    provider = ScriptedProvider([reply("2")])
    async with al.Runtime(provider, store=PostgresBackend(postgres.dsn, schema=schema)) as host:
        await host.run(agent, "b", conversation="c", run_id="r2")
        assert len(await host.history("c")) == 4
    backend = PostgresBackend(postgres.dsn, schema=schema)
    await backend.open()
    ended = [fact.at_ms for fact in await backend.load() if type(fact) is SendEnded]
    await backend.close()
    assert (ended[0], type(ended[1])) == (None, int)
    versions = await postgres.sql(f"SELECT record::json ->> 'version' FROM {schema}.facts ORDER BY seq")
    assert [int(row[0]) for row in versions] == [1] * 5 + [2] * 5


async def test_conversations_are_branched_redacted_and_forgotten(postgres: PostgresServer, schema: str) -> None:
    agent = al.Agent(name="a")
    provider = ScriptedProvider([reply("1"), reply("heliotrope"), reply("x")])
    async with al.Runtime(provider, store=PostgresBackend(postgres.dsn, schema=schema)) as host:
        await host.run(agent, "a", conversation="c \0")
        ref = (await host.run(agent, "b", conversation="c \0")).ref
        _, second = await host.exchanges("c \0")
        await host.branch("c \0", second, "d")
        with pytest.raises(al.ConflictError, match="expected no branch of it"):
            await host.forget(conversation="c \0")
        await host.redact(ref, author="Ada")
        await host.run(agent, "c", conversation="d")
        assert len(await host.history("d")) == 4
        records = await postgres.sql(f"SELECT record FROM {schema}.facts")
        assert not [row for row in records if "heliotrope" in row[0]]
        await host.forget(conversation="d")
        await host.forget(conversation="c \0")
        assert await host.conversations() == []


async def test_a_store_is_looked_into_and_left_alone(postgres: PostgresServer, schema: str) -> None:
    reader = PostgresReader(postgres.dsn, schema=schema, pool_size=2)
    with pytest.raises(PersistenceError, match="expected a store of facts, got none"):
        await reader.open()
    await reader.close()
    provider = ScriptedProvider([reply("1")])
    async with al.Runtime(provider, store=PostgresBackend(postgres.dsn, schema=schema)) as host:
        await host.run(al.Agent(name="a"), "hi", conversation="c")
    reader = PostgresReader(postgres.dsn, schema=schema, pool_size=2)
    await reader.open()
    view = await survey(reader, "store")
    assert [(run.conversation, run.state, run.owner) for run in view.runs] == [("c", "completed", None)]
    await reader.close()
    await postgres.sql(f"UPDATE {schema}.schema_version SET version = 99")
    reader = PostgresReader(postgres.dsn, schema=schema, pool_size=2)
    with pytest.raises(RestoreError, match="got 99"):
        await reader.open()
    await reader.close()
