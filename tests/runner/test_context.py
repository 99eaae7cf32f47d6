"""Fewer messages from many: what fits, what is kept, and in which order things go."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import InputError, LimitExceeded
from agentloop.exchange.cut import SUMMARY_HEADING, summary_message
from agentloop.messages import Message, ModelExchange, SystemMessage, Text, UserMessage, messages_chars
from agentloop.runner import BuiltContext, ContextPlan, NeedsSummary, Summary, SummaryOf
from tests.messages.values import exchange, messages, reply


class Word(str):
    """Equal to a word that is taken, and no plain text."""

    __slots__ = ()


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def system(text: str) -> SystemMessage:
    return SystemMessage(content=text)


def answer(text: str) -> ModelExchange:
    return ModelExchange(reply=reply(Text(text=text), native={"reasoning_content": "why", "calls": ["signature"]}))


TALK: tuple[Message, ...] = (
    system("S" * 10),  # 0
    user("a" * 10),  # 1: the first turn
    exchange("x", "y"),  # 2: 2 names of 9, 2 times {}, 2 results of 11: 44
    answer("A" * 10),  # 3
    user("b" * 10),  # 4: the second
    answer("B" * 10),  # 5
    user("c" * 5),  # 6: the third
    user("c" * 5),  # 7
    answer("C" * 10),  # 8
    user("d" * 10),  # 9: the newest
)
"""124 characters: instructions 10, then turns of 64, 20, 20 and 10."""


def built(plan: ContextPlan, said: Sequence[Message] = TALK, *summaries: SummaryOf) -> BuiltContext:
    made = plan.build(said, summaries=summaries)
    assert type(made) is BuiltContext
    return made


def needed(plan: ContextPlan, said: Sequence[Message] = TALK, *summaries: SummaryOf) -> NeedsSummary:
    made = plan.build(said, summaries=summaries)
    assert type(made) is NeedsSummary
    return made


# -- leaving out


def test_messages_that_fit_stay_as_they_are() -> None:
    assert messages_chars(TALK) == 124
    for plan in (ContextPlan(max_chars=124), ContextPlan(max_chars=math.inf)):
        made = built(plan)
        assert made.messages is TALK
        assert (made.max_chars, made.dropped, made.summaries, made.source_messages) == (plan.max_chars, (), (), 10)


@pytest.mark.parametrize(
    ("max_chars", "kept"),
    [
        (123, [0, 4, 5, 6, 7, 8, 9]),
        (60, [0, 4, 5, 6, 7, 8, 9]),
        (59, [0, 6, 7, 8, 9]),
        (40, [0, 6, 7, 8, 9]),
        (39, [0, 9]),
        (20, [0, 9]),
    ],
)
def test_the_oldest_turns_go_whole_and_no_more_of_them_than_must(max_chars: int, kept: list[int]) -> None:
    made = built(ContextPlan(max_chars=max_chars))
    assert len(made.messages) == len(kept)
    assert all(message is TALK[at] for message, at in zip(made.messages, kept, strict=True))
    assert made.dropped == ((1, kept[1]),)


def test_what_must_be_kept_and_does_not_fit_is_refused_with_both_sizes() -> None:
    plan = ContextPlan(max_chars=19)
    with pytest.raises(LimitExceeded) as caught:
        plan.build(TALK)
    assert str(caught.value) == "max_context_chars: allowed 19, got at least 20"
    with pytest.raises(LimitExceeded, match="max_context_chars: allowed 39, got at least 40"):
        ContextPlan(max_chars=39, keep_last=2).build(TALK)


def test_a_pinned_message_keeps_its_whole_turn() -> None:
    for pin in (4, 5, user("b" * 10)):
        made = built(ContextPlan(max_chars=60, pinned=(pin,)))
        assert made.dropped == ((1, 4),)
        made = built(ContextPlan(max_chars=40, pinned=(pin,)))
        assert made.dropped == ((1, 4), (6, 9))
        assert made.messages == (TALK[0], TALK[4], TALK[5], TALK[9])
    assert built(ContextPlan(max_chars=20, pinned=(10, 0, user("e")))).dropped == ((1, 9),)


def test_system_messages_stay_where_they_were_said() -> None:
    said = (system("S"), user("aa"), system("N"), answer("AA"), user("b"), system("M"))
    made = built(ContextPlan(max_chars=5), said)
    assert made.messages == (said[0], said[2], said[4], said[5])
    assert made.dropped == ((1, 4),)


def test_kept_exchanges_are_the_same_objects_with_what_their_provider_wants_back() -> None:
    """(R20)"""
    made = built(ContextPlan(max_chars=59))
    assert made.messages[3] is TALK[8]


@pytest.mark.parametrize("wrong", [5, "text", UserMessage(content="hi"), UserMessage])
def test_what_is_no_list_is_refused_by_name(wrong: Any) -> None:
    plan = ContextPlan(max_chars=10)
    with pytest.raises(InputError, match=r"^messages: expected a list, got "):
        plan.build(wrong)
    with pytest.raises(InputError, match=r"^summaries: expected a list, got "):
        plan.build([], summaries=wrong)
    with pytest.raises(InputError, match=r"^count: expected a function that counts tokens, got int"):
        ContextPlan(max_tokens=10).build([], count=5)  # type: ignore[arg-type]


def test_tokens_are_counted_by_the_caller_and_never_guessed() -> None:
    plan = ContextPlan(max_tokens=7)
    with pytest.raises(InputError, match="count: expected what counts tokens"):
        plan.build(TALK)
    made = plan.build(TALK, count=len)
    assert type(made) is BuiltContext
    assert (made.dropped, made.max_chars) == (((1, 4),), math.inf)
    with pytest.raises(LimitExceeded, match="max_context_tokens: allowed 1, got at least 2"):
        ContextPlan(max_tokens=1).build(TALK, count=len)
    with pytest.raises(InputError, match=re.escape("count(): expected an integer from 0")):
        plan.build(TALK, count=lambda said: -len(said))


def test_a_plan_builds_from_its_own_messages() -> None:
    assert built(ContextPlan(max_chars=59, messages=TALK)) == ContextPlan(max_chars=59, messages=TALK).build()
    assert ContextPlan(max_chars=0).build() == BuiltContext(messages=(), max_chars=0, source_messages=0)


def test_what_is_over_the_budget_is_brought_down_further_where_the_plan_says_so() -> None:
    for max_chars in (124, 200):
        assert built(ContextPlan(max_chars=max_chars, down_to=0)).messages is TALK
    assert built(ContextPlan(max_chars=123, down_to=60)).dropped == ((1, 4),)
    assert built(ContextPlan(max_chars=123, down_to=59)).dropped == ((1, 6),)
    assert built(ContextPlan(max_chars=60, down_to=20)).dropped == ((1, 9),)


def test_where_it_cannot_be_brought_so_far_down_all_goes_that_may() -> None:
    """It is no limit; the budget is one."""
    assert built(ContextPlan(max_chars=123, down_to=19)).dropped == ((1, 9),)
    assert built(ContextPlan(max_chars=123, down_to=0, keep_last=3)).dropped == ((1, 4),)
    with pytest.raises(LimitExceeded, match="max_context_chars: allowed 19, got at least 20"):
        ContextPlan(max_chars=19, down_to=0).build(TALK)


def test_summaries_are_asked_for_as_far_down() -> None:
    plan = msgspec.structs.replace(SUMMARISE, max_chars=123, down_to=50 + HEADED)
    assert needed(plan).end == 6
    assert needed(msgspec.structs.replace(plan, down_to=0)).end == 9
    known = SummaryOf(start=1, end=4, text="x" * 10)
    assert built(plan, TALK, known).summaries == (known,)


def test_what_was_left_out_stays_out_until_the_budget_is_reached_again() -> None:
    """So requests keep the same beginning, and a provider's prompt cache holds."""
    plan = ContextPlan(max_chars=90, down_to=45)
    first = built(plan)
    assert first.dropped == ((1, 6),)
    more = (*TALK, answer("D" * 10), user("e" * 30))
    again = plan.build(more, dropped=first.dropped)
    assert type(again) is BuiltContext
    assert (again.dropped, messages_chars(again.messages)) == (((1, 6),), 80)
    assert again.messages[: len(first.messages)] == first.messages
    more = (*more, answer("E" * 10), user("f"))
    anew = plan.build(more, dropped=again.dropped)
    assert type(anew) is BuiltContext
    assert (anew.dropped, messages_chars(anew.messages)) == (((1, 13),), 11)
    assert built(plan, TALK[:4]).dropped == ()


