"""The worker: one invocation that claims jobs, runs their handlers and settles them, inside its time budget.

Delivery is at least once (promise D2): a handler may have run before for the same job, so it must be
idempotent. Nothing outlives the invocation but a handler's thread that could not be stopped, which the report
tells.
"""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from . import codec, errors, model, timelimit
from .backends.base import Backend
from .errors import BackendError, ConfigurationError, CorruptRecord, InvalidJob, UnknownTask
from .lifecycle import after_error, event_of, is_expired
from .model import (
    MAX_BATCH,
    Beat,
    Cancel,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Complete,
    Expire,
    Fail,
    Job,
    JobError,
    Outcome,
    Release,
    Settle,
    Settlement,
    check_int,
    check_queue,
    check_text,
    duration_ms,
)
from .queue import Queue
from .tasks import CurrentJob, Registry, Task, registry, running

log = logging.getLogger("mayflymq")

T = TypeVar("T")

PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""How long to wait before a call is sent again after a transient error; then the error stands."""
FRESH_S = 1.0
"""For how long the store's last answer about a claim counts as known (promise X2)."""
REST_S = 1.0
"""For how long a queue that was empty is left alone while others have jobs."""
MAX_GRACE_S = 5.0
"""The longest that a handler has to clean up after TaskTimeout, where the deadline leaves as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What one invocation did, in jobs.

    `claimed` is the sum of the endings, `released` (not started), `lost` (recovered, removed or settled by
    somebody else), and what an error kept from being settled (it goes stale and is recovered). `errors`
    counts calls that the store refused or did not answer, after all attempts. `work_left`: time, limit,
    SIGTERM or errors ended it, not that the queues were empty.

    `abandoned` counts threads of handlers that are still running though their jobs were settled as timed out:
    the caller should let the process end, with `os._exit` where a leftover thread would hold it.
    """

    claimed: int = 0
    completed: int = 0
    retried: int = 0
    deferred: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    released: int = 0
    lost: int = 0
    errors: int = 0
    abandoned: int = 0
    elapsed_ms: int = 0
    work_left: bool = False

    def as_dict(self) -> dict[str, int | bool]:
        """The report as plain data."""
        return asdict(self)


_COUNTED_AS: dict[type[Outcome], str] = {
    Complete: "completed",
    model.Retry: "retried",
    model.Defer: "deferred",
    Fail: "failed",
    Expire: "expired",
    Cancel: "cancelled",
    Release: "released",
}


def claim_and_run(
    backend: Backend,
    queues: Sequence[str] | Mapping[str, int],
    *,
    remaining_ms: Callable[[], int] | None = None,
    limit: int | None = None,
    concurrency: int = 1,
    prefetch: int = 1,
    stalled_threshold_ms: int = 30_000,
    enable_stalled_check: bool = True,
    margin_ms: int = 1_000,
    worker: str | None = None,
    tasks: Registry = registry,
    max_result_bytes: int = codec.MAX_RESULT_BYTES,
) -> RunReport:
    """Runs jobs of these queues (a mapping gives their weights) until all are empty, `limit` jobs were
    claimed, or `remaining_ms()` leaves no more than the margin (promise F1).

    Claims `prefetch` jobs at a time for each of `concurrency` handlers. A claim goes stale
    `stalled_threshold_ms` after its last heartbeat; without `enable_stalled_check` there are no heartbeats
    and it goes stale when the invocation must be over, margin included (promise C2). A handler ends with
    TaskTimeout at its own timeout or at the margin, whichever is first (promise F2): it is interrupted where
    this is the main thread and concurrency is 1, or the task is async; else its thread is abandoned. SIGTERM,
    in the main thread, ends the claiming.

    Raises ConfigurationError for settings that cannot work, and the store's error when no queue could be
    claimed from. A KeyboardInterrupt is raised again when everything held is settled or released.
    """
    if not enable_stalled_check and remaining_ms is None:
        raise ConfigurationError(
            "enable_stalled_check is off and there is no deadline, so no claim would ever go stale: "
            "switch the check on, or give a time limit"
        )
    try:
        for what, value, low in (
            ("concurrency", concurrency, 1),
            ("prefetch", prefetch, 1),
            ("stalled_threshold_ms", stalled_threshold_ms, 1),
            ("margin_ms", margin_ms, 0),
            ("limit", 1 if limit is None else limit, 1),
        ):
            check_int(what, value, low, model.MAX_TIME)
        weights = _weights(queues)
        name = _default_name() if worker is None else check_text("a worker's name", worker)
    except InvalidJob as error:
        raise ConfigurationError(str(error)) from error
    return _Invocation(
        backend,
        weights,
        remaining_ms=remaining_ms,
        limit=limit,
        concurrency=concurrency,
        prefetch=prefetch,
        threshold_ms=stalled_threshold_ms if enable_stalled_check else None,
        margin_ms=margin_ms,
        worker=name,
        tasks=tasks,
        max_result_bytes=max_result_bytes,
    ).run()


