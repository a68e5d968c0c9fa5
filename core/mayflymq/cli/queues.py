"""The commands about whole queues, and about the store that they are in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from ..model import QueueInfo, Severity, State
from .options import (
    PAGE,
    AsJson,
    QueueName,
    check_queues,
    duration,
    flag,
    make_sure,
    ms,
    opened,
    opened_queue,
    read_settings,
    whole,
)
from .output import (
    DONE,
    NOT_DONE,
    age,
    clean_text,
    complain,
    many,
    progress,
    say,
    say_json,
    stdout,
    table,
    tell,
)

Yes = Annotated[bool, flag("--yes", "-y", help="Do not ask; needed where nobody can be asked.")]


class Ended(StrEnum):
    """The states of a job that has ended."""

    COMPLETED = State.COMPLETED.value
    FAILED = State.FAILED.value
    EXPIRED = State.EXPIRED.value
    CANCELLED = State.CANCELLED.value


def show_queues(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="(default: all)")] = None,
    exact: Annotated[bool, flag("--exact", help="Count past 10,000 jobs a state.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show each queue: jobs by state, dead-letter queue (DLQ), and the workers that hold claims.

    A count stops at 10,000 unless --exact is given.
    """
    with opened(read_settings(context)) as backend, progress("counting"):
        check_queues(backend, names)
        infos = backend.queues(names or None, exact=exact)
    if as_json:
        for info in infos:
            say_json(asdict(info))
        return DONE
    stdout().print(queue_table(infos))
    holders = [(info.name, worker) for info in infos for worker in info.workers]
    if holders:
        workers = table("\nworker", "\nqueue", "\nclaims", "\nlast heartbeat", numbers_from=2)
        for name, holder in holders:
            workers.add_row(
                clean_text(holder.worker), clean_text(name), str(holder.claims), age(holder.heartbeat_age_ms)
            )
        stdout().print(workers)
    return DONE


def queue_table(infos: Sequence[QueueInfo]) -> Table:
    """The queues, a line each, with their jobs by state."""
    states = ("waiting", "delayed", "blocked", "active", "completed", "cancelled")
    made = table("queue", *states, "DLQ", "oldest wait", numbers_from=1, padding=(0, 1, 0, 0))
    for info in infos:
        counts = asdict(info.counts)
        made.add_row(
            clean_text(info.name) + (" (paused)" if info.paused else ""),
            *(f"{counts[state]:,}" for state in states),
            f"{info.dead_letters:,}",
            age(info.oldest_waiting_age_ms),
        )
    return made


def pause(
    context: typer.Context,
    queue: QueueName,
    new: Annotated[bool, flag("--new", help="Also a queue that is not there yet.")] = False,
) -> int:
    """Let a queue give out no more jobs, to any worker; running jobs finish."""
    with opened_queue(read_settings(context), queue) as q:
        if not new:
            check_queues(q.backend, [queue])
        q.pause()
    say(f"{queue} is paused; `mayflymq resume {queue}` ends that")
    return DONE


def resume(context: typer.Context, queue: QueueName) -> int:
    """Let a paused queue give out jobs again."""
    with opened_queue(read_settings(context), queue) as q:
        check_queues(q.backend, [queue])
        q.resume()
    say(f"{queue} gives out jobs")
    return DONE


# Removing


