"""The steps of the book: what is admitted, confirmed and refused, and that a refusal changes nothing."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.admission import canonical_text
from agentloop.errors import ConflictError, HistoryError, InputError, LostError, StaleHeadError
from agentloop.exchange import (
    Book,
    OriginOpened,
    Receipt,
    ReceiptMint,
    ReplyTaken,
    RunClosed,
    SendEnded,
    SendStarted,
    SlotMoved,
    restore,
)
from agentloop.messages import (
    FunctionSpec,
    JsonText,
    ModelOptions,
    SystemMessage,
    Text,
    ToolCall,
    Usage,
    UserMessage,
)
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import call, reply

SPEC = FunctionSpec(name="read_note", description="Read.", parameters='{"type":"object"}')


# -- origins


def test_an_origin_keeps_the_messages_the_options_and_the_visible_catalogue() -> None:
    """(R5, R70)"""
    desk = Desk()
    said = (SystemMessage(content="Be brief."), UserMessage(content="hi"))
    options = ModelOptions(temperature=0)
    turn = desk.open("r1", *said, options=options, tools=(SPEC,))
    assert (turn.opened.messages, turn.opened.options, turn.opened.tools) == (said, options, (SPEC,))
    assert turn.digests == [turn.opened.digest]
    assert (turn.entries, turn.exchanges) == ([], [])


def test_equal_content_in_two_runs_is_two_origins_with_one_digest() -> None:
    """(R71, R72)"""
    desk = Desk()
    one, two = desk.open("r1", tools=(SPEC,)), desk.open("r2", tools=(SPEC,))
    assert one.opened.origin_id != two.opened.origin_id
    assert one.opened.digest == two.opened.digest
    desk.exchange(one, asking("a"))
    assert two.exchanges == []
    assert desk.book.reference(two).exchanges == 0


def test_an_origin_says_whether_its_run_has_recovery_points() -> None:
    desk = Desk()
    assert desk.open("r1").opened.checkpoint is False
    assert desk.open("r2", checkpoint=True).opened.checkpoint is True


def test_an_origin_id_stands_for_one_run() -> None:
    """(R71)"""
    desk = Desk()
    desk.open("r1", origin="o1")
    refused(desk, lambda: desk.opening("r2", origin="o1"), ConflictError, "expected an id that no other run has")


def test_the_same_start_is_confirmed_and_another_is_refused() -> None:
    """(R82, R83)"""
    desk = Desk()
    desk.open("r1", asked="a", conversation="c")
    assert desk.opening("r1", asked="a", conversation="c", origin="a new one") == ()
    refused(desk, lambda: desk.opening("r1", asked="b", conversation="c"), ConflictError, "run 'r1'")
    refused(desk, lambda: desk.opening("r1", asked="a", conversation="d"), ConflictError, "run 'r1'")


def test_the_digest_ignores_the_key_order_of_schemas_in_canonical_text() -> None:
    """(R89)"""
    desk = Desk()
    schemas = (
        {"type": "object", "properties": {"b": {}, "a": {}}},
        {"properties": {"a": {}, "b": {}}, "type": "object"},
    )
    one, two = (
        desk.open(f"r{at}", tools=(FunctionSpec(name="t", parameters=canonical_text(schema)),))
        for at, schema in enumerate(schemas)
    )
    assert one.opened.digest == two.opened.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": (UserMessage(content="hI"),)},
        {"messages": (UserMessage(content="hi"), UserMessage(content=""))},
        {"messages": (SystemMessage(content="hi"),)},
        {"options": ModelOptions(temperature=1)},
        {"options": ModelOptions(temperature=-0.0)},
        {"options": ModelOptions(seed=10**40)},
        {"options": ModelOptions(seed=10**40 + 1)},
        {"tools": (FunctionSpec(name="read_note", description="Read.", parameters='{"type": "object"}'),)},
        {"tools": (SPEC,)},
        {"tools": (SPEC, FunctionSpec(name="b"))},
        {"tools": (FunctionSpec(name="b"), SPEC)},
    ],
    ids=repr,
)
def test_the_digest_changes_with_any_content(changed: dict[str, Any]) -> None:
    """(R89)"""
    others = [{}, {"options": ModelOptions(temperature=0)}, {"options": ModelOptions(seed=10**40 + 2)}]
    desk = Desk()
    digests = {
        desk.open(f"r{at}", *fields.pop("messages", ()), **fields).opened.digest
        for at, fields in enumerate([dict(changed), *others])
    }
    assert len(digests) == 4


def test_a_number_has_one_digest_however_it_is_held() -> None:
    desk = Desk()
    one, two = (desk.open(f"r{at}", options=ModelOptions(temperature=value)) for at, value in enumerate((1, 1.0)))
    assert one.opened.digest == two.opened.digest


def test_a_stored_catalogue_holds_text_and_nothing_that_can_be_called() -> None:
    """(R73, R74)"""
    turn = Desk().open(tools=(SPEC,))
    for name in SPEC.__struct_fields__:
        assert type(getattr(turn.opened.tools[0], name)) in (str, bool, type(None))
    ref = Desk().book  # another book knows nothing of it: an origin id opens nothing
    with pytest.raises(LostError):
        ref.turn(turn.run_id)


# -- sends


def test_a_send_is_claimed_before_it_leaves_and_one_at_a_time() -> None:
    """(R74, R75)"""
    desk = Desk()
    turn = desk.open()
    ref = desk.book.reference(turn)
    (fact,) = desk.book.begin_send(ref, attempt_id="a1", model="m", at_ms=5)
    assert fact == SendStarted(run_id="r1", attempt_id="a1", request=ref, call_sequence=1, model="m", at_ms=5)
    desk.add((fact,))
    refused(
        desk,
        lambda: desk.book.begin_send(ref, attempt_id="a2", model="m", at_ms=5),
        ConflictError,
        "no other send under way",
    )


def test_an_attempt_id_is_used_once() -> None:
    """(R74)"""
    desk = Desk()
    turn = desk.open()
    desk.fail(turn, desk.send(turn, "a1"))
    ref = desk.book.reference(turn)
    refused(desk, lambda: desk.book.begin_send(ref, attempt_id="a1", model="m", at_ms=5), ConflictError, "attempt 'a1'")


def test_an_older_prefix_may_be_read_and_not_be_sent() -> None:
    """(R79)"""
    desk = Desk()
    turn = desk.open()
    old = desk.book.reference(turn)
    desk.exchange(turn, asking("a"))
    assert desk.book.request(old, max_bytes=10_000).exchanges == ()
    refused(
        desk,
        lambda: desk.book.begin_send(old, attempt_id="a9", model="m", at_ms=5),
        ConflictError,
        "expected all 1 exchanges, got 0",
    )


def test_nothing_is_sent_while_a_slot_is_open() -> None:
    """(R13)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.run(turn, 0, 0)
    ref = desk.book.reference(turn)
    assert ref.exchanges == 0
    error = refused(
        desk, lambda: desk.book.begin_send(ref, attempt_id="a9", model="m", at_ms=5), HistoryError, "feedback"
    )
    assert (error.code, error.path) == ("missing_tool_result", "$.exchanges[0]")
    desk.run(turn, 0, 1)
    desk.send(turn)
    assert turn.model_calls == 2


