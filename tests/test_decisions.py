"""What a host says about calls that wait, as values: their form, and the reference they are given by."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.decisions import CallRef, by_run, joined_kinds, read_decisions, stored, waiting_of
from tests.exchange.desk import Desk, asking, picture

REF = str(CallRef("r1", 0, 0, "a" * 64))


@given(run=st.text(min_size=1, max_size=128), exchange=st.integers(0, 10**8), position=st.integers(0, 10**8))
def test_a_reference_comes_apart_as_it_was_put_together(run: str, exchange: int, position: int) -> None:
    ref = CallRef(run, exchange, position, "0123456789abcdef" * 4)
    assert CallRef.read(str(ref)) == ref


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "r1",
        "r1/0.0",
        f"/0.0:{'a' * 64}",
        f"r1/0.0:{'A' * 64}",
        f"r1/00.0:{'a' * 64}",
        f"{REF}\n",
        f"r1/0.-1:{'a' * 64}",
    ],
)
def test_what_is_no_reference_is_refused(ref: str) -> None:
    with pytest.raises(
        al.InputError,
        match=r"^decisions: expected the ref of a WaitingCall, as Runtime.waiting lists them, got another text$",
    ):
        CallRef.read(ref)


@pytest.mark.parametrize("ref", [None, 5, b"r1"])
def test_what_is_no_text_is_refused_by_its_type(ref: object) -> None:
    with pytest.raises(al.InputError, match=f"got {type(ref).__name__}$"):
        CallRef.read(ref)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: al.Approve(author=""), "author: expected a string of 1 to 128 characters, got 0"),
        (lambda: al.Approve(author=5), "author: expected a string of 1 to 128 characters, got int"),
        (lambda: al.Deny(5), "Deny.reason: expected str, got int"),
        (lambda: al.Deny("\ud800"), "half a surrogate pair"),
        (lambda: al.Answer(5), "Answer.result: expected str or ToolResult, got int"),
        (lambda: al.Answer("\ud800"), "half a surrogate pair"),
        (lambda: al.Answer("x", author="x" * 129), "got 129"),
        (lambda: al.Deny("x", author=""), "author: expected"),
    ],
)
def test_a_decision_of_another_form_is_refused_when_it_is_made(make: Any, rule: str) -> None:
    with pytest.raises(al.InputError, match=rule):
        make()


def test_the_author_is_given_by_keyword_and_is_the_host_unless_said() -> None:
    assert al.Approve().author == al.Deny("no").author == al.Answer("yes").author == "host"
    with pytest.raises(TypeError):
        al.Approve("Ann")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("decisions", "rule"),
    [
        ([], "expected a mapping of refs to decisions, got list"),
        ({}, "expected at least one, got none"),
        ({REF: "yes"}, "expected Approve, Deny or Answer for call 0.0, got str"),
        ({REF: al.Approve}, "got StructMeta"),
        ({REF: al.Approve(), REF.replace("r1", "r2"): al.Approve()}, "expected calls of run 'r1', got one of run 'r2'"),
    ],
)
def test_decisions_are_a_mapping_about_one_run(decisions: Any, rule: str) -> None:
    with pytest.raises(al.InputError, match=rule):
        read_decisions(decisions)


def test_no_decision_is_enough_where_the_run_is_named_and_another_runs_is_refused() -> None:
    assert read_decisions({}, "r1") == {}
    assert list(read_decisions({REF: al.Approve()}, "r1")) == [CallRef.read(REF)]
    with pytest.raises(al.InputError, match="expected calls of run 'r2', got one of run 'r1'"):
        read_decisions({REF: al.Approve()}, "r2")


def test_all_decisions_are_stored_together_or_none() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b", "c"))
    for position, kind in enumerate(("approval", "external", "approval")):
        desk.add(desk.book.hold_slot(turn, 0, position, kind=kind, at_ms=5))  # type: ignore[arg-type]
    one, two, three = (CallRef.read(item.ref) for item in waiting_of(turn))
    assert joined_kinds(item.kind for item in waiting_of(turn)) == "approval+external"
    assert joined_kinds(["external", "approval+external", ""]) == "approval+external"
    assert joined_kinds([]) == ""
    before = picture(desk.book)
    rule = r"call 0\.1 of run 'r1': a call that waits \(external\) cannot be approved: expected it to become done, "
    with pytest.raises(al.ConflictError, match=rule):
        stored(desk.book, turn, {one: al.Approve(), two: al.Approve()}, at_ms=6, max_bytes=4096)
    wrong = msgspec.structs.replace(three, digest=one.digest)
    with pytest.raises(al.ConflictError, match="expected the digest of the stored call"):
        stored(desk.book, turn, {one: al.Approve(), wrong: al.Approve()}, at_ms=6, max_bytes=4096)
    assert picture(desk.book) == before
    said = {one: al.Deny("no money", author="Ann"), two: al.Answer(al.ToolResult.error("away")), three: al.Answer("ok")}
    facts = stored(desk.book, turn, said, at_ms=6, max_bytes=4096)
    desk.add(facts)
    assert [(slot.state, slot.code) for slot in turn.entries[0].slots] == [
        ("skipped", "denied"),
        ("failed", "answered"),
        ("done", "answered"),
    ]
    assert [(slot.feedback.status, slot.feedback.text) for slot in turn.entries[0].slots if slot.feedback] == [
        ("error", "This call was denied, and did not run. Reason: no money"),
        ("error", "away"),
        ("ok", "ok"),
    ]
    assert stored(desk.book, turn, said, at_ms=9, max_bytes=4096) == ()
    assert waiting_of(turn) == ()


def test_a_denial_without_a_reason_gives_none() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a"))
    desk.add(desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=5))
    (item,) = waiting_of(turn)
    desk.add(stored(desk.book, turn, {CallRef.read(item.ref): al.Deny()}, at_ms=6, max_bytes=4096))
    feedback = turn.entries[0].slots[0].feedback
    assert feedback is not None
    assert feedback.text == "This call was denied, and did not run."


def test_decisions_are_stored_run_by_run_the_deepest_first() -> None:
    refs = [CallRef(run_id, 0, at, "a" * 64) for run_id in ("r", "r/0.0", "r/0.0/1.0", "r/0.1") for at in (0, 1)]
    made = {ref: al.Deny(str(ref)) for ref in refs}
    runs = by_run(made)
    assert list(runs) == ["r/0.0/1.0", "r/0.0", "r/0.1", "r"]
    assert [list(said) for said in runs.values()] == [refs[4:6], refs[2:4], refs[6:], refs[:2]]
    assert {ref: said[ref] for said in runs.values() for ref in said} == made


def test_runs_below_are_taken_only_where_that_is_asked_for() -> None:
    ref = str(CallRef("r/0.0", 0, 0, "a" * 64))
    assert list(read_decisions({ref: al.Approve()}, "r", below=True)) == [CallRef.read(ref)]
    for run_id, below in (("r", False), ("r/0", True), ("r/0.0/0.0", True), ("", True)):
        with pytest.raises(al.InputError, match=r"got one of run 'r/0\.0'"):
            read_decisions({ref: al.Approve()}, run_id, below=below)
