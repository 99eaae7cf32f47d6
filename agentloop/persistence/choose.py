"""From what a host says of its store to the medium behind it.

A medium is imported when a host first names one: most programs use one kind or none, and importing both
takes about a tenth of the time of importing all the rest.
"""

from __future__ import annotations

import os

from ..errors import InputError
from .backend import Backend
from .memory import MemoryBackend

__all__ = ["backend_for"]

_METHODS = ("append", "load_run", "acquire", "close")

_POSTGRES = ("postgresql://", "postgres://")


def backend_for(store: object) -> Backend:
    """None is this process's memory; a path is a SQLite file; ``postgresql://…`` a database.

    Any object with the methods of `Backend` is used as it is.

    Raises:
        InputError: anything else, or a database whose driver is not installed.
    """
    if store is None:
        return MemoryBackend()
    if isinstance(store, (str, os.PathLike)):
        where = os.fspath(store)
        if isinstance(where, str) and where.startswith(_POSTGRES):
            from .postgres import PostgresBackend  # noqa: PLC0415  # see above

            return PostgresBackend(where)
        if isinstance(where, str) and where and "://" not in where:
            from .sqlite import SQLiteBackend  # noqa: PLC0415  # see above

            return SQLiteBackend(where)
    elif not isinstance(store, type) and all(
        callable(getattr(store, name, None)) for name in ("append", "load_run", "acquire", "close")
    ):
        return store  # type: ignore[return-value]
    kind = "another URL" if isinstance(store, str) and store else type(store).__name__
    raise InputError(f"store: expected None, a path, a postgresql:// URL or a Backend, got {kind}")
