"""What goes wrong on the medium: told as one kind of error, and nothing is half written."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import PersistenceError, RestoreError
from agentloop.exchange import Fact
from agentloop.persistence.sqlite import SQLiteBackend, medium, rows, schema, transaction
from tests.contracts.backend_contract import flat, history, solo
from tests.disk import remount, small_disk
from tests.persistence.sqlite_files import asked, locked, sound, store

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def told(error: object, *words: str) -> None:
    """Hold that this is the error a caller can handle, with its cause, and says these words."""
    assert isinstance(error, PersistenceError), error
    assert error.__cause__ is not None or "expected" in str(error)
    assert error.may_have_been_processed
    for word in words:
        assert word in str(error)


# -- a full disk


def bounded(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Let the file have this many pages at most: SQLite says then that the disk is full."""
    real = schema.connect

    def connect(path: str, *, busy_seconds: float) -> sqlite3.Connection:
        connection = real(path, busy_seconds=busy_seconds)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(medium, "connect", connect)


async def test_a_full_disk_takes_back_every_batch_of_the_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, 40)
    going = solo("going")
    async with store(path) as backend:
        await backend.append(going[0])
        counted = backend.batches
        with locked(path):
            first = asyncio.create_task(backend.append(solo("first")[0]))
            batches = [solo("small")[0], solo("large", "x" * 40 * PAGE)[0], solo("next")[0], going[0]]
            tasks = [asyncio.create_task(backend.append(batch)) for batch in batches]
            for _ in range(20):
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(first, *tasks, return_exceptions=True)
        for outcome in outcomes[1:]:  # also the one that was refused, on grounds that are gone
            told(outcome, str(path), "database or disk is full", "SQLITE_FULL")
        assert len({id(outcome) for outcome in outcomes}) == len(outcomes)
        kept = ["going"] if isinstance(outcomes[0], PersistenceError) else ["going", "first"]
        assert [row.run_id for row in await backend.runs()] == kept
        assert backend.batches == counted + len(kept) - 1
        await backend.append(going[1])  # what has room is written
        assert await backend.load_run("going") == flat(going[:2])
    assert sound(path)


async def test_appends_until_the_disk_is_full_keep_whole_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, 60)
    held: list[Fact] = []
    async with store(path) as backend:

        async def fill() -> None:
            for at in range(1_000):
                for batch in solo(f"r{at}", "x" * 700):
                    await backend.append(batch)
                    held.extend(batch)

        with pytest.raises(PersistenceError, match="SQLITE_FULL"):
            await fill()
        assert len(held) > 50
        assert await backend.load() == held
        await backend.forget([held[0].run_id])
        await backend.append(solo("again")[0])  # forgetting made room
    assert sound(path)


async def test_a_new_file_on_a_full_disk_is_not_half_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        bounded(patch, 4)
        with pytest.raises(PersistenceError, match="SQLITE_FULL"):
            await SQLiteBackend(path).open()
    assert asked(path, "SELECT * FROM sqlite_master") == []
    async with store(path) as backend:
        assert await backend.load() == []


