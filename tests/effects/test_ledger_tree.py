"""Any tree of ledgers, any users: no node gives more than it was granted.

The tree is kept a second time the long way, as the operations made at each node, and every answer of
the ledgers is held to what follows from those by definition.

A *bound* of a node is what one node on its way up still has for it: that one's grant, less the
reserves of all nodes from the asking one up to below it, less what is spent there. What is left at a
node is its least bound, and no less than 0. *Nothing above binds* where the node's own bound is the
least; there spent and left come to what was granted, unless tokens went over it.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import agentloop as al
from agentloop.effects import Ledger, Rejected, Resource, send
from agentloop.errors import BudgetError
from tests.effects.stage import Stage

RESOURCES: tuple[Resource, ...] = ("model_calls", "tool_calls", "tokens")

grants = st.none() | st.integers(0, 6)


class Node:
    """One node: what was debited and noted at it, and links up and down."""

    def __init__(self, ledger: Ledger, parent: Node | None, grant: dict[Resource, int | None], reserve: int) -> None:
        self.ledger, self.parent, self.grant, self.reserve = ledger, parent, grant, reserve
        self.own = dict.fromkeys(RESOURCES, 0)
        self.noted = dict.fromkeys(RESOURCES, 0)
        self.children: list[Node] = []

    def path(self) -> list[Node]:
        return [self, *(self.parent.path() if self.parent else [])]

    def used(self, resource: Resource) -> int:
        """Debited here or below."""
        return self.own[resource] + sum(child.used(resource) for child in self.children)

    def spent(self, resource: Resource) -> int:
        return self.used(resource) + self.noted[resource]

    def bounds(self, resource: Resource) -> list[tuple[Node, int]]:
        found, kept = [], 0
        for node in self.path():
            if (grant := node.grant[resource]) is not None:
                found.append((node, grant - node.spent(resource) - (kept if resource == "model_calls" else 0)))
            kept += node.reserve
        return found

    def left(self, resource: Resource) -> int | None:
        rooms = [room for _, room in self.bounds(resource)]
        return max(0, min(rooms)) if rooms else None


class TreeOfLedgers(RuleBasedStateMachine):
    nodes: list[Node]
    waiting: list[tuple[Node, Resource, int]]
    """Debits that a user decided on and did not make yet; others go on meanwhile."""

    @initialize(calls=grants, tools=grants, tokens=grants)
    def begin(self, calls: int | None, tools: int | None, tokens: int | None) -> None:
        ledger = Ledger(model_calls=calls, tool_calls=tools, tokens=tokens)
        self.nodes = [Node(ledger, None, {"model_calls": calls, "tool_calls": tools, "tokens": tokens}, 0)]
        self.waiting = []

    @precondition(lambda self: len(self.nodes) < 7)
    @rule(data=st.data(), calls=grants, tools=grants, tokens=grants, reserve=st.integers(0, 2))
    def split(
        self, data: st.DataObject, calls: int | None, tools: int | None, tokens: int | None, reserve: int
    ) -> None:
        """A new child has no more than its parent, and takes nothing from anybody."""
        parent: Node = data.draw(st.sampled_from(self.nodes))
        before = self.lefts()
        ledger = parent.ledger.child(model_calls=calls, tool_calls=tools, tokens=tokens, reserve=reserve)
        assert self.lefts() == before
        for resource in RESOURCES:
            above, here = parent.ledger.left(resource), ledger.left(resource)
            assert above is None or (here is not None and here <= above)
            assert ledger.spent(resource) == 0
        grant: dict[Resource, int | None] = {"model_calls": calls, "tool_calls": tools, "tokens": tokens}
        node = Node(ledger, parent, grant, reserve)
        parent.children.append(node)
        self.nodes.append(node)

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), amount=st.integers(0, 3))
    def decide(self, data: st.DataObject, resource: Resource, amount: int) -> None:
        """A check says what a debit would say now, and costs nothing."""
        node: Node = data.draw(st.sampled_from(self.nodes))
        before, left = self.spending(), node.left(resource)
        if left is not None and amount > left:
            with pytest.raises(BudgetError):
                node.ledger.check(resource, amount)
        else:
            node.ledger.check(resource, amount)
            self.waiting.append((node, resource, amount))
        assert self.spending() == before

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """A check that was made before others spent holds nothing: the debit is judged anew."""
        self.debit(*self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), amount=st.integers(0, 3))
    def spend(self, data: st.DataObject, resource: Resource, amount: int) -> None:
        self.debit(data.draw(st.sampled_from(self.nodes)), resource, amount)

    @rule(data=st.data(), amount=st.integers(0, 9))
    def charge(self, data: st.DataObject, amount: int) -> None:
        node: Node = data.draw(st.sampled_from(self.nodes))
        node.ledger.charge("tokens", amount)
        node.own["tokens"] += amount

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), amount=st.integers(0, 4))
    def resume(self, data: st.DataObject, resource: Resource, amount: int) -> None:
        """What an earlier owner used is seen at this node, and above it by nobody."""
        node: Node = data.draw(st.sampled_from(self.nodes))
        above = [(other, other.ledger.left(resource)) for other in node.path()[1:]]
        node.ledger.note_spent(resource, amount)
        node.noted[resource] += amount
        assert [(other, other.ledger.left(resource)) for other, _ in above] == above

    @rule(data=st.data(), resource=st.sampled_from(RESOURCES), amount=st.integers(0, 3))
    def never_begin(self, data: st.DataObject, resource: Resource, amount: int) -> None:
        """What was debited for work that did not begin is there again, for this node and for all above it."""
        node: Node = data.draw(st.sampled_from(self.nodes))
        amount = min(amount, node.own[resource])
        node.ledger.release(resource, amount)
        node.own[resource] -= amount

    def debit(self, node: Node, resource: Resource, amount: int) -> None:
        before, left = self.spending(), node.left(resource)
        if left is None or amount <= left:
            node.ledger.debit(resource, amount)
            node.own[resource] += amount
            return
        with pytest.raises(BudgetError) as caught:
            node.ledger.debit(resource, amount)
        assert caught.value.limit == resource
        assert caught.value.got > caught.value.allowed
        assert self.spending() == before

    def spending(self) -> list[int]:
        return [node.ledger.spent(resource) for node in self.nodes for resource in RESOURCES]

    def lefts(self) -> list[int | None]:
        return [node.ledger.left(resource) for node in self.nodes for resource in RESOURCES]

    def pairs(self) -> list[tuple[Node, Resource]]:
        return [(node, resource) for node in getattr(self, "nodes", ()) for resource in RESOURCES]

    @invariant()
    def every_answer_follows_from_what_was_done(self) -> None:
        for node, resource in self.pairs():
            assert node.ledger.spent(resource) == node.spent(resource)
            assert node.ledger.left(resource) == node.left(resource)
            assert node.ledger.granted(resource) == node.grant[resource]

    @invariant()
    def spent_and_left_come_to_what_was_granted_where_nothing_above_binds(self) -> None:
        for node, resource in self.pairs():
            grant, spent, left = node.grant[resource], node.ledger.spent(resource), node.ledger.left(resource)
            if grant is None:
                continue
            assert left is not None
            assert left <= max(0, grant - spent)
            rooms = [room for _, room in node.bounds(resource)]
            if rooms[0] == min(rooms) and spent <= grant:
                assert spent + left == grant

    @invariant()
    def calls_are_never_oversold(self) -> None:
        for node, resource in self.pairs():
            grant = node.grant[resource]
            if grant is not None and resource != "tokens":
                assert node.used(resource) <= grant

    @invariant()
    def a_reserve_is_left_to_each_ancestor(self) -> None:
        """A node that still may call leaves each ancestor's own grant the reserves between them."""
        for node, resource in self.pairs():
            left, kept = node.ledger.left("model_calls"), node.reserve
            if resource != "model_calls" or not left:
                continue
            for above in node.path()[1:]:
                grant = above.grant["model_calls"]
                assert grant is None or grant - above.spent("model_calls") - left >= kept
                kept += above.reserve


