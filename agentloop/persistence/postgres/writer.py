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
3. the conversations that get a run, or a branch: a lock of the transaction on a number made of the name;
4. the new runs, by inserting them: who inserts second waits, and finds that the run is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ...errors import AgentLoopError, ConflictError, PersistenceError, RestoreError
from ...exchange import ConversationBranched, Fact
from ..backend import Lease
from ..batch import check_head, check_owner, check_presence, check_source, require_batch
from ..records import decode_record, encode_record
from .link import Connection, Link
from .schema import LOCK_CONVERSATIONS, given, kept

__all__ = ["Entry", "Writer"]

_GROUP_BATCHES: Final = 256
_GROUP_CHARACTERS: Final = 8 * 1024 * 1024

_LOCK: Final = """
    WITH held AS MATERIALIZED (
        SELECT run_id, owner, token, expires_at FROM leases WHERE run_id = ANY ($1::text[]) ORDER BY run_id FOR SHARE
    ), there AS MATERIALIZED (
        SELECT run_id FROM runs WHERE run_id = ANY ($1::text[]) ORDER BY run_id FOR UPDATE
    )
    SELECT run_id, owner, token, extract(epoch FROM expires_at - clock_timestamp())::float8 FROM held
    UNION ALL
    SELECT run_id, NULL, NULL, NULL FROM there
"""
_NEWEST: Final = """
    SELECT name, newest.run_id, newest.outcome IS NOT NULL AS ended
    FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
        SELECT run_id, outcome FROM runs WHERE conversation = name ORDER BY position DESC LIMIT 1
    ) AS newest
"""
_OPENINGS: Final = """
    SELECT conversation, first.seq, first.record
    FROM runs CROSS JOIN LATERAL (
        SELECT seq, record FROM facts WHERE facts.run_id = runs.run_id ORDER BY seq LIMIT 1
    ) AS first
    WHERE conversation = ANY ($1::text[])
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


class Entry:
    """A batch that waits to be written, already as records."""

    def __init__(self, facts: Sequence[Fact], *, token: int | None, after: str | None) -> None:
        self.batch = require_batch(facts)
        self.run_id = self.batch.run_id
        self.key = kept(self.run_id)
        self.opened, self.closed = self.batch.opened, self.batch.closed
        self.conversation = None if self.opened is None else self.opened.conversation
        self.source = self.opened.source if isinstance(self.opened, ConversationBranched) else None
        self.records = [encode_record(fact).decode() for fact in self.batch.facts]
        self.size = sum(map(len, self.records))
        self.token, self.after = token, after
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_look_at)


class _Seen:
    """What a transaction found under its locks."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.leases: dict[str, Lease] = {}
        self.newest: dict[str, tuple[str, bool]] = {}
        self.openings: dict[str, list[tuple[str, str]]] = {}  # place and record, of conversations that get a branch

    def refusal(self, entry: Entry) -> AgentLoopError | None:
        """Why the batch cannot be written; None when it can."""
        try:
            check_owner(entry.run_id, token=entry.token, held=self.leases.get(entry.key))
            check_presence(entry.batch, there=entry.key in self.runs)
            if entry.conversation is not None:
                newest, ended = self.newest.get(entry.conversation, ("", True))
                check_head(entry.conversation, after=entry.after, newest=newest, ended=ended)
            if isinstance(entry.opened, ConversationBranched):
                openings = self.openings.get(entry.opened.source, ())
                check_source(entry.opened, [decode_record(record, where=where) for where, record in openings])
        except (ConflictError, RestoreError) as refusal:
            return refusal
        return None


