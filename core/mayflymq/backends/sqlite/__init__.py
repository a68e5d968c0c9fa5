"""The SQLite backend: durable, shared by the processes of one machine, no server."""

from .backend import SqliteBackend, open

__all__ = ["SqliteBackend", "open"]
