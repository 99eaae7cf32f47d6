"""The backend contract, held by every medium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from agentloop.persistence import Backend, MemoryBackend
from agentloop.persistence.sqlite import SQLiteBackend
from tests.contracts.backend_contract import BackendContract, DurableBackendContract


class TestMemoryBackend(BackendContract):
    now = 1_000.0

    async def elapse(self, seconds: float) -> None:
        self.now += seconds

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backend]:
        backend = MemoryBackend(clock=lambda: self.now)
        yield backend
        await backend.close()


class TestSQLiteBackend(DurableBackendContract):
    now = 1_000.0
    path: Path

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    async def elapse(self, seconds: float) -> None:
        self.now += seconds

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Backend]:
        backend = SQLiteBackend(self.path, clock=lambda: self.now)
        await backend.open()
        yield backend
        await backend.close()

    def open(self) -> AbstractAsyncContextManager[Backend]:
        return self.reopen()
