"""Groups, failures and the end of the task that writes, on a connection that only pretends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop.errors import ConflictError, PersistenceError
from agentloop.exchange import Fact
from agentloop.persistence.postgres.writer import Entry, Writer
from tests.exchange.desk import Desk
from tests.persistence.postgres.fake_driver import FakeConnection, FakeLink


def opening(run: str, conversation: str | None = None) -> tuple[Fact, ...]:
    return Desk().opening(run, conversation=conversation)


def writing(writer: Writer, *facts: tuple[Fact, ...]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(writer.write(Entry(batch, token=None, after=None))) for batch in facts]


def writer_on(*connections: FakeConnection) -> Writer:
    link: Any = FakeLink(*connections)
    return Writer(link)


async def test_what_comes_in_together_is_one_commit() -> None:
    connection = FakeConnection({})
    writer = writer_on(connection)
    await asyncio.gather(*writing(writer, *(opening(f"r{number}") for number in range(9))))
    assert connection.written == [[f"r{number}" for number in range(9)]]
    assert (writer.commits, writer.batches) == (1, 9)
    await writer.close(seconds=1)


async def test_batches_of_one_run_or_one_conversation_are_commits_of_their_own() -> None:
    connection = FakeConnection({})
    writer = writer_on(connection)
    batches = [opening("r1"), opening("r2", "c"), opening("r3", "c"), opening("r4"), opening("r4")]
    await asyncio.gather(*writing(writer, *batches))
    assert connection.written == [["r1", "r2"], ["r3", "r4"], ["r4"]]
    await writer.close(seconds=1)


async def test_a_commit_has_a_bound() -> None:
    connection = FakeConnection({})
    writer = writer_on(connection)
    await asyncio.gather(*writing(writer, *(opening(f"r{number}") for number in range(300))))
    assert [len(runs) for runs in connection.written] == [256, 44]
    await writer.close(seconds=1)


async def test_a_group_of_which_all_is_refused_is_no_commit() -> None:
    connection = FakeConnection({})
    writer = writer_on(connection)
    closed = Desk()
    turn = closed.open("r1")
    closed.close(turn)
    with pytest.raises(ConflictError, match="expected a run that is there"):
        await writing(writer, tuple(closed.facts[-1:]))[0]
    assert connection.statements[-1] == "ROLLBACK"
    assert (connection.terminated, writer.commits, writer.batches) == (False, 0, 0)
    await writer.close(seconds=1)


@pytest.mark.parametrize("word", ["BEGIN", "WITH", "COMMIT"])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
async def test_a_failure_is_told_to_all_and_the_connection_is_not_used_again(word: str, kind: type[Exception]) -> None:
    """(R91) Which statement it was makes no difference: the outcome is unknown."""
    broken, fresh = FakeConnection({word: kind("hunter2")}), FakeConnection({})
    writer = writer_on(broken, fresh)
    outcomes = await asyncio.gather(
        *writing(writer, opening("r1"), opening("r2"), opening("r2")), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [PersistenceError] * 3
    assert {str(outcome) for outcome in outcomes} == {f"postgresql://db/facts: appending ended with {kind.__name__}"}
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert {type(outcome.__cause__) for outcome in outcomes if isinstance(outcome, Exception)} == {kind}
    assert (broken.terminated, writer.commits) == (True, 0)
    await writing(writer, opening("r3"))[0]
    assert (fresh.written, writer.commits) == ([["r3"]], 1)
    await writer.close(seconds=1)


async def test_a_database_that_cannot_be_reached_is_said_to_be_so() -> None:
    writer = writer_on()
    with pytest.raises(PersistenceError, match="connecting ended with OSError"):
        await writing(writer, opening("r1"))[0]
    await writer.close(seconds=1)


async def test_a_cancelled_caller_leaves_the_write_to_its_end() -> None:
    connection = FakeConnection({})
    writer = writer_on(connection)
    [append] = writing(writer, opening("r1"))
    await connection.reached["BEGIN"].wait()
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    await writer.close(seconds=1)
    assert (connection.written, writer.commits) == ([["r1"]], 1)


async def test_closing_is_bounded_where_the_server_does_not_answer() -> None:
    connection = FakeConnection({"COMMIT": None})
    writer = writer_on(connection)
    appends = writing(writer, opening("r1"), opening("r2"), opening("r1"))
    await connection.reached["COMMIT"].wait()
    await writer.close(seconds=0.01)
    for append in appends:
        with pytest.raises(PersistenceError, match="closed before the write ended"):
            await append
    assert connection.terminated
    await writer.close(seconds=0.01)
    with pytest.raises(PersistenceError, match="the medium is closed"):
        await writing(writer, opening("r3"))[0]
