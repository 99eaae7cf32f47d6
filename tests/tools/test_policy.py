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
        ("recovery", "lookup"),
        ("recovery", ""),
        ("recovery", True),
        ("recovery", 3),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"ToolPolicy.{field}"):
        ToolPolicy(**{field: value})


def test_no_timeout_and_a_large_output_are_allowed() -> None:
    """A member may set its own output limit (R101)."""
    assert ToolPolicy(timeout=None, max_output_bytes=50_000).timeout is None


async def find(n: int) -> str:
    return str(n)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (ToolPolicy(), "none"),
        (ToolPolicy(idempotent=True), "repeat"),
        (ToolPolicy(idempotent=True, recovery="repeat"), "repeat"),
        (ToolPolicy(recovery="settle"), "settle"),
        (ToolPolicy(idempotent=True, recovery="settle"), "settle"),
        (ToolPolicy(recovery=find), "lookup"),
        (ToolPolicy(idempotent=True, recovery=find), "lookup"),
    ],
)
def test_how_a_call_is_recovered_is_one_word(policy: ToolPolicy, kind: str) -> None:
    """(R129)"""
    assert policy.recovery_kind == kind


def test_only_an_idempotent_tool_is_recovered_by_a_second_run() -> None:
    """(R129)"""
    with pytest.raises(InputError, match=r"ToolPolicy\.recovery: expected idempotent=True with 'repeat'"):
        ToolPolicy(recovery="repeat")


@pytest.mark.parametrize(
    ("value", "got"), [("no", "'no'"), (True, "bool"), (3, "int"), ("", "''")], ids=["word", "bool", "int", "empty"]
)
def test_an_approval_of_another_form_is_refused(value: Any, got: str) -> None:
    rule = f"ToolPolicy.approval: expected None, 'required' or a function, got {got}"
    with pytest.raises(InputError, match=f"^{rule}$"):
        ToolPolicy(approval=value)


def test_the_kind_of_approval_is_a_word() -> None:
    kinds = [ToolPolicy(approval=value).approval_kind for value in (None, "required", lambda *_: True)]  # type: ignore[arg-type]
    assert kinds == ["none", "required", "predicate"]