@pytest.mark.system
async def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    """The disk fills while runs go on at once; what was acknowledged is there, in whole batches."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        path = disk / "store.db"
        held: dict[str, list[Fact]] = {}

        async def write(backend: SQLiteBackend, run: str) -> None:
            for batch in solo(run, "x" * 2_000):
                await backend.append(batch)
                held.setdefault(run, []).extend(batch)

        backend = SQLiteBackend(path)
        await backend.open()
        writers = (write(backend, f"r{at}") for at in range(200))
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        failed = [outcome for outcome in outcomes if outcome is not None]
        assert len(failed) > 10
        for outcome in failed:
            told(outcome)
        for run, facts in held.items():
            assert await backend.load_run(run) == facts
        assert {row.run_id for row in await backend.runs()} == set(held)
        await backend.close()
        copy = tmp_path / "copy.db"  # the last checkpoint may have had no room: take the log along
        for name in disk.iterdir():
            shutil.copy(name, copy.with_name(name.name.replace("store", "copy")))
    assert sound(copy)
    async with store(copy) as later:
        for run, facts in held.items():
            assert await later.load_run(run) == facts
        await later.append(solo("room")[0])


# -- another process that writes


async def test_a_lock_that_outlasts_the_busy_timeout_is_told(path: Path) -> None:
    async with store(path, busy_seconds=0.02) as backend:
        await backend.append(solo("r1")[0])
        with locked(path):
            outcomes = await asyncio.gather(
                *(backend.append(solo(f"late{at}")[0]) for at in range(3)), return_exceptions=True
            )
            assert len(await backend.runs()) == 1
        for outcome in outcomes:
            told(outcome, "database is locked", "SQLITE_BUSY")
        await backend.append(solo("r2")[0])
        assert [row.run_id for row in await backend.runs()] == ["r1", "r2"]


async def test_opening_waits_for_another_process_that_writes(path: Path) -> None:
    async with store(path):
        with locked(path):
            task = asyncio.create_task(SQLiteBackend(path, busy_seconds=30).open())
            await asyncio.sleep(0)
        await task


async def test_opening_a_new_file_gives_up_when_another_process_has_it(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(PersistenceError, match="database is locked"):
        await SQLiteBackend(path, busy_seconds=0.02).open()
    connection.close()


# -- a file that may not be written


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of the administrator, whom no file mode stops."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@contextmanager
def reachable(path: Path) -> Iterator[None]:
    """Every folder above can be entered by anyone inside of the block."""
    modes = {folder: folder.stat().st_mode for folder in path.parents if folder.stat().st_uid == os.geteuid()}
    for folder in modes:
        folder.chmod(0o777)
    try:
        yield
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)


async def test_a_file_that_is_read_only_is_read_and_not_written(path: Path) -> None:
    batches = history("r1")
    async with store(path) as writer:
        await writer.append(batches[0])
        with reachable(path):
            for suffix, mode in (("", 0o444), ("-wal", 0o444), ("-shm", 0o666)):
                os.chmod(f"{path}{suffix}", mode)
            backend = SQLiteBackend(path)
            with nobody():
                await backend.open()
            assert await backend.load() == list(batches[0])
            with pytest.raises(PersistenceError) as caught:
                await backend.append(batches[1])
            told(caught.value, "readonly database", "SQLITE_READONLY")
            assert await backend.load() == list(batches[0])
            await backend.close()
        await writer.append(batches[1])
        assert await writer.load() == flat(batches[:2])


async def test_a_folder_that_is_read_only_holds_no_new_file(path: Path) -> None:
    path.parent.chmod(0o555)
    try:
        with nobody(), pytest.raises(PersistenceError, match="unable to open database file"):
            await SQLiteBackend(path).open()
    finally:
        path.parent.chmod(0o755)
    assert list(path.parent.iterdir()) == []


@pytest.mark.system
async def test_a_real_disk_that_became_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        path = disk / "store.db"
        async with store(path) as backend:
            await backend.append(solo("r1")[0])
        remount(disk, "ro")
        with pytest.raises(PersistenceError) as caught:
            await SQLiteBackend(path).open()  # the log and its index have no place
        told(caught.value, "SQLITE_")
        remount(disk, "rw")
        async with store(path) as backend:
            assert await backend.load() == list(solo("r1")[0])
            await backend.append(solo("r2")[0])


# -- a file that is not where it was


@pytest.mark.parametrize("missing", ["", "-wal"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_nothing_is_written_to_a_file_that_is_gone(path: Path, how: str, missing: str) -> None:
    """SQLite itself would go on, in a file that nobody can open any more."""
    async with store(path) as backend:
        await backend.append(solo("r1")[0])
        gone, aside = f"{path}{missing}", str(path.with_name("aside"))
        os.link(gone, aside)
        if how == "replaced":
            shutil.copy(aside, f"{aside} copy")
            os.replace(f"{aside} copy", gone)
        else:
            os.unlink(gone)
        commits = backend.commits
        outcomes = await asyncio.gather(
            backend.append(solo("r2")[0]), backend.append(solo("r3")[0]), return_exceptions=True
        )
        for outcome in outcomes:
            told(outcome, f"{gone}: expected the file that was opened")
        os.replace(aside, gone)
        assert backend.commits == commits
        await backend.append(solo("r4")[0])
        assert [row.run_id for row in await backend.runs()] == ["r1", "r4"]
    assert sound(path)


@pytest.mark.parametrize("where", ["missing/store.db", "a file/store.db", "a folder", "no\udcffname/store.db"])
async def test_a_path_that_cannot_hold_a_file_is_told(tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "a folder").mkdir()
    with pytest.raises(PersistenceError, match="unable to open database file"):
        await SQLiteBackend(tmp_path / where).open()


# -- damage


async def filled(path: Path) -> dict[str, list[Fact]]:
    """Three runs on conversations of their own, each over several pages."""
    runs = {name: flat(history(f"run {name}", text=name * 9_000, conversation=name)) for name in "abc"}
    async with store(path) as backend:
        for facts in runs.values():
            await backend.append(facts)
    return runs


async def read_all(path: Path) -> list[Fact]:
    async with store(path) as backend:
        return await backend.load()


async def test_a_page_of_rubbish_is_never_read_as_facts(tmp_path: Path) -> None:
    """Every page in turn: what is read is what was written, or the fault is told (R90)."""
    whole = tmp_path / "whole.db"
    facts = flat(list(map(tuple, (await filled(whole)).values())))
    image = await asyncio.to_thread(whole.read_bytes)
    assert len(image) > 20 * PAGE
    faults = 0
    for start in range(0, len(image), PAGE):
        for rubbish in (b"\xa5" * PAGE, bytes(PAGE)):
            damaged = tmp_path / "damaged.db"
            await asyncio.to_thread(damaged.write_bytes, image[:start] + rubbish + image[start + PAGE :])
            try:
                assert await read_all(damaged) == facts
            except (PersistenceError, RestoreError):
                faults += 1
    assert faults > 30


async def test_a_changed_byte_in_a_record_is_found(path: Path) -> None:
    """SQLite has no checksum of its pages."""
    await filled(path)
    image = await asyncio.to_thread(path.read_bytes)
    at = image.index(b"bbbbbbbb")
    await asyncio.to_thread(path.write_bytes, image[:at] + b"B" + image[at + 1 :])
    assert sound(path)
    with pytest.raises(RestoreError, match="expected the checksum it was written with") as caught:
        await read_all(path)
    assert re.fullmatch(rf"{re.escape(str(path))}, fact \d+", caught.value.where)
    async with store(path) as backend:
        assert await backend.load_run("run a") != []
        with pytest.raises(RestoreError):
            await backend.load_run("run b")


async def test_a_record_that_was_rewritten_by_hand_is_checked_like_any(path: Path) -> None:
    async with store(path) as backend:
        await backend.append(solo("r1")[0])
    connection = sqlite3.connect(path)
    record = b'{"fact":"run_paused","run_id":"r1","version":1}'
    connection.execute("UPDATE facts SET record = CAST(? AS TEXT), crc = ?", (record, zlib.crc32(record)))
    connection.commit()
    connection.close()
    with pytest.raises(RestoreError, match="known kind of fact, got 'run_paused'"):
        await read_all(path)


async def test_reading_one_conversation_reads_no_other(path: Path) -> None:
    """One can be read though the others' records are unreadable."""
    runs = await filled(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE facts SET record = 'rubbish' WHERE run_id <> 'run b'")
    connection.commit()
    connection.close()
    async with store(path) as backend:
        assert await backend.load_conversation("b") == runs["b"]
        assert await backend.load_run("run b") == runs["b"]
        with pytest.raises(RestoreError):
            await backend.load_conversation("c")


async def test_no_query_of_one_run_or_conversation_looks_at_all(path: Path) -> None:
    await filled(path)
    plans: list[str] = []
    connection = sqlite3.connect(path)
    connection.set_trace_callback(plans.append)
    for read, name in ((rows.load_run, "run a"), (rows.load_conversation, "a")):
        read(connection, name, path="")
    rows.conversations(connection, "a")
    rows.runs(connection, now=lambda _: 0.0, run_id="run a")
    connection.set_trace_callback(None)
    steps = [row[3] for plan in plans for row in connection.execute(f"EXPLAIN QUERY PLAN {plan}").fetchall()]
    connection.close()
    assert len(plans) == 4
    assert len(steps) >= 4
    assert not [step for step in steps if step.startswith("SCAN")]


@pytest.mark.parametrize("content", [b"not a database, but longer than its header would be" * 20, b"\0" * 8192])
async def test_a_file_of_another_kind_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    await asyncio.to_thread(path.write_bytes, content)
    with pytest.raises(PersistenceError, match="file is not a database"):
        await SQLiteBackend(path).open()
    assert await asyncio.to_thread(path.read_bytes) == content


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE meta (version)")
    connection.execute("INSERT INTO meta VALUES (1)")
    connection.commit()
    connection.close()
    before = await asyncio.to_thread(path.read_bytes)
    with pytest.raises(PersistenceError, match="another program's database"):
        await SQLiteBackend(path).open()
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_a_file_system_without_shared_memory_is_refused(path: Path) -> None:
    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("journal_mode = WAL", "journal_mode = DELETE"), *values)

    connection = sqlite3.connect(path, factory=Stubborn, isolation_level=None)
    with pytest.raises(PersistenceError, match="got mode 'delete'"):
        schema.prepare(connection, path=str(path), busy_seconds=1)
    connection.close()


