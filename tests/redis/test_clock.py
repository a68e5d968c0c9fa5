"""The server's TIME decides, whatever a worker's clock says."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest

from tests.contract.harness import ROOT

from .store import REDIS, Store

HALF_HOUR = 1_800_000


@pytest.mark.promise("F4", "C1", "O4", "E1", backends=REDIS)
@pytest.mark.parametrize("seconds", [-3600, 0, 3600])
def test_a_worker_whose_clock_is_wrong(store: Store, seconds: int) -> None:
    def now() -> int:
        whole, micros = store.client.time()
        return int(whole) * 1000 + int(micros) // 1000

    start = now()
    ran = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "tests.redis.processes", "skewed"),
            f"{store.server.url}?prefix={store.prefix}",
            str(seconds),
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, list[str]] = defaultdict(list)
    for line in ran.stdout.splitlines():
        name, _, values = line.partition(" ")
        said[name].append(values)

    def in_time(value: str, later_ms: int = 0) -> bool:
        return start <= int(value) - later_ms <= now()

    created_at, claimed_at, heartbeat_at, stale_at = said["claim"][0].split()
    assert in_time(created_at)
    assert claimed_at == heartbeat_at
    assert in_time(claimed_at)
    assert int(stale_at) == int(claimed_at) + HALF_HOUR
    assert said["beat"][0] == "held"
    heartbeat_at, stale_at = said["beat"][1].split()
    assert in_time(heartbeat_at)
    assert int(stale_at) == int(heartbeat_at) + HALF_HOUR
    assert in_time(said["retry"][0], HALF_HOUR)
    assert said["claimed"] == ["now", "soon"]
    assert said["swept"] == ["", "soon"]
    assert said["promoted"] == ["", "soon"]
    assert said["ran"] == ["2"]
    assert sorted(said["completed"][0].split()) == ["fresh", "soon"]
    assert sorted(said["delayed"][0].split()) == ["later", "now"]
    assert said["expired"] == [""]
