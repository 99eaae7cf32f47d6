"""What a book may hold: each ceiling, and how forgetting makes room."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentloop.errors import ConflictError, InputError, LimitExceeded, LostError
from agentloop.exchange import Book, BookLimits
from agentloop.messages import (
    FunctionSpec,
    ModelReply,
    Text,
    UserMessage,
)
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import reply

SPEC = FunctionSpec(name="read_note", description="Read.", parameters='{"type":"object"}')


# -- limits


def test_the_default_ceilings_are_the_documented_ones() -> None:
    """(R112)"""
    limits = BookLimits()
    assert (limits.origins, limits.exchanges) == (10_000, 10_000)
    assert (limits.total_bytes, limits.item_bytes) == (64 * 1024 * 1024, 8 * 1024 * 1024)


@pytest.mark.parametrize("value", [-1, True, 1.0, "5", None, 2**53])
@pytest.mark.parametrize("name", ["origins", "exchanges", "total_bytes", "item_bytes"])
def test_a_ceiling_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"BookLimits.{name}: expected an integer from 0 to"):
        BookLimits(**{name: value})


def filled(**limits: int) -> tuple[Desk, Any]:
    desk = Desk(**limits)
    return desk, desk.open("r1")


def reply_size(value: ModelReply) -> int:
    desk, turn = filled()
    return desk.take(turn, value).size


def limit_of(error: LimitExceeded) -> tuple[str, int, int]:
    assert str(error) == f"{error.limit}: allowed {error.allowed}, got at least {error.got}"
    return error.limit, error.allowed, error.got


def test_a_full_book_takes_no_origin_until_one_is_forgotten() -> None:
    """(R112)"""
    desk, turn = filled(origins=1)
    assert limit_of(refused(desk, lambda: desk.opening("r2"), LimitExceeded)) == ("origins", 1, 2)
    desk.close(turn)
    desk.book.forget(["r1"])
    desk.open("r2")


def test_a_full_book_takes_no_exchange() -> None:
    """(R112)"""
    desk, turn = filled(exchanges=1)
    desk.exchange(turn, asking("a"))
    attempt = desk.send(turn)
    error = refused(desk, lambda: desk.book.intake(desk.receipt(turn, attempt), reply(), at_ms=4), LimitExceeded)
    assert limit_of(error) == ("exchanges", 1, 2)


def test_the_total_holds_origins_replies_and_feedback() -> None:
    """(R112)"""
    measured = Desk()
    turn = measured.open()
    measured.exchange(turn, asking("a"), "x" * 100)
    total = measured.book.size
    assert total == turn.size == turn.origin_size + turn.entries[0].size

    desk, turn = filled(total_bytes=total)
    desk.exchange(turn, asking("a"), "x" * 100)
    assert desk.book.size == total
    error = refused(desk, lambda: desk.opening("r2"), LimitExceeded)
    assert limit_of(error)[:2] == ("total_bytes", total)

    desk, turn = filled(total_bytes=total)
    answer = total - turn.size - reply_size(asking("a"))
    taking = partial(desk.book.intake, desk.receipt(turn, desk.send(turn)), asking("a"), at_ms=4)
    error = refused(desk, lambda: taking(reserve=answer + 1), LimitExceeded)
    assert limit_of(error) == ("total_bytes", total, total + 1)
    desk.add(taking(reserve=answer))


def test_an_answer_is_never_refused_for_want_of_room_since_it_tells_what_has_happened() -> None:
    """Room for it is looked for when the reply is taken in (R102, R112)."""
    desk = Desk(total_bytes=1_000, item_bytes=1_000)
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.run(turn, 0, 0, "x" * 2_000)
    desk.skip(turn, 0, 1)
    desk.close(turn, "limit_reached", "total_bytes")
    assert desk.book.size > 2_000


def test_feedback_counts_as_it_comes_also_before_its_exchange_is_complete() -> None:
    """(R112)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    before = desk.book.size
    desk.run(turn, 0, 0, "x" * 1_000)
    assert desk.book.size > before + 1_000
    assert turn.size == desk.book.size
    assert turn.exchanges == []


def test_one_origin_and_one_exchange_have_their_own_ceiling() -> None:
    """(R112)"""
    desk = Desk(item_bytes=1_000)
    large = UserMessage(content="x" * 1_000)
    limit, allowed, got = limit_of(refused(desk, lambda: desk.opening("r1", large), LimitExceeded))
    assert (limit, allowed) == ("item_bytes", 1_000)
    assert got > 1_000
    turn = desk.open("r1")
    attempt = desk.send(turn)
    long = reply(Text(text="x" * 1_000))
    error = refused(desk, lambda: desk.book.intake(desk.receipt(turn, attempt), long, at_ms=4), LimitExceeded)
    assert limit_of(error)[0] == "item_bytes"
    desk.add(desk.book.intake(desk.receipt(turn, attempt), asking("a", "b"), at_ms=4))
    size = turn.entries[0].size
    desk.run(turn, 0, 0)
    desk.run(turn, 0, 1)
    taking = partial(desk.book.intake, desk.receipt(turn, desk.send(turn)), asking("a", "b"), at_ms=4)
    reserve = (1_000 - size) // 2  # an exchange is its reply and all its feedback
    assert limit_of(refused(desk, lambda: taking(reserve=reserve + 1), LimitExceeded))[0] == "item_bytes"
    desk.add(taking(reserve=reserve))


