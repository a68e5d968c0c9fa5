"""SQLite: a file that many processes share. One transition is one `BEGIN IMMEDIATE` transaction (promise
C12).

The statements are in `sql/`, one file each; the schema is in `migrations/`. The write lock is taken before
the clock is read, so the times of all processes agree with the order of their transactions (promise F4).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ... import codec, lifecycle, model
from ...errors import ConfigurationError, CorruptRecord
from ...lifecycle import Event
from ...model import (
    DEAD_LETTER,
    FORMAT,
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
    Severity,
    State,
    StoredSchedule,
    Target,
    Unpublished,
    WorkerInfo,
)
from .. import base
from . import records
from .database import OLDEST_SQLITE, Database, migrations

CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    lambda_ready=False,
    ordering="priority, then the order of entering waiting",
    strict_priority=True,
    dedup=True,
    dependencies=True,
    schedules=True,
    broker_store=True,
    transactional_enqueue=False,
    one_round_trip=True,
    clock="this host, read under the write lock",
)

_PATH = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]+")
"""What can be a file's name; the other surrogates stand for bytes that are no UTF-8."""

_ENDS: dict[type, State] = {
    model.Complete: State.COMPLETED,
    model.Fail: State.FAILED,
    model.Expire: State.EXPIRED,
    model.Cancel: State.CANCELLED,
}


def open(url: str, *, broker: bool = False, clock: Clock | None = None) -> SqliteBackend:
    """Opens `sqlite:///relative/path` or `sqlite:////absolute/path`, with the options `busy_timeout_ms`
    (30000) and `max_page_count` (a limit on the file's size). The file and its schema are made on first
    use."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise ConfigurationError(
            f"this Python has SQLite {sqlite3.sqlite_version}; sqlite:// needs 3.37: use a newer Python"
        )
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or path == ":memory:" or "#" in url or not _PATH.fullmatch(path):
        raise ConfigurationError(
            f"{model.shown(url)} names no file: write sqlite:///relative.db or sqlite:////absolute/path.db "
            "with # and ? in a name as %23 and %3F (memory://name keeps jobs in memory)"
        )
    options = {"busy_timeout_ms": 30_000, "max_page_count": 0}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in options or not (value.isascii() and value.isdigit()):
            raise ConfigurationError(
                f"{name}={value} is no option of sqlite://: it takes whole numbers for {', '.join(options)}"
            )
        options[name] = int(value)
    started = sql("enable_broker") if broker else None
    return SqliteBackend(Database(Path(path), started=started, **options), clock)


@cache
def sql(name: str) -> str:
    """The statement in a file of `sql/`."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text("utf-8")


