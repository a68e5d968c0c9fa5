"""Redis's part of the crash tests: keys that are dumped and restored, and a client that counts."""

from __future__ import annotations

from typing import Any

import redis

from localstack.servers import RedisServer
from mayflymq.backends.base import Backend, open_backend
from mayflymq.backends.redis import connection as implementation
from mayflymq.backends.redis.keys import prefix_of
from tests.contract.bench import Bench
from tests.contract.harness import ManualClock
from tests.contract.harness_redis import spoil

from .faultpoints import QUEUE, Points, Run, Situation, Victims
from .situations import SITUATIONS

PREFIX = "crash"
READS = {"get", "list_jobs", "queue_info", "list_schedules", "due_schedules"}


class FAULTS:
    writes = frozenset(file.stem for file in implementation.LUA.glob("[!_]*.lua")) - READS
    in_steps = frozenset({"claim: a record that cannot be read"})  # it is settled by a script of its own

    def __init__(self) -> None:
        implementation.script.cache_clear()  # the scripts hold the limit of `small_steps`
        self._server = RedisServer().start()
        self._url = f"{self._server.url}?prefix={PREFIX}"
        self._client = redis.Redis.from_url(self._server.url)
        self._prepared: dict[object, tuple[dict[bytes, bytes], int]] = {}
        self._clock = ManualClock()
        self._handles: list[Backend] = []
        self._victims = Victims("redis")

    def run(self, name: str, point: int | None) -> Run:
        dumped, now = self._prepare(SITUATIONS[name])
        self._empty()
        filling = self._client.pipeline(transaction=False)
        for key, value in dumped.items():
            filling.restore(key, 0, value)
        filling.execute()
        self._clock = ManualClock(now)
        return self._victims.run(name, point, self._url, now)

    def _prepare(self, situation: Situation) -> tuple[dict[bytes, bytes], int]:
        """What the situation's arrangement stores, made once, and the time there."""
        key = (situation.arrange, situation.broker, situation.spoil)
        if key not in self._prepared:
            self._empty()
            clock = ManualClock()
            if situation.arrange:
                backend = open_backend(self._url, broker=situation.broker, clock=clock)
                situation.arrange(Bench(backend, clock, QUEUE))
                backend.close()
            if situation.spoil:
                spoil(self._client, f"{prefix_of(PREFIX, QUEUE)}job:{situation.spoil}", "priority", "high")
            self._prepared[key] = dict(self.contents()), clock.now
        return self._prepared[key]

    def contents(self) -> Any:
        names = sorted(self._client.keys(f"{PREFIX}:*"))
        asking = self._client.pipeline(transaction=False)
        for name in names:
            asking.dump(name)
        return tuple(zip(names, asking.execute(), strict=True))

    def bench(self) -> Bench:
        handle = open_backend(self._url, broker=True, clock=self._clock)
        self._handles.append(handle)
        return Bench(handle, self._clock, QUEUE)

    def _empty(self) -> None:
        while self._handles:
            self._handles.pop().close()
        self._client.flushdb()  # the server is this harness's own

    def close(self) -> None:
        self._empty()
        self._victims.close()
        self._client.close()
        self._server.stop()
        implementation.script.cache_clear()


def install(points: Points) -> None:
    client: Any = redis.Redis
    line: Any = implementation.Line
    execute, ask, script = client.execute_command, line.script, implementation.script

    def counting(self: redis.Redis, *words: Any, **options: Any) -> Any:
        points.here()
        return execute(self, *words, **options)

    def asking(self: redis.Redis, *words: Any) -> Any:
        points.here()
        return ask(self, *words)

    def noting(name: str, *options: Any) -> Any:
        if name in FAULTS.writes:
            points.wrote(name)
        return script(name, *options)

    client.execute_command = counting
    line.script = asking
    implementation.script = noting  # type: ignore[assignment]
