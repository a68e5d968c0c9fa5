"""What the tests of this folder run in processes of their own.

python -m tests.redis.processes NAME URL ARGUMENT...
"""

from __future__ import annotations

import sys
import time
import uuid


def skewed(url: str, seconds: str) -> None:
    """A worker whose clock is wrong by that much; says each value that it saw as `name value`."""
    real_time, real_time_ns, wrong = time.time, time.time_ns, int(seconds)
    time.time = lambda: real_time() + wrong
    time.time_ns = lambda: real_time_ns() + wrong * 10**9

    from mayflymq.backends.base import open_backend
    from mayflymq.model import Beat, ClaimRequest, NewJob, Retry, Settle, State
    from mayflymq.worker import claim_and_run
    from tests.contract.actors import ERROR

    _tasks()
    backend = open_backend(url)
    half_hour = 1_800_000

    def new(id: str, **options: int) -> None:
        backend.enqueue([NewJob(id=id, queue="q", task="tests.noop", payload=PAYLOAD, **options)])  # type: ignore[arg-type]

    def claim(stale_after_ms: int) -> tuple[object, ...]:
        found = backend.claim(ClaimRequest("q", 9, uuid.uuid4().hex, "w", stale_after_ms))
        print("claimed", *(each.job.id for each in found))
        return tuple(found)

    def say(name: str, id: str, *fields: str) -> None:
        [job] = backend.get("q", [id])
        print(name, *(getattr(job, field) for field in fields))

    new("now", ttl_ms=half_hour)
    new("later", delay_ms=half_hour)
    [held] = claim(half_hour)
    say("claim", "now", "created_at", "claimed_at", "heartbeat_at", "stale_at")
    print("swept", *backend.release_stale("q", 9, 3))
    print("beat", *backend.heartbeat([Beat(held.claim, half_hour)]))
    say("beat", "now", "heartbeat_at", "stale_at")
    backend.settle([Settle(held.claim, Retry(half_hour, ERROR))])
    say("retry", "now", "run_at")
    print("promoted", *backend.promote_due("q", 9))
    new("soon", delay_ms=1)
    while not (promoted := backend.promote_due("q", 9)):
        pass
    print("promoted", *promoted)
    claim(1)
    while not (swept := backend.release_stale("q", 9, 3)):
        pass
    print("swept", *(each.job_id for each in swept))
    new("fresh", ttl_ms=half_hour)
    print("ran", claim_and_run(backend, ["q"]).completed)
    for state in (State.COMPLETED, State.DELAYED, State.EXPIRED):
        print(state, *(job.id for job in backend.list_jobs("q", state).jobs))
    backend.close()


def work(url: str, name: str) -> None:
    """Runs the queue's jobs as invocation after invocation would, until its input ends."""
    import select

    from mayflymq.backends.base import open_backend
    from mayflymq.errors import BackendError
    from mayflymq.worker import claim_and_run

    _tasks()
    backend = open_backend(url)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            report = claim_and_run(backend, ["q"], worker=name, stalled_threshold_ms=1000, limit=20)
        except BackendError as error:
            if not error.transient:
                raise
            continue
        if not report.claimed:
            select.select([sys.stdin], [], [], 0.05)
    backend.close()


def fork(url: str) -> None:
    """The handle of a process, also while a thread holds its lock, used by a child of it."""
    import os
    import threading

    from mayflymq.backends.base import open_backend
    from mayflymq.model import NewJob

    def new(id: str) -> object:
        return backend.enqueue([NewJob(id=id, queue="q", task="t", payload=b"1")])[0].status

    backend = open_backend(url)
    assert new("before") == "created"
    entered, leave = threading.Event(), threading.Event()

    def holding() -> None:
        with backend._connection._lock:  # type: ignore[attr-defined]
            entered.set()
            leave.wait()

    thread = threading.Thread(target=holding)
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        backend.close()  # takes no lock that a thread of the parent held
        assert new("in the child") == "created"
        backend.close()
        os._exit(0)
    leave.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert new("after") == "created"
    print(len(backend.get("q", ["before", "in the child", "after"])), threading.active_count())


PAYLOAD = b'{"args":[],"kwargs":{},"meta":{}}'


def _tasks() -> None:
    from mayflymq import task

    @task(name="tests.noop")
    def noop() -> None:
        pass


if __name__ == "__main__":
    {"skewed": skewed, "work": work, "fork": fork}[sys.argv[1]](*sys.argv[2:])