def _weights(queues: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    if isinstance(queues, str):
        queues = [queues]
    weights = dict(queues) if isinstance(queues, Mapping) else dict(Counter(queues))
    if not weights:
        raise InvalidJob("there is no queue to run: name at least one")
    return {
        check_queue(name): check_int(f"the weight of {name}", weights[name], 1, 10**6) for name in weights
    }


def _default_name() -> str:
    node = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    host = "".join(c if c.isprintable() else "?" for c in node)[:200]
    return f"{host or 'host'}-{os.getpid()}-{os.urandom(3).hex()}"


# Decisions: no I/O


class Turns:
    """Whose turn it is: weighted round robin by jobs claimed, so that no queue starves."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._spent = dict.fromkeys(weights, 0.0)
        self._empty: set[str] = set()
        self._rest_until = dict.fromkeys(weights, 0.0)

    def next(self, now: float) -> str | None:
        """The queue to claim from; None when each was found empty since the last `look_again`."""
        candidates = [name for name in self._spent if name not in self._empty]
        awake = [name for name in candidates if self._rest_until[name] <= now] or candidates
        return min(awake, key=self._spent.__getitem__, default=None)

    def found(self, name: str, jobs: int, now: float) -> None:
        """Notes how many jobs a claim brought. An empty queue saves up no turns, and rests."""
        if jobs:
            self._spent[name] += jobs / self._weights[name]
        else:
            self._empty.add(name)
            self._rest_until[name] = now + REST_S
            self._spent[name] = max(self._spent.values())

    def look_again(self) -> None:
        """A handler has run, and what it enqueued may be in any queue."""
        self._empty.clear()

    def drop(self, name: str) -> None:
        """The queue cannot be claimed from in this invocation."""
        self._spent.pop(name, None)

    def __bool__(self) -> bool:
        return bool(self._spent)


@dataclass(frozen=True, slots=True)
class Call:
    """A handler with the arguments that it will be called with."""

    task: Task[..., Any]
    args: list[object]
    kwargs: dict[str, object]
    meta: dict[str, str]


def prepare(job: Job, now: int, tasks: Registry, chance: float) -> Call | Outcome:
    """The call that a job stands for, or the outcome where it must not be made."""
    if is_expired(job, now):
        return Expire()
    try:
        task = tasks.get(job.task)
    except UnknownTask as error:  # perhaps this worker is older than the producer: a rolling deploy
        return after_error(job, codec.describe_error(error), chance)
    try:
        args, kwargs, meta = codec.decode_payload(job.payload)
        task.bind(args, kwargs)
    except (CorruptRecord, InvalidJob) as error:  # no retry makes these arguments fit
        return Fail(codec.describe_error(error))
    return Call(task, args, kwargs, meta)


def outcome_of(job: Job, end: timelimit.End, chance: float, max_result_bytes: int) -> Outcome:
    """What the end of a handler means for its job."""
    raised = end.raised
    if raised is None:
        try:
            return Complete(codec.encode("the result", end.value, max_result_bytes))
        except Exception as error:
            why = codec.describe_error(error)
            text = f"the handler returned, but its result cannot be stored: {why.message}"
            return Fail(codec.clipped(why.type, text))
    if isinstance(raised, errors.Discard):
        return Fail(codec.describe_error(raised))
    delay_ms = None
    if isinstance(raised, errors.Defer) or (isinstance(raised, errors.Retry) and raised.after is not None):
        try:
            delay_ms = max(0, duration_ms(f"the `after` of {type(raised).__name__}", raised.after))
        except InvalidJob as error:
            return after_error(job, codec.describe_error(error), chance)
        if isinstance(raised, errors.Defer):
            return model.Defer(delay_ms)
    return after_error(job, codec.describe_error(raised), chance, delay_ms)


def _chance() -> float:
    return random.SystemRandom().random()


# The invocation


@dataclass(slots=True, eq=False)
class _Held:
    """A claim that this worker holds. `answered` is when the call was sent whose answer `status` is."""

    claim: Claim
    job: Job
    received: float
    answered: float
    status: ClaimStatus = ClaimStatus.HELD
    progress: float | None = None
    progress_sent: float | None = None
    started: bool = False
    outcome: Outcome | None = None
    seconds: float | None = None
    overdue: float = float("inf")
    thread: threading.Thread | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    held: _Held
    outcome: Outcome
    interrupt: KeyboardInterrupt | None
    abandoned: int


class _Invocation:
    """The calling thread claims, starts and settles. Handlers run in it too where it can be interrupted (main
    thread, concurrency 1), else in a thread each; either way their ends come in by `_inbox`. The heartbeat
    thread renews what is held, and at the margin releases what did not start even while a handler blocks the
    calling thread."""

    def __init__(
        self,
        backend: Backend,
        weights: Mapping[str, int],
        *,
        remaining_ms: Callable[[], int] | None,
        limit: int | None,
        concurrency: int,
        prefetch: int,
        threshold_ms: int | None,
        margin_ms: int,
        worker: str,
        tasks: Registry,
        max_result_bytes: int,
    ) -> None:
        self._queues = {name: Queue(name, backend) for name in weights}
        self._turns = Turns(weights)
        self._remaining_ms = remaining_ms
        self._limit = limit
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._threshold_ms = threshold_ms
        self._margin_ms = margin_ms
        self._worker = worker
        self._tasks = tasks
        self._max_result_bytes = max_result_bytes
        self._main = threading.current_thread() is threading.main_thread()
        self._inline = concurrency == 1 and self._main and timelimit.can_interrupt()

        self._lock = threading.Lock()  # over the next three and the counts
        self._held: dict[Claim, _Held] = {}
        self._pending: deque[_Held] = deque()
        self._counts: Counter[str] = Counter()
        self._running: set[_Held] = set()
        self._abandoned: set[_Held] = set()
        # Held over each call to the store, so that a heartbeat never asks about a claim just settled.
        self._calls = threading.Lock()
        # SimpleQueue.put may be called from a signal handler.
        self._inbox: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._knocks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopping = False
        self._work_left = False
        self._raise: BaseException | None = None

    def run(self) -> RunReport:
        began = time.monotonic()
        keeper = threading.Thread(target=self._keep, name="mayflymq-heartbeat", daemon=True)
        with self._sigterm_stops():
            keeper.start()
            try:
                try:
                    self._work()
                finally:
                    self._wind_up()
            finally:
                self._knocks.put(True)
                keeper.join()
        if self._raise is not None:
            raise self._raise
        elapsed_ms = round((time.monotonic() - began) * 1000)
        self._counts["abandoned"] += len(self._abandoned)
        return RunReport(**self._counts, elapsed_ms=elapsed_ms, work_left=self._work_left)

    def _work(self) -> None:
        while True:
            self._fill()
            if not self._running:
                return
            self._settle_next()

    def _fill(self) -> None:
        """Starts jobs until every handler's place is taken or nothing is left to start."""
        while True:
            if self._stopped() or len(self._abandoned) >= self._concurrency:
                self._work_left = True
                self._release_pending()
                return
            if len(self._running) + len(self._abandoned) >= self._concurrency:
                return
            with self._lock:
                held = self._pending.popleft() if self._pending else None
            if held is not None:
                self._start(held)
            elif not self._claim():
                return

    def _settle_next(self) -> None:
        """Waits for a handler to end, or for one in a thread to be overdue, and settles its job."""
        wait = min(held.overdue for held in self._running) - time.monotonic()
        try:
            ended = self._inbox.get(timeout=None if wait == float("inf") else max(wait, 0))
        except queue.Empty:
            now = time.monotonic()
            for held in [held for held in self._running if held.overdue <= now]:
                self._abandon(held)
            return
        if ended is not None:  # None is a SIGTERM
            self._finish(ended)

    def _finish(self, ended: _Ended) -> None:
        held = ended.held
        if held.thread is not None:
            held.thread.join()  # handing over its end was the last thing it did
        if held in self._abandoned:  # settled as timed out before; what it did since is not recorded
            self._abandoned.remove(held)
            return
        self._running.remove(held)
        self._count("abandoned", ended.abandoned)
        if ended.interrupt is not None:
            self._stopping = True
            self._raise = ended.interrupt
        self._settle(held, ended.outcome)

    def _abandon(self, held: _Held) -> None:
        self._running.remove(held)
        self._abandoned.add(held)
        error = codec.describe_error(timelimit.timeout(held.seconds))
        log.error("a handler's thread cannot be interrupted and is abandoned", extra=_about(held))
        self._settle(held, after_error(held.job, error, _chance()))

    def _wind_up(self) -> None:
        """Lets go of everything held; in the ordinary course nothing is."""
        self._stopping = True
        while True:
            try:
                ended = self._inbox.get_nowait()
            except queue.Empty:
                break
            if ended is not None:
                self._finish(ended)
        self._running.clear()
        with self._lock:
            self._pending.clear()
            rest = list(self._held.values())
        error = JobError("Interrupted", "the worker was interrupted while the handler ran")
        for held in rest:
            if held.started:
                self._settle(held, held.outcome or after_error(held.job, error, _chance()))
        self._release([held for held in rest if not held.started])

    # Time

    def _left_ms(self) -> float:
        """Milliseconds until the margin."""
        return float("inf") if self._remaining_ms is None else self._remaining_ms() - self._margin_ms

    def _stopped(self) -> bool:
        return self._stopping or self._left_ms() <= 0

    def _spare_ms(self) -> float:
        """Milliseconds until the platform ends the process."""
        return float("inf") if self._remaining_ms is None else self._remaining_ms()

    def _stale_after_ms(self) -> int:
        if self._threshold_ms is not None:
            return self._threshold_ms
        assert self._remaining_ms is not None
        return max(1, self._remaining_ms() + self._margin_ms)

    def _limit_s(self, job: Job) -> float | None:
        left = self._left_ms()
        limit = left if job.timeout_ms is None else min(left, job.timeout_ms)
        return None if limit == float("inf") else max(limit, 1) / 1000

    # Claiming

    def _room(self, leaving: int = 0) -> int:
        """How many jobs to ask for, when `leaving` of those held are being settled."""
        with self._lock:
            places = (self._concurrency - len(self._abandoned)) * self._prefetch - len(self._held) + leaving
            to_limit = MAX_BATCH if self._limit is None else self._limit - self._counts["claimed"]
        if to_limit <= 0:
            self._work_left = True
        return min(places, to_limit, MAX_BATCH)

    def _request(self, name: str, jobs: int) -> ClaimRequest:
        # From the system: a process that is resumed from a snapshot repeats its own randomness.
        return ClaimRequest(name, jobs, os.urandom(16).hex(), self._worker, self._stale_after_ms())

    def _claim(self) -> bool:
        """Asks the queues in turn until one has jobs; False when none has."""
        while not self._stopped() and (room := self._room()) > 0:
            name = self._turns.next(time.monotonic())
            if name is None:
                return False
            request = self._request(name, room)
            sent = time.monotonic()
            try:
                jobs = self._send(partial(self._queues[name].claim, request), self._left_ms)
            except Exception as error:
                self._cannot_claim(name, error)
                continue
            if self._take(name, jobs, sent):
                return True
        return self._stopped()

    def _take(self, name: str, jobs: Sequence[ClaimedJob], sent: float) -> int:
        now = time.monotonic()
        self._turns.found(name, len(jobs), now)
        with self._lock:
            for claimed in jobs:
                held = _Held(claimed.claim, claimed.job, received=now, answered=sent)
                self._held[held.claim] = held
                self._pending.append(held)
            self._counts["claimed"] += len(jobs)
        if jobs and self._stopped():
            self._release_pending()
        return len(jobs)

    def _cannot_claim(self, name: str, error: Exception) -> None:
        log.error("a queue cannot be claimed from: %s", error, extra={"queue": name})
        self._count("errors")
        self._work_left = True
        self._turns.drop(name)
        if not self._turns and not self._counts["claimed"]:
            self._raise = error

    # Running

    def _start(self, held: _Held) -> None:
        """Calls the handler, or settles the job where it must not be called."""
        ready: Call | Outcome = Cancel()
        if held.status is ClaimStatus.HELD:
            assert held.job.claimed_at is not None
            now = held.job.claimed_at + round((time.monotonic() - held.received) * 1000)
            ready = prepare(held.job, now, self._tasks, _chance())
            if isinstance(ready, Call) and time.monotonic() - held.answered >= FRESH_S:
                self._ask(held)
        if held.status is ClaimStatus.LOST:
            self._let_go(held, "lost")
            return
        if held.status is ClaimStatus.CANCEL_REQUESTED:
            ready = Cancel()
        if not isinstance(ready, Call):
            self._settle(held, ready)
        elif self._stopped():  # asking the store took the time that was left
            with self._lock:
                self._pending.appendleft(held)
        else:
            self._call(held, ready)

    def _ask(self, held: _Held) -> None:
        """Learns from the store whether the job was cancelled (promise X2)."""
        try:
            self._send(partial(self._renew, self._queues[held.claim.queue], [held]), self._left_ms)
        except Exception as error:
            log.warning("whether a job was cancelled cannot be asked: %s", error, extra=_about(held))

    def _call(self, held: _Held, call: Call) -> None:
        seconds = held.seconds = self._limit_s(held.job)
        grace_s = self._margin_ms / 2000
        if seconds is not None:
            grace_s = min(MAX_GRACE_S, self._left_ms() / 1000 - seconds + grace_s)
            held.overdue = time.monotonic() + seconds + (grace_s if call.task.is_async else 0)
        handle = partial(self._handle, held, call, seconds, max(grace_s, 0.0))
        held.started = True
        self._running.add(held)
        self._queues[held.claim.queue].started(ClaimedJob(held.claim, held.job))
        if self._inline:
            handle()
            return
        held.thread = threading.Thread(target=handle, name=f"mayflymq-{held.job.task}", daemon=True)
        try:
            held.thread.start()
        except RuntimeError:  # the system has no more threads
            held.started = False
            self._running.remove(held)
            raise

    def _handle(self, held: _Held, call: Call, seconds: float | None, grace_s: float) -> None:
        """Runs the handler, in whichever thread this is, and hands over how it ended; never raises."""
        job = held.job
        abandoned = 0
        raised: BaseException | None
        try:
            end = contextvars.copy_context().run(self._run_handler, held, call, seconds, grace_s)
            abandoned, raised = end.abandoned, end.raised
            outcome = outcome_of(job, end, _chance(), self._max_result_bytes)
        except BaseException as error:
            raised = error
            outcome = after_error(job, codec.describe_error(error), _chance())
        interrupt = raised if isinstance(raised, KeyboardInterrupt) else None
        self._inbox.put(_Ended(held, outcome, interrupt, abandoned))

    def _run_handler(self, held: _Held, call: Call, seconds: float | None, grace_s: float) -> timelimit.End:
        job = held.job

        def report_progress(fraction: float) -> None:
            held.progress = fraction  # one store, so that TaskTimeout cannot leave it half done

        current = CurrentJob(
            id=job.id,
            queue=job.queue,
            task=job.task,
            delivery=job.deliveries,
            failures=job.failures,
            deadline=None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
            meta=call.meta,
            is_cancelled=lambda: held.status is not ClaimStatus.HELD or held.claim not in self._held,
            report_progress=report_progress,
        )
        with running(current):
            return timelimit.run(
                partial(call.task.fn, *call.args, **call.kwargs),
                is_async=call.task.is_async,
                seconds=seconds,
                grace_s=grace_s,
                alarm=self._inline,
            )

    # Settling

    def _settle(self, held: _Held, outcome: Outcome) -> None:
        """Ends a claim with one outcome, and claims the next job in the same call.

        Where the store refuses the outcome (a record too large for it), the job fails with a short error
        instead; where it cannot be reached, the job goes stale and is recovered.
        """
        held.outcome = outcome
        next_claim = self._next_claim(held.claim.queue)
        shorten = isinstance(outcome, Complete | model.Retry | Fail)
        while True:
            try:
                return self._settle_once(held, outcome, next_claim)
            except Exception as error:
                about = _about(held) | {"outcome": event_of(outcome).value}
                log.error("a job cannot be settled: %s: %s", type(error).__name__, error, extra=about)
                refused = not (isinstance(error, BackendError) and error.transient)
                if refused and next_claim is not None:
                    next_claim = None  # perhaps it was the claim that was refused
                elif refused and shorten:
                    shorten = False
                    why = codec.describe_error(error).message[:1000]
                    text = f"the store refused the job's {event_of(outcome)}: {why}"
                    outcome = Fail(codec.clipped("SettleRefused", text))
                else:
                    self._count("errors")
                    self._let_go(held, None)
                    return

    def _settle_once(self, held: _Held, outcome: Outcome, next_claim: ClaimRequest | None) -> None:
        facade = self._queues[held.claim.queue]

        def settle() -> list[ClaimedJob]:
            result = facade.settle(
                [Settle(held.claim, outcome)], next_claim, tasks={held.job.id: held.job.task}
            )
            self._let_go(held, _counted_as(outcome, result.settled[0].status))
            return result.claimed

        sent = time.monotonic()
        claimed = self._send(settle, self._spare_ms)
        if next_claim is not None:
            self._take(facade.name, claimed, sent)

    def _next_claim(self, name: str) -> ClaimRequest | None:
        """The claim that may ride on a settle in queue `name`: when there is time and room, and it has the
        turn."""
        self._turns.look_again()
        if self._stopped() or (room := self._room(leaving=1)) <= 0:
            return None
        return self._request(name, room) if self._turns.next(time.monotonic()) == name else None

    def _release_pending(self) -> None:
        """Gives back what did not start, with no attempt counted (promise F1). Called from either thread."""
        with self._lock:
            rest = list(self._pending)
            self._pending.clear()
        self._release(rest)

    def _release(self, rest: Sequence[_Held]) -> None:
        for facade, group in self._by_queue(rest):
            try:
                self._send(partial(self._release_group, facade, group), self._spare_ms)
            except Exception as error:
                log.error("jobs cannot be released: %s", error, extra={"queue": facade.name})
                self._count("errors")
                for held in group:
                    self._let_go(held, None)

    def _release_group(self, facade: Queue, group: Sequence[_Held]) -> None:
        result = facade.settle([Settle(held.claim, Release()) for held in group])
        for held, settled in zip(group, result.settled, strict=True):
            self._let_go(held, _counted_as(Release(), settled.status))

    def _let_go(self, held: _Held, count_as: str | None) -> None:
        with self._lock:
            if self._held.pop(held.claim, None) is not None and count_as is not None:
                self._counts[count_as] += 1

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    # The store

    def _send(self, call: Callable[[], T], spare_ms: Callable[[], float]) -> T:
        """Makes a call, and makes the same again after a transient error, a few times and while `spare_ms`
        lasts: the claim tokens make the repeat harmless (promises D7, D8)."""
        for pause in PAUSES_S:
            try:
                with self._calls:
                    return call()
            except BackendError as error:
                if not error.transient or spare_ms() <= pause * 1000:
                    raise
                log.warning("a call to the store failed and is sent again: %s", error)
            time.sleep(pause)
        with self._calls:
            return call()

    def _by_queue(self, helds: Sequence[_Held]) -> Generator[tuple[Queue, list[_Held]]]:
        """One protocol call is about one queue and at most MAX_BATCH claims."""
        for name, facade in self._queues.items():
            mine = [held for held in helds if held.claim.queue == name]
            for start in range(0, len(mine), MAX_BATCH):
                yield facade, mine[start : start + MAX_BATCH]

    def _renew(self, facade: Queue, helds: Sequence[_Held]) -> None:
        """Sends heartbeats, with progress where it is new, and notes the answers. `_calls` is held."""
        with self._lock:
            helds = [held for held in helds if held.claim in self._held]
        if not helds:
            return
        sent, stale_after_ms = time.monotonic(), self._stale_after_ms()
        progress = [held.progress for held in helds]
        beats = [
            Beat(held.claim, stale_after_ms, None if new == held.progress_sent else new)
            for held, new in zip(helds, progress, strict=True)
        ]
        for held, new, answer in zip(helds, progress, facade.heartbeat(beats), strict=True):
            held.progress_sent, held.answered, held.status = new, sent, answer

    # The heartbeat thread

    def _keep(self) -> None:
        """Renews what is held every third of its time, sooner after a failure (promises C2, C3), and gives
        back what did not start as soon as nothing more will be started."""
        every = float("inf") if self._threshold_ms is None else max(self._threshold_ms / 3000, 0.005)
        next_beat = time.monotonic() + every
        while True:
            left, wait = self._left_ms() / 1000, next_beat - time.monotonic()
            wait = max(min(wait, left) if left > 0 else wait, 0.001)
            try:
                if self._knocks.get(timeout=None if wait == float("inf") else wait):
                    return
            except queue.Empty:
                pass
            if self._stopped():
                self._release_pending()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + (every if self._beat() else min(every / 4, 1.0))

    def _beat(self) -> bool:
        """Whether each heartbeat was answered."""
        with self._lock:
            helds = [held for held in self._held.values() if held.status is not ClaimStatus.LOST]
        answered = True
        for facade, group in self._by_queue(helds):
            try:
                with self._calls:
                    self._renew(facade, group)
            except Exception as error:
                log.warning(
                    "a heartbeat failed: %s: %s", type(error).__name__, error, extra={"queue": facade.name}
                )
                answered = False
        return answered

    # SIGTERM

    @contextmanager
    def _sigterm_stops(self) -> Generator[None]:
        """While this lasts SIGTERM ends the claiming and nothing else; nothing depends on its coming."""
        previous = signal.getsignal(signal.SIGTERM) if self._main else None
        if previous is None:  # another thread, or a handler that could not be put back
            yield
            return

        def stop(_signal: int, _frame: object) -> None:
            self._stopping = True
            self._knocks.put(False)
            self._inbox.put(None)

        signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)


def _counted_as(outcome: Outcome, status: Settlement) -> str:
    if status is Settlement.LOST:
        return "lost"
    return "cancelled" if status is Settlement.CANCELLED else _COUNTED_AS[type(outcome)]


def _about(held: _Held) -> dict[str, str]:
    return {"queue": held.claim.queue, "job_id": held.claim.job_id, "task": held.job.task}
