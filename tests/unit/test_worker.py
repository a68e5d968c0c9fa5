"""The worker, on the memory backend: real threads, real signals, and a spy between it and the store."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mayflymq import claims, codec, errors, events, model, worker
from mayflymq.errors import BackendError, ConfigurationError, Defer, Discard, Retry
from mayflymq.model import ClaimRequest, Job, NewJob, Settlement, State
from mayflymq.tasks import current_job
from mayflymq.worker import RunReport, Turns, claim_and_run
from tests.unit.worker_bench import NOW, PATIENCE_S, Bench, Deadline, Do, lost_answer, refused, unreachable

# What becomes of a job


@pytest.mark.promise("D4", backends=("memory",))
def test_a_returned_value_is_the_result(bench: Bench) -> None:
    job_id = bench.enqueue(bench.task(lambda x: {"got": x}, "t"), "é\0")
    report = bench.run()
    job = bench.job(job_id)
    assert (job.state, job.result and codec.decode(job.result)) == (State.COMPLETED, {"got": "é\0"})
    assert (report.claimed, report.completed, report.work_left) == (1, 1, False)
    assert report.as_dict()["elapsed_ms"] == report.elapsed_ms


@pytest.mark.parametrize(
    "value", [object(), b"x", float("nan"), {1: 2}, "x" * 2_000_000], ids=lambda v: type(v).__name__
)
def test_a_result_that_cannot_be_stored_fails_without_retry(bench: Bench, value: object) -> None:
    job = bench.run_one(lambda: value)
    assert job.state is State.FAILED
    assert job.error is not None
    assert "the handler returned, but its result cannot be stored" in job.error.message


@pytest.mark.promise("D3", backends=("memory",))
def test_a_task_that_raises_half_way_is_delivered_again(bench: Bench) -> None:
    seen = []

    def flaky() -> str:
        seen.append((current_job().id, current_job().delivery, current_job().failures))
        if len(seen) == 1:
            raise OSError("half-way")
        return "done"

    job_id = bench.enqueue(bench.task(flaky), backoff=model.Backoff.fixed(0))
    assert bench.run().retried == 1
    job = bench.job(job_id)
    assert seen == [(job_id, 1, 0), (job_id, 2, 1)]
    assert (job.state, job.failures, job.error, job.first_error and job.first_error.type) == (
        State.COMPLETED, 1, None, "OSError",
    )  # fmt: skip


def test_retries_end(bench: Bench) -> None:
    job_id = bench.enqueue(bench.task(lambda: 1 / 0, "t"), max_retries=2, backoff=model.Backoff.fixed(0))
    report = bench.run()
    assert (report.retried, report.failed, bench.job(job_id).failures) == (2, 1, 3)


def test_each_retry_and_each_failure_for_good_is_a_log_line_without_arguments(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(secret: str) -> None:
        raise ValueError("a" * 1000 + "\nthe second line")

    with caplog.at_level(logging.INFO, logger="mayflymq"):
        job_id = bench.enqueue(bench.task(broken), "S3CRET", max_retries=1, backoff=model.Backoff.fixed(0))
        bench.run()
    told = [
        (r.levelname, r.queue, r.job_id, r.task, r.deliveries)  # type: ignore[attr-defined]
        for r in caplog.records
    ]
    assert told == [("INFO", "q", job_id, "broken", 1), ("WARNING", "q", job_id, "broken", 2)]
    for record in caplog.records:
        assert "ValueError: aaa" in record.getMessage()
        assert len(record.getMessage()) < 400
        assert "second" not in record.getMessage()
        assert "S3CRET" not in str(record.__dict__)


@pytest.mark.parametrize(
    ("raised", "state", "after_ms", "failures"),
    [
        (Retry(after=7), State.DELAYED, 7_000, 1),
        (Retry(after=timedelta(minutes=1)), State.DELAYED, 60_000, 1),
        (Retry(after=-5), State.WAITING, None, 1),
        (Retry(), State.DELAYED, 90_000, 1),
        (Defer(after=9), State.DELAYED, 9_000, 0),
        (Discard("not wanted"), State.FAILED, None, 1),
        (errors.TaskSignal("odd"), State.DELAYED, 90_000, 1),
        (SystemExit(3), State.DELAYED, 90_000, 1),
        (GeneratorExit(), State.DELAYED, 90_000, 1),
        (asyncio.CancelledError(), State.DELAYED, 90_000, 1),
        (Retry(after=float("nan")), State.DELAYED, 90_000, 1),
        (Retry(after="soon"), State.DELAYED, 90_000, 1),  # type: ignore[arg-type]
        (Defer(after=None), State.DELAYED, 90_000, 1),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_a_task_raises(
    bench: Bench, raised: BaseException, state: State, after_ms: int | None, failures: int
) -> None:
    def handler() -> None:
        raise raised

    bench.spy.faults["settle"] = [lambda do: bench.store.set_paused("q", True) or do()]  # so it runs once
    job = bench.run_one(handler, backoff=model.Backoff.fixed(90))
    assert (job.state, job.failures) == (state, failures)
    if after_ms is not None:
        assert job.run_at == NOW + after_ms
    if failures:
        assert job.error is not None
        assert "after" not in str(getattr(raised, "after", "")) or "`after`" in job.error.message


def test_a_bad_after_says_so(bench: Bench) -> None:
    def handler() -> None:
        raise Retry(after=float("nan"))

    job = bench.run_one(handler, max_retries=0)
    assert job.state is State.FAILED
    assert job.error is not None
    assert "`after`" in job.error.message


def odd_errors() -> list[BaseException]:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class Own(BaseException):
        pass

    return [
        Mute(), Own("own"), ExceptionGroup("group", [ValueError("a"), ExceptionGroup("b", [KeyError()])]),
        RecursionError("deep"), ValueError("nul \0 and \ud800"), ValueError("x" * 8_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 2])
def test_odd_exceptions_are_recorded_and_stop_no_other_job(bench: Bench, concurrency: int) -> None:
    oddities = odd_errors()

    def odd(index: int) -> None:
        raise oddities[index]

    def deep() -> None:
        deep()

    failing = [bench.enqueue(bench.task(odd), index, max_retries=0) for index in range(len(oddities))]
    failing.append(bench.enqueue(bench.task(deep), max_retries=0))
    fine = bench.enqueue(bench.task(lambda: "fine", "fine"))
    report = bench.run(concurrency=concurrency)
    for job_id in failing:
        job = bench.job(job_id)
        assert job.state is State.FAILED
        assert job.error is not None
        assert len(codec.encode_error(job.error)) <= codec.MAX_ERROR_BYTES + 64
    assert bench.job(fine).state is State.COMPLETED
    assert (report.failed, report.completed) == (len(failing), 1)


def test_an_unknown_task_is_retried_then_fails(bench: Bench) -> None:
    job_id = bench.enqueue("later", max_retries=1, backoff=model.Backoff.fixed(60))
    assert bench.run().retried == 1
    bench.clock.now += 60_000
    assert bench.run().failed == 1
    job = bench.job(job_id)
    assert job.error is not None
    assert job.error.type == "UnknownTask"
    assert "MAYFLYMQ_TASKS" in job.error.message


def test_an_unknown_task_is_found_after_a_deploy(bench: Bench) -> None:
    job_id = bench.enqueue("later", backoff=model.Backoff.fixed(60))
    bench.run()
    bench.task(lambda: "here", "later")
    bench.clock.now += 60_000
    bench.run()
    assert bench.job(job_id).state is State.COMPLETED


def test_arguments_that_cannot_be_used_fail_at_once(bench: Bench) -> None:
    bench.task(lambda x: x, "t")
    mismatch = bench.enqueue("t", 1, 2)
    bench.store.enqueue([NewJob(id=name, queue="q", task="t", payload=data) for name, data in BAD_PAYLOADS])
    report = bench.run()
    assert (report.failed, report.completed) == (1 + len(BAD_PAYLOADS), 0)
    assert "too many positional arguments" in getattr(bench.job(mismatch).error, "message", "")
    assert getattr(bench.job("not json").error, "type", "") == "CorruptRecord"


BAD_PAYLOADS = [("not json", b"{"), ("not a dict", b"[]"), ("deep", b"[" * 100_000), ("empty", b"")]


@pytest.mark.promise("E2", "E1", backends=("memory",))
def test_an_expired_job_is_marked_and_never_run(bench: Bench) -> None:
    ran: list[str] = []
    told: list[str] = []
    job_id = bench.enqueue(bench.task(lambda: ran.append("x"), "t"), ttl=10)
    bench.clock.now += 10_000
    remove = events.listen(lambda event: told.append(event.name), events.EXPIRED)
    report = bench.run()
    remove()
    job = bench.job(job_id)
    assert (job.state, job.claim_token, ran, told) == (State.EXPIRED, None, [], [events.EXPIRED])
    assert (report.expired, bench.store.queues(["q"])[0].dead_letters) == (1, 1)


@pytest.mark.promise("E1", backends=("memory",))
def test_a_handler_that_started_in_time_is_not_expired(bench: Bench) -> None:
    job_id = bench.enqueue(bench.task(lambda: setattr(bench.clock, "now", NOW + 60_000), "t"), ttl=10)
    bench.clock.now += 9_999
    bench.run()
    assert bench.job(job_id).state is State.COMPLETED


@pytest.mark.promise("E3", backends=("memory",))
def test_retried_and_delayed_jobs_expire_too(bench: Bench) -> None:
    retried = bench.enqueue(bench.task(lambda: 1 / 0, "t"), ttl=10, backoff=model.Backoff.fixed(10))
    delayed = bench.enqueue("t", ttl=10, delay=10)
    bench.run()
    bench.clock.now += 10_000
    assert bench.run().expired == 2
    assert {bench.job(retried).state, bench.job(delayed).state} == {State.EXPIRED}


@pytest.mark.promise("E1", backends=("memory",))
def test_a_claimed_job_expires_while_it_waits_for_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age is the store's at the claim plus the time since, on this process's monotonic clock."""
    skew = 0.0
    monkeypatch.setattr(worker.time, "monotonic", lambda real=time.monotonic: real() + skew)

    def slow() -> None:
        nonlocal skew
        skew = 30.0

    bench.enqueue(bench.task(slow), priority=1)
    job_id = bench.enqueue("slow", ttl=30)
    assert bench.run(prefetch=2).expired == 1
    assert bench.job(job_id).state is State.EXPIRED


