"""A Postgres whose disk is full: the commit fails, the store stops, and what was committed is found again."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import Book, Fact, ReceiptMint, ReplyTaken, SendEnded, SendStarted
from agentloop.persistence.postgres import PostgresBackend
from agentloop.testing import ScriptedProvider, reply
from tests.disk import fill, small_disk
from tests.exchange.desk import picture
from tests.system.server import PostgresServer, give, open_folder

pytestmark = pytest.mark.system

AGENT = al.Agent(name="a")
ENDED = 3
"""Runs that end before the disk is full."""

RUNS = 300
"""Far more than there is room for then."""


class Acknowledged(PostgresBackend):
    """Remembers what it was promised, and the batch that it was not."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.held: list[Fact] = []
        self.tried: list[Fact] = []

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        self.tried = list(facts)
        await super().append(facts, token=token, after=after)
        self.held += facts


class Place:
    """A server of which a part is on a small disk.

    Attributes:
        disk: where that is.
    """

    def __init__(self, disk: Path, server: PostgresServer) -> None:
        self.disk, self.server = disk, server

    def medium(self) -> Acknowledged:
        return Acknowledged(self.server.dsn)


@contextmanager
def small(part: str) -> Iterator[Place]:
    """A server with its tables, or its log, on a small disk.

    An insert that has no room for a page is refused. A log that has no room for its next piece ends the
    server, which is told not to try again by itself.
    """
    with ExitStack() as stack:
        above = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aldisk-", dir=open_folder())))
        above.chmod(0o755)
        disk = stack.enter_context(small_disk(above / "disk", "64m"))
        place = disk / part
        place.mkdir()
        give(place)
        if part == "tables":
            server = PostgresServer(settings=["default_tablespace=small"])
        else:
            pieces = ["min_wal_size=2MB", "wal_recycle=off", "restart_after_crash=off"]
            server = PostgresServer(f"--waldir={place}", "--wal-segsize=1", settings=pieces)
        stack.callback(server.close)
        server.start()
        yield Place(disk, server)


def noise(number: int) -> str:
    """A text that nothing makes shorter, within the limit of a reply."""
    return random.Random(number).randbytes(30_000).hex()


def answers(disk: Path, ballast: list[Path]) -> list[Any]:
    """Large replies; while the model thinks about one of the first, somebody else fills the disk."""

    async def answer(number: int) -> al.ModelReply:
        if number == ENDED:
            ballast.append(fill(disk))
        return reply(noise(number))

    def entry(number: int) -> Any:
        return lambda _: answer(number)

    return [entry(number) for number in range(RUNS)]


async def run_until_it_is_full(runtime: al.Runtime) -> tuple[list[str], al.PersistenceError]:
    """The runs that ended, and what the one after them was told."""
    ended: list[str] = []

    async def run() -> None:
        for number in range(RUNS):
            await runtime.run(AGENT, "go", run_id=f"r{number}", conversation=f"c{number}")
            ended.append(f"r{number}")

    with pytest.raises(al.PersistenceError) as caught:
        await run()
    return ended, caught.value


async def goes_on(place: Place, before: Acknowledged, ended: list[str], left: str) -> None:
    """A new runtime finds what was committed, and settles and finishes the rest."""
    medium = place.medium()
    async with al.Runtime(ScriptedProvider([reply("at last")]), store=medium) as runtime:
        found = await medium.load()
        assert found[: len(before.held)] == before.held
        assert found[len(before.held) :] in ([], before.tried)  # whole or not at all
        for ref in ended:
            assert (await runtime.result(ref)).outcome == "completed"
        begun = [type(fact) for fact in found if fact.run_id == left]
        items = await runtime.unsettled()
        assert len(items) == (begun[-1:] == [SendStarted])
        for item in items:
            assert (item.ref, item.kind) == (left, "send")
            with pytest.raises(al.UnsettledError):
                await runtime.resume(left, AGENT)
            await runtime.settle_send(left, item.effect_id, author="Ann")
        result = await runtime.run(AGENT, "go", run_id=left, conversation=f"c{len(ended)}")
        assert result.outcome == "completed"
        assert (await runtime.unfinished(), len(await runtime.conversations())) == ([], len(ended) + 1)
        assert (await medium.load())[: len(found)] == found


@pytest.mark.parametrize("part", ["tables", "log"])
async def test_a_full_disk_stops_the_store_and_what_was_committed_is_found_again(part: str) -> None:
    """(R90, R91, R133)"""
    with small(part) as place:
        if part == "tables":
            await place.server.sql(f"CREATE TABLESPACE small LOCATION '{place.disk / part}'")
        ballast: list[Path] = []
        medium = place.medium()
        async with al.Runtime(ScriptedProvider(answers(place.disk, ballast)), store=medium) as runtime:
            ended, error = await run_until_it_is_full(runtime)
            assert len(ended) >= ENDED
            assert type(error) is al.PersistenceError
            assert "No space left on device" in place.server.log
            if part == "tables":
                assert "appending ended with DiskFullError (53100)" in str(error)
                assert [type(fact) for fact in medium.tried] == [SendEnded, ReplyTaken]
            with pytest.raises(al.PersistenceError, match="writing stopped"):
                await runtime.run(AGENT, "go", run_id="late")

            book, told = runtime._store.book, Book(ReceiptMint())
            told.install([fact for fact in medium.held if book.has_run(fact.run_id)])
            assert picture(book) == picture(told)  # and nothing that was not acknowledged

            ballast[0].unlink()
            if part == "log":  # the server ended, or is about to
                assert "PANIC" in place.server.log
                place.server.stop()
                place.server.start()
        await goes_on(place, medium, ended, f"r{len(ended)}")
