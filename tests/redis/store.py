"""A store of one test on the session's server: handles, snapshots, what the server saw, and every call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from localstack.servers import RedisServer
from mayflymq.backends.redis import backend as implementation
from mayflymq.backends.redis.backend import RedisBackend
from mayflymq.backends.redis.backend import open as open_redis
from mayflymq.backends.redis.keys import prefix_of
from mayflymq.model import State
from tests.contract.bench import Bench
from tests.contract.harness import ManualClock
from tests.contract.harness_redis import spoil
from tests.faults.faultpoints import QUEUE, Situation, small_steps
from tests.faults.situations import KEYS, SITUATIONS, busy

REDIS = ("redis",)
LUA = Path(implementation.__file__).parent / "lua"
SCRIPTS = sorted(file.stem for file in LUA.glob("*.lua") if not file.stem.startswith("_"))

READ_CALLS: dict[str, Callable[[Bench], Any]] = {
    "get: known and unknown": lambda q: q.backend.get(q.queue, ["w1", "nobody", "a1"]),
    "list_jobs: a page": lambda q: q.backend.list_jobs(q.queue, State.BLOCKED, None, 2),
    "queues: one": lambda q: q.backend.queues([q.queue]),
    "queues: all": lambda q: q.backend.queues(),
    "dedup_holder: looked up": lambda q: q.backend.dedup_holder(q.queue, "active"),
    "list_schedules: all": lambda q: q.backend.list_schedules(q.queue),
    "due_schedules: due": lambda q: q.backend.due_schedules(q.queue, 10),
    "check: all": lambda q: q.backend.check(),
}
CALLS: dict[str, Situation] = {
    **{name: each for name, each in SITUATIONS.items() if each.connected},
    **{name: Situation(busy, call) for name, call in READ_CALLS.items()},
}
"""Every method of the protocol, on a store where it has something to do."""

Contents = dict[bytes, bytes]
_prepared: dict[tuple[str, object], tuple[Contents, int]] = {}


def method_of(name: str) -> str:
    return name.partition(":")[0]


class Store:
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client = redis.Redis.from_url(server.url)
        self.clock = ManualClock()
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self._handles: list[RedisBackend] = []

    def open(self, *, port: int = 0, options: str = "", real: bool = False, **given: Any) -> RedisBackend:
        """A handle on the test's clock, or with `real` on the server's."""
        url = f"redis://127.0.0.1:{port or self.server.port}/0?prefix={self.prefix}{options}"
        return self.open_url(url, clock=None if real else self.clock, **given)

    def open_url(self, url: str, **given: Any) -> RedisBackend:
        handle = open_redis(url, **given)
        self._handles.append(handle)
        return handle

    def bench(self, **given: Any) -> Bench:
        return Bench(self.open(**given), self.clock, QUEUE)

    def key(self, name: str) -> str:
        return prefix_of(self.prefix, QUEUE) + name

    # The contents

    def arrange(self, situation: Situation) -> None:
        """Makes the store stand where the situation starts, from a snapshot that is made once."""
        key = (self.server.url, (situation.arrange, situation.broker, situation.spoil))
        if key not in _prepared:
            made = Store(self.server)
            if situation.arrange:
                with small_steps():
                    situation.arrange(made.bench(broker=situation.broker))
            if situation.spoil:
                spoil(made.client, made.key(f"job:{situation.spoil}"), "priority", "high")
            cut = len(made.prefix)
            _prepared[key] = {name[cut:]: value for name, value in made.snapshot().items()}, made.clock.now
            made.close()
        contents, self.clock.now = _prepared[key]
        self.empty()
        filling = self.client.pipeline(transaction=False)
        for name, value in contents.items():
            filling.restore(self.prefix.encode() + name, 0, value)
        filling.execute()

    def contents(self) -> dict[bytes, Any]:
        """Every key with its value, to be compared. DUMP would tell two orders of one hash apart."""
        names = sorted(self.client.scan_iter(f"{self.prefix}:*", 1000))
        asking = self.client.pipeline(transaction=False)
        for name in names:
            asking.type(name)
        kinds: Any = asking.execute()
        for name, kind in zip(names, kinds, strict=True):
            if kind == b"hash":
                asking.hgetall(name)
            elif kind == b"zset":
                asking.zrange(name, 0, -1, withscores=True)
            else:
                asking.dump(name)
        return dict(zip(names, asking.execute(), strict=True))

    def snapshot(self) -> Contents:
        """Every key as DUMP gives it, for RESTORE."""
        names = sorted(self.client.scan_iter(f"{self.prefix}:*", 1000))
        asking = self.client.pipeline(transaction=False)
        for name in names:
            asking.dump(name)
        return dict(zip(names, asking.execute(), strict=True))

    def empty(self) -> None:
        if names := list(self.client.scan_iter(f"{self.prefix}:*", 1000)):
            self.client.delete(*names)

    def observe(self) -> dict[str, Any]:
        """All that the protocol shows of the queue, through a handle of its own."""
        q = self.bench()
        info = q.info(exact=True)
        seen = {
            "info": (info.paused, info.counts, info.dead_letters, info.workers),
            "jobs": {state: q.backend.list_jobs(q.queue, state, None, 1000) for state in State},
            "keys": {key: q.backend.dedup_holder(q.queue, key) for key in KEYS},
            "schedules": [
                replace(each, revision=0) for each in q.backend.list_schedules(q.queue, None, 1000)
            ],
        }
        q.backend.close()
        return seen

    # What the server saw

    @contextmanager
    def watched(self) -> Iterator[list[tuple[bool, list[str]]]]:
        """Fills in, at its end, the commands of this test: whether a script sent it, and its words."""
        seen: list[tuple[bool, list[str]]] = []
        with self.client.monitor() as monitor:
            yield seen
            self.client.echo(self.prefix)
            for entry in monitor.listen():
                words = entry["command"].split(" ")
                if words[0] == "ECHO" and words[-1] == self.prefix:
                    break
                seen.append((entry["client_type"] == "lua", words))

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        self.empty()
        self.client.close()
