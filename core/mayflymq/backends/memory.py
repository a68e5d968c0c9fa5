"""The reference backend: the plainest code that meets the contract of `base.py`, in one process (promise
C10).

A queue keeps one ordered list per state. Every state change goes through `_Queue.move`, which holds it to
`lifecycle.TRANSITIONS`; every ending goes through `_Queue.end`.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Any

from .. import lifecycle, model
from ..lifecycle import Event
from ..model import (
    DEAD_LETTER,
    MAX_CHILDREN_A_STEP,
    TERMINAL,
    Beat,
    Cancelled,
    CancelStatus,
    Capabilities,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Clock,
    Counts,
    DedupMode,
    Dependant,
    Drained,
    Dropped,
    DueSchedules,
    Enqueued,
    EnqueueStatus,
    Finding,
    Job,
    JobPage,
    NewJob,
    NotClaimed,
    ParentPolicy,
    QueueInfo,
    Recovered,
    Recovery,
    Removed,
    Retried,
    RetryStatus,
    Schedule,
    Settle,
    Settled,
    Settlement,
    SettleResult,
    Severity,
    State,
    StoredSchedule,
    Target,
    Unpublished,
    WorkerInfo,
)
from . import base

CAPABILITIES = Capabilities(
    durable=False,
    shared=False,
    lambda_ready=False,
    ordering="priority, then the order of entering waiting",
    strict_priority=True,
    dedup=True,
    dependencies=True,
    schedules=True,
    broker_store=True,
    transactional_enqueue=False,
    one_round_trip=True,
    clock="this process",
)


@dataclass(slots=True)
class _Delivery:
    token: str
    taken_at: int | None = None
    published_at: int | None = None


@dataclass(slots=True)
class _Record:
    job: Job
    place: int
    """Orders jobs of one rank; a new one on every entry into waiting, except by Release."""
    family: int
    """Names this life of the job as a parent: an ending settles the children of one life, not of the next."""
    unfinished: set[int] = field(default_factory=set)
    """The families of the parents that it still waits for."""
    settled: tuple[str, str] | None = None
    """The last claim's token and how it ended, until the next claim (promise D7)."""
    delivery: _Delivery | None = None
    """What a broker delivers of it, in the states that are delivered."""

    @property
    def rank(self) -> int:
        """What its state is ordered by, before the place."""
        job = self.job
        by_state = {
            State.WAITING: job.priority,
            State.DELAYED: job.run_at,
            State.ACTIVE: job.stale_at,
            State.BLOCKED: 0,
        }
        rank = by_state.get(job.state, job.finished_at)
        assert rank is not None
        return rank


@dataclass(slots=True)
class _Key:
    holder: str
    until: int | None
    """When a throttle window is over; None for a key that is held until its job ends."""


