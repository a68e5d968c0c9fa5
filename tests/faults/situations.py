"""Rich places for a call to be killed in: every protocol method that writes, each with what it can lead to.

The names are `method: what is particular`. A `busy` store has jobs in every state with parents, keys, claims
and marks on them, schedules, and deliveries in all three stages. It is arranged under `small_steps`.
"""

from __future__ import annotations

from collections.abc import Callable

from mayflymq.model import (
    TERMINAL,
    Beat,
    Claim,
    Dedup,
    DedupMode,
    ParentPolicy,
    Schedule,
    Settle,
    State,
)
from tests.contract.bench import OUTCOMES, Bench

from .faultpoints import STEP, Situation

HOUR = 3_600_000
RUN = ParentPolicy.RUN
DEBOUNCE = Dedup("debounced", DedupMode.DEBOUNCE)
KEYS = ("window", "over", "dead", "taken", "active", "debounced", "new", "new-window")


def nothing(q: Bench) -> None:
    q.backend.migrate()


def busy(q: Bench) -> None:
    _recovered_before(q)
    _ended(q)
    _active(q)
    _queued(q)
    for id, paused in (("due", False), ("paused", True), ("new", False)):
        q.backend.put_schedule(schedule(q, id))
        if id != "new":
            q.backend.advance_schedule(q.queue, id, q.revision(id), None, q.clock.now + 5, None)
        q.backend.pause_schedule(q.queue, id, paused)
    for each in q.backend.take_unpublished(q.queue, 0, 1000):
        if each.job_id in ("w1", "w2", "f1"):
            q.backend.mark_published(q.queue, each.job_id, each.token)
    q.enqueue("w3", priority=9)
    q.clock.advance(10)


def _recovered_before(q: Bench) -> None:
    """`stalled` is active for the second time and stale."""
    q.enqueue("stalled")
    q.enqueue("stalled-child", depends_on=("stalled",))
    q.hold("stalled", stale_after_ms=1, token="first")
    q.clock.advance(1)
    assert q.swept() == {"stalled": "released"}
    q.hold("stalled", stale_after_ms=1, token="second")


def _ended(q: Bench) -> None:
    q.ended("completed", dedup=Dedup("window", DedupMode.THROTTLE, HOUR))
    q.ended("over", dedup=Dedup("over", DedupMode.THROTTLE, 1))
    q.ended("cancelled", "cancel")
    q.ended("expired", "expire")
    q.ended("f1", "fail", dedup=Dedup("dead"))
    q.ended("f2", "fail", dedup=Dedup("taken"))
    parent = q.active("f3")
    q.enqueue("f3-child", depends_on=("f3",))
    q.settle(parent, "fail")
    parent = q.active("long")  # its cascade goes on in the next sweep
    q.enqueue(*(f"long-{n}" for n in range(STEP + 2)), depends_on=("long",))
    q.settle(parent, "fail")
    assert q.ids("blocked") == ["stalled-child", f"long-{STEP}", f"long-{STEP + 1}"]


def _active(q: Bench) -> None:
    for id, stale_after_ms in (("stale", 1), ("stale-cancelled", 1), ("a1", HOUR), ("a2", HOUR)):
        q.enqueue(id, dedup=Dedup("active") if id == "a1" else None)
        q.hold(id, token=id, stale_after_ms=stale_after_ms)
        q.enqueue(f"{id}-child", depends_on=(id,))
    q.cancel("stale-cancelled", "a2")
    q.enqueue("a1-run", depends_on=("a1",), on_parent_failure=RUN)
    q.enqueue("a1-child-child", depends_on=("a1-child",))
    q.enqueue("a1-later", depends_on=("a1",), delay_ms=HOUR)


def _queued(q: Bench) -> None:
    q.enqueue("w1")
    q.enqueue("w2", priority=1)
    q.enqueue("holder", dedup=Dedup("taken"))
    q.enqueue("both", depends_on=("a1", "w1"))
    q.enqueue("w1-run", depends_on=("w1",), on_parent_failure=RUN)
    q.enqueue("due", delay_ms=5)
    q.enqueue("due-child", delay_ms=4, depends_on=("a1",))
    q.enqueue("delayed", delay_ms=HOUR, dedup=DEBOUNCE)
    q.enqueue("delayed-child", depends_on=("delayed",))
    q.enqueue("delayed-run", depends_on=("delayed",), on_parent_failure=RUN)


def schedule(q: Bench, id: str, every_ms: int = 60_000) -> Schedule:
    return Schedule(id=id, queue=q.queue, task="t", payload=b"{}", every_ms=every_ms)


def claim(q: Bench, id: str) -> Claim:
    return Claim(q.queue, id, id)


def settle(q: Bench, *outcomes: tuple[str, str], then_claim: int = 0) -> object:
    settles = [Settle(claim(q, id), OUTCOMES[outcome]) for id, outcome in outcomes]
    return q.backend.settle(settles, q.request(then_claim, token="next") if then_claim else None)


def settling(outcome: str) -> Callable[[Bench], object]:
    return lambda q: settle(q, ("a1", outcome))


