"""The contract of a medium that holds facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..exchange import Fact

__all__ = ["Backend"]


class Backend(Protocol):
    """Holds facts, in order.

    `append` is called by one task at a time. When it returns, the whole batch is on the medium;
    when it raises or is cancelled, the outcome is unknown and the store stops (R90, R91).
    """

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write one batch atomically."""

    async def load(self) -> list[Fact]:
        """Every fact held, in the order in which it was appended."""

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop all facts of these runs atomically."""

    async def close(self) -> None:
        """Release the medium. Idempotent."""