class _Queue:
    def __init__(self, name: str, store: _Store) -> None:
        self.name = name
        self.store = store
        self.paused = False
        self.jobs: dict[str, _Record] = {}
        self.order: dict[State, list[tuple[int, int, str]]] = {state: [] for state in State}
        self.claims: dict[str, dict[str, None]] = {}
        self.keys: dict[str, _Key] = {}
        self.children: dict[int, dict[str, None]] = {}
        self.cascades: dict[int, tuple[str, str]] = {}
        self.schedules: dict[str, StoredSchedule] = {}
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last

    # Every write of a record

    def add(self, record: _Record) -> None:
        self.jobs[record.job.id] = record
        self.put_back(record)
        self.deliver(record)
        for family in record.unfinished:
            self.children.setdefault(family, {})[record.job.id] = None

    def put_back(self, record: _Record) -> None:
        """The record takes its place in its state's order and holds its claim."""
        insort(self.order[record.job.state], (record.rank, record.place, record.job.id))
        if record.job.claim_token is not None:
            self.claims.setdefault(record.job.claim_token, {})[record.job.id] = None

    def take_out(self, record: _Record) -> None:
        """The record leaves its state's order and lets go of its claim; `put_back` follows, unless it is
        removed."""
        job = record.job
        order = self.order[job.state]
        del order[bisect_left(order, (record.rank, record.place, job.id))]
        if job.claim_token is not None:
            held = self.claims[job.claim_token]
            del held[job.id]
            if not held:
                del self.claims[job.claim_token]

    def move(self, record: _Record, event: Event, state: State, **changes: Any) -> None:
        """One lifecycle transition. Leaving active clears the claim; entering waiting takes a new place,
        except by Release."""
        if state not in lifecycle.TRANSITIONS.get((record.job.state, event), ()):
            raise AssertionError(f"{record.job.state} does not become {state} by {event}")
        if record.job.state is State.ACTIVE and state is not State.ACTIVE:
            changes = {
                "claim_token": None,
                "heartbeat_at": None,
                "stale_at": None,
                "cancel_requested": False,
            } | changes
        self.take_out(record)
        if state is State.WAITING and event is not Event.RELEASE:
            record.place = self.next()
        entered = state is not record.job.state
        record.job = replace(record.job, state=state, **changes)
        self.put_back(record)
        if entered:
            self.deliver(record)

    def deliver(self, record: _Record) -> None:
        """Entering a state that a broker delivers makes a delivery, entering another one ends it."""
        delivered = self.store.broker and record.job.state in (State.WAITING, *DEAD_LETTER)
        record.delivery = _Delivery(os.urandom(16).hex()) if delivered else None

    def end(
        self, record: _Record, event: Event, state: State, now: int, **changes: Any
    ) -> tuple[Dependant, ...]:
        """A move to a terminal state, with what belongs to every ending."""
        self.move(record, event, state, finished_at=now, **changes)
        self.let_go(record)
        return self.settle_children(record.family, record.job.id, state, now)

    def remove(self, record: _Record, now: int) -> tuple[Dependant, ...]:
        self.take_out(record)
        del self.jobs[record.job.id]
        self.let_go(record)
        if record.job.state.terminal:
            return ()
        return self.settle_children(record.family, record.job.id, "removed", now)

    def let_go(self, record: _Record) -> None:
        """Releases the key that the job still holds, and its place among its parents' children."""
        if record.job.dedup:
            key = self.keys.get(record.job.dedup.key)
            if key and key.holder == record.job.id and key.until is None:
                del self.keys[record.job.dedup.key]
        for family in record.unfinished:
            self.children[family].pop(record.job.id, None)
        record.unfinished.clear()

    # Children (promise G3)

    def settle_children(self, family: int, parent: str, ended: str, now: int) -> tuple[Dependant, ...]:
        """Settles the children of an ended parent, and theirs, at most MAX_CHILDREN_A_STEP; marks what
        remains."""
        dependants: list[Dependant] = []
        budget = MAX_CHILDREN_A_STEP
        ended_parents = deque([(family, parent, ended)])
        while ended_parents:
            family, parent, ended = ended_parents.popleft()
            children = self.children.get(family, {})
            while children and budget:
                budget -= 1
                child = self.jobs[next(iter(children))]
                del children[child.job.id]
                child.unfinished.discard(family)
                if ended == State.COMPLETED or child.job.on_parent_failure is ParentPolicy.RUN:
                    if child.job.state is State.BLOCKED and not child.unfinished:
                        self.move(child, Event.PARENTS_DONE, State.WAITING)
                        dependants.append(Dependant(child.job.id, State.WAITING))
                    continue
                error = lifecycle.parent_failed(parent, ended)
                first = child.job.first_error or error
                self.move(
                    child, Event.PARENT_FAILED, State.FAILED, finished_at=now, error=error, first_error=first
                )
                self.let_go(child)
                dependants.append(Dependant(child.job.id, State.FAILED))
                ended_parents.append((child.family, child.job.id, State.FAILED))
            if children:
                self.cascades[family] = (parent, ended)
            else:
                self.children.pop(family, None)
                self.cascades.pop(family, None)
        return tuple(dependants)

    # Deduplication (promise G2)

    def holder(self, key: str, now: int) -> str | None:
        held = self.keys.get(key)
        if held and held.until is not None and held.until <= now:
            del self.keys[key]
            return None
        return held.holder if held else None

    # Reading

    def in_order(self, state: State) -> Iterator[_Record]:
        return (self.jobs[job_id] for _, _, job_id in self.order[state])

    def due(self, state: State, now: int, limit: int) -> list[_Record]:
        """At most `limit` records of a state that is ordered by time, whose time has come."""
        order = self.order[state]
        return [self.jobs[job_id] for rank, _, job_id in order[:limit] if rank <= now]

    def info(self, now: int, *, exact: bool) -> QueueInfo:
        cap = None if exact else base.COUNT_CAP
        sizes = {state: len(order) for state, order in self.order.items()}
        counts = {state.value: size if cap is None else min(size, cap) for state, size in sizes.items()}
        dead = sum(sizes[state] for state in DEAD_LETTER)
        ages: dict[str, int] = {}
        claims = Counter[str]()
        for record in self.in_order(State.ACTIVE):
            job = record.job
            assert job.worker is not None
            assert job.heartbeat_at is not None
            claims[job.worker] += 1
            ages[job.worker] = max(ages.get(job.worker, 0), now - job.heartbeat_at)
        oldest = sorted(ages, key=lambda worker: (-ages[worker], worker))[: base.MAX_WORKERS_SHOWN]
        firsts: dict[int, Job] = {}
        for record in self.in_order(State.WAITING):
            firsts.setdefault(record.job.priority, record.job)
        first = list(firsts.values())[: base.MAX_PRIORITIES_SEEN]
        since = [max(job.created_at, job.run_at or 0, job.retried_at or 0) for job in first]
        return QueueInfo(
            name=self.name,
            paused=self.paused,
            counts=Counts(**counts),
            dead_letters=dead if cap is None else min(dead, cap),
            workers=tuple(WorkerInfo(worker, claims[worker], ages[worker]) for worker in oldest),
            oldest_waiting_age_ms=max(0, now - min(since)) if since else None,
            oldest_heartbeat_age_ms=max(ages.values(), default=None),
        )


