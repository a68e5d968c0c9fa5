"""The `mayflymq` command: parses, calls Queue, the worker and maintenance, prints. No logic is here (F6).

Results go to stdout; errors, logs and progress to stderr. Text that came from jobs is never read as markup,
and its control characters are shown as escapes, so that no job id or error can drive the operator's terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

from . import codec, events, maintenance, schedules, worker
from .aws.doorbell import open_doorbell
from .backends.base import COUNT_CAP, Backend, check_terminal, open_backend
from .errors import BackendError, ConfigurationError, CorruptRecord, InvalidJob, MayflyError
from .model import (
    DEAD_LETTER,
    MAX_BATCH,
    MAX_TIME,
    CancelStatus,
    CatchUp,
    EnqueueStatus,
    Job,
    JobError,
    JobPage,
    QueueInfo,
    Retried,
    RetryStatus,
    Schedule,
    Severity,
    State,
    duration_ms,
)
from .queue import Queue, connect
from .tasks import registry

try:
    import typer
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text

    from .settings import Settings, load_settings
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.startswith("mayflymq"):
        raise
    sys.stderr.write(f"mayflymq: the command needs the package {missing.name}: pip install 'mayflymq[cli]'\n")
    raise SystemExit(2) from None

log = logging.getLogger("mayflymq")

PAGE = MAX_BATCH
DONE, NOT_DONE, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = (
    "Exit codes: 0 done; 1 something was not done or is wrong (an unknown job or queue, an ERROR finding); "
    "2 the command, a value or a setting cannot work; 3 the store could not be reached or refused; "
    "130 interrupted."
)

# Typer keeps the line breaks of a docstring's later paragraphs, so these are kept narrow for a terminal.
app = typer.Typer(
    name="mayflymq",
    help="Enqueue jobs, run them for one invocation, recover and inspect them.",
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    add_completion=False,
)
jobs_app = typer.Typer(
    help="List, show, cancel, retry and remove jobs.", epilog=EXIT_CODES, no_args_is_help=False
)
dlq_app = typer.Typer(
    help="Look at the dead-letter queue (failed and expired jobs), and replay it.",
    epilog=EXIT_CODES,
    no_args_is_help=False,
)
schedules_app = typer.Typer(
    help="List, put, remove, pause and resume schedules.", epilog=EXIT_CODES, no_args_is_help=False
)
app.add_typer(jobs_app, name="jobs")
app.add_typer(dlq_app, name="dlq")
app.add_typer(schedules_app, name="schedules")

# The options whose settings have other names.
OPTIONS = {
    "backend_url": "--backend",
    "queues": "--queue",
    "sweep_limit": "--limit",
    "promote_limit": "--limit",
}
LOGGED = ("queue", "job_id", "task", "deliveries")
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _seconds(text: str) -> float:
    """A duration on the command line, in seconds; `nan` and `inf` are numbers to float() and no durations."""
    unit = UNITS_S.get(text[-1:])
    try:
        value = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise typer.BadParameter(f"{text!r} is no duration: write 90 or 90s, 5m, 24h, 14d")
    return value


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
JobIds = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.")]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="NAME", help="Only this queue; repeat for more. (default: all)"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, and nothing else, on stdout.")]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks", "-t", metavar="MODULE", help="Defines tasks; repeat for more. (default: MAYFLYMQ_TASKS)"
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="DURATION", parser=_seconds, help="Stop in time for this."),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARG",
        help="Arguments as JSON: 5 or '\"text\"'. Put -- before one that starts with '-'.",
    ),
]
Keywords = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="A keyword argument; repeat for more.")
]
Priority = Annotated[int | None, typer.Option(help="Lower goes first. (default: the task's, else 5)")]
TimeToLive = Annotated[
    float | None,
    typer.Option(metavar="DURATION", parser=_seconds, help="Expires when claimed later than this."),
]
Meta = Annotated[
    list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note that travels with the job.")
]
ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the jobs are. (default: MAYFLYMQ_BACKEND_URL, else sqlite:///mayflymq.db)",
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    context.obj = {} if backend is None else {"backend_url": backend}
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("mayflymq"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


# Producing


@app.command()
def enqueue(
    context: typer.Context,
    queue: QueueName,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    args: Arguments = None,
    kw: Keywords = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The job's id. (default: a new one)")] = None,
    priority: Priority = None,
    delay: Annotated[
        float | None, typer.Option(metavar="DURATION", parser=_seconds, help="Not before this long from now.")
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Not before this time: ISO 8601 with a zone, 2030-01-31T08:00+01:00."
        ),
    ] = None,
    ttl: TimeToLive = None,
    meta: Meta = None,
    tasks: Tasks = None,
    as_json: AsJson = False,
) -> int:
    """Put one job into a queue.

    An id that exists already changes nothing and is no error.

    With --tasks, the task has to be defined there: it gives the job its
    settings, and its signature is checked against the arguments.
    """
    settings = _settings(context, tasks=_joined(tasks))
    _load_tasks(settings.task_modules)
    _check_task(task, tasks)
    positional, keywords = _call(args, kw)
    with _backend(settings) as backend:
        answer = Queue(queue, backend, max_payload_bytes=settings.max_payload_bytes).enqueue(
            task,
            positional,
            keywords,
            job_id=job_id,
            priority=priority,
            delay=delay,
            run_at=None if run_at is None else _time(run_at),
            ttl=ttl,
            meta=_pairs("--meta", meta),
        )
    if as_json:
        _print_json({"queue": queue, "id": answer.job_id, "status": answer.status, "state": answer.state})
    elif answer.status is EnqueueStatus.DUPLICATE_ID:
        _print(f"{answer.job_id} exists in {queue} already ({answer.state}): nothing changed")
    else:
        _print(f"{answer.job_id} enqueued in {queue} ({answer.state})")
    return DONE


# Running and recovering


@app.command()
def run(
    context: typer.Context,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME[:WEIGHT]",
            help="Claim from this queue; repeat for more. (default: MAYFLYMQ_QUEUES, else the tasks' own)",
        ),
    ] = None,
    tasks: Tasks = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many jobs.")] = None,
    time_limit: TimeLimit = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Jobs at a time, in threads.")] = None,
    prefetch: Annotated[int | None, typer.Option(min=1, help="Jobs claimed at a time.")] = None,
    stalled_threshold: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=_seconds, help="A claim not renewed for this long is stale."),
    ] = None,
    fail_on_failed: Annotated[
        bool, typer.Option("--fail-on-failed", help="Exit 1 when a job failed for good or expired.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run jobs: one invocation of a worker.

    It ends when the queues are empty, or at the limit or the time limit; a
    handler still running then is stopped, and its attempt recorded.

    The exit code is 0 also when jobs failed, unless --fail-on-failed is given.
    Each failure and each retry is a line on stderr (MAYFLYMQ_LOG_LEVEL).
    """
    settings = _settings(
        context,
        queues=_joined(queue),
        tasks=_joined(tasks),
        limit=limit,
        concurrency=concurrency,
        prefetch=prefetch,
        stalled_threshold=stalled_threshold,
    )
    _load_tasks_to_run(settings)
    names = settings.queue_weights(registry.queues)
    ended = ("job:completed", "job:failed", "job:expired", "job:cancelled")
    failed_in: set[str] = set()
    with _backend(settings) as backend, contextlib.ExitStack() as stack:
        stack.callback(events.listen(lambda event: failed_in.add(event.queue), events.FAILED))
        counts = [info.counts for info in backend.queues(list(names))]
        stack.enter_context(_progress("running", sum(c.waiting for c in counts), *ended))
        if as_json:  # what handlers print must not mix with the report
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        report = worker.claim_and_run(
            backend,
            names,
            remaining_ms=_remaining_ms(time_limit, settings),
            limit=settings.limit,
            concurrency=settings.concurrency,
            prefetch=settings.prefetch,
            stalled_threshold_ms=_ms(settings.stalled_threshold),
            enable_stalled_check=settings.enable_stalled_check,
            margin_ms=_ms(settings.margin),
            max_result_bytes=settings.max_result_bytes,
        )
    _report(report.as_dict(), as_json)
    if report.failed:
        lists = " and ".join(f"`mayflymq dlq list {name}`" for name in sorted(failed_in))
        _complain(f"{_many(report.failed, 'job')} failed: see {lists}")
    undone = report.errors or (fail_on_failed and report.failed + report.expired)
    return _left(NOT_DONE if undone else DONE, report.abandoned)


