"""The state machine as a table, and the decisions about jobs that need no store: pure functions of values."""

from __future__ import annotations

from enum import StrEnum

from . import model
from .model import Backoff, Job, JobError, Outcome, State


class Event(StrEnum):
    """What can happen to a job, by the verbs that the protocol, the SQL, the Lua and the docs share."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    DEFER = "defer"
    FAIL = "fail"
    EXPIRE = "expire"
    CANCEL = "cancel"
    RELEASE = "release"
    RELEASE_STALE = "release_stale"
    PROMOTE = "promote"
    PARENTS_DONE = "parents_done"
    PARENT_FAILED = "parent_failed"
    REPLACE = "replace"
    REPLAY = "replay"
    REMOVE = "remove"


_W, _D, _B, _A = State.WAITING, State.DELAYED, State.BLOCKED, State.ACTIVE
_REMOVED: dict[tuple[State | None, Event], frozenset[State | None]] = {
    (state, Event.REMOVE): frozenset({None}) for state in State
}

TRANSITIONS: dict[tuple[State | None, Event], frozenset[State | None]] = {
    (None, Event.ENQUEUE): frozenset({_W, _D, _B, State.FAILED}),
    (_W, Event.CLAIM): frozenset({_A}),
    (_D, Event.PROMOTE): frozenset({_W, _B}),
    (_B, Event.PARENTS_DONE): frozenset({_W}),
    (_B, Event.PARENT_FAILED): frozenset({State.FAILED}),
    (_D, Event.PARENT_FAILED): frozenset({State.FAILED}),
    (_A, Event.COMPLETE): frozenset({State.COMPLETED}),
    (_A, Event.RETRY): frozenset({_W, _D}),
    (_A, Event.DEFER): frozenset({_W, _D}),
    (_A, Event.FAIL): frozenset({State.FAILED}),
    (_A, Event.EXPIRE): frozenset({State.EXPIRED}),
    (_A, Event.RELEASE): frozenset({_W}),
    (_A, Event.RELEASE_STALE): frozenset({_W, State.FAILED, State.CANCELLED}),
    (_A, Event.CANCEL): frozenset({_A, State.CANCELLED}),
    (_W, Event.CANCEL): frozenset({State.CANCELLED}),
    (_D, Event.CANCEL): frozenset({State.CANCELLED}),
    (_B, Event.CANCEL): frozenset({State.CANCELLED}),
    (_D, Event.REPLACE): frozenset({State.CANCELLED}),
    (State.FAILED, Event.REPLAY): frozenset({_W, _B}),
    (State.EXPIRED, Event.REPLAY): frozenset({_W, _B}),
    **_REMOVED,
}
"""Which states an event can lead to from a state; None is "no such job". What is not here does not happen.

An active job that is cancelled stays active with the marker set until its worker, or the sweep, ends the
claim.
"""


def event_of(outcome: Outcome) -> Event:
    """The event that an outcome stands for; its value is also what a settle is remembered by (promise D7)."""
    match outcome:
        case model.Complete():
            return Event.COMPLETE
        case model.Retry():
            return Event.RETRY
        case model.Defer():
            return Event.DEFER
        case model.Fail():
            return Event.FAIL
        case model.Expire():
            return Event.EXPIRE
        case model.Cancel():
            return Event.CANCEL
        case model.Release():
            return Event.RELEASE


def is_expired(job: Job, now: int) -> bool:
    """Whether `now` is past the job's time to live, counted from its last manual retry or its creation
    (E1)."""
    start = job.created_at if job.retried_at is None else job.retried_at
    return job.ttl_ms is not None and now >= start + job.ttl_ms


def backoff_delay_ms(backoff: Backoff, failures: int, chance: float) -> int:
    """The delay before the retry that follows failure number `failures` (from 1); `chance` (0 to 1) is the
    jitter's."""
    beyond = failures - len(backoff.delays_ms)
    if beyond <= 0:
        delay = float(backoff.delays_ms[max(failures, 1) - 1])
    else:
        try:
            # As a float also where the factor is an int: its power would be an int of a billion digits.
            delay = backoff.delays_ms[-1] * float(backoff.factor) ** beyond
        except OverflowError:
            delay = float(backoff.cap_ms) if backoff.delays_ms[-1] else 0.0
    return int(min(delay, backoff.cap_ms) * (1 - backoff.jitter * chance))


def after_error(job: Job, error: JobError, chance: float, delay_ms: int | None = None) -> Outcome:
    """What a failed handler leads to: a retry while `max_retries` allows one, else failed for good.

    `delay_ms` is the delay that the task asked for; None takes the job's backoff.
    """
    failures = job.failures + 1
    if failures > job.max_retries:
        return model.Fail(error)
    return model.Retry(
        backoff_delay_ms(job.backoff, failures, chance) if delay_ms is None else delay_ms, error
    )


def entry_state(*, due: bool, unfinished_parents: bool) -> State:
    """Where a job that is not claimed belongs: its own time comes first, then its parents (promise P3)."""
    if not due:
        return State.DELAYED
    return State.BLOCKED if unfinished_parents else State.WAITING


def parent_failed(parent: str, ended: str) -> JobError:
    """The error of a child that failed because of its parent (promise G3). `ended` is the parent's last
    state."""
    return JobError("ParentFailed", f"parent {parent} ended {ended}")


def stalled_out(stalls: int) -> JobError:
    """The error of a job that stalled too often (promise C14)."""
    return JobError(
        "Stalled",
        f"the job stalled {stalls} times: its workers stopped without settling it (killed, out of memory, or "
        "longer than the stale time without a heartbeat)",
    )