def test_what_was_left_out_and_is_kept_now_is_there_again() -> None:
    plan = ContextPlan(max_chars=110, keep_last=3)
    made = plan.build(TALK, dropped=((1, 6),))
    assert type(made) is BuiltContext
    assert made.dropped == ((1, 4),)
    for start, end in ((0, 4), (1, 5), (2, 4), (1, 11)):
        with pytest.raises(InputError, match=f"dropped: expected ranges of whole turns, got {start} to {end}"):
            plan.build(TALK, dropped=[(start, end)])
    for wrong in ("ab", ((1,),), ([1, 4],)):
        with pytest.raises(InputError, match=re.escape("dropped: expected a tuple of (start, end)")):
            plan.build(TALK, dropped=wrong)  # type: ignore[arg-type]
    for pair in ((4, 1), (-1, 4), (1, 4.0)):
        with pytest.raises(InputError, match=r"dropped\.(start|end): expected an integer"):
            plan.build(TALK, dropped=[pair])  # type: ignore[list-item]


# -- summarising

HEADED = len(SUMMARY_HEADING) + 2
SUMMARISE = ContextPlan(
    max_chars=50 + HEADED, strategy="summarise", summary=Summary(instruction="In short.", max_chars=10)
)


def test_a_summary_is_needed_of_the_oldest_turns_that_have_to_go() -> None:
    made = needed(SUMMARISE)
    assert (made.start, made.end, made.summary) == (1, 6, SUMMARISE.summary)
    assert made.messages == TALK[1:6]


