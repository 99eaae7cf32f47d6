"""A Postgres store that is only looked at: no lease, no migration, no row written."""

from __future__ import annotations

from ...errors import PersistenceError, RestoreError
from .medium import PostgresBackend
from .schema import VERSION

__all__ = ["PostgresReader"]

_THERE = "SELECT to_regclass('schema_version') IS NOT NULL"  # the search path is the schema alone


class PostgresReader(PostgresBackend):
    """The reading half of `PostgresBackend`; arguments as there."""

    async def open(self) -> None:
        """Connect, and see that there is a store of this version.

        Raises:
            PersistenceError: the database cannot be reached, or holds no store.
            RestoreError: ``restore_version``: another version wrote it.
        """
        await self._link.open()
        ((there,),) = await self._link.fetch("looking for a store", _THERE)
        if not there:
            raise PersistenceError(f"{self._link.place}: expected a store of facts, got none")
        ((version,),) = await self._link.fetch("reading the schema's version", "SELECT version FROM schema_version")
        if version != VERSION:
            raise RestoreError("restore_version", self._link.place, f"expected schema version {VERSION}, got {version}")
