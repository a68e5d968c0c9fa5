"""The protocol that every backend keeps. These docstrings are the contract; `memory.py` is its plainest
reading.

Rules for every method:

- Synchronous, and callable from any thread: calls take turns on the one connection.
- Each item is atomic by itself: whole, or not at all. A batch is not a transaction. The answers have the
  length and the order of the items.
- One call is about one queue: the jobs, claims and beats in it, and `claim_next`, all name the same.
- Bounded: a limit or a sequence of at most MAX_BATCH items goes in, a count or a list comes out.
- Times that decide anything are the store's own (F4). `clock` is for tests only.
- Tokens are opaque and only compared. Ids, keys and names were checked when the values were made.
- Backends persist decisions and make none: no backend computes a backoff or looks at a payload.
- Driver errors come out as `BackendError`, with `transient` saying whether the same call may succeed later.
- Every state change is one in `lifecycle.TRANSITIONS`. Bad input (a foreign queue in one call, a limit out
  of range) raises InvalidJob before anything is written.

A record whose format is newer than `model.FORMAT` is left alone: not claimed, promoted, swept, drained
or cleaned; `check()` reports it.

Entering waiting takes the next place in the order (O3), except for Release, which gives back the old place.
An ending is a move to a terminal state, or a removal. In the same step, an ending

- releases the job's deduplication key, if this job still holds it and its mode is not THROTTLE (G2);
- settles its children (G3): completed, or a child whose policy is RUN, takes the parent off the child's list
  of unfinished parents, and the last one taken off moves a blocked child to waiting (a delayed one keeps its
  time); any other ending fails a child whose policy is FAIL, which is an ending too. At most
  MAX_CHILDREN_A_STEP are handled; where more remain, a mark is left that `release_stale` goes on from.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Collection, Sequence
from typing import Protocol

from ..errors import ConfigurationError, InvalidJob, redacted
from ..model import (
    MAX_BATCH,
    Beat,
    Cancelled,
    Capabilities,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Clock,
    Drained,
    Dropped,
    DueSchedules,
    Enqueued,
    Finding,
    Job,
    JobPage,
    NewJob,
    NotClaimed,
    QueueInfo,
    Recovered,
    Removed,
    Retried,
    Schedule,
    Settle,
    SettleResult,
    State,
    StoredSchedule,
    Unpublished,
    check_int,
    check_state,
    shown,
)


class ScheduleStore(Protocol):
    """Keeps schedules (G6). Firing enqueues the slot's job first, then advances:
    `maintenance.fire_schedules`."""

    def put_schedule(self, schedule: Schedule) -> None:
        """Writes a schedule, new or changed, with a fresh revision; whether it is paused and last_slot stay.
        Where its rule (every_ms, cron, timezone) is as it was, changed_at and next_slot stay too, so that a
        deploy that writes its schedules again loses no slot; else changed_at is now and next_slot None.
        Creates the queue where there is none."""
        ...

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        """Deletes a schedule; the jobs it made stay. Returns whether there was one."""
        ...

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        """A paused schedule is never due. Resuming plans it anew from now (next_slot None, changed_at now),
        so what a pause left out is not missed. Repeating it changes nothing. Returns whether there is such a
        schedule."""
        ...

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        """Schedules by id, those behind `after`."""
        ...

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        """At most `limit` schedules that are not paused and whose next_slot is None or has come, earliest
        first."""
        ...

    def advance_schedule(
        self,
        queue: str,
        schedule_id: str,
        revision: int,
        slot: int | None,
        next_slot: int,
        last_slot: int | None,
    ) -> bool:
        """Sets next_slot, and last_slot where given, if the schedule still has that revision and `slot` as
        its next_slot; returns whether it had. So what was planned for a schedule that was changed or removed
        since, also with its queue, moves nothing, even where one of that id was put again."""
        ...


class BrokerStore(Protocol):
    """What a message broker needs of the store that holds the truth (R1).

    Once a store was opened with `broker=True`, each job that enters waiting, failed or expired by any path
    and through any handle gets a fresh delivery token in the same step and is unpublished; leaving that state
    ends the delivery. Jobs that stood in these states before get theirs at that opening.
    """

    def take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        """Hands out deliveries: first those handed out at least `min_age_ms` ago and not marked since (their
        publisher crashed), longest ago first, then those never handed out, in the order in which their jobs
        were made."""
        ...

    def mark_published(self, queue: str, job_id: str, token: str) -> bool:
        """The broker confirmed this delivery. False, changing nothing, when the token is no longer the
        job's."""
        ...

    def claim_delivery(
        self, request: ClaimRequest, job_id: str, delivery_token: str
    ) -> ClaimedJob | NotClaimed:
        """Claims the one job that a delivery is about, as `claim` does. A request that is sent again gets
        what its token holds. GONE: no such job, another delivery token, or not waiting; then PAUSED."""
        ...

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        """Gives waiting jobs whose delivery was published at least `older_than_ms` ago a fresh token,
        unpublished: the broker lost the old one (R4). Returns their ids, those published first before
        others, and at one moment in the order in which their jobs were made."""
        ...


