"""The statements: each function does one thing inside the transaction that its caller holds open."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Sequence

from ...errors import RestoreError
from ...exchange import ConversationBranched, Fact
from ..backend import ConversationRow, Lease, RunRow
from ..batch import (
    Batch,
    HeldRun,
    Opening,
    check_ended,
    check_forget,
    check_head,
    check_no_owner,
    check_owner,
    check_presence,
    check_source,
)
from ..records import decode_record

__all__ = [
    "Clock",
    "acquire",
    "append",
    "conversations",
    "forget",
    "load",
    "load_conversation",
    "load_run",
    "redact",
    "release",
    "renew",
    "runs",
    "sqlite_now",
]

Clock = Callable[[sqlite3.Connection], float]
"""Seconds, the same for every process that has the file open."""


def sqlite_now(connection: sqlite3.Connection) -> float:
    """Seconds since 1970 by SQLite's clock; ``unixepoch('now', 'subsec')`` says the same from 3.42 on."""
    (now,) = connection.execute("SELECT (julianday('now') - 2440587.5) * 86400.0").fetchone()
    return float(now)


# -- writing


def append(
    connection: sqlite3.Connection,
    batch: Batch,
    records: Sequence[bytes],
    *,
    token: int | None,
    after: str | None,
    now: Clock,
    path: str,
) -> None:
    """Write a batch, if its conditions hold; see `Backend.append`."""
    run_id = batch.run_id
    held, there = connection.execute(
        "SELECT (SELECT token FROM leases WHERE run_id = ?), EXISTS (SELECT 1 FROM runs WHERE run_id = ?)",
        (run_id, run_id),
    ).fetchone()
    if token != held:
        check_owner(run_id, token=token, held=_lease(connection, run_id, now))
    check_presence(batch, there=there == 1)
    if batch.opened is not None:
        if isinstance(batch.opened, ConversationBranched):
            check_source(batch.opened, _openings(connection, batch.opened.source, path=path))
        _open(connection, batch.opened, after)
    connection.executemany(
        "INSERT INTO facts (run_id, crc, record) VALUES (?, ?, CAST(? AS TEXT))",
        [(run_id, zlib.crc32(record), record) for record in records],
    )
    if batch.closed is not None:
        connection.execute("UPDATE runs SET outcome = ? WHERE run_id = ?", (batch.closed.outcome, run_id))


def _open(connection: sqlite3.Connection, opened: Opening, after: str | None) -> None:
    position = None
    if opened.conversation is not None:
        newest, position, ended = connection.execute(
            "SELECT run_id, position + 1, outcome IS NOT NULL FROM runs WHERE conversation = ? "
            "ORDER BY position DESC LIMIT 1",
            (opened.conversation,),
        ).fetchone() or ("", 0, 1)
        check_head(opened.conversation, after=after, newest=newest, ended=ended == 1)
    connection.execute(
        "INSERT INTO runs (run_id, conversation, position, agent, opened_at_ms) VALUES (?, ?, ?, ?, ?)",
        (opened.run_id, opened.conversation, position, opened.agent, opened.at_ms),
    )


def _lease(connection: sqlite3.Connection, run_id: str, now: Clock) -> Lease | None:
    """Who owned a run last, and for how long still, or since when not any more."""
    query = "SELECT owner, token, expires FROM leases WHERE run_id = ?"
    row = connection.execute(query, (run_id,)).fetchone()
    if row is None:
        return None
    owner, token, expires = row
    return Lease(run_id=run_id, owner=owner, token=token, seconds_left=expires - now(connection))


def forget(connection: sqlite3.Connection, run_ids: Sequence[str], *, unfinished: bool, path: str) -> None:
    """Drop runs with all that is theirs, if its conditions hold; see `Backend.forget`."""
    named = [(run_id,) for run_id in run_ids]
    held: list[HeldRun] = []
    names: set[str] = set()
    for run in named:
        query = "SELECT run_id, conversation, outcome IS NOT NULL FROM runs WHERE run_id = ?"
        for run_id, name, ended in connection.execute(query, run).fetchall():
            held.append(HeldRun(run_id, name, ended == 1))
            if name is not None:
                names.add(name)
    for name in names:
        query = "SELECT run_id, conversation, outcome IS NOT NULL FROM runs WHERE conversation = ?"
        held += [HeldRun(run_id, name, ended == 1) for run_id, _, ended in connection.execute(query, (name,))]
    check_forget(set(run_ids), held, _branches(connection, path=path) if names else [], unfinished=unfinished)
    for table in ("facts", "leases", "runs"):
        connection.executemany(f"DELETE FROM {table} WHERE run_id = ?", named)  # noqa: S608  # our own names


