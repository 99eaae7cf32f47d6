"""Snapshots: written from any store, checked whole, and written into any other."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import ConflictError, LostError, PersistenceError, RestoreError
from agentloop.exchange import Book, ReceiptMint
from agentloop.messages import Text, UserMessage
from agentloop.persistence import Backend, MemoryBackend
from agentloop.persistence.snapshot import _encode_line, read_snapshot, write_snapshot
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider
from agentloop.testing import reply as scripted
from tests.exchange.desk import Desk, picture
from tests.messages.values import call, reply

MEDIA = ["memory", "sqlite"]
AGENT = al.Agent(name="a")
ARGUMENTS = '{"n": -0, "m": 1234567890123456789012345678901234567890, "t":"\\u0000\\ud83d\\ude00"}'


def small() -> list[Any]:
    """A run of one call on a conversation, a run of its own, and one that goes on."""
    desk = Desk()
    one = desk.open("r1", UserMessage(content="\0 \u2028 é 😀"), conversation="c")
    desk.exchange(one, reply(call("a", arguments=ARGUMENTS), word="tool_calls"))
    desk.keep(one, 0, 0, "all \0 of it")
    desk.take(one, reply(Text(text="done")))
    desk.close(one)
    two = desk.open("r2")
    desk.take(two, reply(Text(text="alone")))
    desk.close(two)
    desk.send(desk.open("r3", conversation="c"))
    return desk.facts


@pytest.fixture
def medium(tmp_path: Path) -> Callable[[str], Backend]:
    numbers = itertools.count()

    def make(kind: str) -> Backend:
        return MemoryBackend() if kind == "memory" else SQLiteBackend(tmp_path / f"{next(numbers)}.db")

    return make


async def filled(backend: Backend, facts: list[Any]) -> Backend:
    await backend.open()
    for _, run in itertools.groupby(facts, key=lambda fact: fact.run_id):
        await backend.append(list(run))
    return backend


async def written(backend: Backend, conversation: str | None = None) -> bytes:
    out = io.BytesIO()
    await write_snapshot(backend, out, conversation=conversation)
    return out.getvalue()


async def refused(data: bytes, code: str = "bad_snapshot") -> str:
    """Hold that it is refused, and nothing is written."""
    target = MemoryBackend()
    with pytest.raises(RestoreError) as caught:
        await read_snapshot(target, io.BytesIO(data))
    assert await target.load() == []
    assert caught.value.code == code
    return str(caught.value)


def resealed(lines: list[bytes]) -> bytes:
    """Lines with the numbers, checksums and the digest that a forger would give them."""
    body = [lines[0]]
    for at, line in enumerate(lines[1:], 1):
        start = line.index(b'"record":') + len(b'"record":')
        body.append(_encode_line(at, line[start:-1]))
    data = b"".join(line + b"\n" for line in body)
    return data + json.dumps({"sha256": hashlib.sha256(data).hexdigest()}, separators=(",", ":")).encode() + b"\n"


# -- from store to store


@pytest.mark.parametrize("source", MEDIA)
@pytest.mark.parametrize("target", MEDIA)
async def test_a_restored_store_is_equal_and_gives_the_same_snapshot(
    medium: Callable[[str], Backend], source: str, target: str
) -> None:
    """(R85, R89)"""
    facts = small()
    one, two = await filled(medium(source), facts), medium(target)
    await two.open()
    data = await written(one)
    header = await read_snapshot(two, io.BytesIO(data))
    assert (header.runs, header.origins, header.entries, header.sequence) == (3, 3, 3, len(facts))
    assert await written(two) == data
    mint = ReceiptMint()
    book, again = Book(mint), Book(mint)
    book.install(await one.load())
    again.install(await two.load())
    assert picture(again) == picture(book)
    assert await two.runs() == await one.runs()
    assert await two.conversations() == await one.conversations()
    await one.close()
    await two.close()


async def test_its_lines_are_read_by_hand() -> None:
    """(R85)"""
    facts = small()
    data = await written(await filled(MemoryBackend(), facts))
    first, *lines, last = map(json.loads, data.splitlines())
    assert first == {
        "format": "agentloop-snapshot",
        "version": 2,
        "conversation": None,
        "runs": 3,
        "origins": 3,
        "entries": 3,
        "sequence": len(facts),
    }
    assert [line["sequence"] for line in lines] == list(range(1, len(facts) + 1))
    assert lines[0]["record"]["fact"] == "origin_opened"
    assert set(last) == {"sha256"}


async def test_one_conversation_is_written_alone_and_with_what_it_branched_off_from(tmp_path: Path) -> None:
    async with al.Runtime(ScriptedProvider([scripted(str(at)) for at in range(5)]), store=MemoryBackend()) as host:
        for text, name in (("a", "c"), ("b", "c"), ("x", "other")):
            await host.run(AGENT, text, conversation=name)
        first, _ = await host.exchanges("c")
        await host.branch("c", first, "d")
        ref = (await host.run(AGENT, "c", conversation="d")).ref
        await host.redact((await host.run(AGENT, "s", conversation="d")).ref, author="Ada")
        data = await written(host._store._backend, "d")
        assert await written(host._store._backend, "c") != data
        said = await host.history("d")
        with pytest.raises(LostError, match="conversation 'nobody'"):
            await written(host._store._backend, "nobody")
    path = tmp_path / "s.db"
    target = SQLiteBackend(path)
    await target.open()
    await read_snapshot(target, io.BytesIO(data))
    await target.close()
    async with al.Runtime(ScriptedProvider([scripted("5")]), store=SQLiteBackend(path)) as host:
        assert await host.history("d") == said
        assert [row.name for row in await host.conversations()] == ["c", "d"]
        assert (await host.result(ref)).text == "3"
        assert (await host.run(AGENT, "go on", conversation="d")).text == "5"


async def test_restoring_sends_and_starts_nothing_and_what_went_on_waits(tmp_path: Path) -> None:
    """(R87)"""
    path = tmp_path / "s.db"
    target = SQLiteBackend(path)
    await target.open()
    await read_snapshot(target, io.BytesIO(await written(await filled(MemoryBackend(), small()))))
    await target.close()
    provider = ScriptedProvider([])
    async with al.Runtime(provider, store=SQLiteBackend(path)) as host:
        assert [row.run_id for row in await host.unfinished()] == ["r3"]
        assert [item.kind for item in await host.unsettled()] == ["send"]
    assert provider.requests == []


async def test_a_run_that_goes_on_is_written_as_it_stood_when_it_was_counted() -> None:
    desk = Desk()
    turn = desk.open("r1")
    desk.take(turn, reply(Text(text="x")))
    before = len(desk.facts)

    class Growing(MemoryBackend):
        async def load_run(self, run_id: str) -> list[Any]:
            facts = await super().load_run(run_id)
            if turn.closed is None:
                desk.close(turn)
                await self.append(desk.facts[before:])
            return facts

    backend = await filled(Growing(), desk.facts)
    header = await write_snapshot(backend, out := io.BytesIO())
    assert header.sequence == before
    await read_snapshot(MemoryBackend(), io.BytesIO(out.getvalue()))


# -- what a target holds already


@pytest.mark.parametrize("kind", MEDIA)
async def test_what_is_there_already_is_refused_and_left_alone(medium: Callable[[str], Backend], kind: str) -> None:
    data = await written(await filled(MemoryBackend(), small()))
    target = medium(kind)
    await target.open()
    await read_snapshot(target, io.BytesIO(data))
    before = await target.load()
    with pytest.raises(ConflictError, match="run 'r1': expected a store that does not hold it"):
        await read_snapshot(target, io.BytesIO(data))
    assert await target.load() == before
    await target.close()


async def test_a_conversation_that_is_there_is_refused_and_others_beside_it_are_not() -> None:
    data = await written(await filled(MemoryBackend(), small()))
    desk = Desk()
    desk.close(desk.open("other", conversation="c"))
    target = await filled(MemoryBackend(), desk.facts)
    with pytest.raises(ConflictError, match="conversation 'c'"):
        await read_snapshot(target, io.BytesIO(data))
    desk = Desk()
    desk.close(desk.open("other", conversation="e"))
    target = await filled(MemoryBackend(), desk.facts)
    await read_snapshot(target, io.BytesIO(data))
    assert len(await target.runs()) == 4


async def test_what_another_process_opens_meanwhile_undoes_the_restore() -> None:
    data = await written(await filled(MemoryBackend(), small()))
    desk = Desk()
    desk.open("r2")

    class Raced(MemoryBackend):
        async def append(self, facts: Any, **given: Any) -> None:
            await super().append(facts, **given)
            if facts[0].run_id == "r1":
                await super().append(desk.facts)

    target = Raced()
    with pytest.raises(ConflictError, match="r2"):
        await read_snapshot(target, io.BytesIO(data))
    assert [row.run_id for row in await target.runs()] in (["r2"], [])


async def test_what_another_process_went_on_with_in_between_is_not_taken_back() -> None:
    data = await written(await filled(MemoryBackend(), small()))
    desk = Desk()
    desk.book.install([fact for fact in small() if fact.run_id == "r1"])
    theirs = desk.opening("theirs", conversation="c")

    class Raced(MemoryBackend):
        async def append(self, facts: Any, **given: Any) -> None:
            await super().append(facts, **given)
            if facts[0].run_id == "r1":
                await super().append(theirs, after="r1")

    target = Raced()
    with pytest.raises(ConflictError) as caught:
        await read_snapshot(target, io.BytesIO(data))
    (note,) = caught.value.__notes__
    assert note.startswith("What was written stays: conflict: conversation 'c': expected all its runs")
    assert [row.run_id for row in await target.runs()] == ["r1", "theirs", "r2"]


async def test_a_store_that_fails_in_between_keeps_whole_runs() -> None:
    data = await written(await filled(MemoryBackend(), small()))

    class Full(MemoryBackend):
        async def append(self, facts: Any, **given: Any) -> None:
            if facts[0].run_id == "r2":
                raise PersistenceError("full")
            await super().append(facts, **given)

    target = Full()
    with pytest.raises(PersistenceError, match="full"):
        await read_snapshot(target, io.BytesIO(data))
    assert await target.load() == [fact for fact in small() if fact.run_id == "r1"]


# -- damage


async def test_any_changed_byte_is_refused_or_white_space() -> None:
    """Three other values at every byte of a small snapshot (R86)."""
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    desk.exchange(turn, reply(call("a", arguments="{}"), word="tool_calls"))
    desk.take(turn, reply(Text(text="done")))
    desk.close(turn)
    data = await written(await filled(MemoryBackend(), desk.facts))
    assert len(data) <= 4096
    starts = list(itertools.accumulate((len(line) + 1 for line in data.split(b"\n")), initial=0))
    harmless, misnamed = 0, []
    for at, byte in enumerate(data):
        number = next(number for number, start in enumerate(starts) if at < start)
        for other in {byte ^ 0x01, byte ^ 0x20, 0x20, byte ^ 0x80} - {byte}:
            damaged = data[:at] + bytes((other,)) + data[at + 1 :]
            target = MemoryBackend()
            try:
                await read_snapshot(target, io.BytesIO(damaged))
            except RestoreError as error:
                if error.where.partition(":")[0].partition(",")[0] != f"line {number}":
                    misnamed.append((at, other, str(error)))
            else:
                harmless += 1
                assert (bytes((byte, other)).strip(), await target.load()) == (b"", desk.facts)
    assert misnamed == []
    assert harmless == 1  # a blank for the last line feed


async def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    data = await written(await filled(MemoryBackend(), small()))
    for length in range(0, len(data) - 1, 7):
        await refused(data[:length])
    whole_lines = b"".join(line + b"\n" for line in data.splitlines()[:4])
    assert await refused(whole_lines) == (
        "bad_snapshot: line 4: expected a last line with the SHA-256 of all bytes before it, "
        "got a fact: the file is cut off"
    )


async def test_lines_that_are_missing_doubled_or_moved_are_named() -> None:
    """(R86)"""
    lines = (await written(await filled(MemoryBackend(), small()))).splitlines(keepends=True)
    for changed in (
        [*lines[:3], *lines[4:]],
        [*lines[:3], lines[2], *lines[3:]],
        [*lines[:2], lines[3], lines[2], *lines[4:]],
    ):
        assert "expected the number" in await refused(b"".join(changed))
    assert f"line {len(lines)}: expected a fact" in await refused(b"".join([*lines, b"\n"]))


async def test_white_space_between_tokens_is_refused_too() -> None:
    lines = (await written(await filled(MemoryBackend(), small()))).splitlines(keepends=True)
    spaced = lines[3].replace(b'"record":', b'"record": ', 1)
    assert "line 4" in await refused(b"".join([*lines[:3], spaced, *lines[4:]]))


async def test_another_version_and_another_file_are_named() -> None:
    lines = (await written(await filled(MemoryBackend(), small()))).splitlines(keepends=True)
    later = lines[0].replace(b'"version":2', b'"version":3')
    assert await refused(later + b"".join(lines[1:]), "restore_version") == (
        "restore_version: line 1: expected snapshot version 2, got 3"
    )
    for data in (b"", b"\n", b"{}", b"[" * 5000, b"PK\x03\x04", b"\xff\xfe", b'{"format":"agentloop-snapshot"}\n'):
        assert "line 1" in await refused(data)


# -- facts that cannot be, under a good digest


async def test_a_forged_fact_is_refused_by_its_line() -> None:
    """Origin digests, prefixes, order, sources and slots are checked (R86); an origin is never made up (R88)."""
    lines = (await written(await filled(MemoryBackend(), small()))).splitlines()[:-1]

    async def forged(at: int, old: bytes, new: bytes) -> str:
        assert old in lines[at]
        return await refused(resealed([*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]), "bad_record")

    assert "line 2: run 'r1': expected the digest of its content" in await forged(1, b"\xc3\xa9", b"e")
    assert "line 3" in await forged(2, b'"exchanges":0', b'"exchanges":1')
    assert "line 5: run 'r1': expected the next place in its own origin" in await forged(4, b'"index":0', b'"index":1')
    assert "line 6" in await forged(5, b'"position":0', b'"position":1')
    assert "line 7" in await forged(6, b"r1/0.0", b"r1/0.1")
    assert "line 8: run 'r1': expected the size of the text" in await forged(7, b"all ", b"all of")
    text = "line 9: run 'r1': expected the request of all exchanges so far"
    assert text in await forged(6, b'"text":"ok"', b'"text":"no"')
    without_origin = resealed([lines[0], *lines[2:]])
    assert "no run 'r1' is kept" in await refused(without_origin, "bad_record")
    assert "expected the counts" in await refused(
        resealed([lines[0].replace(b'"entries":3', b'"entries":4'), *lines[1:]])
    )
    of_another = lines[0].replace(b'"conversation":null', b'"conversation":"e"')
    assert "expected the conversation it is of" in await refused(resealed([of_another, *lines[1:]]))


async def test_runs_that_are_mixed_or_overlap_on_a_conversation_are_refused() -> None:
    lines = (await written(await filled(MemoryBackend(), small()))).splitlines()[:-1]
    closed, alone = [at for at, line in enumerate(lines) if b"run_closed" in line]
    mixed = [*lines[:alone], *lines[alone + 1 :], lines[alone]]
    assert "facts of a run one after the other" in await refused(resealed(mixed))
    overlapping = [*lines[:closed], *lines[closed + 1 :]]
    assert "expected the run before it on its conversation to have ended" in await refused(
        resealed(overlapping), "bad_record"
    )
