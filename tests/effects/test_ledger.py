"""Budgets as one tree: what each node grants, keeps for those above, and counts."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from agentloop.effects import Ledger, Resource
from agentloop.errors import BudgetError, InputError

RESOURCES: tuple[Resource, ...] = ("model_calls", "tool_calls", "tokens")


def test_a_debit_is_taken_from_the_node_and_all_above_it() -> None:
    """(R278)"""
    root = Ledger(model_calls=8)
    child = root.child(model_calls=3)
    grandchild = child.child()
    grandchild.debit("model_calls", 2)
    assert [node.spent("model_calls") for node in (root, child, grandchild)] == [2, 2, 2]
    assert [node.left("model_calls") for node in (root, child, grandchild)] == [6, 1, 1]
    root.debit("model_calls")
    assert [node.spent("model_calls") for node in (root, child, grandchild)] == [3, 2, 2]


def test_a_debit_that_any_node_refuses_is_taken_from_none() -> None:
    """(R278)"""
    root = Ledger(model_calls=2)
    wide = root.child(model_calls=100)
    root.debit("model_calls", 2)
    with pytest.raises(BudgetError) as caught:
        wide.debit("model_calls")
    assert (caught.value.limit, caught.value.allowed, caught.value.got) == ("model_calls", 2, 3)
    assert caught.value.code == "BUDGET"
    assert str(caught.value) == "model_calls: allowed 2, got at least 3"
    assert (root.spent("model_calls"), wide.spent("model_calls")) == (2, 0)


def test_a_new_part_gets_no_new_quota() -> None:
    """(R279)"""
    root = Ledger(model_calls=4, tokens=100)
    for _ in range(4):
        root.child(model_calls=4).debit("model_calls")
    late = root.child(model_calls=4, tokens=10**9)
    assert (late.left("model_calls"), late.left("tokens")) == (0, 100)
    with pytest.raises(BudgetError):
        late.debit("model_calls")


def test_what_is_left_is_the_least_over_the_node_and_those_above() -> None:
    """(R279)"""
    root = Ledger(model_calls=10)
    narrow = root.child(model_calls=2)
    below = narrow.child(model_calls=5)
    assert below.left("model_calls") == 2
    root.debit("model_calls", 9)
    assert below.left("model_calls") == 1


def test_model_calls_kept_for_those_above_are_not_given_to_a_child() -> None:
    """Each level adds its own reserve to those between it and the ancestor (R277, R279, R281)."""
    root = Ledger(model_calls=4)
    child = root.child(reserve=1)
    grandchild = child.child(reserve=2)
    assert [node.left("model_calls") for node in (root, child, grandchild)] == [4, 3, 1]
    grandchild.debit("model_calls")
    with pytest.raises(BudgetError, match="model_calls: allowed 1, got at least 2"):
        grandchild.debit("model_calls")
    child.debit("model_calls", 2)
    with pytest.raises(BudgetError, match="model_calls: allowed 3, got at least 4"):
        child.debit("model_calls")
    root.debit("model_calls")
    assert root.left("model_calls") == 0


def test_a_reserve_keeps_model_calls_only_and_may_keep_all() -> None:
    root = Ledger(model_calls=1, tool_calls=1, tokens=1)
    child = root.child(reserve=5)
    assert [child.left(resource) for resource in RESOURCES] == [0, 1, 1]
    with pytest.raises(BudgetError, match="model_calls: allowed 0, got at least 1"):
        child.debit("model_calls")


def test_tokens_may_go_over_once_and_then_nothing_is_allowed() -> None:
    """What a call used is known after it; the next one is refused (R278)."""
    root = Ledger(tokens=200_000)
    first, second = root.child(), root.child()
    first.check("tokens")
    first.charge("tokens", 1_900_000)
    assert root.spent("tokens") == 1_900_000
    assert (root.left("tokens"), second.left("tokens")) == (0, 0)
    with pytest.raises(BudgetError, match="tokens: allowed 200000, got at least 1900001"):
        second.check("tokens")


def test_without_a_grant_there_is_no_limit_and_spending_is_still_counted() -> None:
    ledger = Ledger()
    ledger.debit("tool_calls", 10**6)
    assert (ledger.left("tool_calls"), ledger.spent("tool_calls")) == (None, 10**6)


def test_a_check_takes_nothing() -> None:
    """(R278)"""
    ledger = Ledger(model_calls=1)
    ledger.check("model_calls")
    ledger.check("model_calls")
    assert (ledger.spent("model_calls"), ledger.left("model_calls")) == (0, 1)


@pytest.mark.parametrize("grant", [-1, True, 1.0, "3", 2**53])
@pytest.mark.parametrize("name", ["model_calls", "tool_calls", "tokens", "reserve"])
def test_a_grant_outside_its_range_is_refused_by_name(name: str, grant: Any) -> None:
    for make in (Ledger, Ledger().child):
        with pytest.raises(InputError, match=f"Ledger.{name}: expected an integer from 0 to"):
            make(**{name: grant})


def test_a_parent_is_a_ledger_and_a_reserve_needs_one() -> None:
    parent: Any = {"model_calls": 3}
    with pytest.raises(InputError, match=r"Ledger\.parent: expected a Ledger or None, got dict"):
        Ledger(parent=parent)
    with pytest.raises(InputError, match=r"Ledger\.reserve: expected 0 without a parent to keep calls for, got 2"):
        Ledger(model_calls=3, reserve=2)


def test_another_resource_is_refused_by_every_method() -> None:
    ledger, other = Ledger(), "dollars"
    asked: list[Any] = [ledger.granted, ledger.spent, ledger.left, ledger.check, ledger.debit]
    for ask in asked:
        with pytest.raises(InputError, match="expected 'model_calls', 'tool_calls' or 'tokens'"):
            ask(other)
    spends: list[Any] = [ledger.charge, ledger.note_spent]
    for spend in spends:
        with pytest.raises(InputError, match="expected 'model_calls', 'tool_calls' or 'tokens'"):
            spend(other, 1)


@pytest.mark.parametrize("amount", [-1, True, 0.5])
def test_an_amount_is_a_whole_number_of_zero_or_more(amount: Any) -> None:
    ledger = Ledger(model_calls=5)
    for spend in (ledger.charge, ledger.debit, ledger.check, ledger.note_spent):
        with pytest.raises(InputError, match=r"expected an integer (from 0 to|of 0 or more)"):
            spend("model_calls", amount)
    assert ledger.spent("model_calls") == 0


def test_what_was_used_is_charged_however_large_a_provider_says_it_is() -> None:
    ledger = Ledger(tokens=5)
    ledger.charge("tokens", 2**60)
    assert (ledger.spent("tokens"), ledger.left("tokens")) == (2**60, 0)


def test_what_an_earlier_owner_used_is_counted_at_one_node_only() -> None:
    """It was debited above when it was used, so it is not taken from there again (R278)."""
    root = Ledger(model_calls=8)
    resumed = root.child(model_calls=4)
    below = resumed.child()
    resumed.note_spent("model_calls", 3)
    assert [node.spent("model_calls") for node in (root, resumed, below)] == [0, 3, 0]
    assert [node.left("model_calls") for node in (root, resumed, below)] == [8, 1, 1]
    resumed.note_spent("model_calls", 3)
    assert resumed.left("model_calls") == 0
    with pytest.raises(BudgetError, match="model_calls: allowed 4, got at least 7"):
        below.debit("model_calls")
    root.debit("model_calls")


def test_a_grant_can_be_read_at_its_own_node() -> None:
    root = Ledger(model_calls=2, tokens=0)
    child = root.child(model_calls=9)
    assert [child.granted(resource) for resource in RESOURCES] == [9, None, None]
    assert [root.granted(resource) for resource in RESOURCES] == [2, None, 0]
    root.debit("model_calls", 2)
    assert (child.granted("model_calls"), child.left("model_calls")) == (9, 0)


def test_a_ledger_shows_what_is_spent_of_what_is_granted() -> None:
    ledger = Ledger(model_calls=3, tokens=10)
    ledger.debit("model_calls")
    assert repr(ledger) == "<Ledger model_calls 1 of 3, tokens 0 of 10>"
    assert repr(Ledger()) == "<Ledger without limits>"


def test_calls_of_children_are_counted_and_their_durations_are_not() -> None:
    """We do not claim that durations add up: a ledger has calls and tokens, and no time (R326)."""
    assert get_args(Resource) == RESOURCES
    root = Ledger(model_calls=4)
    for child in (root.child(), root.child()):  # side by side, so twice the calls in the same time
        child.debit("model_calls")
    assert root.spent("model_calls") == 2


def test_no_more_is_put_back_than_was_debited_on_the_whole_way_up() -> None:
    root = Ledger(tool_calls=4)
    child = root.child(tool_calls=2)
    child.debit("tool_calls", 2)
    child.note_spent("tool_calls", 3)
    child.release("tool_calls")
    assert [node.spent("tool_calls") for node in (root, child)] == [1, 4]
    with pytest.raises(InputError, match=r"Ledger\.release: expected at most the 1 that were debited, got 2"):
        child.release("tool_calls", 2)
    with pytest.raises(InputError, match=r"Ledger\.release"):
        child.release("tool_calls", -1)
    assert [node.spent("tool_calls") for node in (root, child)] == [1, 4]
