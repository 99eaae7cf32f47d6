"""The backend on one SQLite file.

One thread writes: everything that waits is one transaction with one sync of the disk, so runs
that go on at once share a commit. Another thread reads. Both work off the event loop, each on its
own connection. Several processes may have the file open: whatever must hold when a batch is
written is checked in the transaction that writes it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from ...errors import InputError, PersistenceError
from ...exchange import Fact, RunRedacted
from ...limits import check_seconds
from ..backend import ConversationRow, Lease, RunRow
from ..batch import require_batch
from ..records import encode_record
from . import rows
from .schema import FileWatch, connect, prepare
from .thread import ConnectionThread, Outcome, Work
from .transaction import empty_log, failure, read_each, write_together

__all__ = ["SQLiteBackend"]

P = ParamSpec("P")
T = TypeVar("T")

_CLOSE_SECONDS: Final = 10.0
"""How long closing waits beyond the busy timeout, for transactions and the last checkpoint."""


class _Threads(NamedTuple):
    writer: ConnectionThread
    reader: ConnectionThread
    loop: asyncio.AbstractEventLoop
    process: int

    def check(self, path: str) -> None:
        """Hold that this is where they were started."""
        if self.process != os.getpid():
            raise PersistenceError(f"{path}: opened in process {self.process}; each process opens its own")
        if self.loop is not asyncio.get_running_loop():
            raise PersistenceError(f"{path}: opened in another event loop; each loop opens its own")


class SQLiteBackend:
    """Facts in the file at ``path``, made when it is not there. See `Backend`.

    One event loop of one process may use it, from `open` to `close`. A commit is on the disk when
    `append` returns (``synchronous=FULL``). A cancelled call gives up the wait only: its write goes on.

    Args:
        path: a file on a local disk; its folder exists. ``-wal`` and ``-shm`` files stand beside it.
        busy_seconds: how long to wait for another process that writes.
        clock: seconds for leases, the same for all who have the file open; by default SQLite's own.

    Raises:
        InputError: the path names no file, or a number is out of range.

    Attributes:
        commits: transactions that were committed. batches: batches that were appended in them.
    """

    durable = True

    def __init__(
        self, path: str | os.PathLike[str], *, busy_seconds: float = 5.0, clock: Callable[[], float] | None = None
    ) -> None:
        name = os.fspath(path)
        if type(name) is not str or not name or "\0" in name or name.startswith((":memory:", "file:")):
            raise InputError("path: expected the path of a file")
        check_seconds("busy_seconds", busy_seconds)
        self._path = os.path.abspath(name)
        self._busy_seconds = float(busy_seconds)
        self._now: rows.Clock = rows.sqlite_now if clock is None else lambda _: clock()
        self._files = FileWatch(self._path)
        self._lock = asyncio.Lock()
        self._threads: _Threads | None = None
        self._closed = False
        self.commits = self.batches = 0

    def __repr__(self) -> str:
        return f"SQLiteBackend({self._path!r})"

    async def open(self) -> None:
        """Make or migrate the file. Opening it again changes nothing."""
        async with self._lock:
            if self._threads is not None or self._closed:
                self._opened()
                return
            writer = ConnectionThread("agentloop-sqlite-writer", connect=self._connect_writer, perform=self._write_all)
            reader = ConnectionThread("agentloop-sqlite-reader", connect=self._connect_reader, perform=self._read_all)
            await writer.start()
            try:
                await reader.start()
            except BaseException:
                writer.stop()
                raise
            self._threads = _Threads(writer, reader, asyncio.get_running_loop(), os.getpid())

    async def close(self) -> None:
        """Finish what was handed over, then let go of the file. Idempotent.

        Raises:
            PersistenceError: a thread hangs in the operating system, or it was opened elsewhere.
        """
        async with self._lock:
            threads = self._threads
            if threads is not None:
                threads.check(self._path)
                self._closed = True
                seconds = 2 * self._busy_seconds + _CLOSE_SECONDS  # one transaction at work, one waiting
                try:  # one after the other: whose connection is the last to close empties the log
                    await threads.reader.close(seconds=seconds)
                finally:
                    threads.writer.stop()
                await threads.writer.close(seconds=seconds)
                self._threads = None
            self._closed = True

    # -- writing

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        """Write one batch."""
        batch = require_batch(facts)
        records = [encode_record(fact) for fact in batch.facts]
        await self._write(rows.append, batch, records, token=token, after=after, now=self._now, path=self._path)

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        """Drop runs."""
        await self._write(rows.forget, tuple(run_ids), unfinished=unfinished, path=self._path)

    async def redact(self, fact: RunRedacted) -> None:
        """Replace a run's facts. What they held is overwritten, in the file and in its log."""
        await self._write(rows.redact, fact.run_id, encode_record(fact))

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        """Own a run."""
        check_seconds("seconds", seconds)
        return await self._write(rows.acquire, run_id, owner, seconds=seconds, now=self._now)

    async def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[str]:
        """Prolong leases."""
        check_seconds("seconds", seconds)
        return await self._write(rows.renew, tuple(leases), seconds=seconds, now=self._now)

    async def release(self, lease: Lease) -> None:
        """Give a lease up."""
        await self._write(rows.release, lease)

    # -- reading

    async def load(self) -> list[Fact]:
        """Every fact held."""
        return await self._read(rows.load, path=self._path)

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""
        return await self._read(rows.load_run, run_id, path=self._path)

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of a conversation."""
        return await self._read(rows.load_conversation, name, path=self._path)

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""
        found = await self._read(rows.conversations, name)
        return found[0] if found else None

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations, by name."""
        return await self._read(rows.conversations, prefix=prefix)

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""
        found = await self._read(rows.runs, run_id=run_id, now=self._now)
        return found[0] if found else None

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """All runs, or those without an end."""
        return await self._read(rows.runs, unfinished=unfinished, now=self._now)

    # -- private

    def _opened(self) -> _Threads:
        if self._closed:
            raise PersistenceError(f"{self._path}: the store is closed")
        if self._threads is None:
            raise PersistenceError(f"{self._path}: the store is not open")
        self._threads.check(self._path)
        return self._threads

    async def _write(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._opened().writer.do(work, *args, **kwargs)

    async def _read(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._opened().reader.do(work, *args, **kwargs)

    # -- in the threads

    def _connect_writer(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            prepare(connection, path=self._path, busy_seconds=self._busy_seconds)
            self._files.note()
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise failure(self._path, error) from error
            raise
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _connect(self) -> sqlite3.Connection:
        try:
            return connect(self._path, busy_seconds=self._busy_seconds)
        except sqlite3.Error as error:
            raise failure(self._path, error) from error

    def _write_all(self, connection: sqlite3.Connection, works: Sequence[Work]) -> Sequence[Outcome]:
        outcomes = write_together(connection, works, path=self._path, check=self._files.check)
        done = [work for work, outcome in zip(works, outcomes, strict=True) if outcome.error is None]
        self.commits += bool(done)
        self.batches += sum(work.function is rows.append for work in done)
        if any(work.function in (rows.forget, rows.redact) for work in done):
            empty_log(connection)
        return outcomes

    def _read_all(self, connection: sqlite3.Connection, works: Sequence[Work]) -> Sequence[Outcome]:
        return read_each(connection, works, path=self._path)
