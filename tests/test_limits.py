"""Every default and range, in one place."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from agentloop import LoopLimits, ModelOptions, Timeouts, limits
from agentloop.errors import InputError

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_MODEL_CALLS", 8),
        ("MAX_MODEL_CALLS_CEILING", 32),
        ("MAX_TOOLS", 32),
        ("REPLY_BYTES", 64 * KIB),
        ("FEEDBACK_BYTES", 4 * KIB),
        ("REQUEST_BYTES", 2 * MIB),
        ("COLLECTION_BYTES", 8 * MIB),
        ("JSON_BYTES", 2 * MIB),
        ("JSON_DEPTH", 64),
        ("JSON_VALUES", 100_000),
        ("ENCODED_REQUEST_BYTES", 2 * MIB),
        ("RESPONSE_BYTES", 2 * MIB),
        ("EVENT_BYTES", 1 * MIB),
        ("TOTAL_TIMEOUT", 60.0),
        ("FIRST_EVENT_TIMEOUT", None),
        ("IDLE_TIMEOUT", 30.0),
        ("STORE_ORIGINS", 10_000),
        ("STORE_EXCHANGES", 10_000),
        ("STORE_TOTAL_BYTES", 64 * MIB),
        ("STORE_ITEM_BYTES", 8 * MIB),
        ("TOOL_TIMEOUT", 15.0),
        ("TOOL_GRACE", 2.0),
        ("TOOL_RETRIES", 3),
        ("TOOL_THREADS", 32),
        ("MAX_RESENDS", 2),
        ("MAX_RESENDS_CEILING", 100),
        ("RESEND_DELAY", 0.5),
        ("RESEND_MAX_DELAY", 60.0),
        ("MODEL_END_SECONDS", 0.25),
        ("JOURNAL_RECORDS", 10_000),
        ("SAFE_INTEGER", 2**53 - 1),
    ],
)
def test_a_default_has_the_number_that_is_documented(name: str, value: Any) -> None:
    """(R94, R95, R97, R98, R99, R100, R107, R108, R109, R110, R112, R264, R330)"""
    assert getattr(limits, name) == value


def test_a_loop_starts_from_these_limits() -> None:
    """Serial tools, eight calls, and every other ceiling off or as documented (R93, R95, R97-R100, R103)."""
    assert msgspec.to_builtins(LoopLimits()) == {
        "max_model_calls": 8,
        "max_tool_calls": None,
        "max_tokens": None,
        "max_seconds": None,
        "max_equal_calls": None,
        "max_depth": 1,
        "max_parallel_tools": 1,
        "reply_bytes": 64 * KIB,
        "feedback_bytes": 4 * KIB,
        "request_bytes": 2 * MIB,
        "collection_bytes": 8 * MIB,
        "max_wire_request_bytes": None,
        "ceiling": 32,
    }


@pytest.mark.parametrize(
    ("field", "good", "wrong"),
    [
        ("max_model_calls", [1, 8, 32], [0, 33, -1, True, 8.0, "8", None]),
        ("max_tool_calls", [0, 1, None], [-1, True, 1.0]),
        ("max_tokens", [1, None], [0, -1, True]),
        ("max_seconds", [0.5, 1, None], [0, -1.0, math.inf, math.nan, True, "1"]),
        ("max_equal_calls", [1, None], [0, True]),
        ("max_parallel_tools", [1, 2, 32], [0, 33, None, True, 2.0]),
        ("reply_bytes", [256], [255, 0, 1e6, None]),
        ("feedback_bytes", [256], [255, None]),
        ("request_bytes", [1_024], [1_023, None]),
        ("collection_bytes", [1_024], [1_023, None]),
        ("max_wire_request_bytes", [1, None], [0, True]),
        ("ceiling", [8, 10_000], [0, None, True, 2**53]),
    ],
)
def test_a_limit_outside_its_range_is_refused_by_name(field: str, good: list[Any], wrong: list[Any]) -> None:
    """(R93, R95)"""
    for value in good:
        assert getattr(LoopLimits(**{field: value}), field) == value
    for value in wrong:
        with pytest.raises(InputError, match=rf"^LoopLimits\.{field}: expected (an integer from|seconds above) "):
            LoopLimits(**{field: value})


def test_more_than_32_model_calls_must_be_said_explicitly() -> None:
    """(R95)"""
    with pytest.raises(InputError, match=r"from 1 to 32 \(more with ceiling=\), got 100"):
        LoopLimits(max_model_calls=100)
    assert LoopLimits(max_model_calls=100, ceiling=100).max_model_calls == 100
    with pytest.raises(InputError, match=r"from 1 to 4 \(more with ceiling=\), got 8"):
        LoopLimits(ceiling=4)


def test_a_send_has_three_clocks_and_each_can_be_turned_off() -> None:
    """(R109)"""
    clocks = Timeouts()
    assert (clocks.total, clocks.first_event, clocks.idle) == (60.0, None, 30.0)
    off = Timeouts(total=None, first_event=None, idle=None, connect=None)
    assert (off.total, off.idle, off.connect) == (None, None, None)


@pytest.mark.parametrize("field", ["total", "first_event", "idle", "connect"])
@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, True, "60"])
def test_a_clock_that_cannot_run_is_refused_by_name(field: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=rf"^Timeouts\.{field}: expected seconds above 0"):
        Timeouts(**{field: wrong})


@pytest.mark.parametrize(
    ("wrong", "got"),
    [(1e300, r"1e\+300"), (10**400, "an integer of 1329 bits"), (10**5000, "an integer of 16610 bits")],
    ids=["long float", "long integer", "one too long to print"],
)
def test_a_number_that_no_clock_or_counter_takes_is_refused_and_shown_shortly(wrong: Any, got: str) -> None:
    with pytest.raises(InputError, match=rf"^wait: expected at most 9007199254740 seconds, got {got}$"):
        limits.check_seconds("wait", wrong)
    if type(wrong) is int:
        with pytest.raises(InputError, match=rf"^n: expected an integer from 0 to 9, got {got}$"):
            limits.check_count("n", wrong, 0, 9)
        with pytest.raises(InputError, match=rf"expected a number from 0 to 2, got {got}$"):
            ModelOptions(temperature=wrong)


@pytest.mark.parametrize(
    ("name", "got"),
    [
        (None, "a string of 1 to 128 characters, got NoneType"),
        (b"a", "a string of 1 to 128 characters, got bytes"),
        ("", "a string of 1 to 128 characters, got 0 characters"),
        ("x" * 129, "a string of 1 to 128 characters, got 129 characters"),
        ("a\udfff", "text that UTF-8 can encode, got a lone surrogate"),
    ],
)
def test_a_name_that_a_record_cannot_hold_is_refused(name: object, got: str) -> None:
    with pytest.raises(InputError, match=rf"^n: expected {got}$"):
        limits.check_name("n", name)
    limits.check_name("n", "é" * 128)


def test_bytes_characters_and_tokens_are_different_limits() -> None:
    """We do not claim that any of them bounds memory, tokens or the next request (R111)."""
    assert "never converted" in (limits.__doc__ or "")
    fields = LoopLimits.__struct_fields__
    assert [name for name in fields if "bytes" in name and "token" in name] == []


def test_a_larger_store_leaves_the_limits_of_a_send_alone() -> None:
    """(R113)"""
    wide = LoopLimits(collection_bytes=64 * MIB, request_bytes=64 * MIB)
    assert (wide.reply_bytes, limits.JSON_BYTES, limits.ENCODED_REQUEST_BYTES) == (64 * KIB, 2 * MIB, 2 * MIB)


def test_limits_are_frozen() -> None:
    with pytest.raises(AttributeError):
        LoopLimits().max_model_calls = 9  # type: ignore[misc]


def test_no_clock_is_called_a_wait() -> None:
    """So none can be taken for a deadline of anything outside (R157)."""
    assert "wait" not in " ".join((*Timeouts.__struct_fields__, *LoopLimits.__struct_fields__))