# Cancellation


@pytest.mark.promise("X2", backends=("memory",))
def test_a_job_cancelled_after_its_claim_is_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FRESH_S", 0.0)
    ran = []

    def first() -> None:
        ran.append("first")
        bench.store.cancel("q", [second])

    bench.enqueue(bench.task(first), priority=1)
    second = bench.enqueue(bench.task(lambda: ran.append("second"), "second"))
    report = bench.run(prefetch=2)
    assert ran == ["first"]
    assert (bench.job(second).state, report.cancelled) == (State.CANCELLED, 1)


@pytest.mark.promise("X2", backends=("memory",))
@pytest.mark.parametrize(("age", "asked"), [(0.0, 0), (1.5, 1)])
def test_the_store_is_asked_when_its_last_answer_is_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, age: float, asked: int
) -> None:
    skew = 0.0
    monkeypatch.setattr(worker.time, "monotonic", lambda real=time.monotonic: real() + skew)

    def first() -> None:
        nonlocal skew
        skew = age

    bench.enqueue(bench.task(first), priority=1)
    bench.enqueue(bench.task(lambda: None, "second"))
    bench.run(prefetch=2, limit=2)
    assert bench.spy.names().count("heartbeat") == asked


@pytest.mark.promise("X2", backends=("memory",))
def test_a_heartbeat_is_an_answer_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    skew = 0.0
    asked: list[str] = []
    monkeypatch.setattr(worker.time, "monotonic", lambda real=time.monotonic: real() + skew)
    monkeypatch.setattr(claims.Claims, "ask", lambda _, held: asked.append(held.job.task))

    def first() -> None:
        nonlocal skew
        skew = 1.5
        beats = bench.spy.names().count("heartbeat")
        bench.spy.wait_for("heartbeat", beats + 2)  # the second was begun after the clock had moved

    bench.enqueue(bench.task(first), priority=1)
    bench.enqueue(bench.task(lambda: None, "second"))
    assert bench.run(prefetch=2, limit=2, stalled_threshold_ms=60).completed == 2
    assert asked == []


