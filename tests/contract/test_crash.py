"""Workers that vanish and stores that restart: C6, C7, D1."""

from __future__ import annotations

import pytest

from .bench import STALE, Bench
from .harness import Harness


@pytest.mark.promise("C6", "C1", "D3")
def test_a_killed_worker_acknowledges_nothing(harness: Harness, q: Bench) -> None:
    """SIGKILL for a process, between its claim and everything else that it might have done."""
    q.enqueue("a", "b", "c", max_retries=0)
    worker = harness.spawn("claim_and_hold", q.queue, "victim", 2, STALE)
    assert worker.hear() == "ready"
    worker.go()
    assert worker.hear() == ["a", "b"]
    worker.kill()
    before = q.backend.get(q.queue, ["a", "b"])
    assert [job and (job.state, job.worker, job.deliveries) for job in before] == [
        ("active", "victim", 1)
    ] * 2

    q.clock.advance(STALE - 1)
    assert q.sweep() == []
    assert q.backend.get(q.queue, ["a", "b"]) == before
    q.clock.advance(1)
    assert [(r.job_id, r.status, r.worker) for r in q.sweep()] == [
        ("a", "released", "victim"),
        ("b", "released", "victim"),
    ]
    assert [(each.job.id, each.job.deliveries, each.job.failures) for each in q.claim(5)] == [
        ("c", 1, 0),
        ("a", 2, 0),
        ("b", 2, 0),
    ]


@pytest.mark.promise("C6", "C14")
def test_a_job_that_kills_its_worker_cannot_kill_workers_for_ever(harness: Harness, q: Bench) -> None:
    q.enqueue("poison")
    outcomes = []
    for n in range(3):
        worker = harness.spawn("claim_and_hold", q.queue, f"victim-{n}", 1, STALE)
        worker.hear()
        worker.go()
        assert worker.hear() == ["poison"]
        worker.kill()
        q.clock.advance(STALE)
        outcomes += [found.status for found in q.sweep(max_stalls=2)]
    assert outcomes == ["released", "released", "failed"]
    assert (q.claim(), q.info().dead_letters) == ([], 1)


@pytest.mark.promise("C6", "C4", "F4")
def test_a_short_real_time_claim_of_a_killed_worker(harness: Harness, q: Bench) -> None:
    """The same by the store's own clock: the sweep comes early and finds nothing, then finds it."""
    real = q.on(harness.open_real())
    real.enqueue("j")
    worker = harness.spawn("claim_and_hold", q.queue, "victim", 1, 300, real_clock=True)
    worker.hear()
    worker.go()
    assert worker.hear() == ["j"]
    worker.kill()
    stale_at = real.get("j").stale_at
    assert stale_at is not None
    while not (found := real.sweep()):
        assert real.state() == "active"
    [recovered] = found
    assert (recovered.job_id, recovered.status, recovered.worker) == ("j", "released", "victim")


@pytest.mark.promise("C7", "D1", "X5", "A1")
def test_everything_is_there_after_a_restart_of_the_store(harness: Harness, q: Bench) -> None:
    if not q.backend.capabilities.durable:
        pytest.skip("the store ends with its process")
    q.enqueue("stale", "held", "marked")
    claims = {claimed.job.id: claimed.claim for claimed in q.claim(3)}
    q.cancel("marked")
    settled = q.ended("retried", "retry")
    q.enqueue("waiting", priority=1)
    q.enqueue("child", depends_on=("waiting",))
    q.backend.set_paused(q.queue, True)
    ids = ["stale", "held", "marked", "retried", "waiting", "child"]
    before = q.backend.get(q.queue, ids)
    q.clock.advance(STALE - 1)
    q.beat(claims["held"])

    harness.restart()

    q = q.on(harness.open())
    assert [job for job in q.backend.get(q.queue, ids) if job and job.id != "held"] == [
        job for job in before if job and job.id != "held"
    ]
    assert (q.info().paused, q.claim()) == (True, [])
    q.clock.advance(1)
    assert q.swept() == {"stale": "released", "marked": "cancelled"}
    assert q.settle(claims["stale"], "complete") == "lost"
    assert q.settle(claims["held"], "complete") == "applied"
    assert q.settle(settled, "retry") == "duplicate"
    q.backend.set_paused(q.queue, False)
    assert q.take(5) == ["waiting", "stale"]


@pytest.mark.promise("C7", "C9")
def test_old_handles_go_on_after_a_restart(harness: Harness, q: Bench, other: Bench) -> None:
    if not q.backend.capabilities.durable:
        pytest.skip("the store ends with its process")
    claim = q.active()
    other.info()
    harness.restart()
    assert q.beat(claim) == "held"
    assert other.settle(claim, "complete") == "applied"