class _Store:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.broker = False
        self.queues: dict[str, _Queue] = {}
        self.revisions = count(1)  # outlives the queues

    def enable_broker(self) -> None:
        """From now on every job that a broker delivers has a delivery, those that are there too."""
        with self.lock:
            if not self.broker:
                self.broker = True
                for queue in self.queues.values():
                    for record in queue.jobs.values():
                        queue.deliver(record)

    def queue(self, name: str) -> _Queue:
        """The queue of that name, made on its first use."""
        return self.queues.setdefault(model.check_queue(name), _Queue(name, self))


_stores: dict[str, _Store] = {}
_stores_lock = threading.Lock()


def open(url: str, *, broker: bool = False, clock: Clock | None = None) -> MemoryBackend:
    """Opens `memory://name`; handles of one name in one process share one store."""
    with _stores_lock:
        store = _stores.setdefault(url.partition("://")[2], _Store())
    if broker:
        store.enable_broker()
    return MemoryBackend(store, clock or (lambda: time.time_ns() // 1_000_000))


class MemoryBackend:
    """Keeps the jobs in this process; they are lost with it."""

    def __init__(self, store: _Store, clock: Clock) -> None:
        self._store = store
        self._lock = store.lock
        self._clock = clock

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Lifecycle

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        base.check_batch("jobs", jobs)
        base.check_one_queue({job.queue for job in jobs})
        with self._lock:
            return [self._enqueue(new, self._clock()) for new in jobs]

    def _enqueue(self, new: NewJob, now: int) -> Enqueued:
        queue = self._store.queues.get(new.queue) or _Queue(new.queue, self._store)
        if existing := queue.jobs.get(new.id):
            return Enqueued(new.id, EnqueueStatus.DUPLICATE_ID, existing.job.state)
        for parent in new.depends_on:
            if parent not in queue.jobs:  # so is its own id at this moment
                return Enqueued(new.id, EnqueueStatus.REFUSED, reason=base.unknown_parent(new, parent))

        run_at = new.run_at if new.run_at is not None else min(now + new.delay_ms, model.MAX_TIME)
        replaced = None
        if new.dedup and (holder := queue.holder(new.dedup.key, now)):
            held_by = queue.jobs.get(holder)
            if (
                new.dedup.mode is not DedupMode.DEBOUNCE
                or not held_by
                or held_by.job.state is not State.DELAYED
            ):
                state = held_by.job.state if held_by else None
                return Enqueued(new.id, EnqueueStatus.DEDUPLICATED, state, holder)
            replaced = held_by
            if not new.dedup.extend and held_by.job.run_at is not None:
                run_at = held_by.job.run_at
        dependants = queue.end(replaced, Event.REPLACE, State.CANCELLED, now) if replaced else ()

        parents = [queue.jobs[parent] for parent in dict.fromkeys(new.depends_on)]
        unfinished = {parent.family for parent in parents if not parent.job.state.terminal}
        failed = next((p.job for p in parents if p.job.state in TERMINAL - {State.COMPLETED}), None)
        job = Job(
            id=new.id,
            queue=new.queue,
            task=new.task,
            payload=new.payload,
            state=lifecycle.entry_state(due=run_at <= now, unfinished_parents=bool(unfinished)),
            priority=new.priority,
            created_at=now,
            run_at=run_at if run_at > now else None,
            ttl_ms=new.ttl_ms,
            timeout_ms=new.timeout_ms,
            max_retries=new.max_retries,
            backoff=new.backoff,
            depends_on=new.depends_on,
            on_parent_failure=new.on_parent_failure,
            dedup=new.dedup,
        )
        if failed and new.on_parent_failure is ParentPolicy.FAIL:
            error = lifecycle.parent_failed(failed.id, failed.state)
            job = replace(job, state=State.FAILED, finished_at=now, error=error, first_error=error)
            unfinished = set()
        elif new.dedup:
            until = now + new.dedup.window_ms if new.dedup.mode is DedupMode.THROTTLE else None
            queue.keys[new.dedup.key] = _Key(new.id, until)
        self._store.queues[new.queue] = queue  # only now: a refused job leaves no queue behind
        queue.add(_Record(job, queue.next(), queue.next(), unfinished))
        status = EnqueueStatus.REPLACED if replaced else EnqueueStatus.CREATED
        return Enqueued(
            new.id, status, job.state, replaced.job.id if replaced else None, dependants=dependants
        )

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        with self._lock:
            queue = self._store.queues.get(request.queue)
            if queue is None:
                return []
            if held := queue.claims.get(request.token):
                records = [queue.jobs[job_id] for job_id in held]  # a heartbeat moved its job to the end
                records.sort(key=lambda record: (record.job.priority, record.place))
                return [self._claimed(record) for record in records]
            if queue.paused:
                return []
            now = self._clock()
            self._promote(queue, now, request.limit)
            records = list(islice(queue.in_order(State.WAITING), request.limit))
            return [self._take(queue, record, request, now) for record in records]

    def _take(self, queue: _Queue, record: _Record, request: ClaimRequest, now: int) -> ClaimedJob:
        record.settled = None
        queue.move(
            record,
            Event.CLAIM,
            State.ACTIVE,
            claim_token=request.token,
            worker=request.worker,
            claimed_at=now,
            heartbeat_at=now,
            stale_at=min(now + request.stale_after_ms, model.MAX_TIME),
            deliveries=record.job.deliveries + 1,
            progress=None,
        )
        return self._claimed(record)

    @staticmethod
    def _claimed(record: _Record) -> ClaimedJob:
        job = record.job
        assert job.claim_token is not None
        return ClaimedJob(Claim(job.queue, job.id, job.claim_token), job)

    def _held(self, claim: Claim) -> tuple[_Queue, _Record] | None:
        """The record that this claim still owns."""
        queue = self._store.queues.get(claim.queue)
        record = queue.jobs.get(claim.job_id) if queue else None
        if queue and record and record.job.state is State.ACTIVE and record.job.claim_token == claim.token:
            return queue, record
        return None

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        base.check_batch("beats", beats)
        base.check_one_queue({beat.claim.queue for beat in beats})
        with self._lock:
            return [self._beat(beat, self._clock()) for beat in beats]

    def _beat(self, beat: Beat, now: int) -> ClaimStatus:
        held = self._held(beat.claim)
        if not held:
            return ClaimStatus.LOST
        queue, record = held
        progress = record.job.progress if beat.progress is None else beat.progress
        queue.take_out(record)
        record.job = replace(
            record.job,
            heartbeat_at=now,
            stale_at=min(now + beat.stale_after_ms, model.MAX_TIME),
            progress=progress,
        )
        queue.put_back(record)
        return ClaimStatus.CANCEL_REQUESTED if record.job.cancel_requested else ClaimStatus.HELD

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        base.check_batch("settles", settles)
        base.check_one_queue(
            {settle.claim.queue for settle in settles} | ({claim_next.queue} if claim_next else set())
        )
        with self._lock:
            settled = [self._settle(settle, self._clock()) for settle in settles]
            return SettleResult(settled, self.claim(claim_next) if claim_next else [])

    def _settle(self, settle: Settle, now: int) -> Settled:
        event = lifecycle.event_of(settle.outcome)
        held = self._held(settle.claim)
        if not held:
            return Settled(self._remembered(settle.claim, event))
        queue, record = held
        if record.job.cancel_requested:
            record.settled = (settle.claim.token, base.STOOD)
            return Settled(Settlement.CANCELLED, queue.end(record, Event.CANCEL, State.CANCELLED, now))
        record.settled = (settle.claim.token, event)
        job = record.job
        dependants: tuple[Dependant, ...] = ()
        match settle.outcome:
            case model.Complete(result):
                dependants = queue.end(record, event, State.COMPLETED, now, result=result, error=None)
            case model.Fail(error):
                first = job.first_error or error
                dependants = queue.end(
                    record,
                    event,
                    State.FAILED,
                    now,
                    failures=job.failures + 1,
                    error=error,
                    first_error=first,
                )
            case model.Expire():
                dependants = queue.end(record, event, State.EXPIRED, now)
            case model.Cancel():
                dependants = queue.end(record, event, State.CANCELLED, now)
            case model.Retry(delay_ms, error):
                first = job.first_error or error
                self._put_off(
                    queue,
                    record,
                    event,
                    delay_ms,
                    now,
                    failures=job.failures + 1,
                    error=error,
                    first_error=first,
                )
            case model.Defer(delay_ms):
                self._put_off(queue, record, event, delay_ms, now)
            case model.Release():
                queue.move(record, event, State.WAITING)
        return Settled(Settlement.APPLIED, dependants)

    def _put_off(
        self, queue: _Queue, record: _Record, event: Event, delay_ms: int, now: int, **changes: Any
    ) -> None:
        if delay_ms:
            changes["run_at"] = min(now + delay_ms, model.MAX_TIME)
        queue.move(record, event, State.DELAYED if delay_ms else State.WAITING, **changes)

    def _remembered(self, claim: Claim, event: Event) -> Settlement:
        queue = self._store.queues.get(claim.queue)
        record = queue.jobs.get(claim.job_id) if queue else None
        if record and record.settled == (claim.token, base.STOOD):
            return Settlement.CANCELLED
        if record and record.settled == (claim.token, event):
            return Settlement.DUPLICATE
        return Settlement.LOST

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            if found is None:
                return []
            now = self._clock()
            recovered = [
                self._recover(found, r, now, max_stalls) for r in found.due(State.ACTIVE, now, limit)
            ]
            for family, (parent, ended) in sorted(found.cascades.items())[:limit]:
                dependants = found.settle_children(family, parent, ended, now)
                recovered.append(Recovered(parent, Recovery.CASCADED, dependants=dependants))
            return recovered

    def _recover(self, queue: _Queue, record: _Record, now: int, max_stalls: int) -> Recovered:
        job = record.job
        dependants: tuple[Dependant, ...] = ()
        stalls = job.stalls + 1
        if job.cancel_requested:
            status = Recovery.CANCELLED
            dependants = queue.end(record, Event.RELEASE_STALE, State.CANCELLED, now, stalls=stalls)
        elif stalls > max_stalls:
            status = Recovery.FAILED
            error = lifecycle.stalled_out(stalls)
            first = job.first_error or error
            dependants = queue.end(
                record, Event.RELEASE_STALE, State.FAILED, now, stalls=stalls, error=error, first_error=first
            )
        else:
            status = Recovery.RELEASED
            queue.move(record, Event.RELEASE_STALE, State.WAITING, stalls=stalls)
        return Recovered(job.id, status, stalls, job.worker, dependants)

    def promote_due(self, queue: str, limit: int) -> list[str]:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            return self._promote(found, self._clock(), limit) if found else []

    def _promote(self, queue: _Queue, now: int, limit: int) -> list[str]:
        due = queue.due(State.DELAYED, now, limit)
        for record in due:
            state = lifecycle.entry_state(due=True, unfinished_parents=bool(record.unfinished))
            queue.move(record, Event.PROMOTE, state)
        return [record.job.id for record in due]

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        base.check_batch("ids", ids)
        with self._lock:
            return [self._cancel(queue, job_id, self._clock()) for job_id in ids]

    def _cancel(self, name: str, job_id: str, now: int) -> Cancelled:
        queue = self._store.queues.get(name)
        record = queue.jobs.get(job_id) if queue else None
        if not queue or not record:
            return Cancelled(CancelStatus.UNKNOWN)
        if record.job.state.terminal:
            return Cancelled(CancelStatus.TERMINAL)
        if record.job.state is State.ACTIVE:
            queue.move(record, Event.CANCEL, State.ACTIVE, cancel_requested=True)
            return Cancelled(CancelStatus.REQUESTED)
        return Cancelled(CancelStatus.CANCELLED, queue.end(record, Event.CANCEL, State.CANCELLED, now))

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        base.check_batch("ids", ids)
        with self._lock:
            return [self._retry(queue, job_id, self._clock()) for job_id in ids]

    def _retry(self, name: str, job_id: str, now: int) -> Retried:
        queue = self._store.queues.get(name)
        record = queue.jobs.get(job_id) if queue else None
        if not queue or not record:
            return Retried(RetryStatus.UNKNOWN)
        job = record.job
        if job.state not in DEAD_LETTER:
            return Retried(RetryStatus.NOT_DEAD, job.state)
        if job.dedup:
            holder = queue.holder(job.dedup.key, now)
            if holder not in (None, job.id):
                return Retried(RetryStatus.KEY_TAKEN, job.state, holder)
            if job.dedup.mode is not DedupMode.THROTTLE:
                queue.keys[job.dedup.key] = _Key(job.id, None)
        record.family = queue.next()
        parents = (queue.jobs.get(parent) for parent in job.depends_on)
        record.unfinished = {p.family for p in parents if p and not p.job.state.terminal}
        for family in record.unfinished:
            queue.children.setdefault(family, {})[job.id] = None
        state = lifecycle.entry_state(due=True, unfinished_parents=bool(record.unfinished))
        queue.move(
            record,
            Event.REPLAY,
            state,
            failures=0,
            stalls=0,
            replays=job.replays + 1,
            retried_at=now,
            progress=None,
            result=None,
            finished_at=None,
        )
        return Retried(RetryStatus.RETRIED, state)

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        base.check_batch("ids", ids)
        with self._lock:
            found = self._store.queues.get(queue)
            removed = []
            for job_id in ids:
                record = found.jobs.get(job_id) if found else None
                removed.append(
                    Removed(True, found.remove(record, self._clock())) if found and record else Removed(False)
                )
            return removed

    def set_paused(self, queue: str, paused: bool) -> None:
        with self._lock:
            self._store.queue(queue).paused = paused

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        base.check_terminal(states)
        with self._lock:
            found = self._store.queues.get(queue)
            if found is None:
                return []
            now = self._clock()
            old = [record for state in set(states) for record in found.due(state, now - older_than_ms, limit)]
            old.sort(key=lambda record: (record.rank, record.place))
            for record in old[:limit]:
                found.remove(record, now)
            for key in [
                key for key, held in found.keys.items() if held.until is not None and held.until <= now
            ]:
                del found.keys[key]
            return [record.job.id for record in old[:limit]]

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            if found is None:
                return Drained(())
            states = (State.WAITING, State.DELAYED) if include_delayed else (State.WAITING,)
            queued = list(islice(chain.from_iterable(map(found.in_order, states)), limit))
            removed: list[str] = []
            dependants: list[Dependant] = []
            for record in queued:
                if record.job.state in states:  # not failed meanwhile by a parent's removal
                    removed.append(record.job.id)
                    dependants += found.remove(record, self._clock())
            return Drained(tuple(removed), tuple(dependants))

    def drop_queue(self, queue: str, force: bool) -> Dropped:
        with self._lock:
            found = self._store.queues.get(queue)
            if found is None:
                return Dropped(False)
            active = len(found.order[State.ACTIVE])
            if active and not force:
                return Dropped(False, active)
            del self._store.queues[queue]
            return Dropped(True)

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        with self._lock:
            found = self._store.queues.get(queue)
            holder = found.holder(key, self._clock()) if found else None
            if found and holder and release:
                del found.keys[key]
            return holder

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        base.check_batch("ids", ids)
        with self._lock:
            found = self._store.queues.get(queue)
            records = [found.jobs.get(job_id) if found else None for job_id in ids]
            return [record.job if record else None for record in records]

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        base.check_limit(limit)
        after = base.read_cursor(cursor) if cursor is not None else None
        with self._lock:
            found = self._store.queues.get(queue)
            order = found.order[state] if found else []
            start = bisect_right(order, after, key=lambda item: item[:2]) if after else 0
            page = order[start : start + limit]
            more = start + limit < len(order)
            jobs = [found.jobs[job_id].job for _, _, job_id in page] if found else []
            return JobPage(jobs, base.write_cursor(page[-1][0], page[-1][1]) if more else None)

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        with self._lock:
            now = self._clock()
            wanted = sorted(self._store.queues) if names is None else names
            return [
                (self._store.queues.get(name) or _Queue(name, self._store)).info(now, exact=exact)
                for name in wanted
            ]

    # Schedules

    def put_schedule(self, schedule: Schedule) -> None:
        with self._lock:
            schedules = self._store.queue(schedule.queue).schedules
            new = StoredSchedule(
                schedule,
                next(self._store.revisions),
                self._clock(),
                paused=False,
                next_slot=None,
                last_slot=None,
            )
            if old := schedules.get(schedule.id):
                new = replace(new, paused=old.paused, last_slot=old.last_slot)
                if old.schedule.rule == schedule.rule:
                    new = replace(new, changed_at=old.changed_at, next_slot=old.next_slot)
            schedules[schedule.id] = new

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        with self._lock:
            found = self._store.queues.get(queue)
            return bool(found and found.schedules.pop(schedule_id, None))

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        with self._lock:
            found = self._store.queues.get(queue)
            old = found.schedules.get(schedule_id) if found else None
            if not found or not old:
                return False
            if old.paused and not paused:
                old = replace(old, changed_at=self._clock(), next_slot=None)
            found.schedules[schedule_id] = replace(old, paused=paused)
            return True

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            names = sorted(found.schedules) if found else []
            behind = [name for name in names if after is None or name > after]
            return [found.schedules[name] for name in behind[:limit]] if found else []

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        base.check_limit(limit)
        with self._lock:
            now = self._clock()
            found = self._store.queues.get(queue)
            due = [
                stored
                for stored in (found.schedules.values() if found else ())
                if not stored.paused and (stored.next_slot is None or stored.next_slot <= now)
            ]
            due.sort(key=lambda stored: (stored.next_slot or 0, stored.schedule.id))
            return DueSchedules(now, due[:limit])

    def advance_schedule(
        self,
        queue: str,
        schedule_id: str,
        revision: int,
        slot: int | None,
        next_slot: int,
        last_slot: int | None,
    ) -> bool:
        with self._lock:
            found = self._store.queues.get(queue)
            old = found.schedules.get(schedule_id) if found else None
            if not found or not old or (old.revision, old.next_slot) != (revision, slot):
                return False
            last = old.last_slot if last_slot is None else last_slot
            found.schedules[schedule_id] = replace(old, next_slot=next_slot, last_slot=last)
            return True

    # What a broker needs

    def take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            now = self._clock()
            ready = [
                (delivery, record.job)
                for record in (found.jobs.values() if found else ())
                if (delivery := record.delivery) and delivery.published_at is None
                if delivery.taken_at is None or delivery.taken_at <= now - min_age_ms
            ]
            ready.sort(key=lambda pair: model.MAX_TIME if pair[0].taken_at is None else pair[0].taken_at)
            taken = []
            for delivery, job in ready[:limit]:
                delivery.taken_at = now
                target = Target.MAIN if job.state is State.WAITING else Target.DLQ
                taken.append(Unpublished(job.id, delivery.token, job.priority, target))
            return taken

    def _delivery(self, queue: str, job_id: str, token: str) -> tuple[_Queue, _Record, _Delivery] | None:
        """The record that this delivery is still about."""
        found = self._store.queues.get(queue)
        record = found.jobs.get(job_id) if found else None
        if found and record and record.delivery and record.delivery.token == token:
            return found, record, record.delivery
        return None

    def mark_published(self, queue: str, job_id: str, token: str) -> bool:
        with self._lock:
            found = self._delivery(queue, job_id, token)
            if not found:
                return False
            found[2].published_at = self._clock()
            return True

    def claim_delivery(self, request: ClaimRequest, job_id: str, token: str) -> ClaimedJob | NotClaimed:
        with self._lock:
            if held := self._held(Claim(request.queue, job_id, request.token)):
                return self._claimed(held[1])
            found = self._delivery(request.queue, job_id, token)
            if not found or found[1].job.state is not State.WAITING:
                return NotClaimed.GONE
            queue, record, _ = found
            return NotClaimed.PAUSED if queue.paused else self._take(queue, record, request, self._clock())

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        with self._lock:
            found = self._store.queues.get(queue)
            before = self._clock() - older_than_ms
            lost = [
                (record.delivery.published_at, record)
                for record in (found.jobs.values() if found else ())
                if record.job.state is State.WAITING
                if record.delivery and record.delivery.published_at is not None
                if record.delivery.published_at <= before
            ]
            lost.sort(key=lambda item: item[0])
            for _, record in lost[:limit]:
                record.delivery = _Delivery(os.urandom(16).hex())
            return [record.job.id for _, record in lost[:limit]]

    # Housekeeping

    def migrate(self) -> int:
        return model.FORMAT

    def check(self) -> list[Finding]:
        return [
            Finding(
                Severity.WARNING,
                "durability",
                "jobs are lost with this process: use memory:// for tests only",
            )
        ]

    def close(self) -> None:
        pass
