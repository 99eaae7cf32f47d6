"""SQLite files for tests: a backend for a while, and the file as another program sees it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agentloop.persistence.sqlite import SQLiteBackend

__all__ = ["asked", "locked", "sound", "store"]


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
