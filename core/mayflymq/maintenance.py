"""Maintenance: the sweep that recovers jobs whose worker vanished and removes those past their retention, and
the promotion of delayed jobs and of schedules.

Both are loops over queues, bounded by a time budget, and each begins at a queue by chance: where the time is
too short for all of them, none is always the one left out. An error in one queue is logged and counted, and
the next queue goes on (promise C8). Several may run at once (promises C9, P2, G6).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from . import schedules
from .backends.base import Backend
from .errors import ConfigurationError, InvalidJob
from .model import (
    MAX_BATCH,
    MAX_TIME,
    EnqueueStatus,
    QueueInfo,
    Recovery,
    State,
    StoredSchedule,
    check_int,
)
from .queue import Queue, check_backend

log = logging.getLogger("mayflymq")

MARGIN_MS = 1_000
"""What is left of the time when no other call is begun."""
RETIRED_A_SWEEP = MAX_BATCH
"""How many jobs past their retention one sweep removes, for a queue and a kind of ending."""
SCHEDULES_A_CALL = 100
SLOTS_A_CALL = 100
"""How many missed slots of a schedule that catches up are fired in one step."""
PUT_OFF_MS = 60_000
"""For how long a schedule that cannot be planned is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did. `queues` counts those looked at, the others count jobs, `cascaded` the long endings
    that went on (promise G3), `errors` the queues where a call failed. `complete`: no queue has more to do
    for now. `cleaned` counts jobs past their retention."""

    queues: int = 0
    released: int = 0
    failed: int = 0
    cancelled: int = 0
    cascaded: int = 0
    unreadable: int = 0
    cleaned: int = 0
    errors: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, int | bool]:
        """The report as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteReport:
    """What a promotion did: as in `SweepReport`, `promoted` counts jobs, `fired` the jobs that schedules
    made."""

    queues: int = 0
    promoted: int = 0
    fired: int = 0
    errors: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, int | bool]:
        """The report as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long jobs that have ended stay inspectable, in milliseconds; 0 keeps them for ever (promise A5)."""

    completed_ms: int = 24 * 3600 * 1000
    """Of completed and cancelled jobs."""
    failed_ms: int = 14 * 24 * 3600 * 1000
    """Of failed and expired jobs: the dead-letter queue."""

    def __post_init__(self) -> None:
        _check(completed_ms=(self.completed_ms, 0, MAX_TIME), failed_ms=(self.failed_ms, 0, MAX_TIME))


def _check(**settings: tuple[object, int, int]) -> None:
    try:
        for what, (value, low, high) in settings.items():
            check_int(what, value, low, high)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from error


def sweep(
    backend: Backend,
    queues: Sequence[str] | None = None,
    *,
    limit: int = 100,
    max_stalls: int = 3,
    retention: Retention = Retention(),
    remaining_ms: Callable[[], int] | None = None,
    margin_ms: int = MARGIN_MS,
) -> SweepReport:
    """Recovers the stale jobs of these queues (None: of all), `limit` in each call to the store, until none
    is left or `remaining_ms()` leaves no more than the margin. A job that stalled more than `max_stalls`
    times fails (C14). Then removes the jobs that are past their retention, at most 1,000 a queue and kind
    (A6).

    Raises the store's error only when it cannot say which queues there are, ConfigurationError for settings
    that cannot work.
    """
    _check(limit=(limit, 1, MAX_BATCH), max_stalls=(max_stalls, 0, MAX_TIME))
    counts: Counter[Recovery] = Counter()
    cleaned = 0

    def retire(queue: Queue) -> None:
        nonlocal cleaned
        for states, age_ms in (
            ((State.COMPLETED, State.CANCELLED), retention.completed_ms),
            ((State.FAILED, State.EXPIRED), retention.failed_ms),
        ):
            if age_ms:
                cleaned += len(queue.clean(states, timedelta(milliseconds=age_ms), RETIRED_A_SWEEP))

    def sweep_once(queue: Queue, seen: set[str]) -> bool:
        found = queue.release_stale(limit, max_stalls)
        bad = {one.job_id for one in found if one.status is Recovery.UNREADABLE}
        counts.update(one.status for one in found if one.status is not Recovery.UNREADABLE)
        counts[Recovery.UNREADABLE] += len(bad - seen)
        # A record moved behind comes round again once all others were handled.
        news = len(bad - seen) + len(found) - len(bad)
        seen |= bad
        if len(found) >= limit and news > 0:
            return True
        retire(queue)
        return False

    done = _each_queue(backend, queues, sweep_once, remaining_ms, margin_ms)
    return SweepReport(
        released=counts[Recovery.RELEASED],
        failed=counts[Recovery.FAILED],
        cancelled=counts[Recovery.CANCELLED],
        cascaded=counts[Recovery.CASCADED],
        unreadable=counts[Recovery.UNREADABLE],
        cleaned=cleaned,
        queues=done.queues,
        errors=done.errors,
        complete=done.complete,
    )


