"""The commands about jobs: `enqueue`, the group `jobs`, and the dead-letter queue in the group `dlq`."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .. import codec
from ..errors import CorruptRecord
from ..model import (
    DEAD_LETTER,
    CancelStatus,
    Dedup,
    EnqueueStatus,
    Job,
    JobError,
    JobPage,
    Retried,
    RetryStatus,
    State,
)
from ..queue import Queue
from ..tasks import registry
from .options import (
    PAGE,
    Arguments,
    AsJson,
    Keywords,
    MaxRetries,
    Meta,
    Priority,
    QueueName,
    TaskName,
    Tasks,
    Timeout,
    TimeToLive,
    check_queues,
    duration,
    flag,
    opened_queue,
    own_queue_note,
    pairs,
    read_job,
    read_settings,
    whole,
)
from .output import (
    DONE,
    NOT_DONE,
    age,
    bare_table,
    clean_text,
    complain,
    instant,
    now,
    progress,
    say,
    say_json,
    stdout,
    tell,
    tell_counts,
)

# As long as an id that is made here.
ID_WIDTH = 36

JobIds = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of jobs.")]


def enqueue(
    context: typer.Context,
    queue: QueueName,
    task: TaskName,
    args: Arguments = None,
    kw: Keywords = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The job's id. (default: a new one)")] = None,
    priority: Priority = None,
    delay: Annotated[
        float | None, duration("Not before this long from now: 90 or 90s, 5m, 24h, 14d.")
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Not before this time: ISO 8601 with a zone, 2030-01-31T08:00+01:00."
        ),
    ] = None,
    ttl: TimeToLive = None,
    timeout: Timeout = None,
    max_retries: MaxRetries = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Not before this job has completed; repeat for more."),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(metavar="KEY", help="Not while another job with this key has not ended.")
    ] = None,
    meta: Meta = None,
    tasks: Tasks = None,
    as_json: AsJson = False,
) -> int:
    """Put one job into a queue.

    An id that exists already changes nothing and is no error; nor does a
    --dedup key that another job holds.

    With --tasks, the task has to be defined there: it gives the job its
    settings, and its signature is checked against the arguments.
    """
    settings, positional, keywords = read_job(context, task, args, kw, tasks)
    with opened_queue(settings, queue) as q:
        answer = q.enqueue(
            task,
            positional,
            keywords,
            job_id=job_id,
            priority=priority,
            delay=delay,
            run_at=None if run_at is None else _time(run_at),
            ttl=ttl,
            timeout=timeout,
            max_retries=max_retries,
            depends_on=depends_on or (),
            dedup=None if dedup is None else Dedup(dedup),
            meta=pairs("--meta", meta),
        )
    told = {"queue": queue, "id": answer.job_id, "status": answer.status, "state": answer.state}
    if answer.status is EnqueueStatus.DUPLICATE_ID:
        text = f"{answer.job_id} exists in {queue} already ({answer.state}): nothing changed"
    elif answer.status is EnqueueStatus.DEDUPLICATED:
        told["holder"] = answer.holder
        text = f"{answer.holder} holds the key {dedup} in {queue} ({answer.state}): nothing changed"
    else:
        text = f"{answer.job_id} enqueued in {queue} ({answer.state})"
        if task not in registry:
            text += " (the task is not known here: not checked, with default settings; --tasks MODULE)"
        own_queue_note(task, queue)
    tell(as_json, told, text)
    return DONE


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


# Looking at jobs


def list_jobs(
    context: typer.Context,
    queue: QueueName,
    state: Annotated[
        list[State] | None, typer.Option("--state", "-s", help="Only this state; repeat for more.")
    ] = None,
    limit: Annotated[int, whole("At most this many jobs a state.", at_least=1)] = 100,
    as_json: AsJson = False,
) -> int:
    """List jobs by state, each state in its own order. Arguments and results are in `jobs show`.

    `age` is the time since a job was made.
    """
    table = _job_table("age")
    at = now()
    empty = True
    with opened_queue(read_settings(context), queue) as q:
        for each in state or list(State):
            for job in _jobs(functools.partial(q.jobs, each), limit):
                empty = False
                if as_json:
                    say_json(_summary(job))
                else:
                    table.add_row(*_row(job, max(0, at - job.created_at)))
        if empty:
            check_queues(q.backend, [queue])
    if not as_json:
        stdout().print(table)
    return DONE


def show_job(
    context: typer.Context,
    queue: QueueName,
    job_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: AsJson = False,
) -> int:
    """Show all there is about one job: arguments, counters, claim, result, errors with traceback."""
    with opened_queue(read_settings(context), queue) as q:
        job = q.get(job_id)
        if job is None:
            check_queues(q.backend, [queue])
    if job is None:
        return complain(f"no job {job_id} in {queue}; `mayflymq jobs list {queue}` shows which there are")
    details = _summary(job) | _details(job)
    if as_json:
        say_json(details)
        return DONE
    for name, value in details.items():
        if isinstance(value, dict) and name.endswith("error"):
            say(f"{name + ':':<17} {_shown_error(value['type'], value['message'])}")
            say("".join(f"    {line}\n" for line in value["traceback"].splitlines()).rstrip(), lines=True)
        elif value is not None:
            say(f"{name + ':':<17} {value if isinstance(value, str) else json.dumps(value)}")
    return DONE


def _jobs(page_of: Callable[[str | None, int], JobPage], limit: int = sys.maxsize) -> Iterator[Job]:
    """The jobs of all pages, up to a limit; `page_of` takes a cursor and a limit."""
    cursor: str | None = None
    while limit > 0:
        page = page_of(cursor, min(limit, PAGE))
        yield from page.jobs
        limit -= len(page.jobs)
        cursor = page.cursor
        if cursor is None:
            return


def _job_table(age: str) -> Table:
    """A table of jobs, a line each: id and state are whole at 80 columns, for whoever copies them from there.
    What `_cropped` made gives way."""
    table = bare_table(padding=(0, 1, 0, 0))
    for name in ("id", "state", age, "deliveries", "task", "error"):
        table.add_column(name, no_wrap=name not in ("task", "error"))
    return table


def _row(job: Job, age_ms: int | None) -> tuple[str | Text, ...]:
    error = "" if job.error is None else clean_text(_shown_error(job.error.type, job.error.message))[:100]
    job_id = clean_text(job.id)
    if sys.stdout.isatty():  # a longer one would push the other columns out
        job_id = "\n".join(job_id[start : start + ID_WIDTH] for start in range(0, len(job_id), ID_WIDTH))
    return (
        job_id,
        job.state,
        age(age_ms),
        str(job.deliveries),
        _cropped(job.task),
        _cropped(error),
    )


def _shown_error(kind: str, message: str) -> str:
    return f"{kind}: {message}" if message else kind


def _cropped(text: str) -> Text:
    return Text(clean_text(text), no_wrap=True, overflow="ellipsis")


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
        "created_at": instant(job.created_at),
        "run_at": instant(job.run_at),
        "finished_at": instant(job.finished_at),
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
        "claimed_at": instant(job.claimed_at),
        "heartbeat_at": instant(job.heartbeat_at),
        "stale_at": instant(job.stale_at),
        "retried_at": instant(job.retried_at),
        "first_error": None if job.first_error == job.error else _error(job.first_error),
    }


def _error(error: JobError | None) -> dict[str, str] | None:
    return None if error is None else asdict(error)


# Steering jobs

# What came of one job: whether it was done, and how that is said in JSON and in words.
Outcome = tuple[bool, dict[str, Any], str]


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

    def cancel(q: Queue, job_id: str) -> Outcome:
        status = q.cancel(job_id).status
        done = status in (CancelStatus.CANCELLED, CancelStatus.REQUESTED)
        return done, {"status": status}, says[status]

    return _each(context, queue, ids, as_json, cancel)


def remove_jobs(context: typer.Context, queue: QueueName, ids: JobIds, as_json: AsJson = False) -> int:
    """Remove jobs in any state with all that belongs to them.

    Exits 1 when one of them is unknown.
    """

    def remove(q: Queue, job_id: str) -> Outcome:
        found = q.remove(job_id).found
        return found, {"removed": found}, "removed" if found else "is unknown: nothing changed"

    return _each(context, queue, ids, as_json, remove)


def retry_jobs(context: typer.Context, queue: QueueName, ids: JobIds, as_json: AsJson = False) -> int:
    """Send failed and expired jobs back to waiting, with failures and stalls counted anew.

    A job that did its work before it failed does it again.

    Exits 1 when one of them was not retried.
    """

    def retry(q: Queue, job_id: str) -> Outcome:
        answer = q.retry(job_id)
        return answer.status is RetryStatus.RETRIED, asdict(answer), _retried(answer)

    return _each(context, queue, ids, as_json, retry)


def _each(
    context: typer.Context,
    queue: str,
    ids: list[str],
    as_json: bool,
    steer: Callable[[Queue, str], Outcome],
) -> int:
    """Steers one job after the other, then says what came of each."""
    with opened_queue(read_settings(context), queue) as q:
        outcomes = [steer(q, job_id) for job_id in ids]
    for job_id, (_, value, text) in zip(ids, outcomes, strict=True):
        tell(as_json, {"id": job_id, **value}, f"{job_id} {text}")
    return DONE if all(done for done, _, _ in outcomes) else NOT_DONE


def _retried(answer: Retried) -> str:
    return {
        RetryStatus.RETRIED: f"is {answer.state} again",
        RetryStatus.NOT_DEAD: f"is {answer.state}, neither failed nor expired: nothing changed",
        RetryStatus.KEY_TAKEN: f"stays {answer.state}: {answer.holder} holds its deduplication key now",
        RetryStatus.UNKNOWN: "is unknown: nothing changed",
    }[answer.status]


# The dead-letter queue


def list_dead_letters(
    context: typer.Context,
    queue: QueueName,
    limit: Annotated[int, whole("At most this many jobs.", at_least=1)] = 100,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where an earlier list ended.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the failed jobs, then the expired ones, each from the one that ended first.

    `ended` is how long ago that was.

    When there are more, a line on stderr has the cursor to go on from.
    """
    table = _job_table("ended")
    at = now()
    after = cursor
    with opened_queue(read_settings(context), queue) as q:
        while limit > 0:
            page = _dead_letters(q, after, min(limit, PAGE))
            if not page.jobs:
                check_queues(q.backend, [queue])
            for job in page.jobs:
                age_ms = None if job.finished_at is None else max(0, at - job.finished_at)
                if as_json:
                    say_json(_summary(job) | {"age_ms": age_ms})
                else:
                    table.add_row(*_row(job, age_ms))
            limit -= len(page.jobs)
            after = page.cursor
            if after is None:
                break
    if not as_json:
        stdout().print(table)
    if after is not None:
        typer.echo(f"mayflymq: there are more: --cursor {after}", err=True)
    return DONE