@pytest.mark.promise("X2", "X3", backends=("memory",))
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_running_handler_sees_the_cancellation_and_is_not_interrupted(
    bench: Bench, concurrency: int
) -> None:
    seen = []

    def handler() -> str:
        seen.append(current_job().cancelled)
        bench.store.cancel("q", [job_id])
        until = time.monotonic() + PATIENCE_S
        while not current_job().cancelled and time.monotonic() < until:
            time.sleep(0.001)
        seen.append(current_job().cancelled)
        return "ran to its end"

    job_id = bench.enqueue(bench.task(handler))
    report = bench.run(concurrency=concurrency, stalled_threshold_ms=30)
    assert seen == [False, True]
    assert (bench.job(job_id).state, report.cancelled, report.completed) == (State.CANCELLED, 1, 0)


@pytest.mark.promise("X2", backends=("memory",))
def test_a_handler_without_heartbeats_asks_the_store_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "FRESH_S", 0.0)
    seen = []

    def handler() -> None:
        seen.append(current_job().cancelled)
        bench.spy.faults["heartbeat"] = [unreachable]
        seen.append(current_job().cancelled)  # the store does not answer, and the handler goes on
        bench.store.cancel("q", [job_id])
        seen.append(current_job().cancelled)

    job_id = bench.enqueue(bench.task(handler))
    report = bench.run(enable_stalled_check=False, remaining_ms=lambda: 60_000)
    assert seen == [False, False, True]
    assert report.cancelled == 1


@pytest.mark.promise("X2", backends=("memory",))
def test_a_handler_that_asks_all_the_time_costs_a_call_a_second(bench: Bench) -> None:
    bench.enqueue(bench.task(lambda: [current_job().cancelled for _ in range(1000)]))
    bench.run(enable_stalled_check=False, remaining_ms=lambda: 60_000)
    assert bench.spy.names().count("heartbeat") <= 2


@pytest.mark.promise("C4", backends=("memory",))
def test_a_claim_found_lost_is_dropped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FRESH_S", 0.0)
    ran = []

    def first() -> None:
        ran.append("first")
        bench.store.remove("q", [second])

    bench.enqueue(bench.task(first), priority=1)
    second = bench.enqueue(bench.task(lambda: ran.append("second"), "second"))
    report = bench.run(prefetch=2)
    assert (ran, report.lost, report.completed) == (["first"], 1, 1)


# Claims and their tokens


