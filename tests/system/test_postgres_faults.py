"""A Postgres that is killed, restarted, cut off, slow or full of locks: what was acknowledged is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import Fact
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.postgres.schema import LOCK_CONVERSATIONS
from tests.contracts.backend_contract import branched, history
from tests.exchange.desk import Desk
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system

Open = Callable[..., Any]


def opening(run: str, conversation: str | None = None) -> tuple[Fact, ...]:
    return Desk().opening(run, conversation=conversation)


def closing(run: str) -> tuple[Fact, ...]:
    desk = Desk()
    return desk.book.close_run(desk.open(run), outcome="completed", reason="stop", at_ms=3)


def steps(run: str, count: int) -> list[tuple[Fact, ...]]:
    """The opening of a run, and so many batches of two facts."""
    desk = Desk()
    desk.open(run)
    batches = [tuple(desk.facts)]
    for number in range(count):
        attempt = desk.send(desk.book.turn(run), f"{run}/{number}")
        desk.fail(desk.book.turn(run), attempt)
        batches.append(tuple(desk.facts[-2:]))
    return batches


@pytest.fixture
def at(postgres: PostgresServer, schema: str) -> Open:
    """Open a medium on this test's schema: ``async with at() as backend``."""

    @asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[PostgresBackend]:
        backend = PostgresBackend(postgres.dsn, schema=schema, **settings)
        await backend.open()
        try:
            yield backend
        finally:
            await backend.close()

    return opened


async def cut_off(postgres: PostgresServer) -> int:
    """End every connection of ours on the server's side, and wait until they have ended."""
    ended = await postgres.sql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'agentloop'"
    )
    return len(ended)


async def refused(work: Awaitable[object]) -> al.PersistenceError:
    with pytest.raises(al.PersistenceError) as caught:
        await work
    assert type(caught.value) is al.PersistenceError
    return caught.value


async def append_all(
    backend: PostgresBackend, run: str, acknowledged: dict[str, list[Fact]], enough: asyncio.Event
) -> int:
    """Append batches of a run until one is not acknowledged; return how many facts were tried and not acknowledged."""
    for batch in steps(run, 2_000):
        try:
            await backend.append(batch)
        except al.PersistenceError:
            return len(batch)
        acknowledged[run] += batch
        if len(acknowledged[run]) > 40:
            enough.set()
    return 0


async def test_a_killed_server_loses_nothing_that_it_acknowledged(postgres: PostgresServer, at: Open) -> None:
    """The batch that was under way is there whole or not at all (R91)."""
    runs = [f"r{number}" for number in range(12)]
    acknowledged: dict[str, list[Fact]] = {run: [] for run in runs}
    enough = asyncio.Event()
    async with at() as backend:
        tasks = [asyncio.create_task(append_all(backend, run, acknowledged, enough)) for run in runs]
        await enough.wait()
        postgres.kill()
        unknown = await asyncio.gather(*tasks)
        assert all(unknown)
        await refused(backend.append(opening("late")))
        await refused(backend.load())
    postgres.start()
    async with at() as backend:
        for run, tried in zip(runs, unknown, strict=True):
            held = await backend.load_run(run)
            assert held[: len(acknowledged[run])] == acknowledged[run]
            assert len(held) - len(acknowledged[run]) in {0, tried}


async def test_a_server_that_restarts_between_two_appends_is_used_again(postgres: PostgresServer, at: Open) -> None:
    async with at() as backend:
        await backend.append(opening("r1"))
        await backend.load()
        postgres.stop()
        await refused(backend.append(opening("r2")))
        await refused(backend.acquire("r2", "me", seconds=30))
        postgres.start()
        await backend.append(opening("r3"))
        assert [fact.run_id for fact in await backend.load()] == ["r1", "r3"]
        assert (backend.commits, backend.batches) == (2, 2)


