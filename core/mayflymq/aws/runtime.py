"""The four handlers, and what a container keeps between invocations: its settings, its backend, its tasks.

A file in functions/ takes its handler from here and calls `initialise` while Lambda initialises the
container, where a wrong setting, or a task module that cannot be imported, fails at once and by name.

Nothing is connected before the first call on the backend, and nothing random is kept, so a snapshot taken
after the initialisation holds neither.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from .. import maintenance, worker
from ..backends.base import Backend
from ..errors import BackendError, ConfigurationError
from ..model import duration_ms
from ..queue import connect
from ..tasks import registry
from . import sqs, wakeups
from .doorbell import AwsDoorbell, open_doorbell

try:
    from aws_lambda_powertools.logging import Logger

    from ..settings import Settings, load_settings
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.startswith("mayflymq"):
        raise
    package = missing.name.partition(".")[0]
    raise ConfigurationError(
        f"the functions need the package {package}: pip install 'mayflymq[aws]'"
    ) from None

if TYPE_CHECKING:
    from .documents import Intake
    from .http import Api


# What a container keeps


@cache
def settings() -> Settings:
    """The settings, read once a container. Raises ConfigurationError."""
    return load_settings()


@cache
def backend() -> Backend:
    """The backend, opened once a container and kept warm; also what tasks that enqueue use by default. Raises
    ConfigurationError.

    After a freeze its first call finds dead sockets out by itself (F3).
    """
    bell = doorbell()
    try:
        return connect(settings().backend_url, doorbell=bell)
    except ConfigurationError as error:
        raise ConfigurationError(f"MAYFLYMQ_BACKEND_URL: {error}") from error


@cache
def doorbell() -> AwsDoorbell | None:
    """The doorbell of MAYFLYMQ_DOORBELL, which every queue rings, also those of tasks that enqueue. Raises
    ConfigurationError."""
    return open_doorbell(settings().doorbell)


@cache
def load_tasks() -> None:
    """Imports the modules of MAYFLYMQ_TASKS. Raises ConfigurationError naming one that cannot be imported."""
    registry.load(settings().task_modules)


@cache
def load_listeners() -> None:
    """Imports the modules of MAYFLYMQ_TASKS for the listeners that they add (G5), in functions that run no
    task.

    One that cannot be imported is logged and left out: it must not stop recovery.
    """
    for module in settings().task_modules:
        try:
            registry.load([module])
        except (Exception, SystemExit):
            logger().exception(
                "a module of tasks cannot be imported, so its listeners hear nothing", extra={"tasks": module}
            )


@cache
def api() -> Api:
    """The HTTP face. Only the enqueue function pays for importing Powertools' event handler."""
    from .http import Api

    return Api(intake())


@cache
def intake() -> Intake:
    """What makes jobs from JSON, for the enqueue function."""
    from .documents import Intake

    load_tasks()
    return Intake(backend(), max_payload_bytes=settings().max_payload_bytes)


@cache
def logger() -> Logger:
    """The structured log, which is the library's own too: each record is one line of JSON on stdout."""
    return Logger(service="mayflymq", name="mayflymq", level=settings().log_level)


def initialise(*, tasks: bool = False, http: bool = False) -> None:
    """Does before the first invocation what needs no connection.

    With `tasks` a task module that cannot be imported is an error; the sweep and the promoter go on without
    it. Raises ConfigurationError.
    """
    logger()
    backend()
    if tasks:
        load_tasks()
    else:
        load_listeners()
    if http:
        api()


# Handlers


def enqueue_handler(event: Any, context: Any) -> dict[str, Any]:
    """Takes jobs from an HTTP event (see `http`), a batch of SQS messages, an EventBridge event or a plain
    invoke (see `producers`); returns the HTTP response, which messages failed, or the answer."""
    from . import producers
    from .http import is_http

    _begin(context)
    if is_http(event):
        return api().respond(event, context)
    if (records := sqs.records_of(event)) is not None:
        return producers.consume(intake(), records)
    return producers.enqueue(intake(), event, getattr(context, "aws_request_id", None))


def claim_and_run_handler(event: Any, context: Any) -> dict[str, Any]:
    """Claims and runs jobs until the queues are empty or the invocation's time is up, and then rings for the
    next; returns the RunReport, and to SQS which messages have to come again.

    Whatever woke it (see `wakeups`), the event says nothing that counts: the truth is in the backend.
    """
    _begin(context)
    load_tasks()
    chosen = settings()
    margin_ms = round(chosen.margin * 1000)
    remaining_ms = _remaining(context, margin_ms)
    wakeup = wakeups.read(event, chosen.queue_weights(registry.queues))
    try:
        with wakeups.doorbell_at_hand(doorbell(), remaining_ms):
            report = worker.claim_and_run(
                backend(),
                wakeup.weights,
                remaining_ms=remaining_ms,
                limit=chosen.limit,
                concurrency=chosen.concurrency,
                prefetch=chosen.prefetch,
                stalled_threshold_ms=round(chosen.stalled_threshold * 1000),
                enable_stalled_check=chosen.enable_stalled_check,
                margin_ms=margin_ms,
                worker=_worker_name(context),
                max_result_bytes=chosen.max_result_bytes,
            )
    except BackendError as error:
        if wakeup.records is None:
            raise
        logger().error("the store cannot be reached, so SQS is to ring again: %s", error)
        return wakeup.answer(again=True)
    answer = _finish("claim_and_run", report.as_dict())
    # One that ran nothing would find the same again, at once and for ever.
    if report.work_left and report.claimed > report.released:
        _ring_again(wakeup)
    if report.abandoned and "AWS_LAMBDA_RUNTIME_API" in os.environ:
        _end_process(report.abandoned)
    return answer if wakeup.records is None else wakeup.answer(again=False)


