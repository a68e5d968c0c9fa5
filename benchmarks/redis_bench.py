"""What Redis costs, as ratios within one run: against a floor of bare round trips, against AsyncMQ on the
same server, and against the size of the queue.

make bench                 everything make bench ARGS=growth     only the cost against the queue's size make
bench ARGS=peer       only the floor and AsyncMQ

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
from mayflymq import Backend, JobSpec, NewJob, Queue, claim_and_run, open_backend, task
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
JOBS = 2000
BULK = 10_000


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
    told: dict[str, str] = {}
    for turn in range(ROUNDS):
        name = f"q{turn}"
        queue = Queue(name, backend)
        queue.enqueue(noop)  # makes the queue and the scripts known
        claim_and_run(backend, [name])
        watch.time("one, ours", partial(enqueue_each, queue, JOBS), JOBS)
        watch.note("one, AsyncMQ", theirs("add", name, JOBS), JOBS)
        watch.time("two round trips", partial(ping, client, 2 * JOBS), JOBS)

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
    theirs.stop()

    def rate(name: str) -> float:
        return 1 / watch.median(name)

    table = Table("", "ours", "AsyncMQ", "ours : AsyncMQ", "ours : floor", title=f"AsyncMQ {theirs.version}")
    for title, part, floor in (
        ("enqueue one by one", "one", None),
        ("enqueue in bulk", "bulk", "pipelined writes"),
        ("claim, run and complete", "run", "two round trips"),
    ):
        ours, other = rate(f"{part}, ours"), rate(f"{part}, AsyncMQ")
        against = f"{ours / rate(floor):.2f} of {floor}" if floor else ""
        table.add_row(title, f"{ours:,.0f}/s", f"{other:,.0f}/s", f"{ours / other:.1f}", against)
    console.print(table)
    for name, text in told.items():
        console.print(f"{name}: {text}")


def main() -> None:
    with RedisServer() as server:
        for name in sys.argv[1:] or ["growth", "peer"]:
            {"growth": growth, "peer": peer}[name](server)


if __name__ == "__main__":
    main()
