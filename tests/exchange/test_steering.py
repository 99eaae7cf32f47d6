"""What a user says between the exchanges of a run: where it stands in requests, digests, histories and limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import ConflictError, InputError, LimitExceeded, RestoreError
from agentloop.exchange import (
    Book,
    CallBasis,
    ContextCut,
    DroppedTurns,
    Fact,
    RequestRef,
    RunClosed,
    SendStarted,
    Steered,
    StopAsked,
    TurnSummary,
    checkpoint_in,
    checkpoint_of,
    restore,
    summary_message,
    tombstone,
)
from agentloop.exchange.encoding import sorted_bytes
from agentloop.exchange.state import State
from agentloop.messages import (
    ImagePart,
    Message,
    ModelExchange,
    ModelOptions,
    ModelRequest,
    SystemMessage,
    TextPart,
    UserMessage,
)
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import reply
from tests.runs import body_of

FAR = 10**9


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def all_of(request: ModelRequest) -> tuple[Message, ...]:
    """What a model is given, in order."""
    return (*request.messages, *request.exchanges)


def next_request(desk: Desk, turn: Any) -> ModelRequest:
    return desk.book.request(desk.book.reference(turn), max_bytes=FAR)


def size_of(message: Message) -> int:
    """Bytes of a message as they count against the limits."""
    if isinstance(message, ModelExchange):
        return len(sorted_bytes(message.reply)) + sum(len(sorted_bytes(item)) for item in message.feedback)
    return len(sorted_bytes(message))


def replayed(facts: list[Fact]) -> Book:
    """The same facts in another book, checked."""
    book = Desk().book
    restore(book, facts)
    return book


def fault(*facts: Fact) -> str:
    with pytest.raises(RestoreError) as caught:
        restore(State(), facts)
    return caught.value.rule


# -- where a steer stands


def test_a_steer_waits_for_the_next_request_and_stands_after_the_exchanges_that_are_complete_then() -> None:
    desk = Desk()
    turn = desk.open()
    entry = desk.take(turn, asking("a", "b"))
    desk.run(turn, 0, 0)
    said = desk.steer(turn, "and this")
    desk.run(turn, 0, 1)
    request = next_request(desk, turn)
    assert request.messages == (user("hi"), entry.exchange, said)
    assert request.exchanges == ()
    desk.exchange(turn, asking("c"))
    later = next_request(desk, turn)
    assert (later.messages, later.exchanges) == (request.messages, (turn.entries[1].exchange,))


def test_steers_keep_their_order_and_several_requests_each_bring_in_their_own() -> None:
    desk = Desk()
    turn = desk.open()
    one, two = desk.steer(turn, "1"), desk.steer(turn, "2")
    first = desk.exchange(turn, asking("a"))
    three = desk.steer(turn, "3")
    second = desk.exchange(turn, asking("b"))
    assert all_of(next_request(desk, turn)) == (user("hi"), one, two, first.exchange, three, second.exchange)


def test_a_steer_that_comes_while_a_request_is_under_way_is_not_part_of_it() -> None:
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    said = desk.steer(turn, "wait")
    desk.add(desk.book.intake(desk.receipt(turn, attempt), reply(), at_ms=4))
    assert turn.digests[1] == _plain_digest()
    assert turn.steered
    assert all_of(next_request(desk, turn)) == (user("hi"), turn.exchanges[0], said)


def _plain_digest() -> str:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, reply())
    return turn.digests[1]


def test_a_refused_request_is_repeated_without_what_was_said_since() -> None:
    """It is sent once more byte for byte (R114)."""
    desk = Desk()
    turn = desk.open()
    before = next_request(desk, turn)
    desk.fail(turn, desk.send(turn), processed=False, code="http_429")
    said = desk.steer(turn, "hurry")
    assert next_request(desk, turn) == before
    desk.take(turn, reply())
    assert all_of(next_request(desk, turn)) == (user("hi"), turn.exchanges[0], said)


def test_an_attempt_that_a_host_settled_is_asked_again_with_what_was_said_since() -> None:
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    said = desk.steer(turn, "now")
    desk.add(desk.book.settle_send(turn, attempt, author="host", at_ms=4))
    assert all_of(next_request(desk, turn)) == (user("hi"), said)
    more = desk.steer(turn, "more")
    desk.add(desk.book.settle_send(turn, desk.send(turn), author="host", at_ms=4))
    last = desk.steer(turn, "last")
    assert all_of(next_request(desk, turn)) == (user("hi"), said, more, last)


def test_a_final_reply_can_be_continued_only_where_a_steer_follows_it() -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, reply())
    ref = desk.book.reference(turn)
    with pytest.raises(InputError, match="got a final reply"):
        desk.book.request(ref, max_bytes=FAR)
    refused(desk, lambda: desk.send(turn), InputError, "got a final reply")
    said = desk.steer(turn, "but")
    assert all_of(next_request(desk, turn)) == (user("hi"), turn.exchanges[0], said)
    desk.take(turn, reply())
    refused(desk, lambda: desk.send(turn), InputError, "got a final reply")
    desk.close(turn)


def test_a_forced_tool_choice_is_for_the_first_request_only_however_the_messages_are_divided() -> None:
    desk = Desk()
    turn = desk.open(options=ModelOptions(tool_choice="required"))
    desk.steer(turn, "0")
    assert next_request(desk, turn).options.tool_choice == "required"
    desk.exchange(turn, asking("a"))
    desk.steer(turn, "1")
    request = next_request(desk, turn)
    assert (request.exchanges, request.options.tool_choice) == ((), None)


def test_a_request_that_a_steer_is_missing_from_is_no_permission_to_send() -> None:
    """(R79)"""
    desk = Desk()
    turn = desk.open()
    ref = desk.book.reference(turn)
    desk.steer(turn, "new")

    def send(ref: RequestRef) -> Any:
        return desk.book.begin_send(ref, attempt_id="x", model="m", at_ms=1)

    assert all_of(desk.book.request(ref, max_bytes=FAR)) == (user("hi"),)
    refused(desk, lambda: send(ref), ConflictError, "expected all steers that were stored, got an older request")
    desk.add(send(desk.book.reference(turn)))


# -- digests


def test_a_steer_changes_the_digest_of_the_request_after_it_and_of_none_before() -> None:
    """(R75, R76)"""
    plain, steered = Desk(), Desk()
    turns = [desk.open(origin="o") for desk in (plain, steered)]
    for desk, turn in zip((plain, steered), turns, strict=True):
        desk.exchange(turn, asking("a"))
    before = steered.book.reference(turns[1])
    assert before == plain.book.reference(turns[0])
    steered.steer(turns[1], "x")
    after = steered.book.reference(turns[1])
    assert (after.exchanges, after.digest != before.digest) == (before.exchanges, True)
    for desk, turn in zip((plain, steered), turns, strict=True):
        desk.exchange(turn, asking("b"))
    assert turns[0].digests[:2] == turns[1].digests[:2]
    assert turns[0].digests[2] != turns[1].digests[2]


@pytest.mark.parametrize("other", [("a", "b"), ("ab",), ("b", "a"), ("a",)])
def test_other_steers_give_another_digest(other: tuple[str, ...]) -> None:
    digests = []
    for texts in (("a", "b", ""), other):
        desk = Desk()
        turn = desk.open(origin="o")
        for text in texts:
            desk.steer(turn, text)
        digests.append(desk.book.reference(turn).digest)
    assert digests[0] != digests[1]


# -- ends


@pytest.mark.parametrize("outcome", ["completed", "refused", "incomplete"])
def test_no_reply_ends_a_run_that_was_steered_after_it(outcome: Any) -> None:
    desk = Desk()
    turn = desk.open()
    desk.take(turn, reply())
    desk.steer(turn, "but")
    refused(desk, lambda: desk.close(turn, outcome), ConflictError, "expected its steers to be asked with")
    desk.send(turn)  # asked with, and not answered
    desk.add(desk.book.settle_send(turn, "attempt 2", author="host", at_ms=4))
    refused(desk, lambda: desk.close(turn, outcome), ConflictError, "expected its steers to be asked with")
    assert "expected its steers" in fault(*desk.facts, RunClosed(run_id="r1", outcome=outcome, reason=None, at_ms=1))
    desk.stop(turn)
    desk.close(turn, outcome)


@pytest.mark.parametrize("outcome", ["limit_reached", "failed", "cancelled"])
def test_any_other_end_comes_whatever_was_said(outcome: Any) -> None:
    desk = Desk()
    turn = desk.open()
    desk.steer(turn, "but")
    desk.close(turn, outcome, "x")
    assert picture(replayed(desk.facts)) == picture(desk.book)


def test_a_run_that_has_ended_or_was_asked_to_stop_takes_no_steer() -> None:
    desk = Desk()
    turn = desk.open()
    desk.stop(turn)
    refused(desk, lambda: desk.steer(turn, "x"), ConflictError, "expected a run that was not asked to stop")
    desk.close(turn, "incomplete", "stopped")
    error = refused(desk, lambda: desk.steer(turn, "x"), ConflictError)
    assert "expected a run that has not ended, got one that incomplete" in str(error)


def test_a_stop_is_asked_once_and_nothing_but_a_repetition_is_sent_after_it() -> None:
    desk = Desk()
    turn = desk.open()
    attempt = desk.send(turn)
    desk.stop(turn)
    assert desk.book.ask_stop(turn, author="b", at_ms=9) == ()
    desk.fail(turn, attempt, processed=False, code="http_429")
    desk.take(turn, asking("a"))
    desk.run(turn, 0, 0)
    refused(desk, lambda: desk.send(turn), ConflictError, "expected a run that was not asked to stop")
    desk.close(turn, "incomplete", "stopped")
    assert desk.book.ask_stop(turn, author="b", at_ms=9) == ()
    assert picture(replayed(desk.facts)) == picture(desk.book)


def test_a_runners_model_call_is_neither_steered_nor_stopped() -> None:
    desk = Desk()
    turn = desk.open(call=CallBasis(parent="p", stage_id="s", transport="t", route="r"))
    for step in (lambda: desk.steer(turn, "x"), lambda: desk.stop(turn)):
        refused(desk, step, ConflictError, "expected a run of an agent")
    for fact in (Steered(run_id="r1", message=user("x"), at_ms=1), StopAsked(run_id="r1", at_ms=1)):
        assert fault(*desk.facts, fact) == "expected a run of an agent"


# -- later turns, branches, cuts, redaction


def test_later_turns_go_on_from_all_that_was_said_and_answered() -> None:
    """A request is a prefix of the conversation's next one."""
    desk = Desk()
    turn = desk.open("r1", SystemMessage(content="s"), user("hi"), conversation="c")
    zero = desk.steer(turn, "0")
    first = desk.exchange(turn, asking("a"))
    one = desk.steer(turn, "1")
    second = desk.take(turn, reply())
    three = desk.steer(turn, "3")
    bodies = [body_of(next_request(desk, turn))]
    third = desk.take(turn, reply())
    desk.close(turn)
    following = desk.open("r2", user("again"), conversation="c")
    whole = (SystemMessage(content="s"), user("hi"), zero, first.exchange, one, second.exchange, three, third.exchange)
    assert following.history == (*whole, user("again"))
    bodies.append(body_of(next_request(desk, following)))
    assert bodies[1].startswith(bodies[0].removesuffix(b"]}"))
    assert following.request_size == following.origin_size + sum(map(size_of, whole))