async def test_a_connection_cut_in_mid_append_is_an_unknown_outcome(postgres: PostgresServer, at: Open) -> None:
    async with at() as backend, at() as other:
        await backend.append(opening("r1"))
        async with holding(postgres, other, "SELECT FROM runs FOR UPDATE"):
            append = asyncio.create_task(backend.append(closing("r1")))
            await waiting(postgres, 1)
            await cut_off(postgres)
            fault = await refused(append)
        cause = type(fault.__cause__).__name__
        assert cause in {"AdminShutdownError", "ConnectionDoesNotExistError"}  # the server's last word may come late
        assert f"appending ended with {cause}" in str(fault)
        assert await backend.load_run("r1") == list(opening("r1"))
        await backend.append(closing("r1"))


async def test_what_waits_behind_a_lost_batch_is_not_written(postgres: PostgresServer, at: Open) -> None:
    """Otherwise a run could be held with a gap."""
    async with at() as backend, at() as other:
        first, second, third, *_ = steps("r1", 2)
        await backend.append(first)
        async with holding(postgres, other, "SELECT FROM runs FOR UPDATE"):
            appends = [asyncio.create_task(backend.append(batch)) for batch in (second, third)]
            await waiting(postgres, 1)
            await cut_off(postgres)
            for append in appends:
                await refused(append)
        assert await backend.load_run("r1") == list(first)


async def test_cut_connections_of_readers_are_replaced(postgres: PostgresServer, at: Open) -> None:
    async with at() as backend:
        await backend.append(opening("r1"))
        await asyncio.gather(*(backend.load() for _ in range(3)))
        assert await cut_off(postgres) == 4
        await asyncio.gather(*(backend.load() for _ in range(3)))
        await backend.append(closing("r1"))


async def test_a_cancelled_append_ends_by_itself(postgres: PostgresServer, at: Open) -> None:
    """Its caller does not know whether it is there; loading settles it (R91)."""
    async with at() as backend, at() as other:
        await backend.append(opening("r1"))
        async with holding(postgres, other, "SELECT FROM runs FOR UPDATE"):
            append = asyncio.create_task(backend.append(closing("r1")))
            await waiting(postgres, 1)
            append.cancel()
            with pytest.raises(asyncio.CancelledError):
                await append
        await backend.append(opening("r2"))  # is written after it
        assert (await backend.run("r1")).outcome == "completed"


async def test_closing_writes_what_waits(postgres: PostgresServer, at: Open) -> None:
    async with at() as backend:
        appends = [asyncio.create_task(backend.append(opening(f"r{number}"))) for number in range(5)]
        await asyncio.sleep(0)
        await backend.close()
        await asyncio.gather(*appends)
        assert "closed" in str(await refused(backend.append(opening("late"))))
        assert "closed" in str(await refused(backend.load()))
        assert "closed" in str(await refused(backend.open()))
    async with at() as backend:
        assert len(await backend.runs()) == 5


async def test_a_lock_that_nobody_gives_up_ends_the_append(postgres: PostgresServer, at: Open) -> None:
    async with at(statement_seconds=0.2) as backend, at() as other:
        await backend.append(opening("r1"))
        async with holding(postgres, other, "SELECT FROM runs FOR UPDATE"):
            assert "(57014)" in str(await refused(backend.append(closing("r1"))))
        await backend.append(closing("r1"))


async def test_a_process_stopped_in_mid_transaction_loses_its_locks(postgres: PostgresServer, at: Open) -> None:
    async with at(statement_seconds=0.3) as stopped, at() as other:
        old = await stopped.acquire("r1", "a", seconds=0.1)
        connection = await stopped._link.connect()
        await connection.execute("BEGIN")
        await connection.execute("SELECT FROM leases FOR SHARE")
        lease = await other.acquire("r1", "b", seconds=30)  # waits for the lock, and by then the lease has run out
        assert (lease.owner, lease.token > old.token) == ("b", True)
        connection.terminate()


async def test_a_paused_owner_that_comes_back_writes_nothing(postgres: PostgresServer, at: Open, schema: str) -> None:
    """(R91) The clock is the database's."""
    async with at() as paused, at() as successor:
        old = await paused.acquire("r1", "a", seconds=30)
        await paused.append(opening("r1"), token=old.token)
        with pytest.raises(al.NotOwnerError, match=r"one of 'a' for (29|30)\.\d+ s more"):
            await successor.acquire("r1", "b", seconds=30)
        await postgres.sql(f"UPDATE {schema}.leases SET expires_at = clock_timestamp()")
        new = await successor.acquire("r1", "b", seconds=30)
        assert new.token > old.token
        with pytest.raises(al.NotOwnerError):
            await paused.append(closing("r1"), token=old.token)
        assert await paused.renew([old], seconds=30) == ["r1"]
        await paused.release(old)
        await successor.append(closing("r1"), token=new.token)