class _Transaction:
    """One transaction: its moment, its statements, and the steps that several transitions share."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self._connection = connection
        self.now = now

    def rows(self, statement: str, **values: Any) -> list[sqlite3.Row]:
        return self._connection.execute(
            sql(statement), {"now": self.now, "format": FORMAT, **values}
        ).fetchall()

    def row(self, statement: str, **values: Any) -> sqlite3.Row | None:
        found = self.rows(statement, **values)
        return found[0] if found else None

    def next(self) -> int:
        """A number for a place, a family or a revision."""
        taken = self.row("take_places", count=1)
        assert taken is not None
        return int(taken["last"])

    def ended(self, queue: str, row: sqlite3.Row) -> tuple[Dependant, ...]:
        """What belongs to every move to a terminal state: the key, the parents, the children."""
        self.let_go(queue, row)
        return self.settle_children(queue, row["family"], row["id"], row["state"])

    def let_go(self, queue: str, row: sqlite3.Row) -> None:
        if row["dedup_key"] is not None:
            self.rows("release_key", queue=queue, key=row["dedup_key"], holder=row["id"])
        self.rows("leave_parents", job=row["number"])

    def remove(self, queue: str, job_id: str) -> Removed:
        row = self.row("remove", queue=queue, id=job_id)
        if row is None:
            return Removed(False)
        self.let_go(queue, row)
        if State(row["state"]).terminal:
            return Removed(True)
        return Removed(True, self.settle_children(queue, row["family"], job_id, "removed"))

    def settle_children(self, queue: str, family: int, parent: str, ended: str) -> tuple[Dependant, ...]:
        """Settles the children of an ended parent, and theirs, at most MAX_CHILDREN_A_STEP; marks what
        remains."""
        dependants: list[Dependant] = []
        budget = MAX_CHILDREN_A_STEP
        ended_parents = deque([(family, parent, ended)])
        while ended_parents:
            family, parent, ended = ended_parents.popleft()
            children = self.rows("next_children", family=family, limit=budget + 1)
            for child in children[:budget]:
                self.rows("leave_parent", edge=child["edge"])
                if ended == State.COMPLETED or child["on_parent_failure"] == ParentPolicy.RUN:
                    if self.row("unblock", number=child["number"], place=self.next()):
                        dependants.append(Dependant(child["id"], State.WAITING))
                    continue
                error = records.error_text(lifecycle.parent_failed(parent, ended))
                if failed := self.row("fail_child", number=child["number"], error=error):
                    self.let_go(queue, failed)
                    dependants.append(Dependant(failed["id"], State.FAILED))
                    ended_parents.append((failed["family"], failed["id"], State.FAILED))
            if len(children) > budget:
                self.rows("mark_cascade", queue=queue, family=family, parent=parent, ended=ended)
            else:
                self.rows("unmark_cascade", queue=queue, family=family)
            budget -= min(budget, len(children))
        return tuple(dependants)

    def held(self, request: ClaimRequest) -> list[ClaimedJob]:
        """What the request's token holds. A record that cannot be read fails at once, so that it hides no
        other; one of a newer format is left alone."""
        held = []
        for row in self.rows("held", queue=request.queue, token=request.token):
            try:
                held.append(ClaimedJob(Claim(row["queue"], row["id"], row["claim_token"]), records.job(row)))
            except CorruptRecord as error:
                failed = self.row(
                    "set_aside",
                    number=row["number"],
                    error=records.error_text(JobError("CorruptRecord", str(error))),
                    backoff=codec.encode_backoff(model.DEFAULT_BACKOFF).decode("ascii"),
                )
                if failed is not None:
                    self.ended(row["queue"], failed)
        return held

    def key_holder(self, queue: str, key: str) -> str | None:
        row = self.row("key_holder", queue=queue, key=key)
        return row["holder"] if row else None

    def promote(self, queue: str, limit: int) -> list[str]:
        due = self.rows("due", queue=queue, limit=limit)
        if due:
            self.rows("promote_due", queue=queue, limit=limit)
            self.rows("take_places", count=len(due))
        return [row["id"] for row in due]


class SqliteBackend:
    """Keeps the jobs in one file in WAL mode, with full synchronisation: what returned is on the disk."""

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[_Transaction]:
        with self._database.transaction(begin) as connection:
            yield _Transaction(connection, self._clock())

    def _reading(self) -> Any:
        """A transaction that sees one moment of the store and waits for no writer."""
        return self._transaction("BEGIN DEFERRED")

    def migrate(self) -> int:
        return self._database.migrate()

    def check(self) -> list[Finding]:
        with self._reading() as tx:
            newer = tx.row("newer_format")
        findings = [Finding(Severity.OK, "schema", f"{self._database.path} has schema {len(migrations())}")]
        if newer and newer["records"]:
            findings.append(
                Finding(
                    Severity.WARNING,
                    "format",
                    f"{newer['records']} records are of a newer version and left alone here: update mayflymq",
                )
            )
        return findings

    def close(self) -> None:
        self._database.close()

    # Lifecycle

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        base.check_batch("jobs", jobs)
        base.check_one_queue({job.queue for job in jobs})
        if not jobs:
            return []
        with self._transaction() as tx:
            answers = [self._enqueue(tx, new) for new in jobs]
            if any(answer.status is not EnqueueStatus.REFUSED for answer in answers):
                tx.rows("add_queue", queue=jobs[0].queue)
            return answers

    def _enqueue(self, tx: _Transaction, new: NewJob) -> Enqueued:
        if existing := tx.row("find", queue=new.queue, id=new.id):
            return Enqueued(new.id, EnqueueStatus.DUPLICATE_ID, State(existing["state"]))
        for parent in new.depends_on:
            if not tx.row("find", queue=new.queue, id=parent):  # nor is its own id there at this moment
                return Enqueued(new.id, EnqueueStatus.REFUSED, reason=base.unknown_parent(new, parent))

        run_at = new.run_at if new.run_at is not None else min(tx.now + new.delay_ms, model.MAX_TIME)
        replaced: str | None = None
        dependants: tuple[Dependant, ...] = ()
        if new.dedup and (holder := tx.key_holder(new.queue, new.dedup.key)):
            held_by = tx.row("find", queue=new.queue, id=holder)
            if new.dedup.mode is not DedupMode.DEBOUNCE or not held_by or held_by["state"] != State.DELAYED:
                state = State(held_by["state"]) if held_by else None
                return Enqueued(new.id, EnqueueStatus.DEDUPLICATED, state, holder)
            if not new.dedup.extend:
                run_at = held_by["run_at"]
            row = tx.row("replace", queue=new.queue, id=holder)
            assert row is not None
            replaced, dependants = holder, tx.ended(new.queue, row)

        unfinished, failed = self._parents(tx, new.queue, new.depends_on)
        state = lifecycle.entry_state(due=run_at <= tx.now, unfinished_parents=bool(unfinished))
        error = None
        if failed is not None and new.on_parent_failure is ParentPolicy.FAIL:
            state, unfinished = State.FAILED, []
            error = records.error_text(lifecycle.parent_failed(failed["id"], failed["state"]))
        inserted = tx.row(
            "enqueue",
            queue=new.queue,
            id=new.id,
            state=state,
            place=tx.next(),
            family=tx.next(),
            task=new.task,
            priority=new.priority,
            run_at=run_at if run_at > tx.now else None,
            ttl_ms=new.ttl_ms,
            timeout_ms=new.timeout_ms,
            max_retries=new.max_retries,
            backoff=codec.encode_backoff(new.backoff).decode("ascii"),
            depends_on=json.dumps(new.depends_on),
            on_parent_failure=new.on_parent_failure,
            dedup_key=new.dedup.key if new.dedup else None,
            dedup_mode=new.dedup.mode if new.dedup else None,
            dedup_window_ms=new.dedup.window_ms if new.dedup else None,
            dedup_extend=new.dedup.extend if new.dedup else None,
            error=error,
            finished_at=tx.now if error else None,
        )
        assert inserted is not None
        tx.rows("add_payload", job=inserted["number"], payload=new.payload)
        for family in unfinished:
            tx.rows("add_child", family=family, job=inserted["number"])
        if new.dedup and not error:
            until = tx.now + new.dedup.window_ms if new.dedup.mode is DedupMode.THROTTLE else None
            tx.rows("take_key", queue=new.queue, key=new.dedup.key, holder=new.id, until=until)
        status = EnqueueStatus.REPLACED if replaced else EnqueueStatus.CREATED
        return Enqueued(new.id, status, state, replaced, dependants=dependants)

    @staticmethod
    def _parents(
        tx: _Transaction, queue: str, parents: Collection[str]
    ) -> tuple[list[int], sqlite3.Row | None]:
        """The families of the unfinished parents, and the first parent that ended otherwise than
        completed."""
        found = [tx.row("find", queue=queue, id=parent) for parent in dict.fromkeys(parents)]
        rows = [row for row in found if row is not None]
        unfinished = [row["family"] for row in rows if row["state"] not in TERMINAL]
        failed = [row for row in rows if row["state"] in TERMINAL - {State.COMPLETED}]
        return unfinished, failed[0] if failed else None

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        with self._transaction() as tx:
            return self._claim(tx, request)

    @staticmethod
    def _claim(tx: _Transaction, request: ClaimRequest) -> list[ClaimedJob]:
        if held := tx.held(request):
            return held
        paused = tx.row("is_paused", queue=request.queue)
        if paused is None or paused["paused"]:
            return []
        tx.promote(request.queue, request.limit)
        while tx.rows(
            "claim",
            queue=request.queue,
            limit=request.limit,
            token=request.token,
            worker=request.worker,
            stale_after_ms=request.stale_after_ms,
        ):
            if held := tx.held(request):
                return held
        return []

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        base.check_batch("beats", beats)
        base.check_one_queue({beat.claim.queue for beat in beats})
        with self._transaction() as tx:
            return [self._beat(tx, beat) for beat in beats]

    @staticmethod
    def _beat(tx: _Transaction, beat: Beat) -> ClaimStatus:
        row = tx.row(
            "heartbeat",
            queue=beat.claim.queue,
            id=beat.claim.job_id,
            token=beat.claim.token,
            stale_after_ms=beat.stale_after_ms,
            progress=beat.progress,
        )
        if row is None:
            return ClaimStatus.LOST
        return ClaimStatus.CANCEL_REQUESTED if row["cancel_requested"] else ClaimStatus.HELD

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        base.check_batch("settles", settles)
        base.check_one_queue(
            {settle.claim.queue for settle in settles} | ({claim_next.queue} if claim_next else set())
        )
        with self._transaction() as tx:
            settled = [self._settle(tx, settle) for settle in settles]
            return SettleResult(settled, self._claim(tx, claim_next) if claim_next else [])

    @staticmethod
    def _settle(tx: _Transaction, settle: Settle) -> Settled:
        claim, outcome = settle.claim, settle.outcome
        event = lifecycle.event_of(outcome)
        delay_ms = outcome.delay_ms if isinstance(outcome, model.Retry | model.Defer) else 0
        state = _ENDS.get(type(outcome), State.DELAYED if delay_ms else State.WAITING)
        row = tx.row(
            "settle",
            queue=claim.queue,
            id=claim.job_id,
            token=claim.token,
            event=event,
            state=state,
            ended=state.terminal,
            place=tx.next() if state is State.WAITING and event is not Event.RELEASE else None,
            run_at=min(tx.now + delay_ms, model.MAX_TIME) if delay_ms else None,
            failed=isinstance(outcome, model.Retry | model.Fail),
            result=outcome.result if isinstance(outcome, model.Complete) else None,
            error=records.error_text(outcome.error)
            if isinstance(outcome, model.Retry | model.Fail)
            else None,
        )
        if row is None:
            before = tx.row("find", queue=claim.queue, id=claim.job_id)
            if before is None or before["settled_token"] != claim.token:
                return Settled(Settlement.LOST)
            if before["settled_as"] == base.STOOD:
                return Settled(Settlement.CANCELLED)
            return Settled(Settlement.DUPLICATE if before["settled_as"] == event else Settlement.LOST)
        dependants = tx.ended(claim.queue, row) if State(row["state"]).terminal else ()
        stood = row["settled_as"] == base.STOOD
        return Settled(Settlement.CANCELLED if stood else Settlement.APPLIED, dependants)

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        base.check_limit(limit)
        with self._transaction() as tx:
            recovered = [
                self._recover(tx, queue, stale, max_stalls)
                for stale in tx.rows("stale", queue=queue, limit=limit)
            ]
            for row in tx.rows("cascades", queue=queue, limit=limit):
                dependants = tx.settle_children(queue, row["family"], row["parent"], row["ended"])
                recovered.append(Recovered(row["parent"], Recovery.CASCADED, dependants=dependants))
            return recovered

    @staticmethod
    def _recover(tx: _Transaction, queue: str, stale: sqlite3.Row, max_stalls: int) -> Recovered:
        stalls = stale["stalls"] + 1
        row = tx.row(
            "release_stale",
            number=stale["number"],
            token=stale["claim_token"],
            max_stalls=max_stalls,
            error=records.error_text(lifecycle.stalled_out(stalls)),
            place=tx.next(),
        )
        assert row is not None  # the write lock is held since the job was found
        state = State(row["state"])
        status = {State.CANCELLED: Recovery.CANCELLED, State.FAILED: Recovery.FAILED}.get(
            state, Recovery.RELEASED
        )
        dependants = tx.ended(queue, row) if state.terminal else ()
        return Recovered(stale["id"], status, stalls, stale["worker"], dependants)

    def promote_due(self, queue: str, limit: int) -> list[str]:
        base.check_limit(limit)
        with self._transaction() as tx:
            return tx.promote(queue, limit)

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        base.check_batch("ids", ids)
        with self._transaction() as tx:
            return [self._cancel(tx, queue, job_id) for job_id in ids]

    @staticmethod
    def _cancel(tx: _Transaction, queue: str, job_id: str) -> Cancelled:
        row = tx.row("cancel", queue=queue, id=job_id)
        if row is None:
            known = tx.row("find", queue=queue, id=job_id)
            return Cancelled(CancelStatus.TERMINAL if known else CancelStatus.UNKNOWN)
        if row["state"] == State.ACTIVE:
            return Cancelled(CancelStatus.REQUESTED)
        return Cancelled(CancelStatus.CANCELLED, tx.ended(queue, row))

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        base.check_batch("ids", ids)
        with self._transaction() as tx:
            return [self._retry(tx, queue, job_id) for job_id in ids]

    def _retry(self, tx: _Transaction, queue: str, job_id: str) -> Retried:
        row = tx.row("find", queue=queue, id=job_id)
        if row is None:
            return Retried(RetryStatus.UNKNOWN)
        if row["state"] not in DEAD_LETTER:
            return Retried(RetryStatus.NOT_DEAD, State(row["state"]))
        if row["dedup_key"] is not None:
            holder = tx.key_holder(queue, row["dedup_key"])
            if holder not in (None, job_id):
                return Retried(RetryStatus.KEY_TAKEN, State(row["state"]), holder)
            if row["dedup_mode"] != DedupMode.THROTTLE:
                tx.rows("take_key", queue=queue, key=row["dedup_key"], holder=job_id, until=None)
        unfinished, _ = self._parents(tx, queue, json.loads(row["depends_on"]))
        for family in unfinished:
            tx.rows("add_child", family=family, job=row["number"])
        state = lifecycle.entry_state(due=True, unfinished_parents=bool(unfinished))
        place = tx.next() if state is State.WAITING else None
        tx.rows("retry", number=row["number"], state=state, place=place, family=tx.next())
        return Retried(RetryStatus.RETRIED, state)

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        base.check_batch("ids", ids)
        with self._transaction() as tx:
            return [tx.remove(queue, job_id) for job_id in ids]

    def set_paused(self, queue: str, paused: bool) -> None:
        model.check_queue(queue)
        with self._transaction() as tx:
            tx.rows("add_queue", queue=queue)
            tx.rows("set_paused", queue=queue, paused=paused)

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        base.check_terminal(states)
        with self._transaction() as tx:
            before = tx.now - older_than_ms
            old = [
                row
                for state in set(states)
                for row in tx.rows("ended_before", queue=queue, state=state, before=before, limit=limit)
            ]
            old.sort(key=lambda row: (row["finished_at"], row["place"]))
            for row in old[:limit]:
                tx.remove(queue, row["id"])
            tx.rows("forget_windows", queue=queue, limit=limit)
            return [row["id"] for row in old[:limit]]

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        base.check_limit(limit)
        states = (State.WAITING, State.DELAYED) if include_delayed else (State.WAITING,)
        removed: list[str] = []
        dependants: list[Dependant] = []
        with self._transaction() as tx:
            for row in tx.rows("drainable", queue=queue, include_delayed=include_delayed, limit=limit):
                found = tx.row("find", queue=queue, id=row["id"])
                if found and found["state"] in states:  # not failed meanwhile by a parent's removal
                    removed.append(row["id"])
                    dependants += tx.remove(queue, row["id"]).dependants
        return Drained(tuple(removed), tuple(dependants))

    def drop_queue(self, queue: str, force: bool) -> Dropped:
        with self._transaction() as tx:
            row = tx.row("count_active", queue=queue)
            if row is None:
                return Dropped(False)
            if row["active"] and not force:
                return Dropped(False, row["active"])
            for statement in ("drop_jobs", "drop_keys", "drop_cascades", "drop_schedules", "drop_queue"):
                tx.rows(statement, queue=queue)
            return Dropped(True)

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        with self._transaction() as tx:
            holder = tx.key_holder(queue, key)
            if holder is not None and release:
                tx.rows("free_key", queue=queue, key=key)
            return holder

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        base.check_batch("ids", ids)
        with self._reading() as tx:
            rows = [tx.row("get", queue=queue, id=job_id) for job_id in ids]
        return [records.job(row) if row else None for row in rows]

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        base.check_limit(limit)
        rank, place = base.read_cursor(cursor) if cursor is not None else (-(2**63), -(2**63))
        statement = "list_ended" if state.terminal else f"list_{state}"
        with self._reading() as tx:
            rows = tx.rows(statement, queue=queue, state=state, rank=rank, place=place, limit=limit + 1)
        jobs = []
        for row in rows[:limit]:
            try:
                jobs.append(records.job(row))
            except CorruptRecord as error:
                base.logger.error("left out of a list: %s", error)
        last = rows[limit - 1] if len(rows) > limit else None
        return JobPage(jobs, base.write_cursor(last["rank"], last["place"]) if last else None)

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        with self._reading() as tx:
            wanted = [row["name"] for row in tx.rows("queue_names")] if names is None else names
            return [self._info(tx, name, exact=exact) for name in wanted]

    @staticmethod
    def _info(tx: _Transaction, name: str, *, exact: bool) -> QueueInfo:
        cap = -1 if exact else base.COUNT_CAP
        row = tx.row("queue_info", queue=name, cap=cap, priorities=base.MAX_PRIORITIES_SEEN)
        assert row is not None
        workers = tx.rows("workers", queue=name, limit=base.MAX_WORKERS_SHOWN)
        dead = sum(row[state] for state in DEAD_LETTER)
        oldest = row["oldest_waiting"]
        return QueueInfo(
            name=name,
            paused=bool(row["paused"]),
            counts=Counts(**{state.value: row[state] for state in State}),
            dead_letters=dead if exact else min(dead, cap),
            workers=tuple(
                WorkerInfo(worker["worker"], worker["claims"], worker["age"]) for worker in workers
            ),
            oldest_waiting_age_ms=max(0, tx.now - oldest) if oldest is not None else None,
            oldest_heartbeat_age_ms=workers[0]["age"] if workers else None,
        )

    # Schedules

    def put_schedule(self, schedule: Schedule) -> None:
        with self._transaction() as tx:
            tx.rows("add_queue", queue=schedule.queue)
            tx.rows(
                "put_schedule",
                queue=schedule.queue,
                id=schedule.id,
                revision=tx.next(),
                task=schedule.task,
                payload=schedule.payload,
                every_ms=schedule.every_ms,
                cron=schedule.cron,
                timezone=schedule.timezone,
                catch_up=schedule.catch_up,
                priority=schedule.priority,
                ttl_ms=schedule.ttl_ms,
                timeout_ms=schedule.timeout_ms,
                max_retries=schedule.max_retries,
                backoff=codec.encode_backoff(schedule.backoff).decode("ascii"),
            )

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        with self._transaction() as tx:
            return tx.row("remove_schedule", queue=queue, id=schedule_id) is not None

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        with self._transaction() as tx:
            return tx.row("pause_schedule", queue=queue, id=schedule_id, paused=paused) is not None

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        base.check_limit(limit)
        with self._reading() as tx:
            rows = tx.rows("list_schedules", queue=queue, after=after or "", limit=limit)
        return records.schedules(rows)

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        base.check_limit(limit)
        with self._reading() as tx:
            rows = tx.rows("due_schedules", queue=queue, limit=limit)
            return DueSchedules(tx.now, records.schedules(rows))

    def advance_schedule(
        self,
        queue: str,
        schedule_id: str,
        revision: int,
        slot: int | None,
        next_slot: int,
        last_slot: int | None,
    ) -> bool:
        with self._transaction() as tx:
            moved = tx.row(
                "advance_schedule",
                queue=queue,
                id=schedule_id,
                revision=revision,
                slot=slot,
                next_slot=next_slot,
                last_slot=last_slot,
            )
            return moved is not None

    # What a broker needs

    def take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        base.check_limit(limit)
        with self._transaction() as tx:
            rows = tx.rows("unpublished", queue=queue, before=tx.now - min_age_ms, limit=limit)
            for row in rows:
                tx.rows("take_unpublished", number=row["number"])
        targets = [Target.MAIN if row["state"] == State.WAITING else Target.DLQ for row in rows]
        return [
            Unpublished(row["id"], row["token"], row["priority"], target)
            for row, target in zip(rows, targets, strict=True)
        ]

    def mark_published(self, queue: str, job_id: str, token: str) -> bool:
        with self._transaction() as tx:
            return tx.row("mark_published", queue=queue, id=job_id, token=token) is not None

    def claim_delivery(self, request: ClaimRequest, job_id: str, token: str) -> ClaimedJob | NotClaimed:
        with self._transaction() as tx:
            if held := [one for one in tx.held(request) if one.job.id == job_id]:
                return held[0]
            row = tx.row("find_delivery", queue=request.queue, id=job_id, token=token)
            if row is None:
                return NotClaimed.GONE
            if row["paused"]:
                return NotClaimed.PAUSED
            tx.rows(
                "claim_one",
                number=row["number"],
                token=request.token,
                worker=request.worker,
                stale_after_ms=request.stale_after_ms,
            )
            held = [one for one in tx.held(request) if one.job.id == job_id]
            return held[0] if held else NotClaimed.GONE

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        with self._transaction() as tx:
            rows = tx.rows("lost_deliveries", queue=queue, before=tx.now - older_than_ms, limit=limit)
            for row in rows:
                tx.rows("republish", number=row["number"])
            return [row["id"] for row in rows]
