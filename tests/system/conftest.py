"""A real database for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.system.server import PostgresServer

__all__ = ["postgres", "schema"]

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; it is running whenever a test begins."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def schema() -> str:
    """A name that no other test uses."""
    return f"test_{next(_numbers)}"
