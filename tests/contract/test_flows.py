"""Flows (promise G3) and retention (promises A5, A6) through the facade and maintenance, on every backend."""

from __future__ import annotations

import pytest

from mayflymq import Retention, sweep
from mayflymq.backends.base import Backend
from mayflymq.errors import InvalidJob
from mayflymq.model import ClaimRequest, Complete, EnqueueStatus, Fail, JobError, Outcome, Settle, State
from mayflymq.queue import Queue
from mayflymq.tasks import JobSpec

from .harness import Harness


@pytest.fixture
def queue(harness: Harness, backend: Backend) -> Queue:
    return Queue(harness.queue, backend)


def spec(*parents: str, job_id: str | None = None) -> JobSpec:
    return JobSpec("task", options={"depends_on": parents, "job_id": job_id})


def run_one(queue: Queue, outcome: Outcome | None = None) -> str:
    """Claims the next job, ends it, and returns its id."""
    request = ClaimRequest(queue.name, 1, f"t-{queue.info(exact=True).counts}", "worker", 1000)
    (claimed,) = queue.claim(request)
    queue.settle([Settle(claimed.claim, outcome or Complete())])
    return claimed.job.id


@pytest.mark.promise("G3")
def test_a_flow_runs_parents_first_however_it_is_written(queue: Queue) -> None:
    answers = queue.enqueue_flow({"d": spec("b", "c"), "b": spec("a"), "c": spec("a"), "a": spec()})
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(
        "abcd", EnqueueStatus.CREATED
    )
    order = [run_one(queue) for _ in range(4)]
    assert order[0] == "a"
    assert set(order[1:3]) == {"b", "c"}
    assert order[3] == "d"


@pytest.mark.promise("G3")
def test_names_become_ids_unless_the_options_give_one(queue: Queue) -> None:
    queue.enqueue("task", job_id="outside")
    answers = queue.enqueue_flow({"load": spec("outside", job_id="load-7"), "report": spec("load")})
    assert {name: answer.job_id for name, answer in answers.items()} == {"load": "load-7", "report": "report"}
    report = queue.get("report")
    assert report is not None
    assert report.depends_on == ("load-7",)


@pytest.mark.promise("G3")
@pytest.mark.parametrize(
    ("flow", "words"),
    [
        ({"a": spec("b"), "b": spec("a")}, "circle"),
        ({"a": spec("a")}, "circle"),
        ({"a": spec(), "b": JobSpec("task", options={"priority": True})}, "priority"),
        ({str(number): spec() for number in range(1001)}, "at most 1000"),
    ],
    ids=["circle", "self", "bad value", "too many"],
)
def test_a_flow_that_is_none_writes_nothing(queue: Queue, flow: dict[str, JobSpec], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        queue.enqueue_flow(flow)
    assert queue.backend.queues() == []


@pytest.mark.promise("G3", "G4")
def test_an_unknown_parent_refuses_its_children_and_nobody_else(queue: Queue) -> None:
    answers = queue.enqueue_flow({"a": spec(), "b": spec("gone"), "c": spec("b")})
    assert [answers[name].status for name in "abc"] == [
        EnqueueStatus.CREATED,
        EnqueueStatus.REFUSED,
        EnqueueStatus.REFUSED,
    ]
    assert answers["b"].reason is not None
    assert "gone" in answers["b"].reason


@pytest.mark.promise("A5", "A6")
def test_the_sweep_removes_jobs_past_their_retention(harness: Harness, queue: Queue) -> None:
    for job_id in ("done", "dead", "kept"):
        queue.enqueue("task", job_id=job_id, priority=["done", "dead", "kept"].index(job_id))
    run_one(queue)
    run_one(queue, Fail(JobError("E", "e")))
    hour = 3_600_000
    assert sweep(queue.backend, [queue.name]).cleaned == 0
    harness.clock.advance(24 * hour - 1)
    assert sweep(queue.backend, [queue.name]).cleaned == 0
    harness.clock.advance(1)
    assert sweep(queue.backend, [queue.name], retention=Retention(completed_ms=0)).cleaned == 0
    assert sweep(queue.backend, [queue.name]).cleaned == 1
    assert queue.get("done") is None
    harness.clock.advance(13 * 24 * hour)
    assert sweep(queue.backend, [queue.name], retention=Retention(failed_ms=0)).cleaned == 0
    assert sweep(queue.backend, [queue.name]).cleaned == 1
    assert queue.get("dead") is None
    kept = queue.get("kept")
    assert kept is not None
    assert kept.state is State.WAITING
