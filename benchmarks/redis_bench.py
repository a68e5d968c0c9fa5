"""What Redis costs, as ratios within one run: against a floor of bare round trips, against AsyncMQ on the
same server, and against the size of the queue.

`make bench` measures everything, `make bench ARGS=growth` only the cost against the queue's size, and
`make bench ARGS=peer` only the floor and AsyncMQ.

Rounds of both sides are interleaved, so that a slow spell of the machine hits both; the medians are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from localstack.servers import RedisServer
from mayflymq import Backend, Dedup, JobSpec, NewJob, Queue, claim_and_run, open_backend, task
from mayflymq.model import ClaimRequest, Complete, Settle

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".venv-bench" / "bin" / "python"
console = Console()


@task(name="noop")
def noop() -> None:
    return None


class Stopwatch:
    """Seconds by what was timed; the median is what counts."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, list[float]] = defaultdict(list)

    def time(self, name: str, call: Callable[[], Any], units: int = 1) -> Any:
        begun = time.perf_counter()
        answer = call()
        self.note(name, time.perf_counter() - begun, units)
        return answer

    def note(self, name: str, seconds: float, units: int = 1) -> None:
        self._spent[name].append(seconds / units)

    def median(self, name: str) -> float:
        return statistics.median(self._spent[name])

    def ratio(self, name: str, base: str) -> str:
        return f"{self.median(name) / self.median(base):.2f}"


# Cost against size


def new_jobs(queue: str, count: int, start: int = 0, **options: Any) -> list[NewJob]:
    return [
        NewJob(id=f"j{number}", queue=queue, task="noop", payload=b"{}", **options)
        for number in range(start, start + count)
    ]


def fill(backend: Backend, queue: str, count: int, **options: Any) -> None:
    for start in range(0, count, 1000):
        backend.enqueue(new_jobs(queue, min(1000, count - start), start, **options))


def cycle(backend: Backend, queue: str, number: int) -> None:
    """Claims one job, settles it and enqueues another, so that the queue keeps its size."""
    (claimed,) = backend.claim(ClaimRequest(queue, 1, f"t{number}", "bench", 600_000))
    backend.settle([Settle(claimed.claim, Complete())])
    backend.enqueue(new_jobs(queue, 1, 10**9 + number))