def test_nothing_is_sent_after_a_final_reply() -> None:
    """(R78)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, reply())
    ref = desk.book.reference(turn)
    refused(desk, lambda: desk.book.begin_send(ref, attempt_id="a9", model="m", at_ms=5), InputError, "final reply")
    refused(desk, lambda: desk.book.request(ref, max_bytes=10_000), InputError, "final reply")


def test_a_failed_send_leaves_no_exchange_and_remembers_what_nobody_knows() -> None:
    """(R5)"""
    desk = Desk()
    turn = desk.open()
    used = Usage(input_tokens=1, output_tokens=2, total_tokens=3)
    desk.fail(turn, desk.send(turn, "lost"), processed=True, usage=used)
    desk.fail(turn, desk.send(turn, "refused"), processed=False)
    assert turn.unknown_sends == ("lost",)
    assert turn.sends == {}
    assert turn.entries == []
    assert (turn.model_calls, turn.usage) == (2, used)


def test_an_attempt_ends_once() -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    desk.fail(turn, attempt)
    refused(desk, lambda: desk.fail(turn, attempt), ConflictError, "under way")


def test_usage_is_added_up_over_the_calls_of_a_run_and_unknown_adds_nothing() -> None:
    desk = Desk()
    turn = desk.open()
    assert turn.usage is None
    desk.exchange(turn, asking("a"))
    desk.fail(turn, desk.send(turn))
    desk.exchange(turn, asking("b"))
    assert turn.usage == Usage(input_tokens=2, output_tokens=4, total_tokens=6)


# -- receipts


def test_a_receipt_that_the_mint_did_not_make_is_refused() -> None:
    """(R80)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    forged = [
        Receipt(object(), attempt, "r1"),
        ReceiptMint().receipt(invocation_id=attempt, parent_id="r1"),
        None,
        {"invocation_id": attempt, "parent_id": "r1"},
    ]
    for receipt in forged:
        refused(desk, lambda receipt=receipt: desk.book.intake(receipt, reply(), at_ms=4), ConflictError, "receipt")  # type: ignore[misc]
        refused(
            desk,
            lambda receipt=receipt: desk.book.fail_send(  # type: ignore[misc]
                receipt, abandoned=True, code="x", may_have_been_processed=True, at_ms=4
            ),
            ConflictError,
            "receipt",
        )
    desk.add(desk.book.intake(desk.receipt(turn, attempt), asking("a"), at_ms=4))
    effect = desk.start(turn, 0, 0)
    given = desk.feedback(turn, 0, 0)
    refused(
        desk,
        lambda: desk.book.receive(Receipt(object(), effect, "r1"), 0, 0, state="done", feedback=given, at_ms=4),
        ConflictError,
        "receipt",
    )


