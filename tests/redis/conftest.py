"""Servers, one of each kind for each process of the run, and a store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localstack.servers import RedisServer, redis_version
from mayflymq.backends.redis.connection import script
from tests.contract.bench import Bench
from tests.faults.faultpoints import small_steps

from .proxy import Proxy
from .store import SCRIPTS, Store


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    # Older servers allow DEBUG without being told.
    config = {"enable-debug-command": "local"} if redis_version() >= (7,) else {}
    with RedisServer(config=config) as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    made = Store(server)
    for name in SCRIPTS:
        made.client.script_load(script(name)[0])
    yield made
    made.close()


@pytest.fixture
def q(store: Store) -> Bench:
    return store.bench()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def _small_steps() -> Iterator[None]:
    with small_steps():
        yield
