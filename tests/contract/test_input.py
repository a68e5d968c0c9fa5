"""What people hand to the facade and no store can hold: one clear error on every backend, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mayflymq.errors import InvalidJob
from mayflymq.model import Dedup, DedupMode, State
from mayflymq.queue import Queue
from mayflymq.tasks import JobSpec

from .bench import Bench

NO_TEXT: list[Any] = [None, True, 7, 10**30, float("nan"), b"x", "", "\ud800", "a\0b", "x" * 256, [], ("a",)]
NO_STATE: list[Any] = [None, True, 7, "", "x", "WAITING", "\ud800", [], ("waiting",), b"waiting"]
NO_CURSOR: list[Any] = [
    True, 7, b"1.1", "", "1", "1.", "1.x", "1_0.2", "\u0661.\u0662", "1." + "9" * 25, "9" * 19 + ".0"
]  # fmt: skip
NO_LIST: list[Any] = [None, True, 7, "j", b"j"]


def flow(option: str, value: Any) -> JobSpec:
    options: Any = {option: value}
    return JobSpec("t", options=options)


CALLS: dict[str, tuple[Callable[[Queue, Any], object], list[Any]]] = {
    "get": (Queue.get, NO_TEXT),
    "cancel": (Queue.cancel, NO_TEXT),
    "retry": (Queue.retry, NO_TEXT),
    "remove": (Queue.remove, NO_TEXT),
    "dedup_holder": (lambda q, value: q.dedup_holder(value, release=True), NO_TEXT),
    "unschedule": (Queue.unschedule, NO_TEXT),
    "pause_schedule": (Queue.pause_schedule, NO_TEXT),
    "resume_schedule": (Queue.resume_schedule, NO_TEXT),
    "schedules after": (Queue.schedules, NO_TEXT[1:]),
    "schedule in a zone": (
        lambda q, value: q.schedule("s", "t", every=60, timezone=value),
        [*NO_TEXT, "Mars/Base"],
    ),
    "schedule by cron": (lambda q, value: q.schedule("s", "t", cron=value), NO_TEXT),
    "jobs in a state": (Queue.jobs, NO_STATE),
    "jobs from a cursor": (lambda q, value: q.jobs(State.WAITING, value), NO_CURSOR),
    "ended jobs from a cursor": (lambda q, value: q.jobs(State.COMPLETED, value), NO_CURSOR),
    "clean states": (lambda q, value: q.clean(value, 0), [*NO_LIST, ["x"], [None], [State.WAITING]]),
    "depends_on": (lambda q, value: q.enqueue("t", depends_on=value), [*NO_LIST, [7], ["\ud800"]]),
    "depends_on in a flow": (
        lambda q, value: q.enqueue_flow({"a": flow("depends_on", value), "j": JobSpec("t")}),
        [*NO_LIST, [7], ["\ud800"]],
    ),
    "job_id in a flow": (lambda q, value: q.enqueue_flow({"a": flow("job_id", value)}), NO_TEXT[1:]),
    "name in a flow": (lambda q, value: q.enqueue_flow({value: JobSpec("t")}), NO_TEXT[:-2]),
    "extend": (
        lambda q, value: q.enqueue("t", delay=1, dedup=Dedup("k", DedupMode.DEBOUNCE, extend=value)),
        [None, 0, "no"],
    ),
}


@pytest.mark.promise("S1", "A5")
@pytest.mark.parametrize("call", CALLS)
def test_what_no_store_can_hold_is_refused_alike(q: Bench, call: str) -> None:
    queue = Queue(q.queue, q.backend)
    q.enqueue("j", "x")
    q.ended("7", priority=0)
    before = (q.get(), queue.info().counts, queue.schedules())
    do, odd = CALLS[call]
    for value in odd:
        with pytest.raises(InvalidJob):
            do(queue, value)
        assert (q.get(), queue.info().counts, queue.schedules()) == before, ascii(value)


@pytest.mark.promise("S1", "A5")
def test_a_state_may_be_named(q: Bench) -> None:
    queue = Queue(q.queue, q.backend)
    q.enqueue("j")
    assert [job.id for job in queue.jobs("waiting").jobs] == ["j"]  # type: ignore[arg-type]
    q.settle(q.hold("j"), "complete")
    assert queue.clean(["completed"], 0) == ["j"]  # type: ignore[list-item]
