"""The worker: one invocation that claims jobs, runs their handlers and settles them, inside its time budget.

Delivery is at least once (promise D2): a handler may have run before for the same job, so it must be
idempotent. Nothing outlives the invocation but a handler's thread that could not be stopped, which the report
tells.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from . import codec, errors, model, timelimit
from .backends.base import Backend
from .claims import FRESH_S, LONGEST_S, Claims, Held
from .errors import ConfigurationError, InvalidJob, UnknownTask
from .lifecycle import after_error, is_expired
from .model import (
    MAX_BATCH,
    Cancel,
    ClaimStatus,
    Complete,
    Expire,
    Fail,
    Job,
    JobError,
    Outcome,
    check_int,
    check_queue,
    check_text,
    duration_ms,
)
from .queue import check_backend
from .tasks import CurrentJob, Registry, Task, registry, run_as

log = logging.getLogger("mayflymq")

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

    Claims `prefetch` jobs at a time for each of `concurrency` handlers, again when none of them waits to be
    started. A claim goes stale `stalled_threshold_ms` after its last heartbeat; without
    `enable_stalled_check` there are no heartbeats and it goes stale when the invocation must be over, margin
    included (promise C2). A handler ends with TaskTimeout at its own timeout or at the margin, whichever is
    first (promise F2): it is interrupted where this is the main thread and concurrency is 1, or the task is
    async; else its thread is abandoned. SIGTERM, in the main thread, ends the claiming.

    Raises ConfigurationError for settings that cannot work, and the store's error when no queue could be
    claimed from. A KeyboardInterrupt is raised again when everything held is settled or released.
    """
    check_backend(backend)
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
    claims = Claims(
        backend,
        weights,
        worker=name,
        remaining_ms=remaining_ms,
        margin_ms=margin_ms,
        threshold_ms=stalled_threshold_ms if enable_stalled_check else None,
    )
    return _Invocation(
        claims, Turns(weights), limit, concurrency, prefetch, margin_ms / 1000, tasks, max_result_bytes
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
        self._empty: set[str] = set()  # since the last `look_again`
        self._idle: set[str] = set()  # at the last look
        self._rest_until = dict.fromkeys(weights, 0.0)

    def next(self, now: float) -> str | None:
        """The queue to claim from; None when each was found empty since the last `look_again`."""
        candidates = [name for name in self._spent if name not in self._empty]
        awake = [name for name in candidates if self._rest_until[name] <= now] or candidates
        return min(awake, key=self._spent.__getitem__, default=None)

    def found(self, name: str, jobs: int, now: float) -> None:
        """Notes how many jobs a claim brought. An empty queue saves up no turns, and rests."""
        if not jobs:
            self._empty.add(name)
            self._idle.add(name)
            self._rest_until[name] = now + REST_S
            return
        if name in self._idle:
            self._idle.remove(name)
            self._spent[name] = max(self._spent.values())
        self._spent[name] += jobs / self._weights[name]

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


def prepare(job: Job, now: int, tasks: Registry) -> Call | Outcome:
    """The call that a job stands for, or the outcome where it must not be made."""
    if is_expired(job, now):
        return Expire()
    try:
        task = tasks.get(job.task)
    except UnknownTask as error:  # perhaps this worker is older than the producer: a rolling deploy
        return _failed(job, error)
    try:
        args, kwargs, meta = codec.decode_payload(job.payload)
        task.bind(args, kwargs)
    except Exception as error:  # no retry makes these arguments fit
        return Fail(codec.describe_error(error))
    return Call(task, args, kwargs, meta)


def outcome_of(job: Job, end: timelimit.End, max_result_bytes: int) -> Outcome:
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
            return _failed(job, error)
        if isinstance(raised, errors.Defer):
            return model.Defer(delay_ms)
    return _failed(job, raised, delay_ms)


def _failed(job: Job, error: BaseException | JobError, delay_ms: int | None = None) -> Outcome:
    # The system's randomness, as for tokens; `random` would be another import to pay for on a cold start.
    chance = int.from_bytes(os.urandom(6)) / 2**48
    told = error if isinstance(error, JobError) else codec.describe_error(error)
    return after_error(job, told, chance, delay_ms)


# The invocation


@dataclass(slots=True, eq=False)
class _Attempt:
    """One call of a handler. `outcome` is there when it has ended, or was given up on."""

    held: Held
    call: Call
    seconds: float | None
    by_deadline: bool
    grace_s: float
    overdue: float = float("inf")
    thread: threading.Thread | None = None
    outcome: Outcome | None = None
    ended: bool = False
    interrupt: KeyboardInterrupt | None = None
    left_running: int = 0


class _Invocation:
    """The calling thread claims, starts and settles. Handlers run in it too where it can be interrupted (main
    thread, concurrency 1), else in a thread each; either way their ends come in by `_inbox`."""

    def __init__(
        self,
        claims: Claims,
        turns: Turns,
        limit: int | None,
        concurrency: int,
        prefetch: int,
        margin_s: float,
        tasks: Registry,
        max_result_bytes: int,
    ) -> None:
        self._claims = claims
        self._turns = turns
        self._limit = limit
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._margin_s = margin_s
        self._tasks = tasks
        self._max_result_bytes = max_result_bytes
        self._pid = os.getpid()
        self._main = threading.current_thread() is threading.main_thread()
        self._inline = concurrency == 1 and self._main and timelimit.can_interrupt()
        self._running: set[_Attempt] = set()
        self._abandoned: list[_Attempt] = []
        self._inbox: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._left_running = 0
        self._work_left = False
        self._raise: BaseException | None = None

    def run(self) -> RunReport:
        began = time.monotonic()
        with self._sigterm_stops(), self._claims:
            try:
                self._work()
            finally:
                self._wind_up()
        if self._raise is not None:
            raise self._raise
        return RunReport(
            **self._claims.counts,
            abandoned=self._left_running + self._stuck(),
            elapsed_ms=round((time.monotonic() - began) * 1000),
            work_left=self._work_left,
        )

    def _work(self) -> None:
        while True:
            self._fill()
            if not self._running:
                return
            self._settle_next()

    def _fill(self) -> None:
        """Starts jobs until every handler's place is taken or nothing is left to start."""
        while True:
            free = self._concurrency - self._stuck()
            if self._claims.stopped or free <= 0:
                self._work_left = True
                self._claims.release_pending()
                return
            if len(self._running) >= free:
                return
            held = self._claims.next_pending()
            if held is not None:
                self._start(held)
            elif not self._claim():
                return

    def _stuck(self) -> int:
        """How many abandoned threads still run; each takes up a handler's place."""
        return sum(not attempt.ended for attempt in self._abandoned) if self._abandoned else 0

    # Claiming

    def _room(self, leaving: int = 0) -> int:
        """How many jobs to claim, when `leaving` of those held are being settled."""
        to_limit = MAX_BATCH if self._limit is None else self._limit - self._claims.counts["claimed"]
        if to_limit <= 0:
            self._work_left = True
        places = (self._concurrency - self._stuck()) * self._prefetch
        return min(places - len(self._claims) + leaving, to_limit)

    def _claim(self) -> bool:
        """Asks the queues in turn until one has jobs; False when none has, or the limit is reached."""
        while not self._claims.stopped:
            name = self._turns.next(time.monotonic())
            room = self._room()
            if name is None or room <= 0:
                return False
            try:
                jobs = self._claims.claim(name, room)
            except Exception as error:
                log.error("a queue cannot be claimed from: %s", error, extra={"queue": name})
                self._claims.error()
                self._work_left = True
                self._turns.drop(name)
                if not self._turns and not self._claims.counts["claimed"]:
                    self._raise = error
                continue
            self._turns.found(name, jobs, time.monotonic())
            if jobs:
                break
        return True

    def _settle(self, held: Held, outcome: Outcome) -> None:
        """Settles, and claims the next jobs in the same call when none waits here to be started, this queue
        has the turn and there is time."""
        name = held.claim.queue
        self._turns.look_again()
        room = 0 if self._claims.stopped or self._claims.pending else self._room(leaving=1)
        if self._turns.next(time.monotonic()) != name:
            room = 0
        jobs = self._claims.settle(held, outcome, room)
        if jobs is not None:
            self._turns.found(name, jobs, time.monotonic())

    # Running

    def _start(self, held: Held) -> None:
        """Calls the handler, or settles the job where it must not be called."""
        ready: Call | Outcome = Cancel()
        late = False
        if held.status is ClaimStatus.HELD:
            assert held.job.claimed_at is not None
            now = held.job.claimed_at + round((time.monotonic() - held.received) * 1000)
            ready = prepare(held.job, now, self._tasks)
            if isinstance(ready, Call) and time.monotonic() - held.answered >= FRESH_S:
                self._claims.ask(held)
                late = self._claims.stopped  # asking the store took the time that was left
        if held.status is ClaimStatus.LOST:
            self._claims.drop(held)
        elif held.status is ClaimStatus.CANCEL_REQUESTED:
            self._settle(held, Cancel())
        elif not isinstance(ready, Call):
            self._settle(held, ready)
        elif late:
            self._claims.put_back(held)
        else:
            self._call(held, ready)

    def _call(self, held: Held, call: Call) -> None:
        left_s = self._claims.left_ms() / 1000
        own_s = float("inf") if held.job.timeout_ms is None else held.job.timeout_ms / 1000
        seconds = min(left_s, own_s)
        attempt = _Attempt(held, call, None, left_s < own_s, 0)
        if seconds <= LONGEST_S:
            attempt.seconds = max(seconds, 0.001)
            attempt.grace_s = min(MAX_GRACE_S, left_s - seconds + self._margin_s / 2)
            attempt.overdue = time.monotonic() + seconds + (attempt.grace_s if call.task.is_async else 0)
        self._claims.started(held)
        if self._inline:
            self._running.add(attempt)
            self._handle(attempt)
        else:
            attempt.thread = threading.Thread(
                target=self._handle, args=(attempt,), name=f"mayflymq-{call.task.name}", daemon=True
            )
            attempt.thread.start()
            self._running.add(attempt)

    def _handle(self, attempt: _Attempt) -> None:
        """Runs the handler, in whichever thread this is, and hands over how it ended. Never raises."""
        job = attempt.held.job
        try:
            end = self._run_handler(attempt)
            attempt.left_running = end.abandoned
            outcome = outcome_of(job, end, self._max_result_bytes)
        except BaseException as error:
            end = timelimit.End(raised=error)
            outcome = _failed(job, error)
        if os.getpid() != self._pid:
            # A process that the handler forked came out of it: it is no worker, and the claim is not its own.
            code = end.raised.code if isinstance(end.raised, SystemExit) else end.raised
            os._exit(code if isinstance(code, int) else code is not None)
        if isinstance(end.raised, KeyboardInterrupt):
            attempt.interrupt = end.raised
        if attempt.outcome is None:
            attempt.outcome = outcome
        attempt.ended = True
        self._inbox.put(attempt)

    def _run_handler(self, attempt: _Attempt) -> timelimit.End:
        held, call, seconds = attempt.held, attempt.call, attempt.seconds

        def report_progress(fraction: float) -> None:
            held.progress = fraction  # one assignment, so that TaskTimeout cannot leave it half done

        current = CurrentJob(
            id=held.job.id,
            queue=held.job.queue,
            task=held.job.task,
            delivery=held.job.deliveries,
            failures=held.job.failures,
            deadline=None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds),
            meta=call.meta,
            is_cancelled=partial(self._claims.cancelled, held),
            report_progress=report_progress,
        )
        handler = partial(
            timelimit.run,
            partial(call.task.fn, *call.args, **call.kwargs),
            is_async=call.task.is_async,
            seconds=seconds,
            by_deadline=attempt.by_deadline,
            grace_s=attempt.grace_s,
            alarm=self._inline,
        )
        return run_as(current, handler)

    # Ending

    def _settle_next(self) -> None:
        """Waits for a handler to end, or for one in a thread to be overdue, and settles its job."""
        wait: float | None = 0.0
        if self._inbox.empty():
            overdue = min(attempt.overdue for attempt in self._running)
            wait = None if overdue == float("inf") else max(overdue - time.monotonic(), 0)
        try:
            attempt = self._inbox.get(timeout=wait)
        except queue.Empty:
            now = time.monotonic()
            for late in [attempt for attempt in self._running if attempt.overdue <= now]:
                self._abandon(late)
            return
        if (
            attempt not in self._running
        ):  # a SIGTERM, or an abandoned handler that ended: too late to be recorded
            return
        if attempt.thread is not None:
            attempt.thread.join()  # handing over its end was the last thing it did
        self._left_running += attempt.left_running
        if attempt.interrupt is not None:
            self._raise = attempt.interrupt
            self._claims.stop()
        assert attempt.outcome is not None
        self._settle(attempt.held, attempt.outcome)
        self._running.remove(attempt)

    def _abandon(self, attempt: _Attempt) -> None:
        log.error(
            "a handler is still running at its limit and cannot be interrupted", extra=attempt.held.about
        )
        error = timelimit.timeout(attempt.seconds, attempt.by_deadline)
        attempt.outcome = _failed(attempt.held.job, error)
        self._abandoned.append(attempt)
        self._settle(attempt.held, attempt.outcome)
        self._running.remove(attempt)

    def _wind_up(self) -> None:
        """Lets go of everything still held: nothing, unless an exception ended the work."""
        self._claims.stop()
        for attempt in self._running:
            error = JobError("Interrupted", "the worker was interrupted while the handler ran")
            outcome = attempt.outcome or _failed(attempt.held.job, error)
            self._claims.settle(attempt.held, outcome)
        self._claims.release(self._claims.all())

    @contextmanager
    def _sigterm_stops(self) -> Generator[None]:
        """While this lasts SIGTERM ends the claiming and nothing else; nothing depends on its coming."""
        previous = signal.getsignal(signal.SIGTERM) if self._main else None
        if previous is None:  # another thread, or a handler that could not be put back
            yield
            return

        def stop(_signal: int, _frame: object) -> None:
            self._claims.stop()
            self._inbox.put(None)

        signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