def growth(server: RedisServer) -> None:
    backend = open_backend(f"{server.url}?prefix=growth")
    watch = Stopwatch()
    for size in (1_000, 1_000_000):
        console.print(f"filling a queue with {size:,} waiting jobs", style="dim")
        fill(backend, f"waiting-{size}", size)
    for number in range(3000):
        for size in (1_000, 1_000_000):
            watch.time(f"cycle {size}", partial(cycle, backend, f"waiting-{size}", number))

    console.print("active jobs of which 10 go stale, delayed ones of which 10 are due", style="dim")
    for queue, size in (("active-many", 20_000), ("active-few", 1_000)):
        fill(backend, queue, size)
        for part in range(size // 1000):
            backend.claim(ClaimRequest(queue, 1000, f"long{part}", "bench", 3_600_000))
    for queue, size in (("delayed-many", 100_000), ("delayed-few", 1_000)):
        fill(backend, queue, size, delay_ms=3_600_000)
    for number in range(50):
        for queue in ("active-many", "active-few"):
            backend.enqueue(new_jobs(queue, 10, 10**8 + number * 10))
            backend.claim(ClaimRequest(queue, 10, f"short{number}", "bench", 1))
        for queue in ("delayed-many", "delayed-few"):
            backend.enqueue(new_jobs(queue, 10, 10**8 + number * 10, delay_ms=1))
        time.sleep(0.005)
        turn = 1 if number % 2 else -1  # who comes first after the rest pays for waking up
        for queue in ("active-many", "active-few")[::turn]:
            found = watch.time(queue, partial(backend.release_stale, queue, 100, 3))
            assert len(found) == 10, f"swept {len(found)} of 10"
            backend.drain(queue, False, 1000)
        for queue in ("delayed-many", "delayed-few")[::turn]:
            found = watch.time(queue, partial(backend.promote_due, queue, 1000))
            assert len(found) == 10, f"promoted {len(found)} of 10"
            backend.drain(queue, False, 1000)
    table = Table("what", "ratio", title="Cost against size")
    table.add_row(
        "claim, settle and enqueue one: among 1,000,000 waiting against 1,000",
        watch.ratio("cycle 1000000", "cycle 1000"),
    )
    table.add_row(
        "sweep 10 stale: among 20,000 active against 1,000", watch.ratio("active-many", "active-few")
    )
    table.add_row(
        "promote 10 due: among 100,000 delayed against 1,000", watch.ratio("delayed-many", "delayed-few")
    )
    console.print(table)


# Against a floor and a peer

ROUNDS = 5
RARE_ROUNDS = 3
JOBS = 2000
BULK = 10_000
ACTIVE = 20_000
DELAYED = 100_000
PASSED = 10
"""How many of the active are stale, and of the delayed due."""
ABOUT = 1000
"""How many jobs are about when one is added under a deduplication key."""


class Peer:
    """AsyncMQ in its own process and environment."""

    def __init__(self, url: str) -> None:
        if not PEER.exists():
            raise SystemExit("AsyncMQ is not installed: run `make bench`")
        self._process = subprocess.Popen(
            [str(PEER), str(ROOT / "benchmarks" / "asyncmq_side.py"), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __call__(self, what: str, queue: str, count: int) -> float:
        """The seconds that it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, queue, count]) + "\n")
        self._process.stdin.flush()
        seconds: float = self._read()
        return seconds

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Load:
    """Commands and bytes that a server handled while something ran."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def of(self, call: Callable[[], Any], jobs: int) -> str:
        before: Any = self._client.info("stats")
        call()
        after: Any = self._client.info("stats")
        moved = sum(after[key] - before[key] for key in ("total_net_input_bytes", "total_net_output_bytes"))
        calls = after["total_commands_processed"] - before["total_commands_processed"]
        return f"{calls / jobs:.1f} commands and {moved / jobs:,.0f} bytes a job run"


def ping(client: redis.Redis, count: int) -> None:
    for _ in range(count):
        client.ping()


def write_pipelined(client: redis.Redis, count: int) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.set(f"floor:{number}", "x")
        pipe.execute()


def enqueue_each(queue: Queue, count: int) -> None:
    for _ in range(count):
        queue.enqueue(noop)


def peer(server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url, protocol=2)
    backend = open_backend(f"{server.url}?prefix=ours")
    theirs = Peer(server.url)
    watch, load = Stopwatch(), Load(client)
    try:
        told = rates(client, backend, theirs, watch, load)
        console.print(f"{ACTIVE:,} active jobs and {DELAYED:,} delayed ones on either side", style="dim")
        rare(backend, theirs, watch)
    finally:
        theirs.stop()
    title = f"AsyncMQ {theirs.version}"
    table = Table("", "ours", "AsyncMQ", "ours : AsyncMQ", title=title)
    for name, part in (
        ("enqueue one by one", "one"),
        ("enqueue in bulk", "bulk"),
        ("claim, run and complete", "run"),
        (f"add under a deduplication key, {ABOUT:,} jobs about", "dedup"),
    ):
        ours, other = watch.median(f"{part}, ours"), watch.median(f"{part}, AsyncMQ")
        table.add_row(name, f"{1 / ours:,.0f}/s", f"{1 / other:,.0f}/s", f"{other / ours:,.1f}")
    for name, part in (
        (f"sweep {PASSED} stale of {ACTIVE:,} active", "sweep"),
        (f"promote {PASSED} due of {DELAYED:,} delayed", "promote"),
    ):
        ours, other = watch.median(f"{part}, ours"), watch.median(f"{part}, AsyncMQ")
        table.add_row(name, f"{ours * 1000:.1f} ms", f"{other * 1000:.1f} ms", f"{other / ours:,.1f}")
    console.print(table)
    table = Table("floor", "floor", "ours : floor", "AsyncMQ : floor", title="Against floors")
    for name, part, floor in (
        ("two bare round trips a job, redis-py", "run", "two round trips"),
        ("two bare round trips a job, redis.asyncio", "run", "two round trips, asyncio"),
        ("one bare write a job, pipelined", "bulk", "pipelined writes"),
    ):
        shares = (watch.ratio(floor, f"{part}, {side}") for side in ("ours", "AsyncMQ"))
        table.add_row(name, f"{1 / watch.median(floor):,.0f}/s", *shares)
    console.print(table)
    for name, text in told.items():
        console.print(f"{name}: {text}")


def rates(
    client: redis.Redis, backend: Backend, theirs: Peer, watch: Stopwatch, load: Load
) -> dict[str, str]:
    """Times what is done for every job. Returns what either side sent and received for one."""
    told: dict[str, str] = {}
    for turn in range(ROUNDS):
        name = f"q{turn}"
        queue = Queue(name, backend)
        queue.enqueue(noop)  # makes the queue and the scripts known
        claim_and_run(backend, [name])
        watch.time("one, ours", partial(enqueue_each, queue, JOBS), JOBS)
        watch.note("one, AsyncMQ", theirs("add", name, JOBS), JOBS)
        watch.time("two round trips", partial(ping, client, 2 * JOBS), JOBS)
        watch.note("two round trips, asyncio", theirs("ping", name, 2 * JOBS), JOBS)

        def run_ours(name: str = name) -> None:
            watch.time("run, ours", partial(claim_and_run, backend, [name]), JOBS)

        def run_theirs(name: str = name) -> None:
            watch.note("run, AsyncMQ", theirs("run", name, JOBS), JOBS)

        told["ours"] = load.of(run_ours, JOBS)
        told["AsyncMQ"] = load.of(run_theirs, JOBS)
        specs = [JobSpec(noop) for _ in range(BULK)]
        watch.time("bulk, ours", partial(queue.enqueue_many, specs), BULK)
        watch.note("bulk, AsyncMQ", theirs("add_bulk", f"bulk{turn}", JOBS), JOBS)
        watch.time("pipelined writes", partial(write_pipelined, client, BULK), BULK)
        queue.drop()
    return told


def rare(backend: Backend, theirs: Peer, watch: Stopwatch) -> None:
    """Times the sweep, the promotion and deduplication among many jobs that they are not about."""
    fill(backend, "active", ACTIVE)
    for part in range(ACTIVE // 1000):
        backend.claim(ClaimRequest("active", 1000, f"long{part}", "bench", 3_600_000))
    fill(backend, "delayed", DELAYED, delay_ms=3_600_000)
    fill(backend, "about", ABOUT)
    theirs("add_bulk", "active", ACTIVE)
    theirs("claim", "active", ACTIVE)
    theirs("add_delayed", "delayed", DELAYED)
    theirs("add_bulk", "about", ABOUT)
    keyed = Queue("about", backend)
    for turn in range(RARE_ROUNDS):
        backend.enqueue(new_jobs("active", PASSED, 10**8 + turn * PASSED))
        backend.claim(ClaimRequest("active", PASSED, f"short{turn}", "bench", 1))
        backend.enqueue(new_jobs("delayed", PASSED, 10**8 + turn * PASSED, delay_ms=1))
        theirs("add_bulk", "active", PASSED)
        theirs("stall", "active", PASSED)
        theirs("add_due", "delayed", PASSED)
        time.sleep(0.01)
        found = watch.time("sweep, ours", partial(backend.release_stale, "active", 100, 3))
        assert len(found) == PASSED, f"swept {len(found)} of {PASSED}"
        watch.note("sweep, AsyncMQ", theirs("sweep", "active", PASSED))
        moved = watch.time("promote, ours", partial(backend.promote_due, "delayed", 100))
        assert len(moved) == PASSED, f"promoted {len(moved)} of {PASSED}"
        watch.note("promote, AsyncMQ", theirs("promote", "delayed", PASSED))
        key = Dedup(f"key{turn}")
        watch.time("dedup, ours", partial(keyed.enqueue, noop, dedup=key))
        watch.note("dedup, AsyncMQ", theirs("add_keyed", "about", 1))
        backend.drain("active", False, 1000)
        theirs("run", "active", PASSED)


def main() -> None:
    with RedisServer() as server:
        for name in sys.argv[1:] or ["growth", "peer"]:
            {"growth": growth, "peer": peer}[name](server)


if __name__ == "__main__":
    main()
