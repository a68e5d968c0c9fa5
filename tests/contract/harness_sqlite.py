"""The sqlite backend: one database file a test, in memory-backed storage where the machine has some.

No test here pulls a plug, so what fsync costs would buy nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from mayflymq.backends.base import open_backend

from .harness import Harness

FAST = Path("/dev/shm")


class HARNESS(Harness):
    name = "sqlite"
    can_plant_unreadable = True
    can_plant_newer = True

    _folder: ClassVar[Path]

    @classmethod
    def start(cls) -> None:
        fast = FAST if FAST.is_dir() and os.access(FAST, os.W_OK) else None
        cls._folder = Path(tempfile.mkdtemp(prefix="mayflymq-", dir=fast))
        empty = open_backend(f"sqlite:///{cls._folder / 'empty.db'}")
        empty.migrate()
        empty.close()

    @classmethod
    def stop(cls) -> None:
        shutil.rmtree(cls._folder)

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.file = self._folder / f"{self.queue}.db"
        shutil.copyfile(self._folder / "empty.db", self.file)

    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def close(self) -> None:
        super().close()
        for left in self._folder.glob(f"{self.queue}.db*"):
            left.unlink()

    def plant_unreadable(self, queue: str, job_id: str) -> None:
        self._spoil("UPDATE jobs SET backoff = '{' WHERE queue = ? AND id = ?", queue, job_id)

    def plant_newer(self, queue: str, job_id: str) -> None:
        self._spoil("UPDATE jobs SET format = format + 1 WHERE queue = ? AND id = ?", queue, job_id)

    def _spoil(self, statement: str, queue: str, job_id: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            assert connection.execute(statement, (queue, job_id)).rowcount == 1