@pytest.mark.promise("C4", backends=("memory",))
@pytest.mark.parametrize("late_first", [True, False], ids=["late before", "late after"])
@pytest.mark.parametrize("raises", [None, ValueError("late"), Defer(after=5), Discard()], ids=repr)
def test_a_superseded_worker_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, late_first: bool, raises: BaseException | None
) -> None:
    """The first worker stops beating, a sweep recovers its job, a second worker runs it; both settle."""
    tokens: list[str | None] = []
    late_settled, next_claimed = threading.Event(), threading.Event()

    def handler() -> str:
        if current_job().delivery == 1:
            bench.clock.now += 60_000
            bench.store.release_stale("q", 10, 3)
            second.start()
            assert next_claimed.wait(PATIENCE_S)
            if not late_first:
                second.join(PATIENCE_S)
            if raises is not None:
                raise raises
            return "late"
        next_claimed.set()
        tokens.append(bench.job(job_id).claim_token)
        if late_first:
            assert late_settled.wait(PATIENCE_S)
        return "second"

    def other_worker() -> None:
        reports.append(claim_and_run(bench.store, ["q"], tasks=bench.tasks))

    reports: list[RunReport] = []
    second = threading.Thread(target=other_worker)
    job_id = bench.enqueue(bench.task(handler))

    def settle(do: Do) -> Any:
        before = bench.job(job_id)
        answer = do()
        assert answer.settled[0].status is Settlement.LOST
        assert bench.job(job_id) == before
        late_settled.set()
        return answer

    bench.spy.faults["settle"] = [settle]
    first = bench.run(limit=1)
    second.join(PATIENCE_S)
    job = bench.job(job_id)
    assert (job.state, job.result, job.deliveries, job.failures) == (State.COMPLETED, b'"second"', 2, 0)
    assert (first.lost, first.completed, reports[0].completed) == (1, 0, 1)
    assert [record.levelname for record in caplog.records if "claim is lost" in record.message] == ["WARNING"]


@pytest.mark.promise("D7", backends=("memory",))
def test_a_settle_whose_answer_was_lost_is_sent_again(bench: Bench) -> None:
    bench.spy.faults["settle"] = [lost_answer, lost_answer]
    jobs = [bench.enqueue(bench.task(lambda: "x", "t")) for _ in range(3)]
    report = bench.run()
    assert [bench.job(job_id).deliveries for job_id in jobs] == [1, 1, 1]
    assert (report.claimed, report.completed, report.errors) == (3, 3, 0)
    sent = [args for name, args in bench.spy.calls if name == "settle"]
    assert sent[0] == sent[1] == sent[2] != sent[3]


@pytest.mark.promise("D8", backends=("memory",))
def test_a_claim_whose_answer_was_lost_is_sent_again(bench: Bench) -> None:
    bench.spy.faults["claim"] = [lost_answer]
    jobs = [bench.enqueue(bench.task(lambda: "x", "t")) for _ in range(3)]
    report = bench.run(prefetch=2)
    assert [bench.job(job_id).deliveries for job_id in jobs] == [1, 1, 1]
    assert report.completed == 3
    sent = [args[0] for name, args in bench.spy.calls if name == "claim"]
    assert sent[0] == sent[1]


def test_each_claim_has_a_token_of_its_own(bench: Bench) -> None:
    for _ in range(5):
        bench.enqueue(bench.task(lambda: "x", "t"))
    bench.run()
    requests = [args[0] for name, args in bench.spy.calls if name == "claim"]
    requests += [args[1] for name, args in bench.spy.calls if name == "settle"]
    assert len({request.token for request in requests}) == len(requests) == 6