class Backend(ScheduleStore, BrokerStore, Protocol):
    """A store of jobs. Its twenty methods in four groups; a new one needs a caller in functions/ or
    cli/."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do, as data (S3)."""
        ...

    # Lifecycle: what the four functions call

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accepts jobs of one queue into waiting, delayed or blocked. An accepted job is durable when this
        returns (D1).

        For each job the first of these that is so:

        - Its id exists: DUPLICATE_ID, nothing changes (D6, G1).
        - A parent is unknown, or is the job itself: REFUSED, nothing is written (G3).
        - Its key is held: DEDUPLICATED, naming the holder; but where the mode is DEBOUNCE and the holder is
          delayed: REPLACED, and the holder is cancelled (G2).
        - Else: CREATED.

        A parent that ended before counts as if it ended now: a job with policy FAIL and a parent that ended
        otherwise than completed is created failed. Parents may stand earlier in the same call.
        """
        ...

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Gives out at most `limit` waiting jobs, in order (O2, O3).

        When the token holds jobs already, those are the answer and nothing changes (D8). Otherwise at most
        `limit` due delayed jobs are promoted first, and one step per job writes active, the token, the
        worker, claimed_at, heartbeat_at, stale_at and deliveries + 1, and clears progress (C1). Never a job
        of a paused queue (A1), nor one that is blocked, not due or cancelled.
        """
        ...

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        """Renews claims: heartbeat_at and stale_at from the store's now, and progress where given (C2).

        A claim whose job was cancelled is renewed and answers CANCEL_REQUESTED; one whose token no longer
        holds the job answers LOST and writes nothing (C4).
        """
        ...

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        """The one exit from active for a worker; then, in the same round trip, the next claim.

        One step writes state, result or error, finished_at, placement, children and key (D4):

        - Complete: completed, with the result; `error` is cleared, `first_error` stays.
        - Retry: failures + 1, error, first_error if it is the first; delayed with run_at = now + delay_ms, or
          waiting (run_at as it was) when delay_ms is 0.
        - Defer: as Retry, counting nothing.
        - Fail: failures + 1, error; failed.
        - Expire: expired. Cancel: cancelled.
        - Release: waiting, at its old place; counts nothing.

        All clear claim_token, heartbeat_at and stale_at; claimed_at and worker stay, as the last claim's.
        Where a cancellation stands, every outcome makes it cancelled and answers CANCELLED, also when sent
        again (X3). The same token and the same kind of outcome again: DUPLICATE, nothing changes, until the
        job is claimed again or gone (D7). Anything else: LOST, nothing changes (C4).
        """
        ...

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        """The sweep: takes at most `limit` active jobs whose stale_at has passed, those stale for longest
        first.

        Re-checked in the same step that writes, which clears the claim as a settle does (C5): cancelled where
        a cancellation stands (C15); failed with `lifecycle.stalled_out` where stalls + 1 > max_stalls (C14);
        else waiting, stalls + 1. Then goes on with cascades that an ending left marked: one CASCADED entry
        per parent. A record that cannot be read is answered as UNREADABLE and moved behind, so that it never
        hides the next (C8).
        """
        ...

    def promote_due(self, queue: str, limit: int) -> list[str]:
        """Moves at most `limit` delayed jobs whose time has come to waiting, or to blocked while parents are
        unfinished, earliest first (P1, P3). Returns the ids moved; overlapping calls move each once (P2)."""
        ...

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        """Cancels: a queued job is an ending at once, an active one gets the marker (X1, X2). Else nothing
        (X6)."""
        ...

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        """Sends failed and expired jobs back to waiting (or blocked while a parent has not ended): failures
        and stalls to 0, replays + 1, retried_at now, progress, result and finished_at cleared, key taken
        again; deliveries and errors stay (A2). Parents that ended badly do not count: the operator
        decided."""
        ...

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        """Deletes jobs in any state with all that belongs to them (A3). Removing one that has not ended is an
        ending ("removed") for its children. A worker that still runs it finds its claim LOST. A THROTTLE
        window stays."""
        ...

    def set_paused(self, queue: str, paused: bool) -> None:
        """While paused a queue gives out no claims, to any process (A1). Creates the queue where there is
        none."""
        ...

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        """Removes at most `limit` jobs in these terminal states that ended at least `older_than_ms` ago, the
        oldest first, and returns their ids (A6). Also forgets throttle windows that are over."""
        ...

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        """Removes at most `limit` waiting jobs (then delayed ones, with `include_delayed`), as `remove` does
        (A4)."""
        ...

    def drop_queue(self, queue: str, force: bool) -> Dropped:
        """Removes the queue whole: jobs, keys, pause, schedules, its name. Refused while jobs are active,
        unless forced; a late worker's calls then find their claims LOST (A6)."""
        ...

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        """The id that holds a deduplication key now, or None. With `release` the key is freed."""
        ...

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        """The jobs as they stand; None for each unknown id."""
        ...

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        """A page of the jobs in one state: waiting in claim order, delayed by due time, active by stale_at,
        blocked by insertion, terminal by when they ended. A cursor stays usable while jobs come and go
        (A5)."""
        ...

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        """The named queues (all zero for an unknown one), or all there are, by name. A count stops at
        COUNT_CAP unless `exact`."""
        ...

    # Housekeeping

    def migrate(self) -> int:
        """Brings the schema up to date, keeping all data; safe to run many times and at once. Returns its
        version."""
        ...

    def check(self) -> list[Finding]:
        """Looks at the store's version, schema, settings and unreadable records; changes nothing."""
        ...

    def close(self) -> None:
        """Lets go of the connection. The next call opens a new one."""
        ...


