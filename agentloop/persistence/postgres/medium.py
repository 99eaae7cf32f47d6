"""The Postgres medium: what `Backend` asks for, as statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...errors import PersistenceError
from ...exchange import ConversationBranched, Fact, RunRedacted
from ...limits import check_seconds
from ..backend import ConversationRow, Lease, RunRow
from ..batch import HeldRun, check_ended, check_forget, check_no_owner
from ..records import decode_record, encode_record
from .link import Link
from .schema import LOCK_CONVERSATIONS, given, kept, migrate
from .writer import Entry, Writer

__all__ = ["PostgresBackend"]

_CLOSING_SECONDS: Final = 10.0

_FACTS: Final = "SELECT seq, record FROM facts ORDER BY seq"
_FACTS_OF_RUN: Final = "SELECT seq, record FROM facts WHERE run_id = $1 ORDER BY seq"
_FACTS_OF_CONVERSATION: Final = """
    SELECT seq, record FROM runs JOIN facts USING (run_id) WHERE conversation = $1 ORDER BY position, seq
"""
_CONVERSATIONS: Final = """
    SELECT conversation, array_agg(run_id ORDER BY position),
        (array_agg(outcome IS NULL ORDER BY position DESC))[1], (array_agg(opened_at_ms ORDER BY position DESC))[1]
    FROM runs WHERE conversation IS NOT NULL AND ($1::text IS NULL OR conversation = $1)
        AND starts_with(conversation, $2)
    GROUP BY conversation
"""
_RUNS: Final = """
    SELECT runs.run_id, conversation, agent, opened_at_ms, outcome,
        owner, token, extract(epoch FROM expires_at - clock_timestamp())::float8
    FROM runs LEFT JOIN leases ON leases.run_id = runs.run_id AND expires_at > clock_timestamp()
"""
_RUN: Final = _RUNS + "WHERE runs.run_id = $1"
_ALL_RUNS: Final = _RUNS + "ORDER BY position"
_UNFINISHED_RUNS: Final = _RUNS + "WHERE outcome IS NULL ORDER BY position"
_ACQUIRE: Final = """
    INSERT INTO leases AS held (run_id, owner, token, expires_at)
    VALUES ($1, $2, nextval('tokens'), clock_timestamp() + make_interval(secs => $3))
    ON CONFLICT (run_id) DO UPDATE SET (owner, token, expires_at) = (
        SELECT
            CASE WHEN free THEN excluded.owner ELSE held.owner END,
            CASE WHEN free AND held.owner <> excluded.owner THEN excluded.token ELSE held.token END,
            CASE WHEN free THEN now + make_interval(secs => $3) ELSE held.expires_at END
        FROM (
            SELECT now, held.owner = excluded.owner OR held.expires_at <= now AS free FROM clock_timestamp() AS now
        ) AS judged
    )
    RETURNING owner, token, extract(epoch FROM expires_at - clock_timestamp())::float8
"""
_RENEW: Final = """
    WITH ours AS MATERIALIZED (
        SELECT leases.run_id FROM leases JOIN unnest($1::text[], $2::bigint[]) AS given (run_id, token)
        ON leases.run_id = given.run_id AND leases.token = given.token
        ORDER BY leases.run_id FOR UPDATE OF leases
    )
    UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => $3)
    FROM ours WHERE leases.run_id = ours.run_id
    RETURNING leases.run_id
