"""Texts from outside, cleared of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.providers.secrets import redact, redact_text, secret_values

KEY = "sk-proj-0123456789abcdefghij"


def test_a_secret_is_blanked_and_the_size_stays() -> None:
    assert redact(f"a {KEY} b {KEY}".encode(), (KEY,)) == b"a %b b %b" % (b"*" * len(KEY), b"*" * len(KEY))
    assert redact_text(f"a {KEY} b", (KEY,)) == f"a {'*' * len(KEY)} b"


def test_placeholders_are_left_alone() -> None:
    assert redact(b"expected", ("x", "", "none")) == b"expected"
    assert redact_text("expected", ("x", "", "none")) == "expected"


@pytest.mark.parametrize("mark", ["", "…", "…')"])
def test_a_secret_cut_off_at_the_end_is_blanked_too(mark: str) -> None:
    for size in range(8, len(KEY)):
        assert redact_text(f"key {KEY[:size]}{mark}", (KEY,)) == f"key {'*' * size}{mark}"


@given(before=st.text(max_size=30), after=st.text(max_size=30), cut=st.integers(0, 80))
def test_no_more_than_seven_characters_of_a_secret_survive(before: str, after: str, cut: int) -> None:
    left = redact_text((before + KEY + after)[:cut], (KEY,))
    assert KEY[:8] not in left


def test_names_say_which_values_are_secret() -> None:
    headers = {"Authorization": "Bearer abc", "X-Api-Key": "k", "Accept": "text/html", "Cookie": "a=b"}
    assert secret_values(headers, None, {"access_token": "t", "api-version": "1"}) == (
        "Bearer abc",
        "abc",
        "k",
        "a=b",
        "t",
    )
