"""Facts of a store as one file of JSON lines, to keep or to move to another store.

    {"format":"agentloop-snapshot","version":2,"conversation":null,"runs":1,"origins":1,"entries":1,"sequence":5}
    {"sequence":1,"crc32":"8d2f3b11","record":{"fact":"origin_opened",…}}
    …
    {"sequence":5,"crc32":"0c7a90fe","record":{"fact":"run_closed",…}}
    {"sha256":"…"}

The first line counts runs, origins, entries (replies) and facts; ``sequence`` is common to all of
them (R85). Facts stand run by run, in the order in which the runs were opened, so that a run comes
after all that it continues and a store restored from a snapshot gives the same snapshot, byte for
byte. The last line is the SHA-256 of every byte before it. Records stand in the form that is written
today; a snapshot that holds earlier ones is read like a store that does.

Each line stands in exactly one form, so a changed byte is always seen: in a fact's line by its
CRC-32, which is what names the line, and anywhere by the digest.
"""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import BinaryIO, Final, Literal, Protocol

import msgspec

from ..errors import ConflictError, LostError, RestoreError
from ..exchange import ConversationBranched, Fact, OriginOpened, ReplyTaken, RunRedacted, State, restore
from .backend import Backend, ConversationRow, RunRow
from .records import decode_record, encode_record

__all__ = ["Readable", "SNAPSHOT_VERSION", "SnapshotHeader", "read_snapshot", "write_snapshot"]

SNAPSHOT_VERSION: Final = 2

_LONGEST_LINE: Final = 64 * 1024 * 1024
_KEPT_IN_MEMORY: Final = 8 * 1024 * 1024


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: what follows.

    Attributes:
        conversation: the one it is of, with those that it branched off from; None is a whole store.
        runs, origins, entries: how many runs, origins and replies. A branch is a run without an
            origin; a redacted run has an origin and no entries.
        sequence: number of the last fact.
    """

    format: Literal["agentloop-snapshot"] = "agentloop-snapshot"
    version: Literal[2] = 2
    conversation: str | None
    runs: int
    origins: int
    entries: int
    sequence: int


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sequence: int
    crc32: str
    record: msgspec.Raw


class _Trailer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str


class Readable(Protocol):
    """What is asked of a store that is written out; see `Backend`."""

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of a conversation."""

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""

    async def runs(self) -> list[RunRow]:
        """All runs, oldest first."""


# -- writing


async def write_snapshot(backend: Readable, out: BinaryIO, *, conversation: str | None = None) -> SnapshotHeader:
    """Write all facts of a store, or those of one conversation and what it branched off from.

    One run is in memory at a time. Runs may go on meanwhile: of each, the snapshot holds what was
    there when it was counted.

    Raises:
        LostError: there is no such conversation, or a run was forgotten meanwhile.
        PersistenceError: the store failed. OSError: ``out`` did.
    """
    ids = await _runs_of(backend, conversation)
    runs = origins = entries = 0
    counts: list[int] = []
    async for facts in _each(backend, ids):
        runs += 1
        origins += sum(type(fact) in (OriginOpened, RunRedacted) for fact in facts)
        entries += sum(type(fact) is ReplyTaken for fact in facts)
        counts.append(len(facts))
    header = SnapshotHeader(
        conversation=conversation, runs=runs, origins=origins, entries=entries, sequence=sum(counts)
    )
    digest = hashlib.sha256()
    _put(out, digest, msgspec.json.encode(header))
    sequence = at = 0
    async for facts in _each(backend, ids):
        if len(facts) < counts[at]:  # it was redacted meanwhile
            raise LostError("fact of run", ids[at])
        for fact in facts[: counts[at]]:
            sequence += 1
            _put(out, digest, _encode_line(sequence, encode_record(fact)))
        at += 1
    out.write(msgspec.json.encode(_Trailer(digest.hexdigest())) + b"\n")
    return header


async def _runs_of(backend: Readable, conversation: str | None) -> list[str]:
    """The runs to write, in the order in which they were opened."""
    if conversation is None:
        return [row.run_id for row in await backend.runs()]
    row = await backend.conversation(conversation)
    if row is None:
        raise LostError("conversation", conversation)
    ids = list(row.runs)
    first = (await backend.load_run(ids[0]))[:1]
    while first and type(first[0]) is ConversationBranched:
        ids = [*await _runs_up_to(backend, first[0]), *ids]
        first = (await backend.load_run(ids[0]))[:1]
    return ids


