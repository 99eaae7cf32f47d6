"""A broken rule before its place is known, and the kinds that its words name."""

from __future__ import annotations

import pytest

from agentloop.errors import StreamRefused
from agentloop.wire.fault import Fault, kind_of


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "a boolean"),
        (0, "an integer"),
        (-1, "a negative integer"),
        (0.5, "a number with a fraction"),
        ("", "an empty string"),
        ("x", "a string"),
        ([], "an array"),
        ({}, "an object"),
        ((), "tuple"),
    ],
)
def test_a_value_is_named_by_its_kind_and_never_shown(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_a_fault_becomes_a_refusal_at_its_place() -> None:
    refusal = Fault("oversized", "less", "more", limit="max_event_bytes").at(3, 40, dialect="openai")
    assert type(refusal) is StreamRefused
    assert (refusal.code, refusal.event, refusal.byte, refusal.dialect) == ("oversized", 3, 40, "openai")
    assert (refusal.expected, refusal.got, refusal.limit) == ("less", "more", "max_event_bytes")
