"""Facts in this process only; they end with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from ..exchange import ConversationBranched, Fact, RunRedacted
from ..limits import check_seconds
from .backend import ConversationRow, Lease, RunRow
from .batch import (
    HeldRun,
    Opening,
    check_ended,
    check_forget,
    check_head,
    check_no_owner,
    check_owner,
    check_presence,
    check_source,
    require_batch,
)

__all__ = ["MemoryBackend"]


class _Owned(msgspec.Struct, frozen=True):
    owner: str
    token: int
    expires: float


class _Run:
    """One run: its facts by their places among all, and its outcome."""

    __slots__ = ("facts", "opened", "outcome")

    def __init__(self, opened: Opening) -> None:
        self.opened = opened
        self.facts: dict[int, Fact] = {}
        self.outcome: str | None = None


class MemoryBackend:
    """A list of facts a run. Facts are immutable, so holding a reference is holding the fact.

    Args:
        clock: seconds, for leases; they matter where several runtimes share it.
    """

    durable = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._unfinished: dict[str, None] = {}
        self._conversations: dict[str, list[str]] = {}
        self._leases: dict[str, _Owned] = {}
        self._sequence = self._token = 0

    async def open(self) -> None:
        """Nothing to make."""

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        """Hold the batch."""
        batch = require_batch(facts)
        check_owner(batch.run_id, token=token, held=self._lease(batch.run_id))
        check_presence(batch, there=batch.run_id in self._runs)
        if batch.opened is not None:
            self._open(batch.opened, after)
        run = self._runs[batch.run_id]
        for fact in batch.facts:
            run.facts[self._sequence] = fact
            self._sequence += 1
        if batch.closed is not None:
            run.outcome = batch.closed.outcome
            self._unfinished.pop(batch.run_id, None)

    async def load(self) -> list[Fact]:
        """Every fact held, oldest first."""
        numbered = [item for run in self._runs.values() for item in run.facts.items()]
        return [fact for _, fact in sorted(numbered, key=lambda item: item[0])]

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run."""
        run = self._runs.get(run_id)
        return [] if run is None else list(run.facts.values())

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all its runs."""
        return [fact for run_id in self._conversations.get(name, ()) for fact in self._runs[run_id].facts.values()]

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""
        runs = self._conversations.get(name)
        return None if runs is None else self._conversation(name, runs)

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations, by name."""
        names = sorted(name for name in self._conversations if name.startswith(prefix))
        return [self._conversation(name, self._conversations[name]) for name in names]

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""
        return self._row(run_id) if run_id in self._runs else None

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """All runs, or those without an end."""
        return [self._row(run_id) for run_id in (self._unfinished if unfinished else self._runs)]

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        """Grant it, unless another owner has it."""
        check_seconds("seconds", seconds)
        now = self._clock()
        held = self._leases.get(run_id)
        if held is None or held.owner != owner:
            if held is not None:
                check_no_owner(run_id, owner=held.owner, seconds_left=held.expires - now)
            self._token += 1
            held = _Owned(owner, self._token, now)
        self._leases[run_id] = msgspec.structs.replace(held, expires=now + seconds)
        return Lease(run_id=run_id, owner=owner, token=held.token, seconds_left=seconds)

    async def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[str]:
        """Prolong those that still are the run's."""
        check_seconds("seconds", seconds)
        expires = self._clock() + seconds
        lost = []
        for lease in leases:
            held = self._leases.get(lease.run_id)
            if held is not None and held.token == lease.token:
                self._leases[lease.run_id] = msgspec.structs.replace(held, expires=expires)
            else:
                lost.append(lease.run_id)
        return lost

    async def release(self, lease: Lease) -> None:
        """Give it up."""
        held = self._leases.get(lease.run_id)
        if held is not None and held.token == lease.token:
            del self._leases[lease.run_id]

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        """Drop the runs' facts."""
        there = [run_id for run_id in run_ids if run_id in self._runs]
        names = {name for run_id in there if (name := self._runs[run_id].opened.conversation) is not None}
        whole = [*there, *(run_id for name in names for run_id in self._conversations[name])]
        held = [HeldRun(run_id, self._runs[run_id].opened.conversation, self._has_ended(run_id)) for run_id in whole]
        openings = [run.opened for run in self._runs.values()] if names else []
        branches = [opened for opened in openings if isinstance(opened, ConversationBranched)]
        check_forget(set(run_ids), held, branches, unfinished=unfinished)
        for run_id in run_ids:
            self._leases.pop(run_id, None)
            self._unfinished.pop(run_id, None)
            run = self._runs.pop(run_id, None)
            if run is not None and run.opened.conversation is not None:
                runs = self._conversations[run.opened.conversation]
                runs.remove(run_id)
                if not runs:
                    del self._conversations[run.opened.conversation]

    async def redact(self, fact: RunRedacted) -> None:
        """Replace the run's facts."""
        run = self._runs.get(fact.run_id)
        check_ended(fact.run_id, ended=None if run is None else run.outcome is not None)
        held = self._runs[fact.run_id]
        held.opened, held.facts = fact, {min(held.facts): fact}

    async def close(self) -> None:
        """Nothing to release."""

    def _has_ended(self, run_id: str) -> bool:
        return run_id not in self._unfinished

    def _open(self, opened: Opening, after: str | None) -> None:
        name = opened.conversation
        if name is not None:
            runs = self._conversations.get(name, [])
            newest = runs[-1] if runs else ""
            check_head(name, after=after, newest=newest, ended=self._has_ended(newest))
            if isinstance(opened, ConversationBranched):
                source = self._conversations.get(opened.source, [])
                check_source(opened, [self._runs[run_id].opened for run_id in source])
            self._conversations[name] = runs
            runs.append(opened.run_id)
        self._runs[opened.run_id] = _Run(opened)
        self._unfinished[opened.run_id] = None

    def _conversation(self, name: str, runs: list[str]) -> ConversationRow:
        live = runs[-1] if runs[-1] in self._unfinished else None
        return ConversationRow(name=name, runs=tuple(runs), live=live, newest_at_ms=self._runs[runs[-1]].opened.at_ms)

    def _row(self, run_id: str) -> RunRow:
        run = self._runs[run_id]
        held = self._lease(run_id)
        return RunRow(
            run_id=run_id,
            conversation=run.opened.conversation,
            agent=run.opened.agent,
            opened_at_ms=run.opened.at_ms,
            outcome=run.outcome,
            lease=held if held is not None and held.seconds_left > 0 else None,
        )

    def _lease(self, run_id: str) -> Lease | None:
        """Who owned the run last, and for how long still, or since when not any more."""
        held = self._leases.get(run_id)
        if held is None:
            return None
        return Lease(run_id=run_id, owner=held.owner, token=held.token, seconds_left=held.expires - self._clock())
