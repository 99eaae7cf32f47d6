"""Redacting where summaries were made of a run: what was made from it goes first."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from agentloop.errors import ConflictError, PersistenceError
from agentloop.exchange import Book, CallBasis, ContextCut, ReceiptMint, RunRedacted, TurnSummary, branch
from agentloop.messages import Text, UserMessage
from agentloop.persistence import Backend, ConversationStore, MemoryBackend
from agentloop.persistence.snapshot import read_snapshot, write_snapshot
from agentloop.persistence.sqlite import SQLiteBackend
from tests.exchange.desk import Desk, picture
from tests.messages.values import reply

SECRET = "heliotrope"


def turn_of(desk: Desk, run: str, conversation: str | None, *, summary: TurnSummary | None = None) -> None:
    cut = None if summary is None else ContextCut(summaries=(summary,))
    turn = desk.open(run, UserMessage(content=f"{SECRET} of {run}"), conversation=conversation, context=cut)
    desk.take(turn, reply(Text(text=f"answer of {run}")))
    desk.close(turn)


def talk() -> Desk:
    """A conversation and a branch off it; both go on with a summary of its first turn, made by a call."""
    desk = Desk()
    summary = TurnSummary(origins=("origin of r1",), text=f"They said {SECRET}.", ref="a call")
    turn_of(desk, "r1", "c")
    turn_of(desk, "r2", "c")
    turn_of(desk, "a call", None)
    turn_of(desk, "r3", "c", summary=summary)
    at = desk.book.turn("r3").opened.continues
    assert at is not None
    desk.add(branch(desk.book, run_id="a branch", conversation="d", source="c", at=at, at_ms=4))
    turn_of(desk, "r4", "d", summary=summary)
    return desk


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[ConversationStore, Backend]]:
    """The talk on a medium; a durable one is read when it is asked for."""
    desk = talk()
    memory = request.param == "memory"
    medium: Backend = MemoryBackend() if memory else SQLiteBackend(tmp_path / "s.db")
    store = ConversationStore(medium, desk.book if memory else Book(ReceiptMint()), owner="o")
    await store.open()
    for _, facts in groupby(desk.facts, key=lambda fact: fact.run_id):
        await medium.append(list(facts))
    yield store, medium
    await store.close()


def opened_call(run: str, parent: str, *origins: str) -> Desk:
    """A model call of a runner that was given turns to read, and is stored alone."""
    desk = Desk()
    basis = CallBasis(parent=parent, stage_id="summary", transport="t", route="text", origins=origins)
    turn = desk.open(run, UserMessage(content=f"{SECRET} again"), call=basis)
    desk.take(turn, reply())
    desk.close(turn)
    desk.facts[0] = msgspec.structs.replace(desk.facts[0], agent="summary")  # the stage, as a runner stores it
    return desk


async def redact(store: ConversationStore, run: str) -> None:
    await store.redact(run, author="Ada", at_ms=9)


async def test_what_was_made_from_a_run_is_redacted_before_it(store: tuple[ConversationStore, Backend]) -> None:
    """No summary of a redacted text is left behind: not in later runs, on branches, or in the call that made it."""
    host, medium = store
    with pytest.raises(ConflictError, match="run 'r1': expected 'r3', 'r4' to be redacted before it"):
        await redact(host, "r1")
    for run in ("r3", "r4"):
        with pytest.raises(ConflictError, match=f"run '{run}': expected 'a call' to be redacted before it"):
            await redact(host, run)
    for run in ("a call", "r4", "r3", "r1"):
        await redact(host, run)
        await redact(host, run)  # changes nothing
    left = [fact for fact in await medium.load() if f"{SECRET} of r2" not in str(fact)]
    assert SECRET not in str(left)
    assert {fact.run_id for fact in left if type(fact) is RunRedacted} == {"a call", "r1", "r3", "r4"}


async def test_a_run_of_which_nothing_was_made_is_redacted_at_once(store: tuple[ConversationStore, Backend]) -> None:
    host, _ = store
    await redact(host, "r2")
    turn = await host.turn("r3")
    assert [message.content for message in turn.history if isinstance(message, UserMessage)] == [
        f"Summary of earlier messages of this conversation:\n\nThey said {SECRET}.",
        f"{SECRET} of r3",
    ]


async def test_a_call_that_was_forgotten_holds_nothing_back(store: tuple[ConversationStore, Backend]) -> None:
    host, _ = store
    await host.forget(["a call"])
    await redact(host, "r3")


async def test_a_run_that_made_its_own_summary_is_redacted_with_it() -> None:
    desk = Desk()
    turn_of(desk, "r1", "c")
    turn_of(desk, "r2", "c", summary=TurnSummary(origins=("origin of r1",), text=SECRET, ref="r2"))
    medium = MemoryBackend()
    for _, facts in groupby(desk.facts, key=lambda fact: fact.run_id):
        await medium.append(list(facts))
    store = ConversationStore(medium, desk.book)
    await redact(store, "r2")
    await redact(store, "r1")
    assert SECRET not in str(await medium.load())


async def test_a_snapshot_keeps_what_runs_were_asked_with(store: tuple[ConversationStore, Backend]) -> None:
    """(R85, R89)"""
    _, medium = store
    file, other, again = io.BytesIO(), MemoryBackend(), io.BytesIO()
    await write_snapshot(medium, file)
    file.seek(0)
    await read_snapshot(other, file)
    await write_snapshot(other, again)
    assert again.getvalue() == file.getvalue()
    desk, book = talk(), Book(ReceiptMint())
    book.install(await other.load())
    assert picture(book) == picture(desk.book)


async def test_what_a_run_is_asked_with_is_read_from_the_medium(store: tuple[ConversationStore, Backend]) -> None:
    """(R86)"""
    host, _ = store
    known = talk().book
    for run in ("r3", "r4"):
        turn = await host.turn(run)
        assert (turn.history, turn.request_size) == (known.turn(run).history, known.turn(run).request_size)


async def test_a_call_that_was_given_a_run_to_read_is_redacted_before_it(
    store: tuple[ConversationStore, Backend],
) -> None:
    """Also where nothing came of it."""
    made, medium = store
    await hold(made, medium, opened_call("reading", "a start", "origin of r2", "origin of r3"))
    for run in ("r2", "r3"):
        with pytest.raises(ConflictError, match="'reading'"):
            await redact(made, run)
    await redact(made, "reading")
    await redact(made, "r2")


async def test_what_was_made_of_a_conversation_is_forgotten_with_it(store: tuple[ConversationStore, Backend]) -> None:
    made, medium = store
    await hold(made, medium, opened_call("reading", "a start", "origin of r4"))
    await hold(made, medium, opened_call("made", "r4", "origin of r1"))
    await hold(made, medium, opened_call("other", "a start", "origin of r1"))
    await made.forget(["a branch", "r4"])
    assert {row.run_id for row in await medium.runs()} == {"r1", "r2", "r3", "a call", "other"}
    await made.forget(["r1", "r2", "r3"])
    assert {row.run_id for row in await medium.runs()} == {"a call"}


async def test_the_book_is_read_as_the_medium_has_it(store: tuple[ConversationStore, Backend]) -> None:
    made, medium = store

    def runs(name: str) -> Callable[[Book], list[str] | None]:
        return lambda book: None if (known := book.conversation(name)) is None else list(known.runs)

    assert await made.look("c", runs("c")) == ["r1", "r2", "r3"]
    assert await made.look("d", runs("d")) == ["a branch", "r4"]
    assert await made.look("nobody", runs("nobody")) is None
    if medium.durable:
        await medium.forget(["a branch", "r4"])
        assert await made.look("d", runs("d")) is None
    await made.close()
    with pytest.raises(PersistenceError, match="closed"):
        await made.look("c", runs("c"))


async def hold(store: ConversationStore, medium: Backend, desk: Desk) -> None:
    """Put a run on the medium; a store in memory has it in its book too."""
    await medium.append(desk.facts)
    if not medium.durable:
        store.book.install(desk.facts)