@app.command()
def sweep(
    context: typer.Context,
    queue: Queues = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Jobs taken in one call to the store.")] = None,
    max_stalls: Annotated[int | None, typer.Option(min=0, help="A job that stalls more often fails.")] = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Send jobs whose worker vanished back to waiting, and remove old ones that ended.

    How old is MAYFLYMQ_RETENTION_COMPLETED (24 h; completed and cancelled) and
    MAYFLYMQ_RETENTION_FAILED (14 days; failed and expired) in seconds, 0: never.

    Exits 1 when a queue or a record had to be left out.
    """
    settings = _settings(context, sweep_limit=limit, max_stalls=max_stalls)
    _load_listeners(settings)
    with _backend(settings) as backend, _progress("sweeping", None, "job:stalled"):
        _check_queues(backend, queue)
        report = maintenance.sweep(
            backend,
            queue or None,
            limit=settings.sweep_limit,
            max_stalls=settings.max_stalls,
            retention=_retention(settings),
            remaining_ms=_remaining_ms(time_limit, settings),
            margin_ms=_ms(settings.margin),
        )
    _report(report.as_dict(), as_json)
    return NOT_DONE if report.errors or report.unreadable else DONE


@app.command()
def promote(
    context: typer.Context,
    queue: Queues = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Jobs taken in one call to the store.")] = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Send delayed jobs whose time has come to waiting, and make the jobs of due schedules.

    Exits 1 when a queue or a schedule had to be left out.
    """
    settings = _settings(context, promote_limit=limit)
    _load_listeners(settings)
    with _backend(settings) as backend, _progress("promoting", None, "job:promoted"):
        _check_queues(backend, queue)
        report = maintenance.promote(
            backend,
            queue or None,
            limit=settings.promote_limit,
            remaining_ms=_remaining_ms(time_limit, settings),
            margin_ms=_ms(settings.margin),
        )
    _report(report.as_dict(), as_json)
    return NOT_DONE if report.errors else DONE


@app.command()
def dev(
    context: typer.Context,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME[:WEIGHT]",
            help="Work on this queue; repeat for more. (default: MAYFLYMQ_QUEUES, else the tasks' own)",
        ),
    ] = None,
    tasks: Tasks = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=_seconds, help="How often to look for work. (default: 1s)"),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Jobs at a time, in threads.")] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no job is waiting, delayed, blocked or running.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run, sweep and promote in a loop, for work on one's own machine.

    It shows live counts on a terminal and a line for each change otherwise, and
    at the end what happened.

    Ctrl-C ends it: the running handler is interrupted and its attempt recorded.
    The exit code is 0 then, and 130 with --until-idle, which was not reached.

    --until-idle leaves out what a paused queue holds back, and schedules. It
    exits 1 when a call to the store failed, and 0 also when jobs failed.
    """
    every = 1.0 if interval is None else interval
    if not every:
        raise typer.BadParameter("--interval must be above 0")
    settings = _settings(context, queues=_joined(queue), tasks=_joined(tasks), concurrency=concurrency)
    _load_tasks_to_run(settings)
    weights = settings.queue_weights(registry.queues)
    names = list(weights)
    counts = Counter({name.removeprefix("job:"): 0 for name in events.NAMES} | {"errors": 0})
    counting = threading.Lock()  # events come from the worker's thread and from the housekeeper's
    ending = threading.Event()
    code, abandoned = DONE, 0

    def count(name: str, n: int = 1) -> None:
        with counting:
            counts[name] += n

    def keep_house(backend: Backend, show: Show) -> None:
        def in_time() -> int:
            return 0 if ending.is_set() else MAX_TIME

        while not ending.is_set():
            swept = maintenance.sweep(
                backend,
                names,
                limit=settings.sweep_limit,
                max_stalls=settings.max_stalls,
                retention=_retention(settings),
                remaining_ms=in_time,
            )
            promoted = maintenance.promote(backend, names, limit=settings.promote_limit, remaining_ms=in_time)
            count("errors", swept.errors + promoted.errors)
            try:
                show(backend.queues(names), counts)
            except Exception as error:
                log.error("the queues cannot be shown: %s", error)
            ending.wait(every)

    with _backend(settings) as backend, contextlib.ExitStack() as stack:
        backend.queues(names)  # a store that cannot be reached is said at once, and later it may come back
        stack.callback(events.listen(lambda event: count(event.name.removeprefix("job:"))))
        if as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        show = stack.enter_context(_watching(as_json))
        house = threading.Thread(target=keep_house, args=(backend, show), name="mayflymq-dev", daemon=True)
        terminated = stack.enter_context(_sigterm_as_ctrl_c())
        try:
            house.start()
            while True:
                try:
                    report = worker.claim_and_run(
                        backend,
                        weights,
                        # With heartbeats whatever the setting says: there is no deadline to do without them.
                        concurrency=settings.concurrency,
                        prefetch=settings.prefetch,
                        stalled_threshold_ms=_ms(settings.stalled_threshold),
                        margin_ms=_ms(settings.margin),
                        max_result_bytes=settings.max_result_bytes,
                    )
                except BackendError as error:
                    if until_idle or not error.transient:
                        raise
                    log.error("the store does not answer: %s", error)
                    count("errors")
                else:
                    count("errors", report.errors)
                    abandoned += report.abandoned
                if terminated():
                    raise KeyboardInterrupt
                if until_idle and _idle(backend.queues(names)):
                    break
                ending.wait(every)
        except KeyboardInterrupt:
            code = INTERRUPTED if until_idle else DONE
        finally:
            ending.set()
            house.join()
        with contextlib.suppress(BackendError):
            show(backend.queues(names), counts)
    _report(dict(counts), as_json)
    if until_idle and counts["errors"]:
        code = code or NOT_DONE
    return _left(code, abandoned)


# Looking


@app.command()
def queues(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="(default: all)")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count past 10,000 jobs a state.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show each queue: jobs by state, dead-letter queue (DLQ), and the workers that hold claims.

    A count stops at 10,000 unless --exact is given.
    """
    with _backend(_settings(context)) as backend, _progress("counting"):
        _check_queues(backend, names)
        infos = backend.queues(names or None, exact=exact)
    if as_json:
        for info in infos:
            _print_json(asdict(info))
        return DONE
    _out().print(_queue_table(infos))
    holders = [(info.name, worker) for info in infos for worker in info.workers]
    if holders:
        table = _table("\nworker", "\nqueue", "\nclaims", "\nlast heartbeat", numbers_from=2)
        for name, holder in holders:
            table.add_row(
                _clean(holder.worker), _clean(name), str(holder.claims), _age(holder.heartbeat_age_ms)
            )
        _out().print(table)
    return DONE