def test_what_was_said_and_not_answered_is_no_part_of_the_conversation() -> None:
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    first = desk.exchange(turn, asking("a"))
    desk.steer(turn, "sent")
    desk.fail(turn, desk.send(turn))
    desk.steer(turn, "waiting")
    desk.close(turn, "failed", "total_timeout")
    following = desk.open("r2", user("again"), conversation="c")
    assert following.history == (user("hi"), first.exchange, user("again"))
    assert following.opened.continues is not None
    assert following.opened.continues.digest == turn.digests[1]
    assert following.request_size == following.origin_size + size_of(user("hi")) + first.size


def test_a_branch_before_a_steer_does_not_have_it_and_one_after_it_has() -> None:
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    first = desk.exchange(turn, asking("a"))
    said = desk.steer(turn, "x")
    second = desk.take(turn, reply())
    desk.close(turn)
    refs = [
        msgspec.structs.replace(desk.book.conversation("c").head, index=at, digest=turn.digests[at + 1])  # type: ignore[union-attr,type-var]
        for at in (0, 1)
    ]
    assert desk.book.messages(refs[0]) == (user("hi"), first.exchange)
    assert desk.book.messages(refs[1]) == (user("hi"), first.exchange, said, second.exchange)


def test_a_cut_leaves_a_steer_out_with_its_turn() -> None:
    desk = Desk()
    for run in ("r1", "r2"):
        turn = desk.open(run, user(run), conversation="c")
        desk.exchange(turn, asking("a"))
        desk.steer(turn, f"{run} more")
        desk.take(turn, reply())
        desk.close(turn)
    newer = (user("r2"), *turn.said(2)[0])
    for cut, head in (
        (ContextCut(dropped=(DroppedTurns(first="origin of r1", last="origin of r1", count=1),)), ()),
        (ContextCut(summaries=(TurnSummary(origins=("origin of r1",), text="sum"),)), (summary_message("sum"),)),
    ):
        run = f"r3 {bool(head)}"
        following = desk.open(run, user("now"), conversation="c", context=cut)
        assert following.history == (*head, *newer, user("now"))
        size = following.request_size - following.origin_size
        cut_size = len(sorted_bytes(cut))
        assert size == sum(map(size_of, (*head, *newer))) - cut_size
        said = desk.steer(following, "also")
        assert next_request(desk, following).messages == (*head, *newer, user("now"), said)
        desk.close(following, "cancelled", "x")


