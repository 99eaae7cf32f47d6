"""One run of an engine, as the parts that work for it share it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Literal

from ..effects import Ledger, Signal, ToolPool, code_of
from ..events import NodeEnded, NodeStarted, RouteTaken
from ..sinks import Diagnostics, Emitter
from ..tools import Tool, ToolSet
from .agents import Spawn
from .models import BoundModel

__all__ = ["Effects", "Request", "STEP", "Visit"]

_log = logging.getLogger("agentloop.workflow")

STEP: Final = "step"
"""What the rounds of a step are told as, in place of a node."""


class Effects:
    """What was begun for one run and has not ended: ``with effects:`` around each."""

    __slots__ = ("_count", "_idle")

    def __init__(self) -> None:
        self._count, self._idle = 0, asyncio.Event()
        self._idle.set()

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return self._count > 0

    async def idle(self) -> None:
        """Wait until there is none."""
        await self._idle.wait()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()


class Visit:
    """One node that was entered: what it asks for is told below it.

    Attributes:
        id: of this visit, as ``invocation_id`` in its events.
        node, round: which one.
    """

    __slots__ = ("began", "id", "node", "over", "round")

    def __init__(self, id: str, node: str, number: int, began: float) -> None:
        self.id, self.node, self.round, self.began = id, node, number, began
        self.over = False


class Request:
    """One run of an engine. Its worker's tasks use it; all of one event loop.

    Attributes:
        workflow: name of the workflow, ``""`` for a step without one.
        part: where it is told. emitter: what tells it.
        signal: whether its work is wanted; cancelled when the run is over, however it ended.
        ledger: what tools and agents are debited to.
        model, tools, spawn: what is bound, None where nothing is.
        model_id: of model calls that name none. deps: the application's.
        effects: what was begun and has not ended. tool_calls: how many calls of tools were begun.
    """

    def __init__(
        self,
        *,
        workflow: str,
        part: Diagnostics,
        emitter: Emitter,
        signal: Signal,
        ledger: Ledger,
        model: BoundModel | None,
        model_id: str | None,
        tools: ToolSet | None,
        pool: ToolPool,
        spawn: Spawn | None,
        deps: Any,
        new_id: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.workflow, self.part, self.emitter, self.signal = workflow, part, emitter, signal
        self.ledger, self.model, self.model_id = ledger, model, model_id
        self.tools, self.pool, self.spawn = tools, pool, spawn
        self.deps, self.new_id, self.clock = deps, new_id, clock
        self.effects = Effects()
        self.tool_calls = 0
        self._ledgers: dict[str, Ledger] = {}
        self._open: Visit | None = None

    def ledger_of(self, tool: Tool) -> Ledger:
        """What the starts of one tool are debited to: they are counted there, and taken from the run's budget."""
        known = self._ledgers.get(tool.name)
        if known is None:
            known = self._ledgers[tool.name] = self.ledger.child()
        return known

    def enter(self, node: str, number: int) -> Visit:
        """A node begins, in the round of this number."""
        visit = self._open = Visit(self.new_id(), node, number, self.clock())
        self.emitter.process(NodeStarted, visit.id, workflow=self.workflow, node=node, round=number)
        return visit

    def leave(self, visit: Visit, error: BaseException | None = None) -> None:
        """A node ends, with ``error`` where it has one. Told once; what a handler raises later is said in the log."""
        if visit.over:
            if isinstance(error, Exception) and error is not self.signal.reason:
                _log.warning("node %r ended with %s after its run had left it", visit.node, type(error).__name__)
            return
        visit.over = True
        status: Literal["success", "error", "cancelled"] = "success"
        if error is not None:
            cancelled = not isinstance(error, Exception) or self.signal.reason is not None
            status = "cancelled" if cancelled else "error"
        self.emitter.process(
            NodeEnded,
            visit.id,
            workflow=self.workflow,
            node=visit.node,
            round=visit.round,
            status=status,
            code=None
            if error is None
            else "cancelled"
            if isinstance(error, asyncio.CancelledError)
            else code_of(error),
            duration_ms=int((self.clock() - visit.began) * 1000),
        )

    def route(self, visit: Visit, route: int | None, to: str | None) -> None:
        """The workflow goes on."""
        self.emitter.process(
            RouteTaken, visit.id, workflow=self.workflow, node=visit.node, round=visit.round, route=route, to=to
        )

    def end(self, reason: BaseException) -> None:
        """Nothing more is waited for. A node that goes on all the same is told as cancelled."""
        if self._open is not None:
            self.leave(self._open, reason)

    def below(self, visit: Visit, part: Diagnostics | None = None) -> AbstractContextManager[None]:
        """A block that is told as part of a node: here, or in another part of the run."""
        if part is None:
            return self.emitter.within(visit.id, self.part.span_id)
        return part.within(visit.id, self.part.span_id) if part.run_id == self.part.run_id else nullcontext()
