"""What waits together is committed together: one transaction, a savepoint a job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from ...errors import AgentLoopError, PersistenceError
from .thread import Outcome, Work

__all__ = ["empty_log", "failure", "read_each", "write_together"]


def write_together(
    connection: sqlite3.Connection, works: Sequence[Work], *, path: str, check: Callable[[], None]
) -> list[Outcome]:
    """Do the jobs in one transaction, and commit it.

    A job that refuses (with any error but SQLite's) undoes its own writes and no other's. What
    goes wrong on the medium undoes everything: what was refused meanwhile was refused on grounds
    that are gone, so it fails like the others.

    Args:
        check: raises a `PersistenceError` where the file is not to be written any more.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_attempt(connection, work) for work in works]
        check()
        connection.execute("COMMIT")
    except (sqlite3.Error, PersistenceError) as error:
        _roll_back(connection)
        return [Outcome(error=failure(path, error)) for _ in works]
    return outcomes


def read_each(connection: sqlite3.Connection, works: Sequence[Work], *, path: str) -> list[Outcome]:
    """Do the jobs one by one."""
    outcomes = []
    for work in works:
        try:
            outcomes.append(Outcome(work(connection)))
        except sqlite3.Error as error:
            outcomes.append(Outcome(error=failure(path, error)))
        except Exception as error:  # noqa: BLE001  # it is the caller's, and the thread goes on
            outcomes.append(Outcome(error=error))
    return outcomes


def empty_log(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log, in which what was removed still stands.

    One that somebody reads from stays until the next time; the removal is committed either way.
    """
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        pass  # what keeps the log from being emptied fails the next write


def failure(path: str, error: BaseException) -> PersistenceError:
    """The error of one caller: which file, and what SQLite calls the fault."""
    if isinstance(error, AgentLoopError):
        text = str(error)
    else:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        text = f"{path}: {error} ({name})"
    told = PersistenceError(text)
    told.__cause__ = error
    return told


def _attempt(connection: sqlite3.Connection, work: Work) -> Outcome:
    connection.execute("SAVEPOINT job")
    try:
        outcome = Outcome(work(connection))
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001  # it is the caller's, and the other jobs go on
        connection.execute("ROLLBACK TO job")
        outcome = Outcome(error=error)
    connection.execute("RELEASE job")
    return outcome


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next BEGIN fails on it and tries again; nothing is committed in between
