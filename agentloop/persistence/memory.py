"""Facts in this process only; they end with it."""

from __future__ import annotations

from collections.abc import Sequence

from ..exchange import Fact

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """A list a run, and one order over all of them.

    Facts are immutable, so holding a reference is holding the fact.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[int, Fact]]] = {}
        self._sequence = 0

    async def append(self, facts: Sequence[Fact]) -> None:
        """Hold the batch."""
        batch = [(fact.run_id, fact) for fact in facts]  # what is no fact fails here, before any is held
        for run_id, fact in batch:
            self._sequence += 1
            self._runs.setdefault(run_id, []).append((self._sequence, fact))

    async def load(self) -> list[Fact]:
        """Every fact held, oldest first."""
        numbered = sorted((item for run in self._runs.values() for item in run), key=lambda item: item[0])
        return [fact for _, fact in numbered]

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop the runs' facts."""
        for run_id in run_ids:
            self._runs.pop(run_id, None)

    async def close(self) -> None:
        """Nothing to release."""
