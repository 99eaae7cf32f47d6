"""Append, then install, then publish; and what happens when the medium does not do its part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from agentloop.errors import ConflictError, LostError, NotOwnerError, PersistenceError, StaleHeadError
from agentloop.exchange import Book, Fact, OriginOpened
from agentloop.persistence import MemoryBackend, Store
from tests.exchange.desk import Desk, asking, picture
from tests.messages.values import reply


class Medium(MemoryBackend):
    """A memory medium that tells of its calls and can be made to misbehave.

    ``before`` and ``after`` run around each append or forget; ``log`` has every call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.before: Callable[[], Awaitable[None] | None] = lambda: None
        self.after: Callable[[], Awaitable[None] | None] = lambda: None

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        self.log.append("append")
        await self._around(super().append(facts, token=token, after=after))

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        self.log.append("forget")
        await self._around(super().forget(run_ids, unfinished=unfinished))

    async def close(self) -> None:
        self.log.append("close")

    async def _around(self, work: Any) -> None:
        try:
            if (first := self.before()) is not None:
                await first
        except BaseException:
            work.close()
            raise
        await work
        if (last := self.after()) is not None:
            await last


def made() -> tuple[Store, Medium, Desk]:
    """A store over a new medium, and a desk that makes its steps."""
    desk, medium = Desk(), Medium()
    return Store(medium, desk.book), medium, desk


def opens(desk: Desk, run: str = "r1", **fields: Any) -> Callable[[Book], tuple[Fact, ...]]:
    return lambda book: desk.opening(run, **fields)


async def test_a_fact_is_on_the_medium_before_anyone_sees_it() -> None:
    """(R5, R90, R126)"""
    store, medium, desk = made()
    seen: list[tuple[str, bool]] = []
    medium.before = lambda: seen.append(("before", store.book.has_run("r1")))
    medium.after = lambda: seen.append(("after", store.book.has_run("r1")))
    facts = await store.commit(opens(desk), run_id="r1")
    assert seen == [("before", False), ("after", False)]
    assert store.book.has_run("r1")
    assert await medium.load() == list(facts)
    assert [type(fact) for fact in facts] == [OriginOpened]


async def test_a_step_that_only_confirms_writes_nothing() -> None:
    """(R82)"""
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    assert await store.commit(opens(desk, origin="another"), run_id="r1") == ()
    assert medium.log == ["append"]


async def test_a_refused_step_changes_nothing_and_the_store_goes_on() -> None:
    """(R83)"""
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    before = picture(store.book)
    with pytest.raises(ConflictError):
        await store.commit(opens(desk, asked="other"), run_id="r1")
    assert picture(store.book) == before
    assert (medium.log, store.fault) == (["append"], None)
    await store.commit(opens(desk, "r2"), run_id="r2")


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [OSError("disk full"), LookupError(), ValueError(), TimeoutError()])
async def test_a_medium_that_fails_stops_the_store(error: Exception, when: str) -> None:
    """Whether the batch was written or not: nothing is installed and nothing more is written (R91)."""
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    before = picture(store.book)
    setattr(medium, when, failing(error))
    with pytest.raises(PersistenceError, match="appending 1 facts ended with") as caught:
        await store.commit(opens(desk, "r2"), run_id="r2")
    assert caught.value.__cause__ is error
    assert caught.value.may_have_been_processed
    assert "disk full" not in str(caught.value)
    assert picture(store.book) == before
    assert store.fault == f"appending 1 facts ended with {type(error).__name__}"
    setattr(medium, when, lambda: None)
    for run in ("r2", "r3", "r1"):
        with pytest.raises(PersistenceError, match="reload the store"):
            await store.commit(opens(desk, run), run_id=run)
    with pytest.raises(PersistenceError, match="reload the store"):
        await store.forget(["r1"])
    assert medium.log == ["append", "append"]