# -- faults of the transaction itself


class Faulty(sqlite3.Connection):
    """Fails at statements that begin with one of these words."""

    words: tuple[str, ...] = ()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.words and sql.startswith(self.words):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *values)


@pytest.mark.parametrize("words", [("BEGIN",), ("SAVEPOINT",), ("RELEASE",), ("COMMIT",), ("COMMIT", "ROLLBACK")])
def test_a_transaction_that_fails_anywhere_writes_nothing(path: Path, words: tuple[str, ...]) -> None:
    connection = sqlite3.connect(path, factory=Faulty, isolation_level=None)
    connection.execute("CREATE TABLE t (x)")

    def put(value: int) -> Any:
        return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (value,)) and value

    def write(*values: int) -> list[Any]:
        return transaction.write_together(connection, [put(v) for v in values], path="p", check=lambda: None)

    connection.words = words
    for outcome in write(1, 2):
        told(outcome.error, "p: disk I/O error")
    connection.words = ()
    outcomes = write(3)
    if "ROLLBACK" in words:  # the transaction was still open: it is undone now, and never committed
        told(outcomes[0].error, "within a transaction")
        outcomes = write(3)
    assert [outcome.value for outcome in outcomes] == [3]
    assert connection.execute("SELECT x FROM t").fetchall() == [(3,)]
    connection.close()