logger = logging.getLogger("mayflymq")

COUNT_CAP = 10_000
MAX_WORKERS_SHOWN = 100
MAX_PRIORITIES_SEEN = 100
"""Of how many priorities, the first ones, the oldest waiting job is looked for."""
STOOD = "cancellation"
"""What a settle is remembered by (promise D7) where a cancellation stood, whatever its outcome was."""

_MODULES = {
    "memory": ("memory", ""),
    "sqlite": ("sqlite", ""),
    "redis": ("redis", "redis"),
    "rediss": ("redis", "redis"),
    "postgresql": ("postgres", "postgres"),
    "mongodb": ("mongodb", "mongodb"),
    "mongodb+srv": ("mongodb", "mongodb"),
    "amqp": ("rabbitmq", "rabbitmq"),
    "amqps": ("rabbitmq", "rabbitmq"),
}
_BUILT = ("memory", "sqlite", "redis")
_LOCAL = ("memory", "sqlite")
ALLOW_LOCAL = "MAYFLYMQ_ALLOW_LOCAL_BACKEND"


def open_backend(url: str, *, broker: bool = False, clock: Clock | None = None) -> Backend:
    """Opens the backend that a URL names (S1); nothing is connected before the first call.

    With `broker` it keeps the state for a message broker from now on (`BrokerStore`).

    Raises ConfigurationError for an unknown scheme, a missing driver, or a store inside AWS Lambda that its
    invocations could not share (MAYFLYMQ_ALLOW_LOCAL_BACKEND=1 allows it, for tests).
    """
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a backend's URL is text, not {type(url).__name__} (a variable that is not set reads as None)"
        )
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in _MODULES or _MODULES[scheme][0] not in _BUILT:
        known = ", ".join(f"{name}://" for name in _MODULES if _MODULES[name][0] in _BUILT)
        # What is no URL at all may be a password that was put into the wrong variable.
        shown = repr(redacted(url)) if "://" in url else "a value without ://"
        raise ConfigurationError(f"{shown} names no backend: a backend's URL starts with one of {known}")
    module, extra = _MODULES[scheme]
    if module in _LOCAL and "AWS_LAMBDA_FUNCTION_NAME" in os.environ and os.environ.get(ALLOW_LOCAL) != "1":
        raise ConfigurationError(
            f"{scheme}:// inside AWS Lambda would lose jobs: invocations share neither memory nor disk. Set "
            f"MAYFLYMQ_BACKEND_URL to a server's URL, or {ALLOW_LOCAL}=1 to try the functions on one machine"
        )
    try:
        opened = importlib.import_module(f"mayflymq.backends.{module}").open(url, broker=broker, clock=clock)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mayflymq"):
            raise
        raise ConfigurationError(
            f"{scheme}:// needs the package {error.name}: pip install 'mayflymq[{extra}]'"
        ) from error
    backend: Backend = opened
    return backend


