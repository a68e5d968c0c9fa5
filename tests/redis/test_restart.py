"""A server that is killed in the middle of a run and started again on its data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localstack.servers import RedisServer
from mayflymq.model import NewJob, State
from tests.contract.bench import check_invariants
from tests.contract.harness import ROOT
from tests.faults.faultpoints import QUEUE

from .processes import PAYLOAD
from .store import REDIS, Store

JOBS = 300
BATCH = 25


@pytest.mark.promise("C7", "D1", "D6", "C6", backends=REDIS)
def test_a_killed_server_loses_no_accepted_job() -> None:
    """Two workers and a producer go on as if nothing had been. Sweeps find what a worker lost."""
    with RedisServer(config={"appendfsync": "always"}) as server:
        store = Store(server)
        url = f"{server.url}?prefix={store.prefix}"
        backend = store.open(real=True)
        workers = [worker(url, f"w{n}") for n in range(2)]
        try:
            jobs = [NewJob(id=f"j{n}", queue=QUEUE, task="tests.noop", payload=PAYLOAD) for n in range(JOBS)]
            kills = 0
            for start in range(0, JOBS, BATCH):
                answers = [answer.status for answer in backend.enqueue(jobs[start : start + BATCH])]
                assert set(answers) <= {"created", "duplicate_id"}
                if start // BATCH in (3, 8):
                    kills += 1
                    server.kill()
                    server.start()
            done = 0
            while done < JOBS:
                backend.promote_due(QUEUE, 100)
                backend.release_stale(QUEUE, 100, 100)
                done = backend.queues([QUEUE])[0].counts.completed
        finally:
            for each in workers:
                each.communicate("\n", timeout=30)
        assert [each.returncode for each in workers] == [0, 0]
        assert kills == 2
        found = backend.get(QUEUE, [job.id for job in jobs])
        assert {job and job.state for job in found} == {State.COMPLETED}
        assert all(job and job.deliveries >= 1 for job in found)
        check_invariants(backend, QUEUE)
        store.close()


def worker(url: str, name: str) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.redis.processes", "work", url, name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started
