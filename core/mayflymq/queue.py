"""The facade for producers, operators, the worker and maintenance.

Thin over the backend: it turns what people write into checked values, and it is the one place that emits
events and logs lost claims, so that all backends report alike.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol, TypeVar, Unpack

from . import codec, events, lifecycle, model, schedules
from .backends.base import Backend, open_backend
from .errors import ConfigurationError, InvalidJob, redacted
from .events import Event, emit
from .model import (
    MAX_BATCH,
    MAX_TIME,
    Backoff,
    Beat,
    Cancelled,
    CancelStatus,
    CatchUp,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Dedup,
    Dependant,
    Drained,
    Dropped,
    Enqueued,
    EnqueueStatus,
    Job,
    JobPage,
    NewJob,
    ParentPolicy,
    QueueInfo,
    Recovered,
    Recovery,
    Removed,
    Retried,
    Schedule,
    Seconds,
    Settle,
    Settled,
    Settlement,
    SettleResult,
    State,
    StoredSchedule,
    check_int,
    check_queue,
    check_state,
    check_text,
    duration_ms,
    shown,
)
from .tasks import JobOptions, JobSpec, Task, produce_through, registry

log = logging.getLogger("mayflymq")

DEFAULT_URL = "sqlite:///mayflymq.db"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_RINGS = 10
"""How many rings for delayed jobs one call makes; what is not rung for starts at the schedule's next tick."""
LONGEST_RING_MS = 15 * 60 * 1000
"""The longest delay of a ring, as of an SQS message; a later job is found by the promoter."""

T = TypeVar("T")

_default: Backend | None = None
_doorbell: Doorbell | None = None


class Doorbell(Protocol):
    """Wakes a worker for a queue. It carries no truth: a lost ring costs one tick of a schedule, never a
    job."""

    def ring(self, queue: str, delay_ms: int) -> None:
        """Wakes a worker after `delay_ms` (at most LONGEST_RING_MS). What it raises is logged and changes
        nothing."""
        ...


def connect(backend: str | Backend, *, doorbell: Doorbell | None = None) -> Backend:
    """Sets the backend (or its URL) that this process uses where none is given, and returns it; and the
    doorbell that every queue rings which has none of its own.

    Nothing is connected before the first call. Raises ConfigurationError for a URL that names no backend, and
    for None.
    """
    global _default, _doorbell
    _default = open_backend(backend) if isinstance(backend, str) else check_backend(backend)
    _doorbell = doorbell
    return _default


def default_backend() -> Backend:
    """The backend that `connect` set; without that, the one of MAYFLYMQ_BACKEND_URL, else of
    `sqlite:///mayflymq.db`.

    Raises ConfigurationError when nothing is set inside AWS Lambda, where a local file is lost with the
    sandbox.
    """
    # No lock: two threads that both come first may open two, which is harmless as nothing is connected yet,
    # and a lock could be left held in a forked child.
    if _default is not None:
        return _default
    url = os.environ.get("MAYFLYMQ_BACKEND_URL")
    if not url:
        if os.environ.get("AWS_LAMBDA_FUNCTION_NAME"):
            raise ConfigurationError(
                "set MAYFLYMQ_BACKEND_URL: inside AWS Lambda there is no default backend"
            )
        url = DEFAULT_URL
    return connect(url)


def check_backend(backend: Backend) -> Backend:
    """Returns the backend; raises ConfigurationError when it is a URL that was not opened, or None."""
    if isinstance(backend, str):
        url = repr(redacted(backend)) if "://" in backend else "url"
        raise ConfigurationError(f"text is no backend; give a backend: open_backend({url})")
    if backend is None:
        raise ConfigurationError(
            "None is no backend (a variable that is not set reads as None); give a backend: open_backend(url)"
        )
    return backend


