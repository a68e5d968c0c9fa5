"""The fixtures of the conformance suite: a `harness` per backend, the `backend` it opens, a bench `q` on it.

Every test runs on each backend in BACKENDS. After each, the invariants are checked through a second handle.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mayflymq.backends.base import Backend

from .bench import Bench, check_invariants
from .harness import Harness, ManualClock

BACKENDS = ("memory", "sqlite", "redis", "redis-cluster")


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, type[Harness]]]:
    """The harness classes whose `start` was called in this run."""
    started: dict[str, type[Harness]] = {}
    yield started
    for kind in started.values():
        kind.stop()


@pytest.fixture(params=BACKENDS)
def harness(
    request: pytest.FixtureRequest, servers: dict[str, type[Harness]], tmp_path: Path
) -> Iterator[Harness]:
    name: str = request.param
    if name not in servers:
        kind: type[Harness] = importlib.import_module(
            f"tests.contract.harness_{name.replace('-', '_')}"
        ).HARNESS
        kind.start()
        servers[name] = kind
    made = servers[name](tmp_path)
    yield made
    made.close()


@pytest.fixture
def backend(harness: Harness) -> Iterator[Backend]:
    handle = harness.open()
    handle.migrate()
    yield handle
    second = harness.open()
    for info in second.queues():
        if info.name.startswith(harness.queue) and info.name not in harness.spoiled:
            check_invariants(second, info.name)


@pytest.fixture
def clock(harness: Harness) -> ManualClock:
    return harness.clock


@pytest.fixture
def q(harness: Harness, backend: Backend) -> Bench:
    return Bench(backend, harness.clock, harness.queue)


@pytest.fixture
def other(q: Bench, harness: Harness) -> Bench:
    """The same queue through an independent handle."""
    return q.on(harness.open())
