"""A SQLite store that is only looked at: no lease, no migration, no byte written, no file made."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from ...errors import InputError, PersistenceError, RestoreError
from ...exchange import Fact
from ..backend import ConversationRow, RunRow
from . import rows
from .schema import APPLICATION_ID, MIGRATIONS
from .transaction import failure

__all__ = ["SQLiteReader"]

P = ParamSpec("P")
T = TypeVar("T")


class SQLiteReader:
    """Facts of the file at ``path`` as they are when it is opened, whoever writes meanwhile.

    Its methods read in the calling thread: it is for a tool that does nothing else.

    Raises:
        InputError: there is no such file.
        RestoreError: ``restore_version``: another version wrote it.
        PersistenceError: it is no store, or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(os.fspath(path))
        if not os.path.isfile(self._path):
            raise InputError(f"store: expected a file, got none at {self._path}")
        self._connection = self._connect()

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""
        return self._read(rows.load_run, run_id, path=self._path)

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of a conversation."""
        return self._read(rows.load_conversation, name, path=self._path)

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""
        found = self._read(rows.conversations, name)
        return found[0] if found else None

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations, by name."""
        return self._read(rows.conversations, prefix=prefix)

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""
        found = self._read(rows.runs, run_id=run_id, now=rows.sqlite_now)
        return found[0] if found else None

    async def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        return self._read(rows.runs, now=rows.sqlite_now)

    async def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        # Without a log beside it nobody has the file open, and SQLite would make one to read it.
        alone = "" if os.path.exists(f"{self._path}-wal") else "&immutable=1"
        try:
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=ro{alone}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")  # one view of all that is read
            self._check(connection)
        except sqlite3.Error as error:
            connection.close()
            raise failure(self._path, error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        with closing(connection.execute("PRAGMA application_id")) as found:
            if found.fetchone() != (APPLICATION_ID,):
                raise PersistenceError(f"{self._path}: expected a store of facts, got another file")
        (version,) = connection.execute("SELECT version FROM meta").fetchone()
        if version != len(MIGRATIONS):
            rule = f"expected schema version {len(MIGRATIONS)}, got {version}"
            raise RestoreError("restore_version", self._path, rule)

    def _read(self, read: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self._connection, *args, **kwargs)
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