def stalled_sweep_handler(event: Any, context: Any) -> dict[str, Any]:
    """Recovers stale jobs of every queue (C5, C6), removes those past their retention (A6), and returns the
    SweepReport."""
    _begin(context)
    load_listeners()
    chosen = settings()
    margin_ms = round(chosen.margin * 1000)
    report = maintenance.sweep(
        backend(),
        limit=chosen.sweep_limit,
        max_stalls=chosen.max_stalls,
        retention=maintenance.Retention(
            completed_ms=duration_ms("retention_completed", chosen.retention_completed),
            failed_ms=duration_ms("retention_failed", chosen.retention_failed),
        ),
        remaining_ms=_remaining(context, margin_ms),
        margin_ms=margin_ms,
    )
    return _finish("stalled_sweep", report.as_dict())


def delayed_promoter_handler(event: Any, context: Any) -> dict[str, Any]:
    """Promotes due jobs of every queue (P1), makes the jobs of due schedules (G6), and returns the
    PromoteReport.

    With MAYFLYMQ_TICK_INTERVAL it does so again and again until its time is up; the report then sums its
    ticks.
    """
    _begin(context)
    load_listeners()
    chosen = settings()
    margin_ms = round(chosen.margin * 1000)
    remaining_ms = _remaining(context, margin_ms)
    report = _ticks(
        lambda: maintenance.promote(
            backend(), limit=chosen.promote_limit, remaining_ms=remaining_ms, margin_ms=margin_ms
        ),
        chosen.tick_interval,
        remaining_ms,
        margin_ms,
    )
    return _finish("delayed_promoter", report)


def _ticks(
    tick: Callable[[], maintenance.PromoteReport],
    interval: float | None,
    remaining_ms: Callable[[], int] | None,
    margin_ms: int,
) -> dict[str, Any]:
    """One tick, or one every `interval` seconds while there is time for the next. A tick that fails is
    logged; the error is raised when none succeeded."""
    total: dict[str, Any] | None = None
    failed: list[BackendError] = []
    began = time.monotonic()
    while True:
        try:
            report = tick().as_dict()
            before = total or {}
            total = report | {
                name: before.get(name, 0) + count
                for name, count in report.items()
                if name not in ("queues", "complete")
            }
        except BackendError as error:
            logger().error("a tick failed: %s", error)
            failed.append(error)
        if interval is None or remaining_ms is None:
            break
        # A tick that took longer leaves out those that it ran over.
        pause = interval - (time.monotonic() - began) % interval
        if remaining_ms() - pause * 1000 <= margin_ms:
            break
        time.sleep(pause)
    if total is None:
        raise failed[-1]
    return total | {"errors": total["errors"] + len(failed)}


def _ring_again(wakeup: wakeups.Wakeup) -> None:
    try:
        wakeups.ring_again(backend(), wakeup)
    except BackendError as error:
        logger().warning("nobody is woken for the jobs that are left, a schedule will do: %s", error)


def _begin(context: Any) -> None:
    request = getattr(context, "aws_request_id", None)
    logger().append_keys(function_request_id=request)


def _finish(function: str, report: dict[str, Any]) -> dict[str, Any]:
    # What failed was logged where it failed; the level lets an alarm count the invocations that it touched.
    write = logger().warning if report["errors"] else logger().info
    write("finished", extra={"function": function, "report": report})
    return report


def _remaining(context: Any, margin_ms: int) -> Callable[[], int] | None:
    """Milliseconds left of the invocation. Raises ConfigurationError where the margin leaves none to begin
    with: an answer would say that all went well, and SQS would delete the rings."""
    # Outside Lambda (a test, a demonstration) there may be no context, and then no deadline.
    remaining: Callable[[], int] | None = getattr(context, "get_remaining_time_in_millis", None)
    if remaining is not None and (left_ms := remaining()) <= margin_ms:
        raise ConfigurationError(
            f"MAYFLYMQ_MARGIN: {margin_ms / 1000:g} s are kept back and {left_ms / 1000:g} s are left, so "
            "nothing can be begun: lower it, or give the function a longer timeout"
        )
    return remaining


def _worker_name(context: Any) -> str | None:
    """The request's id: what an operator who sees a worker's name has to search the log for."""
    request = getattr(context, "aws_request_id", None)
    return f"{context.function_name}:{request}"[:255] if request else None


def _end_process(abandoned: int) -> None:
    """Ends the process of a container in which handlers still run that no one could stop.

    They run in threads and their jobs are settled as timed out; reusing the process would let them act in
    the midst of later invocations. It ends here, before the answer. An exit after it fails the invocation
    just the same (seen under the emulator) when it comes at once, and the next invocation when the platform
    freezes the process first. So this one counts as failed (Runtime.ExitError) with its report in the log,
    and Lambda starts the next in a fresh process. A wake-up that the platform repeats because of it finds
    the jobs as the backend has them.
    """
    logger().error("ending the process: handlers could not be stopped", extra={"abandoned": abandoned})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