def test_a_receipt_of_another_run_or_attempt_takes_nothing_in() -> None:
    """(R80, R83)"""
    desk = Desk()
    one, two = desk.open("r1"), desk.open("r2")
    attempt = desk.send(one)
    refused(desk, lambda: desk.book.intake(desk.receipt(two, attempt), reply(), at_ms=4), ConflictError, "under way")
    refused(desk, lambda: desk.book.intake(desk.receipt(one, "other"), reply(), at_ms=4), ConflictError, "under way")
    unknown = desk.mint.receipt(invocation_id=attempt, parent_id="r3")
    refused(desk, lambda: desk.book.intake(unknown, reply(), at_ms=4), LostError)


def test_a_call_answered_without_running_needs_no_receipt_and_shows_no_run() -> None:
    """(R81)"""
    desk = Desk()
    turn = desk.open()
    entry = desk.take(turn, asking("a", "b"))
    for position, state in enumerate(("failed", "skipped")):
        given = desk.feedback(turn, 0, position)
        (fact,) = desk.add(
            desk.book.complete(turn, 0, position, state=state, feedback=given, code="bad_arguments", at_ms=4)  # type: ignore[arg-type]
        )
        assert isinstance(fact, SlotMoved)
        assert (fact.effect_id, fact.attempt, fact.code) == (None, 0, "bad_arguments")
    assert turn.tool_calls == 0
    assert entry.complete
    assert [slot.effect_id for slot in entry.slots] == [None, None]


def test_an_execution_that_was_not_claimed_cannot_answer() -> None:
    """(R80)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a"))
    given = desk.feedback(turn, 0, 0)
    refused(
        desk,
        lambda: desk.book.receive(desk.receipt(turn, "r1/0.0"), 0, 0, state="done", feedback=given, at_ms=4),
        ConflictError,
        "another source",
    )


# -- confirmation and conflict


def test_the_same_reply_of_the_same_attempt_is_confirmed_also_after_the_run_closed() -> None:
    """(R82)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    receipt = desk.receipt(turn, attempt)
    facts = desk.add(desk.book.intake(receipt, reply(), at_ms=4))
    assert [type(fact) for fact in facts] == [SendEnded, ReplyTaken]
    assert desk.book.intake(receipt, reply(), at_ms=4) == ()
    desk.close(turn)
    assert desk.book.intake(receipt, reply(), at_ms=4) == ()
    assert len(turn.entries) == 1


