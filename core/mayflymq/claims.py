"""The claims of one worker: made, renewed by a thread, settled or given back. Every call of the worker to the
store is made here, and knows nothing of handlers.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from . import codec, model
from .backends.base import Backend
from .errors import BackendError
from .lifecycle import event_of
from .model import (
    MAX_BATCH,
    MAX_TIME,
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
    Settled,
    Settlement,
    SettleResult,
)
from .queue import Queue

log = logging.getLogger("mayflymq")

T = TypeVar("T")

PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""How long to wait before a call is sent again after a transient error; after the last one the error
stands."""

_COUNTED_AS: dict[type[Outcome], str] = {
    Complete: "completed",
    model.Retry: "retried",
    model.Defer: "deferred",
    Fail: "failed",
    Expire: "expired",
    Cancel: "cancelled",
    Release: "released",
}


_RECORDED = (Settlement.APPLIED, Settlement.DUPLICATE)

FRESH_S = 1.0
"""For how long the store's last answer about a claim counts as known (promise X2)."""
MAX_LOGGED = 300
"""How many characters of an error's message a log line has."""
LONGEST_S = 366 * 24 * 3600.0
"""The longest that anything here waits, for the clocks of the system; a later time limit is none."""


@dataclass(slots=True, eq=False)
class Held:
    """A claim that the worker holds, and what it knows about it.

    `received` is when the claim came, `answered` when the call was sent whose answer `status` is, `asked`
    when its handler last made us ask: seconds on this process's monotonic clock. `progress` is the handler's
    to set.
    """

    claim: Claim
    job: Job
    received: float
    answered: float
    asked: float = 0.0
    status: ClaimStatus = ClaimStatus.HELD
    progress: float | None = None
    progress_sent: float | None = None

    @property
    def about(self) -> dict[str, str]:
        """What a log line says about it."""
        return {"queue": self.claim.queue, "job_id": self.claim.job_id, "task": self.job.task}


