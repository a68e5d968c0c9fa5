"""What the actors of the race and crash tests do, each with a handle of its own, in a process or a thread.

    python -m tests.contract.actors URL NOW FUNCTION ARGS

An actor says READY, waits for the starting signal, plays one function and says what it returned, one JSON
line each. NOW is where its clock stands still, null for the store's own clock.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable

from mayflymq.backends.base import Backend, open_backend
from mayflymq.model import (
    Beat,
    Claim,
    ClaimRequest,
    Complete,
    Dedup,
    Fail,
    JobError,
    NewJob,
    Outcome,
    Release,
    Retry,
    Settle,
)

READY = "ready"
ERROR = JobError("Boom", "it went wrong", "Traceback: boom")


class Killed(BaseException):
    """Ends an actor that is a thread where SIGKILL would end a process."""


class Stage:
    """What an actor can do towards the test that started it."""

    def __init__(self, say: Callable[[object], None], wait: Callable[[], None]) -> None:
        self._say = say
        self.wait = wait

    def say(self, value: object) -> None:
        self._say(json.loads(json.dumps(value)))


def play(
    url: str,
    now: int | None,
    function: str,
    args: list[object],
    say: Callable[[object], None],
    wait: Callable[[], None],
) -> None:
    stage = Stage(say, wait)
    backend = open_backend(url, clock=None if now is None else lambda: now)
    try:
        backend.queues([])  # connects before the race, not in it
        stage.say(READY)
        stage.wait()
        stage.say(FUNCTIONS[function](backend, stage, *args))
    finally:
        backend.close()


def claim_all(backend: Backend, stage: Stage, queue: str, worker: str, limit: int) -> list[str]:
    """Claims until nothing is left; settles nothing."""
    got: list[str] = []
    while True:
        request = ClaimRequest(queue, limit, f"{worker}-{len(got)}", worker, 30_000)
        claimed = backend.claim(request)
        if not claimed:
            return got
        got += [each.job.id for each in claimed]


def claim_by_tokens(
    backend: Backend, stage: Stage, queue: str, prefix: str, calls: int, limit: int
) -> list[list[str]]:
    """One claim under each of a row of tokens; what each gave."""
    requests = [ClaimRequest(queue, limit, f"{prefix}-{n}", prefix, 30_000) for n in range(calls)]
    return [[each.job.id for each in backend.claim(request)] for request in requests]


def work_all(backend: Backend, stage: Stage, queue: str, worker: str, limit: int) -> list[str]:
    """Claims and completes until nothing is left, with the next claim in each settle's call."""
    done: list[str] = []
    claimed = backend.claim(ClaimRequest(queue, limit, f"{worker}-0", worker, 30_000))
    while claimed:
        settles = [Settle(each.claim, Complete(b"1")) for each in claimed]
        done += [each.job.id for each in claimed]
        answer = backend.settle(settles, ClaimRequest(queue, limit, f"{worker}-{len(done)}", worker, 30_000))
        assert {each.status for each in answer.settled} == {"applied"}
        claimed = answer.claimed
    return done


def claim_and_hold(
    backend: Backend, stage: Stage, queue: str, token: str, limit: int, stale_after_ms: int
) -> None:
    """Claims, says what it got, and never settles it."""
    claimed = backend.claim(ClaimRequest(queue, limit, token, token, stale_after_ms))
    stage.say([each.job.id for each in claimed])
    stage.wait()


def sweep_all(backend: Backend, stage: Stage, queue: str, limit: int, max_stalls: int) -> list[list[str]]:
    """Sweeps until nothing is stale: [id, status] of each job it handled."""
    swept: list[list[str]] = []
    while found := backend.release_stale(queue, limit, max_stalls):
        swept += [[each.job_id, each.status] for each in found]
    return swept