def check_batch(what: str, items: Sequence[object]) -> None:
    """Raises InvalidJob when a call has more items than MAX_BATCH."""
    if len(items) > MAX_BATCH:
        raise InvalidJob(f"{len(items)} {what} in one call; the limit is {MAX_BATCH}: send them in parts")


def check_one_queue(queues: Collection[str]) -> None:
    """Raises InvalidJob when the items of one call belong to several queues."""
    if len(set(queues)) > 1:
        named = ", ".join(sorted(set(queues))[:5])
        raise InvalidJob(f"one call is about one queue, these are of {len(set(queues))}: {named}")


def check_limit(limit: int) -> None:
    """Raises InvalidJob when a limit is not from 1 to MAX_BATCH."""
    check_int("limit", limit, 1, MAX_BATCH)


def check_terminal(states: Collection[State]) -> None:
    """Raises InvalidJob when `clean` is asked for states that have not ended."""
    if left := sorted(state for state in map(check_state, states) if not state.terminal):
        raise InvalidJob(
            f"clean removes jobs that have ended, not {', '.join(left)}: use drain or remove for those"
        )


def unknown_parent(job: NewJob, parent: str) -> str:
    """Why a job is REFUSED whose parent does not exist at that moment (G3)."""
    if parent == job.id:
        return f"job {job.id} depends on itself"
    return f"job {job.id} depends on {parent}, which is unknown in queue {job.queue}: enqueue parents first"


_CURSOR = re.compile(r"(-?[0-9]{1,19})\.(-?[0-9]{1,19})")


def write_cursor(rank: int, place: int) -> str:
    """The cursor behind a job that stands at `place` among those of one `rank` in its state's order."""
    return f"{rank}.{place}"


def read_cursor(cursor: str) -> tuple[int, int]:
    """Rank and place of a cursor. Raises InvalidJob for text that no page ever gave out."""
    if isinstance(cursor, str) and (found := _CURSOR.fullmatch(cursor)):
        rank, place = int(found[1]), int(found[2])
        if max(abs(rank), abs(place)) < 2**63:
            return rank, place
    raise InvalidJob(f"{shown(cursor)} is not a cursor: pass back the one that came with a page")