def test_a_job_that_refuses_after_it_wrote_takes_back_its_own_writes(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE t (x)")

    def put(value: int) -> Any:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO t VALUES (?)", (value,))
            if value == 2:
                raise ValueError

        return work

    outcomes = transaction.write_together(connection, [put(1), put(2), put(3)], path="p", check=lambda: None)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), ValueError, type(None)]
    assert connection.execute("SELECT x FROM t").fetchall() == [(1,), (3,)]
    connection.close()


async def test_an_error_of_no_known_kind_reaches_every_caller_and_the_thread_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store(path) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(medium, "write_together", lambda *_, **__: 1 / 0)
            patch.setattr(medium, "read_each", lambda *_, **__: 1 / 0)
            for call in (backend.append(solo("r1")[0]), backend.load()):
                with pytest.raises(ZeroDivisionError):
                    await call
        await backend.append(solo("r1")[0])
        assert len(await backend.load()) == 1


async def test_a_read_that_fails_harms_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store(path) as backend:
        await backend.append(solo("r1")[0])

        def bad(connection: sqlite3.Connection, **_: object) -> None:
            connection.execute("SELECT colour FROM facts")

        monkeypatch.setattr(rows, "conversations", bad)
        outcomes = await asyncio.gather(backend.conversations(), backend.load(), return_exceptions=True)
        told(outcomes[0], "no such column")
        assert outcomes[1] == list(solo("r1")[0])


def test_what_keeps_the_log_from_being_emptied_is_no_error(path: Path) -> None:
    connection = sqlite3.connect(path, factory=Faulty)
    connection.words = ("PRAGMA wal_checkpoint",)
    transaction.empty_log(connection)
    connection.close()


class Contended(sqlite3.Connection):
    """Fails to turn the log on some times, with this code."""

    times, code = 3, sqlite3.SQLITE_BUSY

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA journal_mode") and self.times:
            self.times -= 1
            error = sqlite3.OperationalError("told by the test")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(sql, *values)


def test_turning_the_log_on_waits_for_others_who_do(path: Path) -> None:
    connection = sqlite3.connect(path, factory=Contended, isolation_level=None)
    schema.prepare(connection, path=str(path), busy_seconds=30)
    assert connection.times == 0
    connection.times, connection.code = 1, sqlite3.SQLITE_IOERR
    with pytest.raises(sqlite3.OperationalError, match="told by the test"):
        schema.prepare(connection, path=str(path), busy_seconds=30)
    connection.close()


async def test_a_log_that_cannot_be_emptied_does_not_undo_the_removal(path: Path) -> None:
    async with store(path, busy_seconds=0.02) as backend:
        await backend.append(flat(solo("r1")))
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM facts").fetchone()
        await backend.forget(["r1"])
        assert await backend.load() == []
        with suppress(sqlite3.Error):
            reader.close()
    assert sound(path)
