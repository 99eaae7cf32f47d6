"""What a host may write about effects whose process died."""

from __future__ import annotations

import pytest

from agentloop.errors import ConflictError, HistoryError, LostError
from agentloop.exchange import SlotState, Turn
from agentloop.messages import ToolFeedback, ToolResult, Usage
from tests.exchange.desk import Desk, asking, refused

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
    desk.add(desk.book.lose_slots(turn))
    return desk, turn


def test_what_was_started_and_not_answered_is_unknown_to_the_next_owner() -> None:
    """(R134)"""
    desk, turn = lost()
    first, second = turn.entries[0].slots
    assert (first.state, first.code, first.feedback) == ("unknown", "owner_ended", None)
    assert (first.effect_id, first.attempt) == ("r1/0.0", 1)
    assert second.state == "open"
    assert desk.book.lose_slots(turn) == ()


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_host_says_what_became_of_an_execution(state: SlotState) -> None:
    desk, turn = lost()
    desk.add(desk.book.settle_slot(turn, 0, 0, state=state, feedback=FEEDBACK, author="Ann"))
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.feedback, slot.code) == (state, FEEDBACK, "settled")
    assert desk.facts[-1].author == "Ann"
    refused(
        desk, lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=FEEDBACK, author="Bob"), ConflictError
    )
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Bob"), ConflictError)


@pytest.mark.parametrize("state", ["open", "started", "skipped", "waiting", "unknown"])
def test_nothing_else_is_an_answer(state: SlotState) -> None:
    desk, turn = lost()
    refused(
        desk, lambda: desk.book.settle_slot(turn, 0, 0, state=state, feedback=FEEDBACK, author="Ann"), ConflictError
    )


def test_what_is_known_is_not_settled() -> None:
    """(R142)"""
    desk, turn = started()
    for position in (0, 1):
        given = desk.feedback(turn, 0, position)
        refused(
            desk,
            lambda at=position, said=given: desk.book.settle_slot(
                turn, 0, at, state="done", feedback=said, author="Ann"
            ),
            ConflictError,
            "expected an unknown slot",
        )
        refused(desk, lambda at=position: desk.book.allow_rerun(turn, 0, at, author="Ann"), ConflictError)
    for place in ((0, 2), (1, 0), (-1, 0), (0, -1)):
        refused(desk, lambda where=place: desk.book.allow_rerun(turn, *where, author="Ann"), LostError)


def test_an_outcome_that_was_told_to_the_model_is_not_settled_later() -> None:
    """A timeout is unknown with feedback; the model has read it (R142)."""
    desk, turn = started()
    desk.receive(turn, 0, 0, state="unknown")
    refused(
        desk, lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=FEEDBACK, author="Ann"), ConflictError
    )
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Ann"), ConflictError)


def test_the_feedback_is_that_of_the_call() -> None:
    desk, turn = lost()
    other = ToolFeedback.of("b", ToolResult.ok("x"))
    refused(
        desk,
        lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=other, author="Ann"),
        HistoryError,
        "orphan_tool_result",
    )


def test_one_more_execution_is_allowed_once_and_used_up_by_its_start() -> None:
    desk, turn = lost()
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann"))
    slot = turn.entries[0].slots[0]
    assert slot.rerun
    assert desk.book.allow_rerun(turn, 0, 0, author="Bob") == ()
    desk.start(turn, 0, 0)
    assert (slot.rerun, slot.attempt, slot.effect_id) == (False, 2, "r1/0.0")


def test_a_send_without_an_end_is_declared_failed_and_stays_charged() -> None:
    """(R133)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    usage = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    desk.add(desk.book.settle_send(turn, attempt, author="Ann", usage=usage))
    assert (turn.sends, turn.unknown_sends, turn.model_calls) == ({}, (attempt,), 1)
    assert turn.usage == usage
    refused(desk, lambda: desk.book.settle_send(turn, attempt, author="Ann"), ConflictError)
    with pytest.raises(ConflictError, match="not used before"):
        desk.send(turn, attempt)
    desk.send(turn)


def test_a_run_that_ended_is_not_settled() -> None:
    """(R138)"""
    desk = Desk()
    turn = desk.open()
    desk.close(turn)
    refused(desk, lambda: desk.book.settle_send(turn, "t", author="Ann"), ConflictError, "expected a running run")
    refused(desk, lambda: desk.book.lose_slots(turn), ConflictError)
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Ann"), ConflictError)
