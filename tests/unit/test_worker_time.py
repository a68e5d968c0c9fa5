"""A handler's time: the deadline, the margin, TaskTimeout by signal, by cancellation and by giving up."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from mayflymq import claims, codec, model, timelimit
from mayflymq.errors import TaskTimeout
from mayflymq.model import Job, State
from mayflymq.tasks import current_job
from tests.unit.worker_bench import PATIENCE_S, Bench, Deadline, Do, in_thread, unreachable

# The deadline


@pytest.mark.promise("F1")
def test_nothing_is_claimed_without_time_to_start_it(bench: Bench) -> None:
    bench.enqueue(bench.task(lambda: None, "t"))
    report = bench.run(remaining_ms=Deadline(1_000, ticking=False), margin_ms=1_000)
    assert (report.claimed, report.work_left, bench.spy.names()) == (0, True, [])


@pytest.mark.promise("F1")
def test_a_settle_claims_nothing_when_the_time_is_up(bench: Bench) -> None:
    deadline = Deadline(10_000, ticking=False)
    for _ in range(2):
        bench.enqueue(bench.task(lambda: setattr(deadline, "ms", 500), "t"))
    report = bench.run(remaining_ms=deadline)
    assert (report.claimed, report.completed, report.work_left) == (1, 1, True)
    assert [args[1] for name, args in bench.spy.calls if name == "settle"] == [None]


@pytest.mark.promise("F1", "E1")
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("limit_of", ["job", "invocation", "claim"])
def test_a_limit_beyond_all_clocks_is_none(bench: Bench, limit_of: str, concurrency: int) -> None:
    async def coroutine() -> None:
        current_job().progress(1)

    options: dict[str, Any] = {"timeout": timedelta.max} if limit_of == "job" else {}
    jobs = [
        bench.enqueue(bench.task(fn, name), **options)
        for name, fn in (("plain", lambda: current_job().remaining_ms()), ("async", coroutine))
    ]
    report = bench.run(
        concurrency=concurrency,
        remaining_ms=(lambda: 10**18) if limit_of == "invocation" else None,
        enable_stalled_check=limit_of != "invocation",
        stalled_threshold_ms=model.MAX_TIME if limit_of == "claim" else 30_000,
    )
    assert report.completed == 2
    assert [bench.job(job).error for job in jobs] == [None, None]


@pytest.mark.promise("F1")
@pytest.mark.parametrize(("takes_s", "calls"), [(0, 3), (5, 2)])
def test_a_store_that_hangs_holds_no_call_past_the_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, takes_s: int, calls: int
) -> None:
    """With 12 s left a call that hangs for 5 s is made twice, one that fails at once as often as ever."""

    def hang(do: Do) -> Any:
        clock.now += takes_s
        return unreachable(do)

    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(claims, "time", clock)
    backend: Any = bench.spy
    held = claims.Claims(
        backend,
        ["q"],
        worker="w",
        remaining_ms=lambda: round(12_000 - clock.now * 1000),
        margin_ms=1_000,
        threshold_ms=30_000,
    )
    bench.enqueue("t")
    assert held.claim("q", 1) == 1
    one = held.next_pending()
    assert one is not None
    bench.spy.faults["settle"] = [hang] * 3
    held.settle(one, model.Release())
    assert bench.spy.names().count("settle") == calls
    assert clock.now < 12


@pytest.mark.promise("F1")
def test_what_was_not_started_is_released_in_one_call(bench: Bench) -> None:
    deadline = Deadline(10_000, ticking=False)
    first = bench.enqueue(bench.task(lambda: setattr(deadline, "ms", 500), "t"))
    rest = [bench.enqueue("t") for _ in range(4)]
    report = bench.run(remaining_ms=deadline, prefetch=5)
    assert bench.job(first).state is State.COMPLETED
    for job in map(bench.job, rest):
        assert (job.state, job.failures, job.stalls, job.claim_token) == (State.WAITING, 0, 0, None)
    assert (report.claimed, report.released, report.work_left) == (5, 4, True)
    assert bench.spy.names().count("settle") == 2
    again = bench.run()
    assert again.completed == 4


@pytest.mark.promise("F1")
def test_release_does_not_wait_for_a_handler_that_blocks(bench: Bench) -> None:
    """The margin is reached while the main thread is busy: the heartbeat thread gives back what did not
    start."""

    def handler() -> None:
        deadline.ms = 500
        bench.spy.wait_for("settle", 1)
        states.extend(bench.job(job_id).state for job_id in rest)

    states: list[State] = []
    deadline = Deadline(10_000, ticking=False)
    bench.enqueue(bench.task(handler), priority=1)
    rest = [bench.enqueue("handler") for _ in range(3)]
    report = bench.run(remaining_ms=deadline, prefetch=4, stalled_threshold_ms=60)
    assert states == [State.WAITING] * 3
    assert (report.released, report.completed) == (3, 1)


@pytest.mark.promise("F2")
def test_a_handler_at_the_margin_is_ended_and_its_attempt_recorded(bench: Bench) -> None:
    job_id = bench.enqueue(bench.task(lambda: time.sleep(PATIENCE_S), "t"), backoff=model.Backoff.fixed(5))
    deadline = Deadline(1_300)
    report = bench.run(remaining_ms=deadline, margin_ms=1_000)
    assert deadline() > 0
    job = bench.job(job_id)
    assert (job.state, job.failures, report.retried, report.abandoned) == (State.DELAYED, 1, 1, 0)
    assert job.error is not None
    assert job.error.type == "TaskTimeout"


@pytest.mark.promise("F2")
@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_error_tells_whose_time_was_up(bench: Bench, concurrency: int) -> None:
    def slow() -> None:
        time.sleep(1)

    for timeout, remaining_ms, says in (
        (0.05, 60_000, "the handler was still running at its timeout of 0.050 s"),
        (30, 50, "this invocation's time was up, 0.0"),
        (None, 50, "this invocation's time was up, 0.0"),
    ):
        job_id = bench.enqueue(bench.task(slow), max_retries=0, timeout=timeout)
        bench.run(remaining_ms=Deadline(remaining_ms), margin_ms=0, concurrency=concurrency)
        job = bench.job(job_id)
        assert job.error is not None
        assert job.error.message.startswith(says)


def timed_out(bench: Bench, fn: Callable[..., Any], **options: Any) -> Job:
    """Runs one job with a limit of 0.2 s and no retries."""
    options = {"margin_ms": 2_000} | options
    began = time.monotonic()
    job_id = bench.enqueue(bench.task(fn, "late"), max_retries=0, timeout=0.2)
    bench.run(**options)
    assert time.monotonic() - began < PATIENCE_S / 2
    return bench.job(job_id)


def is_timeout(job: Job) -> bool:
    return job.state is State.FAILED and job.error is not None and job.error.type == "TaskTimeout"


@pytest.mark.promise("F2")
def test_a_swallowed_timeout_comes_again(bench: Bench) -> None:
    swallowed = []

    def stubborn() -> None:
        while len(swallowed) < 3:
            try:
                time.sleep(PATIENCE_S)
            except BaseException as error:
                swallowed.append(type(error))
        time.sleep(PATIENCE_S)

    assert is_timeout(timed_out(bench, stubborn))
    assert swallowed == [TaskTimeout] * 3


def test_a_handler_has_time_to_clean_up(bench: Bench) -> None:
    cleaned = []

    def tidy() -> None:
        try:
            time.sleep(PATIENCE_S)
        finally:
            time.sleep(0.3)  # several alarms come meanwhile
            cleaned.append(True)

    assert is_timeout(timed_out(bench, tidy))
    assert cleaned == [True]


def test_a_loop_of_the_handlers_own_is_ended_at_once(bench: Bench) -> None:
    """A plain function that runs a loop itself: no one else would end what waits there."""
    cleaned = []

    async def inner() -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            await asyncio.sleep(0.2)
            cleaned.append(True)

    began = time.monotonic()
    assert is_timeout(timed_out(bench, lambda: asyncio.run(inner()), margin_ms=4_000))
    assert time.monotonic() - began < 1.5
    assert cleaned == [True]


def test_cleaning_up_has_an_end_too(bench: Bench) -> None:
    def endless() -> None:
        try:
            time.sleep(PATIENCE_S)
        finally:
            time.sleep(PATIENCE_S)

    assert is_timeout(timed_out(bench, endless, remaining_ms=Deadline(900), margin_ms=500))


@pytest.mark.parametrize("result", [7, ValueError("own")], ids=["returns", "raises"])
def test_an_alarm_after_the_handler_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, result: object
) -> None:
    """The alarm comes at each place after the handler's end where it can: whenever the timer is being
    stopped."""

    def handler() -> object:
        if isinstance(result, Exception):
            raise result
        return result

    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        answer = real(which, seconds, interval)
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        return answer

    real = signal.setitimer
    monkeypatch.setattr(timelimit.signal, "setitimer", setitimer)
    job = bench.run_one(handler, timeout=100, max_retries=0)
    assert job.result == b"7" or getattr(job.error, "type", "") == "ValueError"


def test_an_alarm_between_a_handler_and_its_caller_loses_no_result() -> None:
    """An alarm storm over many short handlers: each ends with its value or with TaskTimeout inside it."""
    entered = returned = 0

    def handler() -> int:
        nonlocal entered, returned
        entered += 1
        total = sum(range(200))
        returned += 1
        return total

    ended = {"value": 0, "timeout": 0}
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        end = timelimit.run(handler, is_async=False, seconds=0.00001, grace_s=0, alarm=True)
        if end.raised is None:
            assert end.value == sum(range(200))
            ended["value"] += 1
        else:
            assert isinstance(end.raised, TaskTimeout)
            ended["timeout"] += 1
    assert ended["value"] > 0
    assert returned - ended["value"] <= ended["timeout"]
    assert ended["value"] <= returned <= entered


def test_the_alarm_is_put_back(bench: Bench) -> None:
    rung = threading.Event()
    previous = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    left = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        assert is_timeout(timed_out(bench, lambda: time.sleep(PATIENCE_S)))
        assert rung.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *left)


def test_a_call_to_the_store_is_not_torn_apart(bench: Bench) -> None:
    """TaskTimeout waits for the end of a backend's call: half of one could leave the connection unusable."""
    source = "def call(during):\n    begun.append(1)\n    during()\n    ended.append(1)\n"
    begun: list[int] = []
    ended: list[int] = []
    backend: dict[str, Any] = {"__name__": "mayflymq.backends.some", "begun": begun, "ended": ended}
    exec(compile(source, "some.py", "exec"), backend)

    def handler() -> None:
        for _ in range(100):
            backend["call"](lambda: time.sleep(0.03))
            time.sleep(0.03)

    assert is_timeout(timed_out(bench, handler))
    assert 2 <= len(begun) == len(ended)


