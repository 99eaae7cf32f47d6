"""The backend contract, held by a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentloop.persistence import Backend
from agentloop.persistence.postgres import PostgresBackend
from tests.contracts.backend_contract import BackendContract
from tests.system.server import PostgresServer

pytestmark = pytest.mark.system


class TestPostgresBackend(BackendContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres: PostgresServer, schema: str) -> None:
        self.dsn, self.schema = postgres.dsn, schema

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backend]:
        backend = PostgresBackend(self.dsn, schema=self.schema)
        await backend.open()
        yield backend
        await backend.close()
