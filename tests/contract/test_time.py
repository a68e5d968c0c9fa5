"""Due times, stale times and TTL: all by the store's clock (F4), each exactly at its boundary."""

from __future__ import annotations

import threading
import time

import pytest

from mayflymq import lifecycle
from mayflymq.model import MAX_TIME, Defer, Retry

from .bench import OTHER_ERROR, STALE, Bench
from .harness import START, Harness


@pytest.mark.promise("F4", "O4")
@pytest.mark.parametrize(
    ("options", "state", "run_at"),
    [
        ({}, "waiting", None),
        ({"delay_ms": 0}, "waiting", None),
        ({"run_at": 0}, "waiting", None),
        ({"run_at": START - 1}, "waiting", None),
        ({"run_at": START}, "waiting", None),
        ({"run_at": START + 1}, "delayed", START + 1),
        ({"delay_ms": 1}, "delayed", START + 1),
        ({"delay_ms": 100 * 365 * 86_400_000}, "delayed", START + 100 * 365 * 86_400_000),
        ({"run_at": MAX_TIME}, "delayed", MAX_TIME),
        ({"delay_ms": MAX_TIME}, "delayed", MAX_TIME),
    ],
)
def test_when_a_job_is_due(q: Bench, options: dict[str, int], state: str, run_at: int | None) -> None:
    assert q.clock.now == START
    [answer] = q.enqueue("j", **options)
    assert (answer.status, answer.state) == ("created", state)
    job = q.get()
    assert (job.state, job.run_at, job.created_at) == (state, run_at, START)
    if run_at is not None:
        q.clock.now = run_at - 1
        assert q.promote() == []
        assert q.claim() == []
        q.clock.now = run_at
        assert q.promote() == ["j"]
        assert q.get().run_at == run_at


@pytest.mark.promise("F4", "O4")
@pytest.mark.parametrize(
    "outcome", [Retry(50, OTHER_ERROR), Defer(50), Retry(MAX_TIME, OTHER_ERROR), Defer(MAX_TIME)]
)
def test_when_a_retry_is_due(q: Bench, outcome: Retry | Defer) -> None:
    claim = q.active(delay_ms=0)
    settled_at = q.clock.advance(13)
    assert q.settle(claim, outcome) == "applied"
    due = min(settled_at + outcome.delay_ms, MAX_TIME)
    assert (q.state(), q.get().run_at) == ("delayed", due)
    q.clock.now = due - 1
    assert q.claim() == []
    q.clock.now = due
    assert q.take() == ["j"]


@pytest.mark.promise("C1", "C5")
def test_a_claim_is_stale_from_its_stale_time_on(q: Bench) -> None:
    q.enqueue("j")
    q.hold("j", stale_after_ms=100)
    q.clock.advance(99)
    assert q.sweep() == []
    q.clock.advance(1)
    assert q.swept() == {"j": "released"}


@pytest.mark.promise("E1", "E2", "E3", "F4")
@pytest.mark.parametrize("way", ["waiting", "delayed", "retried", "replayed"])
def test_what_the_worker_needs_to_expire_a_job_travels_with_it(q: Bench, way: str) -> None:
    """The store never expires a job by itself: whoever claims it decides, by the store's times."""
    created = q.clock.now
    if way == "delayed":
        q.enqueue("j", ttl_ms=1000, delay_ms=500)
        q.clock.advance(500)
    elif way == "retried":
        q.ended("j", Retry(500, OTHER_ERROR), ttl_ms=1000)
        q.clock.advance(500)
    elif way == "replayed":
        q.ended("j", "fail", ttl_ms=1000)
        created = q.clock.advance(800)
        q.replay("j")
    else:
        q.enqueue("j", ttl_ms=1000)
    q.clock.now = created + 999
    [fresh] = q.claim()
    assert fresh.job.claimed_at == q.clock.now
    assert not lifecycle.is_expired(fresh.job, fresh.job.claimed_at)
    q.settle(fresh.claim, "release")
    q.clock.advance(1)
    assert q.promote() == []
    [late] = q.claim()
    assert late.job.claimed_at is not None
    assert lifecycle.is_expired(late.job, late.job.claimed_at)
    assert q.settle(late.claim, "expire") == "applied"
    assert (q.state(), q.info().dead_letters) == ("expired", 1)
    assert q.claim() == []


@pytest.mark.promise("F4", "C9")
def test_all_handles_go_by_one_clock(q: Bench, other: Bench) -> None:
    q.enqueue("later", delay_ms=10)
    q.enqueue("j")
    other.clock.advance(10)
    assert other.promote() == ["later"]
    q.claim(2)
    other.clock.advance(STALE)
    assert sorted(other.swept()) == ["j", "later"]


@pytest.mark.promise("F4", "C1", "C6", "O4")
def test_the_store_s_own_clock(harness: Harness, q: Bench) -> None:
    """The one test here that lets real time pass."""
    real = q.on(harness.open_real())
    before = time.time_ns() // 1_000_000
    real.enqueue("soon", delay_ms=80)
    real.enqueue("j")
    [claimed] = real.claim(stale_after_ms=80)
    after = time.time_ns() // 1_000_000
    assert before - 1 <= real.get("j").created_at <= after + 1
    assert claimed.job.claimed_at is not None
    assert before - 1 <= claimed.job.claimed_at <= after + 1
    assert claimed.job.stale_at == claimed.job.claimed_at + 80
    assert (real.sweep(), real.promote()) == ([], [])
    done = threading.Event()
    deadline = time.monotonic() + 10
    swept: dict[str, str] = {}
    promoted: list[str] = []
    while not (swept and promoted) and time.monotonic() < deadline:
        done.wait(0.01)
        swept |= real.swept()
        promoted += real.promote()
    assert (swept, promoted) == ({"j": "released"}, ["soon"])
    assert time.time_ns() // 1_000_000 >= claimed.job.stale_at
