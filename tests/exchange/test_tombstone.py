"""Branches and tombstones: what they leave, and that the chain of digests is still checked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.errors import ConflictError, HistoryError, LostError, RestoreError
from agentloop.exchange import (
    Book,
    ExchangeRef,
    Fact,
    OriginOpened,
    ReceiptMint,
    RunRedacted,
    State,
    branch,
    restore,
    tombstone,
)
from agentloop.messages import Text, UserMessage
from tests.exchange.desk import Desk, asking, picture
from tests.messages.values import reply


def talk() -> Desk:
    """Two turns of one conversation; the first has two exchanges."""
    desk = Desk()
    one = desk.open("r1", UserMessage(content="a"), conversation="c")
    desk.exchange(one, asking("x"))
    desk.take(one, reply(Text(text="1")))
    desk.close(one)
    two = desk.open("r2", UserMessage(content="b"), conversation="c")
    desk.take(two, reply(Text(text="2")))
    desk.close(two)
    return desk


def ref(desk: Desk, run: str, index: int) -> ExchangeRef:
    turn = desk.book.turn(run)
    return ExchangeRef(origin_id=turn.opened.origin_id, index=index, digest=turn.digests[index + 1])


def branched(desk: Desk, at: ExchangeRef, name: str = "d", source: str = "c") -> None:
    desk.add(branch(desk.book, run_id=f"branch {name}", conversation=name, source=source, at=at, at_ms=4))


def redacted(desk: Desk, run: str) -> list[Fact]:
    """The facts with a tombstone for one run."""
    left = tombstone(desk.book.turn(run), author="Ada", at_ms=9)
    first = next(at for at, fact in enumerate(desk.facts) if fact.run_id == run)
    kept: list[Fact] = [fact for fact in desk.facts if fact.run_id != run]
    kept.insert(first, left)
    return kept


def restored(facts: list[Fact]) -> Book:
    book = Book(ReceiptMint())
    restore(book, facts)
    return book


def refused(facts: list[Fact], rule: str) -> None:
    with pytest.raises(RestoreError, match=rule):
        restored(facts)


def replaced(facts: list[Fact], kind: type, **fields: Any) -> list[Fact]:
    """The last fact of that kind with other fields."""
    at = max(at for at, fact in enumerate(facts) if type(fact) is kind)
    return [*facts[:at], msgspec.structs.replace(facts[at], **fields), *facts[at + 1 :]]


def test_a_branch_begins_at_its_exchange_and_is_restored_equal() -> None:
    """(R86)"""
    desk = talk()
    at = ref(desk, "r1", 0)
    branched(desk, at)
    turn = desk.open("r3", UserMessage(content="other"), conversation="d")
    assert turn.opened.continues == at
    assert [type(message).__name__ for message in turn.history] == ["UserMessage", "ModelExchange", "UserMessage"]
    desk.take(turn, reply(Text(text="3")))
    assert picture(restored(desk.facts)) == picture(desk.book)


def test_the_state_it_comes_from_need_not_be_held() -> None:
    desk = talk()
    branched(desk, ref(desk, "r2", 0))
    desk.book.unload(["r1", "r2"])
    turn = desk.open("r3", conversation="d")
    assert len(turn.history) == 6


def test_a_branch_of_nothing_or_to_a_name_in_use_is_refused() -> None:
    desk = talk()
    at = ref(desk, "r1", 1)
    for wrong, kind in (
        ({"conversation": "c"}, ConflictError),
        ({"run_id": "r1"}, ConflictError),
        ({"source": "e"}, LostError),
        ({"at": msgspec.structs.replace(at, index=2)}, LostError),
        ({"at": msgspec.structs.replace(at, index=-1)}, LostError),
        ({"at": msgspec.structs.replace(at, digest="0" * 64)}, ConflictError),
    ):
        given: dict[str, Any] = {"run_id": "b", "conversation": "d", "source": "c", "at": at, "at_ms": 1, **wrong}
        with pytest.raises(kind):
            branch(desk.book, **given)
    assert desk.book.conversation("d") is None


def test_a_branch_that_comes_back_is_checked() -> None:
    """(R86, R88)"""
    desk = talk()
    branched(desk, ref(desk, "r1", 0))
    refused(desk.facts[-1:], "no exchange")
    refused([*desk.facts, desk.facts[-1]], "not used yet")


def test_what_follows_a_tombstone_is_checked_against_its_digests() -> None:
    """(R86)"""
    desk = talk()
    facts = redacted(desk, "r1")
    book = restored(facts)
    assert book.turn("r2").digests == desk.book.turn("r2").digests
    assert book.conversation("c").head == desk.book.conversation("c").head  # type: ignore[union-attr]
    assert [message.content for message in book.turn("r2").history] == ["b"]  # type: ignore[union-attr]
    wrong = replaced(facts, RunRedacted, digests=(*facts[0].digests[:-1], "0" * 64))  # type: ignore[union-attr]
    refused(wrong, "continue the newest exchange")
    refused(replaced(facts, RunRedacted, digests=()), "expected the digests")
    refused(replaced(facts, RunRedacted, digests=("x",)), "expected the digests")
    refused(replaced(facts, OriginOpened, origin_id="origin of r1"), "no other run has")
    refused([*facts, facts[0]], "not there yet")


def test_a_tombstone_keeps_the_counts_and_takes_no_room() -> None:
    desk = talk()
    before = desk.book.turn("r1")
    book = restored(redacted(desk, "r1"))
    turn = book.turn("r1")
    assert (turn.model_calls, turn.tool_calls, turn.usage) == (before.model_calls, before.tool_calls, before.usage)
    assert (turn.closed, turn.size, turn.exchanges) == (before.closed, 0, [])
    assert book.size == desk.book.size - before.size
    with pytest.raises(LostError, match="origin"):
        book.closed(desk.book.reference(before))


def test_a_run_that_goes_on_has_no_tombstone_and_a_second_one_is_the_first() -> None:
    desk = talk()
    with pytest.raises(ConflictError, match="expected a run that ended"):
        tombstone(desk.open("r3", conversation="c"), author="Ada", at_ms=9)
    book = restored(redacted(talk(), "r1"))
    left = tombstone(book.turn("r1"), author="Bob", at_ms=10)
    assert (left.author, left.redacted_at_ms) == ("Ada", 9)


def test_a_branch_off_a_redacted_exchange_still_stands() -> None:
    desk = talk()
    branched(desk, ref(desk, "r1", 0))
    desk.take(desk.open("r3", UserMessage(content="other"), conversation="d"), reply())
    book = restored(redacted(desk, "r1"))
    assert [message.content for message in book.turn("r3").history] == ["other"]  # type: ignore[union-attr]
    assert book.turn("r3").digests == desk.book.turn("r3").digests


def test_what_is_forgotten_goes_with_its_branch_marker() -> None:
    desk = talk()
    branched(desk, ref(desk, "r1", 0))
    desk.close(desk.open("r3", conversation="d"))
    with pytest.raises(ConflictError, match="whole conversation"):
        desk.book.forget(["r3"])
    assert desk.book.check_forget(["branch d", "r3"]) == {"d"}
    desk.book.forget(["branch d", "r3"])
    assert picture(desk.book) == picture(talk().book)


def test_messages_up_to_an_exchange() -> None:
    desk = talk()
    assert len(desk.book.messages(ref(desk, "r2", 0))) == 5
    assert len(desk.book.messages(ref(desk, "r1", 0))) == 2
    with pytest.raises((LostError, HistoryError)):
        State().messages(ref(desk, "r1", 0))
