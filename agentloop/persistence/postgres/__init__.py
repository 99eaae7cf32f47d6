"""Facts in a Postgres database, shared by any number of processes."""

from .medium import PostgresBackend

__all__ = ["PostgresBackend"]