async def _runs_up_to(backend: Readable, branched: ConversationBranched) -> list[str]:
    """The runs of the conversation that another branched off from, up to the exchange."""
    row = await backend.conversation(branched.source)
    ids: list[str] = []
    for run_id in () if row is None else row.runs:
        ids.append(run_id)
        (opened, *_) = await backend.load_run(run_id)
        if type(opened) in (OriginOpened, RunRedacted) and opened.origin_id == branched.continues.origin_id:  # type: ignore[union-attr]
            return ids
    raise LostError("exchange", f"{branched.continues.origin_id}/{branched.continues.index}")


async def _each(backend: Readable, ids: Iterable[str]) -> AsyncIterator[list[Fact]]:
    for run_id in ids:
        facts = await backend.load_run(run_id)
        if not facts:
            raise LostError("run", run_id)
        yield facts


def _put(out: BinaryIO, digest: hashlib._Hash, line: bytes) -> None:
    digest.update(line + b"\n")
    out.write(line + b"\n")


def _encode_line(sequence: int, record: bytes) -> bytes:
    return msgspec.json.encode(_Line(sequence, f"{zlib.crc32(record):08x}", msgspec.Raw(record)))


# -- reading


async def read_snapshot(backend: Backend, source: BinaryIO) -> SnapshotHeader:
    """Check a snapshot whole, then write its runs into a store, each at once.

    The checks are those of a restore (R86): origin digests, prefixes, order, sources, slots. No
    run is started and nothing is sent (R87); a run that had not ended waits to be resumed. The
    file is copied first, to memory or a temporary file, so that what is written is what was
    checked. When the store fails in between, it keeps the runs written so far. In memory are, while
    it checks, the conversations; while it writes, one run.

    Raises:
        RestoreError: ``bad_snapshot`` or ``bad_record``; names the line. ``restore_version``:
            another version. Nothing was written.
        ConflictError: the store holds a run or a conversation of it already. What was written
            before another process came in between is taken back, unless something goes on from it.
        PersistenceError: the store failed. OSError: ``source`` did.
    """
    with tempfile.SpooledTemporaryFile(max_size=_KEPT_IN_MEMORY) as spool:
        header = _check(_lines(source, spool))
        spool.seek(0)
        await _check_apart(backend, _runs_in(spool))
        spool.seek(0)
        written: list[str] = []
        newest: dict[str, str] = {}
        try:
            for facts in _runs_in(spool):
                name = _conversation_of(facts)
                after = None if name is None else newest.get(name, "")
                await backend.append(facts, after=after)
                written.append(facts[0].run_id)
                if name is not None:
                    newest[name] = facts[0].run_id
        except ConflictError as refusal:
            try:
                await backend.forget(written, unfinished=True)
            except ConflictError as used:
                refusal.add_note(f"What was written stays: {used}")
            raise
        return header


async def _check_apart(backend: Backend, runs: Iterator[list[Fact]]) -> None:
    names: set[str] = set()
    for facts in runs:
        run_id, name = facts[0].run_id, _conversation_of(facts)
        if await backend.run(run_id) is not None:
            raise ConflictError(f"run {run_id!r}", "expected a store that does not hold it")
        if name is not None and name not in names:
            names.add(name)
            if await backend.conversation(name) is not None:
                raise ConflictError(f"conversation {name!r}", "expected a store that does not hold it")


def _conversation_of(facts: Sequence[Fact]) -> str | None:
    opened = facts[0]
    assert isinstance(opened, OriginOpened | RunRedacted | ConversationBranched), "the check saw to it"
    return opened.conversation


