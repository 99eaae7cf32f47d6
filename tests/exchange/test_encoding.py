"""The fast encoding is the canonical one for what it is used on."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.admission import canonical
from agentloop.exchange import canonical_bytes
from agentloop.exchange.encoding import sorted_bytes
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


def test_floats_need_the_slower_one() -> None:
    assert canonical_bytes(ModelOptions(temperature=1.0)) == canonical_bytes(ModelOptions(temperature=1))
    assert canonical_bytes(ModelOptions(temperature=-0.0)) != canonical_bytes(ModelOptions(temperature=0.0))
    assert sorted_bytes(ModelOptions(temperature=1.0)) != sorted_bytes(ModelOptions(temperature=1))
