"""One SQLite file: shared commits, threads with an end, and a file that tells what it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from agentloop.errors import ConflictError, InputError, NotOwnerError, PersistenceError, RestoreError, StaleHeadError
from agentloop.exchange import ConversationBranched, Fact, OriginOpened
from agentloop.persistence.batch import Opening
from agentloop.persistence.records import encode_record
from agentloop.persistence.sqlite import SQLiteBackend, medium, schema, thread
from tests.contracts.backend_contract import flat, history, solo
from tests.persistence.facts import GOLDEN, facts
from tests.persistence.sqlite_files import asked, locked, sound, store
from tests.source import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("agentloop-sqlite")]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- shared commits


async def test_appends_that_wait_together_share_a_commit(path: Path) -> None:
    openings = [solo(f"r{at}")[0] for at in range(50)]
    async with store(path) as backend:
        with locked(path):
            tasks = [asyncio.create_task(backend.append(opening)) for opening in openings]
            await turns()
        await asyncio.gather(*tasks)
        assert backend.batches == 50
        assert backend.commits <= 2  # what the thread took first, and the rest
        assert await backend.load() == flat(openings)


async def test_runs_that_go_on_at_once_share_their_commits(path: Path) -> None:
    runs = [solo(f"r{at}") for at in range(50)]

    async def write(batches: list[tuple[Fact, ...]]) -> None:
        for batch in batches:
            await backend.append(batch)

    async with store(path) as backend:
        await asyncio.gather(*map(write, runs))
        assert backend.batches == 50 * len(runs[0])
        assert backend.commits < backend.batches / 5
        for batches in runs:
            assert await backend.load_run(batches[0][0].run_id) == flat(batches)


async def test_a_transaction_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "_TOGETHER", 10)
    openings = [solo(f"r{at}")[0] for at in range(50)]
    async with store(path) as backend:
        with locked(path):
            tasks = [asyncio.create_task(backend.append(opening)) for opening in openings]
            await turns()
        await asyncio.gather(*tasks)
        assert 5 <= backend.commits <= 6
        assert await backend.load() == flat(openings)


async def test_a_batch_that_is_refused_fails_alone(path: Path) -> None:
    going = history("r1")
    async with store(path) as backend:
        await backend.append(going[0])
        lease = await backend.acquire("owned", "me", seconds=10)
        commits = backend.commits
        with locked(path):
            tasks = [
                asyncio.ensure_future(done)
                for done in (
                    backend.append(solo("first")[0]),
                    backend.append(going[0]),
                    backend.append(solo("second")[0]),
                    backend.append(history("r2")[0], after="r1"),
                    backend.append(solo("owned")[0], token=lease.token + 1),
                    backend.acquire("owned", "you", seconds=10),
                    backend.append(solo("third")[0]),
                )
            ]
            await turns()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [
            type(None),
            ConflictError,
            type(None),
            StaleHeadError,
            NotOwnerError,
            NotOwnerError,
            type(None),
        ]
        assert [row.run_id for row in await backend.runs()] == ["r1", "first", "second", "third"]
        assert backend.batches == 4
        assert backend.commits - commits <= 2


async def test_what_sqlite_cannot_hold_is_refused_alone(path: Path) -> None:
    """An error of no kind of ours takes back its own writes and no other's."""
    opening = GOLDEN["origin_opened_least"]
    assert type(opening) is OriginOpened
    fields = {name: getattr(opening, name) for name in opening.__struct_fields__}
    late = OriginOpened(**{**fields, "at_ms": 2**63})
    async with store(path) as backend:
        with locked(path):
            tasks = [asyncio.create_task(backend.append(batch)) for batch in (solo("a")[0], [late], solo("b")[0])]
            await turns()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), OverflowError, type(None)]
        assert [row.run_id for row in await backend.runs()] == ["a", "b"]


async def test_appends_of_one_task_are_in_its_order(path: Path) -> None:
    batches = solo("r1")
    async with store(path) as backend:
        await asyncio.gather(*(backend.append(batch) for batch in batches))
        assert await backend.load() == flat(batches)


