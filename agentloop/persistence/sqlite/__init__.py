"""Facts in one SQLite file, shared by the processes of one machine."""

from .medium import SQLiteBackend

__all__ = ["SQLiteBackend"]