def test_a_summary_stands_as_a_user_message_at_the_place_of_its_turns() -> None:
    """Made from what people and tools said, it is never an instruction (R34)."""
    text = SummaryOf(start=1, end=6, text="x" * 10, ref="call 1")
    made = built(SUMMARISE, TALK, text)
    assert made.messages == (TALK[0], summary_message("x" * 10), *TALK[6:])
    assert type(made.messages[1]) is UserMessage
    assert made.messages[1].content == f"{SUMMARY_HEADING}\n\n{'x' * 10}"
    assert (made.summaries, made.dropped) == ((text,), ())
    assert messages_chars(made.messages) == SUMMARISE.max_chars


def test_a_known_summary_is_read_for_the_next_one_in_place_of_its_turns() -> None:
    known = SummaryOf(start=1, end=4, text="known")
    more = needed(SUMMARISE, TALK, known)
    assert (more.start, more.end) == (1, 6)
    assert more.messages == (summary_message("known"), *TALK[4:6])
    wider = SummaryOf(start=1, end=6, text="wider")
    assert built(SUMMARISE, TALK, known, wider).summaries == (wider,)


def test_summaries_go_by_what_they_come_to_and_not_by_their_room() -> None:
    """Nothing is asked for where what is known already fits."""
    plan = msgspec.structs.replace(SUMMARISE, max_chars=HEADED + 3 + 10 + 50)
    assert built(plan, TALK, SummaryOf(start=1, end=4, text="abc")).summaries[0].end == 4
    assert needed(plan, TALK, SummaryOf(start=1, end=4, text="abcd")).end == 6


def test_a_summary_that_came_out_too_long_is_followed_by_one_of_more_turns_or_by_none() -> None:
    """Never by one of fewer, which would not be used beside it: whoever asks a model comes to an end."""
    said: tuple[Message, ...] = (*[user("q" * 20), answer("A" * 10)] * 6, user("d" * 10))
    plan = msgspec.structs.replace(SUMMARISE, max_chars=110 + HEADED)
    assert needed(plan, said).end == 6
    assert needed(plan, said, SummaryOf(start=0, end=8, text="x" * 60)).end == 10
    known = [SummaryOf(start=1, end=6, text="x" * 11)]
    assert needed(SUMMARISE, TALK, *known).end == 9
    known.append(SummaryOf(start=1, end=9, text="x" * 31))
    with pytest.raises(LimitExceeded, match=f"max_context_chars: allowed {50 + HEADED}, got at least {51 + HEADED}"):
        SUMMARISE.build(TALK, summaries=known)