@jobs_app.command("list")
def list_jobs(
    context: typer.Context,
    queue: QueueName,
    state: Annotated[
        list[State] | None, typer.Option("--state", "-s", help="Only this state; repeat for more.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many jobs a state.")] = 100,
    as_json: AsJson = False,
) -> int:
    """List jobs by state, each state in its own order. Arguments and results are in `jobs show`."""
    table = _job_table("id", "state", "age", "tries", "task", "error")
    now = _now()
    empty = True
    with _backend(_settings(context)) as backend:
        for each in state or list(State):
            for job in _jobs(Queue(queue, backend), each, limit):
                empty = False
                if as_json:
                    _print_json(_summary(job))
                    continue
                table.add_row(
                    _clean(job.id),
                    job.state,
                    _age(max(0, now - job.created_at)),
                    str(job.deliveries),
                    _cropped(job.task),
                    _cropped(_brief(job.error)),
                )
        if empty:
            _check_queues(backend, [queue])
    if not as_json:
        _out().print(table)
    return DONE


@jobs_app.command("show")
def show_job(
    context: typer.Context,
    queue: QueueName,
    job_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: AsJson = False,
) -> int:
    """Show all there is about one job: arguments, counters, claim, result, errors with traceback."""
    with _backend(_settings(context)) as backend:
        job = Queue(queue, backend).get(job_id)
    if job is None:
        return _complain(f"no job {job_id} in {queue}; `mayflymq jobs list {queue}` shows which there are")
    details = _summary(job) | _details(job)
    if as_json:
        _print_json(details)
        return DONE
    for name, value in details.items():
        if isinstance(value, dict) and name.endswith("error"):
            _print(f"{name + ':':<17} {value['type']}: {value['message']}")
            _print("".join(f"    {line}\n" for line in value["traceback"].splitlines()).rstrip(), lines=True)
        elif value is not None:
            _print(f"{name + ':':<17} {value if isinstance(value, str) else json.dumps(value)}")
    return DONE


# Steering


@jobs_app.command("cancel")
def cancel_jobs(context: typer.Context, queue: QueueName, ids: JobIds, as_json: AsJson = False) -> int:
    """Cancel jobs: a queued one ends now, a running one is asked to stop.

    Exits 1 when one of them is unknown or had ended, so that nothing changed.
    """
    says = {
        CancelStatus.CANCELLED: "cancelled",
        CancelStatus.REQUESTED: "is running: its worker was asked to stop",
        CancelStatus.TERMINAL: "had ended before: nothing changed",
        CancelStatus.UNKNOWN: "is unknown: nothing changed",
    }
    with _backend(_settings(context)) as backend:
        answers = [Queue(queue, backend).cancel(job_id) for job_id in ids]
    for job_id, answer in zip(ids, answers, strict=True):
        if as_json:
            _print_json({"id": job_id, "status": answer.status})
        else:
            _print(f"{job_id} {says[answer.status]}")
    changed = {CancelStatus.CANCELLED, CancelStatus.REQUESTED}
    return DONE if all(answer.status in changed for answer in answers) else NOT_DONE