@pytest.mark.parametrize("error", [ConflictError("run 'r2'", "taken"), NotOwnerError("run 'r2'", "another's")])
async def test_a_batch_that_a_medium_refuses_changes_nothing_and_the_store_goes_on(error: ConflictError) -> None:
    """(R83)"""
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    before = picture(store.book)
    medium.before = failing(error)
    with pytest.raises(ConflictError) as caught:
        await store.commit(opens(desk, "r2"), run_id="r2")
    assert caught.value is error
    assert (picture(store.book), store.fault) == (before, None)
    medium.before = lambda: None
    await store.commit(opens(desk, "r2"), run_id="r2")


async def test_a_medium_whose_append_is_not_async_stops_the_store() -> None:
    """(R91)"""

    class Plain(MemoryBackend):
        def append(self, facts: Sequence[Fact], **_: Any) -> None:  # type: ignore[override]
            return

    desk = Desk()
    store = Store(Plain(), desk.book)  # type: ignore[arg-type]
    with pytest.raises(PersistenceError, match="TypeError"):
        await store.commit(opens(desk), run_id="r1")
    assert store.fault is not None
    assert not store.book.has_run("r1")


async def test_a_medium_that_raises_before_it_awaits_stops_the_store() -> None:
    class Plain(MemoryBackend):
        def append(self, facts: Sequence[Fact], **_: Any) -> Any:
            raise OSError

    desk = Desk()
    store = Store(Plain(), desk.book)
    with pytest.raises(PersistenceError, match="OSError"):
        await store.commit(opens(desk), run_id="r1")
    assert store.fault is not None


async def test_its_own_error_of_a_medium_is_passed_on() -> None:
    store, medium, desk = made()
    error = PersistenceError("the medium says so")
    medium.before = failing(error)
    with pytest.raises(PersistenceError) as caught:
        await store.commit(opens(desk), run_id="r1")
    assert caught.value is error
    assert store.fault is not None


async def test_a_write_that_is_cancelled_stops_the_store() -> None:
    """Nobody knows whether the medium holds it (R91)."""
    store, medium, desk = made()
    writing, never = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        writing.set()
        await never.wait()

    medium.before = block
    task = asyncio.create_task(store.commit(opens(desk), run_id="r1"))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.fault == "appending 1 facts ended with CancelledError"
    assert not store.book.has_run("r1")
    with pytest.raises(PersistenceError):
        await store.commit(opens(desk), run_id="r1")


