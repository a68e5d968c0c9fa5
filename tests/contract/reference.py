"""The contract of `backends/base.py` a second time, as a model: plain dicts and whole scans, no store.

Written from the docstrings of the protocols and from the promises, not from a backend; test_model.py plays it
side by side with each backend. Where the contract leaves something open, a comment that begins with
"Reading:" says how it is taken here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mayflymq import model
from mayflymq.backends.base import unknown_parent
from mayflymq.lifecycle import TRANSITIONS, Event, parent_failed, stalled_out
from mayflymq.model import (
    DEAD_LETTER,
    MAX_TIME,
    TERMINAL,
    Beat,
    Cancelled,
    CancelStatus,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Counts,
    DedupMode,
    Dependant,
    Drained,
    Dropped,
    DueSchedules,
    Enqueued,
    EnqueueStatus,
    Job,
    JobError,
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
    State,
    StoredSchedule,
    Target,
    Unpublished,
    WorkerInfo,
)

DELIVERED = frozenset({State.WAITING, State.FAILED, State.EXPIRED})


@dataclass
class Delivery:
    token: str
    taken_at: int | None = None
    published_at: int | None = None


@dataclass
class Record:
    job: Job
    place: int
    """The place in the order that it was given last."""
    life: int
    """What its children wait for. A manual retry is a new life: the last one has ended."""
    settled: tuple[str, str] | None = None
    """The last settle's token and its kind of outcome, "stood" under a cancellation (D7)."""
    delivery: Delivery | None = None


@dataclass
class Key:
    holder: str
    until: int | None
    """When a throttle window is over."""


@dataclass
class Queue:
    paused: bool = False
    jobs: dict[str, Record] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    waits: list[tuple[str, int]] = field(default_factory=list)
    """Which job waits for which life, in the order in which they began to."""
    marks: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Lives with children left to settle: the parent's id, and how it ended."""
    schedules: dict[str, StoredSchedule] = field(default_factory=dict)


