"""Addresses, the missing driver, and that the password is nowhere."""

from __future__ import annotations

import sys

import pytest

from agentloop.errors import InputError, PersistenceError
from agentloop.persistence.postgres import PostgresBackend
from tests.persistence.postgres.fake_driver import fake_driver

DSN = "postgresql://user:hunter2@db:5432/facts"


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", fake_driver())


def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(InputError, match="install the extra 'postgres'"):
        PostgresBackend(DSN)


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        (DSN, "postgresql://db:5432/facts"),
        ("postgres://user:hunter2@a:1,b:2/facts?sslmode=require", "postgres://a:1,b:2/facts"),
        ("postgresql://user@[::1]/facts?password=hunter2", "postgresql://[::1]/facts"),
        ("postgresql:///facts?user=user&password=hunter2&host=/run/db", "postgresql:///facts?host=/run/db"),
        ("postgresql://", "postgresql://"),
    ],
)
def test_the_place_is_named_without_user_and_password(dsn: str, place: str) -> None:
    assert repr(PostgresBackend(dsn, schema="other")) == f"PostgresBackend({place}, schema 'other')"


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://user:hunter2@db/facts",
        "postgresql://user:hunter2/3@db/facts",
        "postgresql://user:hunter2?3@db/facts",
        "postgresql://user:hunter2#3@db/facts",
        "postgresql://user:hunter2@3@db/facts",
        "postgresql://user:hunter2[3@db/facts",
        "postgresql://user@db:hunter2/facts",
        b"postgresql://user:hunter2@db/facts",
        None,
    ],
)
def test_an_address_that_would_be_misread_is_refused_without_quoting_it(dsn: object) -> None:
    with pytest.raises(InputError, match="expected postgresql://") as caught:
        PostgresBackend(dsn)  # type: ignore[arg-type]
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_an_address_that_the_driver_refuses_is_not_quoted_either() -> None:
    with pytest.raises(PersistenceError, match="the driver cannot use the DSN") as caught:
        await PostgresBackend(DSN).open()
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("schema", ["", "A", "a-b", "pg_facts", "1a", 'a"; DROP', "a" * 64, None])
def test_a_schema_is_a_plain_name(schema: str) -> None:
    with pytest.raises(InputError, match="schema: expected"):
        PostgresBackend(DSN, schema=schema)


@pytest.mark.parametrize("pool_size", [0, 1, 101, 2.0, True])
def test_a_pool_has_from_two_to_a_hundred_connections(pool_size: int) -> None:
    with pytest.raises(InputError, match="pool_size: expected an integer from 2 to 100"):
        PostgresBackend(DSN, pool_size=pool_size)


async def test_a_medium_that_is_not_open_says_so() -> None:
    backend = PostgresBackend(DSN)
    assert (backend.commits, backend.batches, backend.durable) == (0, 0, True)
    with pytest.raises(PersistenceError, match="not open"):
        await backend.append([])
    with pytest.raises(PersistenceError, match="not open"):
        await backend.load()
    await backend.close()
    await backend.close()
    with pytest.raises(PersistenceError, match="closed"):
        await backend.open()