def promote(
    backend: Backend,
    queues: Sequence[str] | None = None,
    *,
    limit: int = 1000,
    remaining_ms: Callable[[], int] | None = None,
    margin_ms: int = MARGIN_MS,
) -> PromoteReport:
    """Moves the due delayed jobs of these queues (None: of all) to waiting and makes the jobs of due
    schedules, going through the queues as `sweep` does."""
    _check(limit=(limit, 1, MAX_BATCH))
    promoted = fired = broken = 0

    def promote_once(queue: Queue, _seen: set[str]) -> bool:
        nonlocal promoted, fired, broken
        ids = queue.promote_due(limit)
        promoted += len(ids)
        due, made, failed = fire_schedules(queue)
        fired += made
        broken += failed
        return len(ids) >= limit or due >= SCHEDULES_A_CALL or made >= SLOTS_A_CALL

    done = _each_queue(backend, queues, promote_once, remaining_ms, margin_ms)
    return PromoteReport(
        queues=done.queues,
        promoted=promoted,
        fired=fired,
        errors=done.errors + broken,
        complete=done.complete,
    )


def fire_schedules(queue: Queue) -> tuple[int, int, int]:
    """Makes the jobs of the queue's due schedules; returns how many schedules were due, jobs were made, and
    schedules failed.

    The jobs of a slot come first, under ids that name the slot, then the schedule moves on if it still stands
    there: whoever comes second, or again after a crash in between, makes nothing new (promise G6).
    """
    store = queue.backend
    if not store.capabilities.schedules:
        return 0, 0, 0
    due = store.due_schedules(queue.name, SCHEDULES_A_CALL)
    made = failed = 0
    for stored in due.schedules:
        try:
            plan = schedules.plan(stored, due.now, SLOTS_A_CALL)
            answers = queue.enqueue_jobs([stored.schedule.job(slot) for slot in plan.fire])
            made += sum(answer.status is EnqueueStatus.CREATED for answer in answers)
            _advance(store, stored, plan.next_slot, plan.last_slot)
        except InvalidJob as error:
            # Put off, so that it hides no other. Its next slot is looked for again from there.
            log.error("a schedule cannot be planned: %s", error, extra={"queue": queue.name})
            failed += 1
            _advance(store, stored, due.now + PUT_OFF_MS, None)
    return len(due.schedules), made, failed


def _advance(store: Backend, stored: StoredSchedule, next_slot: int, last_slot: int | None) -> None:
    schedule = stored.schedule
    store.advance_schedule(
        schedule.queue, schedule.id, stored.revision, stored.next_slot, next_slot, last_slot
    )


@dataclass(slots=True)
class _Done:
    queues: int = 0
    errors: int = 0
    complete: bool = True


def _each_queue(
    backend: Backend,
    names: Sequence[str] | None,
    once: Callable[[Queue, set[str]], bool],
    remaining_ms: Callable[[], int] | None,
    margin_ms: int,
) -> _Done:
    """Rings for each queue that has jobs waiting, so that schedules alone finish all work, and calls `once`
    for it. Where that answers that there may be more it is called again when every other queue has had its
    turn, while there is time: one queue without an end holds up no other. Its set is what it wants to
    remember about the queue."""
    done = _Done()

    def in_time() -> bool:
        return remaining_ms is None or remaining_ms() > margin_ms

    check_backend(backend)
    names = [names] if isinstance(names, str) else names
    infos = {info.name: info for info in backend.queues()} if names is None else dict.fromkeys(names)
    turns: deque[tuple[str, set[str] | None]] = deque((name, None) for name in infos)
    turns.rotate(_chance())
    while turns:
        if not in_time():
            done.complete = False
            break
        name, seen = turns.popleft()
        done.queues += seen is None
        try:
            queue = Queue(name, backend)
            if seen is None:
                seen = set()
                _ring_if_waiting(queue, infos[name])
            if once(queue, seen):
                turns.append((name, seen))
        except Exception:
            log.exception("maintenance of a queue failed; the next queue goes on", extra={"queue": name})
            done.errors += 1
            done.complete = False
    return done


def _chance() -> int:
    """Any number. No process lives to remember where the last one stopped, and one resumed from a snapshot
    would repeat its own randomness, so it is the system's."""
    return int.from_bytes(os.urandom(3))


def _ring_if_waiting(queue: Queue, info: QueueInfo | None) -> None:
    """Makes up for rings that were lost."""
    if not queue.has_doorbell:
        return
    info = info or queue.info()
    if info.counts.waiting and not info.paused:
        queue.ring()
