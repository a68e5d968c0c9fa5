"""The commands that run jobs and keep house, each for one invocation, and `dev`, which does so in a loop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from .. import events, maintenance, worker
from ..backends.base import Backend
from ..errors import BackendError, ConfigurationError
from ..model import MAX_TIME, QueueInfo, State, duration_ms
from ..settings import Settings
from ..tasks import Task, registry
from .options import (
    AsJson,
    Tasks,
    check_queues,
    duration,
    flag,
    joined,
    load_tasks,
    ms,
    opened,
    read_settings,
    whole,
)
from .output import (
    DONE,
    INTERRUPTED,
    NOT_DONE,
    complain,
    instant,
    log,
    many,
    progress,
    say,
    stdout,
    tell_counts,
)
from .queues import queue_table


def _weighted_queues(what: str) -> Any:
    return typer.Option(
        "--queue",
        "-q",
        metavar="NAME[:WEIGHT]",
        help=f"{what}; repeat for more. (default: MAYFLYMQ_QUEUES, else the tasks' own)",
    )


Concurrency = Annotated[int | None, whole("Jobs at a time, in threads.", at_least=1)]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="NAME", help="Only this queue; repeat for more. (default: all)"),
]
StepLimit = Annotated[int | None, whole("Jobs taken in one call to the store.", at_least=1)]
TimeLimit = Annotated[float | None, duration("Stop in time for this: 90 or 90s, 5m.")]


def run(
    context: typer.Context,
    queue: Annotated[list[str] | None, _weighted_queues("Claim from this queue")] = None,
    tasks: Tasks = None,
    limit: Annotated[int | None, whole("Stop after this many jobs.", at_least=1)] = None,
    time_limit: TimeLimit = None,
    concurrency: Concurrency = None,
    prefetch: Annotated[int | None, whole("Jobs claimed at a time.", at_least=1)] = None,
    stalled_threshold: Annotated[
        float | None, duration("A claim not renewed for this long is stale.")
    ] = None,
    fail_on_failed: Annotated[
        bool, flag("--fail-on-failed", help="Exit 1 when a job failed for good or expired.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run jobs: one invocation of a worker.

    It ends when the queues are empty, or at the limit or the time limit; a
    handler still running then is stopped, and its attempt recorded.

    The exit code is 0 also when jobs failed, unless --fail-on-failed is given.
    Each failure and each retry is a line on stderr (MAYFLYMQ_LOG_LEVEL).
    """
    settings = read_settings(
        context,
        queues=joined(queue),
        tasks=joined(tasks),
        limit=limit,
        concurrency=concurrency,
        prefetch=prefetch,
        stalled_threshold=stalled_threshold,
    )
    weights = _load_work(settings)
    ended = ("job:completed", "job:failed", "job:expired", "job:cancelled")
    failed_in: set[str] = set()
    with opened(settings) as backend, contextlib.ExitStack() as stack:
        stack.callback(events.listen(lambda event: failed_in.add(event.queue), events.FAILED))
        infos = backend.queues(list(weights))
        _hint(backend, infos, named=settings.queues is not None)
        stack.enter_context(progress("running", sum(info.counts.waiting for info in infos), *ended))
        if as_json:  # what handlers print must not mix with the report
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        report = _work(
            backend,
            weights,
            settings,
            remaining_ms=_remaining_ms(time_limit, settings),
            limit=settings.limit,
            enable_stalled_check=settings.enable_stalled_check,
        )
    tell_counts(as_json, report.as_dict(), at_least="claimed")
    if report.failed:
        lists = " and ".join(f"`mayflymq dlq list {name}`" for name in sorted(failed_in))
        complain(f"{many(report.failed, 'job')} failed: see {lists}")
    undone = report.errors or (fail_on_failed and report.failed + report.expired)
    return _left(NOT_DONE if undone else DONE, report.abandoned)


