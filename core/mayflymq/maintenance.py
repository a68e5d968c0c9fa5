"""Maintenance: the sweep that recovers jobs whose worker vanished, and the promotion of delayed jobs.

Both are loops over queues, bounded by a time budget. An error in one queue is logged and counted, and the
next queue goes on (promise C8). Several may run at once (promises C9, P2).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from .backends.base import Backend
from .model import Recovery
from .queue import Queue

log = logging.getLogger("mayflymq")

MARGIN_MS = 1_000
"""What is left of the time when no other call is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did. `queues` counts those looked at, the others count jobs, `cascaded` the long endings
    that went on (promise G3), `errors` the queues where a call failed. `complete`: no queue has more to do
    for now."""

    queues: int = 0
    released: int = 0
    failed: int = 0
    cancelled: int = 0
    cascaded: int = 0
    unreadable: int = 0
    errors: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, int | bool]:
        """The report as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteReport:
    """What a promotion did: as in `SweepReport`, `promoted` counts jobs."""

    queues: int = 0
    promoted: int = 0
    errors: int = 0
    complete: bool = True

    def as_dict(self) -> dict[str, int | bool]:
        """The report as plain data."""
        return asdict(self)


def sweep(
    backend: Backend,
    queues: Sequence[str] | None = None,
    *,
    limit: int = 100,
    max_stalls: int = 3,
    remaining_ms: Callable[[], int] | None = None,
    margin_ms: int = MARGIN_MS,
) -> SweepReport:
    """Recovers the stale jobs of these queues (None: of all), `limit` in each call to the store, until none
    is left or `remaining_ms()` leaves no more than the margin. A job that stalled more than `max_stalls`
    times fails (C14).

    Raises the store's error only when it cannot say which queues there are.
    """
    counts: Counter[Recovery] = Counter()

    def sweep_once(queue: Queue, seen: set[str]) -> bool:
        found = queue.release_stale(limit, max_stalls)
        bad = {one.job_id for one in found if one.status is Recovery.UNREADABLE}
        counts.update(one.status for one in found if one.status is not Recovery.UNREADABLE)
        counts[Recovery.UNREADABLE] += len(bad - seen)
        # A record moved behind comes round again once all others were handled.
        news = len(bad - seen) + len(found) - len(bad)
        seen |= bad
        return len(found) >= limit and news > 0

    done = _each_queue(backend, queues, sweep_once, remaining_ms, margin_ms)
    return SweepReport(
        released=counts[Recovery.RELEASED],
        failed=counts[Recovery.FAILED],
        cancelled=counts[Recovery.CANCELLED],
        cascaded=counts[Recovery.CASCADED],
        unreadable=counts[Recovery.UNREADABLE],
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
    """Moves the due delayed jobs of these queues (None: of all) to waiting, as `sweep` goes through them."""
    promoted = 0

    def promote_once(queue: Queue, _seen: set[str]) -> bool:
        nonlocal promoted
        ids = queue.promote_due(limit)
        promoted += len(ids)
        return len(ids) >= limit

    done = _each_queue(backend, queues, promote_once, remaining_ms, margin_ms)
    return PromoteReport(queues=done.queues, promoted=promoted, errors=done.errors, complete=done.complete)


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
    """Calls `once` for each queue while it answers that there may be more, and while there is time. Its set
    is what it wants to remember about the queue."""
    done = _Done()

    def in_time() -> bool:
        return remaining_ms is None or remaining_ms() > margin_ms

    for name in [info.name for info in backend.queues()] if names is None else dict.fromkeys(names):
        if not in_time():
            done.complete = False
            break
        done.queues += 1
        seen: set[str] = set()
        try:
            queue = Queue(name, backend)
            while once(queue, seen):
                if not in_time():
                    done.complete = False
                    break
        except Exception:
            log.exception("maintenance of a queue failed; the next queue goes on", extra={"queue": name})
            done.errors += 1
            done.complete = False
    return done