async def test_a_cancel_while_waiting_for_ones_turn_harms_nothing() -> None:
    store, medium, desk = made()
    writing, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        writing.set()
        await go.wait()

    medium.before = block
    first = asyncio.create_task(store.commit(opens(desk), run_id="r1"))
    await writing.wait()
    looked: list[Book] = []
    second = asyncio.create_task(store.commit(lambda book: looked.append(book) or (), run_id="r1"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    assert (store.fault, medium.log, looked) == (None, ["append"], [])
    assert store.book.has_run("r1")


async def test_steps_are_checked_against_what_is_installed_and_never_at_once() -> None:
    """Two starts on one conversation at the same time: one wins, the other is told (R83)."""
    store, medium, desk = made()
    running = highest = 0

    async def turn() -> None:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0)
        running -= 1

    medium.before = turn
    outcomes = await asyncio.gather(
        *(
            store.open_run(opens(desk, f"r{at}", conversation="c"), run_id=f"r{at}", conversation="c")
            for at in range(5)
        ),
        return_exceptions=True,
    )
    assert highest == 1
    assert [type(outcome) for outcome in outcomes] == [bool, *[StaleHeadError] * 4]
    assert store.book.has_run("r0")
    assert medium.log == ["append"]


async def test_runs_that_have_nothing_to_do_with_each_other_are_written_at_once() -> None:
    store, medium, desk = made()
    writing, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        writing.set()
        await go.wait()

    medium.before = block
    first = asyncio.create_task(store.open_run(opens(desk), run_id="r1", conversation=None))
    await writing.wait()
    medium.before = lambda: None
    assert await store.open_run(opens(desk, "r2", conversation="c"), run_id="r2", conversation="c")
    assert (store.book.has_run("r1"), store.book.has_run("r2")) == (False, True)
    go.set()
    assert await first


async def test_a_reply_is_installed_with_its_attempts_end_in_one_batch() -> None:
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    turn = store.book.turn("r1")
    await store.commit(
        lambda book: book.begin_send(book.reference(turn), attempt_id="a1", model="m", at_ms=1), run_id="r1"
    )
    medium.before = failing(OSError())
    with pytest.raises(PersistenceError, match="appending 2 facts"):
        await store.commit(lambda book: book.intake(desk.receipt(turn, "a1"), reply(), at_ms=4), run_id="r1")
    assert (list(turn.sends), turn.entries) == (["a1"], [])


# -- forgetting


async def closed_run(store: Store, desk: Desk, run: str = "r1") -> None:
    await store.commit(opens(desk, run), run_id=run)
    turn = store.book.turn(run)
    await store.commit(lambda book: book.close_run(turn, outcome="failed", reason="x", at_ms=1), run_id=run)


async def test_forgetting_makes_room_on_the_medium_and_in_the_book() -> None:
    """(R112)"""
    store, medium, desk = made()
    await closed_run(store, desk, "r1")
    await closed_run(store, desk, "r2")
    await store.forget(["r1"])
    assert {fact.run_id for fact in await medium.load()} == {"r2"}
    assert (store.book.has_run("r1"), store.book.has_run("r2")) == (False, True)
    await store.commit(opens(desk, "r1"), run_id="r1")


async def test_what_must_be_kept_is_dropped_nowhere() -> None:
    store, medium, desk = made()
    await closed_run(store, desk, "r1")
    await store.commit(opens(desk, "r2"), run_id="r2")
    before = picture(store.book), await medium.load()
    for runs, kind in [(["r1", "r2"], ConflictError), (["r1", "r9"], LostError)]:
        with pytest.raises(kind):
            await store.forget(runs)
    assert (picture(store.book), await medium.load()) == before
    assert "forget" not in medium.log


async def test_forgetting_waits_for_what_is_written_on_its_conversation() -> None:
    """A run is being opened on it meanwhile, and what it goes on from is kept then."""
    store, medium, desk = made()
    await store.commit(opens(desk, "r1", conversation="c"), run_id="r1")
    turn = store.book.turn("r1")
    await store.commit(lambda book: book.close_run(turn, outcome="failed", reason="x", at_ms=1), run_id="r1")
    writing, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        writing.set()
        await go.wait()

    medium.before = block
    opening = asyncio.create_task(
        store.open_run(opens(desk, "r2", conversation="c"), run_id="r2", conversation="c", fresh=True)
    )
    await writing.wait()
    forgetting = asyncio.create_task(store.forget(["r1"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert "forget" not in medium.log
    go.set()
    await opening
    with pytest.raises(ConflictError):
        await forgetting
    assert {fact.run_id for fact in await medium.load()} == {"r1", "r2"}


async def test_a_medium_that_cannot_forget_stops_the_store_and_the_book_keeps_it() -> None:
    store, medium, desk = made()
    await closed_run(store, desk)
    medium.before = failing(OSError())
    with pytest.raises(PersistenceError, match="forgetting 1 runs ended with OSError"):
        await store.forget(["r1"])
    assert store.book.has_run("r1")
    with pytest.raises(PersistenceError):
        await store.commit(opens(desk, "r2"), run_id="r2")


# -- closing


async def test_a_closed_store_writes_nothing_and_still_reads() -> None:
    store, medium, desk = made()
    await closed_run(store, desk)
    await store.close()
    await store.close()
    assert medium.log == ["append", "append", "close"]
    for refused in (partial(store.commit, opens(desk, "r2"), run_id="r2"), partial(store.forget, ["r1"])):
        with pytest.raises(PersistenceError, match="the store is closed"):
            await refused()
    assert store.book.turn("r1").closed is not None


@pytest.mark.parametrize("how", ["closed", "stopped"])
async def test_a_store_that_has_ended_is_asked_nothing_of_its_medium(how: str) -> None:
    """What the medium of a stopped store holds may not be what was told of it."""
    store, medium, desk = made()
    await closed_run(store, desk)
    if how == "closed":
        await store.close()
    else:
        medium.before = failing(OSError())
        with pytest.raises(PersistenceError):
            await store.commit(opens(desk, "r2"), run_id="r2")
    for ask in (store.runs, store.conversations, partial(store.conversation, "c"), partial(store.facts, "r1")):
        with pytest.raises(PersistenceError, match=r"the store is closed|writing stopped"):
            await ask()


async def test_closing_waits_for_the_write_that_goes_on() -> None:
    store, medium, desk = made()
    writing, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        writing.set()
        await go.wait()

    medium.before = block
    commit = asyncio.create_task(store.commit(opens(desk), run_id="r1"))
    await writing.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    assert medium.log == ["append"]
    go.set()
    await asyncio.gather(commit, closing)
    assert medium.log == ["append", "close"]
    assert store.book.has_run("r1")


async def test_a_reader_never_sees_half_an_exchange() -> None:
    """(R13)"""
    store, medium, desk = made()
    await store.commit(opens(desk), run_id="r1")
    turn = store.book.turn("r1")
    lengths: list[int] = []
    medium.after = lambda: lengths.append(len(turn.exchanges))
    await store.commit(
        lambda book: book.begin_send(book.reference(turn), attempt_id="a", model="m", at_ms=1), run_id="r1"
    )
    await store.commit(lambda book: book.intake(desk.receipt(turn, "a"), asking("x"), at_ms=4), run_id="r1")
    given = desk.feedback(turn, 0, 0)
    await store.commit(
        lambda book: book.complete(turn, 0, 0, state="skipped", feedback=given, code="x", at_ms=4), run_id="r1"
    )
    assert lengths == [0, 0, 0]
    assert len(turn.exchanges) == 1


# -- several stores on one medium


class Shared(Medium):
    """A medium that several stores use, as several processes would."""

    durable = True

    def __init__(self) -> None:
        self.now = 0.0
        MemoryBackend.__init__(self, clock=lambda: self.now)
        self.log = []
        self.before = self.after = self.reading = lambda: None

    async def load_conversation(self, name: str) -> list[Fact]:
        facts = await super().load_conversation(name)
        if (wait := self.reading()) is not None:
            await wait
        return facts


def beside(medium: Shared, owner: str) -> tuple[Store, Desk]:
    desk = Desk()
    return Store(medium, desk.book, owner=owner), desk


async def opened(store: Store, desk: Desk, run: str = "r1", conversation: str | None = None) -> bool:
    return await store.open_run(opens(desk, run, conversation=conversation), run_id=run, conversation=conversation)


async def closed(store: Store, run: str = "r1") -> None:
    turn = store.book.turn(run)
    await store.commit(lambda book: book.close_run(turn, outcome="failed", reason="x", at_ms=1), run_id=run)
    await store.let_go(run)


async def test_without_a_lease_nothing_is_written() -> None:
    """Also where the successor has come and gone, so that the medium knows of no owner (R83)."""
    medium = Shared()
    one, desk = beside(medium, "one")
    other, _ = beside(medium, "other")
    await opened(one, desk)
    medium.now = 31
    await other.take_over("r1", at_ms=4)
    await other.let_go("r1")
    assert await one.renew() == ["r1"]
    assert not one.owns("r1")
    facts = await medium.load()
    for _ in range(2):
        with pytest.raises(NotOwnerError, match="lease is gone"):
            await closed(one)
    assert (await medium.load(), one.fault) == (facts, None)


async def test_a_writer_that_is_refused_as_no_owner_stops_trying() -> None:
    medium = Shared()
    one, desk = beside(medium, "one")
    other, _ = beside(medium, "other")
    await opened(one, desk)
    medium.now = 31
    await other.take_over("r1", at_ms=4)
    with pytest.raises(NotOwnerError, match="expected the owner with token"):
        await closed(one)
    assert not one.owns("r1")
    assert await one.renew() == []


async def test_what_is_read_late_never_replaces_what_has_begun_since() -> None:
    """A reader waits for the medium while a run is opened on the same conversation."""
    medium = Shared()
    one, desk = beside(medium, "one")
    await opened(one, desk, conversation="c")
    await closed(one)
    two, other = beside(medium, "two")
    reading, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        reading.set()
        await go.wait()

    medium.reading = block
    reader = asyncio.create_task(two.turn("r1"))
    await reading.wait()
    medium.reading = lambda: None
    opener = asyncio.create_task(opened(two, other, "r2", conversation="c"))
    for _ in range(5):
        await asyncio.sleep(0)
    go.set()
    await reader
    assert await opener
    turn = two.book.turn("r2")
    assert (await two.turn("r1")).closed is not None
    assert two.book.turn("r2") is turn
    await closed(two, "r2")
    assert two.fault is None


async def test_a_conversation_that_another_store_went_on_with_is_read_again() -> None:
    medium = Shared()
    one, desk = beside(medium, "one")
    two, other = beside(medium, "two")
    await opened(one, desk, "r1", "c")
    with pytest.raises(StaleHeadError):
        await opened(two, other, "r2", "c")
    assert two._leases == {}
    await closed(one)
    await opened(two, other, "r2", "c")
    await closed(two, "r2")
    await opened(one, desk, "r3", "c")
    assert one.book.conversation("c").runs == ["r1", "r2", "r3"]  # type: ignore[union-attr]


async def test_a_run_id_of_another_conversation_is_a_conflict() -> None:
    medium = Shared()
    one, desk = beside(medium, "one")
    two, other = beside(medium, "two")
    await opened(one, desk, "r1", "c")
    for conversation in (None, "d"):
        with pytest.raises(ConflictError, match="expected the input this run was started with"):
            await opened(two, other, "r1", conversation)
    assert two._leases == {}


async def test_a_store_that_failed_gives_its_leases_up_when_it_is_closed() -> None:
    """So that the host can reload at once (R91)."""
    medium = Shared()
    one, desk = beside(medium, "one")
    await opened(one, desk)
    medium.before = failing(OSError())
    with pytest.raises(PersistenceError):
        await closed(one)
    assert await one.renew() == []
    await one.let_go("r1")
    await one.close()
    two, _ = beside(medium, "two")
    assert (await two.take_over("r1", at_ms=4)).closed is None


async def test_taking_over_what_is_not_there_owns_nothing() -> None:
    medium = Shared()
    one, _ = beside(medium, "one")
    with pytest.raises(LostError):
        await one.take_over("nobody", at_ms=4)
    assert (one._leases, medium._leases) == ({}, {})


@pytest.mark.parametrize("conversation", [None, "c"])
async def test_a_run_that_its_owner_ends_while_it_is_taken_over_is_read_as_it_ended(
    conversation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the book knew of it from before does not count (R84, R91)."""
    medium = Shared()
    one, desk = beside(medium, "one")
    await opened(one, desk, conversation=conversation)
    await one.let_go("r1")  # its state rests in the book
    two, _ = beside(medium, "two")
    await two.take_over("r1", at_ms=4)
    acquire = medium.acquire

    async def acquired_late(run_id: str, owner: str, *, seconds: float) -> Any:
        if owner == "one":
            await closed(two)  # between the look and the lease
        return await acquire(run_id, owner, seconds=seconds)

    monkeypatch.setattr(medium, "acquire", acquired_late)
    turn = await one.take_over("r1", at_ms=4)
    assert turn.closed is not None
    assert turn is one.book.turn("r1")
    assert not one.owns("r1")
    assert len(await medium.load_run("r1")) == 2
