"""Where a run is: one point at any time, with the evidence that the facts give for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.exchange import (
    Book,
    Checkpoint,
    CompletedPoint,
    ExchangeRef,
    Fact,
    ModelPoint,
    PreparedPoint,
    ReceiptMint,
    ReplyTaken,
    RunClosed,
    RunRedacted,
    SendStarted,
    SlotMoved,
    ToolClaim,
    ToolsPoint,
    Turn,
    checkpoint_in,
    checkpoint_of,
    tombstone,
)
from agentloop.messages import UserMessage
from tests.exchange.desk import Desk, asking, picture
from tests.messages.values import reply


def started() -> tuple[Desk, Turn]:
    desk = Desk()
    return desk, desk.open("r1", conversation="c")


# -- the four points


def test_a_run_that_asked_nothing_is_prepared() -> None:
    """(R132)"""
    _, turn = started()
    assert checkpoint_of(turn) == PreparedPoint(
        origin_id="origin of r1", origin_digest=turn.opened.digest, catalogue_digest="catalogue"
    )


def test_a_claimed_send_is_waited_for_with_the_exact_request() -> None:
    """(R133)"""
    desk, turn = started()
    desk.exchange(turn, asking("a", "b"))
    request = desk.book.reference(turn)
    attempt = desk.send(turn)
    assert checkpoint_of(turn) == ModelPoint(
        request=request, attempt_id=attempt, call_sequence=2, model="model", feedback=2
    )
    assert (request.exchanges, request.digest) == (1, turn.digests[1])


def test_an_attempt_that_brought_nothing_stays_the_point_until_the_next_one() -> None:
    """Its reference is still there, and it is not prepared again (R133, R142)."""
    desk, turn = started()
    attempt = desk.send(turn)
    waiting = checkpoint_of(turn)
    desk.fail(turn, attempt)
    assert checkpoint_of(turn) == waiting
    second = desk.send(turn)
    desk.add(desk.book.settle_send(turn, second, author="Ann", at_ms=1))
    point = checkpoint_of(turn)
    assert isinstance(point, ModelPoint)
    assert (point.attempt_id, point.call_sequence) == (second, 2)


def test_calls_are_counted_off_with_the_exact_executions() -> None:
    """(R134)"""
    desk, turn = started()
    desk.exchange(turn, asking("z"))
    entry = desk.take(turn, asking("a", "b", "c", "d"))

    def point(cursor: int | None, effects: list[tuple[int, str]], feedback: tuple[int, ...]) -> ToolsPoint:
        claims = [
            ToolClaim(position=at, effect_id=f"r1/1.{at}", state=state)  # type: ignore[arg-type]
            for at, state in effects
        ]
        return ToolsPoint(
            exchange=1, attempt_id=entry.attempt_id, cursor=cursor, effects=tuple(claims), feedback=feedback
        )

    assert checkpoint_of(turn) == point(0, [], ())
    desk.start(turn, 1, 0)
    assert checkpoint_of(turn) == point(0, [(0, "started")], ())
    desk.receive(turn, 1, 0)
    desk.skip(turn, 1, 1)
    desk.start(turn, 1, 2)
    assert checkpoint_of(turn) == point(2, [(0, "done"), (2, "started")], (0, 1))
    desk.add(desk.book.lose_slots(turn, at_ms=1))
    assert checkpoint_of(turn) == point(2, [(0, "done"), (2, "unknown")], (0, 1))
    desk.skip(turn, 1, 3)
    assert checkpoint_of(turn) == point(2, [(0, "done"), (2, "unknown")], (0, 1, 3))
    given_ = desk.feedback(turn, 1, 2)
    desk.add(desk.book.settle_slot(turn, 1, 2, state="failed", feedback=given_, author="recovery:pay", at_ms=1))
    assert checkpoint_of(turn) == point(None, [(0, "done"), (2, "failed")], (0, 1, 2, 3))


def test_a_final_reply_has_nothing_to_answer_until_the_end_is_stored() -> None:
    """(R135)"""
    desk, turn = started()
    entry = desk.take(turn, reply())
    assert checkpoint_of(turn) == ToolsPoint(
        exchange=0, attempt_id=entry.attempt_id, cursor=None, effects=(), feedback=()
    )
    desk.close(turn)
    assert checkpoint_of(turn) == CompletedPoint(
        outcome="completed", reason="stop", digest=turn.digests[1], attempt_id=entry.attempt_id
    )


def test_an_end_without_a_reply_has_the_digest_of_the_origin() -> None:
    """(R135)"""
    desk, turn = started()
    desk.fail(turn, desk.send(turn))
    desk.close(turn, "failed", "total_timeout")
    assert checkpoint_of(turn) == CompletedPoint(
        outcome="failed", reason="total_timeout", digest=turn.opened.digest, attempt_id=None
    )


def test_of_a_redacted_run_the_end_is_left() -> None:
    desk, turn = started()
    desk.take(turn, reply())
    desk.close(turn)
    whole = checkpoint_of(turn)
    left = Book(ReceiptMint())
    left.install((tombstone(turn, author="Ann", at_ms=9),))
    assert checkpoint_of(left.turn("r1")) == msgspec.structs.replace(whole, attempt_id=None)


# -- from a run's own facts


def test_a_run_that_continues_another_needs_only_its_own_facts() -> None:
    desk, first = started()
    desk.exchange(first, asking("a"))
    desk.take(first, reply())
    desk.close(first)
    second = desk.open("r2", UserMessage(content="more"), conversation="c")
    assert isinstance(second.opened.continues, ExchangeRef)
    desk.exchange(second, asking("b"))
    for turn in (first, second):
        own = [fact for fact in desk.facts if fact.run_id == turn.run_id]
        assert checkpoint_in(own) == checkpoint_of(turn)


def test_facts_that_do_not_fit_together_are_no_point() -> None:
    desk, turn = started()
    desk.exchange(turn, asking("a"))
    for facts in ([], desk.facts[1:], [desk.facts[0], *desk.facts[4:]]):
        with pytest.raises(LookupError):
            checkpoint_in(facts)


# -- any run


class Walk:
    """A legal run, one drawn step after another."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw: Any = data.draw
        self.desk = Desk()
        self.turn = self.desk.open()

    def step(self) -> None:
        self.draw(st.sampled_from(self.choices()))()

    def choices(self) -> list[Any]:
        desk, turn = self.desk, self.turn
        book, last, at = desk.book, turn.last, len(turn.entries) - 1
        if turn.sends:
            (attempt,) = turn.sends
            receipt = desk.receipt(turn, attempt)
            said = asking(*"abc"[: self.draw(st.integers(0, 3))]) if self.draw(st.booleans()) else reply()
            return [
                lambda: desk.add(book.intake(receipt, said, at_ms=1)),
                lambda: desk.fail(turn, attempt),
                lambda: desk.add(book.settle_send(turn, attempt, author="Ann", at_ms=1)),
            ]
        if last is None or last.complete:
            final = last is not None and not last.slots
            return [lambda: desk.close(turn)] if final else [lambda: desk.close(turn), *[lambda: desk.send(turn)] * 4]
        found: list[Any] = []
        for position, slot in enumerate(last.slots):
            found += self.moves(at, position, slot.state, slot.feedback is not None)
        return found

    def moves(self, at: int, position: int, state: str, answered: bool) -> list[Any]:
        desk, turn = self.desk, self.turn
        book, given_ = desk.book, desk.feedback(turn, at, position)
        if answered:
            return []
        if state == "open":
            return [lambda: desk.start(turn, at, position), lambda: desk.skip(turn, at, position)]
        if state == "started":
            ends = [
                lambda end=end: desk.receive(turn, at, position, state=end) for end in ("done", "failed", "unknown")
            ]
            return [*ends, lambda: desk.add(book.lose_slots(turn, at_ms=1))]
        settled = book.settle_slot(turn, at, position, state="done", feedback=given_, author="recovery:pay", at_ms=1)
        return [
            lambda: desk.start(turn, at, position),
            lambda: desk.add(settled),
            lambda: desk.add(book.allow_rerun(turn, at, position, author="recovery:pay", at_ms=1)),
        ]


