"""Names as columns hold them."""

from __future__ import annotations

import pytest
from hypothesis import given as inputs
from hypothesis import strategies as st

from agentloop.persistence.postgres.schema import given, kept

NAMES = st.text(st.sampled_from("\0\\0n") | st.characters(exclude_categories=["Cs"]))


@inputs(NAMES)
def test_a_name_comes_back_and_no_column_holds_a_nul(name: str) -> None:
    assert given(kept(name)) == name
    assert "\0" not in kept(name)


@inputs(NAMES, NAMES)
def test_two_names_are_kept_as_two(one: str, two: str) -> None:
    assert (kept(one) == kept(two)) is (one == two)


@pytest.mark.parametrize(("name", "column"), [("chat 7", "chat 7"), ("a\0b", "a\\0b"), ("a\\0b", "a\\\\0b")])
def test_a_plain_name_is_kept_as_it_is(name: str, column: str) -> None:
    assert kept(name) == column
