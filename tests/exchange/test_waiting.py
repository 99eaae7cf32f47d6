"""Calls that wait for a host: what each decision makes of them, and that it meets no other call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.errors import ConflictError, LimitExceeded, LostError, RestoreError, StaleHeadError
from agentloop.exchange import (
    Book,
    ReceiptMint,
    SlotMoved,
    SlotState,
    ToolsPoint,
    Turn,
    call_digest,
    checkpoint_of,
    is_suspended,
    restore,
    waiting_calls,
)
from agentloop.messages import FunctionSpec, ToolFeedback, UserMessage
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import call, reply

PAY = FunctionSpec(name="pay", description="Pay.", parameters="{}")


def held(*ids: str, kind: Any = "approval", **fields: Any) -> tuple[Desk, Turn]:
    """A run whose newest reply asked for these calls, of which the first waits."""
    desk = Desk()
    turn = desk.open(**fields)
    desk.take(turn, asking(*ids))
    desk.add(desk.book.hold_slot(turn, 0, 0, kind=kind, at_ms=5))
    return desk, turn


def deciding(
    desk: Desk, turn: Turn, state: SlotState = "open", feedback: ToolFeedback | None = None, **fields: Any
) -> Any:
    """The step of a decision about the first call."""
    given: dict[str, Any] = {
        "digest": call_digest(turn, 0, 0),
        "state": state,
        "code": "said",
        "feedback": feedback,
        "author": "Ann",
        "at_ms": 6,
        "max_bytes": 4096,
        **fields,
    }
    return lambda: desk.book.decide_slot(turn, 0, 0, **given)


def test_a_call_that_waits_has_no_feedback_and_keeps_its_run_and_its_conversation() -> None:
    desk, turn = held("a", "b", conversation="c")
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.code, slot.feedback, slot.waits_since_ms) == ("waiting", "approval", None, 5)
    assert waiting_calls(turn) == (0,)
    assert not turn.entries[0].complete
    refused(desk, lambda: desk.book.close_run(turn, outcome="completed", reason=None, at_ms=9), ConflictError)
    rule = "got run 'r1', which waits for a decision: decide and resume it, or cancel it"
    refused(desk, lambda: desk.opening("r2", conversation="c"), StaleHeadError, rule)


def test_waiting_again_for_the_same_adds_nothing_and_for_another_reason_is_refused() -> None:
    desk, turn = held("a")
    assert desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=9) == ()
    refused(desk, lambda: desk.book.hold_slot(turn, 0, 0, kind="external", at_ms=9), ConflictError, "is waiting")


def test_an_approved_call_is_open_once_more_and_runs_as_any_other() -> None:
    desk, turn = held("a")
    (fact,) = desk.add(deciding(desk, turn)())
    assert (fact.state, fact.author, fact.feedback) == ("open", "Ann", None)
    refused(desk, lambda: desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=9), ConflictError, "got one said")
    effect = desk.start(turn, 0, 0)
    desk.add(desk.book.give_back(desk.receipt(turn, effect), 0, 0, at_ms=7))
    assert turn.entries[0].slots[0].decided is fact  # a claim that is given back takes no approval with it
    desk.run(turn, 0, 0)
    assert (turn.entries[0].slots[0].state, turn.tool_calls) == ("done", 1)


@pytest.mark.parametrize("state", ["skipped", "done", "failed"])
@pytest.mark.parametrize("kind", ["approval", "external"])
def test_a_denied_or_answered_call_is_closed_without_an_execution(kind: str, state: SlotState) -> None:
    desk, turn = held("a", kind=kind)
    feedback = desk.feedback(turn, 0, 0)
    desk.add(deciding(desk, turn, state, feedback)())
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.feedback, slot.effect_id, slot.attempt) == (state, feedback, None, 0)
    assert (turn.tool_calls, turn.entries[0].complete, slot.ended_at_ms) == (0, True, 6)


@pytest.mark.parametrize("state", ["open", "done"])
def test_the_same_decision_again_adds_nothing_and_another_one_is_refused(state: SlotState) -> None:
    """(R82, R83)"""
    desk, turn = held("a")
    feedback = desk.feedback(turn, 0, 0) if state == "done" else None
    desk.add(deciding(desk, turn, state, feedback)())
    for _ in range(2):
        assert deciding(desk, turn, state, feedback)() == ()
        other = deciding(desk, turn, "skipped", desk.feedback(turn, 0, 0))
        refused(desk, other, ConflictError, r"expected the decision that was made \(said by 'Ann'\)")
        refused(desk, deciding(desk, turn, state, feedback, author="Bob"), ConflictError, "by 'Ann'")
        refused(desk, deciding(desk, turn, state, feedback, code="other"), ConflictError, "by 'Ann'")
        if state == "open" and turn.closed is None:
            desk.run(turn, 0, 0)
        if turn.closed is None:
            desk.take(turn, reply())
            desk.close(turn)  # the second round is after the end


def test_a_decision_about_a_call_that_does_not_wait_is_refused() -> None:
    desk, turn = held("a", "b")
    step = deciding(desk, turn)
    desk.add(desk.book.end_run(turn, "cancelled", "cancelled", "the run was cancelled", author=None, at_ms=7))
    refused(desk, step, ConflictError, "expected a call that waits for a decision, got one that is skipped")
    other = lambda: desk.book.decide_slot(  # noqa: E731
        turn,
        0,
        1,
        digest=call_digest(turn, 0, 1),
        state="open",
        code="said",
        feedback=None,
        author="Ann",
        at_ms=6,
        max_bytes=9,
    )
    refused(desk, other, ConflictError, "got one that is skipped")
    with pytest.raises(LostError):
        desk.book.decide_slot(
            turn, 3, 0, digest="", state="open", code="x", feedback=None, author="Ann", at_ms=6, max_bytes=9
        )


def test_what_runs_elsewhere_cannot_be_opened() -> None:
    desk, turn = held("a", kind="external")
    refused(
        desk,
        deciding(desk, turn),
        ConflictError,
        r"a call that waits \(external\) cannot be said: expected it to become done, failed, skipped",
    )


def test_a_hosts_words_are_measured_and_never_cut() -> None:
    """(R98)"""
    desk, turn = held("a")
    feedback = desk.feedback(turn, 0, 0, "x" * 100)
    size = len(msgspec.json.encode(feedback))
    error = refused(desk, deciding(desk, turn, "done", feedback, max_bytes=size - 1), LimitExceeded)
    assert (error.limit, error.allowed, error.got) == ("feedback_bytes", size - 1, size)
    assert len(deciding(desk, turn, "done", feedback, max_bytes=size)()) == 1


def test_settling_a_call_that_waits_is_refused_and_says_what_to_do() -> None:
    desk, turn = held("a")
    hint = "waiting.*; a call that waits is decided about, not settled"
    feedback = desk.feedback(turn, 0, 0)
    settle = lambda: desk.book.settle_slot(turn, 0, 0, state="done", feedback=feedback, author="Ann", at_ms=4)  # noqa: E731
    refused(desk, settle, ConflictError, hint)
    refused(desk, lambda: desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4), ConflictError, hint)


# -- the digest


def digest_of(
    *, said: str = "hi", before: str = "ok", call_id: str = "c", name: str = "pay", arguments: str = "{}", **spec: Any
) -> str:
    desk = Desk()
    tools = (msgspec.structs.replace(PAY, **spec),)
    turn = desk.open("r1", UserMessage(content=said), tools=tools)
    desk.exchange(turn, asking("a"), before)
    desk.take(turn, reply(call(call_id, name, arguments), call("z", name, arguments), word="tool_calls"))
    return call_digest(turn, 1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"said": "ho"},
        {"before": "no"},
        {"call_id": "d"},
        {"name": "mail"},
        {"arguments": "{} "},
        {"description": "Pay more."},
        {"parameters": '{"type":"object"}'},
        {"name": "pa", "arguments": "y{}"},
    ],
    ids="+".join,
)
def test_a_digest_covers_what_was_said_before_the_call_and_the_tool_as_shown(change: dict[str, Any]) -> None:
    assert digest_of() == digest_of()
    assert digest_of(**change) != digest_of()


def test_a_digest_tells_apart_two_names_that_nobody_was_shown() -> None:
    assert digest_of(name="mail") != digest_of(name="male")


def test_equal_calls_of_one_reply_have_digests_of_their_own_and_a_wrong_one_changes_nothing() -> None:
    desk = Desk()
    turn = desk.open(tools=(PAY,))
    desk.take(turn, reply(call("a", "pay"), call("b", "pay"), word="tool_calls"))
    desk.add(desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=5))
    wrong = call_digest(turn, 0, 1)
    assert wrong != call_digest(turn, 0, 0)
    rule = "call 0.0 of run 'r1': expected the digest of the stored call, got another"
    refused(desk, deciding(desk, turn, digest=wrong), ConflictError, rule)


def test_a_digest_is_the_same_after_the_call_was_answered_and_in_another_book() -> None:
    desk, turn = held("a")
    before = call_digest(turn, 0, 0)
    desk.add(deciding(desk, turn)())
    desk.run(turn, 0, 0)
    book = Book(ReceiptMint())
    restore(book, desk.facts)
    assert call_digest(book.turn("r1"), 0, 0) == call_digest(turn, 0, 0) == before


# -- suspended


def test_a_run_is_suspended_when_calls_wait_and_nothing_but_decided_ones_is_left() -> None:
    desk = Desk()
    turn = desk.open()
    assert not is_suspended(turn)
    desk.take(turn, asking("a", "b", "c"))
    desk.add(desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=5))
    desk.add(desk.book.hold_slot(turn, 0, 1, kind="external", at_ms=5))
    assert not is_suspended(turn)  # the third is to be run
    desk.run(turn, 0, 2)
    assert is_suspended(turn)
    desk.add(deciding(desk, turn)())
    assert is_suspended(turn)  # the first runs when the run is resumed
    desk.start(turn, 0, 0)
    assert not is_suspended(turn)
    desk.receive(turn, 0, 0)
    assert is_suspended(turn)
    desk.skip(turn, 0, 1)
    assert not is_suspended(turn)


def test_the_point_of_a_run_says_which_calls_wait() -> None:
    desk, turn = held("a", "b")
    desk.run(turn, 0, 1)
    point = checkpoint_of(turn)
    assert type(point) is ToolsPoint
    assert (point.cursor, point.feedback, point.waiting) == (0, (1,), (0,))


# -- read again


def moved(desk: Desk, at: int, **fields: Any) -> list[Any]:
    """The facts with one of them changed."""
    return [*desk.facts[:at], msgspec.structs.replace(desk.facts[at], **fields), *desk.facts[at + 1 :]]


def test_waiting_and_deciding_are_read_again_as_they_were() -> None:
    desk, turn = held("a", "b")
    desk.add(desk.book.hold_slot(turn, 0, 1, kind="external", at_ms=5))
    desk.add(deciding(desk, turn)())
    desk.run(turn, 0, 0)
    book = Book(ReceiptMint())
    restore(book, desk.facts)
    assert picture(book) == picture(desk.book)


@pytest.mark.parametrize(
    ("back", "fields", "rule"),
    [
        (2, {"code": None}, "expected the reason for which a call waits"),
        (2, {"code": "limit"}, "expected the reason for which a call waits"),
        (2, {"code": "external"}, "expected no such decision on one for external"),
        (2, {"author": "Ann"}, "or on a call that waits"),
        (1, {"author": None}, "expected the host that decided"),
        (1, {"state": "started", "effect_id": "x", "attempt": 1}, "cannot become started"),
        (1, {"state": "unknown"}, "cannot become unknown"),
    ],
)
def test_facts_of_waiting_that_cannot_be_are_refused(back: int, fields: dict[str, Any], rule: str) -> None:
    desk, turn = held("a")
    desk.add(deciding(desk, turn)())
    with pytest.raises(RestoreError, match=rule):
        restore(Book(ReceiptMint()), moved(desk, len(desk.facts) - back, **fields))


@pytest.mark.parametrize("state", ["waiting", "open", "started"])
def test_a_call_that_waits_or_is_to_run_holds_no_feedback(state: str) -> None:
    desk, turn = held("a")
    desk.add(deciding(desk, turn)())
    desk.start(turn, 0, 0)
    at = next(at for at, fact in enumerate(desk.facts) if type(fact) is SlotMoved and fact.state == state)
    with pytest.raises(RestoreError, match=f"expected no feedback for a call that is {state}"):
        restore(Book(ReceiptMint()), moved(desk, at, feedback=desk.feedback(turn, 0, 0)))


def test_a_call_that_was_decided_about_does_not_wait_again() -> None:
    desk, turn = held("a")
    held_, decided = desk.facts[-1], deciding(desk, turn)()
    with pytest.raises(RestoreError, match="expected a call that nobody has decided about"):
        restore(Book(ReceiptMint()), [*desk.facts, *decided, held_])


# -- for a child run


def asked(*ids: str) -> tuple[Desk, Turn]:
    """A run whose newest reply asked for these calls, of which the first waits for its child run."""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking(*ids))
    desk.start(turn, 0, 0)
    desk.wait_for_child(turn, 0, 0)
    return desk, turn


def test_an_execution_that_waits_for_its_child_run_keeps_all_it_has_and_goes_on() -> None:
    desk, turn = asked("a")
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.code, slot.effect_id, slot.attempt) == ("waiting", "child", "r1/0.0", 1)
    assert (slot.waits_since_ms, turn.tool_calls, is_suspended(turn)) == (5, 1, True)
    receipt = desk.receipt(turn, "r1/0.0")
    assert desk.book.hold_for_child(receipt, 0, 0, at_ms=9) == ()
    assert desk.book.lose_slots(turn, at_ms=9) == ()  # whoever takes the run over finds it waiting
    desk.start(turn, 0, 0)
    assert (slot.state, slot.code, slot.attempt, turn.tool_calls) == ("started", None, 1, 1)
    assert not is_suspended(turn)
    refused(desk, lambda: desk.book.give_back(receipt, 0, 0, at_ms=9), ConflictError, "has waited for its child")
    desk.wait_for_child(turn, 0, 0)
    desk.start(turn, 0, 0)
    desk.receive(turn, 0, 0)
    assert (slot.state, turn.tool_calls, turn.entries[0].complete) == ("done", 1, True)
    read = Book(ReceiptMint())
    restore(read, desk.facts)
    assert picture(read) == picture(desk.book)


def test_only_the_execution_that_is_under_way_waits_for_a_child_run() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.start(turn, 0, 0)
    other, own = desk.receipt(turn, "other"), desk.receipt(turn, "r1/0.0")
    refused(desk, lambda: desk.book.hold_for_child(other, 0, 0, at_ms=5), ConflictError, "got another source")
    refused(desk, lambda: desk.book.hold_for_child(own, 0, 1, at_ms=5), ConflictError, "got another source")
    forged = ReceiptMint().receipt(invocation_id="r1/0.0", parent_id="r1")
    refused(desk, lambda: desk.book.hold_for_child(forged, 0, 0, at_ms=5), ConflictError, "of this book's own effects")
    refused(
        desk,
        lambda: desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=5),
        ConflictError,
        "got one that is started",
    )
    desk.receive(turn, 0, 0)
    refused(desk, lambda: desk.book.hold_for_child(own, 0, 0, at_ms=5), ConflictError, "got one that is done")


def test_a_call_that_waits_for_a_host_does_not_start() -> None:
    desk, turn = held("a")
    step = lambda: desk.book.start_slot(turn, 0, 0, effect_id="x", at_ms=5)  # noqa: E731
    refused(desk, step, ConflictError, "expected a call that waits for its child run, got approval")


@pytest.mark.parametrize("state", ["open", "skipped", "done", "failed"])
def test_nobody_decides_about_a_call_that_waits_for_its_child_run(state: SlotState) -> None:
    desk, turn = asked("a")
    feedback = None if state == "open" else desk.feedback(turn, 0, 0)
    rule = "expected a call that waits for a host, got one that waits for run 'r1/0.0': decide there"
    refused(desk, deciding(desk, turn, state, feedback), ConflictError, rule)
    settle = lambda: desk.book.settle_slot(  # noqa: E731
        turn, 0, 0, state="done", feedback=desk.feedback(turn, 0, 0), author="Ann", at_ms=5
    )
    refused(desk, settle, ConflictError, "it waits for run 'r1/0.0'")


def test_a_run_ends_with_a_call_that_waits_for_its_child_run_and_nobody_needs_to_say_so() -> None:
    desk, turn = asked("a", "b")
    desk.add(desk.book.end_run(turn, "cancelled", "cancelled", "the run was cancelled", author=None, at_ms=7))
    texts = [slot.feedback.text for slot in turn.entries[0].slots if slot.feedback is not None]
    assert texts == [
        "The agent that this call asked was cancelled: the run was cancelled.",
        "This call was not run: the run was cancelled.",
    ]
    assert turn.entries[0].slots[0].effect_id == "r1/0.0"
    restore(Book(ReceiptMint()), desk.facts)


def test_a_call_that_waits_for_its_child_run_is_skipped_once() -> None:
    desk, turn = asked("a")
    desk.skip(turn, 0, 0)
    given = desk.feedback(turn, 0, 0, "not run")
    again = desk.book.complete(turn, 0, 0, state="skipped", feedback=given, code="limit", at_ms=9)
    assert again == ()
    restore(Book(ReceiptMint()), desk.facts)


@pytest.mark.parametrize(
    ("back", "fields", "rule"),
    [
        (2, {"code": "approval"}, "expected a call that was started to wait for its child run"),
        (2, {"code": None}, "expected a call that was started to wait for its child run"),
        (2, {"effect_id": "other"}, "expected the execution that was started"),
        (2, {"attempt": 2}, "expected the execution that was started"),
        (2, {"author": "Ann"}, "or on a call that waits"),
        (1, {"attempt": 2}, "expected the execution that was started"),
        (1, {"effect_id": "other"}, "expected the execution that was started"),
        (1, {"author": "Ann"}, "to go on, or to be skipped"),
        (1, {"state": "open"}, "to go on, or to be skipped"),
        (1, {"state": "done", "author": "Ann"}, "to go on, or to be skipped"),
        (1, {"state": "unknown"}, "cannot become unknown"),
    ],
)
def test_facts_of_waiting_for_a_child_that_cannot_be_are_refused(back: int, fields: dict[str, Any], rule: str) -> None:
    desk, turn = asked("a")
    desk.start(turn, 0, 0)
    with pytest.raises(RestoreError, match=rule):
        restore(Book(ReceiptMint()), moved(desk, len(desk.facts) - back, **fields))


def test_an_open_call_that_is_said_to_wait_for_a_child_is_refused() -> None:
    desk, _ = held("a")
    with pytest.raises(RestoreError, match="expected the reason for which a call waits"):
        restore(Book(ReceiptMint()), moved(desk, len(desk.facts) - 1, code="child"))


def test_a_claim_that_is_said_to_be_given_back_after_its_child_waited_is_refused() -> None:
    desk, turn = asked("a")
    desk.start(turn, 0, 0)
    back = msgspec.structs.replace(desk.facts[-1], state="open")
    with pytest.raises(RestoreError, match="expected a first execution to be given back"):
        restore(Book(ReceiptMint()), [*desk.facts, back])


def test_an_execution_that_waits_for_its_child_run_takes_no_answer() -> None:
    """(R83)"""
    desk, turn = asked("a")
    receipt, given = desk.receipt(turn, "r1/0.0"), desk.feedback(turn, 0, 0)
    for state in ("done", "failed", "unknown"):
        step = lambda state=state: desk.book.receive(receipt, 0, 0, state=state, feedback=given, at_ms=6)  # noqa: E731
        refused(desk, step, ConflictError, "got one that waits for its child run")
