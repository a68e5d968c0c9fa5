"""What happened to jobs, told to whoever listens in this process (promise G5).

The facade in `queue.py` emits the events, so they are the same whatever the backend. An event says that the
store has made the change; it may come twice (when an answer was lost and the call was sent again) and, when
the process dies in between, not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConfigurationError
from .model import JobError, State, shown

log = logging.getLogger("mayflymq")

ENQUEUED = "job:enqueued"
STARTED = "job:started"
COMPLETED = "job:completed"
RETRYING = "job:retrying"
DEFERRED = "job:deferred"
FAILED = "job:failed"
EXPIRED = "job:expired"
CANCELLED = "job:cancelled"
STALLED = "job:stalled"
PROMOTED = "job:promoted"
NAMES = (ENQUEUED, STARTED, COMPLETED, RETRYING, DEFERRED, FAILED, EXPIRED, CANCELLED, STALLED, PROMOTED)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one job.

    `task` and `state` are None where the call that made the change does not tell them. `error` is why it
    failed or is retried. `exhausted` is True on a job:failed that came from the handler itself: no retry is
    left, or none is wanted; False where its workers or its parents are to blame. `detail` is for people.
    """

    name: str
    queue: str
    job_id: str
    task: str | None = None
    state: State | None = None
    error: JobError | None = None
    detail: str | None = None
    exhausted: bool = False


Listener = Callable[[Event], object]

_listeners: list[tuple[Listener, frozenset[str]]] = []


def listen(listener: Listener, *names: str) -> Callable[[], None]:
    """Calls `listener` with every event of these names (all, when none is given), in the thread that made the
    change.

    Returns a function that takes the listener away again. Raises ConfigurationError for a name that no event
    has, and for a listener that cannot be called.
    """
    if not callable(listener):
        raise ConfigurationError(f"a listener is a function of one event, not {shown(listener)}")
    for name in names:
        if name not in NAMES:
            raise ConfigurationError(f"{name!r} is no event; the events are {', '.join(NAMES)}")
    entry = (listener, frozenset(names or NAMES))
    _listeners.append(entry)

    def remove() -> None:
        _listeners[:] = [other for other in _listeners if other is not entry]

    return remove


def heard() -> bool:
    """Whether anybody listens, so that there is an event to make."""
    return bool(_listeners)


def emit(event: Event) -> None:
    """Hands the event to its listeners. One that raises is logged and changes nothing (G5)."""
    for listener, names in tuple(_listeners):
        if event.name in names:
            try:
                listener(event)
            except Exception:
                log.exception(
                    "a listener raised",
                    extra={"event": event.name, "queue": event.queue, "job_id": event.job_id},
                )
