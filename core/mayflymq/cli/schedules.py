"""The commands of the group `schedules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from .. import codec, schedules
from ..model import MAX_TIME, CatchUp, Schedule
from ..queue import Queue
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
    opened_queue,
    own_queue_note,
    pairs,
    read_job,
    read_settings,
)
from .output import DONE, clean_text, complain, instant, now, say, say_json, stdout, table, tell

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.")]


def list_schedules(context: typer.Context, queue: QueueName, as_json: AsJson = False) -> int:
    """List a queue's schedules. The arguments are in --json only.

    The first promotion after a schedule was put plans its `next`.
    """
    rows = table("id", "task", "when", "catch up", "next", "last")
    after: str | None = None
    with opened_queue(read_settings(context), queue) as q:
        while page := q.schedules(after, PAGE):
            for stored in page:
                made = stored.schedule
                if as_json:
                    slots = {"next_slot": instant(stored.next_slot), "last_slot": instant(stored.last_slot)}
                    say_json(_as_json(made) | {"paused": stored.paused} | slots)
                    continue
                coming = "paused" if stored.paused else instant(stored.next_slot) or "not planned yet"
                rows.add_row(
                    *(clean_text(text) for text in (made.id, made.task, _when(made), made.catch_up)),
                    coming,
                    instant(stored.last_slot) or "",
                )
            after = page[-1].schedule.id
        if after is None:
            check_queues(q.backend, [queue])
    if not as_json:
        stdout().print(rows)
    return DONE


def put_schedule(
    context: typer.Context,
    queue: QueueName,
    schedule_id: ScheduleId,
    task: TaskName,
    args: Arguments = None,
    kw: Keywords = None,
    every: Annotated[float | None, duration("A job each 60s, 5m, 24h.")] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Minute, hour, day, month, weekday: '0 8 * * 1-5'."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="NAME", help="What --cron is read in: Europe/Zurich. (default: UTC)")
    ] = None,
    catch_up: Annotated[
        CatchUp, typer.Option("--catch-up", help="What to do about missed times: none, the latest, each.")
    ] = CatchUp.SKIP,
    priority: Priority = None,
    ttl: TimeToLive = None,
    timeout: Timeout = None,
    max_retries: MaxRetries = None,
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
    if every is not None and every * 1000 > MAX_TIME:
        raise typer.BadParameter(f"--every is too long: a period is at most {MAX_TIME // 86_400_000:,} days")
    if every is not None and cron is None and timezone is not None:
        raise typer.BadParameter("--timezone belongs to --cron: --every counts in UTC")
    settings, positional, keywords = read_job(context, task, args, kw, tasks)
    with opened_queue(settings, queue) as q:
        made = q.schedule(
            schedule_id,
            task,
            positional,
            keywords,
            every=every,
            cron=cron,
            timezone="UTC" if timezone is None else timezone,
            catch_up=catch_up,
            priority=priority,
            ttl=ttl,
            timeout=timeout,
            max_retries=max_retries,
            meta=pairs("--meta", meta),
        )
    own_queue_note(task, queue)
    following = instant(schedules.next_slot(made, now()))
    tell(
        as_json,
        _as_json(made) | {"next_slot": following},
        f"{schedule_id} makes a job of {task} in {queue} {_when(made)}; the next is due {following}",
    )
    return DONE


def remove_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Remove a schedule; the jobs that it made stay.

    Exits 1 when it is unknown.
    """
    return _steer(context, queue, schedule_id, Queue.unschedule, "is removed")


def pause_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Let a schedule make no jobs until it is resumed.

    Exits 1 when it is unknown.
    """
    return _steer(context, queue, schedule_id, Queue.pause_schedule, "is paused")


def resume_schedule(context: typer.Context, queue: QueueName, schedule_id: ScheduleId) -> int:
    """Let a paused schedule make jobs again; what the pause left out is not made up for.

    Exits 1 when it is unknown.
    """
    return _steer(context, queue, schedule_id, Queue.resume_schedule, "makes jobs")


def _steer(
    context: typer.Context, queue: str, schedule_id: str, call: Callable[[Queue, str], bool], done: str
) -> int:
    with opened_queue(read_settings(context), queue) as q:
        found = call(q, schedule_id)
    if not found:
        return complain(f"no schedule {schedule_id} in {queue}")
    say(f"{schedule_id} of {queue} {done}")
    return DONE


def _when(made: Schedule) -> str:
    if made.every_ms is not None:
        return f"every {made.every_ms // 1000} s"
    return f"at {made.cron} ({made.timezone})"


def _as_json(made: Schedule) -> dict[str, Any]:
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
