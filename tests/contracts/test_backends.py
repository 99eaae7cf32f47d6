"""The backend contract, held by every medium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentloop.persistence import Backend, MemoryBackend
from tests.contracts.backend_contract import BackendContract


class TestMemoryBackend(BackendContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backend]:
        backend = MemoryBackend()
        yield backend
        await backend.close()
