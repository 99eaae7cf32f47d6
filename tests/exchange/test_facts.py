"""Facts as JSON: what is written comes back, exactly."""

from __future__ import annotations

import sys
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.exchange import (
    ExchangeRef,
    Fact,
    OriginOpened,
    ReplyTaken,
    RequestRef,
    RunClosed,
    SendEnded,
    SendStarted,
    SlotMoved,
)
from agentloop.messages import ModelOptions, ToolFeedback, UserMessage
from tests.exchange.desk import Desk, asking
from tests.messages import values
from tests.messages.values import call, reply

KINDS = get_args(Fact)
DECODER = msgspec.json.Decoder(Fact)

texts, counts = values.texts, values.counts
some = st.text(min_size=1, max_size=9)
said = st.lists(values.messages.filter(lambda m: not hasattr(m, "reply")), max_size=3).map(tuple)
refs = st.builds(ExchangeRef, origin_id=texts, index=counts, digest=texts)
feedback = st.builds(ToolFeedback.of, some, values.results)
states = st.sampled_from(["open", "started", "done", "failed", "unknown", "skipped", "waiting"])
facts = st.one_of(
    st.builds(
        OriginOpened,
        run_id=texts,
        origin_id=texts,
        digest=texts,
        conversation=st.none() | texts,
        continues=st.none() | refs,
        messages=said,
        options=values.options,
        tools=st.lists(values.specs, max_size=2).map(tuple),
        catalogue_digest=texts,
        input_digest=texts,
        agent=texts,
        at_ms=counts,
        checkpoint=st.booleans(),
    ),
    st.builds(
        SendStarted,
        run_id=texts,
        attempt_id=texts,
        request=st.builds(RequestRef, origin_id=texts, exchanges=counts, digest=texts),
        call_sequence=counts,
        model=texts,
        at_ms=counts,
    ),
    st.builds(
        SendEnded,
        run_id=texts,
        attempt_id=texts,
        outcome=st.sampled_from(["replied", "failed", "abandoned"]),
        at_ms=st.none() | counts,
        code=st.none() | texts,
        may_have_been_processed=st.booleans(),
        usage=st.none() | values.usages,
    ),
    st.builds(ReplyTaken, run_id=texts, origin_id=texts, index=counts, attempt_id=texts, reply=values.replies),
    st.builds(
        SlotMoved,
        run_id=texts,
        origin_id=texts,
        exchange=counts,
        position=counts,
        state=states,
        at_ms=st.none() | counts,
        effect_id=st.none() | texts,
        attempt=counts,
        feedback=st.none() | feedback,
        code=st.none() | texts,
    ),
    st.builds(
        RunClosed,
        run_id=texts,
        outcome=st.sampled_from(["completed", "refused", "incomplete", "limit_reached", "failed", "cancelled"]),
        reason=st.none() | texts,
        at_ms=counts,
    ),
)


@settings(max_examples=200, deadline=None)
@given(facts)
def test_a_fact_comes_back_from_its_json(fact: Any) -> None:
    """(R89)"""
    data = msgspec.json.encode(fact)
    again = DECODER.decode(data)
    assert type(again) is type(fact)
    assert again == fact
    assert msgspec.json.encode(again) == data  # also where equal values are not the same: -0.0, 1 and 1.0


def reread(desk: Desk) -> Desk:
    """Another book over the facts as they were written and read."""
    again = Desk()
    again.add(tuple(DECODER.decode(msgspec.json.encode(fact)) for fact in desk.facts))
    return again


@pytest.mark.parametrize(
    "text",
    [
        "-0",
        '{"n":-0}',
        '{"n":-0.0}',
        '{"n":0}',
        f'{{"n":{"9" * 40}}}',
        f'{{"n":{"9" * 39}8}}',
        '{"n":1e400}',
        '{"a":1,"a":2}',
        "{not json",
        "",
        " {}\n",
    ],
)
def test_argument_text_survives_storage_and_each_text_has_its_own_digest(text: str) -> None:
    """(R18, R89)"""
    desk = Desk()
    turn = desk.open()
    desk.exchange(turn, reply(call("a", arguments=text), word="tool_calls"))
    again = reread(desk).book.turn("r1")
    assert again.entries[0].reply.calls[0].arguments.text == text
    assert again.digests == turn.digests

    plain = Desk()
    other = plain.open()
    plain.exchange(other, reply(call("a", arguments='{"n":1}'), word="tool_calls"))
    assert other.digests[1] != turn.digests[1]


def test_every_unicode_scalar_survives_storage() -> None:
    """(R89)"""
    scalars = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    desk = Desk(item_bytes=2**26, total_bytes=2**28)
    turn = desk.open("r1", UserMessage(content=scalars))
    desk.exchange(turn, reply(call("a", arguments=scalars), word="tool_calls"), scalars)
    again = reread(desk).book.turn("r1")
    assert again.opened.messages == (UserMessage(content=scalars),)
    assert again.exchanges == turn.exchanges
    assert again.digests == turn.digests


def test_minus_zero_of_an_option_survives_storage() -> None:
    """(R89)"""
    desk = Desk()
    desk.open("r1", options=ModelOptions(temperature=-0.0, seed=-(10**40)))
    options = reread(desk).book.turn("r1").opened.options
    assert str(options.temperature) == "-0.0"
    assert options.seed == -(10**40)


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"version": 3}, {"version": "2"}, {"fact": "other"}, {"surplus": 1}]
)
def test_a_fact_of_another_version_or_shape_is_refused(change: dict[str, Any]) -> None:
    """(R39, R40)"""
    record = msgspec.json.decode(msgspec.json.encode(RunClosed(run_id="r", outcome="failed", reason=None, at_ms=1)))
    assert type(DECODER.decode(msgspec.json.encode(record))) is RunClosed
    with pytest.raises(msgspec.ValidationError):
        DECODER.decode(msgspec.json.encode({**record, **change}))


def test_facts_are_frozen() -> None:
    desk = Desk()
    desk.take(desk.open(), asking("a"))
    for fact in desk.facts:
        with pytest.raises(AttributeError):
            fact.run_id = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", [*KINDS, ExchangeRef, RequestRef])
def test_a_fact_is_in_no_cycle_so_the_collector_does_not_look_at_it(kind: type[msgspec.Struct]) -> None:
    assert not kind.__struct_config__.gc
