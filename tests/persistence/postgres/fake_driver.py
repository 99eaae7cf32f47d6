"""A stand-in for asyncpg, so that what needs no server is tested without the driver either."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from types import ModuleType
from typing import Any

__all__ = ["FakeConnection", "FakeLink", "fake_driver"]


def fake_driver() -> ModuleType:
    """A module with the names that are used of the driver."""
    module = ModuleType("asyncpg")
    for name in ("PostgresError", "InterfaceError", "InternalClientError"):
        setattr(module, name, type(name, (Exception,), {}))

    async def create_pool(dsn: str, **settings: Any) -> Any:
        raise ValueError(f"bad port in {dsn}")

    module.create_pool = create_pool  # type: ignore[attr-defined]
    return module


class FakeConnection:
    """Records statements; a statement that begins with a word of ``faults`` raises, or waits for ever for None."""

    def __init__(self, faults: dict[str, Exception | None]) -> None:
        self.faults = faults
        self.statements: list[str] = []
        self.reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.written: list[list[str]] = []
        self.terminated = False

    async def execute(self, statement: str, *args: Any) -> None:
        await self._say(statement)
        if "INSERT INTO facts" in statement:
            self.written.append(args[0])

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        """No run is there, and every new one can be made."""
        await self._say(statement)
        return [(run_id,) for run_id in args[0]] if "INSERT INTO runs" in statement else []

    async def _say(self, statement: str) -> None:
        word = statement.split(maxsplit=1)[0]
        self.statements.append(word)
        self.reached[word].set()
        await asyncio.sleep(0)
        if word in self.faults:
            fault = self.faults[word]
            if fault is None:
                await asyncio.Event().wait()
            else:
                raise fault

    def is_closed(self) -> bool:
        return self.terminated

    def terminate(self) -> None:
        self.terminated = True


class FakeLink:
    """Gives out the connections it was made with; then none can be made."""

    place = "postgresql://db/facts"

    def __init__(self, *connections: FakeConnection) -> None:
        self.left = deque(connections)

    async def connect(self) -> FakeConnection:
        if not self.left:
            raise self.fault("connecting", OSError())
        return self.left.popleft()

    def fault(self, doing: str, error: BaseException) -> Exception:
        from agentloop.persistence.postgres.link import Link

        return Link.fault(self, doing, error)  # type: ignore[arg-type]
