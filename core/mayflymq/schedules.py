"""When a schedule fires: slots as pure functions of a schedule and of times (promise G6).

Cron expressions are read and walked by cronsim, so that a change to or from daylight saving time is treated
as Debian's cron does. An expression that names its hours fires once a day: a slot in the hour that is left
out fires at the first minute after it, one in the hour that comes twice fires the first time. An expression
with `*` in its minutes or hours follows the clock's real run: nothing in the hour left out, each slot of the
repeated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from .errors import InvalidJob
from .model import MAX_TIME, CatchUp, Schedule, StoredSchedule, shown

MISSED_AFTER_MS = 5 * 60 * 1000
"""A slot is missed once it is older than this, or than its period where that is shorter."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a promoter does for one schedule: the slots to fire, then where the schedule moves on to."""

    fire: tuple[int, ...]
    next_slot: int
    last_slot: int | None


def check(schedule: Schedule) -> None:
    """Raises InvalidJob for an expression or a time zone that cannot be read, and for one that never
    fires."""
    _zone(schedule)
    if next_slot(schedule, 0) == MAX_TIME:
        raise InvalidJob(f"schedule {schedule.id}: {shown(schedule.cron)} never comes")


def next_slot(schedule: Schedule, after: int) -> int:
    """The first slot later than `after`; MAX_TIME when there is none."""
    if schedule.every_ms is not None:
        return min((after // schedule.every_ms + 1) * schedule.every_ms, MAX_TIME)
    return next((slot for slot in _walk(schedule, after) if slot > after), MAX_TIME)


def latest_slot(schedule: Schedule, first: int, now: int) -> int:
    """The last slot from `first`, which is one, to `now`."""
    if schedule.every_ms is not None:
        return now // schedule.every_ms * schedule.every_ms
    # Near the end of a long gap by the way back, then forward, which alone says what a slot is.
    back = _walk(schedule, now, reverse=True)
    start = max(first, min((slot for _, slot in zip(range(3), back, strict=False)), default=first) - 1000)
    latest = first
    for slot in _walk(schedule, start - 1):
        if slot > now:
            break
        latest = max(latest, slot)
    return latest


def plan(stored: StoredSchedule, now: int, limit: int) -> Plan:
    """What is to be done at `now` for a schedule that is due or not planned yet; at most `limit` slots fire.

    A missed slot follows the schedule's rule: SKIP fires none of them, ONE the latest, ALL each in turn.
    """
    schedule = stored.schedule
    if stored.next_slot is None:
        first = next_slot(schedule, max(stored.changed_at, stored.last_slot or 0))
    else:
        first = next_slot(schedule, stored.next_slot - 1)
    if first > now:
        return Plan((), first, None)
    if schedule.catch_up is CatchUp.ALL:
        fire = [first]
        while (following := next_slot(schedule, fire[-1])) <= now and len(fire) < limit:
            fire.append(following)
        return Plan(tuple(fire), following, fire[-1])
    latest = latest_slot(schedule, first, now)
    following = next_slot(schedule, latest)
    missed = now - latest > min(following - latest, MISSED_AFTER_MS)
    fired = () if missed and schedule.catch_up is CatchUp.SKIP else (latest,)
    return Plan(fired, following, latest)


def _walk(schedule: Schedule, start: int, *, reverse: bool = False) -> Iterator[int]:
    """The slots of a cron expression from `start` on. Around the end of daylight saving time one before
    `start` may come first."""
    from cronsim import CronSim, CronSimError

    assert schedule.cron is not None
    try:
        moment = (_EPOCH + timedelta(milliseconds=start)).astimezone(_zone(schedule))
        walk = CronSim(schedule.cron, moment, reverse=reverse)
    except CronSimError as error:
        if _days_come_in_no_month(schedule.cron):
            raise InvalidJob(f"schedule {schedule.id}: {shown(schedule.cron)} never comes") from error
        raise InvalidJob(
            f"schedule {schedule.id}: {shown(schedule.cron)} is no cron expression ({error}): write minute, "
            "hour, day of month, month, day of week"
        ) from error
    except OverflowError:
        return
    try:
        for slot in walk:
            yield (slot - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError:  # past the last year there is
        return


def _days_come_in_no_month(cron: str) -> bool:
    """Whether an expression was refused for days that none of its months has, as in `0 0 31 2 *`: it can be
    read with any month in their place."""
    from cronsim import CronSim, CronSimError

    fields = cron.split()
    try:
        CronSim(" ".join((*fields[:3], "*", *fields[4:])), _EPOCH)
        CronSim(" ".join(("*", "*", "*", *fields[3:])), _EPOCH)
    except CronSimError:
        return False
    return True


def _zone(schedule: Schedule) -> tzinfo:
    if schedule.timezone == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(schedule.timezone)
    except (OSError, ValueError, LookupError) as error:
        raise InvalidJob(
            f"schedule {schedule.id}: no time zone {shown(schedule.timezone)} here: use an IANA name such as "
            "Europe/Zurich (on a system without a time zone database install the package tzdata)"
        ) from error
