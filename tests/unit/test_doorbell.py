"""When the facade rings the doorbell, and that nothing depends on its being heard."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from mayflymq import maintenance, model
from mayflymq import queue as queue_module
from mayflymq.backends.base import open_backend
from mayflymq.model import ClaimRequest, JobError, Settle
from mayflymq.queue import MAX_RINGS, Queue, connect

from ..contract.harness import ManualClock


class Bell:
    def __init__(self) -> None:
        self.rings: list[int] = []

    def ring(self, queue: str, delay_ms: int) -> None:
        self.rings.append(delay_ms)

    def heard(self) -> list[int]:
        heard, self.rings = self.rings, []
        return heard


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def queue(bell: Bell, clock: ManualClock) -> Queue:
    return Queue("q", open_backend(f"memory://{uuid.uuid4()}", clock=clock), doorbell=bell)


def claim(queue: Queue, limit: int = 1) -> list[model.ClaimedJob]:
    return queue.claim(ClaimRequest("q", limit, uuid.uuid4().hex, "w", 1000))


def settle(queue: Queue, outcome: model.Outcome) -> None:
    (claimed,) = claim(queue)
    queue.settle([Settle(claimed.claim, outcome)])


def test_enqueue_rings_at_once_or_when_the_job_is_due(queue: Queue, bell: Bell) -> None:
    queue.enqueue("task", job_id="a")
    assert bell.heard() == [0]
    queue.enqueue("task", delay=90)
    assert bell.heard() == [90_000]
    queue.enqueue("task", delay=0.001)
    assert bell.heard() == [1000]  # never before it is due
    queue.enqueue("task", delay=901)
    assert bell.heard() == []  # longer than a message can wait: the promoter finds it
    queue.enqueue("task", job_id="a")
    assert bell.heard() == [0]  # the ring after the first answer may be what was lost


def test_many_jobs_make_few_rings(queue: Queue, bell: Bell) -> None:
    queue.enqueue_jobs([queue.job("task") for _ in range(2500)])
    assert bell.heard() == [0, 0, 0]  # one for each thousand
    queue.enqueue_jobs([queue.job("task", delay=second) for second in range(1, 60)])
    assert bell.heard() == [second * 1000 for second in range(1, MAX_RINGS + 1)]


def test_blocked_and_refused_jobs_ring_nobody_until_a_parent_ends(queue: Queue, bell: Bell) -> None:
    queue.enqueue("task", job_id="parent")
    bell.heard()
    queue.enqueue("task", depends_on=["parent"])
    assert bell.heard() == []
    settle(queue, model.Complete())
    assert bell.heard() == [0]


def test_retries_and_deferrals_ring_for_their_time(queue: Queue, bell: Bell, clock: ManualClock) -> None:
    queue.enqueue("task")
    bell.heard()
    settle(queue, model.Retry(5000, JobError("E", "e")))
    assert bell.heard() == [5000]
    clock.advance(5000)
    settle(queue, model.Defer(2000))
    assert bell.heard() == [2000]
    clock.advance(2000)
    settle(queue, model.Complete())
    assert bell.heard() == []


def test_recovery_promotion_resume_and_manual_retry_ring(
    queue: Queue, bell: Bell, clock: ManualClock
) -> None:
    queue.enqueue("task", job_id="a")
    queue.enqueue("task", job_id="b", delay=1000)
    claim(queue)
    bell.heard()
    assert queue.promote_due(10) == []
    assert bell.heard() == []
    clock.advance(1_000_000)
    queue.release_stale(10, 3)
    assert bell.heard() == [0]
    queue.promote_due(10)
    assert bell.heard() == [0]
    queue.pause()
    assert bell.heard() == []
    queue.resume()
    assert bell.heard() == [0]
    settle(queue, model.Fail(JobError("E", "e")))
    assert bell.heard() == []
    queue.retry("a")
    assert bell.heard() == [0]


def test_a_doorbell_that_fails_changes_nothing(
    queue: Queue, bell: Bell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(queue: str, delay_ms: int) -> None:
        raise OSError("no network")

    monkeypatch.setattr(bell, "ring", broken)
    assert queue.enqueue("task").state == "waiting"
    assert "no network" in caplog.text


def test_the_process_has_one_for_queues_without_their_own(
    bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_default", "_doorbell"):  # to be restored
        monkeypatch.setattr(queue_module, name, None)
    connect(f"memory://{uuid.uuid4()}", doorbell=bell)
    Queue("q").enqueue("task")
    assert bell.heard() == [0]
    connect(f"memory://{uuid.uuid4()}")
    Queue("q").enqueue("task")
    assert bell.heard() == []


@pytest.mark.parametrize("tick", [maintenance.sweep, maintenance.promote])
@pytest.mark.parametrize("named", [True, False])
def test_a_tick_rings_for_each_queue_that_has_jobs_waiting(
    queue: Queue, bell: Bell, monkeypatch: pytest.MonkeyPatch, tick: Callable[..., object], named: bool
) -> None:
    monkeypatch.setattr(queue_module, "_doorbell", bell)
    names = ["q"] if named else None
    tick(queue.backend, names)
    assert bell.heard() == []
    queue.enqueue("task")
    queue.enqueue("task")
    bell.heard()  # and nobody came
    tick(queue.backend, names)
    assert bell.heard() == [0]
    queue.pause()
    tick(queue.backend, names)
    assert bell.heard() == []


def test_without_a_doorbell_a_tick_asks_nothing_more(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def queues(*_: object, **__: object) -> None:
        pytest.fail("the queues are named, so nobody has to ask")

    monkeypatch.setattr(queue.backend, "queues", queues)
    assert maintenance.promote(queue.backend, ["q"]).errors == 0
