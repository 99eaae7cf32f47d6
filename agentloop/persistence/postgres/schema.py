"""The tables, and how an older database comes to have them.

``facts`` holds the records in the order in which they were appended; the other tables hold what
several processes must agree on. A conversation is the runs that name it: its newest run is the one
with the greatest position, and who opens another holds its lock (see `writer`).

Records are JSON, in which a NUL is written ``\\u0000``. Postgres keeps no NUL in a text, so names
that are columns are kept with ``\\`` doubled and NUL written ``\\0``; `kept` and `given` convert.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import RestoreError
from .link import Connection, Link

__all__ = ["LOCK_CONVERSATIONS", "VERSION", "given", "kept", "migrate"]

_MIGRATIONS: Final = (
    """
    CREATE TABLE facts (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run_id text NOT NULL,
        record text NOT NULL
    );
    CREATE INDEX facts_of_run ON facts (run_id, seq);

    CREATE SEQUENCE positions;
    CREATE TABLE runs (
        run_id text PRIMARY KEY,
        position bigint NOT NULL UNIQUE,
        conversation text,
        agent text NOT NULL,
        opened_at_ms bigint NOT NULL,
        outcome text
    );
    CREATE INDEX runs_of_conversation ON runs (conversation, position) WHERE conversation IS NOT NULL;
    CREATE INDEX runs_without_end ON runs (position) WHERE outcome IS NULL;

    CREATE SEQUENCE tokens;
    CREATE TABLE leases (
        run_id text PRIMARY KEY,
        owner text NOT NULL,
        token bigint NOT NULL,
        expires_at timestamptz NOT NULL
    );
    """,
)
"""Each makes the next version. One that was released is never changed: databases have run it."""

VERSION: Final = len(_MIGRATIONS)
"""What this release reads and writes."""

LOCK_CONVERSATIONS: Final = """
    SELECT pg_advisory_xact_lock(number)
    FROM (
        SELECT DISTINCT hashtextextended(current_schema() || ' ' || name, 1) AS number
        FROM unnest($1::text[]) AS name ORDER BY number
    ) AS numbers
"""
"""Held to the transaction's end by whoever opens a run on one of them, or forgets one: ``$1`` are their names."""

_ESCAPED: Final = re.compile(r"\\(.)")


def kept(text: str) -> str:
    """A name as a column holds it."""
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def given(text: str) -> str:
    """The name that `kept` was given."""
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else "\\", text) if "\\" in text else text


async def migrate(link: Link) -> None:
    """Bring the schema to `VERSION`, in one transaction and one process at a time.

    Raises:
        RestoreError: ``restore_version``: a newer release wrote it.
        PersistenceError: the database cannot be used.
    """
    async with link.connection("opening the schema") as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"agentloop {link.schema}")
        version = await _version(connection, link.schema)
        if version <= VERSION:
            for script in _MIGRATIONS[version:]:
                await connection.execute(script)
            if version < VERSION:
                await connection.execute("DELETE FROM schema_version")
                await connection.execute("INSERT INTO schema_version (version) VALUES ($1)", VERSION)
    if version > VERSION:
        rule = f"expected schema version {VERSION} or older, got {version}, which a newer release wrote"
        raise RestoreError("restore_version", link.place, rule)


async def _version(connection: Connection, schema: str) -> int:
    """The version there is; 0 for a schema just made, or one with nothing of ours."""
    there = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".schema_version')
    if not there:
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        await connection.execute("CREATE TABLE schema_version (version integer NOT NULL)")
    version: int | None = await connection.fetchval("SELECT version FROM schema_version")
    return version or 0