def sweep(
    context: typer.Context,
    queue: Queues = None,
    limit: StepLimit = None,
    max_stalls: Annotated[int | None, whole("A job that stalls more often fails.", at_least=0)] = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Send jobs whose worker vanished back to waiting, and remove old ones that ended.

    How old is MAYFLYMQ_RETENTION_COMPLETED (24 h; completed and cancelled) and
    MAYFLYMQ_RETENTION_FAILED (14 days; failed and expired) in seconds, 0: never.

    Exits 1 when a queue or a record had to be left out.
    """
    settings = read_settings(context, sweep_limit=limit, max_stalls=max_stalls)
    with _keeping_house(settings, queue, "sweeping", "job:stalled") as backend:
        report = _sweep(backend, queue or None, settings, _remaining_ms(time_limit, settings))
    tell_counts(as_json, report.as_dict())
    return NOT_DONE if report.errors or report.unreadable else DONE


def promote(
    context: typer.Context,
    queue: Queues = None,
    limit: StepLimit = None,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Send delayed jobs whose time has come to waiting, and make the jobs of due schedules.

    Exits 1 when a queue or a schedule had to be left out.
    """
    settings = read_settings(context, promote_limit=limit)
    with _keeping_house(settings, queue, "promoting", "job:promoted") as backend:
        report = _promote(backend, queue or None, settings, _remaining_ms(time_limit, settings))
    tell_counts(as_json, report.as_dict())
    return NOT_DONE if report.errors else DONE


def _load_work(settings: Settings) -> dict[str, int]:
    """Loads the tasks to run; returns the queues to claim from, with their weights."""
    if not settings.task_modules:
        raise ConfigurationError(
            "there are no tasks to run: name your modules with --tasks or MAYFLYMQ_TASKS"
        )
    for module in settings.task_modules:
        known = set(registry)
        load_tasks([module])
        if known == set(registry) and not _has_tasks(module):
            complain(f"{module} defines no task")
    return settings.queue_weights(registry.queues)


def _has_tasks(module: str) -> bool:
    """Whether there are tasks in a module, or below it, that was perhaps loaded before."""
    tasks = map(registry.get, registry)
    return any(f"{task.fn.__module__}.".startswith(f"{module}.") for task in tasks) or any(
        isinstance(value, Task) for value in vars(sys.modules[module]).values()
    )


def _hint(backend: Backend, infos: Sequence[QueueInfo], *, named: bool) -> None:
    """Says on stderr why nothing may come from a queue: it is paused, or there is none of the name that was
    given. The queues that tasks name may well have had no job yet."""
    empty = [info.name for info in infos if not info.paused and not any(asdict(info.counts).values())]
    there = {info.name for info in backend.queues()} if named and empty else set(empty)
    for info in infos:
        if info.paused:
            complain(f"{info.name} is paused; `mayflymq resume {info.name}` ends that")
        elif info.name in empty and info.name not in there:
            complain(f"no queue {info.name}")


def _work(
    backend: Backend,
    weights: dict[str, int],
    settings: Settings,
    *,
    remaining_ms: Callable[[], int] | None = None,
    limit: int | None = None,
    enable_stalled_check: bool = True,
) -> worker.RunReport:
    return worker.claim_and_run(
        backend,
        weights,
        remaining_ms=remaining_ms,
        limit=limit,
        concurrency=settings.concurrency,
        prefetch=settings.prefetch,
        stalled_threshold_ms=ms(settings.stalled_threshold),
        enable_stalled_check=enable_stalled_check,
        margin_ms=ms(settings.margin),
        max_result_bytes=settings.max_result_bytes,
    )


def _sweep(
    backend: Backend, queues: list[str] | None, settings: Settings, remaining_ms: Callable[[], int] | None
) -> maintenance.SweepReport:
    return maintenance.sweep(
        backend,
        queues,
        limit=settings.sweep_limit,
        max_stalls=settings.max_stalls,
        retention=maintenance.Retention(
            completed_ms=duration_ms("retention_completed", settings.retention_completed),
            failed_ms=duration_ms("retention_failed", settings.retention_failed),
        ),
        remaining_ms=remaining_ms,
        margin_ms=ms(settings.margin),
    )


def _promote(
    backend: Backend, queues: list[str] | None, settings: Settings, remaining_ms: Callable[[], int] | None
) -> maintenance.PromoteReport:
    return maintenance.promote(
        backend,
        queues,
        limit=settings.promote_limit,
        remaining_ms=remaining_ms,
        margin_ms=ms(settings.margin),
    )


@contextlib.contextmanager
def _keeping_house(settings: Settings, queues: list[str] | None, label: str, event: str) -> Iterator[Backend]:
    """The store during the block, with a bar that each such event moves on."""
    # The listeners in modules of tasks (G5). What follows runs no task, so a broken module must not stop it.
    for module in settings.task_modules:
        try:
            load_tasks([module])
        except (Exception, SystemExit) as error:
            complain(f"{module}: its listeners hear nothing: {type(error).__name__}: {error}")
    with opened(settings) as backend, progress(label, None, event):
        check_queues(backend, queues)
        yield backend


def _remaining_ms(time_limit: float | None, settings: Settings) -> Callable[[], int] | None:
    if time_limit is None:
        return None
    if time_limit <= settings.margin:
        raise typer.BadParameter(
            f"--time-limit: of {time_limit:g} s nothing is left to work in, as MAYFLYMQ_MARGIN keeps back "
            f"{settings.margin:g} s"
        )
    end = time.monotonic() + time_limit
    return lambda: max(0, ms(end - time.monotonic()))


def _left(code: int, abandoned: int) -> int:
    """The exit code, or the exit itself: handlers that nobody could stop still run in threads, and the exit
    may not wait for what they hold."""
    if abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


# The loop


def dev(
    context: typer.Context,
    queue: Annotated[list[str] | None, _weighted_queues("Work on this queue")] = None,
    tasks: Tasks = None,
    interval: Annotated[float | None, duration("How often to look for work. (default: 1s)")] = None,
    concurrency: Concurrency = None,
    until_idle: Annotated[
        bool, flag("--until-idle", help="End when no job is waiting, delayed, blocked or running.")
    ] = False,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> int:
    """Run, sweep and promote in a loop, for work on one's own machine.

    It shows live counts on a terminal and a line for each change otherwise, and
    at the end what happened.

    Ctrl-C ends it: the running handler is interrupted and its attempt recorded.
    The exit code is 0 then, and 130 with --until-idle, which was not reached.

    --until-idle leaves out what a paused queue holds back, and schedules. It
    exits 1 when a call to the store failed or the time limit came first, and 0
    also when jobs failed.
    """
    every = 1.0 if interval is None else interval
    if not every:
        raise typer.BadParameter("--interval must be above 0")
    settings = read_settings(context, queues=joined(queue), tasks=joined(tasks), concurrency=concurrency)
    weights = _load_work(settings)
    names = list(weights)
    counts = Counter({name.removeprefix("job:"): 0 for name in events.NAMES} | {"errors": 0})
    counting = threading.Lock()  # events come from the worker's thread and from the housekeeper's
    ending = threading.Event()
    remaining_ms = _remaining_ms(time_limit, settings)
    code, abandoned, told = DONE, 0, False

    def count(name: str, n: int = 1) -> None:
        with counting:
            counts[name] += n

    def keep_house(backend: Backend, show: Show) -> None:
        def in_time() -> int:
            return 0 if ending.is_set() else MAX_TIME

        while not ending.is_set():
            swept = _sweep(backend, names, settings, in_time)
            promoted = _promote(backend, names, settings, in_time)
            count("errors", swept.errors + promoted.errors)
            try:
                show(backend.queues(names), counts)
            except Exception as error:
                log.error("the queues cannot be shown: %s", error)
            ending.wait(every)

    with opened(settings) as backend, contextlib.ExitStack() as stack:
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
                    # With heartbeats whatever the setting says: there is no deadline to do without them.
                    report = _work(backend, weights, settings, remaining_ms=remaining_ms)
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
                if until_idle:
                    infos = backend.queues(names)
                    if _idle(infos):
                        break
                    if not told and (waits := _waits_for(backend, infos)):
                        complain(waits)
                        told = True
                left = every if remaining_ms is None else remaining_ms() / 1000 - settings.margin
                if left <= 0:
                    if until_idle:
                        code = complain("the time limit came before the queues were idle")
                    break
                ending.wait(min(every, left))
        except KeyboardInterrupt:
            code = INTERRUPTED if until_idle else DONE
        finally:
            ending.set()
            house.join()
        with contextlib.suppress(BackendError):
            show(backend.queues(names), counts)
    tell_counts(as_json, dict(counts), at_least="started")
    if until_idle and counts["errors"]:
        code = code or NOT_DONE
    return _left(code, abandoned)


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
                say(line)

    if not sys.stdout.isatty():
        yield print_changes
        return
    # What handlers print and what is logged goes above the counts, unless stderr goes elsewhere.
    with Live(console=stdout(), auto_refresh=False, redirect_stderr=sys.stderr.isatty()) as live:

        def update(infos: Sequence[QueueInfo], counts: Counter[str]) -> None:
            seen = ", ".join(f"{name}: {n:,}" for name, n in counts.items() if n)
            live.update(Group(queue_table(infos), Text(seen or "Ctrl-C ends this")), refresh=True)

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


def _waits_for(backend: Backend, infos: Sequence[QueueInfo]) -> str | None:
    """What is waited for where no job could start or runs now; None where one could."""
    infos = [info for info in infos if not info.paused]
    delayed = sum(info.counts.delayed for info in infos)
    if not delayed or any(info.counts.waiting + info.counts.active for info in infos):
        return None
    firsts = [job for info in infos for job in backend.list_jobs(info.name, State.DELAYED, limit=1).jobs]
    due = [job.run_at for job in firsts if job.run_at is not None]
    if not due:  # they became due just now
        return None
    return f"waiting for {many(delayed, 'delayed job', capped=True)}; the first is due {instant(min(due))}"
