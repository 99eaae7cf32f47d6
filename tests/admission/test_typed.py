"""From plain values to typed ones, with errors that hold no value."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from agentloop.admission import to_type
from agentloop.errors import AdmissionError, HistoryError, InputError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    word: Literal["yes", "no"] = "yes"
    number: int = 0
    names: tuple[str, ...] = ()
    fault: str = ""

    def __post_init__(self) -> None:
        if self.fault == "input":
            raise InputError("Inner.fault: expected none")
        if self.fault == "admission":
            raise AdmissionError("$.fault", "expected none")
        if self.fault == "history":
            raise HistoryError("missing_tool_result", "$.fault", "expected none")


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    items: tuple[Inner, ...]


def test_a_fitting_value_is_converted() -> None:
    assert to_type({"items": [{"number": 3, "names": ["a"]}]}, Outer) == Outer((Inner(number=3, names=("a",)),))


@pytest.mark.parametrize(
    ("value", "path", "rule"),
    [
        ([], "$", "expected object, got array"),
        ({}, "$.items", "expected this field, got none"),
        ({"items": [{"number": "SECRET"}]}, "$.items[0].number", "expected int, got str"),
        ({"items": [{}, {"word": "SECRET"}]}, "$.items[1].word", "expected one of the known words"),
        ({"items": [], "other": 1}, "$.other", "expected no field of this name"),
        ({"items": [{"SECRET field": 1}]}, "$.items[0][key of 12 characters]", "expected no field of this name"),
        ({"items": [{"names": ["a", 1]}]}, "$.items[0].names[1]", "expected str, got int"),
        ({"items": [{"fault": "input"}]}, "$.items[0]", "Inner.fault: expected none"),
        ({"items": [{"fault": "admission"}]}, "$.items[0].fault", "expected none"),
    ],
)
def test_a_mismatch_tells_path_and_rule_and_no_value(value: Any, path: str, rule: str) -> None:
    """(R39, R46, R47)"""
    with pytest.raises(AdmissionError) as caught:
        to_type(value, Outer)
    assert (caught.value.path, caught.value.rule) == (path, rule)
    assert caught.value.__context__ is None


def test_a_history_that_does_not_fit_keeps_its_type() -> None:
    with pytest.raises(HistoryError) as caught:
        to_type({"items": [{"fault": "history"}]}, Outer, path="$.x")
    assert (caught.value.code, caught.value.path) == ("missing_tool_result", "$.x.items[0].fault")