def test_a_history_says_which_user_messages_go_on_with_a_turn() -> None:
    desk = Desk()
    turn = desk.open("r1", SystemMessage(content="s"), user("hi"), conversation="c")
    desk.steer(turn, "before any reply")  # 2
    desk.exchange(turn, asking("a"))  # 3
    desk.steer(turn, "4")
    desk.steer(turn, "5")
    desk.take(turn, reply())  # 6
    desk.close(turn)
    past = desk.book.past("c", desk.book.conversation("c").head, (user("new"),))  # type: ignore[union-attr]
    assert past.turns == (("origin of r1", 1, 7),)
    assert past.steers == (4, 5)


def test_a_redacted_run_keeps_its_digests_and_none_of_its_steers() -> None:
    desk = Desk()
    turn = desk.open("r1", conversation="c")
    desk.exchange(turn, asking("a"))
    desk.steer(turn, "secret")
    desk.take(turn, reply())
    desk.close(turn)
    after = desk.open("r2", user("again"), conversation="c")
    left = tombstone(turn, author="Ada", at_ms=9)
    assert b"secret" not in msgspec.json.encode(left)
    book = replayed([left, *(fact for fact in desk.facts if fact.run_id == "r2")])
    assert book.turn("r2").opened == after.opened
    assert book.turn("r2").history == (user("again"),)