@pytest.mark.promise("F2")
def test_a_handler_in_a_thread_is_given_up_at_its_limit(bench: Bench) -> None:
    go_on = threading.Event()
    seen: list[bool] = []
    gone = threading.Event()

    def deaf() -> str:
        go_on.wait(PATIENCE_S)
        seen.append(current_job().cancelled)
        gone.set()
        return "too late"

    job_id = bench.enqueue(bench.task(deaf), max_retries=0, timeout=0.1)
    others = [bench.enqueue(bench.task(lambda: "x", "other")) for _ in range(3)]
    report = bench.run(concurrency=2)
    assert is_timeout(bench.job(job_id))
    assert {bench.job(other).state for other in others} == {State.COMPLETED}
    assert (report.abandoned, report.failed, report.completed) == (1, 1, 3)
    go_on.set()
    assert gone.wait(PATIENCE_S)
    assert seen == [True]
    assert bench.job(job_id).result is None


def test_when_every_place_is_stuck_the_worker_ends(bench: Bench) -> None:
    go_on = threading.Event()
    for _ in range(2):
        bench.enqueue(bench.task(lambda: go_on.wait(PATIENCE_S), "deaf"), timeout=0.1, priority=1)
    rest = [bench.enqueue("deaf") for _ in range(4)]
    report = bench.run(concurrency=2, prefetch=2)
    go_on.set()
    assert (report.abandoned, report.retried, report.released, report.work_left) == (2, 2, 2, True)
    assert {bench.job(job_id).state for job_id in rest} == {State.WAITING}