def new_id() -> str:
    """A fresh id: a version 7 UUID as text (RFC 9562), so ids made later sort later.

    The randomness is the system's own: a snapshot of this process that is resumed twice repeats none.
    """
    ms, rest_ns = divmod(time.time_ns(), 1_000_000)
    chance = int.from_bytes(os.urandom(8)) >> 2
    number = ms << 80 | 0x7 << 76 | (rest_ns * 4096 // 1_000_000) << 64 | 0b10 << 62 | chance
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _unknown() -> None: ...


_UNKNOWN = Task(name="unknown", fn=_unknown)
"""How jobs are treated whose task this process does not know."""


class Queue:
    """One queue on one backend (the default one where none is given, see `connect`).

    Raises InvalidJob for a name that a queue cannot have, ConfigurationError for a URL in place of a backend.
    """

    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        *,
        doorbell: Doorbell | None = None,
        max_payload_bytes: int = codec.MAX_PAYLOAD_BYTES,
    ) -> None:
        self.name = check_queue(name)
        self.max_payload_bytes = check_int("max_payload_bytes", max_payload_bytes, 1, MAX_TIME)
        self._backend = None if backend is None else check_backend(backend)
        self._doorbell = doorbell

    @property
    def backend(self) -> Backend:
        """The backend that holds this queue."""
        return default_backend() if self._backend is None else self._backend

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # Producers

    def job(
        self,
        task: str | Task[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        job_id: str | None = None,
        priority: int | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        max_retries: int | None = None,
        backoff: Backoff | None = None,
        meta: Mapping[str, str] | None = None,
        depends_on: Sequence[str] = (),
        on_parent_failure: ParentPolicy | str = ParentPolicy.FAIL,
        dedup: Dedup | None = None,
    ) -> NewJob:
        """The job that `enqueue` would write, checked and not written; `enqueue` says what the options mean.

        Raises InvalidJob, PayloadTooLarge.
        """
        args = args if type(args) is tuple else tuple(_checked("args", args, Sequence))
        kwargs = {} if kwargs is None else dict(_checked("kwargs", kwargs, Mapping))
        meta = {} if meta is None else dict(_checked("meta", meta, Mapping))
        payload = codec.encode_payload(args, kwargs, meta, self.max_payload_bytes)
        if isinstance(task, Task):
            name, known = task.name, task
        else:
            name, known = task, registry.get(task) if task in registry else _UNKNOWN
        if known is not _UNKNOWN:
            known.bind(args, kwargs)
        return NewJob(
            id=new_id() if job_id is None else job_id,
            queue=self.name,
            task=name,
            payload=payload,
            priority=known.priority if priority is None else priority,
            delay_ms=0 if delay is None else max(0, duration_ms("delay", delay)),
            run_at=None if run_at is None else _epoch_ms("run_at", run_at),
            ttl_ms=known.ttl_ms if ttl is None else _limit_ms("ttl", ttl),
            timeout_ms=known.timeout_ms if timeout is None else _limit_ms("timeout", timeout),
            max_retries=known.max_retries if max_retries is None else max_retries,
            backoff=known.backoff if backoff is None else backoff,
            depends_on=_many("depends_on", depends_on),
            on_parent_failure=_policy(on_parent_failure),
            dedup=dedup,
        )

    def enqueue(
        self,
        task: str | Task[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[JobOptions],
    ) -> Enqueued:
        """Enqueues one call of a task, or of a task's name; a name that this process does not know is
        allowed.

        The job is durable when this returns, as far as the backend is (D1). Options, each in place of the
        task's own:

        - `job_id`: unique in the queue; enqueueing it again changes nothing and answers DUPLICATE_ID (D6,
          G1).
        - `priority`: lower first, -2**31 to 2**31-1.
        - `delay` (seconds or timedelta) or `run_at` (aware datetime): when it becomes due; a past time means
          now.
        - `ttl`: how long after its creation it may still start (E1); `timeout`: how long one run may take.
        - `max_retries`, `backoff`: how often, and after how long, it is run again when its handler fails.
        - `meta`: a small map of text to text for the caller's own use (trace context, tenant).
        - `depends_on`: ids of jobs in this queue that must end first; `on_parent_failure`: "fail" or "run"
          (G3).
        - `dedup`: a `Dedup` key (G2).

        Raises InvalidJob for a value that cannot be meant and for parents that the store refuses,
        PayloadTooLarge, BackendError.
        """
        answer = self.enqueue_jobs([self.job(task, args, kwargs, **options)])[0]
        if answer.status is EnqueueStatus.REFUSED:
            raise InvalidJob(answer.reason or "the store refused the job")
        return answer

    def enqueue_many(self, specs: Iterable[JobSpec]) -> list[Enqueued]:
        """Enqueues many jobs, each accepted or refused by itself (G4): the answers have the order of the
        specs.

        Sent in parts of at most 1,000. Raises InvalidJob, and writes nothing, when one of them is no JobSpec;
        BackendError when the store fails: the parts sent before it stay, so give each job a job_id where the
        call may be repeated (D6).
        """
        answers: list[Enqueued | None] = []
        jobs: list[NewJob] = []
        for spec in specs:
            if not isinstance(spec, JobSpec):
                raise _no_spec(len(answers), spec)
            try:
                jobs.append(self.job(spec.task, spec.args, spec.kwargs, **spec.options))
                answers.append(None)
            except InvalidJob as error:
                job_id = spec.options.get("job_id")
                answers.append(
                    Enqueued(
                        job_id if isinstance(job_id, str) else "", EnqueueStatus.REFUSED, reason=str(error)
                    )
                )
        written = iter(self.enqueue_jobs(jobs))
        return [next(written) if answer is None else answer for answer in answers]

    def enqueue_jobs(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Writes jobs made by `job()`, in parts of at most 1,000; the answers have their order."""
        answers: list[Enqueued] = []
        for start in range(0, len(jobs), MAX_BATCH):
            part = jobs[start : start + MAX_BATCH]
            written = self.backend.enqueue(part)
            answers += written
            for job, answer in zip(part, written, strict=True):
                if answer.dependants or events.heard():
                    self._enqueued(job, answer)
            # Also for a job that was there before: the ring after the first answer may be what was lost.
            self._ring_for(
                (job.delay_ms if job.run_at is None else max(0, job.run_at - time.time_ns() // 1_000_000))
                for job, answer in zip(part, written, strict=True)
                if answer.state in (State.WAITING, State.DELAYED)
            )
        return answers

    def _enqueued(self, job: NewJob, answer: Enqueued) -> None:
        if answer.status not in (EnqueueStatus.CREATED, EnqueueStatus.REPLACED):
            return
        if answer.status is EnqueueStatus.REPLACED and answer.holder is not None:
            self._emit(events.CANCELLED, answer.holder, state=State.CANCELLED, detail=f"replaced by {job.id}")
        self._emit(events.ENQUEUED, job.id, task=job.task, state=answer.state)
        if answer.state is State.FAILED:
            self._emit(events.FAILED, job.id, task=job.task, state=State.FAILED, detail="a parent had failed")
        self._moved(answer.dependants)

    def enqueue_flow(self, specs: Mapping[str, JobSpec]) -> dict[str, Enqueued]:
        """Enqueues a small graph in one call: each spec by a name of its own, `depends_on` naming others of
        the graph (or jobs that exist). A name becomes the job's id, unless its options give a job_id (G3).

        Nothing is written when the graph is not one: a circle, more than 1,000 jobs, a value that cannot be
        meant (InvalidJob). Parents are written before their children, so each answer stands for itself.
        """
        ids: dict[str, str] = {}
        parents: dict[str, tuple[str, ...]] = {}
        for name, spec in specs.items():
            if not isinstance(spec, JobSpec):
                raise _no_spec(name, spec)
            job_id = spec.options.get("job_id")
            ids[check_text("a name in a flow", name)] = name if job_id is None else job_id
            parents[name] = _many("depends_on", spec.options.get("depends_on", ()))
        try:
            order = tuple(
                TopologicalSorter(
                    {name: [p for p in above if p in specs] for name, above in parents.items()}
                ).static_order()
            )
        except CycleError as error:
            raise InvalidJob(f"the flow goes in a circle: {' -> '.join(error.args[1])}") from error
        if len(order) > MAX_BATCH:
            raise InvalidJob(f"a flow has at most {MAX_BATCH} jobs, this one {len(order)}")
        jobs = []
        for name in order:
            spec = specs[name]
            options: JobOptions = {
                **spec.options,
                "job_id": ids[name],
                "depends_on": [ids.get(parent, parent) for parent in parents[name]],
            }
            jobs.append(self.job(spec.task, spec.args, spec.kwargs, **options))
        return dict(zip(order, self.enqueue_jobs(jobs), strict=True))

    # Schedules

    def schedule(
        self,
        schedule_id: str,
        task: str | Task[..., Any],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        every: Seconds | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp | str = CatchUp.SKIP,
        priority: int | None = None,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        max_retries: int | None = None,
        backoff: Backoff | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Schedule:
        """Writes a schedule, new or in place of one of the same id: a job of the task at every slot (G6).

        Give `every` (a period of whole seconds; slots are its multiples since 1970 in UTC) or `cron` (minute,
        hour, day of month, month, day of week, read in `timezone`). A slot that no promoter came for in time
        (five minutes, or the period where that is shorter) is missed: `catch_up` "skip" leaves missed slots
        out, "one" makes up for the latest, "all" for each. Changing a schedule fires no slot twice.

        Raises InvalidJob for a value that cannot be meant, BackendError.
        """
        sample = self.job(
            task,
            args,
            kwargs,
            priority=priority,
            ttl=ttl,
            timeout=timeout,
            max_retries=max_retries,
            backoff=backoff,
            meta=meta,
        )
        try:
            rule = CatchUp(catch_up)
        except ValueError:
            raise InvalidJob(f"catch_up must be 'skip', 'one' or 'all', not {shown(catch_up)}") from None
        made = Schedule(
            id=schedule_id,
            queue=self.name,
            task=sample.task,
            payload=sample.payload,
            every_ms=_limit_ms("every", every),
            cron=cron,
            timezone=timezone,
            catch_up=rule,
            priority=sample.priority,
            ttl_ms=sample.ttl_ms,
            timeout_ms=sample.timeout_ms,
            max_retries=sample.max_retries,
            backoff=sample.backoff,
        )
        schedules.check(made)
        self.backend.put_schedule(made)
        return made

    def schedules(self, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        """The schedules by id, those behind `after`."""
        if after is not None:
            check_text("a schedule's id", after)
        return self.backend.list_schedules(self.name, after, limit)

    def unschedule(self, schedule_id: str) -> bool:
        """Deletes a schedule; the jobs that it made stay. Returns whether there was one."""
        return self.backend.remove_schedule(self.name, check_text("a schedule's id", schedule_id))

    def pause_schedule(self, schedule_id: str) -> bool:
        """The schedule makes no jobs until `resume_schedule`. Returns whether there is one."""
        return self.backend.pause_schedule(self.name, check_text("a schedule's id", schedule_id), True)

    def resume_schedule(self, schedule_id: str) -> bool:
        """Ends a pause; what would have fired during it is left out. Returns whether there is one."""
        return self.backend.pause_schedule(self.name, check_text("a schedule's id", schedule_id), False)

    # Operators

    def get(self, job_id: str) -> Job | None:
        """The job as it stands, None when there is none of that id."""
        return self.backend.get(self.name, [check_text("a job id", job_id)])[0]

    def jobs(self, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        """A page of the jobs in one state (A5)."""
        return self.backend.list_jobs(self.name, check_state(state), cursor, limit)

    def info(self, *, exact: bool = False) -> QueueInfo:
        """The queue at a glance; each count stops at 10,000 unless `exact`."""
        return self.backend.queues([self.name], exact=exact)[0]

    def cancel(self, job_id: str) -> Cancelled:
        """Cancels a job: at once while it is queued, by a marker that its worker sees while it is active (X1,
        X2)."""
        answer = self.backend.cancel(self.name, [check_text("a job id", job_id)])[0]
        if answer.status is CancelStatus.CANCELLED:
            self._emit(events.CANCELLED, job_id, state=State.CANCELLED)
        self._moved(answer.dependants)
        return answer

    def retry(self, job_id: str) -> Retried:
        """Takes a failed or expired job out of the dead-letter queue and makes it eligible again (A2)."""
        answer = self.backend.retry(self.name, [check_text("a job id", job_id)])[0]
        if answer.state is State.WAITING:
            self.ring()
        return answer

    def remove(self, job_id: str) -> Removed:
        """Deletes a job in any state with all that belongs to it (A3)."""
        answer = self.backend.remove(self.name, [check_text("a job id", job_id)])[0]
        self._moved(answer.dependants)
        return answer

    def pause(self) -> None:
        """No worker gets a job of this queue until `resume`; running jobs finish (A1)."""
        self.backend.set_paused(self.name, True)

    def resume(self) -> None:
        """Ends a pause."""
        self.backend.set_paused(self.name, False)
        self.ring()

    def drain(self, *, include_delayed: bool = False, limit: int = MAX_BATCH) -> Drained:
        """Removes at most `limit` jobs that did not start (A4)."""
        answer = self.backend.drain(self.name, include_delayed, limit)
        self._moved(answer.dependants)
        return answer

    def clean(self, states: Collection[State], older_than: Seconds, limit: int = MAX_BATCH) -> list[str]:
        """Removes at most `limit` jobs that ended in these states at least `older_than` ago, and returns
        their ids (A6)."""
        ended = [check_state(state) for state in _many("states", states)]
        return self.backend.clean(self.name, ended, max(0, duration_ms("older_than", older_than)), limit)

    def drop(self, *, force: bool = False) -> Dropped:
        """Removes the queue whole; refused while jobs are active, unless forced (A6)."""
        return self.backend.drop_queue(self.name, force)

    def dedup_holder(self, key: str, *, release: bool = False) -> str | None:
        """The id of the job that holds a deduplication key, or None; with `release` the key is freed (G2)."""
        return self.backend.dedup_holder(self.name, check_text("a deduplication key", key), release)

    # Lifecycle: the worker's and maintenance's calls

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """As `Backend.claim`."""
        return self.backend.claim(request)

    def started(self, claimed: ClaimedJob) -> None:
        """Says that the handler of a claimed job is about to be called."""
        self._emit(events.STARTED, claimed.job.id, task=claimed.job.task, state=State.ACTIVE)

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        """As `Backend.heartbeat`; logs the claims that are lost."""
        answers = self.backend.heartbeat(beats)
        for beat, answer in zip(beats, answers, strict=True):
            if answer is ClaimStatus.LOST:
                self._lost(beat.claim, "heartbeat")
        return answers

    def settle(
        self,
        settles: Sequence[Settle],
        claim_next: ClaimRequest | None = None,
        *,
        tasks: Mapping[str, str] | None = None,
    ) -> SettleResult:
        """As `Backend.settle`, and tells it (`settled`)."""
        result = self.backend.settle(settles, claim_next)
        self.settled(settles, result.settled, tasks=tasks)
        return result

    def settled(
        self,
        settles: Sequence[Settle],
        answers: Sequence[Settled],
        *,
        tasks: Mapping[str, str] | None = None,
    ) -> None:
        """Emits what the backend's answers say has happened, logs the claims that are lost and rings for
        what is put off. `tasks` gives the events their task, by job id."""
        delays_ms: list[int] = []
        for settle, settled in zip(settles, answers, strict=True):
            job_id = settle.claim.job_id
            task = None if tasks is None else tasks.get(job_id)
            if settled.status is Settlement.LOST:
                self._lost(settle.claim, type(settle.outcome).__name__.lower())
            elif settled.status is Settlement.CANCELLED:
                self._emit(events.CANCELLED, job_id, task=task, state=State.CANCELLED)
            else:
                # Also for DUPLICATE: the first answer was lost, so its event was never sent.
                self._outcome(job_id, task, settle.outcome)
                if isinstance(settle.outcome, model.Retry | model.Defer) and settle.outcome.delay_ms:
                    # Without a delay the worker that settles goes on to claim it, or says that it left work.
                    delays_ms.append(settle.outcome.delay_ms)
            self._moved(settled.dependants)
        self._ring_for(delays_ms)

    def _outcome(self, job_id: str, task: str | None, outcome: model.Outcome) -> None:
        match outcome:
            case model.Complete():
                self._emit(events.COMPLETED, job_id, task=task, state=State.COMPLETED)
            case model.Retry(delay_ms, error):
                self._emit(events.RETRYING, job_id, task=task, state=_resting(delay_ms), error=error)
            case model.Defer(delay_ms):
                self._emit(events.DEFERRED, job_id, task=task, state=_resting(delay_ms))
            case model.Fail(error):
                self._emit(events.FAILED, job_id, task=task, state=State.FAILED, error=error, exhausted=True)
            case model.Expire():
                self._emit(events.EXPIRED, job_id, task=task, state=State.EXPIRED)
            case model.Cancel():
                self._emit(events.CANCELLED, job_id, task=task, state=State.CANCELLED)
            case model.Release():
                pass  # it never started, so nothing happened to it

    def release_stale(self, limit: int, max_stalls: int) -> list[Recovered]:
        """As `Backend.release_stale`; emits what happened and logs each job found."""
        answers = self.backend.release_stale(self.name, limit, max_stalls)
        for found in answers:
            about = {
                "queue": self.name,
                "job_id": found.job_id,
                "worker": found.worker,
                "stalls": found.stalls,
            }
            detail = f"worker {found.worker} stopped renewing its claim"
            match found.status:
                case Recovery.UNREADABLE:
                    log.error("a record cannot be read: %s", found.detail, extra=about)
                case Recovery.RELEASED:
                    log.warning("a stalled job goes back to waiting", extra=about)
                    self._emit(events.STALLED, found.job_id, state=State.WAITING, detail=detail)
                case Recovery.FAILED:
                    log.error("a job stalled too often and failed", extra=about)
                    self._emit(events.STALLED, found.job_id, state=State.FAILED, detail=detail)
                    error = lifecycle.stalled_out(found.stalls)
                    self._emit(events.FAILED, found.job_id, state=State.FAILED, error=error)
                case Recovery.CANCELLED:
                    self._emit(events.CANCELLED, found.job_id, state=State.CANCELLED)
                case Recovery.CASCADED:
                    pass  # its children tell
            self._moved(found.dependants)
        if any(found.status is Recovery.RELEASED for found in answers):
            self.ring()
        return answers

    def promote_due(self, limit: int) -> list[str]:
        """As `Backend.promote_due`; emits what happened."""
        ids = self.backend.promote_due(self.name, limit)
        for job_id in ids:
            self._emit(events.PROMOTED, job_id)
        if ids:
            self.ring()
        return ids

    # The doorbell

    @property
    def has_doorbell(self) -> bool:
        """Whether `ring` has anything to ring."""
        return (self._doorbell or _doorbell) is not None

    def ring(self, delay_ms: int = 0) -> None:
        """Wakes a worker for this queue, where there is a doorbell. Every call that makes work does so
        itself; to be called by hand after the commit of a transaction of one's own that enqueued."""
        doorbell = self._doorbell or _doorbell
        if doorbell is None:
            return
        try:
            doorbell.ring(self.name, delay_ms)
        except Exception as error:
            log.warning("the doorbell failed, a schedule will do: %s", error, extra={"queue": self.name})

    def _ring_for(self, delays_ms: Iterable[int]) -> None:
        """Rings once for each whole second at which jobs become due, the first ones only."""
        if not self.has_doorbell:
            return
        seconds = {-(-delay // 1000) for delay in delays_ms if delay <= LONGEST_RING_MS}
        for due in sorted(seconds)[:MAX_RINGS]:
            self.ring(due * 1000)

    # What was done, told

    def _emit(self, name: str, job_id: str, **about: Any) -> None:
        if events.heard():
            emit(Event(name, self.name, job_id, **about))

    def _moved(self, dependants: Sequence[Dependant]) -> None:
        if any(child.state is State.WAITING for child in dependants):
            self.ring()
        for child in dependants:
            if child.state is State.WAITING:
                self._emit(events.PROMOTED, child.job_id, state=child.state, detail="its parents ended")
            elif child.state is State.FAILED:
                self._emit(events.FAILED, child.job_id, state=child.state, detail="a parent failed")

    def _lost(self, claim: model.Claim, call: str) -> None:
        log.warning(
            "a claim is lost: the job was recovered, removed or settled otherwise, so this changed nothing",
            extra={"queue": claim.queue, "job_id": claim.job_id, "call": call},
        )


def _resting(delay_ms: int) -> State:
    return State.DELAYED if delay_ms else State.WAITING


def _limit_ms(what: str, value: Seconds | None) -> int | None:
    if value is None:
        return None
    ms = duration_ms(what, value)
    if ms <= 0:
        raise InvalidJob(f"{what} must be above 0, not {shown(value)}")
    return ms


def _epoch_ms(what: str, value: object) -> int:
    if not isinstance(value, datetime):
        raise InvalidJob(
            f"{what} must be a datetime with a time zone, not {type(value).__name__}: {shown(value)}"
        )
    if value.utcoffset() is None:
        raise InvalidJob(
            f"{what} must have a time zone, and {shown(value)} has none; see datetime.astimezone()"
        )
    return min(max(0, (value - _EPOCH) // timedelta(milliseconds=1)), MAX_TIME)


def _checked(what: str, value: T, kind: type) -> T:
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        raise InvalidJob(f"{what} must be a {kind.__name__.lower()}, not {type(value).__name__}")
    return value


def _no_spec(place: object, value: object) -> InvalidJob:
    kind = type(value).__name__
    return InvalidJob(f"job {shown(place)} must be a JobSpec, JobSpec(task, args, kwargs), not a {kind}")


def _many(what: str, value: object) -> tuple[Any, ...]:
    if value == ():
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise InvalidJob(f"{what} must be a list, not {type(value).__name__}: {shown(value)}")
    return tuple(value)


def _policy(value: ParentPolicy | str) -> ParentPolicy:
    if type(value) is ParentPolicy:
        return value
    try:
        return ParentPolicy(value)
    except ValueError:
        raise InvalidJob(f"on_parent_failure must be 'fail' or 'run', not {shown(value)}") from None


produce_through(Queue)