@pytest.mark.parametrize(
    "other",
    [
        reply(Text(text="hello!")),
        reply(word="length"),
        reply(native={"reasoning_content": "hm"}),
        reply(Text(text="hel"), Text(text="lo")),
    ],
)
def test_another_reply_of_the_same_attempt_is_refused(other: Any) -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    desk.add(desk.book.intake(desk.receipt(turn, attempt), reply(), at_ms=4))
    refused(
        desk,
        lambda: desk.book.intake(desk.receipt(turn, attempt), other, at_ms=4),
        ConflictError,
        "expected the reply that it brought before",
    )


def test_a_reply_after_its_attempt_failed_is_refused() -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    desk.fail(turn, attempt)
    refused(desk, lambda: desk.book.intake(desk.receipt(turn, attempt), reply(), at_ms=4), ConflictError, "under way")


def test_the_same_answer_of_the_same_execution_is_confirmed_and_another_refused() -> None:
    """(R82, R83)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    effect = desk.start(turn, 0, 0)
    other = desk.start(turn, 0, 1)
    receipt = desk.receipt(turn, effect)
    given, changed = desk.feedback(turn, 0, 0, "5"), desk.feedback(turn, 0, 0, "6")
    desk.add(desk.book.receive(receipt, 0, 0, state="done", feedback=given, at_ms=4))
    assert desk.book.receive(receipt, 0, 0, state="done", feedback=given, at_ms=4) == ()
    for source, state, feedback in [(effect, "done", changed), (effect, "failed", given), (other, "done", given)]:
        refused(
            desk,
            lambda source=source, state=state, feedback=feedback: desk.book.receive(  # type: ignore[misc]
                desk.receipt(turn, source), 0, 0, state=state, feedback=feedback, at_ms=4
            ),
            ConflictError,
            "call 0.0",
        )


def test_the_same_answer_without_a_run_is_confirmed_and_another_refused() -> None:
    """(R82, R83)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a"))
    desk.skip(turn, 0, 0, "no", code="limit")
    given, changed = desk.feedback(turn, 0, 0, "no"), desk.feedback(turn, 0, 0, "yes")
    assert desk.book.complete(turn, 0, 0, state="skipped", feedback=given, code="limit", at_ms=4) == ()
    for state, feedback, code in [("skipped", changed, "limit"), ("failed", given, "limit"), ("skipped", given, "x")]:
        refused(
            desk,
            lambda state=state, feedback=feedback, code=code: desk.book.complete(  # type: ignore[misc]
                turn, 0, 0, state=state, feedback=feedback, code=code, at_ms=4
            ),
            ConflictError,
            "expected an open slot",
        )


