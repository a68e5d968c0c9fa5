"""The `mayflymq` command: parses, calls Queue, the worker and maintenance, prints. No logic is here (F6).

Results go to stdout; errors, logs and progress to stderr. Text that came from jobs is never read as markup,
and its control characters are shown as escapes, so that no job id or error can drive the operator's terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

from . import codec, events, maintenance, worker
from .backends.base import Backend, open_backend
from .errors import BackendError, ConfigurationError, CorruptRecord, InvalidJob, MayflyError
from .model import MAX_BATCH, CancelStatus, EnqueueStatus, Job, JobError, Severity, State
from .queue import Queue
from .tasks import registry

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from .settings import Settings, load_settings
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.startswith("mayflymq"):
        raise
    sys.stderr.write(f"mayflymq: the command needs the package {missing.name}: pip install 'mayflymq[cli]'\n")
    raise SystemExit(2) from None

PAGE = MAX_BATCH
DONE, NOT_DONE, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = (
    "Exit codes: 0 done; 1 something was not done or is wrong (an unknown job, an ERROR finding); "
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
jobs_app = typer.Typer(help="List, show, cancel and remove jobs.", epilog=EXIT_CODES, no_args_is_help=False)
app.add_typer(jobs_app, name="jobs")


def _seconds(text: str) -> float:
    """A duration on the command line; `nan` and `inf` are numbers to float() and no durations."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise typer.BadParameter(f"{text!r} is not a number of seconds, 0 or more")
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
    typer.Option("--time-limit", metavar="SECONDS", parser=_seconds, help="Stop in time for this."),
]


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
    args: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARG",
            help="Arguments as JSON: 5 or '\"text\"'. Put -- before one that starts with '-'.",
        ),
    ] = None,
    kw: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="A keyword argument; repeat for more.")
    ] = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The job's id. (default: a new one)")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Lower goes first. (default: the task's, else 5)")
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", parser=_seconds, help="Not before this long from now.")
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Not before this time: ISO 8601 with a zone, 2030-01-31T08:00+01:00."
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", parser=_seconds, help="Expires when claimed later than this."),
    ] = None,
    meta: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note that travels with the job.")
    ] = None,
    tasks: Tasks = None,
    as_json: AsJson = False,
) -> int:
    """Put one job into a queue.

    An id that exists already changes nothing and is no error.

    With --tasks, a task defined there gives the job its settings, and its
    signature is checked against the arguments.
    """
    settings = _settings(context, tasks=_joined(tasks))
    _load_tasks(settings)
    positional = tuple(_from_json(text, f"argument {number}") for number, text in enumerate(args or (), 1))
    keywords = {name: _from_json(text, f"--kw {name}") for name, text in _pairs("--kw", kw).items()}
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
            help="Claim from this queue; repeat for more. (default: MAYFLYMQ_QUEUES, else default)",
        ),
    ] = None,
    tasks: Tasks = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many jobs.")] = None,
    time_limit: TimeLimit = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Jobs at a time, in threads.")] = None,
    prefetch: Annotated[int | None, typer.Option(min=1, help="Jobs claimed at a time.")] = None,
    stalled_threshold: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", parser=_seconds, help="A claim not renewed for this long is stale."),
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
    if not settings.task_modules:
        raise ConfigurationError(
            "there are no tasks to run: name your modules with --tasks or MAYFLYMQ_TASKS"
        )
    _load_tasks(settings)
    names = settings.queue_weights
    ended = ("job:completed", "job:failed", "job:expired", "job:cancelled")
    with _backend(settings) as backend, contextlib.ExitStack() as stack:
        counts = [info.counts for info in backend.queues(list(names))]
        stack.enter_context(_progress("running", sum(c.waiting for c in counts), *ended))
        if as_json:  # what handlers print must not mix with the report
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        report = worker.claim_and_run(
            backend,
            names,
            remaining_ms=_remaining_ms(time_limit),
            limit=settings.limit,
            concurrency=settings.concurrency,
            prefetch=settings.prefetch,
            stalled_threshold_ms=_ms(settings.stalled_threshold),
            enable_stalled_check=settings.enable_stalled_check,
            margin_ms=_ms(settings.margin),
            max_result_bytes=settings.max_result_bytes,
        )
    _report(report.as_dict(), as_json)
    undone = report.errors or (fail_on_failed and report.failed + report.expired)
    code = NOT_DONE if undone else DONE
    if report.abandoned:
        # Handlers that nobody could stop still run in threads, and the exit may not wait for what they hold.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


