"""When things happened: each fact tells it, and what is derived keeps what a timeline needs."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.exchange import Fact
from agentloop.messages import ToolFeedback, ToolResult
from agentloop.unsettled import unsettled_of
from tests.exchange.desk import Desk, asking

GIVEN = ToolFeedback.of("a", ToolResult.ok("x"))


def times(facts: tuple[Fact, ...]) -> list[int | None]:
    return [getattr(fact, "at_ms", None) for fact in facts]


def started(desk: Desk) -> Any:
    """A run whose first call was claimed at 30 and whose reply, claimed at 10, came at 20."""
    turn = desk.open()
    desk.add(desk.book.begin_send(desk.book.reference(turn), attempt_id="s", model="m", at_ms=10))
    desk.add(desk.book.intake(desk.receipt(turn, "s"), asking("a", "b"), at_ms=20))
    desk.add(desk.book.start_slot(turn, 0, 0, effect_id="e", at_ms=30))
    return turn


def test_a_send_that_was_replied_and_a_call_that_was_answered_tell_their_times() -> None:
    desk = Desk()
    turn = started(desk)
    entry = turn.last
    assert times(tuple(desk.facts)) == [1, 10, 20, None, 30]  # a reply has no time of its own
    assert (entry.started_at_ms, entry.ended_at_ms) == (10, 20)
    assert (entry.slots[0].started_at_ms, entry.slots[0].ended_at_ms) == (30, None)
    receipt = desk.receipt(turn, "e")
    assert times(desk.add(desk.book.receive(receipt, 0, 0, state="done", feedback=GIVEN, at_ms=40))) == [40]
    assert (entry.slots[0].started_at_ms, entry.slots[0].ended_at_ms) == (30, 40)


def test_a_call_that_never_ran_has_only_an_end() -> None:
    desk = Desk()
    turn = started(desk)
    given = desk.feedback(turn, 0, 1)
    facts = desk.add(desk.book.complete(turn, 0, 1, state="skipped", feedback=given, code="x", at_ms=50))
    slot = turn.last.slots[1]
    assert (times(facts), slot.started_at_ms, slot.ended_at_ms) == ([50], None, 50)


@pytest.mark.parametrize("abandoned", [True, False])
def test_a_send_that_failed_tells_when(abandoned: bool) -> None:
    desk = Desk()
    turn = desk.open()
    receipt = desk.receipt(turn, desk.send(turn))
    facts = desk.book.fail_send(receipt, abandoned=abandoned, code="x", may_have_been_processed=True, at_ms=60)
    assert times(facts) == [60]


def test_what_a_host_decides_tells_when() -> None:
    desk = Desk()
    turn = started(desk)
    assert times(desk.add(desk.book.lose_slots(turn, at_ms=70))) == [70]
    slot = turn.last.slots[0]
    assert (slot.started_at_ms, slot.ended_at_ms) == (30, None)
    assert times(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=80)) == [80]
    settled = desk.book.settle_slot(turn, 0, 0, state="done", feedback=GIVEN, author="Ann", at_ms=90)
    assert times(desk.add(settled)) == [90]
    assert (slot.started_at_ms, slot.ended_at_ms) == (30, 90)
    alone = Desk()
    other = alone.open()
    assert times(alone.book.settle_send(other, alone.send(other), author="Ann", at_ms=95)) == [95]


def test_of_a_call_that_runs_again_the_newest_execution_counts() -> None:
    desk = Desk()
    turn = started(desk)
    desk.add(desk.book.lose_slots(turn, at_ms=70))
    desk.add(desk.book.start_slot(turn, 0, 0, effect_id="e", at_ms=100))
    assert turn.last.slots[0].started_at_ms == 100


def test_what_is_unsettled_says_when_it_was_claimed() -> None:
    """(R134)"""
    desk = Desk()
    turn = started(desk)
    desk.add(desk.book.lose_slots(turn, at_ms=70))
    assert [(item.kind, item.at_ms) for item in unsettled_of(turn)] == [("call", 30)]
    desk = Desk()
    turn = desk.open()
    desk.send(turn)
    assert [(item.kind, item.at_ms) for item in unsettled_of(turn)] == [("send", 2)]


def test_an_origin_keeps_whether_recovery_points_were_asked_for() -> None:
    """It is no part of what makes a repeated start the same."""
    desk = Desk()
    assert not desk.open("r1").opened.checkpoint
    assert desk.open("r2", checkpoint=True).opened.checkpoint
    assert desk.opening("r2", checkpoint=False) == ()
