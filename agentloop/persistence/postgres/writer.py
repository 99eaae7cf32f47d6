"""Batches of many runs, written by one connection, several to a commit.

While one transaction commits, the batches that come in wait, and the next one takes them all (group
commit): under load a commit, the dear part, is shared by runs that know nothing of each other.

A transaction first takes every lock it needs, then looks, then decides for each batch by itself,
and writes at last what it admitted. So a refused batch has written nothing and spoils no other, and
the number of statements does not grow with the number of batches. The locks, in this order in
every transaction of every process and each kind by name, so that no two wait for each other:

1. leases of runs that are written with a token: shared, so that no other owner can take over
   before the commit;
2. the runs that are there: so that a run's facts are in the order of its commits, and none is
   forgotten in between;
3. the conversations that get a run: a lock of the transaction on a number made of the name;
4. the new runs, by inserting them: who inserts second waits, and finds that the run is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ...errors import AgentLoopError, ConflictError, NotOwnerError, PersistenceError, StaleHeadError
from ...exchange import Fact, OriginOpened, RunClosed
from ..records import encode_record
from .link import Connection, Link
from .schema import given, kept

__all__ = ["Batch", "Writer"]

_GROUP_BATCHES: Final = 256
_GROUP_CHARACTERS: Final = 8 * 1024 * 1024

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"  # each statement sees what its locks waited for
_LOCK: Final = """
    WITH held AS MATERIALIZED (
        SELECT run_id, token FROM leases WHERE run_id = ANY ($2::text[]) ORDER BY run_id FOR SHARE
    ), there AS MATERIALIZED (
        SELECT run_id FROM runs WHERE run_id = ANY ($1::text[]) ORDER BY run_id FOR UPDATE
    )
    SELECT run_id, token FROM held
    UNION ALL
    SELECT run_id, NULL FROM there
"""
_LOCK_CONVERSATIONS: Final = """
    SELECT pg_advisory_xact_lock(number)
    FROM (
        SELECT DISTINCT hashtextextended(current_schema() || ' ' || name, 1) AS number
        FROM unnest($1::text[]) AS name ORDER BY number
    ) AS numbers
"""
_NEWEST: Final = """
    SELECT name, newest.run_id, newest.outcome IS NULL AS live
    FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
        SELECT run_id, outcome FROM runs WHERE conversation = name ORDER BY position DESC LIMIT 1
    ) AS newest
"""
_OPEN: Final = """
    WITH given AS MATERIALIZED (
        SELECT nextval('positions') AS position, batch.*
        FROM (
            SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
            WITH ORDINALITY AS batch (run_id, conversation, agent, opened_at_ms, place)
            ORDER BY place
        ) AS batch
    )
    INSERT INTO runs (run_id, position, conversation, agent, opened_at_ms)
    SELECT run_id, position, conversation, agent, opened_at_ms FROM given ORDER BY run_id
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id
"""
_WRITE: Final = """
    WITH ended AS (
        UPDATE runs SET outcome = last.outcome
        FROM unnest($3::text[], $4::text[]) AS last (run_id, outcome) WHERE runs.run_id = last.run_id
    )
    INSERT INTO facts (run_id, record)
    SELECT run_id, record FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS batch (run_id, record, place)
    ORDER BY place
"""


class Batch:
    """Facts of one run on their way, already as records: later changes to the sequence change nothing."""

    def __init__(self, facts: Sequence[Fact], *, token: int | None, after: str | None) -> None:
        first = facts[0]
        self.run_id = first.run_id
        self.key = kept(first.run_id)
        self.records = [encode_record(fact).decode() for fact in facts]
        self.size = sum(map(len, self.records))
        self.token, self.after = token, after
        self.opened = first if type(first) is OriginOpened else None
        self.conversation = None if self.opened is None else self.opened.conversation
        ends = [fact.outcome for fact in facts if type(fact) is RunClosed]
        self.outcome = ends[-1] if ends else None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Seen:
    """What a transaction found under its locks."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.tokens: dict[str, int] = {}
        self.newest: dict[str, tuple[str, bool]] = {}

    def refusal(self, batch: Batch) -> ConflictError | None:
        """Why the batch cannot be written; None when it can."""
        what = f"run {batch.run_id!r}"
        if batch.token is not None:
            token = self.tokens.get(batch.key)
            if token != batch.token:
                got = "no lease" if token is None else f"token {token}"
                return NotOwnerError(what, f"expected its lease to have token {batch.token}, got {got}")
        if batch.opened is None:
            return None if batch.key in self.runs else ConflictError(what, "expected a run that was opened, got none")
        if batch.key in self.runs:
            return ConflictError(what, "expected a run that is not there yet")
        if batch.conversation is not None and batch.after is not None:
            newest, live = self.newest.get(batch.conversation, ("", False))
            if newest != batch.after or live:
                rule = "expected the newest run the caller knows, ended"
                return StaleHeadError(batch.conversation, batch.after, newest, rule)
        return None