@pytest.mark.promise("D1", backends=("memory",))
def test_a_settle_that_never_arrives_leaves_the_job_to_the_sweep(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.spy.faults["settle"] = [unreachable] * 3
    lost = bench.enqueue(bench.task(lambda: "x", "t"))
    other = bench.enqueue("t")
    report = bench.run()
    assert (report.errors, report.completed) == (1, 1)
    assert any(r.levelname == "ERROR" and getattr(r, "job_id", "") == lost for r in caplog.records)
    assert (bench.job(lost).state, bench.job(other).state) == (State.ACTIVE, State.COMPLETED)
    bench.clock.now += 30_000
    bench.store.release_stale("q", 10, 3)
    bench.run()
    assert bench.job(lost).state is State.COMPLETED


def test_a_refused_outcome_becomes_a_failure_that_says_so(bench: Bench) -> None:
    bench.spy.faults["settle"] = [refused, refused]
    job_id = bench.enqueue(bench.task(lambda: "large", "t"))
    other = bench.enqueue("t")
    report = bench.run()
    job = bench.job(job_id)
    assert (job.state, report.failed, report.completed) == (State.FAILED, 1, 1)
    assert job.error is not None
    assert "the record is too large" in job.error.message
    assert bench.job(other).state is State.COMPLETED


@pytest.mark.parametrize("error", [KeyError("a driver's own"), BackendError("disk full", transient=False)])
def test_a_store_that_refuses_everything_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(do: Do) -> Any:
        raise error

    bench.spy.faults["settle"] = [fail] * 3
    bench.enqueue(bench.task(lambda: "x", "t"))
    assert bench.run().errors == 1
    assert len([r for r in caplog.records if "cannot be settled" in r.message]) == 3


def test_one_round_trip_a_job(bench: Bench) -> None:
    for _ in range(10):
        bench.enqueue(bench.task(lambda: "x", "t"))
    bench.run()
    assert bench.spy.names() == ["claim", *["settle"] * 10]


# Heartbeats


@pytest.mark.promise("C2", backends=("memory",))
@pytest.mark.parametrize(
    "blocked_by", [time.sleep, lambda s: threading.Event().wait(s)], ids=["sleep", "lock"]
)
def test_all_held_claims_are_renewed_while_a_handler_blocks(
    bench: Bench, blocked_by: Callable[[float], Any]
) -> None:
    beats: list[set[str]] = []

    def handler() -> None:
        for _ in range(3):
            bench.clock.now += 50
            done = len(beats)
            until = time.monotonic() + PATIENCE_S
            while len(beats) < done + 2 and time.monotonic() < until:
                blocked_by(0.02)
            assert bench.store.release_stale("q", 10, 3) == []

    def note(do: Do) -> Any:
        answer = do()
        beats.append({beat.claim.job_id for beat in do.args[0]})  # type: ignore[attr-defined]
        return answer

    bench.spy.faults["heartbeat"] = [note] * 10_000
    ids = {bench.enqueue(bench.task(handler), priority=1), bench.enqueue(bench.task(lambda: None, "waits"))}
    report = bench.run(prefetch=2, stalled_threshold_ms=60)
    assert (beats[0], report.completed) == (ids, 2)


@pytest.mark.promise("C2", "G5", backends=("memory",))
@pytest.mark.parametrize("told_by", ["listener", "doorbell"])
def test_whoever_is_told_slowly_holds_up_no_heartbeat(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """One job's end is told while another one runs; its claim is renewed all the while."""
    renewed: list[bool] = []

    def take_long() -> None:
        before = bench.spy.names().count("heartbeat")
        bench.spy.wait_for("heartbeat", before + 3)
        renewed.append(bench.spy.names().count("heartbeat") >= before + 3)
        told.set()

    class Bell:
        def ring(self, queue: str, delay_ms: int) -> None:
            take_long()

    def retry() -> None:
        raise errors.Retry(after=60)

    told = threading.Event()
    bench.enqueue(bench.task(retry, "short"))
    bench.enqueue(bench.task(lambda: told.wait(PATIENCE_S), "long"))
    if told_by == "doorbell":
        monkeypatch.setattr("mayflymq.queue._doorbell", Bell())
        remove: Callable[[], object] = list
    else:
        remove = events.listen(lambda event: take_long(), events.RETRYING)
    try:
        report = bench.run(concurrency=2, stalled_threshold_ms=60)
    finally:
        remove()
    assert (renewed, report.completed, report.retried, report.lost) == ([True], 1, 1, 0)


@pytest.mark.promise("C2", backends=("memory",))
def test_without_the_check_a_claim_lasts_as_long_as_its_invocation(bench: Bench) -> None:
    def handler() -> None:
        seen.append(bench.job(job_id))

    seen: list[Job] = []
    job_id = bench.enqueue(bench.task(handler))
    bench.run(
        enable_stalled_check=False, remaining_ms=Deadline(50_000, ticking=False), margin_ms=2_000,
        stalled_threshold_ms=30,
    )  # fmt: skip
    assert seen[0].stale_at == NOW + 50_000 + 2_000
    assert "heartbeat" not in bench.spy.names()


@pytest.mark.promise("C1", backends=("memory",))
def test_a_claim_goes_stale_after_the_threshold(bench: Bench) -> None:
    seen: list[Job] = []
    job_id = bench.enqueue(bench.task(lambda: seen.append(bench.job(job_id)), "t"))
    bench.run(stalled_threshold_ms=7_000, worker="me")
    assert (seen[0].stale_at, seen[0].worker) == (NOW + 7_000, "me")


@pytest.mark.promise("C3")
@pytest.mark.parametrize(
    "fault", [unreachable, refused, lambda do: 1 / 0], ids=["transient", "refused", "other"]
)
def test_a_failed_heartbeat_is_logged_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, fault: Callable[[Do], Any]
) -> None:
    def handler() -> str:
        bench.spy.wait_for("heartbeat", 4)
        return "went on"

    bench.spy.faults["heartbeat"] = [fault, fault]
    job_id = bench.enqueue(bench.task(handler))
    report = bench.run(stalled_threshold_ms=60)
    assert (bench.job(job_id).result, report.errors) == (b'"went on"', 0)
    assert len([r for r in caplog.records if "a heartbeat failed" in r.message]) == 2


def test_a_failed_heartbeat_is_tried_again_sooner(bench: Bench) -> None:
    """Within a fraction of the interval, which a failure would otherwise double."""

    def handler() -> None:
        bench.spy.wait_for("heartbeat", 1)
        began = time.monotonic()
        bench.spy.wait_for("heartbeat", 2)
        took.append(time.monotonic() - began)

    took: list[float] = []
    bench.spy.faults["heartbeat"] = [unreachable]
    bench.enqueue(bench.task(handler))
    bench.run(stalled_threshold_ms=1_500)
    assert took[0] < 0.4


def test_progress_goes_with_the_heartbeat(bench: Bench) -> None:
    def handler() -> None:
        current_job().progress(0.25)
        bench.spy.wait_for("heartbeat", 2)
        seen.append(bench.job(job_id).progress)

    seen: list[float | None] = []
    job_id = bench.enqueue(bench.task(handler))
    bench.run(stalled_threshold_ms=30)
    assert seen == [0.25]
    sent = [args[0][0].progress for name, args in bench.spy.calls if name == "heartbeat"]
    assert sent.count(0.25) == 1


def test_no_heartbeat_asks_about_a_settled_claim(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(300):
        bench.enqueue(bench.task(lambda: None, "t"))
    assert bench.run(stalled_threshold_ms=3, prefetch=20).completed == 300
    assert [record.getMessage() for record in caplog.records] == []


# What ends an invocation


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_keyboard_interrupt_settles_releases_and_comes_out(bench: Bench, concurrency: int) -> None:
    def handler() -> None:
        raise KeyboardInterrupt("enough")

    job_id = bench.enqueue(bench.task(handler), priority=1, max_retries=0)
    rest = [bench.enqueue("handler") for _ in range(3)]
    with pytest.raises(KeyboardInterrupt, match="enough"):
        bench.run(concurrency=concurrency, prefetch=4 // concurrency, limit=None if concurrency == 1 else 1)
    assert getattr(bench.job(job_id).error, "type", "") == "KeyboardInterrupt"
    assert {bench.job(other).state for other in rest} == {State.WAITING}


def test_a_real_ctrl_c_ends_a_handler(bench: Bench) -> None:
    def handler() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE_S)

    job_id = bench.enqueue(bench.task(handler), max_retries=0)
    rest = bench.enqueue("handler")
    with pytest.raises(KeyboardInterrupt):
        bench.run(prefetch=2)
    assert (bench.job(job_id).state, bench.job(rest).state) == (State.FAILED, State.WAITING)


def test_ctrl_c_while_handlers_run_in_threads(bench: Bench) -> None:
    go_on = threading.Event()

    def handler() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(PATIENCE_S)

    job_id = bench.enqueue(bench.task(handler), max_retries=0, priority=1)
    rest = [bench.enqueue(bench.task(lambda: go_on.wait(PATIENCE_S), "w"), max_retries=0) for _ in range(4)]
    with pytest.raises(KeyboardInterrupt):
        bench.run(concurrency=2, prefetch=2)
    go_on.set()
    states = [bench.job(job).state for job in [job_id, *rest]]
    assert State.ACTIVE not in states
    assert states[-2:] == [State.WAITING] * 2


@pytest.mark.parametrize("when", ["claim", "settle"])
def test_an_error_of_the_worker_itself_leaves_nothing_held(bench: Bench, when: str) -> None:
    """Ctrl-C inside the worker's own code, at its worst places: an answer of the store never reaches it."""

    def interrupt(do: Do) -> Any:
        answer = do()
        if when == "settle":
            raise KeyboardInterrupt
        return answer

    jobs = [bench.enqueue(bench.task(lambda: "x", "t")) for _ in range(3)]
    bench.spy.faults["settle"] = [interrupt]
    if when == "claim":
        bench.tasks.get = lambda name: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.run(prefetch=2)
    states = [bench.job(job_id).state for job_id in jobs]
    expected = [State.COMPLETED, State.WAITING] if when == "settle" else [State.WAITING, State.WAITING]
    assert states[:2] == expected


def test_sigterm_stops_the_claiming(bench: Bench) -> None:
    def handler() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        bench.spy.wait_for("settle", 1)  # by the heartbeat thread, while this goes on
        return "finished"

    job_id = bench.enqueue(bench.task(handler), priority=1)
    rest = [bench.enqueue("handler") for _ in range(3)]
    report = bench.run(prefetch=3)
    assert bench.job(job_id).result == b'"finished"'
    assert (report.claimed, report.released, report.work_left) == (3, 2, True)
    assert {bench.job(other).state for other in rest} == {State.WAITING}


def test_sigterm_with_handlers_in_threads(bench: Bench) -> None:
    both = threading.Barrier(2)

    def handler() -> str:
        both.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        bench.spy.wait_for("settle", 1)
        return "finished"

    for _ in range(6):
        bench.enqueue(bench.task(handler))
    report = bench.run(concurrency=2, prefetch=2)
    assert (report.claimed, report.completed, report.released) == (4, 2, 2)


# A store that cannot be claimed from


def test_an_unreachable_store_is_an_error_of_the_caller(bench: Bench) -> None:
    bench.spy.faults["claim"] = [unreachable] * 6
    with pytest.raises(BackendError, match="no connection"):
        bench.run(queues=["a", "b"])


def test_a_queue_that_cannot_be_claimed_from_stops_no_other(bench: Bench) -> None:
    bench.spy.faults["claim"] = [refused]
    job_id = bench.enqueue(bench.task(lambda: "x", "t"), queue="b")
    report = bench.run(queues=["a", "b"])
    assert (report.errors, report.completed, report.work_left) == (1, 1, True)
    assert bench.job(job_id, "b").state is State.COMPLETED


def test_a_claim_refused_along_with_a_settle_leaves_the_settle(bench: Bench) -> None:
    bench.spy.faults["settle"] = [refused]
    job_id = bench.enqueue(bench.task(lambda: "x", "t"))
    assert bench.run().completed == 1
    assert bench.job(job_id).state is State.COMPLETED


# Several queues, limits, concurrency


def test_turns_follow_the_weights() -> None:
    turns = Turns({"a": 3, "b": 1})
    taken = []
    for _ in range(40):
        name = turns.next(0.0)
        assert name is not None
        taken.append(name)
        turns.found(name, 1, 0.0)
        turns.look_again()
    assert taken.count("a") == 30
    assert all("b" in taken[start : start + 8] for start in range(0, 40, 8))


def test_an_empty_queue_saves_up_no_turns_and_rests() -> None:
    turns = Turns({"a": 1, "b": 1})
    turns.found("b", 0, 0.0)
    asked = []
    for _ in range(100):
        turns.look_again()
        name = turns.next(0.5)
        assert name is not None
        asked.append(name)
        turns.found(name, 1, 0.5)
    assert set(asked) == {"a"}
    for _ in range(4):
        turns.look_again()
        name = turns.next(2.0)
        assert name is not None
        asked.append(name)
        turns.found(name, 1, 2.0)
    assert asked[-4:].count("b") <= 3


def test_turns_end_when_all_are_empty_in_a_row() -> None:
    turns = Turns({"a": 1, "b": 1})
    turns.found("a", 0, 0.0)
    assert turns.next(0.0) == "b"
    turns.found("b", 0, 0.0)
    assert turns.next(0.0) is None
    turns.look_again()
    assert turns.next(0.0) is not None
    turns.drop("a")
    turns.drop("b")
    assert turns.next(0.0) is None
    assert not turns


def test_no_queue_starves(bench: Bench) -> None:
    for queue in ("a", "b", "c"):
        for _ in range(10):
            bench.enqueue(bench.task(lambda: current_job().queue, "t"), queue=queue)
    bench.run(queues={"a": 1, "b": 1, "c": 4}, limit=12)
    done = {queue: bench.store.queues([queue])[0].counts.completed for queue in ("a", "b", "c")}
    assert done == {"a": 2, "b": 2, "c": 8}


def test_what_a_handler_enqueues_elsewhere_is_run_too(bench: Bench) -> None:
    bench.enqueue(bench.task(lambda: bench.enqueue("b", queue="b"), "a"), queue="a")
    bench.task(lambda: bench.enqueue("c", queue="a"), "b")
    bench.task(lambda: None, "c")
    assert bench.run(queues=["b", "a"]).completed == 3


def test_a_paused_queue_gives_nothing(bench: Bench) -> None:
    bench.enqueue(bench.task(lambda: None, "t"))
    bench.store.set_paused("q", True)
    report = bench.run()
    assert (report.claimed, report.work_left) == (0, False)


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 1), (1, 4), (3, 1), (3, 2)])
def test_the_limit_is_kept(bench: Bench, concurrency: int, prefetch: int) -> None:
    for _ in range(20):
        bench.enqueue(bench.task(lambda: None, "t"))
    report = bench.run(limit=5, concurrency=concurrency, prefetch=prefetch)
    assert (report.claimed, report.completed, report.work_left) == (5, 5, True)


