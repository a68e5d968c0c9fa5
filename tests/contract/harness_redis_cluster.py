"""The redis backend on a node in cluster mode: a key outside the queue's slot would be refused
(CROSSSLOT)."""

from __future__ import annotations

from localstack.servers import RedisServer

from . import harness_redis


class HARNESS(harness_redis.HARNESS):
    name = "redis-cluster"

    @classmethod
    def start(cls) -> None:
        cls._server = RedisServer(cluster=True).start()
