"""The words of the product as frozen values: no I/O and no decisions.

Times are whole milliseconds since the epoch, read from the store's clock; durations are whole milliseconds
and their names end in `_ms`. A value that cannot be meant is refused when the object is made, so no backend
ever sees one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache

from .errors import ConfigurationError, InvalidJob

FORMAT = 1
"""The version of the stored record. A record of a newer format is left alone and reported by `check()`."""

MAX_BATCH = 1000
"""The largest number of items that one protocol call takes or returns."""

MAX_TIME = 2**53 - 1
"""The latest time and the longest duration, in milliseconds: exact in a double, as some stores count in
those."""

MAX_CHILDREN_A_STEP = 1000
"""How many children one ending settles in its own step; the rest wait for the next sweep (promise G3)."""

MAX_BACKOFF_STEPS = 100
"""How many delays a backoff may list: each of its jobs stores them."""

Seconds = float | timedelta
"""A duration as people give it: in seconds, or as a timedelta."""

Clock = Callable[[], int]
"""Milliseconds since the epoch. Only tests hand one to a backend."""


class State(StrEnum):
    """Where a job stands. `BLOCKED` waits for parents, `DELAYED` for its time, `WAITING` for a worker."""

    WAITING = "waiting"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether a job in this state has ended."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.EXPIRED, State.CANCELLED})
DEAD_LETTER = frozenset({State.FAILED, State.EXPIRED})
"""The states that make up the dead-letter queue."""


def shown(value: object) -> str:
    """`value` for an error message: ASCII, at most 80 characters, whatever it is."""
    try:
        return ascii(value)[:80]
    except Exception:  # an int of more digits than Python turns into text, a repr() that raises
        return f"a {type(value).__name__} that cannot be shown"


_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_QUEUE = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def check_text(what: str, value: object, max_length: int = 255) -> str:
    """Returns `value` when it is text that every store can hold as a key; raises InvalidJob naming `what`."""
    if not isinstance(value, str):
        raise InvalidJob(f"{what} must be text, not {type(value).__name__}")
    if not 1 <= len(value) <= max_length:
        raise InvalidJob(f"{what} must have 1 to {max_length} characters, this has {len(value)}")
    if not (value.isascii() and value.isprintable()) and _UNFIT.search(value):
        raise InvalidJob(f"{what} must not hold control characters or lone surrogates: {shown(value)}")
    return value


def check_queue(name: object) -> str:
    """Returns `name` when it may name a queue: letters, digits, `_.-`, 1 to 128 of them, not ending in
    `.dlq`."""
    if not isinstance(name, str):
        raise InvalidJob(f"a queue's name must be text, not {type(name).__name__}")
    if not _names_queue(name):
        raise InvalidJob(
            f"{shown(name)} cannot name a queue: use 1 to 128 letters, digits and '_.-', starting with "
            "a letter or digit and not ending in '.dlq'"
        )
    return name


@lru_cache(1024)
def _names_queue(name: str) -> bool:
    return _QUEUE.fullmatch(name) is not None and not name.endswith(".dlq")


def check_int(what: str, value: object, low: int, high: int) -> int:
    """Returns `value` when it is an int (a bool is not one) from `low` to `high`; raises InvalidJob naming
    `what`."""
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(f"{what} must be an int, not {type(value).__name__}: {shown(value)}")
    if not low <= value <= high:
        raise InvalidJob(
            f"{what} must be from {low} to {high}, not {value if abs(value) < 10**30 else 'that large'}"
        )
    return value


def check_state(value: object) -> State:
    """Returns the state that `value` is or names; raises InvalidJob for anything else."""
    try:
        return State(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidJob(f"a state is one of {', '.join(State)}, not {shown(value)}") from None


def duration_ms(what: str, value: object) -> int:
    """Returns seconds (int, float) or a timedelta as whole milliseconds, clamped to MAX_TIME either way.

    A positive duration is at least 1 ms. Raises InvalidJob naming `what` for anything else, also NaN and
    infinity.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value).__name__
        raise InvalidJob(f"{what} must be seconds (int, float) or a timedelta, not {kind}: {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidJob(f"{what} must be finite, not {value}")
    if abs(value) >= MAX_TIME / 1000:
        return MAX_TIME if value > 0 else -MAX_TIME
    return max(round(value * 1000), 1) if value > 0 else round(value * 1000)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each retry, as data: `delays_ms` in turn, then the last one times `factor` each
    time.

    Never below 0 and never above `cap_ms`. `jitter` (0 to 1) is the share of each delay that chance may take
    off. Use the constructors; times are in seconds there.
    """

    delays_ms: tuple[int, ...]
    factor: float = 1.0
    cap_ms: int = MAX_TIME
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.delays_ms, tuple) or not 1 <= len(self.delays_ms) <= MAX_BACKOFF_STEPS:
            raise ConfigurationError(f"a backoff needs a tuple of 1 to {MAX_BACKOFF_STEPS} delays")
        for name, value in (*(("delay", d) for d in self.delays_ms), ("cap", self.cap_ms)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIME:
                raise ConfigurationError(
                    f"a backoff's {name} must be from 0 to {MAX_TIME} ms, not {shown(value)}"
                )
        for name, number, low, high in (("factor", self.factor, 1, 1000), ("jitter", self.jitter, 0, 1)):
            if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
                raise ConfigurationError(
                    f"a backoff's {name} must be from {low} to {high}, not {shown(number)}"
                )

    @classmethod
    def fixed(cls, delay: Seconds, *, jitter: float = 0.0) -> Backoff:
        """The same `delay` in seconds before every retry."""
        return cls((_backoff_ms("delay", delay),), jitter=jitter)

    @classmethod
    def exponential(
        cls, base: Seconds = 1.0, *, cap: Seconds = 3600.0, factor: float = 2.0, jitter: float = 0.1
    ) -> Backoff:
        """`base` seconds before the first retry, `factor` times as long before each next one, at most `cap`
        seconds."""
        return cls((_backoff_ms("base", base),), factor=factor, cap_ms=_backoff_ms("cap", cap), jitter=jitter)

    @classmethod
    def steps(cls, *delays: Seconds, jitter: float = 0.0) -> Backoff:
        """The given delays in seconds one after the other; the last one repeats."""
        return cls(tuple(_backoff_ms("delay", delay) for delay in delays), jitter=jitter)


def _backoff_ms(what: str, seconds: object) -> int:
    try:
        ms = duration_ms(f"a backoff's {what}", seconds)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from error
    if ms < 0:
        raise ConfigurationError(f"a backoff's {what} must not be negative: {shown(seconds)}")
    return ms


DEFAULT_BACKOFF = Backoff((1000,), factor=2.0, cap_ms=3_600_000, jitter=0.1)


class ParentPolicy(StrEnum):
    """What a child does when a parent ends otherwise than completed."""

    FAIL = "fail"
    RUN = "run"


class DedupMode(StrEnum):
    """How a deduplication key suppresses other jobs (promise G2)."""

    SIMPLE = "simple"
    THROTTLE = "throttle"
    DEBOUNCE = "debounce"


@dataclass(frozen=True, slots=True)
class Dedup:
    """A deduplication key. SIMPLE holds it until the job ends; THROTTLE for `window_ms`, which may outlive
    the job; DEBOUNCE replaces a holder that is still delayed: the newer job starts the delay again (`extend`)
    or keeps the older one's time."""

    key: str
    mode: DedupMode = DedupMode.SIMPLE
    window_ms: int = 0
    extend: bool = True

    def __post_init__(self) -> None:
        check_text("a deduplication key", self.key)
        if not isinstance(self.mode, DedupMode):
            raise InvalidJob(f"a deduplication mode must be a DedupMode, not {shown(self.mode)}")
        if not isinstance(self.extend, bool):
            raise InvalidJob(f"extend must be True or False, not {shown(self.extend)}")
        check_int("window_ms", self.window_ms, 0, MAX_TIME)
        if (self.mode is DedupMode.THROTTLE) != (self.window_ms > 0):
            raise InvalidJob("window_ms is what throttle needs and no other mode takes")


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed. The three texts together stay under 16 KiB, with a mark where they were cut."""

    type: str
    message: str
    traceback: str = ""


def _check_kind(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidJob(f"{what} must be a {kind.__name__}, not {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job as a producer hands it over. `payload` is opaque to every backend: the codec wrote it.

    Due `delay_ms` after the store's now, or at `run_at` (milliseconds since 1970 in UTC), whichever is given;
    neither, or a past time, means now.
    """

    id: str
    queue: str
    task: str
    payload: bytes
    priority: int = 5
    delay_ms: int = 0
    run_at: int | None = None
    ttl_ms: int | None = None
    timeout_ms: int | None = None
    max_retries: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    depends_on: tuple[str, ...] = ()
    on_parent_failure: ParentPolicy = ParentPolicy.FAIL
    dedup: Dedup | None = None

    def __post_init__(self) -> None:
        check_text("a job id", self.id)
        check_queue(self.queue)
        check_text("a task's name", self.task)
        check_int("priority", self.priority, -(2**31), 2**31 - 1)
        check_int("delay_ms", self.delay_ms, 0, MAX_TIME)
        check_int("max_retries", self.max_retries, 0, 2**31 - 1)
        if self.run_at is not None:
            check_int("run_at", self.run_at, 0, MAX_TIME)
        if self.ttl_ms is not None:
            check_int("ttl_ms", self.ttl_ms, 1, MAX_TIME)
        if self.timeout_ms is not None:
            check_int("timeout_ms", self.timeout_ms, 1, MAX_TIME)
        _check_kind("payload", self.payload, bytes)
        _check_kind("backoff", self.backoff, Backoff)
        _check_kind("depends_on", self.depends_on, tuple)
        _check_kind("on_parent_failure", self.on_parent_failure, ParentPolicy)
        if self.dedup is not None:
            _check_kind("dedup", self.dedup, Dedup)
        if self.run_at is not None and self.delay_ms:
            raise InvalidJob("give a delay or a time to run at, not both")
        if len(self.depends_on) > MAX_BATCH:
            raise InvalidJob(f"a job can depend on at most {MAX_BATCH} others, not {len(self.depends_on)}")
        for parent in self.depends_on:
            check_text("a parent's id", parent)
        if self.dedup and self.dedup.mode is DedupMode.DEBOUNCE and not self.delay_ms and self.run_at is None:
            raise InvalidJob(
                "debounce needs a delay: the newer job replaces the older while it is still delayed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the store holds it. Its times (`run_at` and all others in `_at`) are milliseconds since 1970
    in UTC, by the store's clock.

    `deliveries` counts claims, `failures` handlers that failed, `stalls` workers that vanished, `replays`
    manual retries; only a manual retry resets failures and stalls, and nothing resets deliveries. `run_at` is
    when it becomes (or became) due, None where it always was. The TTL counts from `retried_at`, else from
    `created_at`.
    """

    id: str
    queue: str
    task: str
    payload: bytes
    state: State
    priority: int
    created_at: int
    run_at: int | None
    ttl_ms: int | None
    timeout_ms: int | None
    max_retries: int
    backoff: Backoff
    depends_on: tuple[str, ...]
    on_parent_failure: ParentPolicy
    dedup: Dedup | None
    deliveries: int = 0
    failures: int = 0
    stalls: int = 0
    replays: int = 0
    retried_at: int | None = None
    claim_token: str | None = None
    claimed_at: int | None = None
    heartbeat_at: int | None = None
    stale_at: int | None = None
    worker: str | None = None
    cancel_requested: bool = False
    progress: float | None = None
    result: bytes | None = None
    error: JobError | None = None
    first_error: JobError | None = None
    finished_at: int | None = None
    format: int = FORMAT


class CatchUp(StrEnum):
    """What a schedule does about slots that were missed: none of them, the latest one, or each (promise
    G6)."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Makes a job at every slot of a period or of a cron expression in a time zone.

    Slots are whole seconds. Those of `every_ms` are the multiples of the period since 1970 in UTC, so that a
    changed or moved schedule keeps them.
    """

    id: str
    queue: str
    task: str
    payload: bytes
    every_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = CatchUp.SKIP
    priority: int = 5
    ttl_ms: int | None = None
    timeout_ms: int | None = None
    max_retries: int = 3
    backoff: Backoff = DEFAULT_BACKOFF

    def __post_init__(self) -> None:
        check_text("a schedule's id", self.id, MAX_SCHEDULE_ID)
        check_text("a time zone", self.timezone)
        if not isinstance(self.cron, str | None):
            raise InvalidJob(f"schedule {self.id}: cron must be text, not {type(self.cron).__name__}")
        if not isinstance(self.catch_up, CatchUp):
            raise InvalidJob(f"schedule {self.id}: catch_up must be a CatchUp, not {shown(self.catch_up)}")
        if (self.every_ms is None) == (self.cron is None):
            raise InvalidJob(f"schedule {self.id} needs a period or a cron expression, one of the two")
        if self.every_ms is not None and check_int("every_ms", self.every_ms, 1000, MAX_TIME) % 1000:
            raise InvalidJob(f"schedule {self.id}: a period is a whole number of seconds")
        self.job(0)  # refuses what no job could be made of

    @property
    def rule(self) -> tuple[int | None, str | None, str]:
        """What its slots follow from."""
        return self.every_ms, self.cron, self.timezone

    def job(self, slot: int) -> NewJob:
        """The job of one slot. Its id names the slot, so that a slot that fires again makes no second job."""
        return NewJob(
            id=f"{self.id}@{slot // 1000}",
            queue=self.queue,
            task=self.task,
            payload=self.payload,
            priority=self.priority,
            ttl_ms=self.ttl_ms,
            timeout_ms=self.timeout_ms,
            max_retries=self.max_retries,
            backoff=self.backoff,
        )


MAX_SCHEDULE_ID = 200


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as the store holds it. Times are milliseconds since 1970 in UTC.

    `revision` is another one after each put, and none that a schedule of this id had before, also one that
    was removed. `next_slot` is None until a promoter has planned it from `changed_at`. `last_slot` is the
    last one that it is done with.
    """

    schedule: Schedule
    revision: int
    changed_at: int
    paused: bool
    next_slot: int | None
    last_slot: int | None


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """The schedules that are due or not planned yet, and the store's now."""

    now: int
    schedules: list[StoredSchedule]


# Enqueue


class EnqueueStatus(StrEnum):
    """What became of one job of an enqueue call.

    CREATED; DUPLICATE_ID: a job of this id is there, and nothing changed; DEDUPLICATED: another job holds the
    key, and nothing was written; REPLACED: it was written in place of the key's holder; REFUSED: nothing was
    written, and `reason` says why.
    """

    CREATED = "created"
    DUPLICATE_ID = "duplicate_id"
    DEDUPLICATED = "deduplicated"
    REPLACED = "replaced"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to one enqueued job.

    `state` is where the job stands now (None when REFUSED; of the holder's record when DEDUPLICATED, None if
    that is gone). `holder` names the job that holds the key (DEDUPLICATED) or that this one replaced
    (REPLACED). `reason` says why it was REFUSED. `dependants` is what replacing the older job did to that
    job's children.
    """

    job_id: str
    status: EnqueueStatus
    state: State | None = None
    holder: str | None = None
    reason: str | None = None
    dependants: tuple[Dependant, ...] = ()


# Claims


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Asks for at most `limit` jobs. The caller makes the `token`, new for each request; a request that is
    sent again with its token gets what that token still holds (promise D8). The claim goes stale after
    `stale_after_ms`."""

    queue: str
    limit: int
    token: str
    worker: str
    stale_after_ms: int

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_int("limit", self.limit, 1, MAX_BATCH)
        check_text("a claim token", self.token)
        check_text("a worker's name", self.worker)
        check_int("stale_after_ms", self.stale_after_ms, 1, MAX_TIME)


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's ownership of one active job. The token fences every write that the worker makes."""

    queue: str
    job_id: str
    token: str


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job with the claim just made on it. `job.claimed_at` is the store's now at that moment."""

    claim: Claim
    job: Job


@dataclass(frozen=True, slots=True)
class Beat:
    """Renews a claim: stale `stale_after_ms` from the store's now. `progress` (0 to 1) replaces the stored
    one."""

    claim: Claim
    stale_after_ms: int
    progress: float | None = None

    def __post_init__(self) -> None:
        check_int("stale_after_ms", self.stale_after_ms, 1, MAX_TIME)
        if self.progress is not None:
            check_progress(self.progress)


def check_progress(fraction: object) -> float:
    """Returns how far a job is, from 0 to 1; raises InvalidJob for anything else."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidJob(f"progress must be a number from 0 to 1, not {shown(fraction)}")
    return float(fraction)


class ClaimStatus(StrEnum):
    """What a heartbeat learns: the claim holds, it holds but a cancellation stands, or it is gone."""

    HELD = "held"
    CANCEL_REQUESTED = "cancel_requested"
    LOST = "lost"


# Outcomes: the closed set of ways in which a worker ends its claim


@dataclass(frozen=True, slots=True)
class Complete:
    """The handler returned; `result` is what the codec made of its value."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The handler failed and the job runs again after `delay_ms`. Counts a failure."""

    delay_ms: int
    error: JobError

    def __post_init__(self) -> None:
        check_int("delay_ms", self.delay_ms, 0, MAX_TIME)


@dataclass(frozen=True, slots=True)
class Defer:
    """The job runs again after `delay_ms`. Counts nothing."""

    delay_ms: int

    def __post_init__(self) -> None:
        check_int("delay_ms", self.delay_ms, 0, MAX_TIME)


@dataclass(frozen=True, slots=True)
class Fail:
    """The handler failed for good: into the dead-letter queue. Counts a failure."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Expire:
    """The job was claimed after its time to live: into the dead-letter queue."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The worker ends the job as cancelled."""


@dataclass(frozen=True, slots=True)
class Release:
    """The worker did not start the job: back to its old place in the order. Counts nothing."""


Outcome = Complete | Retry | Defer | Fail | Expire | Cancel | Release


@dataclass(frozen=True, slots=True)
class Settle:
    """Ends one claim with one outcome."""

    claim: Claim
    outcome: Outcome


class Settlement(StrEnum):
    """What became of one settle.

    APPLIED; DUPLICATE: this token had settled it with this outcome already and nothing changed (promise D7);
    CANCELLED: a cancellation stood, so the job is cancelled whatever the outcome was; LOST: the token holds
    nothing, or it had settled the job with another outcome.
    """

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Dependant:
    """A child that the ending of a parent moved, and the state it is in now."""

    job_id: str
    state: State


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to one settle; `dependants` is what the ending did to children in the same step."""

    status: Settlement
    dependants: tuple[Dependant, ...] = ()


@dataclass(frozen=True, slots=True)
class SettleResult:
    """`settled` in the order of the settles; `claimed` what `claim_next` got."""

    settled: list[Settled]
    claimed: list[ClaimedJob]


# Recovery and control


class Recovery(StrEnum):
    """What the sweep did with one job: back to WAITING, CANCELLED (a cancellation stood), FAILED (it stalled
    too often), CASCADED (a long cascade went on), or UNREADABLE (moved behind, so that it hides no other)."""

    RELEASED = "released"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CASCADED = "cascaded"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Recovered:
    """One job that a sweep handled. `worker` is the one that vanished, `stalls` how often that happened to
    this job."""

    job_id: str
    status: Recovery
    stalls: int = 0
    worker: str | None = None
    dependants: tuple[Dependant, ...] = ()
    detail: str | None = None


class CancelStatus(StrEnum):
    """CANCELLED: it was queued and will never be claimed; REQUESTED: it is active and its worker will see the
    marker; TERMINAL and UNKNOWN: nothing changed."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TERMINAL = "terminal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to one cancellation."""

    status: CancelStatus
    dependants: tuple[Dependant, ...] = ()


class RetryStatus(StrEnum):
    """RETRIED; NOT_DEAD: it is neither failed nor expired; KEY_TAKEN: another job holds its deduplication key
    now; UNKNOWN. Only RETRIED changed anything."""

    RETRIED = "retried"
    NOT_DEAD = "not_dead"
    KEY_TAKEN = "key_taken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Retried:
    """The answer to one manual retry. `state` is where the job stands now, `holder` who has its key
    (KEY_TAKEN)."""

    status: RetryStatus
    state: State | None = None
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """The answer to one removal: `found` is False when there was no such job."""

    found: bool
    dependants: tuple[Dependant, ...] = ()


@dataclass(frozen=True, slots=True)
class Drained:
    """The jobs that a drain removed, and what that did to their children."""

    job_ids: tuple[str, ...]
    dependants: tuple[Dependant, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """Whether the queue is gone; when it is not, `active` says how many jobs stood in the way (0: no such
    queue)."""

    dropped: bool
    active: int = 0


# What a message broker needs of the store


class Target(StrEnum):
    """Where a delivery goes: to the workers, or to the dead-letter queue."""

    MAIN = "main"
    DLQ = "dlq"


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A delivery that the broker has not confirmed yet."""

    job_id: str
    token: str
    priority: int
    target: Target


class NotClaimed(StrEnum):
    """Why a delivery gives no job: its queue is PAUSED, or the job or this delivery of it is GONE."""

    PAUSED = "paused"
    GONE = "gone"


# Inspection


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs; `cursor` gets the next one, None at the end."""

    jobs: list[Job]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state; each capped at 10,000 unless exact counts were asked for."""

    waiting: int = 0
    delayed: int = 0
    blocked: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that holds claims, and how long ago the oldest of them was renewed."""

    worker: str
    claims: int
    heartbeat_age_ms: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue at a glance. The dead-letter queue is the failed and the expired jobs. At most 100 workers are
    named, those longest without a heartbeat first. Ages are None where there is nothing to measure.

    `oldest_waiting_age_ms` is for how long a job has waited whose turn is next, seen over the first job of
    each priority (the first 100 of them), so that a priority that starves shows: since it was made, became
    due or was retried by hand, whichever was last.
    """

    name: str
    paused: bool
    counts: Counts
    dead_letters: int
    workers: tuple[WorkerInfo, ...]
    oldest_waiting_age_ms: int | None
    oldest_heartbeat_age_ms: int | None


class Severity(StrEnum):
    """How bad a finding is: an ERROR means that promises do not hold."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `check()` looked at."""

    severity: Severity
    subject: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do and how it does it (promise S3); docs/backends.md is made from these."""

    durable: bool
    """Jobs outlive the process."""
    shared: bool
    """Several processes see the same jobs."""
    lambda_ready: bool
    """It works from inside AWS Lambda, where no two invocations share a disk."""
    ordering: str
    """What decides among jobs of one priority."""
    strict_priority: bool
    """A lower number always goes first; False where ranges of priorities share a level."""
    dedup: bool
    dependencies: bool
    schedules: bool
    broker_store: bool
    """It can keep the state for a message broker."""
    transactional_enqueue: bool
    """`backend.on(connection)` enqueues inside the caller's own transaction."""
    one_round_trip: bool
    """Every lifecycle call is one round trip to the store (promise F5)."""
    clock: str
    """Whose clock decides (promise F4)."""