def holding(facts: list[Fact]) -> list[type]:
    """The points that hold, by the facts alone; an account of its own."""
    closed = any(type(fact) in (RunClosed, RunRedacted) for fact in facts)
    sent = [fact.attempt_id for fact in facts if type(fact) is SendStarted]
    taken = [fact.attempt_id for fact in facts if type(fact) is ReplyTaken]
    holds = {
        PreparedPoint: not closed and not sent,
        ModelPoint: not closed and bool(sent) and sent[-1] not in taken,
        ToolsPoint: not closed and bool(sent) and sent[-1] in taken,
        CompletedPoint: closed,
    }
    return [kind for kind, true in holds.items() if true]


def progress(point: Checkpoint, facts: list[Fact]) -> tuple[float, int, float, int]:
    """How far a run is: model call, point, cursor, answers."""
    calls = sum(type(fact) is SendStarted for fact in facts)
    match point:
        case PreparedPoint():
            return (0, 0, 0, 0)
        case ModelPoint():
            return (calls, 1, 0, 0)
        case ToolsPoint():
            cursor = float("inf") if point.cursor is None else point.cursor
            return (calls, 2, cursor, len(point.feedback))
    return (float("inf"), 3, 0, 0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_point_holds_after_every_fact_and_it_only_moves_forward(data: st.DataObject) -> None:
    """(R132, R133, R134, R135)"""
    walk = Walk(data)
    for _ in range(data.draw(st.integers(0, 25))):
        if walk.turn.closed is not None:
            break
        walk.step()
    facts, before = walk.desk.facts, (-1.0, 0, 0.0, 0)
    for count in range(1, len(facts) + 1):
        book = Book(ReceiptMint())
        book.install(facts[:count])
        seen = picture(book)
        point = checkpoint_of(book.turn("r1"))
        assert picture(book) == seen
        assert [type(point)] == holding(facts[:count])
        assert checkpoint_in(facts[:count]) == point
        now = progress(point, facts[:count])
        assert now >= before
        before = now
        if isinstance(point, ToolsPoint):
            moves = [fact for fact in facts[:count] if type(fact) is SlotMoved and fact.exchange == point.exchange]
            assert {claim.effect_id for claim in point.effects} == {move.effect_id for move in moves} - {None}
            assert set(point.feedback) == {move.position for move in moves if move.feedback is not None}


def test_points_and_claims_are_frozen() -> None:
    claim = ToolClaim(position=0, effect_id="e", state="started")
    for kind in (PreparedPoint, ModelPoint, ToolsPoint, CompletedPoint):
        assert kind.__struct_config__.frozen
    with pytest.raises(AttributeError):
        claim.state = "done"  # type: ignore[misc]
    with pytest.raises(TypeError):
        ToolClaim(0, "e", "started")  # type: ignore[misc]
