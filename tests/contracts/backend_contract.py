"""What every medium of facts must do.

A subclass gives `open`, which opens the medium under test; each test gets an empty one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from agentloop.exchange import Book, Fact, ReceiptMint
from agentloop.messages import UserMessage
from agentloop.persistence import Backend
from tests.exchange.desk import Desk, asking, picture
from tests.messages.values import call, reply

__all__ = ["BackendContract"]


def history(*runs: str, text: str = "hi") -> list[tuple[Fact, ...]]:
    """The batches of these runs, one after the other on one conversation."""
    desk = Desk()
    batches: list[tuple[Fact, ...]] = []
    install = desk.book.install

    def keep(facts: Any) -> None:
        batches.append(tuple(facts))
        install(facts)

    desk.book.install = keep  # type: ignore[method-assign]
    for run in runs:
        turn = desk.open(run, UserMessage(content=text), conversation="c")
        desk.exchange(turn, reply(call("a", arguments='{"n": -0, "m": 1e400}'), word="tool_calls"), text)
        desk.take(turn, reply())
        desk.close(turn)
    return batches


def flat(batches: list[tuple[Fact, ...]]) -> list[Fact]:
    return [fact for batch in batches for fact in batch]


class BackendContract:
    """Append, load, forget, close."""

    def open(self) -> AbstractAsyncContextManager[Backend]:
        """The medium under test, empty."""
        raise NotImplementedError

    @pytest.fixture
    async def backend(self) -> AsyncIterator[Backend]:
        async with self.open() as backend:
            yield backend

    async def test_an_empty_medium_holds_nothing(self, backend: Backend) -> None:
        assert await backend.load() == []

    async def test_facts_come_back_in_the_order_in_which_they_were_appended(self, backend: Backend) -> None:
        batches = history("r1", "r2")
        for batch in batches:
            await backend.append(batch)
        assert await backend.load() == flat(batches)

    async def test_facts_of_runs_that_go_on_at_once_keep_their_common_order(self, backend: Backend) -> None:
        one, two = history("r1"), history("r2")
        mixed = [batch for pair in zip(one, two, strict=True) for batch in pair]
        for batch in mixed:
            await backend.append(batch)
        assert await backend.load() == flat(mixed)

    async def test_a_batch_is_held_whole_or_not_at_all(self, backend: Backend) -> None:
        first, *others = history("r1")
        await backend.append(first)
        bad: Any = (*flat(others), object())
        with pytest.raises(Exception):  # noqa: B017, PT011  # whichever, so long as nothing of the batch is held
            await backend.append(bad)
        assert await backend.load() == list(first)

    async def test_what_is_loaded_makes_an_equal_book(self, backend: Backend) -> None:
        """Text, numbers in arguments and order survive (R89)."""
        text = "\x00 \u2028 é 😀 \u0000"
        batches = history("r1", "r2", text=text)
        for batch in batches:
            await backend.append(batch)
        mint = ReceiptMint()
        written, read = Book(mint), Book(mint)
        written.install(flat(batches))
        read.install(await backend.load())
        assert picture(read) == picture(written)

    async def test_loading_changes_nothing_and_gives_a_list_of_its_own(self, backend: Backend) -> None:
        batches = history("r1")
        await backend.append(flat(batches))
        (await backend.load()).clear()
        assert await backend.load() == flat(batches)

    async def test_a_batch_that_changes_after_the_append_changes_nothing_held(self, backend: Backend) -> None:
        batch = flat(history("r1"))
        await backend.append(batch)
        kept = list(batch)
        batch.clear()
        assert await backend.load() == kept

    async def test_forgetting_drops_all_facts_of_these_runs_and_no_others(self, backend: Backend) -> None:
        one, two, three = history("r1"), history("r2"), history("r3")
        for batch in (*one, *two, *three):
            await backend.append(batch)
        await backend.forget(["r1", "r3"])
        assert await backend.load() == flat(two)
        await backend.append(one[0])  # and a forgotten id can be used again
        assert await backend.load() == [*flat(two), *one[0]]

    async def test_forgetting_what_is_not_held_is_harmless(self, backend: Backend) -> None:
        batches = history("r1")
        await backend.append(flat(batches))
        await backend.forget(["r9"])
        await backend.forget([])
        assert await backend.load() == flat(batches)

    async def test_an_append_that_was_awaited_to_its_end_is_there(self, backend: Backend) -> None:
        desk = Desk()
        facts = desk.add(desk.opening("r1"))
        desk.take(desk.book.turn("r1"), asking("a"))
        await asyncio.create_task(backend.append(facts))
        assert await backend.load() == list(facts)

    async def test_closing_twice_is_harmless(self, backend: Backend) -> None:
        await backend.close()
        await backend.close()
