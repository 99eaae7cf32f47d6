"""The fast encoding is the canonical one for what it is used on."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.admission import canonical, digest_bytes
from agentloop.exchange import canonical_bytes
from agentloop.exchange.encoding import EncodedFrame, EncodedOrigin, sorted_bytes
from agentloop.messages import ModelOptions, ToolFeedback
from tests.messages import values

anything = st.text(max_size=30)
feedback = st.builds(ToolFeedback.of, st.text(min_size=1, max_size=9), values.results)


@settings(max_examples=200, deadline=None)
@given(
    values.replies
    | feedback
    | values.messages
    | values.specs
    | st.lists(values.specs, max_size=2)
    | anything
    | st.none()
)
def test_sorted_bytes_are_canonical_bytes_where_no_float_is(value: Any) -> None:
    """(R89)"""
    plain = msgspec.json.decode(msgspec.json.encode(value))
    assert sorted_bytes(value) == canonical(plain) == canonical_bytes(value)


@given(st.characters(codec="utf-8"))
def test_every_character_is_escaped_as_the_canonical_form_says(character: str) -> None:
    """(R89)"""
    assert sorted_bytes(character) == canonical(character)


options = st.builds(ModelOptions, temperature=st.none() | st.floats(0, 2), seed=st.none() | st.integers())
said = st.lists(values.messages.filter(lambda m: not hasattr(m, "reply")), max_size=3).map(tuple)


@settings(max_examples=100, deadline=None)
@given(said, said, options, st.lists(values.specs, max_size=2).map(tuple), st.none() | anything)
def test_an_origin_is_weighed_and_digested_from_one_encoding(
    messages: Any, others: Any, options: ModelOptions, tools: Any, continues: str | None
) -> None:
    """(R89) Its parts are the canonical bytes, also where another origin has encoded the frame."""
    frame = EncodedFrame(options, tools)
    EncodedOrigin(others, frame).digest(continues)
    origin = EncodedOrigin(messages, frame)
    assert origin.sizes == [len(sorted_bytes(message)) for message in messages]
    assert origin.size == len(sorted_bytes(messages)) + len(sorted_bytes(options)) + len(sorted_bytes(tools))
    basis = {"continues": continues, "messages": messages, "options": options, "tools": tools}
    assert origin.digest(continues) == digest_bytes("agentloop/origin/v1", canonical_bytes(basis))


def test_floats_need_the_slower_one() -> None:
    assert canonical_bytes(ModelOptions(temperature=1.0)) == canonical_bytes(ModelOptions(temperature=1))
    assert canonical_bytes(ModelOptions(temperature=-0.0)) != canonical_bytes(ModelOptions(temperature=0.0))
    assert sorted_bytes(ModelOptions(temperature=1.0)) != sorted_bytes(ModelOptions(temperature=1))