# -- room and limits


def test_a_steer_takes_room_and_is_refused_where_there_is_none() -> None:
    """(R112)"""
    size = len(sorted_bytes(user("x" * 100)))
    desk = Desk()
    desk.open()
    limited = Desk(total_bytes=desk.book.size + size)
    turn = limited.open()
    refused(limited, lambda: limited.steer(turn, "x" * 101), LimitExceeded, "total_bytes")
    limited.steer(turn, "x" * 100)
    assert limited.book.size == desk.book.size + size
    refused(limited, lambda: limited.steer(turn, ""), LimitExceeded, "total_bytes")
    limited.close(turn, "cancelled", "x")
    limited.book.forget(["r1"])
    assert limited.book.size == 0


def test_a_request_is_weighed_with_its_steers_to_the_byte() -> None:
    desk = Desk()
    turn = desk.open()
    entry = desk.exchange(turn, asking("a"))
    plain = desk.book.reference(turn)
    said = UserMessage(content=(TextPart(text="é"), ImagePart(url="https://a.example/b.png")))
    desk.add(desk.book.steer(turn, said, author=None, at_ms=1))
    size = turn.origin_size + entry.size + size_of(said)
    for ref, weight in ((plain, size - size_of(said)), (desk.book.reference(turn), size)):
        desk.book.request(ref, max_bytes=weight)
        with pytest.raises(LimitExceeded, match=f"request_bytes: allowed {weight - 1}, got at least {weight}"):
            desk.book.request(ref, max_bytes=weight - 1)


# -- restoring