def test_turns_on_both_sides_of_a_kept_one_have_a_summary_each() -> None:
    plan = msgspec.structs.replace(SUMMARISE, max_chars=40 + 2 * (HEADED + 10), keep_last=1, pinned=(4,))
    said = (*TALK[:6], user("c" * 90), answer("C"), TALK[9])
    first = needed(plan, said)
    assert (first.start, first.end) == (1, 4)
    one = SummaryOf(start=1, end=4, text="1" * 10)
    second = needed(plan, said, one)
    assert (second.start, second.end) == (6, 8)
    two = SummaryOf(start=6, end=8, text="2" * 10)
    made = built(plan, said, two, one)
    assert made.summaries == (one, two)
    assert made.messages == (said[0], summary_message(one.text), *said[4:6], summary_message(two.text), said[8])


def test_a_summary_of_a_turn_that_is_kept_is_not_used() -> None:
    plan = msgspec.structs.replace(SUMMARISE, pinned=(4,), max_chars=70 + HEADED)
    assert needed(plan, TALK, SummaryOf(start=1, end=6, text="x")).end == 4


def test_system_messages_are_neither_summarised_nor_read_for_a_summary() -> None:
    said = (user("a" * 99), system("N"), answer("A" * 99), user("b"))
    made = needed(SUMMARISE, said)
    assert made.messages == (said[0], said[2])
    whole = built(SUMMARISE, said, SummaryOf(start=made.start, end=made.end, text="x"))
    assert whole.messages == (summary_message("x"), said[1], said[3])


def test_no_summary_is_asked_for_that_could_not_fit() -> None:
    plan = msgspec.structs.replace(SUMMARISE, max_chars=20 + HEADED + 9)
    with pytest.raises(LimitExceeded, match=f"max_context_chars: allowed {29 + HEADED}, got at least {30 + HEADED}"):
        plan.build(TALK)


def test_where_summaries_make_messages_longer_the_refusal_says_what_they_come_to_without() -> None:
    said = (user("q" * 10), answer("A" * 10), user("d" * 10))
    plan = ContextPlan(max_chars=29, strategy="summarise", summary=Summary(max_chars=20))
    with pytest.raises(LimitExceeded, match="max_context_chars: allowed 29, got at least 30"):
        plan.build(said)


def test_a_summary_of_parts_of_turns_or_across_another_one_is_refused() -> None:
    for start, end in ((0, 4), (1, 5), (2, 4), (1, 11)):
        with pytest.raises(InputError, match=f"expected one of whole turns, got {start} to {end}"):
            SUMMARISE.build(TALK, summaries=[SummaryOf(start=start, end=end, text="x")])
    crossing = [SummaryOf(start=1, end=6, text="x"), SummaryOf(start=4, end=9, text="y")]
    with pytest.raises(InputError, match="expected no overlap, got one at 4 to 9"):
        SUMMARISE.build(TALK, summaries=crossing)


def test_a_budget_in_tokens_keeps_room_for_a_summary_in_tokens() -> None:
    with pytest.raises(InputError, match=r"ContextPlan\.summary: expected max_tokens="):
        ContextPlan(max_tokens=8, strategy="summarise")
    plan = ContextPlan(max_tokens=9, strategy="summarise", summary=Summary(max_tokens=3))
    made = plan.build(TALK, count=len)
    assert type(made) is NeedsSummary
    assert (made.start, made.end) == (1, 6)


def test_a_summary_has_room_for_2000_characters_unless_said() -> None:
    assert (Summary().max_chars, Summary().max_tokens) == (2_000, None)
    assert ContextPlan(max_chars=1).summary == Summary()


# -- checks

ILLEGAL = (math.nan, -math.inf, -1, -1.0, 1.0, 0.5, True, False, 2**53, 10**40, "1")


@pytest.mark.parametrize("value", ILLEGAL)
def test_a_budget_in_characters_is_a_safe_integer_or_infinity(value: object) -> None:
    """(R251, R252)"""
    for make in (
        lambda: ContextPlan(max_chars=value),  # type: ignore[arg-type]
        lambda: BuiltContext(messages=(), max_chars=value, source_messages=0),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            InputError, match=r"max_chars: expected an integer from 0 to 9007199254740991, or math\.inf"
        ):
            make()
    for budget in (0, 2**53 - 1, math.inf):
        assert ContextPlan(max_chars=budget).max_chars == budget
        assert BuiltContext(messages=(), max_chars=budget, source_messages=0).max_chars == budget


@pytest.mark.parametrize("value", [*ILLEGAL, math.inf])
def test_a_budget_in_tokens_is_a_safe_integer(value: object) -> None:
    """(R252)"""
    with pytest.raises(InputError, match=r"ContextPlan\.max_tokens: expected an integer from 0"):
        ContextPlan(max_tokens=value)  # type: ignore[arg-type]