@pytest.mark.parametrize(("prefetch", "asked"), [(1, [1] * 8), (3, [3, 3, 3])])
def test_jobs_are_claimed_again_when_none_waits_here(bench: Bench, prefetch: int, asked: list[int]) -> None:
    """So that a worker holds no more than it is about to run, and asks as seldom as it may."""
    for _ in range(7):
        bench.enqueue(bench.task(lambda: None, "t"))
    assert bench.run(prefetch=prefetch).completed == 7
    requests = [value for _, args in bench.spy.calls for value in args if isinstance(value, ClaimRequest)]
    assert [request.limit for request in requests if request.limit][: len(asked)] == asked


def test_handlers_run_at_the_same_time(bench: Bench) -> None:
    together = threading.Barrier(4)
    for _ in range(8):
        bench.enqueue(bench.task(lambda: together.wait(PATIENCE_S) and None, "t"))
    report = bench.run(concurrency=4)
    assert report.completed == 8


def test_many_jobs_in_threads_each_once(bench: Bench) -> None:
    seen = []
    for number in range(300):
        bench.enqueue(bench.task(lambda n: seen.append(n), "t"), number)
    assert bench.run(concurrency=4, prefetch=3).completed == 300
    assert sorted(seen) == list(range(300))


def test_a_job_starts_with_an_event(bench: Bench) -> None:
    told: list[str] = []
    remove = events.listen(lambda event: told.append(event.name), events.STARTED, events.COMPLETED)
    bench.enqueue(bench.task(lambda: told.append("handler"), "t"))
    bench.run()
    remove()
    assert told == [events.STARTED, "handler", events.COMPLETED]


