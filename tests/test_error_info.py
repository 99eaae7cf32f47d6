"""Any error as facts for programs, and which of several is raised."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import msgspec
import pytest

from agentloop import errors
from agentloop.error_info import ErrorInfo, error_info
from agentloop.errors import (
    AgentLoopError,
    BudgetError,
    CallTimeout,
    ConnectionFailed,
    HTTPStatusError,
    InputError,
    LimitExceeded,
    OutputRefused,
    StreamRefused,
)


def test_a_budget_s_failure_has_one_code_everywhere() -> None:
    """(R323)"""
    info = error_info(BudgetError("model_calls", 4, 5))
    assert BudgetError.code == info.code == "BUDGET"
    assert info == ErrorInfo(code="BUDGET", kind="BudgetError", may_have_been_processed=False, limit="model_calls")


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (InputError("secret"), ("input", "InputError", False, None, None)),
        (LimitExceeded("max_request_bytes", 1, 2), ("limit", "LimitExceeded", False, None, "max_request_bytes")),
        (CallTimeout("call_timeout", 30.0), ("call_timeout", "CallTimeout", True, None, "call_timeout")),
        (OutputRefused("no_json", "secret"), ("no_json", "OutputRefused", True, None, None)),
        (ConnectionFailed("secret"), ("connection_failed", "ConnectionFailed", False, None, None)),
        (
            StreamRefused("oversized", 0, 0, "a", "b", limit="max_reply_bytes", allowed=3),
            ("oversized", "StreamRefused", True, None, "max_reply_bytes"),
        ),
        (
            HTTPStatusError("secret", status=429, retry_after=3, vendor_message="secret"),
            ("http_status", "HTTPStatusError", False, 3.0, None),
        ),
        (
            HTTPStatusError("", status=503, retry_after=float("nan")),
            ("http_status", "HTTPStatusError", False, None, None),
        ),
        (
            HTTPStatusError("", status=503, retry_after=float("inf")),
            ("http_status", "HTTPStatusError", False, None, None),
        ),
        (HTTPStatusError("", status=503, retry_after=-1.0), ("http_status", "HTTPStatusError", False, None, None)),
        (asyncio.CancelledError("secret"), ("cancelled", "CancelledError", True, None, None)),
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt", True, None, None)),
        (SystemExit(3), ("interrupted", "SystemExit", True, None, None)),
        (TimeoutError("secret"), ("timeout", "TimeoutError", True, None, None)),
        (ValueError("secret"), ("error", "ValueError", True, None, None)),
        (GeneratorExit(), ("error", "GeneratorExit", True, None, None)),
        (concurrent.futures.CancelledError(), ("error", "CancelledError", True, None, None)),
        (ExceptionGroup("secret", [ValueError("secret")]), ("error", "ExceptionGroup", True, None, None)),
    ],
)  # fmt: skip
def test_an_error_is_told_by_code_and_class_and_never_by_its_text(error: BaseException, facts: Any) -> None:
    info = error_info(error)
    assert msgspec.structs.astuple(info) == facts
    assert "secret" not in repr(info)


def test_a_cancel_of_another_kind_is_a_cancel() -> None:
    class Cancelled(asyncio.CancelledError):
        pass

    assert error_info(Cancelled()) == ErrorInfo(code="cancelled", kind="Cancelled", may_have_been_processed=True)


def test_every_error_of_ours_keeps_its_own_code() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        error: AgentLoopError = kind.__new__(kind)
        error.retry_after = error.limit = None  # type: ignore[attr-defined]  # facts that only some have
        assert error_info(error).code == error.code
        assert error_info(error).kind == name


def test_what_is_no_exception_has_no_facts() -> None:
    value: Any = "text"
    with pytest.raises(InputError, match="error_info: expected an exception, got str"):
        error_info(value)
