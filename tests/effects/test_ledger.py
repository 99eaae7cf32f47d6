"""Budgets as one tree: whatever its users do, no node gives more than it was granted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    """(R279)"""
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
    with pytest.raises(InputError, match=f"Ledger.{name}: expected an integer from 0 to"):
        Ledger(**{name: grant})


@pytest.mark.parametrize("amount", [-1, True, 0.5])
def test_an_amount_is_a_whole_number_of_zero_or_more(amount: Any) -> None:
    ledger = Ledger(model_calls=5)
    for spend in (ledger.charge, ledger.debit):
        with pytest.raises(InputError, match="expected an integer from 0 to"):
            spend("model_calls", amount)
    assert ledger.spent("model_calls") == 0


# -- any tree, any users

grants = st.none() | st.integers(0, 6)


class Node:
    """The same node, kept the long way: every debit made here, and links up and down."""

    def __init__(self, ledger: Ledger, parent: Node | None, grant: dict[Resource, int | None], reserve: int) -> None:
        self.ledger, self.parent, self.grant, self.reserve = ledger, parent, grant, reserve
        self.own = dict.fromkeys(RESOURCES, 0)
        self.children: list[Node] = []

    def path(self) -> list[Node]:
        return [self, *(self.parent.path() if self.parent else [])]

    def spent(self, resource: Resource) -> int:
        return self.own[resource] + sum(child.spent(resource) for child in self.children)

    def room(self, resource: Resource) -> int | None:
        """What may still be debited here, from the definition."""
        rooms: list[int] = []
        kept = 0
        for node in self.path():
            if (grant := node.grant[resource]) is not None:
                rooms.append(grant - node.spent(resource) - (kept if resource == "model_calls" else 0))
            kept += node.reserve
        return max(0, min(rooms)) if rooms else None


class TreeOfLedgers(RuleBasedStateMachine):
    @initialize(calls=grants, tools=grants, tokens=grants)
    def begin(self, calls: int | None, tools: int | None, tokens: int | None) -> None:
        ledger = Ledger(model_calls=calls, tool_calls=tools, tokens=tokens)
        grant: dict[Resource, int | None] = {"model_calls": calls, "tool_calls": tools, "tokens": tokens}
        self.nodes = [Node(ledger, None, grant, 0)]

    @precondition(lambda self: len(self.nodes) < 7)
    @rule(data=st.data(), calls=grants, tools=grants, tokens=grants, reserve=st.integers(0, 2))
    def split(
        self, data: st.DataObject, calls: int | None, tools: int | None, tokens: int | None, reserve: int
    ) -> None:
        parent: Node = data.draw(st.sampled_from(self.nodes))
        ledger = parent.ledger.child(model_calls=calls, tool_calls=tools, tokens=tokens, reserve=reserve)
        grant: dict[Resource, int | None] = {"model_calls": calls, "tool_calls": tools, "tokens": tokens}
        node = Node(ledger, parent, grant, reserve)
        parent.children.append(node)
        self.nodes.append(node)

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), amount=st.integers(0, 3))
    def debit(self, data: st.DataObject, resource: Resource, amount: int) -> None:
        node: Node = data.draw(st.sampled_from(self.nodes))
        before = self.spending()
        room = node.room(resource)
        if room is not None and amount > room:
            with pytest.raises(BudgetError) as caught:
                node.ledger.debit(resource, amount)
            assert caught.value.got > caught.value.allowed
            assert self.spending() == before
            return
        node.ledger.debit(resource, amount)
        node.own[resource] += amount

    @rule(data=st.data(), amount=st.integers(0, 9))
    def charge(self, data: st.DataObject, amount: int) -> None:
        node: Node = data.draw(st.sampled_from(self.nodes))
        node.ledger.charge("tokens", amount)
        node.own["tokens"] += amount

    def spending(self) -> list[int]:
        return [node.ledger.spent(resource) for node in self.nodes for resource in RESOURCES]

    @invariant()
    def spent_and_left_come_to_what_was_granted(self) -> None:
        for node in getattr(self, "nodes", ()):
            for resource in RESOURCES:
                spent, left = node.ledger.spent(resource), node.ledger.left(resource)
                assert spent == node.spent(resource)
                assert left == node.room(resource)
                grant = node.grant[resource]
                if grant is not None and resource != "tokens":
                    assert spent <= grant
                if node.parent is None and grant is not None and spent <= grant:
                    assert left is not None
                    assert spent + left == grant


TestTreeOfLedgers = TreeOfLedgers.TestCase
TestTreeOfLedgers.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