@pytest.mark.promise("F2")
def test_a_worker_outside_the_main_thread_gives_up_at_the_margin(bench: Bench) -> None:
    go_on = threading.Event()
    job_id = bench.enqueue(bench.task(lambda: go_on.wait(PATIENCE_S), "deaf"))
    report = in_thread(lambda: bench.run(remaining_ms=Deadline(700), margin_ms=500))
    go_on.set()
    assert (bench.job(job_id).state, report.retried, report.abandoned) == (State.DELAYED, 1, 1)


# Async tasks


async def waits() -> None:
    await asyncio.sleep(PATIENCE_S)


async def blocks() -> None:
    time.sleep(PATIENCE_S)


@pytest.mark.promise("F2")
@pytest.mark.parametrize("fn", [waits, blocks])
def test_an_async_handler_is_ended_and_cleans_up(bench: Bench, fn: Callable[[], Any]) -> None:
    cleaned = []

    async def handler() -> None:
        try:
            await fn()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    assert is_timeout(timed_out(bench, handler))
    assert cleaned == [True]


@pytest.mark.promise("F2")
def test_an_async_handler_in_a_thread_is_ended_too(bench: Bench) -> None:
    cleaned = []

    async def handler() -> None:
        try:
            await waits()
        finally:
            cleaned.append(True)

    assert is_timeout(in_thread(lambda: timed_out(bench, handler)))
    assert cleaned == [True]


