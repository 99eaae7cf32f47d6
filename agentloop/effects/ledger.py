"""Budgets as one tree: what a run and all its descendants may still do.

Each node has its own grant; a debit is checked against the node and every ancestor and then taken
from all of them in one step, so several users can never oversell (R278). A failed call is not
refunded. Tokens are charged when they are known: the call that crosses the grant has happened, the
next one is refused.
"""

from __future__ import annotations

from typing import Literal

from ..errors import BudgetError
from ..limits import check_count

__all__ = ["Ledger", "Resource"]

Resource = Literal["model_calls", "tool_calls", "tokens"]


class Ledger:
    """One node. Pure and synchronous, so a check and its debit cannot be parted. Asked before each effect.

    Args:
        model_calls, tool_calls, tokens: this node's grant, 0 and up; None is no own limit.
        parent: the node that a debit is also taken from.
        reserve: model calls that this node must leave to its ancestors (R277).
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
        self._spent: dict[Resource, int] = {"model_calls": 0, "tool_calls": 0, "tokens": 0}
        self._parent, self._reserve = parent, reserve

    def spent(self, resource: Resource) -> int:
        """Debited here or below, descendants included."""
        return self._spent[resource]

    def left(self, resource: Resource) -> int | None:
        """What this node may still debit: the least over it and its ancestors; None is no limit."""
        lefts = [allowed - spent for allowed, spent in self._allowed(resource)]
        return max(0, min(lefts)) if lefts else None

    def check(self, resource: Resource, amount: int = 1) -> None:
        """Refuse ``amount`` when any node has less left; 0 is never refused. Debits nothing.

        Raises:
            BudgetError: names the resource, what the grant allows here (what is kept for ancestors
                taken off) and what it would come to.
        """
        for allowed, spent in self._allowed(resource):
            if amount and spent + amount > allowed:
                raise BudgetError(resource, allowed, spent + amount)

    def debit(self, resource: Resource, amount: int = 1) -> None:
        """Check, then take ``amount`` from this node and every ancestor.

        Raises:
            BudgetError: as `check`; nothing was taken.
        """
        self.check(resource, amount)
        self.charge(resource, amount)

    def charge(self, resource: Resource, amount: int) -> None:
        """Take what was already used, whatever is left."""
        check_count("Ledger.charge", amount, 0)
        node: Ledger | None = self
        while node is not None:
            node._spent[resource] += amount
            node = node._parent

    def child(
        self,
        *,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        reserve: int = 0,
    ) -> Ledger:
        """A node below this one; its grant never enlarges what is left here."""
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