def drain(
    context: typer.Context,
    queue: QueueName,
    include_delayed: Annotated[
        bool, flag("--include-delayed", help="Also the delayed jobs, retries among them.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove the jobs that wait in a queue; running jobs go on.

    What depends on a removed job fails or runs, as it was enqueued to. With
    --json each removed job's id is one line.
    """
    with opened_queue(read_settings(context), queue) as q:
        check_queues(q.backend, [q.name])
        counts = q.info().counts
        what = many(counts.waiting, "waiting job", capped=True)
        if include_delayed:
            what += f" and {many(counts.delayed, 'delayed job', capped=True)}"
        if not yes and not counts.waiting and not (include_delayed and counts.delayed):
            if not as_json:
                say(f"no job of {queue} is waiting{' or delayed' * include_delayed}: nothing to remove")
            return DONE
        make_sure(f"Remove {what} from {queue}?", yes)

        def step(removed: int) -> tuple[Collection[str], bool]:
            answer = q.drain(include_delayed=include_delayed, limit=PAGE)
            # A child that a removed parent let go of may wait now.
            return answer.job_ids, len(answer.job_ids) == PAGE or bool(answer.dependants)

        expected = counts.waiting + include_delayed * counts.delayed
        return _remove(queue, step, "draining", expected, as_json)


def clean(
    context: typer.Context,
    queue: QueueName,
    state: Annotated[list[Ended], typer.Option("--state", "-s", help="Jobs that ended so; repeat for more.")],
    older_than: Annotated[float, duration("That ended at least this long ago: 90 or 90s, 5m, 24h, 14d.")],
    limit: Annotated[
        int | None, whole("At most this many, the oldest first. (default: all)", at_least=1)
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove jobs that have ended, by state and age.

    With --json each removed job's id is one line.
    """
    states = [State(each) for each in dict.fromkeys(state)]
    with opened_queue(read_settings(context), queue) as q:
        check_queues(q.backend, [queue])
        which = f"{' and '.join(states)} jobs of {queue}"
        make_sure(f"Remove the {which} that ended at least {age(ms(older_than))} ago?", yes)

        def step(removed: int) -> tuple[Collection[str], bool]:
            most = PAGE if limit is None else min(PAGE, limit - removed)
            ids = q.clean(states, older_than, most)
            return ids, len(ids) == most and removed + most != limit

        return _remove(queue, step, "cleaning", limit, as_json)


def _remove(
    queue: str,
    step: Callable[[int], tuple[Collection[str], bool]],
    label: str,
    expected: int | None,
    as_json: bool,
) -> int:
    """Takes step after step while there are more, and says what was removed: each gets how many jobs are
    removed by now, and returns the ids that it removed and whether there may be more."""
    removed, more = 0, True
    with progress(label, expected) as advance:
        while more:
            ids, more = step(removed)
            if as_json:
                for job_id in ids:
                    say_json({"id": job_id, "removed": True})
            removed += len(ids)
            advance(len(ids))
    if not as_json:
        say(f"{many(removed, 'job')} removed from {queue}")
    return DONE


def obliterate(
    context: typer.Context,
    queue: QueueName,
    force: Annotated[
        bool, flag("--force", help="Also while jobs run; what their workers still record is lost.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Remove a queue whole: its jobs, keys, pause and schedules.

    Exits 1 when there is no such queue, and, without --force, while jobs run.
    """
    with opened_queue(read_settings(context), queue) as q:
        held = many(sum(asdict(q.info().counts).values()), "job", capped=True)
        make_sure(f"Remove the queue {queue} with {held} and its schedules?", yes)
        with progress("removing"):
            answer = q.drop(force=force)
    if as_json:
        say_json({"queue": queue, "dropped": answer.dropped, "active": answer.active})
    elif answer.dropped:
        say(f"{queue} is gone")
    elif answer.active:
        complain(f"{queue} stays: {many(answer.active, 'active job')} in the way (--force removes them too)")
    else:
        complain(f"there is no queue {queue}")
    return DONE if answer.dropped else NOT_DONE


# The store


def migrate(context: typer.Context, as_json: AsJson = False) -> int:
    """Bring the store's schema up to date, keeping all data; safe to run many times."""
    with opened(read_settings(context)) as backend, progress("migrating"):
        version = backend.migrate()
    tell(as_json, {"schema_version": version}, f"the schema is at version {version}")
    return DONE


def check(context: typer.Context, as_json: AsJson = False) -> int:
    """Look at the store's version, schema and settings, and show what it can do.

    Exits 1 on an ERROR finding.
    """
    with opened(read_settings(context)) as backend, progress("checking"):
        findings = backend.check()
        capabilities = asdict(backend.capabilities)
    if as_json:
        say_json({"findings": [asdict(finding) for finding in findings], "capabilities": capabilities})
    else:
        for finding in findings:
            say(f"{finding.severity.upper():<8} {finding.subject}: {finding.message}")
        able = table("capability", "")
        for name, value in capabilities.items():
            able.add_row(name.replace("_", " "), {True: "yes", False: "no"}.get(value, clean_text(value)))
        stdout().print(able)
    return NOT_DONE if any(finding.severity is Severity.ERROR for finding in findings) else DONE