@app.command()
def sweep(
    context: typer.Context,
    queue: Queues = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Jobs taken in one call to the store.")] = None,
    max_stalls: Annotated[int | None, typer.Option(min=0, help="A job that stalls more often fails.")] = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Send jobs whose worker vanished back to waiting.

    Exits 1 when a queue or a record had to be left out.
    """
    settings = _settings(context, sweep_limit=limit, max_stalls=max_stalls)
    with _backend(settings) as backend, _progress("sweeping", None, "job:stalled"):
        report = maintenance.sweep(
            backend,
            queue or None,
            limit=settings.sweep_limit,
            max_stalls=settings.max_stalls,
            remaining_ms=_remaining_ms(time_limit),
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
    """Send delayed jobs whose time has come to waiting.

    Exits 1 when a queue had to be left out.
    """
    settings = _settings(context, promote_limit=limit)
    with _backend(settings) as backend, _progress("promoting", None, "job:promoted"):
        report = maintenance.promote(
            backend,
            queue or None,
            limit=settings.promote_limit,
            remaining_ms=_remaining_ms(time_limit),
            margin_ms=_ms(settings.margin),
        )
    _report(report.as_dict(), as_json)
    return NOT_DONE if report.errors else DONE


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
        infos = backend.queues(names or None, exact=exact)
    if as_json:
        for info in infos:
            _print_json(asdict(info))
        return DONE
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
    _out().print(table)
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
    table = _table("id", "task", "state", "priority", "deliveries", "created", "error")
    with _backend(_settings(context)) as backend:
        for each in state or list(State):
            for job in _jobs(Queue(queue, backend), each, limit):
                if as_json:
                    _print_json(_summary(job))
                    continue
                error = "" if job.error is None else f"{job.error.type}: {job.error.message}"
                table.add_row(
                    *(_clean(text) for text in (job.id, job.task, job.state)),
                    str(job.priority),
                    str(job.deliveries),
                    _instant(job.created_at),
                    _clean(error)[:100],
                )
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
    return load_settings(
        **context.obj, **{name: value for name, value in explicit.items() if value is not None}
    )


@contextlib.contextmanager
def _backend(settings: Settings) -> Iterator[Backend]:
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLine("%(levelname)s %(message)s"))
    logging.basicConfig(level=settings.log_level, handlers=[handler])
    backend = open_backend(settings.backend_url)
    try:
        yield backend
    finally:
        backend.close()


def _load_tasks(settings: Settings) -> None:
    # An installed command does not look into the directory it is called from; the user's modules are there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    registry.load(settings.task_modules)


def _joined(values: list[str] | None) -> str | None:
    return ",".join(values) if values else None


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise typer.BadParameter(
            f"{what} is not JSON: {text[:80]} (text needs quotes of its own: '\"text\"')"
        ) from None


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
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--run-at takes an ISO 8601 time with a zone, not {text[:80]}") from None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _remaining_ms(time_limit: float | None) -> Callable[[], int] | None:
    if time_limit is None:
        return None
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


class _LogLine(logging.Formatter):
    """A log line for a person: with the queue and the job that it is about, as text that cannot do harm."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = [f"{name}={record.__dict__[name]}" for name in ("queue", "job_id") if name in record.__dict__]
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


def _report(counts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(counts)
        return
    _print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in counts.items()))


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


def _error(error: JobError | None) -> dict[str, str] | None:
    return None if error is None else asdict(error)


@contextlib.contextmanager
def _progress(label: str, total: int | None = None, *names: str) -> Iterator[None]:
    """A bar on stderr during the block, moved on by the events `names`; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield
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
            yield
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


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point. What a person can act on is one line; only a fault of the program has a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        # A command returns its exit code, and that is what comes out of here.
        code: int | None = app(args=args, prog_name="mayflymq", standalone_mode=False)
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
    except Exception as error:
        # Usage errors are Typer's own classes or the click package's, as its version has it; both have this.
        if not hasattr(error, "format_message"):
            raise
        hint = ""
        if "--backend" in (message := error.format_message()):
            hint = " (--backend goes before the command: mayflymq --backend URL ...)"
        return _complain(f"{message}{hint}", USAGE)


if __name__ == "__main__":
    main()
