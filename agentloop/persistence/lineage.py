"""What belongs to a conversation beside its own runs: what it branched off from, what branched off from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Final, Protocol

from ..admission import pattern
from ..errors import LostError, RestoreError
from ..exchange import (
    SUMMARY_STAGE,
    ConversationBranched,
    ExchangeRef,
    Fact,
    OriginOpened,
    RunRedacted,
    State,
    Turn,
    restore,
)
from .backend import RunRow

__all__ = ["Conversations", "Runs", "children_of", "load_lineage", "made_from", "read_conversation", "summarising"]


_PLACE: Final = pattern(r"[0-9]+\.[0-9]+")
"""Exchange and position of a call, which end the id of a run that an agent does for it."""


class Conversations(Protocol):
    """What is asked of a medium here; see `Backend`."""

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all runs of a conversation, run by run."""


class Runs(Conversations, Protocol):
    """What is asked of a medium where runs are looked for; see `Backend`."""

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""

    async def runs(self) -> list[RunRow]:
        """All runs, oldest first."""


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


async def made_from(medium: Runs, turn: Turn) -> list[str]:
    """Runs that hold texts which a turn's redaction would leave behind: to be redacted before it.

    These are the runs that agents did for it; the calls that were given it to read for a summary, also
    where no run came of it; the runs of its conversation, and of those that branched off from it, that are
    asked with a summary of it; and the calls that made the summaries which it is asked with itself.

    Cost: linear in the runs that the medium lists; the facts of its conversation and branches are read,
    and those of all summaries' calls.
    """
    found = [ref for ref in _refs(turn.opened) if ref != turn.run_id and await _has_texts(medium, ref)]
    found += [ref for ref in await children_of(medium, [turn.run_id]) if await _has_texts(medium, ref)]
    name, origin_id = turn.opened.conversation, turn.opened.origin_id
    if name is None:
        return found
    found += [ref for ref in await summarising(medium, {origin_id}, set()) if ref not in found]
    for conversation in await _with_branches(medium, name):
        for fact in await medium.load_conversation(conversation):
            summaries = () if type(fact) is not OriginOpened or fact.context is None else fact.context.summaries
            if any(origin_id in summary.origins for summary in summaries):
                found.append(fact.run_id)
    return found


async def children_of(medium: Runs, run_ids: Iterable[str]) -> list[str]:
    """The runs that agents did for calls of these runs, and for calls of theirs; the deepest ones first.

    Cost: linear in the runs that the medium lists; the facts of those are read whose ids are of that form.
    """
    parents = set(run_ids)
    found: list[str] = []
    for row in sorted(await medium.runs(), key=lambda row: row.run_id.count("/")):
        above, _, place = row.run_id.rpartition("/")
        if above not in parents or not _PLACE().fullmatch(place):
            continue
        first = (await medium.load_run(row.run_id))[:1]
        if first and getattr(first[0], "parent", None) == row.run_id:
            parents.add(row.run_id)
            found.insert(0, row.run_id)
    return found


async def summarising(medium: Runs, origins: Set[str], parents: Set[str]) -> list[str]:
    """Calls that were given one of these origins to read for a summary, or were made for one of these runs.

    Cost: as `made_from`.
    """
    found = []
    for row in await medium.runs():
        if row.conversation is not None or row.agent != SUMMARY_STAGE:
            continue
        for fact in await medium.load_run(row.run_id):
            call = fact.call if type(fact) is OriginOpened else None
            if call is not None and (call.parent in parents or not origins.isdisjoint(call.origins)):
                found.append(row.run_id)
    return found


def _refs(opened: OriginOpened) -> list[str]:
    summaries = () if opened.context is None else opened.context.summaries
    return [summary.ref for summary in summaries if summary.ref is not None]


async def _has_texts(medium: Runs, run_id: str) -> bool:
    facts = await medium.load_run(run_id)
    return bool(facts) and type(facts[0]) is not RunRedacted


async def _with_branches(medium: Runs, name: str) -> list[str]:
    """A conversation, and all that branched off from it or from one that did."""
    branched: list[ConversationBranched] = []
    for row in await medium.runs():
        if row.outcome == "branched":
            branched += [fact for fact in await medium.load_run(row.run_id) if type(fact) is ConversationBranched]
    names = [name]
    for known in names:  # grows as it goes
        names += [fact.conversation for fact in branched if fact.source == known and fact.conversation not in names]
    return names
