"""The way to one database: its address, its connections, and what its errors mean.

The only module that knows the driver, asyncpg, which is an optional extra and imported late. What
goes wrong there or on the network is one thing to a caller: a `PersistenceError`, whose cause is
the driver's error. Nothing is repeated. The password stands in the DSN only: texts name the place,
never the user's part of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from ...errors import InputError, PersistenceError
from ...limits import check_count, check_seconds

__all__ = ["Connection", "Link"]

Connection = Any
"""A connection of the driver, which brings no types."""

_SCHEMES: Final = ("postgresql", "postgres")
_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_GRACE: Final = 5.0  # seconds that this side waits longer than the server, which says more of what happened
_AT_LEAST_ON: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


class Link:
    """One database, one schema in it.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, or with ``?host=`` a socket's folder.
        schema: made if it is missing; a plain lower-case name.
        pool_size: most connections at a time, from 2: one writes facts, the others do all else.
        connect_seconds: for making one connection.
        statement_seconds: for one statement, waiting for locks included.

    Raises:
        InputError: one of them is wrong, or the driver is not installed.

    Attributes:
        place: where it is, as errors say it; without user and password.
    """

    def __init__(
        self, dsn: str, *, schema: str, pool_size: int, connect_seconds: float, statement_seconds: float
    ) -> None:
        check_count("pool_size", pool_size, 2, 100)
        check_seconds("connect_seconds", connect_seconds)
        check_seconds("statement_seconds", statement_seconds)
        if type(schema) is not str or not _SCHEMA.fullmatch(schema):
            raise InputError("schema: expected lower-case letters, digits and _, at most 63, not beginning with pg_")
        self.place = f"{_place(dsn)}, schema {schema!r}"
        self.schema = schema
        self._dsn = dsn
        self._driver = _load_driver()
        self._pool: Any = None
        self._pool_size = pool_size - 1
        self._connect_seconds, self._statement_seconds = connect_seconds, statement_seconds

    def __repr__(self) -> str:
        return f"Link({self.place})"

    async def open(self) -> None:
        """Make the pool; it connects when it is used. Idempotent."""
        if self._pool is None:
            with self.translated("opening"):
                self._pool = await self._driver.create_pool(
                    self._dsn, min_size=0, max_size=self._pool_size, init=_prepare, **self._settings()
                )

    async def connect(self) -> Connection:
        """A connection of one's own, beside the pool.

        Raises:
            PersistenceError: the database cannot be reached, or does not let us in.
        """
        with self.translated("connecting"):
            connection = await self._driver.connect(self._dsn, **self._settings())
            try:
                await _prepare(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    @asynccontextmanager
    async def connection(self, doing: str) -> AsyncIterator[Connection]:
        """A connection of the pool; ``doing`` says in errors what it is for."""
        if self._pool is None:
            raise PersistenceError(f"{self.place}: {doing}: expected an open medium, got one not opened, or closed")
        with self.translated(doing):
            async with self._pool.acquire(timeout=self._statement_seconds + _GRACE) as connection:
                yield connection

    async def fetch(self, doing: str, statement: str, *args: object) -> list[Any]:
        """The rows of one statement, which is a transaction of its own."""
        async with self.connection(doing) as connection:
            rows: list[Any] = await connection.fetch(statement, *args)
            return rows

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn what the driver and the network raise into a `PersistenceError`."""
        driver = self._driver
        try:
            yield
        except (driver.PostgresError, driver.InterfaceError, driver.InternalClientError, OSError, EOFError) as error:
            raise self.fault(doing, error) from error
        except ValueError:
            # An address that only the driver finds wrong; what it says of it may quote the password.
            raise PersistenceError(f"{self.place}: {doing}: the driver cannot use the DSN") from None

    def fault(self, doing: str, error: BaseException) -> PersistenceError:
        """The error for a caller. The database's own words stay in the cause: they may quote what was written."""
        if isinstance(error, PersistenceError):
            return PersistenceError(*error.args)
        state = getattr(error, "sqlstate", None)
        kind = type(error).__name__ + (f" ({state})" if state else "")
        return PersistenceError(f"{self.place}: {doing} ended with {kind}")

    async def close(self, *, seconds: float) -> None:
        """Close the pool; what is still in use after ``seconds`` is cut off."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        with self.translated("closing"):
            try:
                async with asyncio.timeout(seconds):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    def _settings(self) -> dict[str, Any]:
        milliseconds = str(int(self._statement_seconds * 1000))
        return {
            "timeout": self._connect_seconds,
            "command_timeout": self._statement_seconds + _GRACE,
            "server_settings": {
                "application_name": "agentloop",
                "search_path": f'"{self.schema}"',
                "default_transaction_isolation": "read committed",  # a statement sees what its locks waited for
                "statement_timeout": milliseconds,
                # Locks of a process that was stopped in mid-transaction must not outlive its lease by much.
                "idle_in_transaction_session_timeout": milliseconds,
            },
        }


async def _prepare(connection: Connection) -> None:
    """Make a commit wait for the disk where the server's own setting would not."""
    await connection.execute(_AT_LEAST_ON)


def _load_driver() -> Any:
    try:
        import asyncpg  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise InputError("store: a postgresql:// address needs asyncpg; install the extra 'postgres'") from error
    return asyncpg


def _place(dsn: object) -> str:
    """The DSN without user, password and options, which is all that may be repeated.

    A password with an unescaped ``/``, ``?``, ``#`` or ``@`` moves into parts that are repeated, by
    us or by the driver, so such a DSN is refused, in words that quote none of it.
    """
    fault = "dsn: expected postgresql://user:password@host:port/database with user and password percent-encoded"
    if type(dsn) is not str:
        raise InputError(f"{fault}, got {type(dsn).__name__}")
    try:
        parts = urlsplit(dsn)
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise InputError(fault) from None
    netloc = parts.netloc
    if parts.scheme not in _SCHEMES or parts.fragment or "@" in parts.path or netloc.count("@") > 1:
        raise InputError(fault)
    host = netloc.rpartition("@")[2]
    ports = [part.rpartition(":")[2] for part in host.split(",") if ":" in part and not part.endswith("]")]
    if not all(port.isdecimal() for port in ports):
        raise InputError(fault)
    folder = "".join(f"?host={name}" for name in options.get("host", [])[-1:])
    return f"{parts.scheme}://{host}{parts.path}{folder}"
