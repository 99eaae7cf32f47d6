"""What a host may write about effects whose process died."""

from __future__ import annotations

import msgspec
import pytest

from agentloop.errors import ConflictError, HistoryError, LimitExceeded, LostError
from agentloop.exchange import Book, Fact, RunClosed, SendEnded, SlotMoved, SlotState, Turn, restore
from agentloop.limits import FEEDBACK_BYTES
from agentloop.messages import ToolFeedback, ToolResult, Usage
from tests.exchange.desk import Desk, asking, picture, refused

FEEDBACK = ToolFeedback.of("a", ToolResult.ok("x"))


def started() -> tuple[Desk, Turn]:
    """A reply with two calls, the first of which was started."""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.start(turn, 0, 0)
    return desk, turn


def lost() -> tuple[Desk, Turn]:
    desk, turn = started()
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    return desk, turn


def test_what_was_started_and_not_answered_is_unknown_to_the_next_owner() -> None:
    """(R134)"""
    desk, turn = lost()
    first, second = turn.entries[0].slots
    assert (first.state, first.code, first.feedback) == ("unknown", "owner_ended", None)
    assert (first.effect_id, first.attempt) == ("r1/0.0", 1)
    assert second.state == "open"
    assert desk.book.lose_slots(turn, at_ms=4) == ()


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_host_says_what_became_of_an_execution(state: SlotState) -> None:
    desk, turn = lost()
    desk.add(desk.book.settle_slot(turn, 0, 0, state=state, feedback=FEEDBACK, author="Ann", at_ms=4))
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.feedback, slot.code) == (state, FEEDBACK, "settled")
    assert desk.facts[-1].author == "Ann"
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=FEEDBACK, author="Bob", at_ms=4),
        ConflictError,
    )
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Bob", at_ms=4), ConflictError)


@pytest.mark.parametrize("state", ["open", "started", "skipped", "waiting", "unknown"])
def test_nothing_else_is_an_answer(state: SlotState) -> None:
    desk, turn = lost()
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state=state, feedback=FEEDBACK, author="Ann", at_ms=4),
        ConflictError,
    )


def test_what_is_known_is_not_settled() -> None:
    """(R142)"""
    desk, turn = started()
    for position in (0, 1):
        given = desk.feedback(turn, 0, position)
        refused(
            desk,
            lambda at=position, said=given: desk.book.settle_slot(
                turn, 0, at, state="done", feedback=said, author="Ann", at_ms=4
            ),
            ConflictError,
            "expected an unknown slot",
        )
        refused(desk, lambda at=position: desk.book.allow_rerun(turn, 0, at, author="Ann", at_ms=4), ConflictError)
    for place in ((0, 2), (1, 0), (-1, 0), (0, -1)):
        refused(desk, lambda where=place: desk.book.allow_rerun(turn, *where, author="Ann", at_ms=4), LostError)


def test_an_outcome_that_was_told_to_the_model_is_not_settled_later() -> None:
    """A timeout is unknown with feedback; the model has read it (R142)."""
    desk, turn = started()
    desk.receive(turn, 0, 0, state="unknown")
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=FEEDBACK, author="Ann", at_ms=4),
        ConflictError,
    )
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4), ConflictError)


def test_the_feedback_is_that_of_the_call() -> None:
    desk, turn = lost()
    other = ToolFeedback.of("b", ToolResult.ok("x"))
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=other, author="Ann", at_ms=4),
        HistoryError,
        "orphan_tool_result",
    )


@pytest.mark.parametrize("text", ["x" * 5_000, "\x00" * 900, "\u20ac" * 1_500])
def test_a_hosts_words_are_within_the_limit_of_a_feedback_or_refused(text: str) -> None:
    """The call id and what JSON escapes count (R98)."""
    desk, turn = lost()
    said = ToolFeedback.of("a", ToolResult.ok(text))
    size = len(msgspec.json.encode(said))

    def settle(max_bytes: int) -> tuple[Fact, ...]:
        return desk.book.settle_slot(
            turn, 0, 0, state="done", feedback=said, author="Ann", max_bytes=max_bytes, at_ms=4
        )

    for allowed in (FEEDBACK_BYTES, size - 1):
        error = refused(desk, lambda most=allowed: settle(most), LimitExceeded)
        assert (error.limit, error.allowed, error.got) == ("feedback_bytes", allowed, size)
    desk.add(settle(size))
    assert turn.entries[0].slots[0].feedback == said


def test_one_more_execution_is_allowed_once_and_used_up_by_its_start() -> None:
    desk, turn = lost()
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4))
    slot = turn.entries[0].slots[0]
    assert slot.rerun
    assert desk.book.allow_rerun(turn, 0, 0, author="Bob", at_ms=4) == ()
    desk.start(turn, 0, 0)
    assert (slot.rerun, slot.attempt, slot.effect_id) == (False, 2, "r1/0.0")