class Writer:
    """The task that writes, its connection, and the batches that wait.

    Attributes:
        commits: transactions that wrote facts. batches: the batches they held.
    """

    def __init__(self, link: Link) -> None:
        self.commits = 0
        self.batches = 0
        self._link = link
        self._connection: Connection | None = None
        self._waiting: deque[Entry] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._work(), name="agentloop postgres writer")

    async def write(self, entry: Entry) -> None:
        """Wait until the batch is on the medium, or was refused. A cancel ends the wait, not the write."""
        if self._closing:
            raise PersistenceError(f"{self._link.place}: appending: the medium is closed")
        self._waiting.append(entry)
        self._wake.set()
        await asyncio.shield(entry.done)

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
        group: list[Entry] = []
        try:
            while self._waiting or not self._closing:
                self._wake.clear()
                while self._waiting:
                    group = self._next()
                    await self._settle(group)
                if not self._closing:
                    await self._wake.wait()
        finally:
            self._closing = True
            self._fail(group, PersistenceError(f"{self._link.place}: appending: closed before the write ended"))

    def _next(self) -> list[Entry]:
        """The longest row of waiting batches of which no two are of one run or one conversation."""
        group: list[Entry] = []
        names: set[tuple[str, str]] = set()
        size = 0
        while self._waiting and len(group) < _GROUP_BATCHES:
            entry = self._waiting[0]
            own = {("run", entry.run_id)}
            own |= {("conversation", name) for name in (entry.conversation, entry.source) if name is not None}
            size += entry.size
            if group and (size > _GROUP_CHARACTERS or names & own):
                break
            names |= own
            group.append(self._waiting.popleft())
        return group

    async def _settle(self, group: list[Entry]) -> None:
        """Write one group, and tell each batch what became of it.

        After a failure nobody knows what the medium holds, so what waits fails too: nothing of a
        run may be written after a batch of it that was perhaps lost.
        """
        try:
            refused = await self._write(group)
        except Exception as error:  # noqa: BLE001  # whatever it was, the batches must hear of it
            self._drop()
            self._fail(group, error)
            return
        for entry in group:
            if entry.run_id in refused:
                entry.done.set_exception(refused[entry.run_id])
            else:
                entry.done.set_result(None)

    async def _write(self, group: list[Entry]) -> dict[str, AgentLoopError]:
        """One transaction; return the refusals by run."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._link.connect()
        connection = self._connection
        await connection.execute("BEGIN")
        seen = await _look(connection, group, self._link.place)
        refused = {entry.run_id: refusal for entry in group if (refusal := seen.refusal(entry)) is not None}
        openings = [entry for entry in group if entry.opened is not None and entry.run_id not in refused]
        refused |= await _open(connection, openings)
        admitted = [entry for entry in group if entry.run_id not in refused]
        if not admitted:
            await connection.execute("ROLLBACK")
            return refused
        ended = [(entry.key, entry.closed.outcome) for entry in admitted if entry.closed is not None]
        await connection.execute(
            _WRITE,
            [entry.key for entry in admitted for _ in entry.records],
            [record for entry in admitted for record in entry.records],
            [key for key, _ in ended],
            [outcome for _, outcome in ended],
        )
        await connection.execute("COMMIT")
        self.commits += 1
        self.batches += len(admitted)
        return refused

    def _fail(self, group: list[Entry], cause: Exception) -> None:
        """Tell the batches of the group, and those that wait, that their outcome is unknown."""
        for entry in (*group, *self._waiting):
            if not entry.done.done():
                fault = self._link.fault("appending", cause)
                fault.__cause__ = cause
                entry.done.set_exception(fault)
        self._waiting.clear()

    def _drop(self) -> None:
        """Cut the connection. What it was doing is rolled back, unless it was committed already."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def _look(connection: Connection, group: list[Entry], place: str) -> _Seen:
    """Take the locks and read what the batches depend on."""
    seen = _Seen()
    for key, owner, token, left in await connection.fetch(_LOCK, [entry.key for entry in group]):
        if token is None:
            seen.runs.add(key)
        else:
            seen.leases[key] = Lease(run_id=given(key), owner=given(owner), token=token, seconds_left=left)
    names = [kept(entry.conversation) for entry in group if entry.conversation is not None]
    sources = [kept(entry.source) for entry in group if entry.source is not None]
    if names:  # a branch has both
        await connection.execute(LOCK_CONVERSATIONS, [*names, *sources])
        for name, newest, ended in await connection.fetch(_NEWEST, names):
            seen.newest[given(name)] = (given(newest), ended)
    if sources:
        for name, seq, record in await connection.fetch(_OPENINGS, sources):
            seen.openings.setdefault(given(name), []).append((f"{place}, fact {seq}", record))
    return seen


async def _open(connection: Connection, openings: list[Entry]) -> dict[str, ConflictError]:
    """Make the rows of new runs; return the refusals of those that another process has made meanwhile."""
    rows: list[tuple[Any, ...]] = []
    for entry in openings:
        assert entry.opened is not None, "the caller chose those that open a run"
        name = None if entry.conversation is None else kept(entry.conversation)
        rows.append((entry.key, name, kept(entry.opened.agent), entry.opened.at_ms))
    if not rows:
        return {}
    made = {row[0] for row in await connection.fetch(_OPEN, *map(list, zip(*rows, strict=True)))}
    refused: dict[str, ConflictError] = {}
    for entry in openings:
        if entry.key not in made:
            try:
                check_presence(entry.batch, there=True)
            except ConflictError as refusal:
                refused[entry.run_id] = refusal
    return refused


def _look_at(done: asyncio.Future[None]) -> None:
    """Read the outcome, which nobody else does when the caller was cancelled."""
    if not done.cancelled():
        done.exception()