def test_what_comes_back_is_checked() -> None:
    """(R86)"""
    desk = Desk()
    turn = desk.open()
    said = Steered(run_id="r1", message=user("x"), at_ms=1)
    stop = StopAsked(run_id="r1", at_ms=1)
    assert "neither a steer nor a second stop" in fault(*desk.facts, stop, stop)
    assert "neither a steer nor a second stop" in fault(*desk.facts, stop, said)
    broken = Steered(run_id="r1", message=user("\ud800"), at_ms=1)
    assert "$.messages[0]" in fault(*desk.facts, broken)
    early = desk.book.begin_send(desk.book.reference(turn), attempt_id="a", model="m", at_ms=1)
    assert fault(*desk.facts, said, *early) == "expected the request of all exchanges so far"
    assert fault(*desk.facts, stop, *early) == "expected nothing to be asked of a run that was asked to stop"
    desk.take(turn, reply())
    *rest, ended, taken = desk.facts
    assert fault(*rest, ended, said, taken) == "expected the reply of the attempt that ended with one"
    desk.close(turn)
    assert fault(*desk.facts, said) == fault(*desk.facts, stop) == "expected nothing after the end of the run"


# -- any order of things


class _Model:
    """What each request must hold, by the order of things alone."""

    def __init__(self) -> None:
        self.said: list[Message] = [user("hi")]
        self.waiting: list[UserMessage] = []
        self.repeated = False
        self.answered = 0  # how much of it an exchange came to

    def request(self) -> tuple[Message, ...]:
        if not self.repeated:
            self.said += self.waiting
            self.waiting = []
        return tuple(self.said)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["steer", "call", "final", "refused", "settled", "stop", "again"]), max_size=14))
def test_every_request_is_what_was_said_in_its_order_and_a_restore_changes_nothing(steps: list[str]) -> None:
    """(R76, R86, R88)"""
    desk, model = Desk(), _Model()
    turn = desk.open(conversation="c")
    sent: dict[str, tuple[RequestRef, ModelRequest]] = {}
    for at, what in enumerate(steps):
        if what == "steer":
            if turn.stopping:
                continue
            model.waiting.append(desk.steer(turn, f"{at}"))
        elif what == "stop":
            desk.stop(turn)
        elif what == "again":
            book = replayed(desk.facts)
            assert picture(book) == picture(desk.book)
            desk.book, desk.mint = book, book._mint
            turn = book.turn("r1")
        else:
            final = bool(turn.exchanges) and not turn.exchanges[-1].feedback
            if (turn.stopping and not turn.refused) or (final and not turn.steered):
                continue
            ref = desk.book.reference(turn)
            request = desk.book.request(ref, max_bytes=FAR)
            assert all_of(request) == model.request()
            assert all(type(message) is not UserMessage for message in request.exchanges)
            size = turn.origin_size + sum(map(size_of, all_of(request)[1:]))
            desk.book.request(ref, max_bytes=size)
            with pytest.raises(LimitExceeded):
                desk.book.request(ref, max_bytes=size - 1)
            sent[ref.digest] = ref, request
            attempt = desk.send(turn)
            if what == "refused":
                desk.fail(turn, attempt, processed=False, code="http_429")
                model.repeated = True
                continue
            if what == "settled":
                desk.add(desk.book.settle_send(turn, attempt, author="host", at_ms=4))
                continue
            made = reply() if what == "final" else asking("a")
            desk.add(desk.book.intake(desk.receipt(turn, attempt), made, at_ms=4))
            if what == "call":
                desk.run(turn, len(turn.entries) - 1, 0)
            model.said.append(turn.exchanges[-1])
            model.repeated, model.answered = False, len(model.said)
        assert checkpoint_in(desk.facts) == checkpoint_of(turn)
    assert picture(replayed(desk.facts)) == picture(desk.book)
    for ref, request in sent.values():
        assert desk.book.request(ref, max_bytes=FAR) == request
    answered = [fact.request for fact in desk.facts if isinstance(fact, SendStarted)]
    assert len({ref.digest for ref in answered}) == len(sent)
    desk.close(turn, "cancelled", "x")
    following = desk.open("r2", user("next"), conversation="c")
    kept = model.said[: model.answered]
    assert following.history == (*kept, user("next"))
    assert following.request_size == following.origin_size + sum(map(size_of, kept))
