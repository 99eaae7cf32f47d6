"""A store to be looked at, wherever it is: a SQLite file, a Postgres database, or a snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import InputError
from ..exchange import Fact
from .backend import ConversationRow, RunRow
from .memory import MemoryBackend
from .postgres.reader import PostgresReader
from .snapshot import read_snapshot
from .sqlite.reader import SQLiteReader

__all__ = ["Reader", "open_reader"]

_POSTGRES = ("postgresql://", "postgres://")


class Reader(Protocol):
    """The reading half of `Backend`."""

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run, oldest first; empty when there is none."""

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all runs of a conversation, run by run."""

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations whose names begin so, by name."""

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""

    async def runs(self) -> list[RunRow]:
        """All runs, oldest first."""


@asynccontextmanager
async def open_reader(store: str) -> AsyncIterator[Reader]:
    """Open a store without taking or writing anything.

    Args:
        store: path of a SQLite store or of a snapshot, or ``postgresql://…``.

    Raises:
        InputError: there is no such file, or the driver is not installed.
        PersistenceError, RestoreError: it is no store of this version, or cannot be read.
    """
    if store.startswith(_POSTGRES):
        database = PostgresReader(store, pool_size=2)
        try:
            await database.open()
            yield database
        finally:
            await database.close()
    elif _is_snapshot(store):
        memory = MemoryBackend()
        with _opened(store) as source:
            await read_snapshot(memory, source)
        yield memory
    else:
        file = SQLiteReader(store)
        try:
            yield file
        finally:
            await file.close()


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise InputError(f"store: expected a file that can be read, got {path!r}: {why}") from error


def _is_snapshot(path: str) -> bool:
    with _opened(path) as file:
        return file.read(2) == b'{"'
