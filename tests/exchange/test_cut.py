"""A run that is asked with less of its conversation: what it is asked, and that nothing is lost of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.admission import digest_bytes
from agentloop.errors import ConflictError, InputError, LimitExceeded, RestoreError
from agentloop.exchange import (
    Book,
    ContextCut,
    DroppedTurns,
    Fact,
    OriginOpened,
    ReceiptMint,
    Turn,
    TurnSummary,
    branch,
    canonical_bytes,
    checkpoint_in,
    checkpoint_of,
    origin_digest,
    restore,
    summary_message,
    tombstone,
)
from agentloop.exchange.encoding import sorted_bytes
from agentloop.messages import Message, ModelExchange, ModelOptions, SystemMessage, Text, UserMessage
from agentloop.runner import BuiltContext, ContextPlan, NeedsSummary, Summary, SummaryOf
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import dialect
from tests.exchange.desk import Desk, asking, picture, refused
from tests.messages.values import reply


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def system(text: str) -> SystemMessage:
    return SystemMessage(content=text)


def turn_of(desk: Desk, run: str, *messages: SystemMessage | UserMessage, calls: int = 0, **fields: Any) -> Turn:
    """One whole turn of the conversation; its answer is named after it."""
    turn = desk.open(run, *messages, conversation="c", **fields)
    for _ in range(calls):
        desk.exchange(turn, asking("x"))
    desk.take(turn, reply(Text(text=f"answer of {run}")))
    desk.close(turn)
    return turn


def talk() -> Desk:
    """Three turns; the first has a call, the second a system message in its middle."""
    desk = Desk()
    turn_of(desk, "r1", system("S"), user("one"), calls=1)
    turn_of(desk, "r2", system("S"), user("two"), system("note"))
    turn_of(desk, "r3", system("S"), user("three"))
    return desk


def gone(first: str, last: str | None = None, count: int = 1) -> DroppedTurns:
    return DroppedTurns(first=f"origin of {first}", last=f"origin of {last or first}", count=count)


def drop(*runs: str) -> ContextCut:
    return ContextCut(dropped=tuple(map(gone, runs)))


def summary(text: str, *runs: str, ref: str | None = None) -> TurnSummary:
    return TurnSummary(origins=tuple(f"origin of {run}" for run in runs), text=text, ref=ref)


def said(turn: Turn) -> list[str]:
    """What a turn is asked with, in short."""
    tags = {SystemMessage: "system", UserMessage: "user"}
    return [
        f"exchange:{m.reply.text}" if isinstance(m, ModelExchange) else f"{tags[type(m)]}:{m.content}"
        for m in turn.history
    ]


def restored(facts: list[Fact]) -> Book:
    book = Book(ReceiptMint())
    restore(book, facts)
    return book


def body(book: Book, turn: Turn) -> bytes:
    """The request of a turn, as it is sent."""
    request = book.request(book.reference(turn), max_bytes=10**6)
    return encode_request(request, model="m", dialect=dialect("openai")).body


# -- what is asked


def test_a_turn_that_is_left_out_is_not_asked_with_and_stays_in_the_conversation() -> None:
    desk = talk()
    turn = turn_of(desk, "r4", user("four"), context=drop("r1"))
    assert said(turn) == [
        "system:S",
        "user:two",
        "system:note",
        "exchange:answer of r2",
        "user:three",
        "exchange:answer of r3",
        "user:four",
    ]
    head = desk.book.conversation("c").head  # type: ignore[union-attr]
    assert head is not None
    whole = desk.book.messages(head)
    assert [m.content for m in whole if isinstance(m, UserMessage)] == ["one", "two", "three", "four"]
    assert len(desk.open("r5", user("five"), conversation="c").history) == len(whole) + 1


def test_a_summary_stands_at_the_place_of_its_turns_and_their_system_messages_stay() -> None:
    """It is a user message: what a tool said never becomes an instruction (R34)."""
    desk = talk()
    cut = ContextCut(summaries=(summary("They met.", "r1", "r2", ref="a call"),))
    turn = desk.open("r4", system("T"), user("four"), conversation="c", context=cut)
    assert turn.history[1] == summary_message("They met.")
    assert said(turn)[2:] == ["system:note", "user:three", "exchange:answer of r3", "user:four"]
    assert said(turn)[0] == "system:T"


def test_kept_messages_are_the_same_objects() -> None:
    desk = talk()
    turn = desk.open("r4", user("four"), conversation="c", context=drop("r1", "r2"))
    assert turn.history[3] is desk.book.turn("r3").exchanges[0]


def test_a_run_goes_on_with_the_cut_it_began_with() -> None:
    desk = talk()
    turn = desk.open("r4", user("four"), conversation="c", context=drop("r1", "r2", "r3"))
    desk.exchange(turn, asking("y"))
    request = desk.book.request(desk.book.reference(turn), max_bytes=10**6)
    assert (len(request.messages), len(request.exchanges)) == (3, 1)


def test_a_request_is_held_to_its_limit_by_what_it_asks() -> None:
    """(R99)"""
    desk = talk()
    whole = desk.open("r4", user("four"), conversation="c")
    size = whole.request_size
    desk.close(whole)
    less = desk.open("r5", user("four"), conversation="c", context=drop("r1"))
    assert less.request_size < size
    desk.book.request(desk.book.reference(less), max_bytes=less.request_size)
    with pytest.raises(LimitExceeded, match="request_bytes"):
        desk.book.request(desk.book.reference(less), max_bytes=less.request_size - 1)


def test_a_branch_is_asked_with_less_of_what_it_branched_off() -> None:
    desk = talk()
    at = desk.book.turn("r3").opened.continues
    assert at is not None
    desk.add(branch(desk.book, run_id="b", conversation="d", source="c", at=at, at_ms=4))
    turn = desk.open("r4", user("other"), conversation="d", context=drop("r1"))
    assert said(turn) == ["system:S", "user:two", "system:note", "exchange:answer of r2", "user:other"]
    desk.take(turn, reply())
    desk.close(turn)
    again = desk.open("r5", user("more"), conversation="d", context=drop("r2", "r4"))
    assert said(again)[1:] == ["user:one", "exchange:", "exchange:answer of r1", "system:note", "user:more"]
    assert body(restored(desk.facts), again) == body(desk.book, again)


def test_the_turns_before_are_named_by_their_origins_and_places() -> None:
    desk = talk()
    head = desk.book.conversation("c").head  # type: ignore[union-attr]
    past = desk.book.past("c", head, (system("T"), system("U"), user("four")))
    assert past.turns == (("origin of r1", 2, 5), ("origin of r2", 5, 8), ("origin of r3", 8, 10))
    assert past.origins(2, 8) == ("origin of r1", "origin of r2")
    for start, end in ((2, 4), (3, 5), (0, 5), (8, 11), (10, 11)):
        with pytest.raises(InputError, match=f"messages {start} to {end}: expected all messages of earlier turns"):
            past.origins(start, end)
    at = desk.book.turn("r3").opened.continues
    assert at is not None
    desk.add(branch(desk.book, run_id="b", conversation="d", source="c", at=at, at_ms=4))
    assert [origin for origin, _, _ in desk.book.past("d", at, ()).turns] == ["origin of r1", "origin of r2"]


def test_a_redacted_turn_is_named_with_those_around_it() -> None:
    desk = talk()
    head = desk.book.conversation("c").head  # type: ignore[union-attr]
    past = restored(redacted(desk, "r2")).past("c", head, ())
    assert past.turns == (("origin of r1", 1, 4), ("origin of r2", 4, 4), ("origin of r3", 4, 6))
    assert past.origins(1, 6) == ("origin of r1", "origin of r2", "origin of r3")
    assert past.origins(4, 6) == ("origin of r3",)


# -- facts


def test_an_origin_without_a_cut_has_the_digest_it_always_had() -> None:
    digest = "0a3f2f7e95dfcb1f21cd9c7b964261f667d70e3656ed9ac3c28fd7d430e5abe1"
    assert origin_digest((user("hi"),), ModelOptions(), (), None) == digest
    assert Desk().open("r1", user("hi")).opened.digest == digest


def test_an_origin_with_a_cut_has_it_in_its_digest() -> None:
    cut = ContextCut(dropped=(gone("1"),), summaries=(TurnSummary(origins=("o2",), text="They met.", ref="a call"),))
    basis = {
        "context": cut,
        "continues": "d",
        "messages": (user("hi"),),
        "options": ModelOptions(temperature=0.5),
        "tools": (),
    }
    wanted = digest_bytes("agentloop/origin/v1", canonical_bytes(basis))
    assert origin_digest((user("hi"),), ModelOptions(temperature=0.5), (), "d", cut) == wanted


def test_steps_that_differ_by_their_cut_alone_are_weighed_and_digested_apart() -> None:
    desk = talk()
    messages = (user("four"),)
    fields: dict[str, Any] = {"run_id": "r4", "origin_id": "o4", "conversation": "c", "messages": messages}
    fields |= {"options": ModelOptions(), "tools": (), "catalogue_digest": "x", "input_digest": None}
    cuts = (None, drop("r1"), drop("r2"))
    digests = set()
    for cut in cuts:
        (opened,) = desk.book.open_origin(**fields, agent="agent", at_ms=1, context=cut)
        assert type(opened) is OriginOpened
        digests.add(opened.digest)
    assert len(digests) == len(cuts)


def test_a_summary_takes_room_and_gives_it_back() -> None:
    """(R112)"""
    desk = talk()
    before = desk.book.size
    cut = ContextCut(summaries=(summary("x" * 1_000, "r1"),))
    plain = desk.open("r4", user("four"), conversation="c")
    desk.close(plain)
    turn = desk.open("r5", user("four"), conversation="c", context=cut)
    assert turn.size == plain.size + len(sorted_bytes(cut))
    desk.close(turn)
    assert desk.book.size == before + plain.size + turn.size
    desk.book.forget(["r1", "r2", "r3", "r4", "r5"])
    assert desk.book.size == 0
    small = Desk(item_bytes=900)
    turn_of(small, "r1", user("one"))
    refused(small, lambda: small.opening("r2", user("two"), conversation="c", context=cut), LimitExceeded, "item_bytes")


def test_starting_the_same_run_again_adds_nothing_whatever_it_would_be_asked_with() -> None:
    """(R82)"""
    desk = talk()
    first = desk.open("r4", user("four"), conversation="c", context=drop("r1"))
    for cut in (None, drop("r2"), drop("nobody")):
        assert desk.opening("r4", user("four"), conversation="c", context=cut) == ()
    assert first.opened.context == drop("r1")


def test_the_point_of_a_run_is_read_without_the_turns_that_it_is_not_asked_with() -> None:
    desk = talk()
    turn = turn_of(desk, "r4", user("four"), context=drop("r1"))
    own = [fact for fact in desk.facts if fact.run_id == "r4"]
    assert checkpoint_in(own) == checkpoint_of(turn)


def test_turns_that_follow_each_other_are_left_out_as_one_row_however_many_they_are() -> None:
    one, other = talk(), talk()
    asked = [
        body(desk.book, desk.open("r4", user("four"), conversation="c", context=cut))
        for desk, cut in ((one, drop("r1", "r2", "r3")), (other, ContextCut(dropped=(gone("r1", "r3", 3),))))
    ]
    assert asked[0] == asked[1]


WRONG: list[tuple[ContextCut, str]] = [
    (drop("nobody"), "origin 'origin of nobody': expected a turn before this one"),
    (drop("r4"), "origin 'origin of r4': expected a turn before this one"),
    (drop("r2", "r1"), "context: expected the oldest turn first"),
    (ContextCut(dropped=(gone("r1", "r3", 2),)), "context: expected 2 turns that follow each other, got 3"),
    (ContextCut(dropped=(gone("r3", "r1", 2),)), "context: expected 2 turns that follow each other, got -1"),
    (ContextCut(dropped=(gone("r1", "r3", 3), gone("r2"))), "context: expected the oldest turn first, and each once"),
    (
        ContextCut(dropped=(gone("r1", "r3", 3),), summaries=(summary("x", "r2"),)),
        "summary of 'origin of r2': expected turns that are not left out",
    ),
    (ContextCut(summaries=(summary("x", "r1", "r3"),)), "summary of 'origin of r1': expected turns that follow"),
    (ContextCut(summaries=(summary("x", "r2", "r1"),)), "summary of 'origin of r2': expected turns that follow"),
    (ContextCut(summaries=(summary("x", "r2"), summary("y", "r1"))), "context: expected the oldest turn first"),
]


@pytest.mark.parametrize(("cut", "says"), WRONG)
def test_a_cut_that_does_not_fit_the_turns_before_is_refused(cut: ContextCut, says: str) -> None:
    desk = talk()
    opening = partial(desk.opening, "r4", user("four"), conversation="c", context=cut)
    refused(desk, opening, ConflictError, re.escape(says))


def test_a_first_turn_and_a_run_without_a_conversation_have_nothing_to_leave_out() -> None:
    desk = talk()
    for name in ("new", None):
        opening = partial(desk.opening, "r4", conversation=name, context=drop("r1"))
        refused(desk, opening, ConflictError, "expected a turn before this one")


@pytest.mark.parametrize(("cut", "says"), WRONG)
def test_a_cut_that_comes_back_is_checked(cut: ContextCut, says: str) -> None:
    """(R86)"""
    desk = talk()
    opened = desk.open("r4", user("four"), conversation="c", context=drop("r1")).opened
    assert opened.continues is not None
    digest = origin_digest(opened.messages, opened.options, opened.tools, opened.continues.digest, cut)
    forged = msgspec.structs.replace(opened, context=cut, digest=digest)
    with pytest.raises(RestoreError, match=re.escape(says)):
        restored([*desk.facts[:-1], forged])
    for wrong in (cut, None):
        with pytest.raises(RestoreError, match="expected the digest of its content"):
            restored([*desk.facts[:-1], msgspec.structs.replace(opened, context=wrong)])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (ContextCut, "ContextCut: expected a turn that is left out or summarised"),
        (lambda: ContextCut(dropped=[gone("r")]), "ContextCut.dropped: expected a tuple of DroppedTurns"),  # type: ignore[arg-type]
        (lambda: DroppedTurns(first="", last="", count=1), "DroppedTurns: expected a tuple of origin ids"),
        (lambda: gone("r", "s", 0), "DroppedTurns.count: expected an integer from 1 to"),
        (lambda: gone("r", "s", 1), "DroppedTurns: expected one turn to be the first and the last, and several not"),
        (lambda: gone("r", "r", 2), "DroppedTurns: expected one turn to be the first and the last, and several not"),
        (lambda: drop("r", "r"), "ContextCut: expected each origin once"),
        (
            lambda: ContextCut(dropped=(gone("r"),), summaries=(summary("x", "r"),)),
            "ContextCut: expected each origin once",
        ),
        (lambda: ContextCut(summaries=("secret",)), "ContextCut.summaries: expected a tuple of TurnSummary"),  # type: ignore[arg-type]
        (lambda: summary("x"), "TurnSummary.origins: expected at least one"),
        (lambda: summary("", "r"), "TurnSummary.text: expected a non-empty string"),
        (lambda: summary("x", "r", ref=""), "TurnSummary.ref: expected None or a non-empty string"),
    ],
)
def test_a_cut_is_checked_when_it_is_made(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        make()


# -- redaction


def redacted(desk: Desk, *runs: str) -> list[Fact]:
    """The facts with tombstones for some runs."""
    left: list[Fact] = []
    for fact in desk.facts:
        if fact.run_id not in runs:
            left.append(fact)
        elif type(fact) is OriginOpened:
            left.append(tombstone(desk.book.turn(fact.run_id), author="Ada", at_ms=9))
    return left


def test_a_redacted_run_holds_no_summary() -> None:
    desk = talk()
    turn_of(desk, "r4", user("four"), context=ContextCut(summaries=(summary("They met.", "r1"),)))
    turn_of(desk, "r5", user("five"))
    facts = redacted(desk, "r4")
    assert b"They met." not in b"".join(map(msgspec.json.encode, facts))
    book = restored(facts)
    assert book.turn("r5").digests == desk.book.turn("r5").digests
    assert book.turn("r4").opened.context is None


def test_a_cut_stands_when_turns_it_names_were_redacted() -> None:
    """Turns are named by their origins, and a tombstone keeps that; the rest of a request stays as it was."""
    desk = talk()
    cut = ContextCut(dropped=(gone("r1"),), summaries=(summary("They met.", "r2", "r3"),))
    turn = desk.open("r4", user("four"), conversation="c", context=cut)
    book = restored(redacted(desk, "r1", "r3"))
    assert body(book, book.turn("r4")) == body(desk.book, turn)
    assert book.turn("r4").digests == turn.digests


# -- any conversation

openings = st.lists(
    st.builds(SystemMessage, content=st.text(max_size=5)) | st.builds(UserMessage, content=st.text(max_size=30)),
    max_size=3,
)


def size(message: Message) -> int:
    if isinstance(message, ModelExchange):
        return sum(len(msgspec.json.encode(part)) for part in (message.reply, *message.feedback))
    return len(msgspec.json.encode(message))


def cut_of(book: Book, messages: tuple[SystemMessage | UserMessage, ...], built: BuiltContext) -> ContextCut | None:
    """What a plan built, as a fact."""
    known = book.conversation("c")
    past = book.past("c", None if known is None else known.head, messages)
    rows = [past.origins(start, end) for start, end in built.dropped]
    dropped = tuple(DroppedTurns(first=row[0], last=row[-1], count=len(row)) for row in rows)
    summaries = tuple(
        TurnSummary(origins=past.origins(one.start, one.end), text=one.text, ref=one.ref) for one in built.summaries
    )
    return ContextCut(dropped=dropped, summaries=summaries) if dropped or summaries else None


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(st.tuples(openings, st.integers(0, 2)), min_size=1, max_size=6),
    budget=st.integers(60, 300),
    strategy=st.sampled_from(["drop", "summarise"]),
    keep_last=st.integers(1, 2),
    data=st.data(),
)
def test_a_run_is_asked_with_what_its_plan_built_also_after_a_restore(
    turns: list[tuple[list[SystemMessage | UserMessage], int]],
    budget: int,
    strategy: str,
    keep_last: int,
    data: st.DataObject,
) -> None:
    """Facts alone give the same requests, byte for byte, and their sizes (R86, R89)."""
    plan = ContextPlan(max_chars=budget, strategy=strategy, keep_last=keep_last, summary=Summary(max_chars=8))  # type: ignore[arg-type]
    desk = Desk()
    for at, (opening, calls) in enumerate(turns):
        messages = tuple(opening) or (user("hi"),)
        known = desk.book.conversation("c")
        whole = desk.book.past("c", None if known is None else known.head, messages).messages
        summaries: list[SummaryOf] = []
        wanted = whole
        cut = None
        try:
            while type(made := plan.build(whole, summaries=summaries)) is NeedsSummary:
                text = data.draw(st.text(min_size=1, max_size=8))
                summaries.append(SummaryOf(start=made.start, end=made.end, text=text, ref="a call"))
            assert type(made) is BuiltContext
            wanted, cut = made.messages, cut_of(desk.book, messages, made)
        except LimitExceeded:
            pass
        turn = desk.open(f"r{at}", *messages, conversation="c", context=cut)
        assert turn.history == wanted
        assert turn.past.messages == whole
        for _ in range(calls):
            desk.exchange(turn, asking("a", "b"))
        frame = len(msgspec.json.encode(turn.opened.options)) + len(msgspec.json.encode(turn.opened.tools))
        assert turn.request_size == sum(map(size, (*turn.history, *turn.exchanges))) + frame
        back = restored(desk.facts)
        assert body(back, back.turn(turn.run_id)) == body(desk.book, turn)
        desk.take(turn, reply())
        desk.close(turn)
    assert picture(restored(desk.facts)) == picture(desk.book)
