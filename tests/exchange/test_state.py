"""References to a prefix of one origin, and the request that is rebuilt from them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from agentloop.errors import ConflictError, HistoryError, InputError, LimitExceeded, LostError
from agentloop.exchange import RequestRef, Turn
from agentloop.messages import FunctionSpec, ModelOptions, SystemMessage, ToolChoice, UserMessage, require_model_request
from tests.exchange.desk import Desk, asking, refused
from tests.messages.values import call, reply

SPEC = FunctionSpec(name="read_note")


def with_exchanges(count: int, **fields: Any) -> tuple[Desk, Turn]:
    desk = Desk()
    turn = desk.open("r1", **fields)
    for at in range(count):
        desk.exchange(turn, asking("a", "b"), f"answer {at}")
    return desk, turn


def prefix(turn: Turn, count: int) -> RequestRef:
    return RequestRef(origin_id=turn.opened.origin_id, exchanges=count, digest=turn.digests[count])


def test_a_reference_names_an_origin_and_how_many_exchanges() -> None:
    """(R75)"""
    desk, turn = with_exchanges(2)
    assert desk.book.reference(turn) == prefix(turn, 2)
    assert RequestRef.__struct_fields__ == ("origin_id", "exchanges", "digest")


def test_every_prefix_of_one_origin_can_be_read() -> None:
    """(R77, R79)"""
    desk, turn = with_exchanges(3)
    for count in range(4):
        assert desk.book.closed(prefix(turn, count)) is turn
        request = desk.book.request(prefix(turn, count), max_bytes=100_000)
        assert request.exchanges == tuple(turn.exchanges[:count])


def test_a_digest_of_another_prefix_or_another_origin_is_refused() -> None:
    """(R77, R83)"""
    desk, turn = with_exchanges(2)
    other = desk.open("r2", UserMessage(content="other"))
    desk.exchange(other, asking("a", "b"), "answer 0")
    for count, digest in [(1, turn.digests[2]), (2, turn.digests[1]), (1, other.digests[1]), (0, "")]:
        ref = RequestRef(origin_id=turn.opened.origin_id, exchanges=count, digest=digest)
        refused(desk, partial(desk.book.closed, ref), ConflictError, "expected the digest of this prefix")


@pytest.mark.parametrize("count", [3, 100, -1])
def test_a_prefix_longer_than_what_is_complete_is_refused(count: int) -> None:
    """(R77)"""
    desk, turn = with_exchanges(2)
    ref = RequestRef(origin_id=turn.opened.origin_id, exchanges=count, digest=turn.digests[2])
    error = refused(desk, lambda: desk.book.closed(ref), HistoryError)
    assert (error.code, error.path) == ("missing_tool_result", "$.exchanges[2]")


def test_an_exchange_with_an_open_slot_is_not_complete() -> None:
    """(R13, R77)"""
    desk, turn = with_exchanges(1)
    desk.take(turn, asking("a", "b"))
    desk.run(turn, 1, 1)
    assert desk.book.reference(turn) == prefix(turn, 1)
    ref = RequestRef(origin_id=turn.opened.origin_id, exchanges=2, digest="")
    refused(desk, lambda: desk.book.request(ref, max_bytes=100_000), HistoryError, "expected 2 complete exchanges")
    desk.run(turn, 1, 0)
    assert desk.book.reference(turn).exchanges == 2


def test_an_origin_that_is_not_held_is_lost() -> None:
    """(R77)"""
    desk, _ = with_exchanges(1)
    error = refused(desk, lambda: desk.book.closed(RequestRef(origin_id="o9", exchanges=0, digest="")), LostError)
    assert (error.code, error.what, error.ref) == ("lost", "origin", "o9")


def test_the_request_is_the_origin_and_its_exchanges() -> None:
    """(R12, R76)"""
    said = (SystemMessage(content="Be brief."), UserMessage(content="hi"))
    desk = Desk()
    turn = desk.open("r1", *said, options=ModelOptions(temperature=0), tools=(SPEC,))
    desk.exchange(turn, asking("a"), "5")
    request = require_model_request(desk.book.request(desk.book.reference(turn), max_bytes=100_000))
    assert (request.messages, request.options, request.tools) == (said, ModelOptions(temperature=0), (SPEC,))
    assert [(e.reply, [f.text for f in e.feedback]) for e in request.exchanges] == [(asking("a"), ["5"])]


def test_rebuilding_shares_the_stored_exchanges_and_copies_none() -> None:
    """(R127)"""
    desk, turn = with_exchanges(3)
    one, two = (desk.book.request(desk.book.reference(turn), max_bytes=100_000) for _ in range(2))
    assert all(a is b is c for a, b, c in zip(one.exchanges, two.exchanges, turn.exchanges, strict=True))
    assert one.messages is two.messages is turn.history


@pytest.mark.parametrize("choice", ["required", ToolChoice(name="read_note")])
def test_a_forced_call_is_forced_in_the_first_model_call_only(choice: Any) -> None:
    """(R78)"""
    options = ModelOptions(tool_choice=choice, temperature=0)
    desk, turn = with_exchanges(1, options=options, tools=(SPEC,))
    assert desk.book.request(prefix(turn, 0), max_bytes=100_000).options == options
    later = desk.book.request(prefix(turn, 1), max_bytes=100_000).options
    assert later == ModelOptions(temperature=0)


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_that_forces_nothing_stays(choice: Any) -> None:
    options = ModelOptions(tool_choice=choice)
    desk, turn = with_exchanges(1, options=options)
    assert desk.book.request(prefix(turn, 1), max_bytes=100_000).options == options


def test_a_final_reply_asks_for_nothing_so_nothing_continues_it() -> None:
    """(R78)"""
    desk, turn = with_exchanges(1)
    desk.take(turn, reply())
    refused(desk, lambda: desk.book.request(prefix(turn, 2), max_bytes=100_000), InputError, "got a final reply")
    assert desk.book.request(prefix(turn, 1), max_bytes=100_000).exchanges == tuple(turn.exchanges[:1])


def test_the_request_limit_names_both_sizes_and_judges_the_prefix_that_is_asked_for() -> None:
    """(R78, R99)"""
    desk, turn = with_exchanges(2)
    whole = turn.request_size
    desk.book.request(prefix(turn, 2), max_bytes=whole)
    error = refused(desk, lambda: desk.book.request(prefix(turn, 2), max_bytes=whole - 1), LimitExceeded)
    assert (error.limit, error.allowed, error.got) == ("request_bytes", whole - 1, whole)
    desk.book.request(prefix(turn, 1), max_bytes=whole - 1)
    desk.take(turn, asking("c"))  # a reply that is not part of this prefix
    desk.book.request(prefix(turn, 2), max_bytes=whole)


def test_equal_calls_are_counted_over_the_run_by_name_and_text() -> None:
    desk = Desk()
    turn = desk.open()
    for arguments in ('{"a":1}', '{"a":1}', '{"a": 1}'):
        desk.exchange(turn, reply(call("x", "read", arguments), call("y", "write", arguments), word="tool_calls"))
    assert turn.equal_calls == {
        ("read", '{"a":1}'): 2,
        ("write", '{"a":1}'): 2,
        ("read", '{"a": 1}'): 1,
        ("write", '{"a": 1}'): 1,
    }


def test_the_attempts_that_failed_are_counted_until_a_reply_is_taken() -> None:
    desk, turn = with_exchanges(1)
    desk.fail(turn, desk.send(turn), processed=False, code="http_status", status=429, retry_after=2.0)
    desk.fail(turn, desk.send(turn), processed=False, code="connection_failed")
    assert [(end.code, end.status, end.retry_after) for end in turn.refused] == [
        ("http_status", 429, 2.0),
        ("connection_failed", None, None),
    ]
    desk.add(desk.book.settle_send(turn, desk.send(turn), author="Ann", at_ms=4))
    assert len(turn.refused) == 2
    desk.take(turn, asking("a"))
    assert turn.refused == ()
