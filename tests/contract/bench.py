"""Short names for the protocol's calls on one test's queue, and the invariants that hold after every test."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import Any

from mayflymq.backends.base import Backend
from mayflymq.model import (
    DEAD_LETTER,
    Beat,
    Cancel,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Complete,
    Defer,
    Enqueued,
    Expire,
    Fail,
    Job,
    JobError,
    NewJob,
    Outcome,
    QueueInfo,
    Recovered,
    Release,
    Retry,
    Settle,
    Settlement,
    State,
)

from .actors import ERROR
from .harness import ManualClock

STALE = 30_000
RESULT = b'{"answer":42}'
OTHER_ERROR = JobError("Later", "another one", "Traceback: later")

OUTCOMES: dict[str, Outcome] = {
    "complete": Complete(RESULT),
    "retry": Retry(60_000, ERROR),
    "retry-now": Retry(0, ERROR),
    "defer": Defer(60_000),
    "defer-now": Defer(0),
    "fail": Fail(ERROR),
    "expire": Expire(),
    "cancel": Cancel(),
    "release": Release(),
}
"""Every outcome by name, with and without a delay."""

KINDS = ("complete", "retry", "defer", "fail", "expire", "cancel", "release")
"""One outcome of each kind."""


@dataclass
class Bench:
    """One handle and one queue. Where an id is enough, an id is all it takes."""

    backend: Backend
    clock: ManualClock
    queue: str
    _tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def on(self, backend: Backend, queue: str | None = None) -> Bench:
        """The same clock, and the same queue unless another is named, through another handle."""
        return Bench(backend, self.clock, queue or self.queue, self._tokens)

    def revision(self, id: str) -> int:
        """That of a schedule as it is now; 0 where there is none."""
        schedules = self.backend.list_schedules(self.queue, None, 1000)
        return next((stored.revision for stored in schedules if stored.schedule.id == id), 0)

    def new(self, id: str = "j", **options: Any) -> NewJob:
        return dataclasses.replace(NewJob(id=id, queue=self.queue, task="t", payload=b'{"n":1}'), **options)

    def enqueue(self, *jobs: str | NewJob, **options: Any) -> list[Enqueued]:
        """Enqueues in one call; the options go for the jobs given by id."""
        return self.backend.enqueue(
            [self.new(job, **options) if isinstance(job, str) else job for job in jobs]
        )

    def claim(
        self, limit: int = 1, token: str | None = None, stale_after_ms: int = STALE, worker: str = "w"
    ) -> list[ClaimedJob]:
        return self.backend.claim(self.request(limit, token, stale_after_ms, worker))

    def request(
        self, limit: int = 1, token: str | None = None, stale_after_ms: int = STALE, worker: str = "w"
    ) -> ClaimRequest:
        return ClaimRequest(self.queue, limit, token or f"token-{next(self._tokens)}", worker, stale_after_ms)

    def take(self, limit: int = 1, **options: Any) -> list[str]:
        """The ids that a claim gives, in its order."""
        return [claimed.job.id for claimed in self.claim(limit, **options)]

    def active(self, id: str = "j", **options: Any) -> Claim:
        """Enqueues a job and claims it. Nothing else may be waiting."""
        assert self.enqueue(id, **options)[0].status == "created"
        return self.hold(id)

    def hold(self, id: str, **options: Any) -> Claim:
        """Claims the next job, which must be this one."""
        [claimed] = self.claim(**options)
        assert claimed.job.id == id
        return claimed.claim

    def settle(self, claim: Claim, outcome: str | Outcome) -> Settlement:
        chosen = OUTCOMES[outcome] if isinstance(outcome, str) else outcome
        return self.backend.settle([Settle(claim, chosen)]).settled[0].status

    def ended(self, id: str, outcome: str | Outcome = "complete", **options: Any) -> Claim:
        """Enqueues, claims and settles a job; returns the claim that it had."""
        claim = self.active(id, **options)
        assert self.settle(claim, outcome) == "applied"
        return claim

    def beat(self, claim: Claim, stale_after_ms: int = STALE, progress: float | None = None) -> ClaimStatus:
        return self.backend.heartbeat([Beat(claim, stale_after_ms, progress)])[0]

    def sweep(self, limit: int = 100, max_stalls: int = 3) -> list[Recovered]:
        return self.backend.release_stale(self.queue, limit, max_stalls)

    def swept(self, limit: int = 100, max_stalls: int = 3) -> dict[str, str]:
        """A sweep as {id: status}."""
        return {found.job_id: str(found.status) for found in self.sweep(limit, max_stalls)}

    def promote(self, limit: int = 100) -> list[str]:
        return self.backend.promote_due(self.queue, limit)

    def cancel(self, *ids: str) -> list[str]:
        return [str(answer.status) for answer in self.backend.cancel(self.queue, ids)]

    def replay(self, *ids: str) -> list[str]:
        return [str(answer.status) for answer in self.backend.retry(self.queue, ids)]

    def remove(self, *ids: str) -> list[bool]:
        return [answer.found for answer in self.backend.remove(self.queue, ids)]

    def find(self, id: str = "j") -> Job | None:
        return self.backend.get(self.queue, [id])[0]

    def get(self, id: str = "j") -> Job:
        job = self.find(id)
        assert job is not None, f"there is no job {id}"
        return job

    def state(self, id: str = "j") -> State | None:
        job = self.find(id)
        return job.state if job else None

    def states(self, *ids: str) -> list[State | None]:
        return [job.state if job else None for job in self.backend.get(self.queue, ids)]

    def ids(self, state: State | str, limit: int = 1000) -> list[str]:
        """The ids in a state, in the order in which they are listed."""
        return [job.id for job in pages(self.backend, self.queue, State(state), limit)]

    def info(self, exact: bool = False) -> QueueInfo:
        return self.backend.queues([self.queue], exact=exact)[0]

    def counts(self) -> dict[str, int]:
        """The states that have jobs, and how many."""
        return {
            name: count for name, count in dataclasses.asdict(self.info(exact=True).counts).items() if count
        }


def pages(backend: Backend, queue: str, state: State, limit: int) -> list[Job]:
    """All jobs in a state, page by page."""
    jobs: list[Job] = []
    cursor: str | None = None
    while True:
        page = backend.list_jobs(queue, state, cursor, limit)
        assert len(page.jobs) <= limit
        jobs += page.jobs
        if page.cursor is None:
            return jobs
        assert page.jobs, "a cursor that leads on from an empty page"
        cursor = page.cursor


def changed(job: Job, **fields: Any) -> Job:
    return dataclasses.replace(job, **fields)


def check_invariants(backend: Backend, queue: str) -> None:
    """Counts equal listings, no job is in two states, and each record agrees with itself."""
    [info] = backend.queues([queue], exact=True)
    seen: dict[str, Job] = {}
    for state in State:
        jobs = pages(backend, queue, state, 100)
        assert len(jobs) == getattr(info.counts, state), f"count of {state} differs from its list"
        for job in jobs:
            assert job.id not in seen, f"{job.id} is listed twice"
            assert (job.queue, job.state) == (queue, state)
            _check_record(job)
            seen[job.id] = job
    for start in range(0, len(seen), 500):
        part = list(seen)[start : start + 500]
        assert backend.get(queue, part) == [seen[id] for id in part], "get and list_jobs differ"
    assert info.dead_letters == sum(job.state in DEAD_LETTER for job in seen.values())
    claims = [job for job in seen.values() if job.state is State.ACTIVE]
    if len(info.workers) < 100:
        assert sum(worker.claims for worker in info.workers) == len(claims)
    assert (info.oldest_waiting_age_ms is None) == (info.counts.waiting == 0)
    assert (info.oldest_heartbeat_age_ms is None) == (not claims)


def _check_record(job: Job) -> None:
    holds = job.state is State.ACTIVE
    for name in ("claim_token", "heartbeat_at", "stale_at"):
        value = getattr(job, name)
        assert (value is not None) == holds, f"{job.id} is {job.state} and has {name}={value!r}"
    assert (job.claimed_at is not None) == (job.worker is not None) == (job.deliveries > 0)
    assert (job.finished_at is not None) == job.state.terminal
    assert job.result is None or job.state is State.COMPLETED
    assert job.state is not State.COMPLETED or job.error is None
    assert job.deliveries >= job.failures + job.stalls
    assert not job.cancel_requested or holds
    assert job.error is None or job.first_error is not None
