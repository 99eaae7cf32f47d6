"""One run's scope, opened by hand, so that an effect can be tried without a loop around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import agentloop as al
from agentloop.effects import Ledger, Scope, ToolPool
from agentloop.exchange import Book, Fact, ReceiptMint
from agentloop.messages import ModelOptions, UserMessage
from agentloop.persistence import Backend, MemoryBackend, Store
from agentloop.sinks import Emitter, Feed
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider

__all__ = ["Stage"]


class Stage:
    """A scope, and all that it stands on.

    Attributes:
        sink: what the sink got. events: what readers got so far.
    """

    def __init__(
        self,
        script: Sequence[Any] = (),
        *,
        tools: Sequence[al.Tool] = (),
        backend: Backend | None = None,
        ledger: Ledger | None = None,
        deltas: int | None = None,
        max_request_bytes: int = 2**21,
        sink: Any = None,
        **limits: Any,
    ) -> None:
        self.provider = ScriptedProvider(script, deltas=deltas, max_request_bytes=max_request_bytes)
        self.backend = backend or MemoryBackend()
        self.mint = ReceiptMint()
        self.store = Store(self.backend, Book(self.mint))
        self.feed, self.sink, self.clock = Feed(), sink or RecordingSink(), FakeClock()
        self.limits = al.LoopLimits(**limits)
        self.ledger = ledger or Ledger(model_calls=self.limits.max_model_calls, tool_calls=self.limits.max_tool_calls)
        self.tools = al.ToolSet(tools)
        self.pool = ToolPool(2)
        self._ids = (f"id-{number}" for number in itertools.count(1))

    async def open(self, **fields: Any) -> Scope:
        """Store the origin of run ``r``, and return its scope."""
        await self.store.commit(
            lambda book: book.open_origin(
                run_id="r",
                origin_id="o",
                conversation=None,
                messages=(UserMessage(content="go"),),
                options=ModelOptions(),
                tools=self.tools.specs,
                catalogue_digest=self.tools.digest,
                input_digest=None,
                agent="a",
                at_ms=1,
            ),
            run_id="r",
        )
        return self.scope(**fields)

    def open_again(self, **fields: Any) -> Scope:
        """A scope of the same run, as whoever resumes it has one."""
        self.ledger = Ledger(model_calls=self.limits.max_model_calls, tool_calls=self.limits.max_tool_calls)
        return self.scope(**fields)

    def scope(self, **fields: Any) -> Scope:
        """A scope of run ``r``, whose origin is stored."""
        now_ms = self.clock.now_ms
        parts: dict[str, Any] = {
            "deps": None,
            "emitter": Emitter("r", self.feed, sink=self.sink, now_ms=now_ms),
            "new_id": lambda: next(self._ids),
            "clock": self.clock,
            "now_ms": now_ms,
            **fields,
        }
        return Scope(
            run_id="r",
            agent="a",
            conversation=None,
            provider=self.provider,
            store=self.store,
            mint=self.mint,
            ledger=self.ledger,
            limits=self.limits,
            tools=self.tools,
            pool=self.pool,
            **parts,
        )

    @property
    def events(self) -> list[al.Event]:
        return list(self.feed._events)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.feed._events]

    async def facts(self) -> list[Fact]:
        return (await self.backend.load())[1:]  # after the origin