class Claims:
    """What one invocation holds. Inside `with` a thread renews all of it, also what still waits for its turn.

    `threshold_ms` is how long a claim lasts without a heartbeat; None: no heartbeats, a claim lasts until the
    invocation must be over (promise C2). `counts` has the names of the report.
    """

    def __init__(
        self,
        backend: Backend,
        names: Iterable[str],
        *,
        worker: str,
        remaining_ms: Callable[[], int] | None,
        margin_ms: int,
        threshold_ms: int | None,
    ) -> None:
        self._queues = {name: Queue(name, backend) for name in names}
        self._worker = worker
        self._remaining_ms = remaining_ms
        self._margin_ms = margin_ms
        self._threshold_ms = threshold_ms
        self._lock = threading.Lock()  # over the next three
        self._held: dict[Claim, Held] = {}
        self._pending: deque[Held] = deque()
        self.counts: Counter[str] = Counter()
        # Held over each call to the store, so that no heartbeat asks about a claim that was just settled.
        self._calls = threading.Lock()
        self._stopping = False
        # A SimpleQueue, because its put may be called from a signal handler.
        self._knocks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._keeper = threading.Thread(target=self._keep, name="mayflymq-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._knocks.put(True)
        self._keeper.join()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: Held) -> bool:
        return held.claim in self._held

    # Time

    def left_ms(self) -> float:
        """Milliseconds until the margin, infinite where there is no deadline."""
        return self._spare_ms() - self._margin_ms

    def _spare_ms(self) -> float:
        return float("inf") if self._remaining_ms is None else self._remaining_ms()

    def stop(self) -> None:
        """Nothing more is claimed or started, and what waits for its turn is given back; may be called from a
        signal handler."""
        self._stopping = True
        self._knocks.put(False)

    @property
    def stopped(self) -> bool:
        """Whether nothing more is to be claimed or started: after `stop`, or when the margin is reached
        (F1)."""
        return self._stopping or self.left_ms() <= 0

    # Claiming

    def claim(self, name: str, jobs: int) -> int:
        """Claims at most `jobs` from a queue, to be had from `next_pending`, and returns how many there were.
        Raises the store's error when it stands."""
        request = self._request(name, jobs)
        sent = time.monotonic()
        return self._take(self._send(partial(self._queues[name].claim, request), self.left_ms), sent)

    def _request(self, name: str, jobs: int) -> ClaimRequest:
        # The token is the system's randomness: a process resumed from a snapshot would repeat its own.
        token = os.urandom(16).hex()
        return ClaimRequest(name, min(jobs, MAX_BATCH), token, self._worker, self._stale_after_ms())

    def _stale_after_ms(self) -> int:
        if self._threshold_ms is not None:
            return self._threshold_ms
        assert self._remaining_ms is not None
        return max(1, round(min(self._remaining_ms() + self._margin_ms, MAX_TIME)))

    def _take(self, jobs: Sequence[ClaimedJob], sent: float) -> int:
        now = time.monotonic()
        with self._lock:
            for claimed in jobs:
                held = Held(claimed.claim, claimed.job, received=now, answered=sent)
                self._held[held.claim] = held
                self._pending.append(held)
            self.counts["claimed"] += len(jobs)
        return len(jobs)

    @property
    def pending(self) -> bool:
        """Whether a claimed job waits for its turn to start."""
        return bool(self._pending)

    def next_pending(self) -> Held | None:
        """The claimed job whose turn it is to start, if there is one."""
        with self._lock:
            return self._pending.popleft() if self._pending else None

    def put_back(self, held: Held) -> None:
        """It is not started after all, and is again the first to."""
        with self._lock:
            self._pending.appendleft(held)

    def started(self, held: Held) -> None:
        """Tells that the handler is about to be called."""
        self._queues[held.claim.queue].started(ClaimedJob(held.claim, held.job))

    # Renewing

    def ask(self, held: Held) -> None:
        """Learns from the store whether the job was cancelled (X2); where it does not answer, what was known
        stays."""
        try:
            self._send(partial(self._renew, self._queues[held.claim.queue], [held]), self.left_ms)
        except Exception as error:
            log.warning("whether a job was cancelled cannot be asked: %s", error, extra=held.about)

    def cancelled(self, held: Held) -> bool:
        """Whether the handler's work is no longer wanted: the job was cancelled, or the claim is lost. Asks
        the store where its last answer is over FRESH_S old, once, and at most as often; the handler goes on
        either way."""
        now = time.monotonic()
        if (
            held.status is ClaimStatus.HELD
            and held in self
            and now - max(held.answered, held.asked) >= FRESH_S
        ):
            held.asked = now
            try:
                with self._calls:
                    self._renew(self._queues[held.claim.queue], [held])
            except Exception as error:
                log.warning("whether a job was cancelled cannot be asked: %s", error, extra=held.about)
        return held.status is not ClaimStatus.HELD or held not in self

    def _renew(self, facade: Queue, helds: Sequence[Held]) -> None:
        """Sends heartbeats, with progress where it is new, and notes the answers. `_calls` is held."""
        helds = [held for held in helds if held in self]
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

    def _keep(self) -> None:
        """The heartbeat thread: renews all that is held every third of the threshold, sooner after a failure
        (C2, C3). It also gives back what did not start, so that a handler in the main thread does not hold
        that up."""
        every = float("inf") if self._threshold_ms is None else max(self._threshold_ms / 3000, 0.005)
        next_beat = time.monotonic() + every
        while True:
            left, wait = self.left_ms() / 1000, next_beat - time.monotonic()
            wait = max(min(wait, left, LONGEST_S) if left > 0 else min(wait, LONGEST_S), 0.001)
            try:
                if self._knocks.get(timeout=wait):
                    return
            except queue.Empty:
                pass
            if self.stopped:
                self.release_pending()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + (every if self._beat() else min(every / 4, 1.0))

    def _beat(self) -> bool:
        """Whether every heartbeat was answered."""
        answered = True
        for facade, group in self._by_queue(
            held for held in self.all() if held.status is not ClaimStatus.LOST
        ):
            try:
                with self._calls:
                    self._renew(facade, group)
            except Exception as error:
                about = {"queue": facade.name, "claims": len(group)}
                log.warning("a heartbeat failed: %s: %s", type(error).__name__, error, extra=about)
                answered = False
        return answered

    # Settling

    def settle(self, held: Held, outcome: Outcome, then_claim: int = 0) -> int | None:
        """Ends a claim with one outcome and, in the same call, claims at most `then_claim` jobs from its
        queue. Returns how many there were, None where nothing was asked or the claim could not be made.

        Where the store refuses the outcome (a record too large for it), the job fails with a short error
        instead. Where it cannot be reached, the job goes stale and is recovered. Never raises for either.
        """
        next_claim = self._request(held.claim.queue, then_claim) if then_claim > 0 else None
        may_shorten = isinstance(outcome, Complete | model.Retry | Fail)
        while True:
            try:
                return self._settle_once(held, outcome, next_claim)
            except Exception as error:
                about = held.about | {"outcome": event_of(outcome).value}
                log.error("a job cannot be settled: %s: %s", type(error).__name__, error, extra=about)
                if isinstance(error, BackendError) and error.transient:
                    next_claim, may_shorten = None, False
                elif next_claim is not None:
                    next_claim = None  # perhaps it was the claim that was refused
                    continue
                if not may_shorten:
                    self.error()
                    self._let_go(held, None)
                    return None
                may_shorten = False
                why = codec.describe_error(error).message[:1000]
                text = f"the store refused the job's {event_of(outcome)}: {why}"
                outcome = Fail(codec.clipped("SettleRefused", text))

    def _settle_once(self, held: Held, outcome: Outcome, next_claim: ClaimRequest | None) -> int | None:
        facade, settle = self._queues[held.claim.queue], Settle(held.claim, outcome)

        def call() -> SettleResult:
            result = facade.backend.settle([settle], next_claim)
            self._let_go(held, _counted_as(outcome, result.settled[0].status))
            return result

        sent = time.monotonic()
        result = self._send(call, self._spare_ms)
        jobs = None if next_claim is None else self._take(result.claimed, sent)
        # Only now: a listener or a doorbell that takes its time holds up no heartbeat.
        facade.settled([settle], result.settled, tasks={held.job.id: held.job.task})
        if isinstance(outcome, model.Retry | Fail) and result.settled[0].status in _RECORDED:
            _log_failure(held, outcome)
        return jobs

    def drop(self, held: Held) -> None:
        """Lets go of a claim that the store says is lost."""
        self._let_go(held, "lost")

    def release_pending(self) -> None:
        """Gives back what did not start, with no attempt counted (F1)."""
        with self._lock:
            helds = list(self._pending)
            self._pending.clear()
        self.release(helds)

    def release(self, helds: Iterable[Held]) -> None:
        """Gives back these claims, in one call a queue."""
        for facade, group in self._by_queue(helds):
            try:
                settles, answers = self._send(partial(self._release_once, facade, group), self._spare_ms)
            except Exception as error:
                about = {"queue": facade.name, "claims": len(group)}
                log.error("jobs cannot be released: %s: %s", type(error).__name__, error, extra=about)
                self.error()
                for held in group:
                    self._let_go(held, None)
            else:
                facade.settled(settles, answers, tasks={held.job.id: held.job.task for held in group})

    def _release_once(self, facade: Queue, group: Sequence[Held]) -> tuple[list[Settle], list[Settled]]:
        group = [held for held in group if held in self]  # the heartbeat thread may have been first
        if not group:
            return [], []
        settles = [Settle(held.claim, Release()) for held in group]
        answers = facade.backend.settle(settles).settled
        for held, settled in zip(group, answers, strict=True):
            self._let_go(held, _counted_as(Release(), settled.status))
        return settles, answers

    def _let_go(self, held: Held, count_as: str | None) -> None:
        with self._lock:
            if self._held.pop(held.claim, None) is not None and count_as is not None:
                self.counts[count_as] += 1

    def error(self) -> None:
        """Counts a call that the store refused or did not answer."""
        with self._lock:
            self.counts["errors"] += 1

    # All together

    def all(self) -> list[Held]:
        """Everything held."""
        with self._lock:
            return list(self._held.values())

    def _by_queue(self, helds: Iterable[Held]) -> Iterator[tuple[Queue, list[Held]]]:
        """One call of the protocol is about one queue and at most MAX_BATCH claims."""
        helds = list(helds)
        for name, facade in self._queues.items():
            mine = [held for held in helds if held.claim.queue == name]
            for start in range(0, len(mine), MAX_BATCH):
                yield facade, mine[start : start + MAX_BATCH]

    def _send(self, call: Callable[[], T], spare_ms: Callable[[], float]) -> T:
        """Makes a call, and makes the same again after a transient error, a few times and while `spare_ms`
        has room for another one that takes as long. The first attempt is always made: where the store hangs
        it lasts as long as the store's own timeouts let it, also past the deadline, and the platform may end
        the worker first. The tokens make the repeat harmless (D7, D8)."""
        for pause in PAUSES_S:
            started = time.monotonic()
            try:
                with self._calls:
                    return call()
            except BackendError as error:
                needed_s = pause + time.monotonic() - started
                if not error.transient or spare_ms() <= needed_s * 1000:
                    raise
                log.warning("a call to the store failed and is sent again: %s", error)
            time.sleep(pause)
        with self._calls:
            return call()


def _log_failure(held: Held, outcome: model.Retry | Fail) -> None:
    about = held.about | {"deliveries": held.job.deliveries}
    if isinstance(outcome, model.Retry):
        log.info("a job failed and is retried: %s", _first_line(outcome.error), extra=about)
    else:
        log.warning("a job failed for good: %s", _first_line(outcome.error), extra=about)


def _first_line(error: JobError) -> str:
    line = error.message.partition("\n")[0]
    text = f"{error.type}: {line if len(line) <= MAX_LOGGED else line[:MAX_LOGGED] + codec.CUT}"
    text = text if line else error.type
    return text.encode("utf-8", "backslashreplace").decode()  # no stream takes a lone surrogate


def _counted_as(outcome: Outcome, status: Settlement) -> str:
    if status is Settlement.LOST:
        return "lost"
    return "cancelled" if status is Settlement.CANCELLED else _COUNTED_AS[type(outcome)]