def enqueue_many(q: Bench) -> object:
    return q.backend.enqueue(
        [
            q.new("new"),
            q.new("new-child", depends_on=("new", "a1", "completed"), dedup=Dedup("new")),
            q.new("new-later", delay_ms=HOUR, dedup=Dedup("new-window", DedupMode.THROTTLE, HOUR)),
            q.new("new-failed", depends_on=("f1",)),
            q.new("held", dedup=Dedup("active")),
            q.new("w1"),
            q.new("refused", depends_on=("unknown",)),
            q.new("over-again", dedup=Dedup("over")),
        ]
    )


def token_of(q: Bench, id: str) -> str:
    """The token of a delivery; taking it is a call of its own, which the next publisher may repeat."""
    return {each.job_id: each.token for each in q.backend.take_unpublished(q.queue, 0, 1000)}.get(id, "")


SITUATIONS: dict[str, Situation] = {
    "enqueue: the first job": Situation(nothing, lambda q: q.enqueue("j")),
    "enqueue: parents, keys, refusals": Situation(busy, enqueue_many),
    "enqueue: replacing a delayed job with children": Situation(
        busy, lambda q: q.enqueue("new", delay_ms=HOUR, dedup=DEBOUNCE)
    ),
    "claim: with due jobs": Situation(busy, lambda q: q.claim(4, token="t")),
    "claim: a record that cannot be read": Situation(busy, lambda q: q.claim(4, token="t"), spoil="w1"),
    "heartbeat: held, cancelled, lost": Situation(
        busy,
        lambda q: q.backend.heartbeat([Beat(claim(q, id), HOUR, 0.5) for id in ("a1", "a2", "f1")]),
    ),
    **{f"settle: {outcome}": Situation(busy, settling(outcome)) for outcome in OUTCOMES},
    "settle: many, and the next claim": Situation(
        busy,
        lambda q: settle(q, ("a1", "complete"), ("a2", "complete"), ("stale", "retry"), then_claim=2),
    ),
    "release_stale: waiting, failed, cancelled, a cascade": Situation(
        busy, lambda q: q.sweep(limit=100, max_stalls=1)
    ),
    "promote_due: to waiting and to blocked": Situation(busy, lambda q: q.promote()),
    "cancel: in every state": Situation(
        busy, lambda q: q.backend.cancel(q.queue, ["w1", "delayed", "both", "a1", "completed", "unknown"])
    ),
    "retry: keys and parents": Situation(
        busy, lambda q: q.backend.retry(q.queue, ["f1", "f2", "f3", "f3-child", "expired", "completed"])
    ),
    "remove: in every state": Situation(
        busy, lambda q: q.backend.remove(q.queue, ["w1", "delayed", "both", "a1", "completed", "f1"])
    ),
    "set_paused: a queue with jobs": Situation(busy, lambda q: q.backend.set_paused(q.queue, True)),
    "set_paused: a new queue": Situation(nothing, lambda q: q.backend.set_paused(q.queue, True)),
    "clean: everything that has ended": Situation(
        busy, lambda q: q.backend.clean(q.queue, TERMINAL, 0, 1000)
    ),
    "clean: the oldest": Situation(busy, lambda q: q.backend.clean(q.queue, {State.FAILED}, 0, 2)),
    "drain: waiting and delayed": Situation(busy, lambda q: q.backend.drain(q.queue, True, 1000)),
    "drop_queue: with active jobs": Situation(busy, lambda q: q.backend.drop_queue(q.queue, True)),
    "dedup_holder: released": Situation(
        busy, lambda q: q.backend.dedup_holder(q.queue, "debounced", release=True)
    ),
    "put_schedule: new": Situation(nothing, lambda q: q.backend.put_schedule(schedule(q, "s"))),
    "put_schedule: changed": Situation(busy, lambda q: q.backend.put_schedule(schedule(q, "due", 5000))),
    "remove_schedule: planned": Situation(busy, lambda q: q.backend.remove_schedule(q.queue, "due")),
    "pause_schedule: paused": Situation(busy, lambda q: q.backend.pause_schedule(q.queue, "due", True)),
    "pause_schedule: resumed": Situation(busy, lambda q: q.backend.pause_schedule(q.queue, "paused", False)),
    "advance_schedule: from its slot": Situation(
        busy, lambda q: q.backend.advance_schedule(q.queue, "new", q.revision("new"), None, 2000, 1000)
    ),
    "take_unpublished: taken and not": Situation(
        busy, lambda q: len(q.backend.take_unpublished(q.queue, 0, 1000))
    ),
    "mark_published: the current token": Situation(
        busy, lambda q: q.backend.mark_published(q.queue, "w3", token_of(q, "w3"))
    ),
    "claim_delivery: the current token": Situation(
        busy,
        lambda q: q.backend.claim_delivery(q.request(token="t"), "w3", token_of(q, "w3")),
    ),
    "republish: published deliveries": Situation(busy, lambda q: q.backend.republish(q.queue, 0, 1000)),
    "migrate: no store yet": Situation(None, lambda q: q.backend.migrate(), connected=False),
    "enqueue: the first call on no store": Situation(None, lambda q: q.enqueue("j"), connected=False),
    "enqueue: the first call for a broker": Situation(
        busy, lambda q: q.enqueue("j"), broker=False, connected=False
    ),
}