@jobs_app.command("remove")
def remove_jobs(context: typer.Context, queue: QueueName, ids: JobIds, as_json: AsJson = False) -> int:
    """Remove jobs in any state with all that belongs to them.

    Exits 1 when one of them is unknown.
    """
    with _backend(_settings(context)) as backend:
        answers = [Queue(queue, backend).remove(job_id) for job_id in ids]
    for job_id, answer in zip(ids, answers, strict=True):
        if as_json:
            _print_json({"id": job_id, "removed": answer.found})
        else:
            _print(f"{job_id} {'removed' if answer.found else 'is unknown: nothing changed'}")
    return DONE if all(answer.found for answer in answers) else NOT_DONE


@jobs_app.command("retry")
def retry_jobs(context: typer.Context, queue: QueueName, ids: JobIds, as_json: AsJson = False) -> int:
    """Send failed and expired jobs back to waiting, with failures and stalls counted anew.

    A job that did its work before it failed does it again.

    Exits 1 when one of them was not retried.
    """
    with _backend(_settings(context)) as backend:
        answers = [Queue(queue, backend).retry(job_id) for job_id in ids]
    for job_id, answer in zip(ids, answers, strict=True):
        if as_json:
            _print_json({"id": job_id, **asdict(answer)})
        else:
            _print(_retried(job_id, answer))
    return DONE if all(answer.status is RetryStatus.RETRIED for answer in answers) else NOT_DONE


@dlq_app.command("list")
def list_dead_letters(
    context: typer.Context,
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="At most this many jobs.")] = 100,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where an earlier list ended.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the failed jobs, then the expired ones, each from the one that ended first.

    When there are more, a line on stderr has the cursor to go on from.
    """
    table = _job_table("id", "state", "age", "tries", "task", "error")
    now = _now()
    after = cursor
    with _backend(_settings(context)) as backend:
        while limit > 0:
            page = _dead_letters(Queue(queue, backend), after, min(limit, PAGE))
            if not page.jobs:
                _check_queues(backend, [queue])
            for job in page.jobs:
                age = None if job.finished_at is None else max(0, now - job.finished_at)
                if as_json:
                    _print_json(_summary(job) | {"age_ms": age})
                    continue
                table.add_row(
                    _clean(job.id),
                    job.state,
                    _age(age),
                    str(job.deliveries),
                    _cropped(job.task),
                    _cropped(_brief(job.error)),
                )
            limit -= len(page.jobs)
            after = page.cursor
            if after is None:
                break
    if not as_json:
        _out().print(table)
    if after is not None:
        typer.echo(f"mayflymq: there are more: --cursor {after}", err=True)
    return DONE


@dlq_app.command("replay")
def replay_dead_letters(
    context: typer.Context,
    queue: QueueName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are dead when it begins.")] = False,
    as_json: AsJson = False,
) -> int:
    """Retry dead jobs, in steps of at most 1,000, and say how many.

    A job that did its work before it failed does it again. Several replays may
    run at once: what another one replayed counts as not dead, and is no error.

    Exits 1 when an id is unknown, or a job stays because its deduplication key
    is held by another job.
    """
    if bool(ids) is everything:
        raise typer.BadParameter("give the ids to replay, or --all")
    counts = Counter(dict.fromkeys(RetryStatus, 0))
    undone: list[dict[str, Any]] = []
    with _backend(_settings(context)) as backend:
        dead = Queue(queue, backend)
        # All ids first: what fails again while this runs must not come round for ever.
        chosen = list(dict.fromkeys(_dead_ids(dead) if everything else ids or ()))
        with _progress("replaying", len(chosen)) as advance:
            for start in range(0, len(chosen), PAGE):
                part = chosen[start : start + PAGE]
                answers = backend.retry(dead.name, part)
                for job_id, answer in zip(part, answers, strict=True):
                    counts[answer.status] += 1
                    if answer.status in (RetryStatus.KEY_TAKEN, RetryStatus.UNKNOWN):
                        undone.append({"id": job_id, **asdict(answer)})
                        if not as_json:
                            _print(_retried(job_id, answer))
                if any(answer.status is RetryStatus.RETRIED for answer in answers):
                    dead.ring()
                advance(len(part))
    if as_json:
        _print_json({**{str(status): n for status, n in counts.items()}, "not_retried": undone})
    else:
        _report({str(status): n for status, n in counts.items()}, as_json)
    return NOT_DONE if undone else DONE


@app.command()
def pause(context: typer.Context, queue: QueueName) -> int:
    """Let a queue give out no more jobs, to any worker; running jobs finish."""
    with _backend(_settings(context)) as backend:
        Queue(queue, backend).pause()
    _print(f"{queue} is paused; `mayflymq resume {queue}` ends that")
    return DONE


@app.command()
def resume(context: typer.Context, queue: QueueName) -> int:
    """Let a paused queue give out jobs again."""
    with _backend(_settings(context)) as backend:
        Queue(queue, backend).resume()
    _print(f"{queue} gives out jobs")
    return DONE


@app.command()
def drain(
    context: typer.Context,
    queue: QueueName,
    include_delayed: Annotated[
        bool, typer.Option("--include-delayed", help="Also the delayed jobs, retries among them.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove the jobs that wait in a queue; running jobs go on.

    What depends on a removed job fails or runs, as it was enqueued to. With
    --json each removed job's id is one line.
    """
    with _backend(_settings(context)) as backend:
        emptied = Queue(queue, backend)
        _check_queues(backend, [emptied.name])
        counts = emptied.info().counts
        what = _many(counts.waiting, "waiting job", capped=True)
        if include_delayed:
            what += f" and {_many(counts.delayed, 'delayed job', capped=True)}"
        if not _sure(f"Remove {what} from {queue}?", yes):
            return _complain("nothing was removed")
        removed = 0
        with _progress("draining", counts.waiting + include_delayed * counts.delayed) as advance:
            while True:
                answer = emptied.drain(include_delayed=include_delayed, limit=PAGE)
                removed += _removed(answer.job_ids, as_json)
                advance(len(answer.job_ids))
                # A child that a removed parent let go of may wait now.
                if len(answer.job_ids) < PAGE and not answer.dependants:
                    break
    if not as_json:
        _print(f"{_many(removed, 'job')} removed from {queue}")
    return DONE


