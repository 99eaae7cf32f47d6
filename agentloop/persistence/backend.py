"""The contract of a medium that holds facts.

A backend knows facts only as records in order; what they mean is the book's. Besides them it keeps
three small things that several processes must agree on, and changes each of them in the same
transaction as the facts it belongs to:

- who owns a run (a lease with a fencing token, on the medium's own clock),
- which runs a conversation has, in order, and which of them goes on,
- which runs have not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ..exchange import Fact, RunRedacted

__all__ = ["Backend", "ConversationRow", "Lease", "RunRow"]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write a run's facts.

    Attributes:
        token: larger for every new owner of the run; a write with an older one is refused.
        seconds_left: until it expires on the medium's clock, as of when it was read.
    """

    run_id: str
    owner: str
    token: int
    seconds_left: float


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as listed.

    Attributes:
        opened_at_ms: wall clock of its opening. outcome: None while it has not ended.
        lease: who owns it now; None when nobody does, or the lease has expired.
    """

    run_id: str
    conversation: str | None
    agent: str
    opened_at_ms: int
    outcome: str | None
    lease: Lease | None


class ConversationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation, as listed.

    Attributes:
        runs: ids of its runs, oldest first. live: the one that has not ended.
        newest_at_ms: wall clock of the opening of its newest run.
    """

    name: str
    runs: tuple[str, ...]
    live: str | None
    newest_at_ms: int


class Backend(Protocol):
    """Holds facts, in order. Several tasks of one event loop may call it at once.

    Whatever goes wrong on the medium is a `PersistenceError`. When `append` returns, the whole
    batch is on the medium; when it raises one, or is cancelled, the outcome is unknown (R90, R91).
    ``ConflictError`` and its kinds, and ``RestoreError``, mean that it was refused whole and nothing was written.

    Attributes:
        durable: whether facts outlive this process.
    """

    durable: bool

    async def open(self) -> None:
        """Make or migrate what it needs.

        Raises:
            PersistenceError: the medium cannot be used.
            RestoreError: ``restore_version``: a newer version wrote it; names both.
        """

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        """Write one batch of one run atomically.

        Args:
            token: fencing token of the run's lease, which may have expired while nobody took the run
                over; None where the run has no lease, as on a medium of one process.
            after: for a batch that opens a run on a conversation: its newest run as the caller
                knows it, "" when it has none.

        Raises:
            AdmissionError: these are not facts of one run, of which only the first may open it.
            NotOwnerError: the run's lease has another token now, or it has none.
            StaleHeadError: the conversation has another newest run, or one that goes on.
            ConflictError: the run that the batch opens is there already, the run that it goes on
                with is not there, or the run whose exchange a branch goes on from.
        """

    async def load(self) -> list[Fact]:
        """Every fact held, in the order in which it was appended."""

    async def load_run(self, run_id: str) -> list[Fact]:
        """The facts of one run, oldest first; empty when there is none."""

    async def load_conversation(self, name: str) -> list[Fact]:
        """The facts of all runs of a conversation, run by run; reads no other run's."""

    async def conversation(self, name: str) -> ConversationRow | None:
        """One conversation's row."""

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations whose names begin so, by name, in the order of code points."""

    async def run(self, run_id: str) -> RunRow | None:
        """One run's row."""

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """All runs, or those without an end, oldest first."""

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        """Become the owner of a run that nobody owns, whose lease has expired, or that one owns.

        The run need not be there yet. Who owned it last keeps the token; a new owner gets one larger
        than any before, so ``owner`` names one life of one process.

        Raises:
            NotOwnerError: another owner's lease lives; says for how many seconds still.
        """

    async def renew(self, leases: Sequence[Lease], *, seconds: float) -> list[str]:
        """Prolong leases in one write; return the ids of runs that were lost.

        One that has expired is prolonged too, unless another owner has taken the run over.
        """

    async def release(self, lease: Lease) -> None:
        """Give a lease up. Harmless when it was lost."""

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        """Drop all facts of these runs atomically. One that is not there is no matter.

        The conditions are held in the transaction that deletes, so what another process opens at the
        same time is either seen here, or finds them gone.

        Args:
            unfinished: drop those too that have not ended; for who has just written them and takes
                them back.

        Raises:
            ConflictError: one has not ended, a conversation of theirs has a run besides, or a
                conversation that stays branched off from one of theirs. Nothing was dropped.
            RestoreError: what a conversation branched off from cannot be read. Nothing was dropped.
        """

    async def redact(self, fact: RunRedacted) -> None:
        """Put this fact in the place of all facts of its run, atomically.

        Raises:
            ConflictError: the run is not there, or has not ended; nothing was written.
        """

    async def close(self) -> None:
        """Release the medium. Idempotent."""