def test_a_send_without_an_end_is_declared_failed_and_stays_charged() -> None:
    """(R133)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    desk.add(desk.book.settle_send(turn, attempt, author="Ann", usage=usage, at_ms=4))
    assert (turn.sends, turn.unknown_sends, turn.model_calls) == ({}, (attempt,), 1)
    assert turn.usage == usage
    refused(desk, lambda: desk.book.settle_send(turn, attempt, author="Ann", at_ms=4), ConflictError)
    with pytest.raises(ConflictError, match="not used before"):
        desk.send(turn, attempt)
    desk.send(turn)


def test_a_run_that_ended_is_not_settled() -> None:
    """(R138)"""
    desk = Desk()
    turn = desk.open()
    desk.close(turn)
    refused(
        desk, lambda: desk.book.settle_send(turn, "t", author="Ann", at_ms=4), ConflictError, "expected a running run"
    )
    refused(desk, lambda: desk.book.lose_slots(turn, at_ms=4), ConflictError)
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4), ConflictError)


# -- ended as it is

CANCELLED = ("cancelled", "cancelled", "the run was cancelled")


def restored(desk: Desk) -> None:
    """Hold that what was written is admitted again, and makes the same book."""
    book = Book(desk.mint)
    restore(book, desk.facts)
    assert picture(book) == picture(desk.book)


def test_a_call_that_nobody_will_know_of_stays_unknown_and_says_so() -> None:
    desk, turn = lost()
    desk.add(desk.book.leave_slot(turn, 0, 0, feedback=FEEDBACK, code="limit", author="Ann", at_ms=4))
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.feedback, slot.code) == ("unknown", FEEDBACK, "limit")
    for position, said in ((0, FEEDBACK), (1, desk.feedback(turn, 0, 1))):
        refused(
            desk,
            lambda at=position, given=said: desk.book.leave_slot(turn, 0, at, feedback=given, code="limit", at_ms=4),
            ConflictError,
            "expected an unknown slot to stay so",
        )
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=FEEDBACK, author="B", at_ms=4),
        ConflictError,
    )
    restored(desk)


def test_a_run_that_is_ended_as_it_is_leaves_an_answer_to_every_call() -> None:
    """(R32, R139)"""
    desk, turn = lost()
    facts = desk.add(desk.book.end_run(turn, *CANCELLED, author="Ann", at_ms=9))
    first, second = turn.entries[0].slots
    assert (first.state, first.code, first.attempt) == ("unknown", "cancelled", 1)
    assert (second.state, second.code) == ("skipped", "cancelled")
    assert [slot.feedback.text for slot in (first, second) if slot.feedback is not None] == [
        "Error: the run was cancelled; whether the effect of this call happened is unknown.",
        "This call was not run: the run was cancelled.",
    ]
    assert [fact.author for fact in facts if type(fact) is SlotMoved] == ["Ann", None]
    assert facts[-1] == RunClosed(run_id="r1", outcome="cancelled", reason="cancelled", at_ms=9)
    assert turn.entries[0].complete
    refused(desk, lambda: desk.book.end_run(turn, *CANCELLED, author="Ann", at_ms=9), ConflictError, "a running run")
    restored(desk)


def test_a_send_of_a_run_that_is_ended_as_it_is_may_have_been_processed() -> None:
    """(R133)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    ended, _ = desk.add(desk.book.end_run(turn, *CANCELLED, author="Ann", at_ms=9))
    assert ended == SendEnded(
        run_id="r1",
        attempt_id=attempt,
        outcome="abandoned",
        code="cancelled",
        may_have_been_processed=True,
        usage=None,
        author="Ann",
        at_ms=9,
    )
    assert (turn.sends, turn.unknown_sends) == ({}, (attempt,))
    restored(desk)


def test_what_nobody_knows_is_not_ended_without_an_author() -> None:
    desk, turn = lost()
    refused(
        desk, lambda: desk.book.end_run(turn, *CANCELLED, author=None, at_ms=9), ConflictError, "expected an author"
    )
    sending = Desk()
    waiting = sending.open()
    sending.send(waiting)
    refused(sending, lambda: sending.book.end_run(waiting, *CANCELLED, author=None, at_ms=9), ConflictError)


def test_a_run_of_which_all_is_known_is_ended_without_an_author() -> None:
    desk = Desk()
    turn = desk.open()
    assert [type(fact) for fact in desk.book.end_run(turn, *CANCELLED, author=None, at_ms=9)] == [RunClosed]
    desk.take(turn, asking("a", "b"))
    desk.run(turn, 0, 0)
    desk.add(desk.book.end_run(turn, *CANCELLED, author=None, at_ms=9))
    assert [slot.state for slot in turn.entries[0].slots] == ["done", "skipped"]
    restored(desk)