def test_a_plan_has_exactly_one_budget() -> None:
    """(R252)"""
    for max_chars in (None, 1):
        with pytest.raises(InputError, match="expected a budget, either max_chars= or max_tokens="):
            ContextPlan(max_chars=max_chars, max_tokens=max_chars)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"down_to": 2}, "ContextPlan.down_to: expected an integer from 0 to 1, got 2"),
        ({"down_to": -1}, "ContextPlan.down_to: expected an integer from 0"),
        ({"down_to": True}, "ContextPlan.down_to: expected an integer from 0"),
        ({"down_to": math.inf, "max_chars": math.inf}, "ContextPlan.down_to: expected an integer from 0"),
        ({"keep_last": 0}, "ContextPlan.keep_last: expected an integer from 1"),
        ({"keep_last": True}, "ContextPlan.keep_last: expected an integer from 1"),
        ({"pinned": [1]}, "ContextPlan.pinned: expected a tuple"),
        ({"pinned": (-1,)}, "ContextPlan.pinned: expected an integer from 0"),
        ({"pinned": (True,)}, "ContextPlan.pinned: expected a tuple of places and user messages"),
        ({"pinned": (TALK[0],)}, "ContextPlan.pinned: expected a tuple of places and user messages"),
        ({"strategy": "forget"}, "ContextPlan.strategy: expected 'drop' or 'summarise'"),
        ({"strategy": Word("drop")}, "ContextPlan.strategy: expected 'drop' or 'summarise'"),
        ({"summary": "short"}, "ContextPlan.summary: expected Summary, got str"),
        ({"strategy": "summarise"}, "ContextPlan.summary: expected max_chars below the plan's 1, got 2000"),
        (
            {"strategy": "summarise", "max_chars": 50, "summary": Summary(max_chars=50)},
            "ContextPlan.summary: expected max_chars below the plan's 50, got 50",
        ),
        (
            {"strategy": "summarise", "max_chars": None, "max_tokens": 9, "summary": Summary(max_tokens=9)},
            "ContextPlan.summary: expected max_tokens below the plan's 9, got 9",
        ),
        ({"messages": [TALK[0]]}, "ContextPlan.messages: expected a tuple of messages, got list"),
        ({"messages": ("secret",)}, "ContextPlan.messages[0]: expected a message, got str"),
    ],
)
def test_a_plan_is_checked_when_it_is_made(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        ContextPlan(**{"max_chars": 1, **fields})  # type: ignore[arg-type]


def test_room_for_a_summary_counts_only_where_one_is_asked_for_and_in_the_unit_of_the_budget() -> None:
    ContextPlan(max_chars=1)
    ContextPlan(max_chars=math.inf, strategy="summarise")
    ContextPlan(max_chars=51, strategy="summarise", summary=Summary(max_chars=50, max_tokens=900))
    ContextPlan(max_tokens=10, strategy="summarise", summary=Summary(max_tokens=9))


def test_what_is_said_before_any_reply_is_one_turn_and_places_count_instructions() -> None:
    said = (SystemMessage(content="i"), user("a" * 9), user("b" * 9), answer("c" * 9), user("d" * 9))
    made = ContextPlan(max_chars=20).build(said)
    assert type(made) is BuiltContext
    assert made.dropped == ((1, 4),)
    with pytest.raises(LimitExceeded):
        ContextPlan(max_chars=20, pinned=(2,)).build(said)  # the place of b, whose turn has a and c too
    with pytest.raises(LimitExceeded):
        ContextPlan(max_chars=15).build(said[:3])  # without a reply all of it is one turn, and the newest


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (Summary, {"instruction": ""}, "Summary.instruction: expected a non-empty string"),
        (Summary, {"instruction": b"secret"}, "Summary.instruction: expected a non-empty string"),
        (Summary, {"max_chars": 0}, "Summary.max_chars: expected an integer from 1"),
        (Summary, {"max_tokens": 0}, "Summary.max_tokens: expected an integer from 1"),
        (SummaryOf, {"start": 1, "end": 1, "text": "x"}, "SummaryOf.end: expected an integer from 2"),
        (SummaryOf, {"start": -1, "end": 1, "text": "x"}, "SummaryOf.start: expected an integer from 0"),
        (SummaryOf, {"start": 0, "end": 1, "text": ""}, "SummaryOf.text: expected a non-empty string"),
        (SummaryOf, {"start": 0, "end": 1, "text": "x", "ref": ""}, "SummaryOf.ref: expected None or"),
        (
            BuiltContext,
            {"messages": [], "max_chars": 1, "source_messages": 0},
            "BuiltContext.messages: expected a tuple",
        ),
        (
            BuiltContext,
            {"messages": (), "max_chars": 1, "source_messages": 2, "dropped": ((1, 3),)},
            "BuiltContext.end: expected an integer from 2 to 2, got 3",
        ),
        (
            BuiltContext,
            {"messages": (), "max_chars": 1, "source_messages": 2, "dropped": ([1, 2],)},
            "BuiltContext.dropped: expected a tuple of (start, end)",
        ),
        (
            BuiltContext,
            {"messages": (), "max_chars": 1, "source_messages": 2, "summaries": ("secret",)},
            "BuiltContext.summaries: expected SummaryOf values only",
        ),
    ],
)
def test_what_a_plan_is_given_and_builds_is_checked(kind: type, fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        kind(**fields)


# -- any conversation

plans = st.builds(
    ContextPlan,
    max_chars=st.integers(0, 200),
    keep_last=st.integers(1, 3),
    pinned=st.lists(st.integers(0, 12) | st.just(user("")), max_size=2).map(tuple),
)
talks = st.lists(messages, max_size=12).map(tuple)


def turns(said: Sequence[Message]) -> list[list[int]]:
    """The places of each turn's messages, leading ones first; the definition, said another way."""
    found: list[list[int]] = [[]]
    for at, message in enumerate(said):
        before = [kind for kind in map(type, said[:at]) if kind is not SystemMessage]
        first = not before and type(message) is not SystemMessage
        if first or (type(message) is UserMessage and before[-1] is ModelExchange):
            found.append([])
        found[-1].append(at)
    return found


def must_stay(plan: ContextPlan, said: Sequence[Message]) -> list[bool]:
    """Of each turn whether it is kept, leading messages first."""
    ranges = turns(said)
    return [
        at == 0
        or at > len(ranges) - 1 - plan.keep_last
        or any(place in plan.pinned or said[place] in plan.pinned for place in places)
        for at, places in enumerate(ranges)
    ]


def kept_after(said: Sequence[Message], out: list[int]) -> list[Message]:
    ranges = turns(said)
    gone = {place for at in out for place in ranges[at] if type(said[place]) is not SystemMessage}
    return [message for at, message in enumerate(said) if at not in gone]


@settings(max_examples=300, deadline=None)
@given(plan=plans, said=talks)
def test_what_is_left_out_is_the_shortest_row_of_the_oldest_turns_that_fits(
    plan: ContextPlan, said: tuple[Message, ...]
) -> None:
    """It fits or is refused; whole turns go, oldest first; the rest is the same objects in their order."""
    loose = [at for at, stays in enumerate(must_stay(plan, said)) if not stays]
    wanted = next(
        (
            row
            for row in (kept_after(said, loose[:count]) for count in range(len(loose) + 1))
            if messages_chars(row) <= plan.max_chars  # type: ignore[operator]
        ),
        None,
    )
    if wanted is None:
        with pytest.raises(LimitExceeded) as caught:
            plan.build(said)
        assert caught.value.got == messages_chars(kept_after(said, loose))
        return
    made = built(plan, said)
    assert [id(message) for message in made.messages] == [id(message) for message in wanted]
    gone = [at for start, end in made.dropped for at in range(start, end) if type(said[at]) is not SystemMessage]
    assert len(gone) == len(said) - len(wanted)


@settings(max_examples=200, deadline=None)
@given(plan=plans, said=talks, strategy=st.sampled_from(["drop", "summarise"]), data=st.data())
def test_building_what_was_built_changes_nothing(
    plan: ContextPlan, said: tuple[Message, ...], strategy: str, data: st.DataObject
) -> None:
    """Same input, same output; and with every summary that it asks for, it fits."""
    assert plan.max_chars is not None
    max_chars = max(7, plan.max_chars)
    plan = msgspec.structs.replace(plan, strategy=strategy, summary=Summary(max_chars=6), max_chars=max_chars)
    known: list[SummaryOf] = []
    try:
        while type(made := plan.build(said, summaries=known)) is NeedsSummary:
            assert made == plan.build(said, summaries=known)
            assert len(known) <= len(said), "each one asked for is a step on"
            text = data.draw(st.text(min_size=1, max_size=6))
            known.append(SummaryOf(start=made.start, end=made.end, text=text))
    except LimitExceeded:
        return
    assert type(made) is BuiltContext
    assert made == plan.build(said, summaries=known)
    assert messages_chars(made.messages) <= plan.max_chars  # type: ignore[operator]
    assert built(plan, made.messages).messages is made.messages
    assert [m for m in made.messages if type(m) is SystemMessage] == [m for m in said if type(m) is SystemMessage]
    stays = must_stay(plan, said)
    kept = {id(message) for message in made.messages}
    assert all(id(said[place]) in kept for at, places in enumerate(turns(said)) if stays[at] for place in places)


@settings(max_examples=200, deadline=None)
@given(plan=plans, said=talks, down_to=st.integers(0, 200), more=talks)
def test_a_lower_mark_is_reached_where_it_can_be_and_the_beginning_stays(
    plan: ContextPlan, said: tuple[Message, ...], down_to: int, more: tuple[Message, ...]
) -> None:
    """It refuses what the same plan without it refuses, and nothing else."""
    plan = msgspec.structs.replace(plan, pinned=())
    low = msgspec.structs.replace(plan, down_to=min(down_to, plan.max_chars))  # type: ignore[type-var]
    try:
        just = built(plan, said)
    except LimitExceeded:
        with pytest.raises(LimitExceeded):
            low.build(said)
        return
    made = built(low, said)
    assert made == built(low, said)
    assert bool(made.dropped) == bool(just.dropped)
    loose = [at for at, stays in enumerate(must_stay(plan, said)) if not stays]
    if made.dropped and messages_chars(made.messages) > low.down_to:  # type: ignore[operator]
        assert list(made.messages) == kept_after(said, loose)
    if not made.dropped:
        return
    longer = (*said, *more)
    again = low.build(longer, dropped=made.dropped) if fits(low, longer, made) else None
    if type(again) is BuiltContext and again.dropped:
        assert again.messages[: len(made.messages)] == made.messages
        assert again.dropped == made.dropped


def fits(plan: ContextPlan, longer: Sequence[Message], before: BuiltContext) -> bool:
    """Whether a longer talk fits with what was left out of the shorter one."""
    added = longer[before.source_messages :]
    return messages_chars([*before.messages, *added]) <= plan.max_chars  # type: ignore[operator]


# -- what goes on with a turn


STEERED: tuple[Message, ...] = (
    user("a" * 10),  # 0: the first turn
    answer("A" * 10),
    user("b" * 10),  # 2: goes on with it
    answer("B" * 10),
    user("c" * 10),  # 4: the second
    answer("C" * 10),
    user("d" * 10),  # 6: the newest
)


def test_a_user_message_that_goes_on_with_its_turn_stays_and_goes_with_it() -> None:
    plan = ContextPlan(max_chars=60)
    made = plan.build(STEERED, steers=(2,))
    assert isinstance(made, BuiltContext)
    assert (made.messages, made.dropped) == (STEERED[4:], ((0, 4),))
    assert built(plan, STEERED).dropped == ((0, 2),)
    kept = ContextPlan(max_chars=60, pinned=(user("b" * 10),)).build(STEERED, steers=(2,))
    assert isinstance(kept, BuiltContext)
    assert kept.dropped == ((4, 6),)
    again = plan.build(STEERED, steers=(2,), dropped=((0, 4),))
    assert isinstance(again, BuiltContext)
    assert again.dropped == ((0, 4),)
    with pytest.raises(InputError, match="dropped: expected ranges of whole turns, got 0 to 2"):
        plan.build(STEERED, steers=(2,), dropped=((0, 2),))


def test_a_summary_stands_for_a_turn_with_what_goes_on_with_it() -> None:
    plan = ContextPlan(max_chars=39, strategy="summarise", summary=Summary(max_chars=9), keep_last=2)
    with pytest.raises(LimitExceeded):
        plan.build(STEERED, steers=(2,))
    longer = tuple(user("x" * 100) if isinstance(message, UserMessage) else message for message in STEERED)
    needed = msgspec.structs.replace(plan, max_chars=400).build(longer, steers=(2,))
    assert isinstance(needed, NeedsSummary)
    assert (needed.start, needed.end, needed.messages) == (0, 4, longer[:4])