def test_an_answer_is_addressed_to_the_call_at_its_place() -> None:
    """(R5)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.start(turn, 0, 0)
    given = desk.feedback(turn, 0, 1)
    for step in (
        lambda: desk.book.receive(desk.receipt(turn, "r1/0.0"), 0, 0, state="done", feedback=given, at_ms=4),
        lambda: desk.book.complete(turn, 0, 1, state="skipped", feedback=desk.feedback(turn, 0, 0), code="x", at_ms=4),
    ):
        error = refused(desk, step, HistoryError)
        assert error.code == "orphan_tool_result"


@pytest.mark.parametrize(("exchange", "position"), [(1, 0), (0, 2), (-1, 0), (0, -1)])
def test_a_place_that_does_not_exist_is_lost(exchange: int, position: int) -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    refused(desk, lambda: desk.book.start_slot(turn, exchange, position, effect_id="e", at_ms=4), LostError, "no call")


def test_an_execution_keeps_its_id_and_no_two_share_one() -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.add(desk.book.start_slot(turn, 0, 0, effect_id="e", at_ms=4))
    refused(desk, lambda: desk.book.start_slot(turn, 0, 1, effect_id="e", at_ms=4), ConflictError, "got another's")
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    refused(desk, lambda: desk.book.start_slot(turn, 0, 0, effect_id="f", at_ms=4), ConflictError, "got another's")
    (again,) = desk.add(desk.book.start_slot(turn, 0, 0, effect_id="e", at_ms=4))
    assert isinstance(again, SlotMoved)
    assert (again.effect_id, again.attempt) == ("e", 2)


def test_a_reply_is_taken_in_with_the_claim_of_one_of_its_calls() -> None:
    """(R80)"""
    desk, apart = Desk(), Desk()
    turn, other = desk.open(), apart.open()
    receipt, made = desk.receipt(turn, desk.send(turn)), asking("a", "b")
    facts = desk.add(desk.book.intake(receipt, made, at_ms=4, start=(1, "r1/0.1")))
    apart.take(other, made)
    apart.start(other, 0, 1)
    assert desk.facts == apart.facts
    assert picture(desk.book) == picture(apart.book)
    assert [type(fact) for fact in facts] == [SendEnded, ReplyTaken, SlotMoved]
    assert desk.book.intake(receipt, made, at_ms=5, start=(1, "r1/0.1")) == ()


@pytest.mark.parametrize(("position", "effect"), [(2, "e"), (-1, "e"), (0, "attempt 1"), (0, "r1/0.0")])
def test_a_claim_with_a_reply_is_of_a_call_that_it_has_and_has_an_id_of_its_own(position: int, effect: str) -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open()
    desk.exchange(turn, asking("a"))
    receipt = desk.receipt(turn, desk.send(turn))
    refused(
        desk,
        lambda: desk.book.intake(receipt, asking("a", "b"), at_ms=4, start=(position, effect)),
        ConflictError,
        f"call 1.{position}",
    )


def test_a_claim_that_is_given_back_leaves_no_trace() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    before = picture(desk.book)
    receipt = desk.receipt(turn, desk.start(turn, 0, 0))
    desk.add(desk.book.give_back(receipt, 0, 0, at_ms=5))
    assert picture(desk.book) == before
    desk.run(turn, 0, 0)
    assert (turn.entries[0].slots[0].attempt, turn.tool_calls) == (1, 1)
    refused(desk, lambda: desk.book.give_back(receipt, 0, 0, at_ms=6), ConflictError, "started, got one that is done")


def test_only_its_own_first_execution_is_given_back_and_only_while_the_run_goes_on() -> None:
    """(R80, R81)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    own = desk.receipt(turn, desk.start(turn, 0, 0))
    other, forged = desk.receipt(turn, "r1/0.1"), Desk().receipt(turn, "r1/0.0")
    refused(desk, lambda: desk.book.give_back(other, 0, 0, at_ms=5), ConflictError, "got another source")
    refused(desk, lambda: desk.book.give_back(forged, 0, 0, at_ms=5), ConflictError, "own effects")
    desk.add(desk.book.lose_slots(turn, at_ms=5))
    refused(desk, lambda: desk.book.give_back(own, 0, 0, at_ms=5), ConflictError, "got one that is unknown")
    desk.start(turn, 0, 0)  # it may have run before
    refused(desk, lambda: desk.book.give_back(own, 0, 0, at_ms=5), ConflictError, r"started \(2\)")


