"""SQLite files for tests: a backend for a while, and the file as another program sees it."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from agentloop.persistence.records import decode_record
from agentloop.persistence.sqlite import SQLiteBackend
from tests.persistence.facts import v1_record

__all__ = ["asked", "locked", "made_v1", "sound", "store"]


@asynccontextmanager
async def store(path: Path, **settings: Any) -> AsyncIterator[SQLiteBackend]:
    """A backend that is open inside of the block."""
    backend = SQLiteBackend(path, **settings)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


def asked(path: Path, query: str, *values: object) -> list[Any]:
    """What another program reads."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def made_v1(path: Path) -> None:
    """Make the file one whose every record was written by version 1."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for seq, text in connection.execute("SELECT seq, record FROM facts").fetchall():
            record = v1_record(decode_record(text, where="here"))
            connection.execute(
                "UPDATE facts SET crc = ?, record = CAST(? AS TEXT) WHERE seq = ?", (zlib.crc32(record), record, seq)
            )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program is writing inside of the block."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


def sound(path: Path) -> bool:
    """Whether SQLite finds no fault in the file."""
    return asked(path, "PRAGMA integrity_check") == [("ok",)] and asked(path, "PRAGMA foreign_key_check") == []