class TestTreeOfLedgers(TreeOfLedgers.TestCase):  # type: ignore[misc, name-defined]
    """The machine, run (R277, R278, R279, R281)."""


TestTreeOfLedgers.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


async def test_tasks_that_share_a_ledger_never_sell_a_call_twice() -> None:
    """Whoever looked before it waited is judged again when it debits (R278)."""
    root = Ledger(model_calls=10)
    children = [root.child(model_calls=4, reserve=2) for _ in range(4)]
    gate, sold, refused = asyncio.Event(), [], []

    async def use(ledger: Ledger) -> None:
        ledger.check("model_calls")
        await gate.wait()
        for _ in range(4):
            try:
                ledger.debit("model_calls")
            except BudgetError as error:
                refused.append(error.allowed)
            else:
                sold.append(ledger)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for child in children:
            group.create_task(use(child))
        gate.set()
    assert (len(sold), len(refused), set(refused)) == (8, 8, {8})
    assert [child.spent("model_calls") for child in children] == [2, 2, 2, 2]
    assert (root.spent("model_calls"), root.left("model_calls"), children[0].left("model_calls")) == (8, 2, 0)


def test_a_reserve_at_each_level_is_kept_for_the_level_above() -> None:
    """Three levels, one call kept at each: the lowest stops first, and each above it has one more (R277, R281)."""
    root = Ledger(model_calls=5)
    middle = root.child(reserve=1)
    lowest = middle.child(reserve=1)
    made = []
    for node in (lowest, middle, root):
        while node.left("model_calls"):
            node.debit("model_calls")
            made.append(node)
    assert [made.count(node) for node in (lowest, middle, root)] == [3, 1, 1]
    assert root.spent("model_calls") == 5


async def test_a_failed_send_stays_debited_at_every_node_and_a_refused_one_costs_nothing() -> None:
    """(R278)"""
    root = Ledger(model_calls=8)
    stage = Stage([al.ConnectionLost("gone")], ledger=root.child(model_calls=1))
    scope = await stage.open()
    with pytest.raises(al.ConnectionLost):
        await send(scope)
    assert (stage.ledger.left("model_calls"), root.left("model_calls")) == (0, 7)
    with pytest.raises(Rejected):
        await send(scope)
    assert (stage.ledger.spent("model_calls"), root.spent("model_calls")) == (1, 1)
