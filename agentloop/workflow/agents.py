"""An agent's run as a part of a workflow: on its budget, under its signal, told below the node that asked."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from ..agent import Agent
from ..effects import Ledger
from ..results import RunResult
from ..windows import RunInput

__all__ = ["Spawn"]

T = TypeVar("T")


class Spawn(Protocol):
    """What runs an agent for somebody else. A runtime has one; any function of this shape will do."""

    def __call__(
        self,
        agent: Agent[T],
        input: RunInput,
        /,
        *,
        ledger: Ledger,
        parent_span_id: str,
        run_id: str | None = None,
        deps: Any = None,
    ) -> Awaitable[RunResult[T]]:
        """Run an agent to its end. Cancelling the caller cancels the run, and returns when its end is stored.

        Args:
            ledger: what its calls are debited to, besides its own limits.
            parent_span_id: the execution that it is part of.
            run_id: makes it idempotent, see `RunOptions`.
            deps: handed to its tools.
        """
        ...