def replay_dead_letters(
    context: typer.Context,
    queue: QueueName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs.")] = None,
    everything: Annotated[bool, flag("--all", help="All that are dead when it begins.")] = False,
    as_json: AsJson = False,
) -> int:
    """Retry dead jobs, in steps of at most 1,000, and say how many.

    A job that did its work before it failed does it again. Several replays may
    run at once: what another one replayed counts as not dead, and is no error.

    Exits 1 when an id is unknown, or a job stays because its deduplication key
    is held by another job.
    """
    if bool(ids) is everything:
        raise typer.BadParameter("give the ids to replay, or --all" + (", not both" if everything else ""))
    counts = Counter(dict.fromkeys(map(str, RetryStatus), 0))
    undone: list[dict[str, Any]] = []
    with opened_queue(read_settings(context), queue) as q:
        # All ids first: what fails again while this runs must not come round for ever.
        dead = (job.id for job in _jobs(functools.partial(_dead_letters, q)))
        chosen = list(dict.fromkeys(dead if everything else ids or ()))
        if not chosen:
            check_queues(q.backend, [queue])
        with progress("replaying", len(chosen)) as advance:
            for start in range(0, len(chosen), PAGE):
                part = chosen[start : start + PAGE]
                answers = q.backend.retry(q.name, part)
                for job_id, answer in zip(part, answers, strict=True):
                    counts[str(answer.status)] += 1
                    if answer.status in (RetryStatus.KEY_TAKEN, RetryStatus.UNKNOWN):
                        undone.append({"id": job_id, **asdict(answer)})
                        if not as_json:
                            say(f"{job_id} {_retried(answer)}")
                if any(answer.status is RetryStatus.RETRIED for answer in answers):
                    q.ring()
                advance(len(part))
    if as_json:
        say_json({**counts, "not_retried": undone})
    else:
        tell_counts(as_json, counts)
    return NOT_DONE if undone else DONE


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