def test_an_async_handler_that_swallows_its_cancellation(bench: Bench) -> None:
    async def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE_S)
        await asyncio.sleep(PATIENCE_S)

    assert is_timeout(timed_out(bench, stubborn, remaining_ms=Deadline(900), margin_ms=500))


def test_a_thread_of_an_async_handler_holds_nothing_up(bench: Bench) -> None:
    go_on = threading.Event()

    async def handler() -> None:
        await asyncio.to_thread(go_on.wait, PATIENCE_S)

    job_id = bench.enqueue(bench.task(handler), max_retries=0, timeout=0.1)
    report = bench.run()
    assert report.elapsed_ms < PATIENCE_S * 100
    go_on.set()
    assert is_timeout(bench.job(job_id))
    assert report.abandoned == 1


def test_async_handlers_share_no_loop(bench: Bench) -> None:
    loops = []
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")

    async def handler() -> str:
        loops.append((asyncio.get_running_loop(), var.get()))
        var.set("set")
        asyncio.get_running_loop().create_task(asyncio.sleep(PATIENCE_S))
        return await asyncio.to_thread(lambda: current_job().id)

    jobs = [bench.enqueue(bench.task(handler)) for _ in range(3)]
    assert bench.run().completed == 3
    assert [codec.decode(bench.job(job_id).result or b"") for job_id in jobs] == jobs
    assert {value for _, value in loops} == {"unset"}
    assert len({id(loop) for loop, _ in loops}) == 3
    assert all(loop.is_closed() for loop, _ in loops)