def test_a_store_with_more_room_leaves_the_request_limit_as_it_is() -> None:
    """(R106, R111, R113)"""
    desk = Desk(total_bytes=2**40, item_bytes=2**40)
    turn = desk.open()
    for _ in range(3):
        desk.exchange(turn, asking("a"), "x" * 1_000)  # each fits by itself
    ref = desk.book.reference(turn)
    error = refused(desk, lambda: desk.book.request(ref, max_bytes=3_000), LimitExceeded)
    assert limit_of(error)[:2] == ("request_bytes", 3_000)


# -- full texts of outputs


def kept(book: Book, size: int) -> bool:
    return book.has_room_for_output(size, "c", "r1")


def test_a_full_text_is_kept_up_to_the_ceiling_of_one_item_and_to_8_mib() -> None:
    """(R112)"""
    desk = Desk(item_bytes=1_000)
    assert (kept(desk.book, 1_000), kept(desk.book, 1_001)) == (True, False)
    desk = Desk(item_bytes=2**40, total_bytes=2**40)
    assert (kept(desk.book, 2**23), kept(desk.book, 2**23 + 1)) == (True, False)


def test_full_texts_in_memory_take_half_of_the_room_at_most_and_none_that_is_taken() -> None:
    """(R112)"""
    desk = Desk(total_bytes=10_000)
    turn = desk.open()
    desk.exchange(turn, asking("a"))
    before, sizes = desk.book.size, (turn.size, turn.request_size)
    desk.keep(turn, 0, 0, "é" * 1_500)
    assert (desk.book.size, turn.kept) == (before + 3_000, 3_000)
    assert (turn.size, turn.request_size) == sizes  # no request holds it
    assert (kept(desk.book, 2_000), kept(desk.book, 2_001)) == (True, False)
    desk.exchange(turn, asking("b"), "x" * 5_500)
    left = 10_000 - desk.book.size
    assert 0 < left < 2_000
    assert (kept(desk.book, left), kept(desk.book, left + 1)) == (True, False)
    desk.close(turn)
    desk.book.forget(["r1"])
    assert (desk.book.size, kept(desk.book, 5_000), kept(desk.book, 5_001)) == (0, True, False)


def test_full_texts_on_a_medium_take_no_room() -> None:
    desk = Desk(total_bytes=10_000, item_bytes=9_000)
    desk.book.holds_outputs = False
    turn = desk.open()
    desk.exchange(turn, asking("a", "b"))
    before = desk.book.size
    desk.keep(turn, 0, 0, "x" * 9_000)
    desk.keep(turn, 0, 1, "x" * 9_000)
    assert (desk.book.size, turn.kept) == (before, 18_000)
    assert (kept(desk.book, 9_000), kept(desk.book, 9_001)) == (True, False)
    desk.close(turn)
    desk.book.forget(["r1"])
    assert desk.book.size == 0


# -- forgetting


def test_forgetting_gives_back_all_the_room() -> None:
    """(R112)"""
    desk = Desk()
    empty = picture(desk.book)
    for run in ("r1", "r2"):
        turn = desk.open(run, conversation="c")
        desk.exchange(turn, asking("a"))
        desk.close(turn)
    desk.book.forget(["r1", "r2"])
    assert picture(desk.book) == empty
    assert desk.book.conversation("c") is None
    desk.open("r1", conversation="c")


def test_a_run_that_goes_on_is_not_forgotten() -> None:
    desk = Desk()
    desk.open("r1")
    desk.close(desk.open("r2"))
    refused(desk, lambda: desk.book.forget(["r2", "r1"]), ConflictError, "expected a run that ended")
    refused(desk, lambda: desk.book.check_forget(["r1"]), ConflictError)
    refused(desk, lambda: desk.book.forget(["r2", "r3"]), LostError, "no run 'r3' is kept")


def test_a_conversation_is_forgotten_whole() -> None:
    """(R128)"""
    desk = Desk()
    for run in ("r1", "r2"):
        turn = desk.open(run, conversation="c")
        desk.take(turn, reply())
        desk.close(turn)
    for runs in (["r1"], ["r2"]):
        refused(desk, lambda runs=runs: desk.book.forget(runs), ConflictError, "whole conversation")  # type: ignore[misc]
    desk.book.forget(["r2", "r1", "r1"])
    assert not desk.book.has_run("r1")


def test_what_is_forgotten_is_lost_and_not_made_up_again() -> None:
    """(R74)"""
    desk = Desk()
    turn = desk.open()
    ref = desk.book.reference(turn)
    desk.close(turn)
    desk.book.forget(["r1"])
    refused(desk, lambda: desk.book.request(ref, max_bytes=10_000), LostError, "no origin 'origin of r1' is kept")
    refused(desk, lambda: desk.book.turn("r1"), LostError)
