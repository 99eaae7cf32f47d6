"""A token budget is a window, a counter with a name, and what is left for the input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.messages import ModelRequest, UserMessage
from agentloop.runner.tokens import TokenBudget, TokenCounter

REQUEST = ModelRequest(messages=(UserMessage(content="a very private prompt"),))


class Fixed:
    """Counts what it is told to."""

    def __init__(self, found: Any = 7, identity: Any = "fixed") -> None:
        self.found, self.identity = found, identity

    def count(self, request: ModelRequest, /) -> Any:
        return self.found


def test_a_budget_asks_its_counter_and_no_other() -> None:
    """(R214)"""
    counter = Fixed(3)
    assert isinstance(counter, TokenCounter)
    budget = TokenBudget(window=100, counter=counter)
    long = ModelRequest(messages=(UserMessage(content="x" * 10_000),))
    assert budget.count(REQUEST) == budget.count(long) == 3


def test_there_is_no_budget_without_a_window_and_a_counter() -> None:
    """(R214, R233)"""
    make: Any = TokenBudget
    for parts in ({"window": 10}, {"counter": Fixed()}):
        with pytest.raises(TypeError, match="Missing required argument"):
            make(**parts)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"window": 0}, "TokenBudget.window: expected an integer from 1 to 9007199254740991, got 0"),
        ({"window": True}, "TokenBudget.window: expected an integer from 1 to 9007199254740991, got True"),
        ({"window": 10.0}, "TokenBudget.window: expected an integer from 1 to 9007199254740991, got 10.0"),
        ({"margin": -1}, "TokenBudget.margin: expected an integer from 0 to 99, got -1"),
        ({"margin": 100}, "TokenBudget.margin: expected an integer from 0 to 99, got 100"),
        (
            {"counter": Fixed(identity="")},
            "TokenBudget.counter: expected an identity that is a non-empty string, got an empty one",
        ),
        (
            {"counter": Fixed(identity=3)},
            "TokenBudget.counter: expected an identity that is a non-empty string, got int",
        ),
        ({"counter": len}, "TokenBudget.counter: expected a TokenCounter, got builtin_function_or_method"),
        ({"counter": "o200k_base"}, "TokenBudget.counter: expected a TokenCounter, got str"),
        (
            {"counter": type("Named", (), {"identity": "x"})()},
            "TokenBudget.counter: expected a method count, got Named",
        ),
    ],
)
def test_a_part_outside_its_range_is_refused_by_name(parts: dict[str, Any], text: str) -> None:
    """(R214, R233)"""
    with pytest.raises(InputError) as caught:
        TokenBudget(**{"window": 100, "counter": Fixed(), **parts})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("found", "got"), [(True, "bool"), (-1, "-1"), (1.0, "1.0"), (None, "NoneType"), ("9", "str"), (2**53, str(2**53))]
)
def test_a_count_that_is_none_is_the_counters_fault(found: Any, got: str) -> None:
    """(R214)"""
    budget = TokenBudget(window=100, counter=Fixed(found, identity="mine:v1"))
    with pytest.raises(InputError) as caught:
        budget.count(REQUEST)
    assert str(caught.value) == f"token counter 'mine:v1': expected an integer of 0 or more, got {got}"


def test_a_counters_own_error_is_its_own() -> None:
    class Broken(Fixed):
        def count(self, request: ModelRequest, /) -> int:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TokenBudget(window=100, counter=Broken()).count(REQUEST)


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 70))
def test_input_output_and_margin_come_to_the_window(window: int, margin: int, output: int) -> None:
    """(R233)"""
    if margin >= window:
        return
    budget = TokenBudget(window=window, counter=Fixed(), margin=margin)
    if output + margin < window:
        assert budget.input_limit(output) + output + margin == window
    else:
        with pytest.raises(InputError, match=f"max_output_tokens: expected at most {window - margin - 1}, "):
            budget.input_limit(output)


def test_a_reservation_is_a_number_of_tokens() -> None:
    budget, wrong = TokenBudget(window=100, counter=Fixed()), (0, True, 1.5)
    for value in wrong:
        with pytest.raises(InputError, match="max_output_tokens: expected an integer from 1 to"):
            budget.input_limit(value)  # type: ignore[arg-type]


def test_what_leaves_nothing_for_the_input_says_so() -> None:
    """(R233)"""
    budget = TokenBudget(window=100, counter=Fixed(), margin=10)
    assert budget.input_limit(89) == 1
    with pytest.raises(InputError) as caught:
        budget.input_limit(90)
    assert str(caught.value) == (
        "max_output_tokens: expected at most 89, which leaves a token of window 100 less margin 10 for the input, "
        "got 90"
    )
