"""Budgets as one tree: what a run and all its descendants may still do.

Each node has its own grant; a debit is checked against the node and every ancestor and then taken
from all of them in one step, so several users can never oversell (R278). A failed call is not
refunded. Tokens are charged when they are known: the call that crosses the grant has happened, the
next one is refused.

A child never makes more of what its parent has left: its grant is one more ceiling. With ``reserve``
it also leaves model calls to those above it, however much its own grant allows. Each level keeps its
own reserve, so what a node may take of an ancestor is that one's grant less every reserve on the way.

What is counted is calls and tokens. The time of a call is no budget of this tree: calls of several
children overlap, so their durations add up to nothing that anybody waited or paid for.
"""

from __future__ import annotations

from typing import Literal

from ..errors import BudgetError, InputError
from ..limits import check_count, number_or_type

__all__ = ["Ledger", "Resource"]

Resource = Literal["model_calls", "tool_calls", "tokens"]


class Ledger:
    """One node. Pure and synchronous, so a check and its debit cannot be parted. Asked before each effect.

    Used by the tasks of one event loop, any number of them; not by several threads.

        total = Ledger(model_calls=8)
        research = total.child(model_calls=6, reserve=2)
        research.debit("model_calls")
        total.left("model_calls"), research.left("model_calls")  # 7, 5

    Args:
        model_calls, tool_calls, tokens: this node's grant, 0 and up; None is no own limit.
        parent: the node that a debit is also taken from.
        reserve: model calls that this node and those below it must leave to each of its ancestors, 0
            and up (R277). Only a node with a parent has one.

    Raises:
        InputError: a value outside its range, by name.
    """

    __slots__ = ("_grants", "_parent", "_reserve", "_spent")

    def __init__(
        self,
        *,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        parent: Ledger | None = None,
        reserve: int = 0,
    ) -> None:
        self._grants: dict[Resource, int | None] = {
            "model_calls": model_calls,
            "tool_calls": tool_calls,
            "tokens": tokens,
        }
        for name, grant in self._grants.items():
            if grant is not None:
                check_count(f"Ledger.{name}", grant, 0)
        check_count("Ledger.reserve", reserve, 0)
        if parent is not None and type(parent) is not Ledger:
            raise InputError(f"Ledger.parent: expected a Ledger or None, got {type(parent).__name__}")
        if parent is None and reserve:
            raise InputError(f"Ledger.reserve: expected 0 without a parent to keep calls for, got {reserve}")
        self._spent: dict[Resource, int] = {"model_calls": 0, "tool_calls": 0, "tokens": 0}
        self._parent, self._reserve = parent, reserve

    def __repr__(self) -> str:
        nodes = [f"{name} {self._spent[name]} of {grant}" for name, grant in self._grants.items() if grant is not None]
        return f"<Ledger {', '.join(nodes) or 'without limits'}>"

    def granted(self, resource: Resource) -> int | None:
        """This node's own grant, whatever those above it have; None is no own limit."""
        return self._grants[_known("granted", resource)]

    def spent(self, resource: Resource) -> int:
        """Debited here or below, descendants included, and what was noted here."""
        return self._spent[_known("spent", resource)]

    def left(self, resource: Resource) -> int | None:
        """What this node may still debit: the least over it and its ancestors; None is no limit.

        Where no ancestor has less for it, spent and left come to what was granted here.
        """
        lefts = [allowed - spent for allowed, spent in self._allowed(_known("left", resource))]
        return max(0, min(lefts)) if lefts else None

    def check(self, resource: Resource, amount: int = 1) -> None:
        """Refuse ``amount`` when any node has less left; 0 is never refused. Debits nothing.

        Raises:
            BudgetError: names the resource, what the grant allows here (what is kept for ancestors
                taken off) and what it would come to.
            InputError: another resource, or an amount that is no integer of 0 or more.
        """
        check_count("Ledger.check", amount, 0)
        for allowed, spent in self._allowed(_known("check", resource)):
            if amount and spent + amount > allowed:
                raise BudgetError(resource, allowed, spent + amount)

    def debit(self, resource: Resource, amount: int = 1) -> None:
        """Check, then take ``amount`` from this node and every ancestor; what was done is never given back.

        Raises:
            BudgetError, InputError: as `check`; nothing was taken.
        """
        self.check(resource, amount)
        self.charge(resource, amount)

    def charge(self, resource: Resource, amount: int) -> None:
        """Take what was just used from this node and every ancestor, whatever is left.

        Raises:
            InputError: as `check`; nothing was taken.
        """
        if type(amount) is not int or amount < 0:  # however large: it was used
            raise InputError(f"Ledger.charge: expected an integer of 0 or more, got {number_or_type(amount)}")
        _known("charge", resource)
        node: Ledger | None = self
        while node is not None:
            node._spent[resource] += amount
            node = node._parent

    def release(self, resource: Resource, amount: int = 1) -> None:
        """Put back what was debited here for work that never began, on this node and every ancestor.

        Work that failed was done; it is never put back.

        Raises:
            InputError: as `check`, or more than was debited; nothing was put back.
        """
        check_count("Ledger.release", amount, 0)
        nodes: list[Ledger] = []
        node: Ledger | None = self
        while node is not None:
            nodes.append(node)
            node = node._parent
        least = min(node._spent[_known("release", resource)] for node in nodes)
        if amount > least:
            raise InputError(f"Ledger.release: expected at most the {least} that were debited, got {amount}")
        for node in nodes:
            node._spent[resource] -= amount

    def note_spent(self, resource: Resource, amount: int) -> None:
        """Count what an earlier owner of the same work used, at this node only, whatever is left.

        It is less for this node and those below it. The ancestors are asked for nothing: either they
        were debited when it was used, or they are a budget of a later time.

        Raises:
            InputError: as `check`; nothing was counted.
        """
        check_count("Ledger.note_spent", amount, 0)
        self._spent[_known("note_spent", resource)] += amount

    def child(
        self,
        *,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        reserve: int = 0,
    ) -> Ledger:
        """A node below this one; its grant never enlarges what is left here.

        Raises:
            InputError: a value outside its range, by name.
        """
        return Ledger(model_calls=model_calls, tool_calls=tool_calls, tokens=tokens, parent=self, reserve=reserve)

    def _allowed(self, resource: Resource) -> list[tuple[int, int]]:
        """What this node and each ancestor with a grant allows it, and what is spent there."""
        found = []
        reserve = 0
        node: Ledger | None = self
        while node is not None:
            grant = node._grants[resource]
            if grant is not None:
                kept = reserve if resource == "model_calls" else 0
                found.append((max(0, grant - kept), node._spent[resource]))
            reserve += node._reserve
            node = node._parent
        return found


def _known(method: str, resource: Resource) -> Resource:
    if resource not in ("model_calls", "tool_calls", "tokens"):
        raise InputError(f"Ledger.{method}: expected 'model_calls', 'tool_calls' or 'tokens'")
    return resource
