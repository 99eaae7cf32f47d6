"""Which refused request is sent once more, when, and to whom: the policy as a function of facts."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.effects import Place, Resend, next_attempt
from agentloop.exchange import SendEnded
from agentloop.testing import ScriptedProvider
from tests.exchange.desk import Desk

OPTED = al.ResendPolicy(on_unavailable=True)
ASKED_TWICE = al.ResendPolicy(on_refused_stream=True)


def end(code: str = "http_status", *, processed: bool = False, **fields: Any) -> SendEnded:
    """The end of an attempt that failed."""
    fields = {"outcome": "failed", "at_ms": 1, **fields}
    return SendEnded(run_id="r", attempt_id="a", code=code, may_have_been_processed=processed, **fields)


def cut(code: str = "truncated", *, previewed: bool | None = False, **fields: Any) -> SendEnded:
    """The end of an attempt whose stream was refused."""
    return end(code, processed=True, stream_refused=True, previewed=previewed, **fields)


BUSY = end(status=429)
DOWN = end("connection_failed")


# -- its fields


@pytest.mark.parametrize(
    ("field", "good", "wrong"),
    [
        ("max_resends", [0, 2, 100], [-1, 101, True, 1.0, None]),
        ("on_connection_failed", [True, False], [1, None]),
        ("on_rate_limit", [True, False], [0, "yes"]),
        ("on_unavailable", [True, False], [503]),
        ("on_refused_stream", [True, False], [None, 1, "truncated"]),
        ("delay", [0.001, 1, 60], [0, -1.0, math.inf, math.nan, True, None, 61]),
        ("max_delay", [0.5, 1, 3600], [0, 0.4, math.inf, None]),
        ("fallbacks", [(), (ScriptedProvider([]),)], [None, [ScriptedProvider([])], ("model",)]),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(field: str, good: list[Any], wrong: list[Any]) -> None:
    for value in good:
        assert getattr(al.ResendPolicy(**{field: value}), field) == value
    for value in wrong:
        with pytest.raises(al.InputError, match=rf"^ResendPolicy\.(max_delay|{field}(\[0\])?): expected .+, got "):
            al.ResendPolicy(**{field: value})


def test_it_is_frozen_and_given_by_name() -> None:
    with pytest.raises(AttributeError):
        al.ResendPolicy().max_resends = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        al.ResendPolicy(3)  # type: ignore[misc]
    with pytest.raises(al.InputError, match=r"^ResendPolicy\.max_delay: expected at least delay \(5 s\), got 4"):
        msgspec.structs.replace(al.ResendPolicy(delay=4, max_delay=4), delay=5)


# -- what may be followed by another attempt


@pytest.mark.parametrize(
    ("ended", "policy", "allowed"),
    [
        (DOWN, al.ResendPolicy(), True),
        (DOWN, al.ResendPolicy(on_connection_failed=False), False),
        (end("connection_failed", processed=True), al.ResendPolicy(), False),
        (BUSY, al.ResendPolicy(), True),
        (BUSY, al.ResendPolicy(on_rate_limit=False), False),
        (end(status=429, processed=True), OPTED, False),
        (end(status=503, processed=True), al.ResendPolicy(), False),
        (end(status=503, processed=True), OPTED, True),
        (end(status=503), al.ResendPolicy(), False),
        (end(status=400), OPTED, False),
        (end(status=307), OPTED, False),
        (end(status=500, processed=True), OPTED, False),
        (end(status=502, processed=True), OPTED, False),
        (end(), OPTED, False),  # of a record that tells no status
        (end("connection_lost", processed=True), OPTED, False),
        (end("total_timeout", processed=True), OPTED, False),
        (end("first_event_timeout", processed=True), OPTED, False),
        (end("truncated", processed=True), OPTED, False),
        (end("not_event_stream", processed=True), OPTED, False),
        (end("limit"), OPTED, False),
        (end("provider"), OPTED, False),
        (end("connection_failed", outcome="abandoned"), OPTED, False),
        (end("cancelled", outcome="abandoned", processed=True), OPTED, False),
        (end(outcome="abandoned", status=429), OPTED, False),
        (end("declared_failed", author="Ann", processed=True), OPTED, False),
        (end(author="Ann", status=429), OPTED, False),
        (end(outcome="replied", status=429), OPTED, False),
    ],
)
def test_only_what_was_not_processed_and_was_asked_for_is_sent_once_more(
    ended: SendEnded, policy: al.ResendPolicy, allowed: bool
) -> None:
    """(R121, R142)"""
    assert policy.allows(ended) is allowed


@pytest.mark.parametrize(
    ("ended", "allowed"),
    [
        *(
            (cut(code), True)
            for code in ("truncated", "missing_done", "vendor_error", "not_event_stream", "bad_framing")
        ),
        *((cut(code), False) for code in ("total_timeout", "first_event_timeout", "idle_timeout", "oversized")),
        (cut(previewed=True), False),
        (cut(previewed=None), False),
        (cut(author="Ann"), False),
        (cut(outcome="abandoned"), False),
        (cut(outcome="replied"), False),
        (end("truncated", processed=True, previewed=False), False),  # an error of that code, of no stream
        (end("truncated", processed=True), False),  # of a record that tells neither
        (end("connection_lost", processed=True, previewed=False), False),
        (end("total_timeout", processed=True, previewed=False), False),
    ],
)
def test_a_refused_stream_is_followed_by_another_attempt_only_where_the_host_said_so_and_nothing_was_shown(
    ended: SendEnded, allowed: bool
) -> None:
    """(R114, R121)"""
    assert ASKED_TWICE.allows(ended) is allowed
    assert not OPTED.allows(ended)


CODES = [
    *("connection_failed", "connection_lost", "http_status", "provider", "cancelled", "delivery", "paused", "limit"),
    *("truncated", "missing_done", "vendor_error", "not_event_stream", "oversized", "declared_failed", "pending"),
    *("total_timeout", "first_event_timeout", "idle_timeout", "call_timeout"),
]
ENDS = st.builds(
    SendEnded,
    run_id=st.just("r"),
    attempt_id=st.just("a"),
    outcome=st.sampled_from(["replied", "failed", "abandoned"]),
    at_ms=st.just(1),
    code=st.none() | st.sampled_from(CODES),
    may_have_been_processed=st.booleans(),
    author=st.none() | st.just("Ann"),
    status=st.none() | st.sampled_from([400, 429, 500, 503]),
    stream_refused=st.booleans(),
    previewed=st.none() | st.booleans(),
)
POLICIES = st.builds(
    al.ResendPolicy,
    on_connection_failed=st.booleans(),
    on_rate_limit=st.booleans(),
    on_unavailable=st.booleans(),
    on_refused_stream=st.booleans(),
)


@given(ended=ENDS, policy=POLICIES)
@settings(max_examples=500)
def test_nothing_follows_what_was_shown_or_cut_off_by_this_side_or_settled(
    ended: SendEnded, policy: al.ResendPolicy
) -> None:
    """(R114, R121, R267)"""
    if not policy.allows(ended):
        return
    assert (ended.outcome, ended.author) == ("failed", None)
    assert not ended.previewed
    if ended.stream_refused:
        assert policy.on_refused_stream
        assert ended.previewed is False
        assert ended.code not in ("total_timeout", "first_event_timeout", "idle_timeout", "oversized")
    elif ended.status == 503:
        assert policy.on_unavailable
    else:
        assert not ended.may_have_been_processed
        assert policy.on_rate_limit if ended.status == 429 else policy.on_connection_failed
        assert ended.status == 429 or ended.code == "connection_failed"


@given(ended=ENDS, policy=POLICIES)
@settings(max_examples=500)
def test_a_stream_that_was_not_refused_is_judged_the_same_with_and_without_the_word_for_refused_ones(
    ended: SendEnded, policy: al.ResendPolicy
) -> None:
    ended = msgspec.structs.replace(ended, stream_refused=False)
    with_it = msgspec.structs.replace(policy, on_refused_stream=True)
    without = msgspec.structs.replace(policy, on_refused_stream=False)
    assert with_it.allows(ended) is without.allows(ended)


# -- the next attempt of a call


def test_the_next_attempt_follows_from_the_facts_and_the_policy_alone() -> None:
    """(R114, R121)"""
    desk = Desk()
    turn = desk.open()
    policy = al.ResendPolicy(max_resends=1, on_refused_stream=True, delay=2, fallbacks=(ScriptedProvider([]),))
    assert next_attempt(turn, policy) is None
    for at_most in (2.0, 0.0, 2.0):
        attempt = desk.send(turn)
        assert next_attempt(turn, policy) is None
        desk.fail(turn, attempt, code="truncated", stream_refused=True, previewed=False)
        assert next_attempt(turn, policy) == Resend(attempt, "truncated", 0.0, at_most)
        assert next_attempt(turn, None) is None
        assert next_attempt(turn, OPTED) is None
    desk.fail(turn, desk.send(turn), code="truncated", stream_refused=True, previewed=False)
    assert next_attempt(turn, policy) is None


def test_an_attempt_that_was_previewed_is_the_last_one_whatever_came_before() -> None:
    """(R267)"""
    desk = Desk()
    turn = desk.open()
    for previewed in (False, True):
        desk.fail(turn, desk.send(turn), code="truncated", stream_refused=True, previewed=previewed)
        assert (next_attempt(turn, ASKED_TWICE) is None) is previewed


# -- to whom


def test_each_provider_is_asked_its_number_of_times_and_then_the_next_one() -> None:
    policy = al.ResendPolicy(max_resends=1, fallbacks=(ScriptedProvider([]), ScriptedProvider([])))
    places = [policy.place((BUSY,) * count) for count in range(7)]
    assert places == [Place(0, 0), Place(0, 1), Place(1, 0), Place(1, 1), Place(2, 0), Place(2, 1), None]


def test_a_server_that_asks_for_a_longer_wait_is_not_asked_again() -> None:
    later = end(status=429, retry_after=60.5)
    assert al.ResendPolicy().place((end(status=429, retry_after=60.0),)) == Place(0, 1)
    assert al.ResendPolicy().place((later,)) is None
    policy = al.ResendPolicy(fallbacks=(ScriptedProvider([]),))
    assert policy.place((later,)) == Place(1, 0)
    assert policy.place((BUSY, later, BUSY)) == Place(1, 1)
    assert policy.place((BUSY, later, later)) is None


@given(
    refused=st.lists(st.sampled_from([BUSY, DOWN, end(status=429, retry_after=1e6)]), max_size=40).map(tuple),
    resends=st.integers(0, 5),
    fallbacks=st.integers(0, 3),
)
def test_nobody_is_asked_more_often_than_said_and_nobody_is_gone_back_to(
    refused: tuple[SendEnded, ...], resends: int, fallbacks: int
) -> None:
    policy = al.ResendPolicy(max_resends=resends, fallbacks=(ScriptedProvider([]),) * fallbacks)
    places = [policy.place(refused[:count]) for count in range(len(refused) + 1)]
    asked = [place for place in places if place is not None]
    assert places[len(asked) :] == [None] * (len(places) - len(asked))
    steps = [(place.provider, place.resends) for place in asked]
    assert steps == sorted(set(steps))
    assert all(provider <= fallbacks and again <= resends for provider, again in steps)


# -- when


def test_the_wait_is_what_the_server_said_or_grows_and_has_an_end() -> None:
    policy = al.ResendPolicy(max_resends=100, delay=0.5, max_delay=3)
    waits = [policy.wait(BUSY, Place(0, number)) for number in range(1, 6)]
    assert waits == [(0, 0.5), (0, 1), (0, 2), (0, 3), (0, 3)]
    assert policy.wait(BUSY, Place(0, 100)) == (0, 3)
    assert policy.wait(end(status=429, retry_after=2.5), Place(0, 4)) == (2.5, 2.5)
    assert policy.wait(end(status=429, retry_after=0.0), Place(0, 4)) == (0, 0)


def test_another_provider_is_turned_to_at_once() -> None:
    assert al.ResendPolicy().wait(end(status=429, retry_after=99.0), Place(1, 0)) == (0, 0)
