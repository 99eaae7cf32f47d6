"""Facts that come back: what was written is taken, and anything else is refused by its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import ConflictError, RestoreError
from agentloop.exchange import (
    Book,
    Fact,
    OriginOpened,
    OutputKept,
    ReceiptMint,
    ReplyTaken,
    RerunAllowed,
    RunClosed,
    SendEnded,
    SendStarted,
    SlotMoved,
    restore,
)
from agentloop.messages import ToolFeedback, ToolResult, UserMessage
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import reply

replace: Callable[..., Any] = msgspec.structs.replace


def history() -> list[Fact]:
    """Two runs on a conversation, with every kind of fact a run can have."""
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    desk.fail(turn, desk.send(turn))
    entry = desk.take(turn, asking("a", "b", "x"))
    desk.start(turn, 0, 0)
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4))
    desk.run(turn, 0, 0)
    desk.start(turn, 0, 1)
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    given_ = desk.feedback(turn, 0, 1)
    desk.add(desk.book.settle_slot(turn, 0, 1, state="done", feedback=given_, author="Bob", at_ms=4))
    desk.skip(turn, 0, 2)
    desk.add(desk.book.settle_send(turn, desk.send(turn), author="Ann", at_ms=4))
    desk.take(turn, reply())
    desk.close(turn)
    again = desk.open("r2", UserMessage(content="more"), conversation="c")
    desk.exchange(again, asking("a"))
    assert entry.complete
    return desk.facts


def read(facts: list[Fact]) -> Book:
    book = Book(ReceiptMint())
    restore(book, facts)
    return book


def refusal(facts: list[Fact]) -> RestoreError:
    with pytest.raises(RestoreError) as caught:
        read(facts)
    assert caught.value.code == "bad_record"
    return caught.value


def places(kind: type) -> list[int]:
    return [at for at, fact in enumerate(history()) if type(fact) is kind]


def test_what_was_written_makes_the_same_book() -> None:
    """(R86, R89)"""
    facts = history()
    written = Book(ReceiptMint())
    written.install(facts)
    assert picture(read(facts)) == picture(written)
    assert {type(fact) for fact in facts} >= {OriginOpened, SendStarted, SendEnded, ReplyTaken, SlotMoved, RerunAllowed}


@given(st.data())
@settings(max_examples=200)
def test_two_facts_never_change_places(data: st.DataObject) -> None:
    """(R86)"""
    facts = history()
    at = data.draw(st.integers(0, len(facts) - 2))
    one, two = facts[at], facts[at + 1]
    if isinstance(one, SlotMoved) and isinstance(two, SlotMoved) and one.position != two.position:
        return  # calls of one reply do not wait for each other
    facts[at], facts[at + 1] = two, one
    error = refusal(facts)
    assert f"fact {at}" in error.where or f"fact {at + 1}" in error.where


TOLD = [at for at, fact in enumerate(history()) if type(fact) is not RerunAllowed]
"""Facts that say what happened; one that allows a second run may come twice, or be missing for an idempotent tool."""


@pytest.mark.parametrize("at", TOLD)
def test_no_fact_comes_twice(at: int) -> None:
    """(R86)"""
    facts = history()
    facts.insert(at + 1, facts[at])
    assert f"fact {at + 1}" in refusal(facts).where


@pytest.mark.parametrize("at", TOLD[:-1])
def test_no_fact_is_left_out(at: int) -> None:
    """(R86, R88)"""
    facts = history()
    del facts[at]
    refusal(facts)


CHANGES: list[tuple[type, dict[str, Any], str]] = [
    (OriginOpened, {"digest": "0" * 64}, "digest of its content"),
    (OriginOpened, {"messages": (UserMessage(content="other"),)}, "digest of its content"),
    (OriginOpened, {"messages": ()}, "messages"),
    (OriginOpened, {"brought": 1}, "expected fewer messages that were said before"),
    (OriginOpened, {"brought": -1}, "expected fewer messages that were said before"),
    (OriginOpened, {"continues": None}, "continue the newest exchange"),
    (OriginOpened, {"origin_id": "origin of r1"}, "origin id that no other run has"),
    (OriginOpened, {"run_id": "r1"}, "not there yet"),
    (SendStarted, {"call_sequence": 9}, "next number"),
    (SendStarted, {"run_id": "nobody"}, "no run 'nobody'"),
    (SendEnded, {"attempt_id": "nobody"}, "was started and has not ended"),
    (ReplyTaken, {"attempt_id": "attempt 1"}, "ended with a reply just now"),
    (ReplyTaken, {"attempt_id": "r1/0.0"}, "ended with a reply just now"),
    (ReplyTaken, {"index": 7}, "next place"),
    (ReplyTaken, {"origin_id": "origin of r1"}, "next place"),
    (SlotMoved, {"exchange": 1}, "a call of the newest reply"),
    (SlotMoved, {"exchange": -1}, "a call of the newest reply"),
    (SlotMoved, {"position": 9}, "a call of the newest reply"),
    (SlotMoved, {"origin_id": "origin of r1"}, "a call of the newest reply"),
    (SlotMoved, {"state": "waiting"}, "expected a call that was started to wait for its child run"),
    (SlotMoved, {"state": "skipped"}, "cannot become skipped"),
    (SlotMoved, {"feedback": None}, "expected feedback"),
    (SlotMoved, {"feedback": ToolFeedback.of("b", ToolResult.ok("x"))}, "feedback of this call"),
    (SlotMoved, {"effect_id": "other"}, "the execution that was started"),
    (SlotMoved, {"attempt": 2}, "the execution that was started"),
]


@pytest.mark.parametrize(("kind", "fields", "rule"), CHANGES)
def test_a_changed_fact_is_refused_by_its_rule(kind: type, fields: dict[str, Any], rule: str) -> None:
    """(R86, R137)"""
    facts = history()
    at = places(kind)[-1]
    facts[at] = replace(facts[at], **fields)
    error = refusal(facts)
    assert (f"fact {at}" in error.where, rule in error.rule) == (True, True), error


def test_a_call_that_stays_unknown_has_feedback_that_says_so() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a"))
    desk.start(turn, 0, 0)
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    assert "a call that stays unknown" in refusal([*desk.facts, desk.facts[-1]]).rule


def test_a_claim_that_was_given_back_is_read_and_a_repeated_execution_is_not_given_back() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    (given_back,) = desk.add(desk.book.give_back(desk.receipt(turn, desk.start(turn, 0, 0)), 0, 0, at_ms=4))
    desk.start(turn, 0, 0)
    assert picture(read(desk.facts)) == picture(desk.book)
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    desk.start(turn, 0, 0)
    assert "a first execution" in refusal([*desk.facts, replace(given_back, attempt=2)]).rule
    assert "the execution that was started" in refusal([*desk.facts[:5], replace(given_back, effect_id="x")]).rule


def test_an_attempt_stands_for_one_send() -> None:
    """(R86)"""
    facts = history()
    at = places(SendStarted)[1]
    facts[at] = replace(facts[at], attempt_id="attempt 1")
    assert "not used before" in refusal(facts).rule


def test_what_was_converted_is_told_with_a_claim_only() -> None:
    facts = history()
    for at in places(SlotMoved):
        changed = [*facts]
        changed[at] = replace(facts[at], converted=("$.a: string to integer",))
        if facts[at].state == "started":  # type: ignore[union-attr]
            read(changed)
        else:
            assert "with its claim only" in refusal(changed).rule


def test_a_full_text_comes_after_the_answer_that_has_its_beginning_once_and_with_its_size() -> None:
    """(R86)"""
    desk = Desk()
    turn = desk.open("r1")
    desk.take(turn, asking("a", "b", "c"))
    desk.run(turn, 0, 0)
    desk.keep(turn, 0, 0, "é" * 100)
    desk.run(turn, 0, 1)
    assert desk.book.keep_output(turn, 0, 0, text="é" * 100, at_ms=5) == ()
    desk.skip(turn, 0, 2)
    desk.take(turn, reply())
    facts = desk.facts
    assert picture(read(facts)) == picture(desk.book)
    assert turn.entries[0].slots[0].kept == turn.kept == 200
    at = next(at for at, fact in enumerate(facts) if isinstance(fact, OutputKept))
    assert read([*facts[:at], *facts[at + 1 :]]).turn("r1").kept == 0  # nothing else stands on it
    for place, rule in (
        (at - 1, "was executed and answered"),
        (at - 2, "was executed and answered"),
        (at - 3, "the reply of the attempt"),
        (at - 4, "newest reply"),
        (len(facts), "newest reply"),
    ):
        moved = [fact for fact in facts if fact is not facts[at]]
        moved.insert(place if place < at else place - 1, facts[at])
        assert rule in refusal(moved).rule
    for fields, rule in (
        ({"size": 100}, "the size of the text"),
        ({"position": 1}, "was executed and answered"),
        ({"position": 3}, "newest reply"),
        ({"exchange": 1}, "newest reply"),
        ({"origin_id": "o9"}, "newest reply"),
    ):
        assert rule in refusal([*facts[:at], replace(facts[at], **fields)]).rule
    assert "one output of a call" in refusal([*facts[: at + 1], facts[at]]).rule
    skipped = next(n for n, fact in enumerate(facts) if isinstance(fact, SlotMoved) and fact.state == "skipped")
    assert "was executed" in refusal([*facts[: skipped + 1], replace(facts[at], position=2)]).rule
    desk.close(turn)
    refused(desk, lambda: desk.book.keep_output(turn, 0, 1, text="x", at_ms=5), ConflictError, "a running run")
    assert desk.book.keep_output(turn, 0, 0, text="x", at_ms=5) == ()


@pytest.mark.parametrize(("fields", "rule"), [({"effect_id": None}, "an id"), ({"attempt": 2}, "the next number")])
def test_an_execution_has_an_id_and_a_number(fields: dict[str, Any], rule: str) -> None:
    facts = history()
    at = next(at for at, fact in enumerate(facts) if isinstance(fact, SlotMoved) and fact.state == "started")
    facts[at] = replace(facts[at], **fields)
    assert rule in refusal(facts).rule


def test_an_execution_is_of_one_call_alone() -> None:
    """(R86)"""
    facts = history()
    started = [at for at, fact in enumerate(facts) if isinstance(fact, SlotMoved) and fact.state == "started"]
    facts[started[2]] = replace(facts[started[2]], effect_id="r1/0.0")
    assert "of this call alone" in refusal(facts).rule


def test_a_request_is_of_all_exchanges_so_far() -> None:
    """(R86)"""
    facts = history()
    at = places(SendStarted)[2]
    for change in ({"exchanges": 0}, {"digest": "0" * 64}, {"origin_id": "other"}):
        changed = list(facts)
        changed[at] = replace(facts[at], request=replace(facts[at].request, **change))  # type: ignore[union-attr]
        assert "all exchanges so far" in refusal(changed).rule


def test_nothing_is_asked_after_a_final_reply() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, reply())
    sent = SendStarted(
        run_id="r1", attempt_id="t9", request=desk.book.reference(turn), call_sequence=2, model="m", at_ms=1
    )
    assert "after a final reply" in refusal([*desk.facts, sent]).rule


def test_a_run_ends_when_all_it_began_has_ended() -> None:
    desk = Desk()
    turn = desk.open()
    desk.send(turn)
    end = RunClosed(run_id="r1", outcome="failed", reason="x", at_ms=1)
    assert "every send ended" in refusal([*desk.facts, end]).rule


def test_nothing_follows_an_end() -> None:
    desk = Desk()
    turn = desk.open()
    desk.close(turn)
    sent = SendStarted(
        run_id="r1", attempt_id="t9", request=desk.book.reference(turn), call_sequence=1, model="m", at_ms=1
    )
    assert "nothing after the end" in refusal([*desk.facts, sent]).rule


def test_a_conversation_has_one_run_at_a_time() -> None:
    one, two = Desk(), Desk()
    one.open("r1", conversation="c")
    two.open("r2", conversation="c")
    assert "to have ended" in refusal([*one.facts, *two.facts]).rule


def test_a_rule_never_quotes_what_was_said() -> None:
    facts = history()
    at = places(OriginOpened)[-1]
    facts[at] = replace(facts[at], messages=(UserMessage(content="the secret"),))
    assert "secret" not in str(refusal(facts))
