"""SQLite's part of the crash tests: a file that is copied for each run, and a connection that counts."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from mayflymq.backends.base import Backend, open_backend
from mayflymq.backends.sqlite import backend as implementation
from tests.contract.bench import Bench
from tests.contract.harness import ManualClock
from tests.contract.harness_sqlite import FAST

from .faultpoints import QUEUE, Points, Run, Situation, Victims
from .situations import SITUATIONS

SQL = Path(implementation.__file__).parent / "sql"
NAMES = {file.read_text("utf-8"): file.stem for file in SQL.glob("*.sql")}


def _verb(statement: str) -> str:
    return next(line for line in statement.splitlines() if line and not line.startswith("--")).split()[0]


class FAULTS:
    writes = frozenset(name for text, name in NAMES.items() if _verb(text) in ("INSERT", "UPDATE", "DELETE"))
    in_steps: frozenset[str] = frozenset()

    def __init__(self) -> None:
        fast = FAST if FAST.is_dir() and os.access(FAST, os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="mayflymq-", dir=fast))
        self.copy = self._folder / "copy.db"
        self._prepared: dict[object, tuple[Path, int]] = {}
        self._clock = ManualClock()
        self._handles: list[Backend] = []
        self._victims = Victims("sqlite")

    def run(self, name: str, point: int | None) -> Run:
        url = self.fresh(name)
        return self._victims.run(name, point, url, self._clock.now)

    def fresh(self, name: str) -> str:
        """The URL of a fresh copy of the named situation's store."""
        prepared, now = self._prepare(SITUATIONS[name])
        self._let_go()
        for left in self._folder.glob("copy.db*"):
            left.unlink()
        if prepared.exists():
            shutil.copyfile(prepared, self.copy)
        self._clock = ManualClock(now)
        return f"sqlite:///{self.copy}"

    def _prepare(self, situation: Situation) -> tuple[Path, int]:
        """The file of the situation's arrangement, made once, and the time there."""
        key = (situation.arrange, situation.broker, situation.spoil)
        if key not in self._prepared:
            file = self._folder / f"prepared-{len(self._prepared)}.db"
            clock = ManualClock()
            if situation.arrange:
                backend = open_backend(f"sqlite:///{file}", broker=situation.broker, clock=clock)
                situation.arrange(Bench(backend, clock, QUEUE))
                backend.close()
            if situation.spoil:
                with closing(sqlite3.connect(file)) as connection, connection:
                    connection.execute("UPDATE jobs SET backoff = '{' WHERE id = ?", [situation.spoil])
            assert not file.with_name(f"{file.name}-wal").exists(), "one file holds everything"
            self._prepared[key] = file, clock.now
        return self._prepared[key]

    def bench(self, options: str = "") -> Bench:
        handle = open_backend(f"sqlite:///{self.copy}{options}", broker=True, clock=self._clock)
        self._handles.append(handle)
        return Bench(handle, self._clock, QUEUE)

    def contents(self) -> object:
        with closing(sqlite3.connect(self.copy)) as connection:
            return tuple(connection.iterdump())

    def _let_go(self) -> None:
        while self._handles:
            self._handles.pop().close()

    def close(self) -> None:
        self._let_go()
        self._victims.close()
        shutil.rmtree(self._folder)


def install(points: Points) -> None:
    class Counting(sqlite3.Connection):
        last = ""
        changes = 0

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            # What a statement with RETURNING changed is counted when its rows were fetched.
            if self.total_changes > self.changes and self.last in NAMES:
                points.wrote(NAMES[self.last])
            self.last, self.changes = sql, self.total_changes
            points.here()
            return super().execute(sql, *values)

    connect: Callable[..., Any] = partial(sqlite3.connect, factory=Counting)
    sqlite3.connect = connect
