"""The SQLite file: its connection, its transactions, its schema, and its errors in public words."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BackendError, SchemaMismatch

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""

APPLICATION_ID = int.from_bytes(b"MfMQ", "big")
"""What marks a database as ours, whatever version another program gave its own."""

_inherited: list[sqlite3.Connection] = []
"""Connections that a fork brought along: closing one would drop the parent's file locks, so they are kept."""


class Database:
    """One connection to one file, used by one transaction at a time; opened on first use, in WAL mode and
    with full synchronisation. `started` is a statement to run whenever it is opened."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_ms: int = 30_000,
        max_page_count: int = 0,
        started: str | None = None,
    ) -> None:
        self.path = path.absolute()  # the same file after a chdir, when it is opened again
        self._busy_timeout_ms = busy_timeout_ms
        self._max_page_count = max_page_count
        self._started = started
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner = os.getpid()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed at the end, or rolled back whatever is raised. Raises
        BackendError."""
        self._leave_parent()
        with self._lock, self._translated():
            connection = self._connect()
            try:
                # Inside: what a signal raises while this waits for the lock comes out when it has the lock.
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def migrate(self) -> int:
        """Brings the schema up to date and returns its version."""
        self._leave_parent()
        with self._lock, self._translated():
            connection = self._dial()
            try:
                return _migrate(connection, self.path)
            finally:
                connection.close()

    def close(self) -> None:
        """Lets go of the connection."""
        self._leave_parent()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _leave_parent(self) -> None:
        """In a forked process neither the connection nor a held lock is its own."""
        if self._owner != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._owner, self._connection, self._lock = os.getpid(), None, threading.RLock()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        connection = self._dial()
        try:
            version = _version(connection, self.path)
            newest = len(migrations())
            if version == 0:
                _migrate(connection, self.path)
            elif version != newest:
                raise SchemaMismatch(
                    f"{self.path} has schema {version}, this library works with {newest}: "
                    + ("run `mayflymq migrate`" if version < newest else "update mayflymq here")
                )
            if self._started is not None:
                connection.execute(self._started)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _dial(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        # SQLite does not wait for its busy timeout when several processes turn a new file to WAL at once.
        give_up = time.monotonic() + self._busy_timeout_ms / 1000
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
            if self._max_page_count:
                connection.execute(f"PRAGMA max_page_count = {self._max_page_count}")
            while True:
                try:
                    _version(connection, self.path)  # before another program's file is turned to WAL
                    connection.execute("PRAGMA journal_mode = WAL")
                    return connection
                except sqlite3.OperationalError as error:
                    if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                        raise
                    time.sleep(0.01)
        except BaseException:
            connection.close()
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._public(error) from error

    def _public(self, error: sqlite3.Error) -> BackendError:
        code = _primary(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return BackendError(
                f"{self.path} stayed locked by other processes for {self._busy_timeout_ms} ms: try again, "
                "or raise busy_timeout_ms in the URL",
                transient=True,
            )
        if code == sqlite3.SQLITE_FULL:
            return BackendError(
                f"{self.path} is full (the disk, or max_page_count): make room; nothing accepted is lost",
                transient=False,
            )
        if code == sqlite3.SQLITE_CANTOPEN and self.path.is_dir():
            return BackendError(f"{self.path} is a folder: name a file in it", transient=False)
        if code == sqlite3.SQLITE_CANTOPEN:
            return BackendError(
                f"{self.path} cannot be opened: its folder must exist and be writable", transient=False
            )
        if code == sqlite3.SQLITE_NOTADB:
            return BackendError(f"{self.path} is not an SQLite database: name another file", transient=False)
        return BackendError(f"{self.path}: {error}", transient=False)


def migrations() -> list[Path]:
    """The migrations, in the order in which they are applied."""
    return sorted((Path(__file__).parent / "migrations").glob("*.sql"))


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 in a new file. Raises SchemaMismatch for another program's database."""
    outside = not connection.in_transaction
    if outside:  # what a migration writes at once is read at once
        connection.execute("BEGIN")
    try:
        ours = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        if not ours and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise SchemaMismatch(f"{path} holds another program's tables: name another file")
        return int(connection.execute("PRAGMA user_version").fetchone()[0]) if ours else 0
    finally:
        if outside and connection.in_transaction:
            connection.execute("ROLLBACK")


def _migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Applies what is missing in one transaction, so that many may try at once. Returns the version."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path)
        known = migrations()
        if version > len(known):
            raise SchemaMismatch(
                f"{path} has schema {version}, this library knows {len(known)}: update mayflymq here"
            )
        for migration in known[version:]:
            for statement in _statements(migration.read_text("utf-8")):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(known)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return len(known)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit the transaction that they belong in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _primary(error: sqlite3.Error) -> int:
    """SQLite's result code without the detail in its upper bits."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
