"""How one tool may be run."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.tools import ToolPolicy, tool


def test_the_defaults_are_fifteen_seconds_and_not_idempotent() -> None:
    """(R330, R331)"""
    policy = ToolPolicy()
    assert (policy.timeout, policy.idempotent, policy.max_output_bytes, policy.errors) == (15.0, False, None, ())
    assert (policy.grace, policy.retries, policy.max_calls) == (2.0, None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", math.inf),
        ("timeout", math.nan),
        ("timeout", "15"),
        ("timeout", True),
        ("grace", 0),
        ("grace", math.inf),
        ("grace", None),
        ("grace", True),
        ("idempotent", 1),
        ("retries", -1),
        ("retries", True),
        ("retries", 1.0),
        ("max_calls", 0),
        ("max_calls", True),
        ("max_calls", 2.0),
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


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        (ToolPolicy(), 0),
        (ToolPolicy(retries=0), 0),
        (ToolPolicy(idempotent=True), 3),
        (ToolPolicy(idempotent=True, retries=0), 0),
        (ToolPolicy(idempotent=True, retries=7), 7),
    ],
)
def test_an_idempotent_tool_is_repeated_three_times_unless_it_says_otherwise(policy: ToolPolicy, most: int) -> None:
    """(R331, R332, R334)"""
    assert policy.most_retries == most


def test_only_an_idempotent_tool_may_be_repeated() -> None:
    """(R331, R334)"""
    with pytest.raises(InputError, match=r"ToolPolicy\.retries: expected idempotent=True with more than 0, got 1"):
        ToolPolicy(retries=1)


def test_a_tool_states_all_that_it_is_run_by() -> None:
    """(R327, R328)"""

    @tool(timeout=3, retries=2, idempotent=True, max_calls=5, grace=1)
    async def look_up(word: str) -> str:
        """Look a word up."""
        return word

    assert (look_up.spec.name, look_up.spec.description) == ("look_up", "Look a word up.")
    assert '"word"' in look_up.spec.parameters
    policy = look_up.policy
    assert (policy.timeout, policy.most_retries, policy.idempotent, policy.max_calls) == (3, 2, True, 5)


def test_whether_a_tool_is_idempotent_is_the_hosts_word_alone() -> None:
    """Neither a name nor a kind decides (R335)."""

    @tool
    async def read_only_lookup() -> str:
        """Read."""
        return ""

    assert (read_only_lookup.policy.idempotent, read_only_lookup.policy.most_retries) == (False, 0)


@pytest.mark.parametrize("retries", [-1, True, 1.0])
def test_retries_of_an_idempotent_tool_are_a_count_as_well(retries: Any) -> None:
    """(R332)"""
    with pytest.raises(InputError, match=r"ToolPolicy\.retries: expected an integer from 0"):
        ToolPolicy(idempotent=True, retries=retries)
