"""A conversation with those it branched off from, as facts in an order in which they can be checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..errors import LostError, RestoreError
from ..exchange import ConversationBranched, ExchangeRef, Fact, State, restore

__all__ = ["Conversations", "load_lineage", "read_conversation"]


class Conversations(Protocol):
    """What is asked of a medium here; see `Backend`."""

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all runs of a conversation, run by run."""


async def load_lineage(
    medium: Conversations, name: str, *, has: Callable[[ExchangeRef], bool] = lambda _: False
) -> list[list[Fact]]:
    """The facts of a conversation, after those of the one it branched off from, and so on.

    Args:
        has: whether an exchange is at hand already, so that its conversation need not be read.

    Raises:
        RestoreError: ``bad_record``: conversations branch off from each other in a circle.
    """
    found: list[list[Fact]] = []
    seen: set[str] = set()
    source: str | None = name
    while source is not None:
        if source in seen:
            raise RestoreError("bad_record", f"conversation {name!r}", "expected to branch off from an older one")
        seen.add(source)
        facts = await medium.load_conversation(source)
        found.insert(0, facts)
        first = facts[0] if facts else None
        source = first.source if type(first) is ConversationBranched and not has(first.continues) else None
    return found


async def read_conversation(medium: Conversations, name: str) -> State:
    """A conversation as the medium has it now, checked, apart from every run in use.

    Raises:
        LostError: there is none of that name.
        RestoreError: the medium holds facts that cannot be.
    """
    state = State()
    for facts in await load_lineage(medium, name):
        restore(state, facts)
    if state.conversation(name) is None:
        raise LostError("conversation", name)
    return state
