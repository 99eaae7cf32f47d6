"""How one tool may be run."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.tools import ToolPolicy


def test_the_defaults_are_fifteen_seconds_and_not_idempotent() -> None:
    """(R330, R331)"""
    policy = ToolPolicy()
    assert (policy.timeout, policy.idempotent, policy.max_output_bytes, policy.errors) == (15.0, False, None, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", math.inf),
        ("timeout", math.nan),
        ("timeout", "15"),
        ("timeout", True),
        ("idempotent", 1),
        ("max_output_bytes", 0),
        ("max_output_bytes", 255),
        ("max_output_bytes", True),
        ("max_output_bytes", 1e3),
        ("errors", [ValueError]),
        ("errors", (ValueError(),)),
        ("errors", (asyncio.CancelledError,)),
        ("errors", (BaseException,)),
        ("errors", ("ValueError",)),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"ToolPolicy.{field}"):
        ToolPolicy(**{field: value})


def test_no_timeout_and_a_large_output_are_allowed() -> None:
    """A member may set its own output limit (R101)."""
    assert ToolPolicy(timeout=None, max_output_bytes=50_000).timeout is None
