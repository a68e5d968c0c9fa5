"""Maintenance: bounded loops over queues that no bad queue, record or listener stops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mayflymq import events, maintenance
from mayflymq.errors import BackendError, ConfigurationError
from mayflymq.model import ClaimRequest, Recovered, Recovery, State
from mayflymq.queue import Queue
from tests.unit.worker_bench import PATIENCE_S, Bench


@pytest.fixture
def _in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance begins at the first queue."""
    monkeypatch.setattr(maintenance, "_chance", lambda: 0)


def stall(bench: Bench, jobs: int, queue: str = "q") -> list[str]:
    """Jobs whose worker vanished."""
    ids = [Queue(queue, bench.store).enqueue("t").job_id for _ in range(jobs)]
    token = f"{queue}-{ids[0]}"
    bench.store.claim(ClaimRequest(queue, jobs, token, "gone", 1_000))
    bench.clock.now += 1_000
    return ids


def sweep(bench: Bench, *args: Any, **options: Any) -> maintenance.SweepReport:
    backend: Any = bench.spy
    return maintenance.sweep(backend, *args, **options)


def promote(bench: Bench, *args: Any, **options: Any) -> maintenance.PromoteReport:
    backend: Any = bench.spy
    return maintenance.promote(backend, *args, **options)


@pytest.mark.promise("C6", backends=("memory",))
def test_a_sweep_recovers_all_there_are_in_all_queues(bench: Bench) -> None:
    stalled = {queue: stall(bench, 7, queue) for queue in ("a", "b")}
    report = sweep(bench, limit=3)
    for queue, ids in stalled.items():
        for job_id in ids:
            job = bench.job(job_id, queue)
            assert (job.state, job.stalls, job.failures) == (State.WAITING, 1, 0)
    assert (report.queues, report.released, report.errors, report.complete) == (2, 14, 0, True)
    assert report.as_dict()["released"] == 14
    assert bench.spy.names().count("release_stale") == 2 * 3


def test_a_sweep_of_named_queues_leaves_the_others(bench: Bench) -> None:
    stall(bench, 1, "a")
    (other,) = stall(bench, 1, "b")
    assert sweep(bench, ["a", "a"]).queues == 1
    assert bench.job(other, "b").state is State.ACTIVE


@pytest.mark.promise("C14", "C15", backends=("memory",))
def test_what_became_of_each_is_counted(bench: Bench) -> None:
    first, second = stall(bench, 2)
    bench.store.cancel("q", [second])
    report = sweep(bench, max_stalls=0)
    assert (report.released, report.failed, report.cancelled) == (0, 1, 1)
    assert [bench.job(job_id).state for job_id in (first, second)] == [State.FAILED, State.CANCELLED]


@pytest.mark.promise("C8", backends=("memory",))
@pytest.mark.usefixtures("_in_order")
@pytest.mark.parametrize("error", [BackendError("gone", transient=True), KeyError("odd")])
def test_an_error_in_one_queue_is_logged_and_the_next_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(do: Callable[[], Any]) -> Any:
        raise error

    (left,) = stall(bench, 1, "a")
    (recovered,) = stall(bench, 1, "b")
    bench.spy.faults["release_stale"] = [fail]
    report = sweep(bench)
    assert (report.errors, report.released, report.complete) == (1, 1, False)
    assert bench.job(recovered, "b").state is State.WAITING
    assert [getattr(record, "queue", None) for record in caplog.records if record.levelname == "ERROR"] == [
        "a"
    ]
    # What was not released stays eligible for the next sweep.
    assert sweep(bench).released == 1
    assert bench.job(left, "a").state is State.WAITING


@pytest.mark.promise("C8", backends=("memory",))
def test_a_listener_that_raises_changes_nothing(bench: Bench) -> None:
    def listener(event: events.Event) -> None:
        raise RuntimeError("broken listener")

    stall(bench, 3)
    stall(bench, 3, "r")
    remove = events.listen(listener)
    try:
        report = sweep(bench, limit=1)
    finally:
        remove()
    assert (report.released, report.errors, report.complete) == (6, 0, True)


@pytest.mark.promise("C8", backends=("memory",))
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_records_that_stay_unreadable_neither_hide_others_nor_loop(bench: Bench, limit: int) -> None:
    """A store that moves bad records behind meets them again and again, as many as `limit` at a time."""
    good = [f"good-{number}" for number in range(5)]
    line = [("bad-1", False), ("bad-2", False), ("bad-3", False), *((name, True) for name in good)]

    def release_stale(do: Callable[[], Any]) -> list[Recovered]:
        taken = [line.pop(0) for _ in range(min(limit, len(line)))]
        line.extend(entry for entry in taken if not entry[1])
        return [Recovered(name, Recovery.RELEASED if ok else Recovery.UNREADABLE) for name, ok in taken]

    bench.spy.faults["release_stale"] = [release_stale] * 100
    report = sweep(bench, ["q"], limit=limit)
    assert (report.released, report.unreadable) == (5, 3)
    assert len(bench.spy.faults["release_stale"]) > 92 or limit == 1


def test_an_unreadable_queue_list_is_the_callers_error(bench: Bench) -> None:
    def fail(do: Callable[[], Any]) -> Any:
        raise BackendError("gone", transient=True)

    bench.spy.faults["queues"] = [fail]
    with pytest.raises(BackendError):
        sweep(bench)


