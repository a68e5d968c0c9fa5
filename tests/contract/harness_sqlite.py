"""The sqlite backend: one database file a test."""

from __future__ import annotations

from .harness import Harness


class HARNESS(Harness):
    name = "sqlite"

    def url(self) -> str:
        return f"sqlite:///{self.tmp_path / 'store.db'}"