@app.command()
def clean(
    context: typer.Context,
    queue: QueueName,
    state: Annotated[list[State], typer.Option("--state", "-s", help="Jobs that ended so; repeat for more.")],
    older_than: Annotated[
        float, typer.Option(metavar="DURATION", parser=_seconds, help="That ended at least this long ago.")
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many, the oldest first. (default: all)")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove jobs that have ended, by state and age.

    With --json each removed job's id is one line.
    """
    check_terminal(state)
    with _backend(_settings(context)) as backend:
        cleaned = Queue(queue, backend)
        which = f"{' and '.join(dict.fromkeys(state))} jobs of {queue}"
        if not _sure(f"Remove the {which} that ended at least {_age(_ms(older_than))} ago?", yes):
            return _complain("nothing was removed")
        removed = 0
        with _progress("cleaning", limit) as advance:
            while limit is None or removed < limit:
                step = PAGE if limit is None else min(PAGE, limit - removed)
                ids = cleaned.clean(state, older_than, step)
                removed += _removed(ids, as_json)
                advance(len(ids))
                if len(ids) < step:
                    break
    if not as_json:
        _print(f"{_many(removed, 'job')} removed from {queue}")
    return DONE


@app.command()
def obliterate(
    context: typer.Context,
    queue: QueueName,
    force: Annotated[
        bool, typer.Option("--force", help="Also while jobs run; what their workers still record is lost.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove a queue whole: its jobs, keys, pause and schedules.

    Exits 1 when there is no such queue, and, without --force, while jobs run.
    """
    with _backend(_settings(context)) as backend:
        dropped = Queue(queue, backend)
        held = _many(sum(asdict(dropped.info().counts).values()), "job", capped=True)
        if not _sure(f"Remove the queue {queue} with {held} and its schedules?", yes):
            return _complain("nothing was removed")
        with _progress("removing"):
            answer = dropped.drop(force=force)
    if as_json:
        _print_json({"queue": queue, "dropped": answer.dropped, "active": answer.active})
    elif answer.dropped:
        _print(f"{queue} is gone")
    elif answer.active:
        _complain(
            f"{queue} stays: {_many(answer.active, 'active job')} in the way (--force removes them too)"
        )
    else:
        _complain(f"there is no queue {queue}")
    return DONE if answer.dropped else NOT_DONE


# Schedules


@schedules_app.command("list")
def list_schedules(context: typer.Context, queue: QueueName, as_json: AsJson = False) -> int:
    """List a queue's schedules. The arguments are in --json only.

    `next` is empty until a promotion has planned the schedule.
    """
    table = _table("id", "task", "when", "catch up", "next", "last")
    after: str | None = None
    with _backend(_settings(context)) as backend:
        while page := Queue(queue, backend).schedules(after, PAGE):
            for stored in page:
                made = stored.schedule
                if as_json:
                    slots = {"next_slot": _instant(stored.next_slot), "last_slot": _instant(stored.last_slot)}
                    _print_json(_schedule(made) | {"paused": stored.paused} | slots)
                    continue
                coming = "paused" if stored.paused else _instant(stored.next_slot) or ""
                table.add_row(
                    *(_clean(text) for text in (made.id, made.task, _when(made), made.catch_up)),
                    coming,
                    _instant(stored.last_slot) or "",
                )
            after = page[-1].schedule.id
    if not as_json:
        _out().print(table)
    return DONE


@schedules_app.command("put")
def put_schedule(
    context: typer.Context,
    queue: QueueName,
    schedule_id: ScheduleId,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    args: Arguments = None,
    kw: Keywords = None,
    every: Annotated[
        float | None, typer.Option(metavar="DURATION", parser=_seconds, help="A job each 60s, 5m, 24h.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Minute, hour, day, month, weekday: '0 8 * * 1-5'."),
    ] = None,
    timezone: Annotated[
        str, typer.Option(metavar="NAME", help="What --cron is read in: Europe/Zurich.")
    ] = "UTC",
    catch_up: Annotated[
        CatchUp, typer.Option("--catch-up", help="What to do about missed times: none, the latest, each.")
    ] = CatchUp.SKIP,
    priority: Priority = None,
    ttl: TimeToLive = None,
    meta: Meta = None,
    tasks: Tasks = None,
    as_json: AsJson = False,
) -> int:
    """Write a schedule, new or in place of the one with this id.

    Changing one fires nothing twice, and leaves it paused if it was. --every
    counts from 1970 in UTC: --every 24h is midnight there.

    With --tasks, the task has to be defined there: it gives the jobs their
    settings, and its signature is checked against the arguments.
    """
    settings = _settings(context, tasks=_joined(tasks))
    _load_tasks(settings.task_modules)
    _check_task(task, tasks)
    positional, keywords = _call(args, kw)
    with _backend(settings) as backend:
        made = Queue(queue, backend, max_payload_bytes=settings.max_payload_bytes).schedule(
            schedule_id,
            task,
            positional,
            keywords,
            every=every,
            cron=cron,
            timezone=timezone,
            catch_up=catch_up,
            priority=priority,
            ttl=ttl,
            meta=_pairs("--meta", meta),
        )
    following = _instant(schedules.next_slot(made, _now()))
    if as_json:
        _print_json(_schedule(made) | {"next_slot": following})
    else:
        _print(f"{schedule_id} makes a job of {task} in {queue} {_when(made)}; the next is due {following}")
    return DONE


@schedules_app.command("remove")
def remove_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Remove a schedule; the jobs that it made stay.

    Exits 1 when it is unknown.
    """
    with _backend(_settings(context)) as backend:
        found = Queue(queue, backend).unschedule(schedule_id)
    return _of_schedule(found, queue, schedule_id, "is removed")


@schedules_app.command("pause")
def pause_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Let a schedule make no jobs until it is resumed.

    Exits 1 when it is unknown.
    """
    with _backend(_settings(context)) as backend:
        found = Queue(queue, backend).pause_schedule(schedule_id)
    return _of_schedule(found, queue, schedule_id, "is paused")


@schedules_app.command("resume")
def resume_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Let a paused schedule make jobs again; what the pause left out is not made up for.

    Exits 1 when it is unknown.
    """
    with _backend(_settings(context)) as backend:
        found = Queue(queue, backend).resume_schedule(schedule_id)
    return _of_schedule(found, queue, schedule_id, "makes jobs")


# The store


@app.command()
def migrate(context: typer.Context, as_json: AsJson = False) -> int:
    """Bring the store's schema up to date, keeping all data; safe to run many times."""
    with _backend(_settings(context)) as backend, _progress("migrating"):
        version = backend.migrate()
    if as_json:
        _print_json({"schema_version": version})
    else:
        _print(f"the schema is at version {version}")
    return DONE


@app.command()
def check(context: typer.Context, as_json: AsJson = False) -> int:
    """Look at the store's version, schema and settings, and show what it can do.

    Exits 1 on an ERROR finding.
    """
    with _backend(_settings(context)) as backend, _progress("checking"):
        findings = backend.check()
        capabilities = asdict(backend.capabilities)
    if as_json:
        _print_json({"findings": [asdict(finding) for finding in findings], "capabilities": capabilities})
    else:
        for finding in findings:
            _print(f"{finding.severity.upper():<8} {finding.subject}: {finding.message}")
        table = _table("capability", "")
        for name, value in capabilities.items():
            table.add_row(name.replace("_", " "), {True: "yes", False: "no"}.get(value, _clean(value)))
        _out().print(table)
    return NOT_DONE if any(finding.severity is Severity.ERROR for finding in findings) else DONE


# Reading the command line


def _settings(context: typer.Context, **explicit: object) -> Settings:
    """What was given on the command line, else the environment."""
    given = context.obj | {name: value for name, value in explicit.items() if value is not None}
    called = {name: OPTIONS.get(name) or f"--{name.replace('_', '-')}" for name in given}
    return load_settings(called=called, **given)


@contextlib.contextmanager
def _backend(settings: Settings) -> Iterator[Backend]:
    handler = _Stderr()
    handler.setFormatter(_LogLine("%(levelname)s %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler])
    backend = open_backend(settings.backend_url)
    if not backend.capabilities.shared:
        log.warning(
            "this backend keeps jobs in this process: no other command sees them, and they end with it"
        )
    if settings.doorbell:
        connect(backend, doorbell=open_doorbell(settings.doorbell))
    try:
        yield backend
    finally:
        backend.close()


def _check_queues(backend: Backend, names: Sequence[str] | None) -> None:
    """Raises MayflyError for a name that no queue has: the store would call it empty, and it is a slip."""
    if not names:
        return
    there = [info.name for info in backend.queues()]
    for name in names:
        if name not in there:
            raise MayflyError(f"no queue {name} (there are: {', '.join(there[:20]) or 'none'})")


def _load_tasks(modules: Sequence[str]) -> None:
    # An installed command does not look into the directory it is called from; the user's modules are there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    registry.load(modules)


def _check_task(name: str, modules: list[str] | None) -> None:
    """With --tasks the task is one of those: a misspelt name would be found by a worker, and much later."""
    if modules and name not in registry:
        known = ", ".join(list(registry)[:20]) or "none"
        raise typer.BadParameter(f"no task {name} in {', '.join(modules)} (there are: {known})")


def _load_tasks_to_run(settings: Settings) -> None:
    if not settings.task_modules:
        raise ConfigurationError(
            "there are no tasks to run: name your modules with --tasks or MAYFLYMQ_TASKS"
        )
    _load_tasks(settings.task_modules)


def _load_listeners(settings: Settings) -> None:
    """The listeners in modules of tasks (G5), for what runs no task: a broken module must not stop it."""
    for module in settings.task_modules:
        try:
            _load_tasks([module])
        except (Exception, SystemExit) as error:
            _complain(f"{module}: its listeners hear nothing: {type(error).__name__}: {error}")


def _retention(settings: Settings) -> maintenance.Retention:
    return maintenance.Retention(
        completed_ms=duration_ms("retention_completed", settings.retention_completed),
        failed_ms=duration_ms("retention_failed", settings.retention_failed),
    )


def _sure(question: str, yes: bool) -> bool:
    """Whether to go on with what cannot be undone."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was removed: nobody can be asked here, so it needs --yes")
    return typer.confirm(_clean(question), err=True)


def _joined(values: list[str] | None) -> str | None:
    return ",".join(values) if values else None


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise typer.BadParameter(
            f"{what} is not JSON: {text[:80]} (text needs quotes of its own: '\"text\"')"
        ) from None


def _call(args: list[str] | None, kw: list[str] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a job, from the JSON of each."""
    return (
        tuple(_from_json(text, f"argument {number}") for number, text in enumerate(args or (), 1)),
        {name: _from_json(text, f"--kw {name}") for name, text in _pairs("--kw", kw).items()},
    )


def _pairs(option: str, values: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or not name or name in pairs:
            raise typer.BadParameter(f"{option} takes name=value, each name once, not {value[:80]}")
        pairs[name] = text
    return pairs


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        example = "2030-01-31T08:00+01:00, or Z for UTC"
        raise typer.BadParameter(
            f"--run-at takes an ISO 8601 time with a time zone ({example}), not {text[:80]}"
        )
    return at


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _now() -> int:
    """This machine's time, for what is only shown; what decides is the store's (F4)."""
    return round(time.time() * 1000)


def _remaining_ms(time_limit: float | None, settings: Settings) -> Callable[[], int] | None:
    if time_limit is None:
        return None
    if time_limit <= settings.margin:
        raise typer.BadParameter(
            f"--time-limit: of {time_limit:g} s nothing is left to work in, as MAYFLYMQ_MARGIN keeps back "
            f"{settings.margin:g} s"
        )
    end = time.monotonic() + time_limit
    return lambda: max(0, _ms(end - time.monotonic()))


# Printing


def _out() -> Console:
    # What is piped has no width to keep to; a table cut at 80 columns would be of no use there.
    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 250)


def _clean(text: object, *, lines: bool = False) -> str:
    """The text with what does not print (controls, surrogates) as escapes; `lines` keeps breaks and tabs."""
    return "".join(
        c
        if c.isprintable() or (lines and c in "\n\t")
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in str(text)
    )


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: above a live display, while there is one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # read-only on purpose
        return sys.stderr


class _LogLine(logging.Formatter):
    """A log line for a person: with the queue and the job that it is about, as text that cannot do harm."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = [f"{name}={record.__dict__[name]}" for name in LOGGED if name in record.__dict__]
        return super().formatMessage(record) + (f" ({', '.join(about)})" if about else "")

    def format(self, record: logging.LogRecord) -> str:
        return _clean(super().format(record), lines=True)


def _print(text: str, *, lines: bool = False) -> None:
    typer.echo(_clean(text, lines=lines))


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value))


def _complain(message: str, code: int = NOT_DONE) -> int:
    """One line on stderr, whatever the message holds."""
    typer.echo(f"mayflymq: {_clean(' '.join(message.split()))}", err=True)
    return code


def _table(*columns: str, numbers_from: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        right = numbers_from is not None and index >= numbers_from
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _job_table(*columns: str) -> Table:
    """A table of jobs, a line each: id and state are whole at 80 columns, for whoever copies them from there.
    What `_cropped` made gives way."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name not in ("task", "error"))
    return table


def _cropped(text: str) -> Text:
    return Text(_clean(text), no_wrap=True, overflow="ellipsis")


def _queue_table(infos: Sequence[QueueInfo]) -> Table:
    states = ("waiting", "delayed", "blocked", "active", "completed", "cancelled")
    table = _table("queue", *states, "DLQ", "oldest wait", numbers_from=1)
    for info in infos:
        counts = asdict(info.counts)
        table.add_row(
            _clean(info.name) + (" (paused)" if info.paused else ""),
            *(f"{counts[state]:,}" for state in states),
            f"{info.dead_letters:,}",
            _age(info.oldest_waiting_age_ms),
        )
    return table


Show = Callable[[Sequence[QueueInfo], Counter[str]], None]


@contextlib.contextmanager
def _watching(as_json: bool) -> Iterator[Show]:
    """Shows how queues stand: live on a terminal, a line for each change where stdout is none."""
    if as_json:
        yield lambda infos, counts: None
        return
    last: dict[str, str] = {}

    def print_changes(infos: Sequence[QueueInfo], counts: Counter[str]) -> None:
        for info in infos:
            stand = ", ".join(f"{state} {n:,}" for state, n in asdict(info.counts).items() if n) or "empty"
            line = f"{info.name}{' (paused)' if info.paused else ''}: {stand}"
            if last.get(info.name) != line:
                last[info.name] = line
                _print(line)

    if not sys.stdout.isatty():
        yield print_changes
        return
    # What handlers print and what is logged goes above the counts, unless stderr goes elsewhere.
    with Live(console=_out(), auto_refresh=False, redirect_stderr=sys.stderr.isatty()) as live:

        def update(infos: Sequence[QueueInfo], counts: Counter[str]) -> None:
            seen = ", ".join(f"{name}: {n:,}" for name, n in counts.items() if n)
            live.update(Group(_queue_table(infos), Text(seen or "Ctrl-C ends this")), refresh=True)

        yield update


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[Callable[[], bool]]:
    """A SIGTERM raises KeyboardInterrupt, so that a live display gives back the terminal as it was. What this
    yields tells whether one came that the worker took for itself: while it runs it only stops claiming."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Every signal leaves its number there, whoever handles it.
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def came() -> bool:
            try:
                return signal.SIGTERM in reader.recv(4096)
            except BlockingIOError:
                return False

        try:
            yield came
        finally:
            signal.set_wakeup_fd(wakeup)
            signal.signal(signal.SIGTERM, handler)


def _idle(infos: Sequence[QueueInfo]) -> bool:
    """Whether nothing is left that would run without anybody's doing."""
    return not any(
        info.counts.active
        or (not info.paused and info.counts.waiting + info.counts.delayed + info.counts.blocked)
        for info in infos
    )


def _left(code: int, abandoned: int) -> int:
    """The exit code, or the exit itself: handlers that nobody could stop still run in threads, and the exit
    may not wait for what they hold."""
    if abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _retried(job_id: str, answer: Retried) -> str:
    return (
        f"{job_id} "
        + {
            RetryStatus.RETRIED: f"is {answer.state} again",
            RetryStatus.NOT_DEAD: f"is {answer.state}, neither failed nor expired: nothing changed",
            RetryStatus.KEY_TAKEN: f"stays {answer.state}: {answer.holder} holds its deduplication key now",
            RetryStatus.UNKNOWN: "is unknown: nothing changed",
        }[answer.status]
    )


def _removed(ids: Collection[str], as_json: bool) -> int:
    if as_json:
        for job_id in ids:
            _print_json({"id": job_id, "removed": True})
    return len(ids)


def _many(n: int, what: str, *, capped: bool = False) -> str:
    return f"{n:,}{' or more' if capped and n >= COUNT_CAP else ''} {what}{'' if n == 1 else 's'}"


def _of_schedule(found: bool, queue: str, schedule_id: str, done: str) -> int:
    if not found:
        return _complain(f"no schedule {schedule_id} in {queue}")
    _print(f"{schedule_id} of {queue} {done}")
    return DONE


def _when(made: Schedule) -> str:
    if made.every_ms is not None:
        return f"every {made.every_ms // 1000} s"
    return f"at {made.cron} ({made.timezone})"


def _schedule(made: Schedule) -> dict[str, Any]:
    args, kwargs, meta = codec.decode_payload(made.payload)
    return {
        "id": made.id,
        "queue": made.queue,
        "task": made.task,
        "args": args,
        "kwargs": kwargs,
        "meta": meta,
        "every_ms": made.every_ms,
        "cron": made.cron,
        "timezone": made.timezone,
        "catch_up": made.catch_up,
        "priority": made.priority,
        "ttl_ms": made.ttl_ms,
        "timeout_ms": made.timeout_ms,
        "max_retries": made.max_retries,
    }


def _report(counts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(counts)
        return
    told = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in counts.items()}
    _print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items()))


def _summary(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "state": job.state,
        "priority": job.priority,
        "deliveries": job.deliveries,
        "failures": job.failures,
        "stalls": job.stalls,
        "replays": job.replays,
        "created_at": _instant(job.created_at),
        "run_at": _instant(job.run_at),
        "finished_at": _instant(job.finished_at),
        "error": _error(job.error),
    }


def _details(job: Job) -> dict[str, Any]:
    """What only `show` prints. The arguments too: asking for one job by its id is asking for them."""
    details: dict[str, Any] = {}
    try:
        details["args"], details["kwargs"], details["meta"] = codec.decode_payload(job.payload)
        details["result"] = None if job.result is None else codec.decode(job.result)
    except CorruptRecord as error:
        details["unreadable"] = str(error)
    return details | {
        "progress": job.progress,
        "max_retries": job.max_retries,
        "ttl_ms": job.ttl_ms,
        "timeout_ms": job.timeout_ms,
        "depends_on": list(job.depends_on) or None,
        "dedup_key": job.dedup and job.dedup.key,
        "cancel_requested": job.cancel_requested or None,
        "worker": job.worker,
        "claimed_at": _instant(job.claimed_at),
        "heartbeat_at": _instant(job.heartbeat_at),
        "stale_at": _instant(job.stale_at),
        "retried_at": _instant(job.retried_at),
        "first_error": None if job.first_error == job.error else _error(job.first_error),
    }


def _brief(error: JobError | None) -> str:
    return "" if error is None else _clean(f"{error.type}: {error.message}")[:100]


def _error(error: JobError | None) -> dict[str, str] | None:
    return None if error is None else asdict(error)


@contextlib.contextmanager
def _progress(label: str, total: int | None = None, *names: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr during the block, moved on by the events `names` and by calling what it yields; nothing
    where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, markup=False, highlight=False, emoji=False),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    task = bar.add_task(label, total=total)
    stop = events.listen(lambda event: bar.advance(task), *names) if names else lambda: None
    try:
        with bar:
            yield lambda n: bar.advance(task, n)
    finally:
        stop()


def _age(ms: int | None) -> str:
    if ms is None:
        return "-"
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _instant(ms: int | None) -> str | None:
    if ms is None:
        return None
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError):  # a job may be due in a year that has more than four digits
        return "9999-12-31T23:59:59.999Z"


def _jobs(queue: Queue, state: State, limit: int) -> Iterator[Job]:
    cursor: str | None = None
    while limit > 0:
        page = queue.jobs(state, cursor, min(limit, PAGE))
        yield from page.jobs
        limit -= len(page.jobs)
        cursor = page.cursor
        if cursor is None:
            return


def _dead_letters(queue: Queue, cursor: str | None, limit: int) -> JobPage:
    """A page of the dead-letter queue: failed, then expired. The cursor says in which it goes on."""
    name, _, rest = (cursor or f"{State.FAILED}:").partition(":")
    if name not in DEAD_LETTER:
        raise typer.BadParameter(f"{cursor!r} is not a cursor: pass back the one that came with a list")
    page = queue.jobs(State(name), rest or None, limit)
    if page.cursor is not None:
        return JobPage(page.jobs, f"{name}:{page.cursor}")
    if name == State.EXPIRED:
        return page
    following = f"{State.EXPIRED}:"
    if len(page.jobs) < limit:
        more = _dead_letters(queue, following, limit - len(page.jobs))
        return JobPage([*page.jobs, *more.jobs], more.cursor)
    return JobPage(page.jobs, following if queue.jobs(State.EXPIRED, None, 1).jobs else None)


def _dead_ids(queue: Queue) -> Iterator[str]:
    cursor = None
    while True:
        page = _dead_letters(queue, cursor, PAGE)
        yield from (job.id for job in page.jobs)
        cursor = page.cursor
        if cursor is None:
            return


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point. What a person can act on is one line; only a fault of the program has a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        # A command returns its exit code, and that is what comes out of here.
        code: int | None = app(args=args, prog_name="mayflymq", standalone_mode=False)
        sys.stdout.flush()  # where that fails, it is said here
        return code or DONE
    except (InvalidJob, ConfigurationError) as error:
        return _complain(str(error), USAGE)
    except CorruptRecord as error:
        return _complain(str(error))
    except BackendError as error:
        return _complain(str(error), UNREACHABLE)
    except MayflyError as error:
        return _complain(str(error))
    except (typer.Abort, KeyboardInterrupt):
        return _complain("interrupted", INTERRUPTED)
    except OSError as error:
        with contextlib.suppress(OSError):  # so that what is left in the buffer does not fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE if isinstance(error, BrokenPipeError) else _complain(str(error))
    except Exception as error:
        # Usage errors are Typer's own classes or the click package's, as its version has it; both have this.
        if not hasattr(error, "format_message"):
            raise
        hint = ""
        if "--backend" in (message := error.format_message()):
            hint = " (--backend goes before the command: mayflymq --backend URL ...)"
        elif message.startswith("Missing command") and (at := getattr(error, "ctx", None)):
            hint = f" These are: {', '.join(at.command.list_commands(at))}."
        return _complain(f"{message}{hint}", USAGE)


if __name__ == "__main__":
    main()