def redact(connection: sqlite3.Connection, run_id: str, record: bytes) -> None:
    """See `Backend.redact`. The record stands where the run's first one stood."""
    row = connection.execute("SELECT outcome IS NOT NULL FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    check_ended(run_id, ended=None if row is None else row == (1,))
    (first,) = connection.execute("SELECT min(seq) FROM facts WHERE run_id = ?", (run_id,)).fetchone()
    connection.execute("DELETE FROM facts WHERE run_id = ? AND seq > ?", (run_id, first))
    connection.execute(
        "UPDATE facts SET crc = ?, record = CAST(? AS TEXT) WHERE seq = ?", (zlib.crc32(record), record, first)
    )


def acquire(connection: sqlite3.Connection, run_id: str, owner: str, *, seconds: float, now: Clock) -> Lease:
    """See `Backend.acquire`. Tokens grow over all runs, so that none comes twice, whatever was forgotten."""
    at = now(connection)
    held = _lease(connection, run_id, lambda _: at)
    if held is not None and held.owner == owner:
        token = held.token
    else:
        if held is not None:
            check_no_owner(run_id, owner=held.owner, seconds_left=held.seconds_left)
        connection.execute("UPDATE meta SET token = token + 1")
        (token,) = connection.execute("SELECT token FROM meta").fetchone()
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", (run_id, owner, token, at + seconds))
    return Lease(run_id=run_id, owner=owner, token=token, seconds_left=seconds)


def renew(connection: sqlite3.Connection, leases: Sequence[Lease], *, seconds: float, now: Clock) -> list[str]:
    """See `Backend.renew`."""
    expires = now(connection) + seconds
    return [
        lease.run_id
        for lease in leases
        if connection.execute(
            "UPDATE leases SET expires = ? WHERE run_id = ? AND token = ?", (expires, lease.run_id, lease.token)
        ).rowcount
        == 0
    ]


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    """See `Backend.release`."""
    connection.execute("DELETE FROM leases WHERE run_id = ? AND token = ?", (lease.run_id, lease.token))


# -- reading


def load(connection: sqlite3.Connection, *, path: str) -> list[Fact]:
    """Every fact."""
    return _facts(connection, "FROM facts ORDER BY seq", (), path)


def load_run(connection: sqlite3.Connection, run_id: str, *, path: str) -> list[Fact]:
    """The facts of one run."""
    return _facts(connection, "FROM facts WHERE run_id = ? ORDER BY seq", (run_id,), path)


def load_conversation(connection: sqlite3.Connection, name: str, *, path: str) -> list[Fact]:
    """The facts of a conversation's runs, run by run."""
    return _facts(
        connection,
        "FROM runs JOIN facts ON facts.run_id = runs.run_id WHERE runs.conversation = ? ORDER BY runs.position, seq",
        (name,),
        path,
    )


def _openings(connection: sqlite3.Connection, name: str, *, path: str) -> list[Fact]:
    """The first fact of each run of a conversation."""
    first = "FROM runs JOIN facts ON seq = (SELECT min(seq) FROM facts WHERE facts.run_id = runs.run_id)"
    return _facts(connection, f"{first} WHERE runs.conversation = ?", (name,), path)


def _branches(connection: sqlite3.Connection, *, path: str) -> list[ConversationBranched]:
    """Every branch."""
    which = "FROM runs JOIN facts ON facts.run_id = runs.run_id WHERE outcome = 'branched'"
    return [fact for fact in _facts(connection, which, (), path) if isinstance(fact, ConversationBranched)]


def _facts(connection: sqlite3.Connection, which: str, values: tuple[str, ...], path: str) -> list[Fact]:
    query = f"SELECT seq, crc, CAST(record AS BLOB) {which}"
    return [_fact(*row, path=path) for row in connection.execute(query, values).fetchall()]


def _fact(seq: int, crc: int, record: bytes, *, path: str) -> Fact:
    where = f"{path}, fact {seq}"
    if zlib.crc32(record) != crc:
        raise RestoreError("bad_record", where, "expected the checksum it was written with, got another")
    return decode_record(record, where=where)


def conversations(
    connection: sqlite3.Connection, name: str | None = None, *, prefix: str = ""
) -> list[ConversationRow]:
    """All conversations by name, those whose names begin with ``prefix``, or the one of that name."""
    which = "conversation IS NOT NULL"
    values: tuple[str | bytes, ...] = ()
    if name is not None:
        which, values = "conversation = ?", (name,)
    elif prefix:  # text is compared by its bytes in UTF-8; a byte 0xFF is after all that can follow
        which, values = "conversation >= ? AND conversation < CAST(? AS TEXT)", (prefix, prefix.encode() + b"\xff")
    query = (
        "SELECT conversation, run_id, outcome, opened_at_ms FROM runs "  # noqa: S608
        f"WHERE {which} ORDER BY conversation, position"
    )
    found: dict[str, list[str]] = {}
    newest: dict[str, tuple[str | None, int]] = {}
    for conversation, run_id, outcome, opened_at_ms in connection.execute(query, values).fetchall():
        found.setdefault(conversation, []).append(run_id)
        newest[conversation] = (run_id if outcome is None else None, opened_at_ms)
    return [
        ConversationRow(name=name, runs=tuple(runs), live=newest[name][0], newest_at_ms=newest[name][1])
        for name, runs in found.items()
    ]


def runs(
    connection: sqlite3.Connection, *, now: Clock, run_id: str | None = None, unfinished: bool = False
) -> list[RunRow]:
    """All runs, those without an end, or the one of that id; oldest first."""
    which, values = ("WHERE runs.run_id = ?", (run_id,)) if run_id is not None else ("", ())
    if unfinished:
        which = "WHERE outcome IS NULL"
    query = (
        "SELECT runs.run_id, conversation, agent, opened_at_ms, outcome, owner, token, expires "  # noqa: S608
        f"FROM runs LEFT JOIN leases ON leases.run_id = runs.run_id {which} ORDER BY number"
    )
    at = now(connection)
    return [_run(*row, at=at) for row in connection.execute(query, values).fetchall()]


def _run(
    run_id: str,
    conversation: str | None,
    agent: str,
    opened_at_ms: int,
    outcome: str | None,
    owner: str | None,
    token: int | None,
    expires: float | None,
    *,
    at: float,
) -> RunRow:
    lease = None
    if owner is not None and token is not None and expires is not None and expires > at:
        lease = Lease(run_id=run_id, owner=owner, token=token, seconds_left=expires - at)
    return RunRow(
        run_id=run_id,
        conversation=conversation,
        agent=agent,
        opened_at_ms=opened_at_ms,
        outcome=outcome,
        lease=lease,
    )