def test_current_job_says_what_is_known(bench: Bench) -> None:
    seen = []

    def handler() -> None:
        current = current_job()
        seen.append((current.id, current.queue, current.task, dict(current.meta), current.remaining_ms()))

    job_id = bench.enqueue(bench.task(handler), meta={"tenant": "t1"}, timeout=50)
    bench.run()
    assert seen[0][:4] == (job_id, "q", "handler", {"tenant": "t1"})
    assert 40_000 < seen[0][4] <= 50_000


# Invocations one after the other


@pytest.mark.promise("F3", backends=("memory",))
def test_two_hundred_invocations_behave_alike(bench: Bench) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")
    seen = []

    def handler() -> None:
        seen.append(var.get())
        var.set("leaked")
        if len(seen) % 50 == 0:
            time.sleep(PATIENCE_S)

    bench.task(handler)
    state = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT)]
    threads = set(threading.enumerate())
    reports = []
    for number in range(200):
        bench.enqueue("handler", max_retries=0, timeout=0.05)
        reports.append(bench.run(concurrency=1 + number % 2 * (len(seen) % 50 != 49)))
    assert set(seen) == {"unset"}
    assert {report.claimed for report in reports} == {1}
    assert sum(report.failed for report in reports) == 4
    assert sum(report.lost + report.errors + report.abandoned + report.released for report in reports) == 0
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT)] == state
    assert set(threading.enumerate()) <= threads  # those of other tests may end meanwhile
    assert var.get() == "unset"


