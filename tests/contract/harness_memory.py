"""The memory backend: one named store of this process a test."""

from __future__ import annotations

from .harness import Harness


class HARNESS(Harness):
    name = "memory"

    def url(self) -> str:
        return f"memory://{self.queue}"
