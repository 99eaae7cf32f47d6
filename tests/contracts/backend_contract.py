"""What every medium of facts must do.

A subclass gives `open`, which opens the medium under test, and `elapse`, which lets its clock go
on; each test gets an empty medium. A durable one also gives `reopen`, a second handle on the
medium under test, as another process would have it, and takes `DurableBackendContract`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from agentloop.errors import AdmissionError, ConflictError, NotOwnerError, StaleHeadError
from agentloop.exchange import Book, Fact, OutputKept, ReceiptMint, branch, tombstone
from agentloop.messages import UserMessage
from agentloop.persistence import Backend, ConversationRow, Lease, RunRow
from tests.exchange.desk import Desk, asking, picture
from tests.messages.values import call, reply

__all__ = ["BackendContract", "DurableBackendContract", "branched", "flat", "history", "solo"]


def history(*runs: str, text: str = "hi", conversation: str | None = "c") -> list[tuple[Fact, ...]]:
    """The batches of these runs, one after the other on one conversation."""
    desk = Desk()
    batches: list[tuple[Fact, ...]] = []
    install = desk.book.install

    def keep(facts: Any) -> None:
        batches.append(tuple(facts))
        install(facts)

    desk.book.install = keep  # type: ignore[method-assign]
    for run in runs:
        turn = desk.open(run, UserMessage(content=text), conversation=conversation)
        desk.exchange(turn, reply(call("a", arguments='{"n": -0, "m": 1e400}'), word="tool_calls"), text)
        desk.keep(turn, len(turn.entries) - 1, 0, f"all of {text}")
        desk.take(turn, reply())
        desk.close(turn)
    return batches


def solo(run: str, text: str = "hi") -> list[tuple[Fact, ...]]:
    """The batches of a run on no conversation."""
    return history(run, text=text, conversation=None)


def flat(batches: list[tuple[Fact, ...]]) -> list[Fact]:
    return [fact for batch in batches for fact in batch]


def branched(run: str, name: str, batches: list[tuple[Fact, ...]]) -> tuple[Fact, ...]:
    """The batch that begins a conversation at the newest exchange of the one these batches are of."""
    book = Book(ReceiptMint())
    book.install(flat(batches))
    source = batches[0][0].conversation  # type: ignore[union-attr]  # it opens the run
    at = book.conversation(source).head  # type: ignore[union-attr]
    assert at is not None
    return branch(book, run_id=run, conversation=name, source=source, at=at, at_ms=5)


async def held(backend: Backend) -> object:
    """All that a medium holds."""
    return await backend.load(), await backend.runs(), await backend.conversations()


class BackendContract:
    """Append, load, list, own, forget, close."""

    def open(self) -> AbstractAsyncContextManager[Backend]:
        """The medium under test, empty."""
        raise NotImplementedError

    async def elapse(self, seconds: float) -> None:
        """Let the medium's clock go on."""
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
        with pytest.raises(AdmissionError):
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

    async def test_a_full_text_of_some_megabytes_comes_back(self, backend: Backend) -> None:
        desk = Desk()
        turn = desk.open("r1")
        desk.exchange(turn, reply(call("a"), word="tool_calls"))
        text = '\0 \u2028 é 😀 "\\ ' * 300_000
        desk.keep(turn, 0, 0, text)
        await backend.append(desk.facts)
        kept = (await backend.load_run("r1"))[-1]
        assert type(kept) is OutputKept
        assert (kept.text == text, kept.size) == (True, len(text.encode()))

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
        one, two, three = solo("r1"), history("r2"), solo("r3")
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

    async def test_what_goes_on_is_not_forgotten(self, backend: Backend) -> None:
        one, (opening, *_) = solo("r1"), solo("r2")
        for batch in (*one, opening):
            await backend.append(batch)
        before = await held(backend)
        with pytest.raises(ConflictError, match="run 'r2': expected a run that ended, got one that goes on"):
            await backend.forget(["r1", "r2"])
        assert await held(backend) == before
        await backend.forget(["r1", "r2"], unfinished=True)  # as who takes back what it has written
        assert (await backend.load(), await backend.runs()) == ([], [])

    @pytest.mark.parametrize("named", [["r1"], ["r2"], ["r9", "r1", "other"]])
    async def test_a_conversation_is_forgotten_whole(self, backend: Backend, named: list[str]) -> None:
        for batch in (*history("r1", "r2"), *solo("other")):
            await backend.append(batch)
        before = await held(backend)
        rest = "r1" if named == ["r2"] else "r2"
        for unfinished in (False, True):
            rule = f"conversation 'c': expected all its runs to be forgotten, got run '{rest}' besides"
            with pytest.raises(ConflictError, match=rule):
                await backend.forget(named, unfinished=unfinished)
        assert await held(backend) == before
        await backend.forget(["r2", "other", "r1", "r1"])
        assert (await backend.load(), await backend.conversations()) == ([], [])

    async def test_what_a_branch_goes_on_from_is_not_forgotten_before_it(self, backend: Backend) -> None:
        for batch in (*history("r1"), *history("r2", conversation="e")):
            await backend.append(batch)
        await backend.append(branched("b", "d", history("r1")), after="")
        before = await held(backend)
        for named in (["r1"], ["r1", "r2"]):
            with pytest.raises(ConflictError, match="conversation 'c': expected no branch of it, got conversation 'd'"):
                await backend.forget(named)
        assert await held(backend) == before
        await backend.forget(["r2"])  # of which there is none
        await backend.forget(["r1", "b"])
        assert await backend.load() == []

    async def test_a_branch_that_goes_on_is_not_forgotten_with_what_it_goes_on_from(self, backend: Backend) -> None:
        for batch in history("r1"):
            await backend.append(batch)
        await backend.append(branched("b", "d", history("r1")), after="")
        await backend.append(history("r2", conversation="d")[0], after="b")
        before = await held(backend)
        for named, rule in ((["r1", "b"], "'d': expected all its runs"), (["r1", "b", "r2"], "'r2': expected a run")):
            with pytest.raises(ConflictError, match=rule):
                await backend.forget(named)
        assert await held(backend) == before

    async def test_an_append_that_was_awaited_to_its_end_is_there(self, backend: Backend) -> None:
        desk = Desk()
        facts = desk.add(desk.opening("r1"))
        desk.take(desk.book.turn("r1"), asking("a"))
        await asyncio.create_task(backend.append(facts))
        assert await backend.load() == list(facts)

    # -- redacting and branching

    async def test_a_redacted_run_has_one_fact_in_the_place_of_its_first(self, backend: Backend) -> None:
        two = solo("r3")
        batches = [*history("r1"), *two]
        for batch in batches:
            await backend.append(batch)
        rows = await backend.runs()
        book = Book(ReceiptMint())
        book.install(flat(batches))
        left = tombstone(book.turn("r1"), author="Ada \0", at_ms=9)
        await backend.redact(left)
        assert await backend.load() == [left, *flat(two)]
        assert await backend.load_run("r1") == [left]
        assert await backend.load_conversation("c") == [left]
        assert await backend.runs() == rows
        await backend.redact(left)
        assert await backend.load_run("r1") == [left]
        await backend.forget(["r1"])
        await backend.append([left])  # as a restore brings it
        assert await backend.runs() == [rows[1], rows[0]]

    async def test_only_a_run_that_ended_is_redacted(self, backend: Backend) -> None:
        *batches, end = history("r1")
        for batch in batches:
            await backend.append(batch)
        book = Book(ReceiptMint())
        book.install([*flat(batches), *end])
        left = tombstone(book.turn("r1"), author="Ada", at_ms=9)
        for fact, got in ((left, "one that goes on"), (msgspec.structs.replace(left, run_id="r9"), "none")):
            with pytest.raises(ConflictError, match=f"expected a run that ended, got {got}"):
                await backend.redact(fact)
        assert await backend.load() == flat(batches)

    async def test_a_branch_is_a_run_that_ended_and_stands_alone_in_its_batch(self, backend: Backend) -> None:
        batches = history("r1")
        for batch in batches:
            await backend.append(batch)
        book = Book(ReceiptMint())
        book.install(flat(batches))
        head = book.conversation("c").head  # type: ignore[union-attr]
        assert head is not None
        facts = branch(book, run_id="b", conversation="d", source="c", at=head, at_ms=5)
        with pytest.raises(AdmissionError, match="nothing beside"):
            await backend.append([*facts, msgspec.structs.replace(batches[-1][-1], run_id="b")])
        await backend.append(facts, after="")
        with pytest.raises(StaleHeadError):
            await backend.append([msgspec.structs.replace(facts[0], run_id="b2")], after="")
        assert await backend.conversation("d") == ConversationRow(name="d", runs=("b",), live=None, newest_at_ms=5)
        row = await backend.run("b")
        assert row == RunRow(run_id="b", conversation="d", agent="", opened_at_ms=5, outcome="branched", lease=None)
        assert await backend.runs(unfinished=True) == []

    async def test_a_branch_of_what_is_not_there_is_refused(self, backend: Backend) -> None:
        """Also where its source was forgotten, and another one has its name now."""
        facts = branched("b", "d", history("r1"))
        rule = "conversation 'c': expected the run with origin 'origin of r1' that its branch goes on from, got none"
        for batch in ((), *history("r2"), *history("r1", conversation="e")):
            if batch:
                await backend.append(batch)
            before = await held(backend)
            with pytest.raises(ConflictError, match=rule) as caught:
                await backend.append(facts, after="")
            assert type(caught.value) is ConflictError
            assert await held(backend) == before

    async def test_a_branch_of_a_redacted_run_is_made(self, backend: Backend) -> None:
        batches = history("r1", "r2")
        for batch in batches:
            await backend.append(batch)
        book = Book(ReceiptMint())
        book.install(flat(batches))
        await backend.redact(tombstone(book.turn("r2"), author="Ada", at_ms=9))
        await backend.append(branched("b", "d", batches), after="")
        assert await backend.conversation("d") == ConversationRow(name="d", runs=("b",), live=None, newest_at_ms=5)

    async def test_a_branch_of_a_branch_that_went_on_is_made(self, backend: Backend) -> None:
        """The first run of its source is a branch, which has no origin."""
        went_on = history("r2", conversation="d")
        for batch in (*history("r1"), branched("b", "d", history("r1")), *went_on):
            await backend.append(batch)
        await backend.append(branched("b2", "e", went_on), after="")
        assert await backend.conversation("e") == ConversationRow(name="e", runs=("b2",), live=None, newest_at_ms=5)

    async def test_closing_twice_is_harmless(self, backend: Backend) -> None:
        await backend.close()
        await backend.close()

    # -- what a batch is

    async def test_an_empty_batch_is_refused(self, backend: Backend) -> None:
        with pytest.raises(AdmissionError, match="at least one fact"):
            await backend.append([])

    async def test_facts_of_two_runs_are_no_batch(self, backend: Backend) -> None:
        one, two = history("r1"), history("r2")
        await backend.append(one[0])
        with pytest.raises(AdmissionError, match="facts of one run"):
            await backend.append([*one[1], *two[1]])
        with pytest.raises(AdmissionError, match="only as a batch's first"):
            await backend.append([*one[1], *one[0]])
        assert await backend.load() == list(one[0])

    async def test_a_run_is_opened_once(self, backend: Backend) -> None:
        batches = history("r1")
        await backend.append(batches[0])
        with pytest.raises(ConflictError, match="not there yet") as caught:
            await backend.append(batches[0])
        assert type(caught.value) is ConflictError
        assert await backend.load() == list(batches[0])

    async def test_a_run_that_was_not_opened_cannot_go_on(self, backend: Backend) -> None:
        batches = history("r1")
        with pytest.raises(ConflictError, match="expected a run that is there"):
            await backend.append(batches[1])
        assert (await backend.load(), await backend.runs()) == ([], [])

    async def test_appends_of_many_tasks_are_all_there_each_whole(self, backend: Backend) -> None:
        runs = [solo(f"r{at}") for at in range(12)]
        await asyncio.gather(*(backend.append(flat(batches)) for batches in runs))
        held = await backend.load()
        assert len(held) == sum(len(flat(batches)) for batches in runs)
        for batches in runs:
            run_id = batches[0][0].run_id
            assert await backend.load_run(run_id) == flat(batches)
            at = held.index(batches[0][0])
            assert held[at : at + len(flat(batches))] == flat(batches)

    async def test_facts_after_the_end_of_a_run_are_held_and_the_end_stands(self, backend: Backend) -> None:
        """A host may settle what an owner left behind."""
        *batches, end = history("r1")
        late = batches.pop()
        for batch in (*batches, end, late):
            await backend.append(batch)
        assert await backend.load() == [*flat(batches), *end, *late]
        row = await backend.run("r1")
        assert row is not None
        assert row.outcome == "completed"

    # -- reading a part

    async def test_one_run_is_read_alone(self, backend: Backend) -> None:
        one, two = history("r1"), history("r2")
        for pair in zip(one, two, strict=True):
            for batch in pair:
                await backend.append(batch)
        assert await backend.load_run("r1") == flat(one)
        assert await backend.load_run("r2") == flat(two)
        assert await backend.load_run("r9") == []

    async def test_a_conversation_is_read_run_by_run(self, backend: Backend) -> None:
        batches, other = history("r2", "r1"), solo("r3")
        for batch in batches:
            await backend.append(batch)
        await backend.append(flat(other))
        late = batches[2]  # a step of the older run, settled after the newer began
        await backend.append(late)
        older = [fact for fact in flat(batches) if fact.run_id == "r2"]
        newer = [fact for fact in flat(batches) if fact.run_id == "r1"]
        assert await backend.load_conversation("c") == [*older, *late, *newer]
        assert await backend.load_conversation("d") == []

    # -- rows

    async def test_an_empty_medium_lists_nothing(self, backend: Backend) -> None:
        assert (await backend.runs(), await backend.runs(unfinished=True), await backend.conversations()) == (
            [],
            [],
            [],
        )
        assert (await backend.run("r1"), await backend.conversation("c")) == (None, None)

    async def test_a_run_is_listed_from_its_opening_to_its_end(self, backend: Backend) -> None:
        *batches, end = history("r1")
        running = RunRow(run_id="r1", conversation="c", agent="agent", opened_at_ms=1, outcome=None, lease=None)
        for batch in batches:
            await backend.append(batch)
            assert await backend.run("r1") == running
            assert await backend.runs(unfinished=True) == [running]
        await backend.append(end)
        ended = RunRow(run_id="r1", conversation="c", agent="agent", opened_at_ms=1, outcome="completed", lease=None)
        assert (await backend.run("r1"), await backend.runs()) == (ended, [ended])
        assert await backend.runs(unfinished=True) == []

    async def test_runs_are_listed_oldest_first(self, backend: Backend) -> None:
        runs = {run: solo(run) for run in ("b", "a", "c")}
        for batches in runs.values():
            await backend.append(batches[0])
        await backend.append(flat(runs["a"][1:]))
        assert [row.run_id for row in await backend.runs()] == ["b", "a", "c"]
        assert [row.run_id for row in await backend.runs(unfinished=True)] == ["b", "c"]
        assert {row.conversation for row in await backend.runs()} == {None}

    async def test_conversations_are_listed_by_name_with_their_runs_in_order(self, backend: Backend) -> None:
        first, second = history("r2", "r1", conversation="\u00e9"), history("r3", conversation="z")
        for batch in first:
            await backend.append(batch)
        await backend.append(second[0])
        ended = ConversationRow(name="\u00e9", runs=("r2", "r1"), live=None, newest_at_ms=1)
        going = ConversationRow(name="z", runs=("r3",), live="r3", newest_at_ms=1)
        assert await backend.conversations() == [going, ended]
        assert (await backend.conversation("z"), await backend.conversation("\u00e9")) == (going, ended)
        await backend.append(flat(second[1:]))
        assert await backend.conversation("z") == ConversationRow(name="z", runs=("r3",), live=None, newest_at_ms=1)

    async def test_conversations_are_listed_by_the_beginning_of_their_names(self, backend: Backend) -> None:
        names = ["a", "a.", "a.1", "a.\u00e9", "a.\U0010ffff\U0010ffff", "a/", "b.1", "A.1", "a%1", "a_1"]
        for at, name in enumerate(names):
            await backend.append(history(f"r{at}", conversation=name)[0])
        for prefix in ("", "a", "a.", "a.1", "a%", "a_", "a.\U0010ffff", "c"):
            found = [row.name for row in await backend.conversations(prefix=prefix)]
            assert found == sorted(name for name in names if name.startswith(prefix))

    @pytest.mark.parametrize("name", ["\x00", "a\x00b", "\U0010ffff", "'; DROP TABLE runs --", " ", "", "C"])
    async def test_names_are_any_text_and_compared_exactly(self, backend: Backend, name: str) -> None:
        batches, other = history(f"r{name}", conversation=name), history("other", conversation="c")
        await backend.append(flat(batches))
        await backend.append(flat(other))
        assert await backend.load_run(f"r{name}") == flat(batches)
        assert await backend.load_conversation(name) == flat(batches)
        assert {row.name for row in await backend.conversations()} == {name, "c"}
        await backend.forget([f"r{name}"])
        assert await backend.load() == flat(other)

    # -- the head of a conversation

    async def test_a_run_opens_on_the_head_that_its_opener_knows(self, backend: Backend) -> None:
        one, two = history("r1"), history("r2")
        await backend.append(one[0], after="")
        for batch in one[1:]:
            await backend.append(batch)
        await backend.append(two[0], after="r1")
        assert await backend.conversation("c") == ConversationRow(
            name="c", runs=("r1", "r2"), live="r2", newest_at_ms=1
        )

    @pytest.mark.parametrize("after", ["", "r0", "r2"])
    async def test_a_run_on_another_head_is_refused_with_both_named(self, backend: Backend, after: str) -> None:
        """(R83)"""
        await backend.append(flat(history("r1")))
        before = await backend.load(), await backend.runs(), await backend.conversations()
        with pytest.raises(StaleHeadError) as caught:
            await backend.append(history("r2")[0], after=after)
        assert (caught.value.conversation, caught.value.expected, caught.value.actual) == ("c", after, "r1")
        assert (await backend.load(), await backend.runs(), await backend.conversations()) == before

    async def test_a_run_on_no_head_where_one_was_known_is_refused(self, backend: Backend) -> None:
        with pytest.raises(StaleHeadError, match="got none") as caught:
            await backend.append(history("r2")[0], after="r1")
        assert (caught.value.expected, caught.value.actual) == ("r1", "")
        assert (await backend.runs(), await backend.conversations()) == ([], [])

    async def test_two_runs_do_not_go_on_at_once_on_one_conversation(self, backend: Backend) -> None:
        await backend.append(history("r1")[0], after="")
        with pytest.raises(StaleHeadError, match="'r1' to have ended"):
            await backend.append(history("r2")[0], after="r1")

    async def test_of_many_who_open_on_one_head_one_wins(self, backend: Backend) -> None:
        openings = [history(f"r{at}")[0] for at in range(8)]
        outcomes = await asyncio.gather(
            *(backend.append(opening, after="") for opening in openings), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["StaleHeadError"] * 7]
        assert len(await backend.runs()) == 1

    async def test_the_head_is_what_is_left_after_forgetting(self, backend: Backend) -> None:
        batches = history("r1", "r2")
        for batch in batches:
            await backend.append(batch)
        await backend.forget(["r1", "r2"])
        assert await backend.conversations() == []
        with pytest.raises(StaleHeadError, match="got none"):
            await backend.append(history("r3")[0], after="r2")
        await backend.append(history("r4")[0], after="")

    # -- owning a run

    async def test_a_run_has_one_owner_while_its_lease_lives(self, backend: Backend) -> None:
        lease = await backend.acquire("r1", "me", seconds=10)
        assert (lease.run_id, lease.owner) == ("r1", "me")
        assert 0 < lease.seconds_left <= 10
        await self.elapse(4)
        with pytest.raises(NotOwnerError, match=r"'me' for [56]\.\d+ s more") as caught:
            await backend.acquire("r1", "you", seconds=10)
        assert caught.value.owner == "me"
        assert caught.value.seconds_left is not None
        assert 5 < caught.value.seconds_left <= 6.1

    async def test_a_lease_that_ran_out_is_anybodys_with_a_larger_token(self, backend: Backend) -> None:
        first = await backend.acquire("r1", "me", seconds=10)
        await self.elapse(10.5)
        second = await backend.acquire("r1", "you", seconds=10)
        third = await self._taken_over(backend, 10.5, "me")
        assert first.token < second.token < third.token

    async def test_an_owner_may_acquire_again_and_keeps_its_token(self, backend: Backend) -> None:
        first = await backend.acquire("r1", "me", seconds=10)
        await self.elapse(9)
        again = await backend.acquire("r1", "me", seconds=10)
        assert again.token == first.token
        await self.elapse(9)
        with pytest.raises(NotOwnerError):
            await backend.acquire("r1", "you", seconds=10)

    async def test_a_lease_that_was_given_up_is_anybodys_with_a_larger_token(self, backend: Backend) -> None:
        first = await backend.acquire("r1", "me", seconds=10)
        await backend.release(first)
        await backend.release(first)
        second = await backend.acquire("r1", "you", seconds=10)
        assert second.token > first.token
        await backend.release(first)  # which is not its lease any more
        with pytest.raises(NotOwnerError):
            await backend.acquire("r1", "me", seconds=10)

    async def test_tokens_grow_also_when_a_run_was_forgotten(self, backend: Backend) -> None:
        """So that an owner from before cannot write to a new run of the same id."""
        first = await backend.acquire("r1", "me", seconds=10)
        await backend.append(flat(history("r1")), token=first.token)
        await backend.forget(["r1"])
        second = await backend.acquire("r1", "you", seconds=10)
        assert second.token > first.token
        with pytest.raises(NotOwnerError):
            await backend.append(history("r1")[0], token=first.token)

    async def test_renewing_prolongs_and_tells_what_was_lost(self, backend: Backend) -> None:
        kept, lost, gone = [await backend.acquire(run, "me", seconds=10) for run in ("r1", "r2", "r3")]
        await self.elapse(10.5)
        await backend.acquire("r2", "you", seconds=10)
        await backend.release(gone)
        assert await backend.renew([kept, lost, gone], seconds=10) == ["r2", "r3"]
        await self.elapse(9)
        with pytest.raises(NotOwnerError):  # though it had run out, nobody had taken it over
            await backend.acquire("r1", "you", seconds=10)
        assert await backend.renew([], seconds=10) == []

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
    async def test_a_lease_lives_for_some_time(self, backend: Backend, seconds: float) -> None:
        lease = await backend.acquire("r1", "me", seconds=10)
        with pytest.raises(ValueError, match="seconds"):
            await backend.acquire("r2", "me", seconds=seconds)
        with pytest.raises(ValueError, match="seconds"):
            await backend.renew([lease], seconds=seconds)

    async def test_a_run_is_listed_with_its_owner_while_the_lease_lives(self, backend: Backend) -> None:
        lease = await backend.acquire("r1", "me", seconds=10)
        await backend.append(history("r1")[0], token=lease.token)
        await self.elapse(4)
        for row in (await backend.run("r1"), *await backend.runs(), *await backend.runs(unfinished=True)):
            assert row is not None
            assert row.lease is not None
            assert (row.lease.owner, row.lease.token, row.lease.run_id) == ("me", lease.token, "r1")
            assert 0 < row.lease.seconds_left <= 6.1
        await self.elapse(7)
        row = await backend.run("r1")
        assert row is not None
        assert row.lease is None

    async def test_only_the_owner_writes(self, backend: Backend) -> None:
        batches = iter(history("r1"))
        lease = await backend.acquire("r1", "me", seconds=10)
        await backend.append(next(batches), token=lease.token)
        refused = next(batches)
        before = await backend.load()
        await self.elapse(4)
        for token in (lease.token + 1, lease.token - 1, None):
            with pytest.raises(NotOwnerError) as caught:
                await backend.append(refused, token=token)
            assert caught.value.owner == "me"
            assert caught.value.seconds_left is not None
            assert 5 < caught.value.seconds_left <= 6.1
        await self.elapse(7)
        with pytest.raises(NotOwnerError) as caught:  # it has run out, and nobody has taken the run over
            await backend.append(refused)
        assert (caught.value.owner, caught.value.seconds_left) == ("me", 0.0)
        assert await backend.load() == before
        await backend.append(refused, token=lease.token)

    async def test_an_owner_whose_lease_ran_out_writes_until_the_run_is_taken_over(self, backend: Backend) -> None:
        one, two, three, *_ = history("r1")
        lease = await backend.acquire("r1", "me", seconds=10)
        await backend.append(one, token=lease.token)
        await self.elapse(11)
        await backend.append(two, token=lease.token)
        successor = await backend.acquire("r1", "you", seconds=10)
        with pytest.raises(NotOwnerError, match=f"expected the owner with token {successor.token}"):
            await backend.append(three, token=lease.token)
        await backend.append(three, token=successor.token)
        assert await backend.load() == [*one, *two, *three]

    async def test_a_run_without_a_lease_takes_no_token(self, backend: Backend) -> None:
        one, two, *_ = history("r1")
        with pytest.raises(NotOwnerError, match="a writer without a lease") as caught:
            await backend.append(one, token=1)
        assert (caught.value.owner, caught.value.seconds_left) == (None, None)
        await backend.append(one)
        lease = await backend.acquire("r1", "me", seconds=10)
        await backend.release(lease)
        with pytest.raises(NotOwnerError):
            await backend.append(two, token=lease.token)
        await backend.append(two)

    async def test_leases_of_runs_do_not_touch_each_other(self, backend: Backend) -> None:
        mine = await backend.acquire("r1", "me", seconds=10)
        yours = await backend.acquire("r2", "you", seconds=10)
        await backend.append(solo("r1")[0], token=mine.token)
        await backend.append(solo("r2")[0], token=yours.token)
        with pytest.raises(NotOwnerError):
            await backend.append(solo("r2")[1], token=mine.token)

    async def _taken_over(self, backend: Backend, seconds: float, owner: str) -> Lease:
        await self.elapse(seconds)
        return await backend.acquire("r1", owner, seconds=10)