def test_an_execution_that_ran_out_of_time_is_unknown_and_claimed_again_in_one_step() -> None:
    """(R80, R331)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    receipt = desk.receipt(turn, desk.start(turn, 0, 0))
    late, again = desk.add(desk.book.repeat_slot(receipt, 0, 0, at_ms=9))
    assert isinstance(late, SlotMoved)
    assert isinstance(again, SlotMoved)
    assert (late.state, late.code, late.attempt, late.feedback) == ("unknown", "timeout", 1, None)
    assert (again.state, again.code, again.attempt, again.at_ms) == ("started", None, 2, 9)
    assert late.effect_id == again.effect_id == "r1/0.0"
    slot = turn.entries[0].slots[0]
    assert (slot.state, slot.code, slot.attempt, slot.started_at_ms, turn.tool_calls) == ("started", None, 2, 9, 2)
    desk.receive(turn, 0, 0)
    assert picture(read_again(desk)) == picture(desk.book)


def test_only_who_claimed_a_slot_claims_it_again_and_only_while_it_is_under_way() -> None:
    """(R80)"""
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    own = desk.receipt(turn, desk.start(turn, 0, 0))
    other, forged = desk.receipt(turn, "r1/0.1"), Desk().receipt(turn, "r1/0.0")
    refused(desk, lambda: desk.book.repeat_slot(other, 0, 0, at_ms=5), ConflictError, "got another source")
    refused(desk, lambda: desk.book.repeat_slot(forged, 0, 0, at_ms=5), ConflictError, "own effects")
    refused(desk, lambda: desk.book.repeat_slot(other, 0, 1, at_ms=5), ConflictError, "got another source")
    desk.receive(turn, 0, 0)
    refused(desk, lambda: desk.book.repeat_slot(own, 0, 0, at_ms=5), ConflictError, "got one that is done")
    desk.run(turn, 0, 1)
    desk.close(turn)
    refused(desk, lambda: desk.book.repeat_slot(own, 0, 0, at_ms=5), ConflictError, "expected a running run")


def read_again(desk: Desk) -> Book:
    """Another book, of the same facts."""
    book = Book(ReceiptMint())
    restore(book, desk.facts)
    return book


def test_a_slot_whose_outcome_is_unknown_with_feedback_is_not_run_again() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, asking("a", "b"))
    desk.start(turn, 0, 0)
    desk.receive(turn, 0, 0, "nobody knows", state="unknown")
    refused(
        desk, lambda: desk.book.start_slot(turn, 0, 0, effect_id="r1/0.0", at_ms=4), ConflictError, "without feedback"
    )


def test_slots_are_keyed_by_place_so_call_ids_may_repeat_over_the_exchanges() -> None:
    """The same id in two replies: each keeps its own answer (R5)."""
    desk = Desk()
    turn = desk.open()
    first, second = (
        reply(ToolCall(id="list_dir:0", name="list_dir", arguments=JsonText(text=text)), word="tool_calls")
        for text in ('{"path":"."}', '{"path":"/"}')
    )
    desk.exchange(turn, first, "a")
    desk.exchange(turn, second, "b")
    request = desk.book.request(desk.book.reference(turn), max_bytes=10_000)
    assert [(e.reply.calls[0].arguments.text, e.feedback[0].text) for e in request.exchanges] == [
        ('{"path":"."}', "a"),
        ('{"path":"/"}', "b"),
    ]


# -- the end of a run


def test_a_run_closes_once_every_send_and_slot_has_its_end() -> None:
    """(R126)"""
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    closing = partial(desk.book.close_run, turn, outcome="completed", reason="stop", at_ms=9)
    refused(desk, closing, ConflictError, "every send ended")
    desk.add(desk.book.intake(desk.receipt(turn, attempt), asking("a"), at_ms=4))
    refused(desk, closing, ConflictError, "every slot answered")
    desk.run(turn, 0, 0)
    assert desk.add(closing()) == (RunClosed(run_id="r1", outcome="completed", reason="stop", at_ms=9),)
    assert closing() == ()
    refused(
        desk, lambda: desk.book.close_run(turn, outcome="failed", reason="x", at_ms=9), ConflictError, "that completed"
    )


def test_a_closed_run_takes_no_further_step() -> None:
    """(R74)"""
    desk = Desk()
    turn = desk.open()
    desk.exchange(turn, asking("a"))
    desk.close(turn)
    ref = desk.book.reference(turn)
    given = desk.feedback(turn, 0, 0, "other")
    for step in (
        lambda: desk.book.begin_send(ref, attempt_id="x", model="m", at_ms=1),
        lambda: desk.book.start_slot(turn, 0, 0, effect_id="x", at_ms=4),
        lambda: desk.book.complete(turn, 0, 0, state="skipped", feedback=given, code="x", at_ms=4),
    ):
        refused(desk, step, ConflictError, "expected a running run, got one that completed")


# -- conversations


def test_a_second_run_on_a_conversation_is_refused_while_the_first_goes_on() -> None:
    """Both heads are named, and the loser's history is not braided in (R83)."""
    desk = Desk()
    first = desk.open("r1", conversation="c")
    desk.exchange(first, asking("a"))
    desk.close(first)
    head = first.digests[-1]
    live = desk.open("r2", conversation="c")
    error = refused(desk, lambda: desk.opening("r3", conversation="c"), StaleHeadError, "got run 'r2'")
    assert (error.code, error.conversation, error.expected, error.actual) == ("stale_head", "c", head, live.digests[-1])
    copy: StaleHeadError = pickle.loads(pickle.dumps(error))
    assert (copy.expected, copy.actual, str(copy)) == (error.expected, error.actual, str(error))
    desk.opening("r3", conversation="d")


