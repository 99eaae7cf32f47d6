"""The backend contract, held by a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from agentloop.persistence import Backend
from agentloop.persistence.postgres import PostgresBackend
from tests.contracts.backend_contract import DurableBackendContract
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system


class TestPostgresBackend(DurableBackendContract):
    server: PostgresServer
    schema: str

    @pytest.fixture(autouse=True)
    def place(self, postgres: PostgresServer, schema: str) -> None:
        self.server, self.schema = postgres, schema

    async def elapse(self, seconds: float) -> None:
        """The server's clock cannot be moved, so every lease is, the other way."""
        await self.server.sql(
            f"UPDATE {self.schema}.leases SET expires_at = expires_at - make_interval(secs => $1)", seconds
        )

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Backend]:
        backend = PostgresBackend(self.server.dsn, schema=self.schema)
        await backend.open()
        yield backend
        await backend.close()

    def open(self) -> AbstractAsyncContextManager[Backend]:
        return self.reopen()