def _lines(source: BinaryIO, spool: tempfile.SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    """The lines with their ends, copied as they are read."""
    number = 0
    while line := source.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise _damaged(number, f"expected at most {_LONGEST_LINE} bytes")
        spool.write(line)
        yield line


def _check(lines: Iterator[bytes]) -> SnapshotHeader:
    """Check every line; nothing else is done with them."""
    digest = hashlib.sha256()
    first = next(lines, b"")
    digest.update(first)
    header = _header(first)
    book = _Scratch()
    number, held = 1, b""
    for line in lines:
        if held:  # not the last one, so a fact
            digest.update(held)
            book.take(number, held)
        number, held = number + 1, line
    said = _trailer(number, held)
    book.end(header)
    if said != digest.hexdigest():
        raise _damaged(number, "expected the SHA-256 of all bytes before this line")
    return header


class _Scratch:
    """A state that a snapshot's facts are checked into, line by line."""

    def __init__(self) -> None:
        self._state = State()
        self._ended: set[str] = set()
        self._run_id = ""
        self._alone = False
        self._runs = self._origins = self._entries = self._sequence = 0

    def take(self, number: int, line: bytes) -> None:
        """Check one fact's line."""
        self._sequence += 1
        fact = _fact(number, line, self._sequence)
        if fact.run_id != self._run_id:
            self._next_run(number, fact)
        try:
            restore(self._state, (fact,))
        except RestoreError as error:
            raise RestoreError(error.code, f"line {number}: run {fact.run_id!r}", error.rule) from None
        self._origins += type(fact) in (OriginOpened, RunRedacted)
        self._entries += type(fact) is ReplyTaken

    def end(self, header: SnapshotHeader) -> None:
        """Hold what was counted against the first line."""
        found = SnapshotHeader(
            conversation=header.conversation,
            runs=self._runs,
            origins=self._origins,
            entries=self._entries,
            sequence=self._sequence,
        )
        if found != header:
            raise _damaged(1, "expected the counts of what follows")
        if header.conversation is not None and self._state.conversation(header.conversation) is None:
            raise _damaged(1, "expected the conversation it is of to follow")

    def _next_run(self, number: int, fact: Fact) -> None:
        if fact.run_id in self._ended:
            raise _damaged(number, "expected the facts of a run one after the other")
        if self._alone:  # nothing goes on from it, so it need not be kept
            self._state.unload([self._run_id])
        self._run_id = fact.run_id
        self._ended.add(fact.run_id)
        self._alone = type(fact) in (OriginOpened, RunRedacted) and fact.conversation is None  # type: ignore[union-attr]
        self._runs += 1


def _header(line: bytes) -> SnapshotHeader:
    try:
        said = msgspec.json.decode(line)
        version = said.get("version") if type(said) is dict and said.get("format") == "agentloop-snapshot" else None
        if type(version) is int and version != SNAPSHOT_VERSION:
            rule = f"expected snapshot version {SNAPSHOT_VERSION}, got {version}"
            raise RestoreError("restore_version", "line 1", rule)
        header = msgspec.json.decode(line, type=SnapshotHeader)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _damaged(1, "expected the first line of a snapshot") from None
    if msgspec.json.encode(header) + b"\n" != line:
        raise _damaged(1, "expected the first line of a snapshot, in the form that is written")
    return header


def _fact(number: int, line: bytes, sequence: int) -> Fact:
    try:
        read = msgspec.json.decode(line, type=_Line)
        record = bytes(read.record)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise _damaged(number, "expected a fact with its number and checksum") from None
    if read.sequence != sequence:
        raise _damaged(number, f"expected the number {sequence}")
    if _encode_line(sequence, record) + b"\n" != line:
        raise _damaged(number, "expected the checksum it was written with, and the form that is written")
    return decode_record(record, where=f"line {number}")


def _trailer(number: int, line: bytes) -> str:
    """The digest that the last line says. White space after it is harmless."""
    text = line.rstrip(b" \t\r\n")
    try:
        trailer = msgspec.json.decode(text, type=_Trailer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        rule = "expected a last line with the SHA-256 of all bytes before it"
        if line.startswith(b'{"sequence"'):
            rule += ", got a fact: the file is cut off"
        raise _damaged(number, rule) from None
    if msgspec.json.encode(trailer) != text:
        raise _damaged(number, "expected the last line in the form that is written")
    return trailer.sha256


def _damaged(number: int, rule: str) -> RestoreError:
    return RestoreError("bad_snapshot", f"line {number}", rule)


def _runs_in(spool: tempfile.SpooledTemporaryFile[bytes]) -> Iterator[list[Fact]]:
    """The runs of a file that was checked, one at a time."""
    facts: list[Fact] = []
    spool.readline()
    for number, line in enumerate(spool, 2):
        if line.startswith(b'{"sha256"'):
            break
        fact = _fact(number, line, number - 1)
        if facts and fact.run_id != facts[0].run_id:
            yield facts
            facts = []
        facts.append(fact)
    if facts:
        yield facts