@pytest.mark.parametrize("run", [sweep, promote])
def test_a_name_that_is_no_queue_stops_no_other(bench: Bench, run: Callable[..., Any]) -> None:
    report = run(bench, ["no good", "q"])
    assert (report.queues, report.errors, report.complete) == (2, 1, False)


@pytest.mark.parametrize("run", [sweep, promote])
def test_no_call_begins_when_the_time_is_up(bench: Bench, run: Callable[..., Any]) -> None:
    report = run(bench, ["a", "b"], remaining_ms=lambda: 1_000)
    assert (report.queues, report.complete, bench.spy.calls) == (0, False, [])


def test_a_sweep_stops_between_two_calls(bench: Bench) -> None:
    left = iter([5_000, 5_000, 900, 900])
    stall(bench, 5)
    report = sweep(bench, ["q"], limit=2, remaining_ms=lambda: next(left, 900))
    assert (report.released, report.complete) == (4, False)
    assert sweep(bench, ["q"]).released == 1


@pytest.mark.promise("C8", backends=("memory",))
@pytest.mark.usefixtures("_in_order")
def test_a_queue_with_no_end_holds_up_no_other(bench: Bench) -> None:
    """As one with a schedule that makes up for a year, or with more stale jobs than a sweep has time for."""
    for queue, jobs in (("a", 20), ("b", 2), ("c", 1)):
        stall(bench, jobs, queue)
    left = iter([5_000] * 5)
    report = sweep(bench, limit=1, remaining_ms=lambda: next(left, 900))
    assert (report.queues, report.released, report.complete) == (3, 5, False)
    released = {queue: Queue(queue, bench.store).info().counts.waiting for queue in ("a", "b", "c")}
    assert released == {"a": 2, "b": 2, "c": 1}


@pytest.mark.promise("C9", backends=("memory",))
def test_overlapping_sweeps_release_each_job_once(bench: Bench) -> None:
    stalled = stall(bench, 200)
    both = threading.Barrier(2)
    reports = []

    def sweeper() -> None:
        both.wait(PATIENCE_S)
        reports.append(maintenance.sweep(bench.store, limit=3))

    threads = [threading.Thread(target=sweeper) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sum(report.released for report in reports) == 200
    assert {bench.job(job_id).stalls for job_id in stalled} == {1}


@pytest.mark.promise("P1", backends=("memory",))
def test_promotion_moves_all_that_is_due(bench: Bench) -> None:
    due = [Queue(queue, bench.store).enqueue("t", delay=5).job_id for queue in ("a", "b") for _ in range(5)]
    later = Queue("a", bench.store).enqueue("t", delay=60).job_id
    bench.clock.now += 5_000
    report = promote(bench, limit=2)
    states = [bench.job(job_id, queue).state for job_id, queue in zip(due, "aaaaabbbbb", strict=True)]
    assert set(states) == {State.WAITING}
    assert bench.job(later, "a").state is State.DELAYED
    assert (report.queues, report.promoted, report.errors, report.complete) == (2, 10, 0, True)
    assert report.as_dict()["promoted"] == 10


@pytest.mark.promise("P2", backends=("memory",))
def test_overlapping_promotions_move_each_job_once(bench: Bench) -> None:
    for _ in range(200):
        Queue("q", bench.store).enqueue("t", delay=5)
    bench.clock.now += 5_000
    both = threading.Barrier(2)
    reports = []

    def promoter() -> None:
        both.wait(PATIENCE_S)
        reports.append(maintenance.promote(bench.store, limit=3))

    threads = [threading.Thread(target=promoter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sum(report.promoted for report in reports) == 200


def test_an_error_in_one_promotion_stops_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(do: Callable[[], Any]) -> Any:
        raise BackendError("gone", transient=True)

    for queue in ("a", "b"):
        Queue(queue, bench.store).enqueue("t", delay=5)
    bench.clock.now += 5_000
    bench.spy.faults["promote_due"] = [fail]
    report = promote(bench)
    assert (report.promoted, report.errors, report.complete) == (1, 1, False)
    assert promote(bench).promoted == 1


@pytest.mark.promise("A6")
@pytest.mark.parametrize(
    "make",
    [
        lambda b: sweep(b, limit=0), lambda b: sweep(b, limit=1001), lambda b: sweep(b, limit=True),
        lambda b: sweep(b, max_stalls=-1), lambda b: promote(b, limit=0),
        lambda b: maintenance.Retention(completed_ms=-1), lambda b: maintenance.Retention(failed_ms=True),
        lambda b: maintenance.Retention(failed_ms=1.5),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(bench: Bench, make: Callable[[Bench], Any]) -> None:
    """A negative retention would remove whatever has ended."""
    with pytest.raises(ConfigurationError):
        make(bench)
    assert bench.spy.calls == []


# Less time than queues


@pytest.mark.parametrize("call", ["release_stale", "promote_due", "due_schedules"])
def test_no_queue_is_always_left_out(bench: Bench, call: str) -> None:
    """Each process has time for three queues of ten, and knows nothing of the one before."""
    names = {f"q{n}" for n in range(10)}
    for name in names:
        Queue(name, bench.store).enqueue("t")
    run = sweep if call == "release_stale" else promote
    for given in (None, sorted(names)):
        bench.spy.calls.clear()
        for _ in range(500):  # the chance that one had no turn is under 1e-76
            budget = iter([9_999] * 3)
            report = run(bench, given, remaining_ms=lambda left=budget: next(left, 0))
            assert (report.queues, report.complete) == (3, False)
        assert {args[0] for name, args in bench.spy.calls if name == call} == names
