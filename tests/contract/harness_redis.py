"""The redis backend: a real server with append-only persistence, a key prefix a test."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import redis

from localstack.servers import RedisServer
from mayflymq.backends.redis.keys import prefix_of

from .harness import Harness

BESIDE = ("spec", "payload", "result", "error", "first_error")


def spoil(client: redis.Redis, key: str, field: str, value: str | bytes) -> None:
    """Changes one thing that is stored of a job, past the library: in its record, or beside it."""
    raw = value.encode() if isinstance(value, str) else value
    assert client.exists(key)
    if field in BESIDE:
        client.hset(key, field, raw)
        return
    stored: Any = client.hget(key, "record")
    record = json.dumps(json.loads(stored) | {field: "@"}, ensure_ascii=False).encode()
    client.hset(key, "record", record.replace(b'"@"', b'"' + raw + b'"'))


class HARNESS(Harness):
    name = "redis"
    can_plant_unreadable = True
    can_plant_newer = True

    _server: ClassVar[RedisServer]

    @classmethod
    def start(cls) -> None:
        cls._server = RedisServer().start()

    @classmethod
    def stop(cls) -> None:
        cls._server.stop()

    def url(self) -> str:
        return f"{self._server.url}?prefix={self.queue}"

    def restart(self) -> None:
        super().restart()
        self._server.restart()

    def plant_unreadable(self, queue: str, job_id: str) -> None:
        self._spoil(queue, job_id, "priority", "high")

    def plant_newer(self, queue: str, job_id: str) -> None:
        self._spoil(queue, job_id, "format", "2")

    def _spoil(self, queue: str, job_id: str, field: str, value: str) -> None:
        with redis.Redis.from_url(self._server.url) as client:
            spoil(client, f"{prefix_of(self.queue, queue)}job:{job_id}", field, value)