"""
_RELEASE: Final = "DELETE FROM leases WHERE run_id = $1 AND token = $2"
_LOCK_LEASES: Final = "SELECT FROM leases WHERE run_id = ANY ($1::text[]) ORDER BY run_id FOR UPDATE"
_LOCK_RUNS: Final = (
    "SELECT run_id, conversation, outcome IS NOT NULL FROM runs WHERE run_id = ANY ($1::text[]) "
    "ORDER BY run_id FOR UPDATE"
)
_OF_CONVERSATIONS: Final = (
    "SELECT run_id, conversation, outcome IS NOT NULL FROM runs WHERE conversation = ANY ($1::text[]) ORDER BY position"
)
_BRANCHES: Final = "SELECT seq, record FROM runs JOIN facts USING (run_id) WHERE outcome = 'branched'"
_FORGET: Final = (
    "DELETE FROM facts WHERE run_id = ANY ($1::text[])",
    "DELETE FROM runs WHERE run_id = ANY ($1::text[])",
    "DELETE FROM leases WHERE run_id = ANY ($1::text[])",
)
_ENDED: Final = "SELECT outcome IS NOT NULL FROM runs WHERE run_id = $1 FOR UPDATE"
_REDACT: Final = (
    "DELETE FROM facts WHERE run_id = $1 AND seq > (SELECT min(seq) FROM facts WHERE run_id = $1)",
    "UPDATE facts SET record = $2 WHERE run_id = $1",
)


class PostgresBackend:
    """Facts in one schema of a database; any number of processes may use it at once.

    The server must be reached directly, or through a pooler that keeps a session for a client.

    Args:
        dsn: ``postgresql://user:password@host:port/database``; the password is in no error or repr.
        pool_size: most connections at a time, from 2: one writes facts, the others do all else.
        schema: where the tables are; made when it is missing. A plain lower-case name.
        connect_seconds: for making one connection.
        statement_seconds: for one statement, waiting for locks included; also how long a process
            that was stopped in mid-transaction keeps its locks.

    Raises:
        InputError: one of them is wrong, or the extra ``postgres`` is not installed.

    Attributes:
        commits: transactions that wrote facts. batches: batches of facts they held.
    """

    durable = True

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = 4,
        schema: str = "agentloop",
        connect_seconds: float = 10.0,
        statement_seconds: float = 15.0,
    ) -> None:
        self._link = Link(
            dsn,
            schema=schema,
            pool_size=pool_size,
            connect_seconds=connect_seconds,
            statement_seconds=statement_seconds,
        )
        self._writer: Writer | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"PostgresBackend({self._link.place})"

    @property
    def commits(self) -> int:
        """Transactions that wrote facts."""
        return 0 if self._writer is None else self._writer.commits

    @property
    def batches(self) -> int:
        """Batches written."""
        return 0 if self._writer is None else self._writer.batches

    async def open(self) -> None:
        """Make or migrate the schema."""
        if self._closed:
            raise PersistenceError(f"{self._link.place}: opening: the medium is closed")
        if self._writer is None:
            try:
                await self._link.open()
                await migrate(self._link)
            except BaseException:
                await self._link.close(seconds=_CLOSING_SECONDS)
                raise
            self._writer = Writer(self._link)

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        """Write the batch, together with those of other runs that wait."""
        if self._writer is None:
            raise PersistenceError(f"{self._link.place}: appending: the medium is not open")
        await self._writer.write(Entry(facts, token=token, after=after))

    async def load(self) -> list[Fact]:
        """Every fact held, oldest first."""
        return await self._facts("reading all facts", _FACTS)

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""
        return await self._facts("reading a run", _FACTS_OF_RUN, kept(run_id))

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all its runs."""
        return await self._facts("reading a conversation", _FACTS_OF_CONVERSATION, kept(name))

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""
        rows = await self._conversations(kept(name), "")
        return rows[0] if rows else None

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations, by name."""
        return sorted(await self._conversations(None, kept(prefix)), key=lambda row: row.name)

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""
        rows = await self._link.fetch("reading a run's row", _RUN, kept(run_id))
        return _run_row(rows[0]) if rows else None

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """All runs, or those without an end."""
        rows = await self._link.fetch("listing runs", _UNFINISHED_RUNS if unfinished else _ALL_RUNS)
        return [_run_row(row) for row in rows]

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        """Take the lease, or keep it."""
        check_seconds("seconds", seconds)
        rows = await self._link.fetch("acquiring a lease", _ACQUIRE, kept(run_id), kept(owner), float(seconds))
        holder, token, left = rows[0]
        if given(holder) != owner:
            check_no_owner(run_id, owner=given(holder), seconds_left=max(left, 0.001))
        return Lease(run_id=run_id, owner=owner, token=token, seconds_left=left)

    async def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[str]:
        """Prolong those that still have their token."""
        check_seconds("seconds", seconds)
        if not leases:
            return []
        keys = [kept(lease.run_id) for lease in leases]
        tokens = [lease.token for lease in leases]
        rows = await self._link.fetch("renewing leases", _RENEW, keys, tokens, float(seconds))
        renewed = {row[0] for row in rows}
        return [lease.run_id for lease, key in zip(leases, keys, strict=True) if key not in renewed]

    async def release(self, lease: Lease) -> None:
        """Drop it, if it is still this one."""
        await self._link.fetch("releasing a lease", _RELEASE, kept(lease.run_id), lease.token)

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        """Drop the runs with their facts and leases."""
        if not run_ids:
            return
        keys = [kept(run_id) for run_id in run_ids]
        async with (
            self._link.connection("forgetting runs") as connection,
            connection.transaction(isolation="read_committed"),
        ):
            await connection.execute(_LOCK_LEASES, keys)
            held = [_held_run(row) for row in await connection.fetch(_LOCK_RUNS, keys)]
            names = sorted({run.conversation for run in held if run.conversation is not None})
            branches: list[Fact] = []
            if names:  # who opens a run on one of these, or branches off, waits from here on
                names = [kept(name) for name in names]
                await connection.execute(LOCK_CONVERSATIONS, names)
                held += [_held_run(row) for row in await connection.fetch(_OF_CONVERSATIONS, names)]
                branches = self._decoded(await connection.fetch(_BRANCHES))
            check_forget(
                set(run_ids),
                held,
                [fact for fact in branches if isinstance(fact, ConversationBranched)],
                unfinished=unfinished,
            )
            for statement in _FORGET:
                await connection.execute(statement, keys)

    async def redact(self, fact: RunRedacted) -> None:
        """Replace a run's facts. The server keeps what they held until it vacuums, and in its log and backups."""
        key, record = kept(fact.run_id), encode_record(fact).decode()
        async with (
            self._link.connection("redacting a run") as connection,
            connection.transaction(isolation="read_committed"),
        ):
            check_ended(fact.run_id, ended=await connection.fetchval(_ENDED, key))
            delete, update = _REDACT
            await connection.execute(delete, key)
            await connection.execute(update, key, record)

    async def close(self) -> None:
        """Write what waits, within a bound, and close the connections. Idempotent."""
        self._closed = True
        if self._writer is not None:
            await self._writer.close(seconds=_CLOSING_SECONDS)
        await self._link.close(seconds=_CLOSING_SECONDS)

    async def _facts(self, doing: str, statement: str, *args: object) -> list[Fact]:
        return self._decoded(await self._link.fetch(doing, statement, *args))

    def _decoded(self, rows: Sequence[Any]) -> list[Fact]:
        return [decode_record(record.encode(), where=f"{self._link.place}, fact {seq}") for seq, record in rows]

    async def _conversations(self, name: str | None, prefix: str) -> list[ConversationRow]:
        rows = await self._link.fetch("reading conversations", _CONVERSATIONS, name, prefix)
        return [_conversation_row(row) for row in rows]


def _conversation_row(row: Any) -> ConversationRow:
    name, keys, goes_on, newest_at_ms = row
    runs = tuple(map(given, keys))
    return ConversationRow(name=given(name), runs=runs, live=runs[-1] if goes_on else None, newest_at_ms=newest_at_ms)


def _held_run(row: Any) -> HeldRun:
    key, name, ended = row
    return HeldRun(given(key), None if name is None else given(name), ended)


def _run_row(row: Any) -> RunRow:
    key, conversation, agent, opened_at_ms, outcome, owner, token, left = row
    run_id = given(key)
    held = None if owner is None else Lease(run_id=run_id, owner=given(owner), token=token, seconds_left=left)
    return RunRow(
        run_id=run_id,
        conversation=None if conversation is None else given(conversation),
        agent=given(agent),
        opened_at_ms=opened_at_ms,
        outcome=outcome,
        lease=held,
    )
