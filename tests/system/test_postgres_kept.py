"""The full text of an output that was cut for the model, on a real Postgres."""

from __future__ import annotations

import pytest

import agentloop as al
from agentloop.persistence.postgres import PostgresBackend
from agentloop.testing import ScriptedProvider, call, reply
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system

TEXT = "secret-0815 \0é😀\u2028" * 200_000


@al.tool
async def dump() -> str:
    """Return a lot."""
    return TEXT


async def test_it_is_read_anywhere_until_the_run_is_redacted(postgres: PostgresServer, schema: str) -> None:
    def store() -> PostgresBackend:
        return PostgresBackend(postgres.dsn, schema=schema)

    provider = ScriptedProvider([reply(calls=[call("dump")]), reply("read")])
    limits = al.BookLimits(total_bytes=100_000)  # a database takes what memory would not
    async with al.Runtime(provider, store=store(), limits=limits) as one:
        await one.run(al.Agent(name="a", tools=[dump]), "go", run_id="r", conversation="c")
        assert one._store.book.size < 10_000
        async with al.Runtime(ScriptedProvider([]), store=store()) as other:
            assert await other.output("r", 0, 0) == TEXT
        await one.redact("r", author="Ada")
        with pytest.raises(al.LostError):
            await one.output("r", 0, 0)
    rows = await postgres.sql(f"SELECT record FROM {schema}.facts")
    assert len(rows) == 1
    assert "secret-0815" not in str(rows)