class Writer:
    """The task that writes, its connection and the batches that wait.

    Attributes:
        commits: transactions that ended with one. batches: batches they held.
    """

    def __init__(self, link: Link) -> None:
        self.commits = 0
        self.batches = 0
        self._link = link
        self._connection: Connection | None = None
        self._waiting: deque[Batch] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._work(), name=f"agentloop writer of {link.place}")

    async def write(self, batch: Batch) -> None:
        """Wait until the batch is on the medium, or was refused. A cancel ends the wait, not the write."""
        if self._closing:
            raise PersistenceError(f"{self._link.place}: appending: the medium is closed")
        self._waiting.append(batch)
        self._wake.set()
        batch.done.add_done_callback(_retrieve)
        await asyncio.shield(batch.done)

    async def close(self, *, seconds: float) -> None:
        """Write what waits, for so many seconds at most, and give the connection up. Idempotent."""
        self._closing = True
        self._wake.set()
        _, late = await asyncio.wait([self._task], timeout=seconds)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._drop()

    async def _work(self) -> None:
        group: list[Batch] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    group = self._next()
                    await self._settle(group)
                if self._closing:
                    return
        finally:  # cut off by close
            self._fail(group, PersistenceError(f"{self._link.place}: appending: closed before the write ended"))

    def _next(self) -> list[Batch]:
        """The longest row of waiting batches in which no two depend on each other."""
        group: list[Batch] = []
        names: set[tuple[str, str]] = set()
        size = 0
        while self._waiting and len(group) < _GROUP_BATCHES:
            batch = self._waiting[0]
            own = {("run", batch.run_id)} | ({("on", batch.conversation)} if batch.conversation is not None else set())
            size += batch.size
            if group and (size > _GROUP_CHARACTERS or names & own):
                break
            names |= own
            group.append(self._waiting.popleft())
        return group

    async def _settle(self, group: list[Batch]) -> None:
        """Write one group and tell each batch what became of it.

        After a failure nobody knows what the medium holds, so what waits fails too: nothing of a
        run may be written after a batch of it that was perhaps lost.
        """
        try:
            with self._link.translated(f"appending {len(group)} batches"):
                refused = await self._write(group)
        except BaseException as error:
            self._drop()
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, AgentLoopError):
                fault = f"{self._link.place}: appending ended with {type(error).__name__}"
                error, cause = PersistenceError(fault), error
                error.__cause__ = cause
            self._fail(group, error)
            return
        for batch in group:
            if not batch.done.done():
                refusal = refused.get(batch.run_id)
                batch.done.set_result(None) if refusal is None else batch.done.set_exception(refusal)

    async def _write(self, group: list[Batch]) -> dict[str, ConflictError]:
        """One transaction; return the refusals by run."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._link.connect()
        connection = self._connection
        await connection.execute(_BEGIN)
        seen = await _look(connection, group)
        refused = {batch.run_id: refusal for batch in group if (refusal := seen.refusal(batch)) is not None}
        openings = [batch for batch in group if batch.opened is not None and batch.run_id not in refused]
        if openings:
            for batch in await _open(connection, openings):
                refused[batch.run_id] = ConflictError(f"run {batch.run_id!r}", "expected a run that is not there yet")
        admitted = [batch for batch in group if batch.run_id not in refused]
        if not admitted:
            await connection.execute("ROLLBACK")
            return refused
        ended = [batch for batch in admitted if batch.outcome is not None]
        await connection.execute(
            _WRITE,
            [batch.key for batch in admitted for _ in batch.records],
            [record for batch in admitted for record in batch.records],
            [batch.key for batch in ended],
            [batch.outcome for batch in ended],
        )
        await connection.execute("COMMIT")
        self.commits += 1
        self.batches += len(admitted)
        return refused

    def _fail(self, group: list[Batch], error: Exception) -> None:
        for batch in (*group, *self._waiting):
            if not batch.done.done():
                batch.done.set_exception(error)
        self._waiting.clear()

    def _drop(self) -> None:
        """Cut the connection; what it was doing is rolled back, unless it was committed already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _look(connection: Connection, group: list[Batch]) -> _Seen:
    """Take the locks and read what the batches depend on."""
    seen = _Seen()
    tokens = [batch.key for batch in group if batch.token is not None]
    for run_id, token in await connection.fetch(_LOCK, [batch.key for batch in group], tokens):
        if token is None:
            seen.runs.add(run_id)
        else:
            seen.tokens[run_id] = token
    names = [kept(batch.conversation) for batch in group if batch.conversation is not None]
    if names:
        await connection.execute(_LOCK_CONVERSATIONS, names)
        for name, newest, live in await connection.fetch(_NEWEST, names):
            seen.newest[given(name)] = (given(newest), live)
    return seen


async def _open(connection: Connection, openings: list[Batch]) -> list[Batch]:
    """Make the rows of new runs; return those that another process has made meanwhile."""
    rows: list[tuple[Any, ...]] = []
    for batch in openings:
        assert batch.opened is not None, "the caller chose those that open a run"
        name = None if batch.conversation is None else kept(batch.conversation)
        rows.append((batch.key, name, kept(batch.opened.agent), batch.opened.at_ms))
    made = {row[0] for row in await connection.fetch(_OPEN, *map(list, zip(*rows, strict=True)))}
    return [batch for batch in openings if batch.key not in made]


def _retrieve(done: asyncio.Future[None]) -> None:
    """Look at the outcome, which nobody else does when the caller was cancelled."""
    if not done.cancelled():
        done.exception()