async def test_a_lease_cannot_be_taken_while_its_owner_commits(postgres: PostgresServer, at: Open, schema: str) -> None:
    async with at() as owner, at() as successor:
        old = await owner.acquire("r1", "a", seconds=30)
        await owner.append(opening("r1"), token=old.token)
        await postgres.sql(f"UPDATE {schema}.leases SET expires_at = clock_timestamp()")
        async with holding(postgres, successor, "SELECT FROM runs FOR UPDATE"):
            append = asyncio.create_task(owner.append(closing("r1"), token=old.token))
            await waiting(postgres, 1)
            acquire = asyncio.create_task(successor.acquire("r1", "b", seconds=30))
            await waiting(postgres, 2)
        await append
        await acquire
        assert await successor.load_run("r1") == [*opening("r1"), *closing("r1")]


async def test_a_refused_batch_spoils_no_other_of_its_commit(at: Open) -> None:
    async with at() as backend:
        await backend.append(opening("r1", "c"))
        mixed = [
            backend.append(opening("r1")),
            backend.append(opening("r2", "c"), after=""),
            backend.append(opening("r3"), token=7),
            backend.append(closing("r4")),
            *(backend.append(opening(f"good{number}", f"c{number}"), after="") for number in range(20)),
        ]
        outcomes = await asyncio.gather(*mixed, return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds[:4] == [al.ConflictError, al.StaleHeadError, al.NotOwnerError, al.ConflictError]
        assert outcomes[4:] == [None] * 20
        assert [row.run_id for row in await backend.runs()] == ["r1", *(f"good{number}" for number in range(20))]
        assert (backend.commits, backend.batches) == (2, 21)


async def test_two_openers_of_one_run_and_of_one_conversation_do_not_both_win(at: Open) -> None:
    async with at() as one, at() as two:
        for number in range(30):
            run = await asyncio.gather(
                *(backend.append(opening(f"r{number}")) for backend in (one, two)), return_exceptions=True
            )
            assert sorted(type(outcome).__name__ for outcome in run) == ["ConflictError", "NoneType"]
            head = await asyncio.gather(
                *(
                    backend.append(opening(f"{name}{number}", f"c{number}"), after="")
                    for name, backend in (("a", one), ("b", two))
                ),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in head) == ["NoneType", "StaleHeadError"]


async def test_processes_that_lock_the_same_in_opposite_orders_do_not_wait_for_each_other(
    postgres: PostgresServer, at: Open
) -> None:
    """Each would stand at ``m`` and hold what the other wants next, if it took its locks as they came."""
    async with at() as one, at() as two:
        async with holding(postgres, one, LOCK_CONVERSATIONS, ["m"]):
            appends = [
                asyncio.create_task(backend.append(opening(f"{run}{name}", name)))
                for run, backend, names in (("1", one, "amb"), ("2", two, "bma"))
                for name in names
            ]
            await waiting(postgres, 2)
        await asyncio.gather(*appends)
        assert [row.runs for row in await one.conversations()] in [
            [("1a", "2a"), ("1b", "2b"), ("1m", "2m")],
            [("2a", "1a"), ("2b", "1b"), ("2m", "1m")],
        ]


async def test_forgetting_waits_for_who_opens_a_run_on_the_conversation(postgres: PostgresServer, at: Open) -> None:
    """Otherwise the new run could follow one that is just being dropped."""
    async with at() as one, at() as two:
        await one.append(opening("r1", "c"))
        await one.append(closing("r1"))
        async with holding(postgres, one, LOCK_CONVERSATIONS, ["c"]):
            append = asyncio.create_task(one.append(opening("r2", "c"), after="r1"))
            await waiting(postgres, 1)
            forget = asyncio.create_task(two.forget(["r1"]))
            await waiting(postgres, 2)
        await append
        with pytest.raises(al.ConflictError, match="got run 'r2' besides"):
            await forget
        assert (await one.conversation("c")).runs == ("r1", "r2")


async def test_who_goes_on_from_a_conversation_waits_for_who_forgets_it(postgres: PostgresServer, at: Open) -> None:
    """And finds nothing then, for a run as for a branch."""
    async with at() as one, at() as two:
        batches = history("r1")
        for batch in batches:
            await one.append(batch)
        async with holding(postgres, one, LOCK_CONVERSATIONS, ["c"]):
            forget = asyncio.create_task(two.forget(["r1"]))
            await waiting(postgres, 1)
            run = asyncio.create_task(one.append(opening("r2", "c"), after="r1"))
            branch = asyncio.create_task(one.append(branched("b", "d", batches), after=""))
            await waiting(postgres, 2)
        await forget
        with pytest.raises(al.StaleHeadError, match="got none"):
            await run
        with pytest.raises(al.ConflictError, match="that its branch goes on from, got none"):
            await branch
        assert await one.load() == []


async def test_processes_that_write_in_opposite_orders_do_not_lock_each_other_out(at: Open) -> None:
    async with at() as one, at() as two:
        names = [f"c{number:02}" for number in range(12)]
        for turn in range(10):
            mine = (one.append(opening(f"1-{turn}-{name}", name)) for name in names)
            theirs = (two.append(opening(f"2-{turn}-{name}", name)) for name in reversed(names))
            await asyncio.gather(*mine, *theirs)
        assert len(await one.runs()) == 240
        assert one.commits + two.commits < 80


async def test_names_with_any_character_come_back(at: Open) -> None:
    names = ["\0", "\\0", "\\", "\\\\0\0", "é\u2028😀", "'; DROP TABLE facts; --", '"']
    async with at() as backend:
        for name in names:
            await backend.append(Desk().opening(name, conversation=name))
            await backend.acquire(name, name, seconds=30)
        rows = await backend.runs()
        assert [(row.run_id, row.conversation, row.lease.owner) for row in rows] == [(name,) * 3 for name in names]
        assert [row.name for row in await backend.conversations()] == sorted(names)
        for name in names:
            assert [fact.run_id for fact in await backend.load_conversation(name)] == [name]
            assert (await backend.conversation(name)).live == name
        await backend.forget(names, unfinished=True)
        assert await backend.load() == []


async def test_records_are_text_that_a_person_can_read(postgres: PostgresServer, at: Open, schema: str) -> None:
    async with at() as backend:
        await backend.append(Desk().opening("r1", al.UserMessage(content="a\0b")))
    [row] = await postgres.sql(f"SELECT record FROM {schema}.facts")
    assert row["record"].startswith('{"fact":"origin_opened","origin_id":"origin of r1"')
    assert "a\\u0000b" in row["record"]


async def test_a_damaged_record_is_named(postgres: PostgresServer, at: Open, schema: str) -> None:
    async with at() as backend:
        await backend.append(opening("r1"))
        await postgres.sql(f"UPDATE {schema}.facts SET record = replace(record, 'agent', 'agnet')")
        with pytest.raises(al.RestoreError, match="fact 1") as caught:
            await backend.load()
        assert schema in str(caught.value)


async def test_a_schema_of_a_newer_release_is_refused_by_its_version(
    postgres: PostgresServer, at: Open, schema: str
) -> None:
    async with at() as backend:
        await backend.append(opening("r1"))
    await postgres.sql(f"UPDATE {schema}.schema_version SET version = 2")
    with pytest.raises(al.RestoreError, match="expected schema version 1 or older, got 2") as caught:
        async with at():
            pass
    assert caught.value.code == "restore_version"


async def test_many_that_open_an_empty_database_at_once_make_one_schema(at: Open) -> None:
    async def use(number: int) -> None:
        async with at() as backend:
            await backend.append(opening(f"r{number}"))

    await asyncio.gather(*(use(number) for number in range(8)))
    async with at() as backend:
        assert len(await backend.load()) == 8


async def test_a_role_that_may_not_make_tables_can_use_those_there_are(
    postgres: PostgresServer, at: Open, schema: str
) -> None:
    async with at():
        pass
    await postgres.sql("CREATE ROLE clerk LOGIN")
    try:
        await postgres.sql(f"GRANT USAGE ON SCHEMA {schema} TO clerk")
        await postgres.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO clerk")
        await postgres.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO clerk")
        backend = PostgresBackend(postgres.dsn.replace("//postgres@", "//clerk@"), schema=schema)
        await backend.open()
        await backend.append(opening("r1"))
        await backend.close()
        fresh = PostgresBackend(postgres.dsn.replace("//postgres@", "//clerk@"), schema="fresh")
        assert "InsufficientPrivilegeError" in str(await refused(fresh.open()))
        await fresh.close()
    finally:
        await postgres.sql("DROP OWNED BY clerk")
        await postgres.sql("DROP ROLE clerk")


async def test_a_database_that_only_reads_refuses_to_write(postgres: PostgresServer, at: Open) -> None:
    async with at() as backend:
        await backend.append(opening("r1"))
    await postgres.sql("ALTER DATABASE postgres SET default_transaction_read_only = on")
    try:
        async with at() as backend:
            assert await backend.load() == list(opening("r1"))
            for write in (backend.append(closing("r1")), backend.acquire("r1", "me", seconds=30)):
                assert "ReadOnlySQLTransactionError" in str(await refused(write))
    finally:
        await postgres.sql("ALTER DATABASE postgres RESET default_transaction_read_only")


@pytest.mark.parametrize("setting", ["synchronous_commit = off", "default_transaction_isolation = serializable"])
async def test_settings_of_the_database_do_not_weaken_a_commit(
    postgres: PostgresServer, at: Open, setting: str
) -> None:
    await postgres.sql(f"ALTER DATABASE postgres SET {setting}")
    try:
        async with at() as one, at() as two:
            await asyncio.gather(*(one.append(opening(f"a{n}", f"c{n}")) for n in range(5)))
            await asyncio.gather(*(two.append(opening(f"b{n}", f"c{n}")) for n in range(5)))
            owners = await asyncio.gather(
                *(
                    backend.acquire("r", name, seconds=30)
                    for name, backend in (("a", one), ("b", two))
                    for _ in range(5)
                ),
                return_exceptions=True,
            )
            assert {type(outcome).__name__ for outcome in owners} == {"Lease", "NotOwnerError"}
            writing = one._writer._connection
            assert await writing.fetchval("SHOW synchronous_commit") == "on"
            assert await writing.fetchval("SHOW transaction_isolation") == "read committed"
    finally:
        await postgres.sql(f"ALTER DATABASE postgres RESET {setting.partition(' ')[0]}")


async def test_a_database_that_is_not_there_is_named_without_the_password(postgres: PostgresServer) -> None:
    for dsn in (
        f"postgresql://postgres:hunter2secret@/nowhere?host={postgres.folder}",
        "postgresql://postgres:hunter2secret@127.0.0.1:1/nowhere",
        "postgresql://postgres:hunter2secret@127.0.0.1:1/nowhere?sslmode=hunter3",
    ):
        backend = PostgresBackend(dsn, connect_seconds=2)
        fault = await refused(backend.open())
        await backend.close()
        assert "/nowhere" in str(fault)
        assert "hunter" not in str(fault) + repr(fault) + repr(backend) + str(fault.__cause__)


@asynccontextmanager
async def holding(
    postgres: PostgresServer, other: PostgresBackend, statement: str, *args: object
) -> AsyncIterator[None]:
    """Keep locks in a transaction of somebody else, whose connection nobody cuts."""
    import asyncpg

    connection = await asyncpg.connect(postgres.dsn, server_settings={"search_path": other._link.schema})
    try:
        await connection.execute("BEGIN")
        await connection.execute(statement, *args)
        yield
        await connection.execute("ROLLBACK")
    finally:
        await connection.close()


async def waiting(postgres: PostgresServer, count: int) -> None:
    """Wait until so many connections of ours wait for a lock."""
    question = "SELECT FROM pg_stat_activity WHERE application_name = 'agentloop' AND wait_event_type = 'Lock'"
    end = time.monotonic() + 10
    while len(await postgres.sql(question)) < count:
        assert time.monotonic() < end