class DurableBackendContract(BackendContract):
    """Besides: what outlives a handle, and what two handles on one medium see of each other."""

    def reopen(self) -> AbstractAsyncContextManager[Backend]:
        """Another handle on the medium under test."""
        raise NotImplementedError

    @pytest.fixture
    async def other(self, backend: Backend) -> AsyncIterator[Backend]:
        async with self.reopen() as other:
            yield other

    def test_it_says_that_it_is_durable(self, backend: Backend) -> None:
        assert backend.durable is True

    async def test_facts_outlive_the_handle_that_wrote_them(self, backend: Backend) -> None:
        batches = history("r1", "r2", text="\x00 \u2028 \U0010ffff")
        for batch in batches:
            await backend.append(batch)
        before = await backend.runs(), await backend.conversations()
        await backend.close()
        async with self.reopen() as later:
            assert await later.load() == flat(batches)
            assert (await later.runs(), await later.conversations()) == before

    async def test_what_one_handle_appended_another_reads_and_goes_on_with(
        self, backend: Backend, other: Backend
    ) -> None:
        batches = history("r1", "r2")
        for batch, handle in zip(batches, itertools.cycle([backend, other])):
            await handle.append(batch)
        for handle in (backend, other):
            assert await handle.load() == flat(batches)

    async def test_a_head_that_another_handle_moved_is_stale(self, backend: Backend, other: Backend) -> None:
        await backend.append(flat(history("r1")), after="")
        await other.append(flat(history("r2")), after="r1")
        with pytest.raises(StaleHeadError) as caught:
            await backend.append(history("r3")[0], after="r1")
        assert (caught.value.expected, caught.value.actual) == ("r1", "r2")

    async def test_of_two_handles_that_open_one_run_one_wins(self, backend: Backend, other: Backend) -> None:
        opening = history("r1")[0]
        outcomes = await asyncio.gather(backend.append(opening), other.append(opening), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "NoneType"]
        assert await backend.load() == list(opening)

    async def test_of_two_handles_that_want_one_run_one_owns_it(self, backend: Backend, other: Backend) -> None:
        for at in range(10):
            outcomes = await asyncio.gather(
                backend.acquire(f"r{at}", "me", seconds=10),
                other.acquire(f"r{at}", "you", seconds=10),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Lease", "NotOwnerError"]

    async def test_a_handle_that_wants_a_run_that_lives_is_told_whose_it_is_and_until_when(
        self, backend: Backend, other: Backend
    ) -> None:
        lease = await backend.acquire("r1", "me", seconds=10)
        await backend.append(history("r1")[0], token=lease.token)
        await self.elapse(4)
        with pytest.raises(NotOwnerError) as caught:
            await other.acquire("r1", "you", seconds=10)
        row = await other.run("r1")
        assert row is not None
        assert row.lease is not None
        assert (caught.value.owner, row.lease.owner) == ("me", "me")
        assert caught.value.seconds_left == pytest.approx(row.lease.seconds_left, abs=0.5)
        await backend.renew([lease], seconds=10)
        with pytest.raises(NotOwnerError) as caught:
            await other.acquire("r1", "you", seconds=10)
        assert caught.value.seconds_left == pytest.approx(10, abs=0.5)

    async def test_an_owner_that_paused_cannot_write_over_its_successor(self, backend: Backend, other: Backend) -> None:
        one, two, three, *_ = history("r1")
        paused = await backend.acquire("r1", "me", seconds=10)
        await backend.append(one, token=paused.token)
        await self.elapse(11)
        successor = await other.acquire("r1", "you", seconds=10)
        await other.append(two, token=successor.token)
        with pytest.raises(NotOwnerError):
            await backend.append(three, token=paused.token)
        assert await backend.renew([paused], seconds=10) == ["r1"]
        await backend.release(paused)
        assert await other.renew([successor], seconds=10) == []
        assert await other.load() == [*one, *two]

    async def test_what_one_handle_forgot_is_gone_for_the_other(self, backend: Backend, other: Backend) -> None:
        await backend.append(flat(history("r1")))
        assert await other.load() != []
        await backend.forget(["r1"])
        assert (await other.load(), await other.runs(), await other.conversations()) == ([], [], [])

    async def test_what_another_handle_went_on_with_is_not_forgotten(self, backend: Backend, other: Backend) -> None:
        """The conditions are those of the medium, whatever a handle believes."""
        one, two = history("r1"), history("r1", "r2")
        for batch in one:
            await backend.append(batch)
        for batch in two[len(one) :]:
            await other.append(batch, after="r1" if batch is two[len(one)] else None)
            before = await held(backend)
            with pytest.raises(ConflictError, match="got run 'r2' besides"):
                await backend.forget(["r1"])
            assert await held(other) == before
        await other.append(branched("b", "d", two), after="")
        with pytest.raises(ConflictError, match="got conversation 'd'"):
            await backend.forget(["r1", "r2"])
        await backend.forget(["r1", "r2", "b"])
        assert await other.load() == []

    async def test_nothing_goes_on_from_what_another_handle_forgot(self, backend: Backend, other: Backend) -> None:
        for batch in history("r1"):
            await other.append(batch)
        await backend.forget(["r1"])
        with pytest.raises(StaleHeadError, match="got none"):
            await other.append(history("r2")[0], after="r1")
        with pytest.raises(ConflictError, match="that its branch goes on from, got none"):
            await other.append(branched("b", "d", history("r1")), after="")
        assert (await other.load(), await other.runs()) == ([], [])

    @pytest.mark.parametrize("what", ["run", "branch"])
    async def test_of_one_who_forgets_and_one_who_goes_on_one_wins(
        self, backend: Backend, other: Backend, what: str
    ) -> None:
        for at in range(12):
            batches = history(f"r{at}", conversation=f"c{at}")
            for batch in batches:
                await backend.append(batch)
            if what == "run":
                going = other.append(history(f"s{at}", conversation=f"c{at}")[0], after=f"r{at}")
            else:
                going = other.append(branched(f"b{at}", f"d{at}", batches), after="")
            works = [backend.forget([f"r{at}"]), going]
            outcomes = await asyncio.gather(*works, return_exceptions=True)
            assert sum(outcome is None for outcome in outcomes) == 1, outcomes
            assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 1
            assert (await other.run(f"r{at}") is None) is (outcomes[0] is None)

    async def test_two_handles_that_append_at_once_lose_and_double_nothing(
        self, backend: Backend, other: Backend
    ) -> None:
        runs = {f"r{at}": solo(f"r{at}") for at in range(20)}

        async def write(handle: Backend, batches: list[tuple[Fact, ...]]) -> None:
            for batch in batches:
                await handle.append(batch)

        handles = itertools.cycle([backend, other])
        await asyncio.gather(*(write(next(handles), batches) for batches in runs.values()))
        for run, batches in runs.items():
            assert await backend.load_run(run) == flat(batches)
        assert len(await other.load()) == sum(len(flat(batches)) for batches in runs.values())