def test_a_reply_is_refused_when_the_conversation_has_moved_on() -> None:
    """(R83)"""
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    attempt = desk.send(turn)
    moved = Desk()
    other = moved.open("r9", conversation="c", origin="elsewhere")
    moved.take(other, reply())
    moved.close(other)
    desk.add(tuple(moved.facts))  # another process wrote to the same medium
    error = refused(desk, lambda: desk.book.intake(desk.receipt(turn, attempt), reply(), at_ms=4), StaleHeadError)
    assert (error.expected, error.actual) == ("", other.digests[-1])


def test_a_turn_continues_the_newest_exchange_by_reference() -> None:
    """(R70, R74)"""
    desk = Desk()
    first = desk.open("r1", conversation="c")
    assert first.opened.continues is None
    desk.exchange(first, asking("a"))
    desk.take(first, reply())
    desk.close(first)
    second = desk.open("r2", conversation="c")
    continues = second.opened.continues
    assert continues is not None
    assert (continues.origin_id, continues.index, continues.digest) == ("origin of r1", 1, first.digests[2])
    alone = desk.open("r3")
    assert alone.opened.digest != second.opened.digest  # the chain is part of what an origin is


@given(at=st.sampled_from(["first reply", "feedback", "user"]))
def test_the_chain_covers_everything_that_was_said_before(at: str) -> None:
    """(R89)"""
    digests = set()
    for changed in (False, True):
        desk = Desk()
        first = desk.open("r1", UserMessage(content="b" if changed and at == "user" else "a"), conversation="c")
        desk.exchange(
            first, asking("b" if changed and at == "first reply" else "a"), "b" if changed and at == "feedback" else "a"
        )
        desk.take(first, reply())
        desk.close(first)
        second = desk.open("r2", conversation="c")
        digests.add(second.opened.digest)
    assert len(digests) == 2


# -- five facts


def test_reply_answer_history_and_end_are_facts_of_their_own() -> None:
    """A preview is none of them: it is an event, and the book takes no event (R126, R171)."""
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    wanted = reply(call("a", "write", '{"text":"what was meant"}'), word="tool_calls")
    entry = desk.take(turn, wanted)
    assert entry.reply == wanted  # the complete reply is stored
    assert not entry.complete  # and is not yet part of a history
    assert desk.book.conversation("c").head is None  # type: ignore[union-attr]
    desk.run(turn, 0, 0, "what was written")
    assert entry.exchange is not None  # the admitted answer completes the exchange
    assert entry.exchange.reply.calls[0].arguments.text != entry.exchange.feedback[0].text
    assert desk.book.conversation("c").head is not None  # type: ignore[union-attr]
    assert turn.closed is None  # and the run goes on
    final = desk.take(turn, reply())
    assert (final.complete, turn.closed) == (True, None)
    desk.close(turn)
    assert turn.closed is not None
    kinds = [type(fact) for fact in desk.facts]
    assert kinds == [
        OriginOpened,
        *(SendStarted, SendEnded, ReplyTaken, SlotMoved, SlotMoved),
        *(SendStarted, SendEnded, ReplyTaken),
        RunClosed,
    ]