@pytest.mark.promise("F3", backends=("memory",))
def test_the_first_call_after_a_thaw_may_fail_once(bench: Bench) -> None:
    bench.enqueue(bench.task(lambda: None, "t"))
    bench.run()
    bench.enqueue("t")
    bench.spy.faults = {"claim": [unreachable], "settle": [unreachable]}
    assert bench.run().completed == 1


# Settings


@pytest.mark.parametrize(
    "options",
    [
        {"queues": []}, {"queues": ["no good"]}, {"queues": {"q": 0}}, {"concurrency": 0}, {"prefetch": 0},
        {"limit": 0}, {"margin_ms": -1}, {"stalled_threshold_ms": 0}, {"worker": "a\nb"},
        {"concurrency": True}, {"enable_stalled_check": False},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        bench.run(**options)
    assert bench.spy.calls == []


def test_the_default_name_holds_no_control_characters(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker.os, "uname", lambda: type("uname", (), {"nodename": "a\x1b[0m\ud800b" * 100})()
    )
    bench.run()
    request = bench.spy.calls[0][1][0]
    assert isinstance(request, ClaimRequest)
    assert request.worker.isprintable()
    assert str(os.getpid()) in request.worker


# Real processes


def process(program: str, url: str) -> subprocess.Popen[str]:
    head = (
        "import sys, time, os, signal, hashlib\n"
        "from mayflymq import *\n"
        "from mayflymq.worker import claim_and_run\n"
        f"backend = open_backend({url!r})\n"
        "queue = Queue('q', backend)\n"
        "started = time.monotonic()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_sigterm_to_a_process() -> None:
    """The running handler goes on, what was not started is released, the process ends as after any
    invocation."""
    program = """
@task
def slow():
    print("running", flush=True)
    until = time.monotonic() + 20
    while queue.info().counts.waiting < 3 and time.monotonic() < until:  # until the others are released
        time.sleep(0.01)
    return "done"
for _ in range(4):
    queue.enqueue(slow)
report = claim_and_run(backend, ["q"], prefetch=4)
print(report.completed, report.released, report.work_left, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
    with process(program, "memory://sigterm") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=PATIENCE_S * 2)
    assert (out, child.returncode) == ("1 3 True True\n", 0), err


@pytest.mark.promise("F2")
def test_a_timeout_in_a_process_at_its_deadline() -> None:
    program = """
@task(max_retries=0)
def late():
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass
job = queue.enqueue(late).job_id
deadline = time.monotonic() + 1.5
report = claim_and_run(backend, ["q"], remaining_ms=lambda: round((deadline - time.monotonic()) * 1000))
print(report.failed, report.abandoned, time.monotonic() < deadline, queue.get(job).error.type)
"""
    with process(program, "memory://timeout") as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("1 0 True TaskTimeout\n", 0), err


def test_an_abandoned_thread_does_not_hold_the_process() -> None:
    program = """
@task(max_retries=0, timeout=0.2)
def deaf():
    time.sleep(60)
queue.enqueue(deaf)
print(claim_and_run(backend, ["q"], concurrency=2).abandoned)
"""
    with process(program, "memory://abandoned") as child:
        out, err = child.communicate(timeout=PATIENCE_S)
    assert (out, child.returncode) == ("1\n", 0), err


@pytest.mark.promise("C4", "D4", backends=("sqlite",))
@pytest.mark.parametrize("end", ["return 5", "sys.exit(3)", "raise ValueError"])
def test_a_process_that_a_handler_forked_is_no_second_worker(tmp_path: Path, end: str) -> None:
    program = f"""
@task
def fork():
    pid = os.fork()
    if not pid:
        {end}
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
@task
def other():
    return os.getpid()
job = queue.enqueue("fork").job_id
others = [queue.enqueue("other").job_id for _ in range(3)]
report = claim_and_run(backend, ["q"])
mine = {{queue.get(job_id).result for job_id in others}} == {{b"%d" % os.getpid()}}
print(report.completed, queue.get(job).result.decode(), mine)
"""
    run = process(program, f"sqlite:///{tmp_path}/a.db")
    out, err = run.communicate(timeout=PATIENCE_S)
    code = {"return 5": 0, "sys.exit(3)": 3}.get(end, 1)
    assert (out.split(), err) == (["4", str(code), "True"], "")


def test_importing_the_worker_loads_no_event_loop() -> None:
    program = "import sys, mayflymq.worker; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
