"""What one run's effects stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..exchange import Receipt, ReceiptMint, Turn
from ..limits import LoopLimits
from ..persistence import Store
from ..providers import Provider
from ..sinks import Emitter
from ..tools import ToolSet
from .ledger import Ledger
from .tool_call import ToolThreads

__all__ = ["Scope", "settle"]

T = TypeVar("T")


class Scope:
    """One run, seen by its effects. Used by the run's own task only.

    Attributes:
        turn: the run's facts, as state.
        reasoning: whether reasoning is previewed (as its own event type, never as text).
        now_ms: wall clock, milliseconds. clock: monotonic seconds. new_id: source of unique ids.
    """

    def __init__(
        self,
        *,
        run_id: str,
        agent: str,
        conversation: str | None,
        deps: Any,
        provider: Provider,
        store: Store,
        mint: ReceiptMint,
        ledger: Ledger,
        limits: LoopLimits,
        tools: ToolSet,
        threads: ToolThreads,
        emitter: Emitter,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        reasoning: bool = False,
    ) -> None:
        self.run_id, self.agent, self.conversation, self.deps = run_id, agent, conversation, deps
        self.provider, self.store, self.ledger, self.limits = provider, store, ledger, limits
        self.tools, self.threads, self.emitter = tools, threads, emitter
        self.new_id, self.clock, self.now_ms, self.reasoning = new_id, clock, now_ms, reasoning
        self.turn: Turn = store.book.turn(run_id)
        self.started = clock()
        self._mint = mint

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.started

    def receipt(self, invocation_id: str) -> Receipt:
        """Certify a reception of this run."""
        return self._mint.receipt(invocation_id=invocation_id, parent_id=self.run_id)


async def settle(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end whatever cancels arrive; pass one on afterwards.

    For short writes that record what already happened.

    Raises:
        asyncio.CancelledError: a cancel arrived meanwhile; ``work`` has ended.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and not task.cancelled() and task.exception() is None:
        raise asyncio.CancelledError
    return task.result()