class Reference:
    """Answers every call of the three protocols as the contract says."""

    def __init__(self, clock: Callable[[], int], children_a_step: int) -> None:
        self.clock = clock
        self.children_a_step = children_a_step
        self.broker = False
        self.queues_by_name: dict[str, Queue] = {}
        self.revisions: Counter[tuple[str, str]] = Counter()
        self.numbers = 0
        self.deliveries: Counter[str] = Counter()
        """How many each id has had. Tokens made of that keep their names when a history is shortened."""
        self.seen: Counter[tuple[State | None, Event, State | None]] = Counter()
        """How often each transition happened."""
        self.first: Sequence[str] = ()
        """Ids that stand before others of equal rank, whatever their place: what a backend with another order
        among equals has chosen. Empty where the order is exact."""

    def next(self) -> int:
        self.numbers += 1
        return self.numbers

    def queue(self, name: str) -> Queue:
        """The queue to read: an empty one where there is none."""
        return self.queues_by_name.get(name) or Queue()

    def listed(self, queue: Queue, state: State) -> list[Record]:
        """The jobs of a state in its order."""
        return self.in_order(record for record in queue.jobs.values() if record.job.state is state)

    def in_order(self, records: Iterable[Record]) -> list[Record]:
        # Reading: equals (the same due time, stale time, time of ending) go by the place they got last.
        first = {id: n for n, id in enumerate(self.first)}
        return sorted(records, key=lambda r: (rank(r.job), first.get(r.job.id, len(first)), r.place))

    # What every transition does

    def move(self, record: Record, event: Event, state: State, **changes: Any) -> None:
        before = record.job.state
        self.note(before, event, state)
        if before is State.ACTIVE and state is not State.ACTIVE:
            cleared = {"claim_token": None, "heartbeat_at": None, "stale_at": None, "cancel_requested": False}
            changes = cleared | changes
        record.job = replace(record.job, state=state, **changes)
        if state is State.WAITING and event is not Event.RELEASE:
            record.place = self.next()
        if state is not before:
            self.deliver(record)

    def note(self, before: State | None, event: Event, after: State | None) -> None:
        assert after in TRANSITIONS.get((before, event), ()), f"{before} does not become {after} by {event}"
        self.seen[before, event, after] += 1

    def deliver(self, record: Record) -> None:
        wanted = self.broker and record.job.state in DELIVERED
        self.deliveries[record.job.id] += 1
        token = f"delivery {self.deliveries[record.job.id]} of {record.job.id}"
        record.delivery = Delivery(token) if wanted else None

    def end(
        self, queue: Queue, record: Record, event: Event, state: State, **changes: Any
    ) -> tuple[Dependant, ...]:
        self.move(record, event, state, finished_at=self.clock(), **changes)
        self.let_go(queue, record.job)
        return self.settle_children(queue, record.life, record.job.id, state)

    def take_away(self, queue: Queue, record: Record) -> tuple[Dependant, ...]:
        """A removal: an ending only for a job that had not ended."""
        self.note(record.job.state, Event.REMOVE, None)
        del queue.jobs[record.job.id]
        self.let_go(queue, record.job)
        if record.job.state in TERMINAL:
            return ()
        return self.settle_children(queue, record.life, record.job.id, "removed")

    def let_go(self, queue: Queue, job: Job) -> None:
        if job.dedup:
            key = queue.keys.get(job.dedup.key)
            if key and key.holder == job.id and key.until is None:
                del queue.keys[job.dedup.key]
        queue.waits = [(child, life) for child, life in queue.waits if child != job.id]

    def settle_children(self, queue: Queue, life: int, parent: str, ended: str) -> tuple[Dependant, ...]:
        # Reading: children in the order in which they began to wait, then theirs. Each that is looked at
        # counts against the limit, also one that stays where it is.
        moved: list[Dependant] = []
        left = self.children_a_step
        ended_lives = [(life, parent, ended)]
        while ended_lives:
            life, parent, ended = ended_lives.pop(0)
            children = [child for child, awaited in queue.waits if awaited == life]
            for id in children[:left]:
                child = queue.jobs[id]
                queue.waits.remove((id, life))
                if ended == State.COMPLETED or child.job.on_parent_failure is ParentPolicy.RUN:
                    if child.job.state is State.BLOCKED and not self.unfinished(queue, id):
                        self.move(child, Event.PARENTS_DONE, State.WAITING)
                        moved.append(Dependant(id, State.WAITING))
                else:
                    error = parent_failed(parent, ended)
                    self.move(
                        child,
                        Event.PARENT_FAILED,
                        State.FAILED,
                        finished_at=self.clock(),
                        **failed_with(child.job, error),
                    )
                    self.let_go(queue, child.job)
                    moved.append(Dependant(id, State.FAILED))
                    ended_lives.append((child.life, id, State.FAILED))
            if len(children) > left:
                queue.marks[life] = (parent, ended)
            else:
                queue.marks.pop(life, None)
            left -= min(left, len(children))
        return tuple(moved)

    def unfinished(self, queue: Queue, id: str) -> list[int]:
        return [life for child, life in queue.waits if child == id]

    def holder(self, queue: Queue, key: str) -> str | None:
        held = queue.keys.get(key)
        if held is None or (held.until is not None and held.until <= self.clock()):
            return None
        return held.holder

    # Lifecycle

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return [self.enqueue_one(new) for new in jobs]

    def enqueue_one(self, new: NewJob) -> Enqueued:
        now = self.clock()
        queue = self.queue(new.queue)
        if new.id in queue.jobs:
            return Enqueued(new.id, EnqueueStatus.DUPLICATE_ID, queue.jobs[new.id].job.state)
        for parent in new.depends_on:
            if parent not in queue.jobs:
                return Enqueued(new.id, EnqueueStatus.REFUSED, reason=unknown_parent(new, parent))

        run_at = min(now + new.delay_ms, MAX_TIME) if new.run_at is None else new.run_at
        replaced: str | None = None
        dependants: tuple[Dependant, ...] = ()
        if new.dedup and (holder := self.holder(queue, new.dedup.key)):
            # Reading: a holder is an id, whatever record has it now.
            record = queue.jobs.get(holder)
            state = record.job.state if record else None
            if new.dedup.mode is not DedupMode.DEBOUNCE or record is None or state is not State.DELAYED:
                return Enqueued(new.id, EnqueueStatus.DEDUPLICATED, state, holder)
            replaced = holder
            if not new.dedup.extend:
                assert record.job.run_at is not None
                run_at = record.job.run_at
            dependants = self.end(queue, record, Event.REPLACE, State.CANCELLED)

        parents = [queue.jobs[parent] for parent in dict.fromkeys(new.depends_on)]
        unfinished = [parent.life for parent in parents if parent.job.state not in TERMINAL]
        bad = [parent.job for parent in parents if parent.job.state in TERMINAL - {State.COMPLETED}]
        if bad and new.on_parent_failure is ParentPolicy.FAIL:
            state = State.FAILED
        elif run_at > now:
            state = State.DELAYED
        else:
            state = State.BLOCKED if unfinished else State.WAITING
        job = Job(
            id=new.id,
            queue=new.queue,
            task=new.task,
            payload=new.payload,
            state=state,
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
        if state is State.FAILED:
            # Reading: the first of the bad parents is named, and a job that is created failed never holds its
            # key, nor starts a throttle window.
            error = parent_failed(bad[0].id, bad[0].state)
            job = replace(job, finished_at=now, **failed_with(job, error))
        else:
            queue.waits += [(new.id, life) for life in unfinished]
            if new.dedup:
                window = new.dedup.mode is DedupMode.THROTTLE
                queue.keys[new.dedup.key] = Key(new.id, now + new.dedup.window_ms if window else None)
        record = queue.jobs[new.id] = Record(job, self.next(), self.next())
        self.queues_by_name[new.queue] = queue
        self.note(None, Event.ENQUEUE, state)
        self.deliver(record)
        status = EnqueueStatus.REPLACED if replaced else EnqueueStatus.CREATED
        return Enqueued(new.id, status, state, replaced, dependants=dependants)

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        queue = self.queue(request.queue)
        if held := self.held_by(queue, request.token):
            return held
        if queue.paused:
            return []
        self.promote(queue, request.limit)
        return [self.take(record, request) for record in self.listed(queue, State.WAITING)[: request.limit]]

    def take(self, record: Record, request: ClaimRequest) -> ClaimedJob:
        now = self.clock()
        record.settled = None
        self.move(
            record,
            Event.CLAIM,
            State.ACTIVE,
            claim_token=request.token,
            worker=request.worker,
            claimed_at=now,
            heartbeat_at=now,
            stale_at=min(now + request.stale_after_ms, MAX_TIME),
            deliveries=record.job.deliveries + 1,
            progress=None,
        )
        return ClaimedJob(Claim(request.queue, record.job.id, request.token), record.job)

    def held_by(self, queue: Queue, token: str) -> list[ClaimedJob]:
        """What a token holds, in the order of the claim (D8)."""
        found = [record for record in queue.jobs.values() if record.job.claim_token == token]
        found.sort(key=lambda record: (record.job.priority, record.place))
        return [ClaimedJob(Claim(record.job.queue, record.job.id, token), record.job) for record in found]

    def held(self, claim: Claim) -> Record | None:
        record = self.queue(claim.queue).jobs.get(claim.job_id)
        return record if record and record.job.claim_token == claim.token else None

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        answers = []
        for beat in beats:
            record = self.held(beat.claim)
            if record is None:
                answers.append(ClaimStatus.LOST)
                continue
            now = self.clock()
            progress = record.job.progress if beat.progress is None else beat.progress
            stale_at = min(now + beat.stale_after_ms, MAX_TIME)
            record.job = replace(record.job, heartbeat_at=now, stale_at=stale_at, progress=progress)
            stands = record.job.cancel_requested
            answers.append(ClaimStatus.CANCEL_REQUESTED if stands else ClaimStatus.HELD)
        return answers

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        settled = [self.settle_one(settle) for settle in settles]
        return SettleResult(settled, self.claim(claim_next) if claim_next else [])

    def settle_one(self, settle: Settle) -> Settled:
        claim, outcome = settle.claim, settle.outcome
        kind = type(outcome).__name__
        queue = self.queue(claim.queue)
        record = self.held(claim)
        if record is None:
            known = queue.jobs.get(claim.job_id)
            if known and known.settled == (claim.token, "stood"):
                return Settled(Settlement.CANCELLED)
            if known and known.settled == (claim.token, kind):
                return Settled(Settlement.DUPLICATE)
            return Settled(Settlement.LOST)

        job = record.job
        if job.cancel_requested:
            record.settled = (claim.token, "stood")
            return Settled(Settlement.CANCELLED, self.end(queue, record, Event.CANCEL, State.CANCELLED))
        record.settled = (claim.token, kind)
        dependants: tuple[Dependant, ...] = ()
        match outcome:
            case model.Complete(result):
                dependants = self.end(
                    queue, record, Event.COMPLETE, State.COMPLETED, result=result, error=None
                )
            case model.Retry(delay_ms, error):
                again = {"failures": job.failures + 1, **failed_with(job, error)}
                self.put_off(record, Event.RETRY, delay_ms, **again)
            case model.Defer(delay_ms):
                self.put_off(record, Event.DEFER, delay_ms)
            case model.Fail(error):
                again = {"failures": job.failures + 1, **failed_with(job, error)}
                dependants = self.end(queue, record, Event.FAIL, State.FAILED, **again)
            case model.Expire():
                dependants = self.end(queue, record, Event.EXPIRE, State.EXPIRED)
            case model.Cancel():
                dependants = self.end(queue, record, Event.CANCEL, State.CANCELLED)
            case model.Release():
                self.move(record, Event.RELEASE, State.WAITING)
        return Settled(Settlement.APPLIED, dependants)

    def put_off(self, record: Record, event: Event, delay_ms: int, **changes: Any) -> None:
        if delay_ms:
            due = min(self.clock() + delay_ms, MAX_TIME)
            self.move(record, event, State.DELAYED, run_at=due, **changes)
        else:
            self.move(record, event, State.WAITING, **changes)

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        # Reading: a claim is stale from its stale_at on, and a recovery counts as a stall whatever it leads
        # to. Marks are worked off in the order of their parents' lives, at most `limit` of them, those that
        # this sweep left too.
        found = self.queue(queue)
        stale = [r for r in self.listed(found, State.ACTIVE) if rank(r.job) <= self.clock()]
        recovered = [self.recover(found, record, max_stalls) for record in stale[:limit]]
        for life, (parent, ended) in sorted(found.marks.items())[:limit]:
            dependants = self.settle_children(found, life, parent, ended)
            recovered.append(Recovered(parent, Recovery.CASCADED, dependants=dependants))
        return recovered

    def recover(self, queue: Queue, record: Record, max_stalls: int) -> Recovered:
        job, stalls = record.job, record.job.stalls + 1
        dependants: tuple[Dependant, ...] = ()
        if job.cancel_requested:
            status = Recovery.CANCELLED
            dependants = self.end(queue, record, Event.RELEASE_STALE, State.CANCELLED, stalls=stalls)
        elif stalls > max_stalls:
            status = Recovery.FAILED
            why = failed_with(job, stalled_out(stalls))
            dependants = self.end(queue, record, Event.RELEASE_STALE, State.FAILED, stalls=stalls, **why)
        else:
            status = Recovery.RELEASED
            self.move(record, Event.RELEASE_STALE, State.WAITING, stalls=stalls)
        return Recovered(job.id, status, stalls, job.worker, dependants)

    def promote_due(self, queue: str, limit: int) -> list[str]:
        return self.promote(self.queue(queue), limit)

    def promote(self, queue: Queue, limit: int) -> list[str]:
        due = [r for r in self.listed(queue, State.DELAYED) if rank(r.job) <= self.clock()][:limit]
        for record in due:
            blocked = self.unfinished(queue, record.job.id)
            self.move(record, Event.PROMOTE, State.BLOCKED if blocked else State.WAITING)
        return [record.job.id for record in due]

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        return [self.cancel_one(self.queue(queue), id) for id in ids]

    def cancel_one(self, queue: Queue, id: str) -> Cancelled:
        record = queue.jobs.get(id)
        if record is None:
            return Cancelled(CancelStatus.UNKNOWN)
        if record.job.state in TERMINAL:
            return Cancelled(CancelStatus.TERMINAL)
        if record.job.state is State.ACTIVE:
            self.move(record, Event.CANCEL, State.ACTIVE, cancel_requested=True)
            return Cancelled(CancelStatus.REQUESTED)
        return Cancelled(CancelStatus.CANCELLED, self.end(queue, record, Event.CANCEL, State.CANCELLED))

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        return [self.retry_one(self.queue(queue), id) for id in ids]

    def retry_one(self, queue: Queue, id: str) -> Retried:
        record = queue.jobs.get(id)
        if record is None:
            return Retried(RetryStatus.UNKNOWN)
        job = record.job
        if job.state not in DEAD_LETTER:
            return Retried(RetryStatus.NOT_DEAD, job.state)
        if job.dedup:
            holder = self.holder(queue, job.dedup.key)
            if holder is not None and holder != id:
                return Retried(RetryStatus.KEY_TAKEN, job.state, holder)
            # Reading: a throttle window counts from its enqueue; a manual retry starts no other.
            if job.dedup.mode is not DedupMode.THROTTLE:
                queue.keys[job.dedup.key] = Key(id, None)
        record.life = self.next()
        for parent in dict.fromkeys(job.depends_on):
            if parent in queue.jobs and queue.jobs[parent].job.state not in TERMINAL:
                queue.waits.append((id, queue.jobs[parent].life))
        state = State.BLOCKED if self.unfinished(queue, id) else State.WAITING
        self.move(
            record,
            Event.REPLAY,
            state,
            failures=0,
            stalls=0,
            replays=job.replays + 1,
            retried_at=self.clock(),
            progress=None,
            result=None,
            finished_at=None,
        )
        return Retried(RetryStatus.RETRIED, state)

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        found, answers = self.queue(queue), []
        for id in ids:
            record = found.jobs.get(id)
            answers.append(Removed(True, self.take_away(found, record)) if record else Removed(False))
        return answers

    def set_paused(self, queue: str, paused: bool) -> None:
        self.queues_by_name.setdefault(queue, Queue()).paused = paused

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        found = self.queue(queue)
        before = self.clock() - older_than_ms
        ended = [record for record in found.jobs.values() if record.job.state in TERMINAL & set(states)]
        old = [record for record in self.in_order(ended) if rank(record.job) <= before]
        for record in old[:limit]:
            self.take_away(found, record)
        return [record.job.id for record in old[:limit]]

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        # Reading: chosen first, then removed one by one; what a removal failed or freed on the way stays.
        found = self.queue(queue)
        states = [State.WAITING, State.DELAYED] if include_delayed else [State.WAITING]
        chosen = [record for state in states for record in self.listed(found, state)][:limit]
        removed: list[str] = []
        dependants: list[Dependant] = []
        for record in chosen:
            if record.job.state in states:
                removed.append(record.job.id)
                dependants += self.take_away(found, record)
        return Drained(tuple(removed), tuple(dependants))

    def drop_queue(self, queue: str, force: bool) -> Dropped:
        active = len(self.listed(self.queue(queue), State.ACTIVE))
        if queue not in self.queues_by_name or (active and not force):
            return Dropped(False, active)
        for record in self.queues_by_name.pop(queue).jobs.values():
            self.note(record.job.state, Event.REMOVE, None)
        return Dropped(True)

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        holder = self.holder(self.queue(queue), key)
        if holder is not None and release:
            del self.queue(queue).keys[key]
        return holder

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        jobs = self.queue(queue).jobs
        return [jobs[id].job if id in jobs else None for id in ids]

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        # Reading: a cursor stands behind the rank and place of the last job that was shown, at that moment.
        after = (-1 << 63, 0) if cursor is None else tuple(map(int, cursor.split()))
        records = [r for r in self.listed(self.queue(queue), state) if (rank(r.job), r.place) > after]
        page = records[:limit]
        more = len(records) > limit
        return JobPage([r.job for r in page], f"{rank(page[-1].job)} {page[-1].place}" if more else None)

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        return [self.info(name) for name in (sorted(self.queues_by_name) if names is None else names)]

    def info(self, name: str) -> QueueInfo:
        # Reading: ages are never negative, and a job's age counts from its creation, or when it came due.
        now, queue = self.clock(), self.queue(name)
        counts = {state.value: len(self.listed(queue, state)) for state in State}
        by_worker: dict[str, list[int]] = {}
        for record in self.listed(queue, State.ACTIVE):
            assert record.job.worker is not None
            assert record.job.heartbeat_at is not None
            by_worker.setdefault(record.job.worker, []).append(max(0, now - record.job.heartbeat_at))
        workers = [WorkerInfo(worker, len(ages), max(ages)) for worker, ages in by_worker.items()]
        workers.sort(key=lambda info: (-info.heartbeat_age_ms, info.worker))
        firsts: dict[int, Job] = {}
        for record in self.listed(queue, State.WAITING):
            firsts.setdefault(record.job.priority, record.job)
        waiting = [
            max(0, now - max(job.created_at, job.run_at or 0, job.retried_at or 0))
            for job in list(firsts.values())[:100]
        ]
        return QueueInfo(
            name=name,
            paused=queue.paused,
            counts=Counts(**counts),
            dead_letters=counts["failed"] + counts["expired"],
            workers=tuple(workers),
            oldest_waiting_age_ms=max(waiting, default=None),
            oldest_heartbeat_age_ms=max((info.heartbeat_age_ms for info in workers), default=None),
        )

    # Schedules (G6)

    def put_schedule(self, schedule: Schedule) -> None:
        schedules = self.queues_by_name.setdefault(schedule.queue, Queue()).schedules
        # Reading: an id's revisions go on where it is put again after its removal.
        self.revisions[schedule.queue, schedule.id] += 1
        revision = self.revisions[schedule.queue, schedule.id]
        new = StoredSchedule(schedule, revision, self.clock(), paused=False, next_slot=None, last_slot=None)
        if old := schedules.get(schedule.id):
            new = replace(new, paused=old.paused, last_slot=old.last_slot)
            before, after = old.schedule, schedule
            if (before.every_ms, before.cron, before.timezone) == (
                after.every_ms,
                after.cron,
                after.timezone,
            ):
                new = replace(new, changed_at=old.changed_at, next_slot=old.next_slot)
        schedules[schedule.id] = new

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        return self.queue(queue).schedules.pop(schedule_id, None) is not None

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        schedules = self.queue(queue).schedules
        if schedule_id not in schedules:
            return False
        old = schedules[schedule_id]
        if old.paused and not paused:
            old = replace(old, next_slot=None, changed_at=self.clock())
        schedules[schedule_id] = replace(old, paused=paused)
        return True

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        schedules = self.queue(queue).schedules
        return [schedules[id] for id in sorted(schedules) if after is None or id > after][:limit]

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        # Reading: one that is not planned yet comes before all others; equals go by id.
        now = self.clock()
        due = [s for s in self.list_schedules(queue) if not s.paused and (s.next_slot or 0) <= now]
        due.sort(key=lambda stored: stored.next_slot or 0)
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
        schedules = self.queue(queue).schedules
        old = schedules.get(schedule_id)
        if old is None or old.revision != revision or old.next_slot != slot:
            return False
        last_slot = old.last_slot if last_slot is None else last_slot
        schedules[schedule_id] = replace(old, next_slot=next_slot, last_slot=last_slot)
        return True

    # What a broker needs (R1)

    def open_for_broker(self) -> None:
        """What opening the store with `broker=True` does."""
        if not self.broker:
            self.broker = True
            for queue in self.queues_by_name.values():
                for record in queue.jobs.values():
                    self.deliver(record)

    def take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        # Reading: those handed out at one moment go in the order in which their jobs were made, too.
        now = self.clock()
        found = [(r.delivery, r.job) for r in self.queue(queue).jobs.values() if r.delivery]
        found = [(delivery, job) for delivery, job in found if delivery.published_at is None]
        crashed = [pair for pair in found if (at := pair[0].taken_at) is not None and at <= now - min_age_ms]
        crashed.sort(key=lambda pair: pair[0].taken_at or 0)
        taken = []
        for delivery, job in [*crashed, *(pair for pair in found if pair[0].taken_at is None)][:limit]:
            delivery.taken_at = now
            target = Target.MAIN if job.state is State.WAITING else Target.DLQ
            taken.append(Unpublished(job.id, delivery.token, job.priority, target))
        return taken

    def delivered(self, queue: str, job_id: str, token: str) -> Record | None:
        record = self.queue(queue).jobs.get(job_id)
        return record if record and record.delivery and record.delivery.token == token else None

    def mark_published(self, queue: str, job_id: str, token: str) -> bool:
        # Reading: a second confirmation counts as the later one.
        record = self.delivered(queue, job_id, token)
        if record is None or record.delivery is None:
            return False
        record.delivery.published_at = self.clock()
        return True

    def claim_delivery(
        self, request: ClaimRequest, job_id: str, delivery_token: str
    ) -> ClaimedJob | NotClaimed:
        # Reading: a request is sent again when its token holds this job.
        for claimed in self.held_by(self.queue(request.queue), request.token):
            if claimed.job.id == job_id:
                return claimed
        record = self.delivered(request.queue, job_id, delivery_token)
        if record is None or record.job.state is not State.WAITING:
            return NotClaimed.GONE
        return NotClaimed.PAUSED if self.queue(request.queue).paused else self.take(record, request)

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        # Reading: those published at one moment go in the order in which their jobs were made.
        before = self.clock() - older_than_ms
        lost = []
        for record in self.queue(queue).jobs.values():
            published = record.delivery.published_at if record.delivery else None
            if record.job.state is State.WAITING and published is not None and published <= before:
                lost.append((published, record))
        lost.sort(key=lambda item: item[0])
        for _, record in lost[:limit]:
            self.deliver(record)
        return [record.job.id for _, record in lost[:limit]]


def rank(job: Job) -> int:
    """What its state is ordered by."""
    match job.state:
        case State.WAITING:
            found: int | None = job.priority
        case State.DELAYED:
            found = job.run_at
        case State.ACTIVE:
            found = job.stale_at
        case State.BLOCKED:
            found = 0
        case _:
            found = job.finished_at
    assert found is not None
    return found


def failed_with(job: Job, error: JobError) -> dict[str, Any]:
    return {"error": error, "first_error": job.first_error or error}