def promote_all(backend: Backend, stage: Stage, queue: str, limit: int) -> list[str]:
    """Promotes until nothing is due."""
    promoted: list[str] = []
    while found := backend.promote_due(queue, limit):
        promoted += found
    return promoted


def publish_all(store: Backend, stage: Stage, queue: str, limit: int) -> list[list[str]]:
    """Takes unpublished deliveries until none is left, marking none: [id, token] of each."""
    taken: list[list[str]] = []
    while found := store.take_unpublished(queue, 60_000, limit):
        taken += [[each.job_id, each.token] for each in found]
    return taken


def claim_deliveries(
    store: Backend, stage: Stage, queue: str, worker: str, deliveries: list[list[str]]
) -> list[str]:
    """Claims each of these deliveries ([id, token]); the ids that it got."""
    got: list[str] = []
    for id, token in deliveries:
        answer = store.claim_delivery(ClaimRequest(queue, 1, f"{worker}-{id}", worker, 30_000), id, token)
        got += [] if isinstance(answer, str) else [answer.job.id]
    return got


def advance_slots(
    store: Backend, stage: Stage, queue: str, id: str, revision: int, slots: list[int]
) -> list[int]:
    """Advances a schedule from each slot to the next one; the slots that this actor moved it from."""
    return [
        slot
        for slot, following in itertools.pairwise(slots)
        if store.advance_schedule(queue, id, revision, slot, following, slot)
    ]


def each(backend: Backend, stage: Stage, verb: str, queue: str, token: str, ids: list[str]) -> list[object]:
    """One call of a verb for each id, one after the other; what each answered."""
    return [VERBS[verb](backend, queue, token, id) for id in ids]


def _settle(outcome: Outcome) -> Callable[[Backend, str, str, str], object]:
    return lambda backend, queue, token, id: (
        backend.settle([Settle(Claim(queue, id, token), outcome)]).settled[0].status
    )


def _enqueue(make: Callable[[str, str, str], NewJob]) -> Callable[[Backend, str, str, str], object]:
    return lambda backend, queue, token, id: backend.enqueue([make(queue, token, id)])[0].status


VERBS: dict[str, Callable[[Backend, str, str, str], object]] = {
    "complete": _settle(Complete(b"1")),
    "fail": _settle(Fail(ERROR)),
    "retry": _settle(Retry(60_000, ERROR)),
    "release": _settle(Release()),
    "beat": lambda backend, queue, token, id: backend.heartbeat([Beat(Claim(queue, id, token), 30_000)])[0],
    "cancel": lambda backend, queue, token, id: backend.cancel(queue, [id])[0].status,
    "remove": lambda backend, queue, token, id: backend.remove(queue, [id])[0].found,
    "replay": lambda backend, queue, token, id: backend.retry(queue, [id])[0].status,
    "enqueue": _enqueue(lambda queue, token, id: NewJob(id=id, queue=queue, task="t", payload=b"{}")),
    "enqueue_child": _enqueue(
        lambda queue, token, id: NewJob(
            id=f"{id}-child", queue=queue, task="t", payload=b"{}", depends_on=(id,)
        )
    ),
    "enqueue_keyed": _enqueue(
        lambda queue, token, id: NewJob(
            id=f"{id}-{token}", queue=queue, task="t", payload=b"{}", dedup=Dedup(id)
        )
    ),
}

FUNCTIONS: dict[str, Callable[..., object]] = {
    function.__name__: function
    for function in (
        claim_all,
        claim_by_tokens,
        work_all,
        claim_and_hold,
        sweep_all,
        promote_all,
        publish_all,
        claim_deliveries,
        advance_slots,
        each,
    )
}


def main() -> None:
    url, now, function, args = sys.argv[1:]

    def say(value: object) -> None:
        print(json.dumps(value), flush=True)

    def wait() -> None:
        if not sys.stdin.readline():
            sys.exit()

    play(url, json.loads(now), function, json.loads(args), say, wait)


if __name__ == "__main__":
    main()