async def test_the_event_loop_goes_on_while_another_process_writes(path: Path) -> None:
    async with store(path) as backend:
        with locked(path):
            task = asyncio.create_task(backend.append(solo("r1")[0]))
            assert await backend.load() == []  # and readers read
            await turns(1_000)
            assert not task.done()
        await task


# -- cancelling and closing


async def test_a_cancelled_append_is_written_all_the_same_and_disturbs_no_other(path: Path) -> None:
    openings = [solo(f"r{at}")[0] for at in range(4)]
    async with store(path) as backend:
        with locked(path):
            tasks = [asyncio.create_task(backend.append(opening)) for opening in openings]
            await turns()
            tasks[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[1]
        await asyncio.gather(*tasks[2:])
        assert await backend.load() == flat(openings)


async def test_closing_finishes_what_was_handed_over(path: Path) -> None:
    openings = [solo(f"r{at}")[0] for at in range(20)]
    backend = SQLiteBackend(path)
    await backend.open()
    with locked(path):
        tasks = [asyncio.create_task(backend.append(opening)) for opening in openings]
        await turns()
        closing = asyncio.create_task(backend.close())
        await turns()
        assert not closing.done()
        with pytest.raises(PersistenceError, match="closed"):
            await backend.append(solo("late")[0])
    await asyncio.gather(*tasks, closing)
    async with store(path) as again:
        assert await again.load() == flat(openings)


async def test_closing_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(medium, "_CLOSE_SECONDS", 0.01)
    go = threading.Event()

    def hangs() -> float:
        go.wait(30)
        return 1.0

    backend = SQLiteBackend(path, clock=hangs, busy_seconds=0.01)
    await backend.open()
    task = asyncio.create_task(backend.acquire("r1", "me", seconds=1))
    await turns()
    with pytest.raises(PersistenceError, match=r"expected it to end within 0\.03 s"):
        await backend.close()
    go.set()
    await backend.close()
    assert (await task).token == 1
    assert threads() == []


async def test_no_thread_and_no_log_is_left_after_closing(path: Path) -> None:
    backend = SQLiteBackend(path)
    assert threads() == []
    await backend.open()
    await backend.open()
    assert sorted(threads()) == ["agentloop-sqlite-reader", "agentloop-sqlite-writer"]
    await backend.append(solo("r1")[0])
    await asyncio.gather(backend.close(), backend.close())
    assert threads() == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    await backend.close()


async def test_an_open_that_fails_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PersistenceError):
        await SQLiteBackend(tmp_path / "missing" / "store.db").open()
    backend = SQLiteBackend(tmp_path / "store.db")
    monkeypatch.setattr(SQLiteBackend, "_connect_reader", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await backend.open()
    monkeypatch.undo()
    for name in threads():
        next(each for each in threading.enumerate() if each.name == name).join(10)
    assert threads() == []
    await backend.open()  # it may be tried again
    await backend.close()


async def test_an_open_that_is_cancelled_leaves_no_thread(path: Path) -> None:
    backend = SQLiteBackend(path)
    task = asyncio.create_task(backend.open())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for each in threading.enumerate():
        if each.name.startswith("agentloop-sqlite"):
            await asyncio.to_thread(each.join, 10)
    assert threads() == []


def calls(backend: SQLiteBackend) -> list[Callable[[], Awaitable[Any]]]:
    lease_seconds = 10.0
    return [
        lambda: backend.append(solo("r9")[0]),
        backend.load,
        backend.runs,
        lambda: backend.acquire("r9", "me", seconds=lease_seconds),
        lambda: backend.forget(["r9"]),
    ]


async def test_it_is_used_from_its_opening_to_its_closing(path: Path) -> None:
    backend = SQLiteBackend(path)
    for call in calls(backend):
        with pytest.raises(PersistenceError, match="is not open"):
            await call()
    await backend.open()
    await backend.close()
    for call in [*calls(backend), backend.open]:
        with pytest.raises(PersistenceError, match="is closed"):
            await call()


async def test_one_event_loop_uses_it(path: Path) -> None:
    async with store(path) as backend:

        def elsewhere() -> None:
            for call in [*calls(backend), backend.close]:
                with pytest.raises(PersistenceError, match="another event loop"):
                    asyncio.run(call())  # type: ignore[arg-type]

        await asyncio.to_thread(elsewhere)
        await backend.append(solo("r1")[0])


def ran(program: str, path: Path) -> str:
    """What a new interpreter prints for a program that is given a path."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_cannot_use_it_and_does_no_harm(path: Path) -> None:
    out = ran(
        """
import asyncio, os, sys
from agentloop.errors import PersistenceError
from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import solo

async def refused(backend):
    for call in (lambda: backend.append(solo("r2")[0]), backend.load, backend.open, backend.close):
        try:
            await call()
        except PersistenceError as error:
            assert "opened in process" in str(error), error
        else:
            raise SystemExit("not refused")

backend = SQLiteBackend(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(backend.open())
loop.run_until_complete(backend.append(solo("r1")[0]))
child = os.fork()
if child == 0:
    asyncio.run(refused(backend))
    raise SystemExit  # with all that an interpreter does at its end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
loop.run_until_complete(backend.append(solo("r2")[0]))
print([row.run_id for row in loop.run_until_complete(backend.runs())])
loop.run_until_complete(backend.close())
loop.close()
""",
        path,
    )
    assert out == "['r1', 'r2']\n"
    assert sound(path)


@pytest.mark.parametrize("ends", ["pass", "raise SystemExit(0)", "os._exit(0)"])
def test_a_backend_that_nobody_closed_does_not_hold_up_the_interpreter(path: Path, ends: str) -> None:
    out = ran(
        f"""
import asyncio, os, sys
from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import solo

async def main():
    backend = SQLiteBackend(sys.argv[1])
    await backend.open()
    await backend.append(solo("r1")[0])
    print("held", flush=True)
    {ends}

asyncio.run(main())
""",
        path,
    )
    assert out == "held\n"
    assert asked(path, "SELECT run_id FROM runs") == [("r1",)]
    assert sound(path)


def test_a_write_ends_though_its_event_loop_has(path: Path) -> None:
    out = ran(
        """
import asyncio, sys
from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import solo
from tests.persistence.sqlite_files import asked, locked

async def main():
    backend = SQLiteBackend(sys.argv[1], busy_seconds=30)
    await backend.open()
    lock = locked(sys.argv[1])
    lock.__enter__()
    task = asyncio.create_task(backend.append(solo("r1")[0]))
    await asyncio.sleep(0)
    return lock, backend

lock, backend = asyncio.run(main())
lock.__exit__(None, None, None)
while not (found := asked(sys.argv[1], "SELECT run_id FROM runs")):
    pass
print(found)
""",
        path,
    )
    assert out == "[('r1',)]\n"


# -- the file


async def test_every_text_comes_back_exactly_and_can_be_read_by_hand(path: Path) -> None:
    scalars = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    batches = history("r1", text=scalars, conversation="\0 \u2028 \U0010ffff")
    async with store(path) as backend:
        await backend.append(flat(batches))
    async with store(path) as backend:
        assert await backend.load() == flat(batches)
    written = [record.encode() for (record,) in asked(path, "SELECT record FROM facts ORDER BY seq")]
    assert written == [encode_record(fact) for fact in flat(batches)]
    assert asked(path, "SELECT DISTINCT typeof(record) FROM facts") == [("text",)]
    kinds = asked(path, "SELECT json_extract(record, '$.fact'), run_id FROM facts ORDER BY seq")
    assert (kinds[0], kinds[-1]) == (("origin_opened", "r1"), ("run_closed", "r1"))


@given(fact=facts)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_fact_comes_back_exactly(tmp_path: Path, fact: Fact) -> None:
    async def check() -> None:
        async with store(tmp_path / "any.db") as backend:
            opening = solo(fact.run_id)[0] if not isinstance(fact, Opening) else ()
            source = f"{fact.run_id} source"
            if isinstance(fact, ConversationBranched):
                origin = fact.continues.origin_id
                least = GOLDEN["origin_opened_least"]
                await backend.append([replace(least, run_id=source, origin_id=origin, conversation=fact.source)])
            await backend.append([*opening, fact])
            (back,) = (await backend.load_run(fact.run_id))[len(opening) :]
            assert encode_record(back) == encode_record(fact)
            await backend.forget([fact.run_id, source], unfinished=True)

    asyncio.run(check())


async def test_the_settings_that_make_a_commit_last(path: Path) -> None:
    """What SQLite calls them; the kill tests see what they do."""
    connection = schema.connect(str(path), busy_seconds=1.5)
    try:
        schema.prepare(connection, path=str(path), busy_seconds=1.5)
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "secure_delete")
        }
    finally:
        connection.close()
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 1500,
        "secure_delete": 1,
    }


def holds(path: Path, text: bytes) -> bool:
    return text in path.read_bytes()


async def test_what_is_forgotten_is_not_left_in_the_file(path: Path) -> None:
    async with store(path) as backend:
        await backend.append(flat(solo("r1", "a secret that shall go" * 500)))
        await backend.append(flat(solo("r2", "what stays")))
    assert holds(path, b"secret that shall go")
    async with store(path) as backend:
        await backend.forget(["r1"])
    assert not holds(path, b"secret that shall go")
    assert holds(path, b"what stays")
    assert sound(path)


async def test_a_relative_path_is_where_it_was_when_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = SQLiteBackend("store.db")
    monkeypatch.chdir("/")
    await backend.open()
    await backend.close()
    assert (tmp_path / "store.db").exists()
    assert repr(backend) == f"SQLiteBackend({str(tmp_path / 'store.db')!r})"


@pytest.mark.parametrize("path", ["", ":memory:", "file:x.db?mode=memory", "a\0b", b"x.db"])
def test_a_path_names_a_file(path: Any) -> None:
    with pytest.raises(InputError, match="expected the path of a file"):
        SQLiteBackend(path)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "5"])
def test_the_busy_timeout_is_some_time(path: Path, seconds: Any) -> None:
    with pytest.raises(InputError, match="busy_seconds"):
        SQLiteBackend(path, busy_seconds=seconds)


# -- versions


async def test_a_newer_version_is_refused_by_name_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = (*schema.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", newer)
        async with store(path) as backend:
            await backend.append(solo("r1")[0])
    before = asked(path, "SELECT * FROM sqlite_master")
    with pytest.raises(RestoreError) as caught:
        await SQLiteBackend(path).open()
    assert caught.value.code == "restore_version"
    assert caught.value.rule == "expected schema version 1 or older, got 2"
    assert asked(path, "SELECT * FROM sqlite_master") == before
    assert threads() == []


async def test_an_older_version_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store(path) as backend:
        await backend.append(flat(solo("r1")))
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("ALTER TABLE runs ADD COLUMN colour TEXT",)))
    async with store(path) as backend:
        assert await backend.load() == flat(solo("r1"))
    assert asked(path, "SELECT version FROM meta") == [(2,)]
    assert asked(path, "SELECT colour FROM runs") == [(None,)]


@pytest.mark.parametrize("first", [True, False])
async def test_a_migration_that_fails_changes_nothing(path: Path, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not first:
        async with store(path):
            pass
    steps = ("CREATE TABLE half (x)", "a mistake")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, steps))
        with pytest.raises(PersistenceError, match="syntax error"):
            await SQLiteBackend(path).open()
    tables = {name for (name,) in asked(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == (set() if first else {"facts", "leases", "meta", "runs"})
    async with store(path) as backend:
        await backend.append(solo("r1")[0])


# -- the medium's own clock


async def test_leases_run_out_on_sqlites_clock(path: Path) -> None:
    async with store(path) as backend, store(path) as other:
        first = await backend.acquire("r1", "me", seconds=0.02)
        with pytest.raises(NotOwnerError, match=r"'me' for 0\.0\d\d s more"):
            await other.acquire("r1", "you", seconds=10)
        deadline = time.monotonic() + 30
        second = None
        while second is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(NotOwnerError):
                second = await other.acquire("r1", "you", seconds=10)
        assert second.token > first.token
        row = await backend.run("r1")
        assert row is None
        ((expires,),) = asked(path, "SELECT expires FROM leases")
        assert abs(expires - 10 - time.time()) < 5
