"""Facts in this process only; they end with it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConflictError, StaleHeadError
from ..exchange import Fact, OriginOpened, RunClosed
from .backend import ConversationRow, Lease, RunRow

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """A list of facts a run. Facts are immutable, so holding a reference is holding the fact.

    There is one process, which owns every run: leases are granted and never run out.
    """

    durable = False

    def __init__(self) -> None:
        self._runs: dict[str, list[Fact]] = {}
        self._order: dict[str, list[int]] = {}  # of each run's facts among all
        self._sequence = 0
        self._conversations: dict[str, list[str]] = {}
        self._unfinished: dict[str, None] = {}

    async def open(self) -> None:
        """Nothing to make."""

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        """Hold the batch."""
        first = facts[0]
        if type(first) is OriginOpened:
            self._open(first, after)
        self._runs[first.run_id].extend(facts)
        self._order[first.run_id].extend(range(self._sequence, self._sequence + len(facts)))
        self._sequence += len(facts)
        if type(facts[-1]) is RunClosed:
            self._unfinished.pop(first.run_id, None)

    async def load(self) -> list[Fact]:
        """Every fact held, oldest first."""
        numbered = [
            item for run_id, facts in self._runs.items() for item in zip(self._order[run_id], facts, strict=True)
        ]
        return [fact for _, fact in sorted(numbered, key=lambda item: item[0])]

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""
        return list(self._runs.get(run_id, ()))

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all its runs."""
        return [fact for run_id in self._conversations.get(name, ()) for fact in self._runs[run_id]]

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""
        runs = self._conversations.get(name)
        return None if runs is None else self._row(name, runs)

    async def conversations(self) -> list[ConversationRow]:
        """All conversations, by name."""
        return [self._row(name, runs) for name, runs in sorted(self._conversations.items())]

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""
        facts = self._runs.get(run_id)
        if not facts:
            return None
        opened, last = facts[0], facts[-1]
        assert type(opened) is OriginOpened, "a run begins with its origin"
        return RunRow(
            run_id=run_id,
            conversation=opened.conversation,
            agent=opened.agent,
            opened_at_ms=opened.at_ms,
            outcome=last.outcome if type(last) is RunClosed else None,
            lease=None,
        )

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """All runs, or those without an end."""
        rows = [await self.run(run_id) for run_id in (self._unfinished if unfinished else self._runs)]
        return [row for row in rows if row is not None]

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        """Grant it."""
        return Lease(run_id=run_id, owner=owner, token=1, seconds_left=seconds)

    async def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[str]:
        """No lease is ever lost."""
        return []

    async def release(self, lease: Lease) -> None:
        """Nothing to give up."""

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop the runs' facts."""
        for run_id in run_ids:
            facts = self._runs.pop(run_id, None)
            self._order.pop(run_id, None)
            self._unfinished.pop(run_id, None)
            if facts and type(facts[0]) is OriginOpened and facts[0].conversation is not None:
                runs = self._conversations.get(facts[0].conversation, [])
                if run_id in runs:
                    runs.remove(run_id)
                if not runs:
                    self._conversations.pop(facts[0].conversation, None)

    async def close(self) -> None:
        """Nothing to release."""

    def _open(self, first: OriginOpened, after: str | None) -> None:
        if first.run_id in self._runs:
            raise ConflictError(f"run {first.run_id!r}", "expected a run that is not there yet")
        name = first.conversation
        if name is not None:
            runs = self._conversations.setdefault(name, [])
            newest = runs[-1] if runs else ""
            if after is not None and (newest != after or newest in self._unfinished):
                raise StaleHeadError(name, after, newest, "expected the newest run the caller knows, ended")
            runs.append(first.run_id)
        self._runs[first.run_id] = []
        self._order[first.run_id] = []
        self._unfinished[first.run_id] = None

    def _row(self, name: str, runs: list[str]) -> ConversationRow:
        live = runs[-1] if runs[-1] in self._unfinished else None
        return ConversationRow(name=name, runs=tuple(runs), live=live)
