"""The words that records have for errors, whoever wrote their classes."""

from __future__ import annotations

from typing import Any

import pytest

import agentloop as al
from agentloop.effects import code_of, limit_of


def error(code: Any) -> al.AgentLoopError:
    """An error of a host's own class."""
    return type("Denied", (al.AgentLoopError,), {"code": code})("no")  # type: ignore[no-any-return]


class Unsure(al.AgentLoopError):
    @property
    def code(self) -> str:  # type: ignore[override]
        raise RuntimeError


def test_an_error_is_named_by_its_code() -> None:
    assert code_of(error("denied")) == "denied"
    assert code_of(al.OutputRefused("no_json", "rule")) == "no_json"
    assert code_of(error("x" * 128)) == "x" * 128


def test_an_error_of_another_library_is_named_by_its_class() -> None:
    assert code_of(KeyError("secret")) == "KeyError"
    assert code_of(type("E" * 200, (Exception,), {})()) == "E" * 128


@pytest.mark.parametrize("code", [403, None, "", "x" * 129, "\ud800", "é", True, ["a"], b"a"])
def test_a_code_that_is_no_word_is_not_taken(code: Any) -> None:
    assert code_of(error(code)) == "Denied"


def test_a_code_that_cannot_be_read_is_not_taken() -> None:
    assert code_of(Unsure()) == "Unsure"


def test_a_limit_is_named_unless_its_name_is_no_word() -> None:
    assert limit_of(al.LimitExceeded("request_bytes", 1, 2)) == "request_bytes"
    assert limit_of(al.BudgetError(5, 1, 2)) == "BudgetError"  # type: ignore[arg-type]
