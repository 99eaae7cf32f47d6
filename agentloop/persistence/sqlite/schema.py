"""The file: its tables, how they came to be, and the settings of a connection to it.

    facts   every record, in the order of ``seq``, which all runs share
    runs    what is asked of a run without reading its facts; a conversation is its runs by ``position``
    leases  who owns a run until when; a run that nobody owns has none
    meta    the schema's version and the last fencing token given out, one row

``record`` is text that a person can read (``records``). ``crc`` is the CRC-32 of its bytes, since
SQLite itself has no checksum of its pages.
"""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Final

from ...errors import PersistenceError, RestoreError

__all__ = ["APPLICATION_ID", "FileWatch", "MIGRATIONS", "connect", "prepare"]

APPLICATION_ID: Final = 0x61676C70
"""Says in the file's header whose it is (`PRAGMA application_id`), so that no other database is taken for ours."""

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE meta (version INTEGER NOT NULL, token INTEGER NOT NULL)",
        "INSERT INTO meta VALUES (0, 0)",
        """CREATE TABLE runs (
            number INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            conversation TEXT,
            position INTEGER,
            agent TEXT NOT NULL,
            opened_at_ms INTEGER NOT NULL,
            outcome TEXT
        )""",
        "CREATE UNIQUE INDEX runs_of_conversation ON runs (conversation, position)",
        "CREATE INDEX runs_unfinished ON runs (number) WHERE outcome IS NULL",
        """CREATE TABLE facts (
            seq INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL REFERENCES runs (run_id),
            crc INTEGER NOT NULL,
            record TEXT NOT NULL
        )""",
        "CREATE INDEX facts_of_run ON facts (run_id)",
        """CREATE TABLE leases (
            run_id TEXT PRIMARY KEY,
            owner TEXT NOT NULL,
            token INTEGER NOT NULL,
            expires REAL NOT NULL
        )""",
    ),
)
"""Statements that lead from each version to the next; never changed, only added to."""


def connect(path: str, *, busy_seconds: float) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions are begun and ended by name."""
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA cell_size_check = ON")  # a damaged page is found when it is read
        connection.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, *, path: str, busy_seconds: float) -> None:
    """Make the file a store of this version, whatever other processes do at the same time.

    A file of this version is not written to, so one that can only be read can be read.

    Raises:
        RestoreError: ``restore_version``: a newer version wrote it; names both.
        PersistenceError: it is another program's.
        sqlite3.Error: the file cannot be used.
    """
    version = _version(connection, path)
    _write_ahead(connection, path, busy_seconds)
    if version == len(MIGRATIONS):
        return
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for statements in MIGRATIONS[_version(connection, path) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute("UPDATE meta SET version = ?", (len(MIGRATIONS),))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: str) -> int:
    if connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master)").fetchone() == (0,):
        return 0
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise PersistenceError(f"{path}: expected a store of facts or a new file, got another program's database")
    (version,) = connection.execute("SELECT version FROM meta").fetchone()
    newest = len(MIGRATIONS)
    if version > newest:
        raise RestoreError("restore_version", path, f"expected schema version {newest} or older, got {version}")
    return int(version)


def _write_ahead(connection: sqlite3.Connection, path: str, busy_seconds: float) -> None:
    """Turn the write-ahead log on. SQLite does not wait here while another process does the same."""
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise PersistenceError(f"{path}: expected a file system that can share memory (WAL), got mode {mode!r}")
        return


class FileWatch:
    """Notices that the file is no longer at its path.

    A file that is removed while it is open can still be written, and is gone when it is closed.
    """

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal")
        self._seen: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Remember the files that are there."""
        for path in filter(os.path.exists, self._paths):
            self._seen[path] = _identity(path)

    def check(self) -> None:
        """Hold that the paths still name the files seen first. Called inside a writing transaction.

        Raises:
            PersistenceError: one does not.
        """
        for path in self._paths:
            try:
                identity = _identity(path)
            except OSError as error:
                raise PersistenceError(f"{path}: expected the file that was opened, got {error.strerror}") from error
            if self._seen.setdefault(path, identity) != identity:
                raise PersistenceError(f"{path}: expected the file that was opened, got another")


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
