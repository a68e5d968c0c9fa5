"""What a message broker needs of the store: a delivery for whatever enters waiting, failed or expired, handed
out once until it is marked, and a claim of the one job that a delivery is about.

Every store here was opened with `broker=True`. A publisher is `take`, or `publish`, which marks what it took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mayflymq.backends.base import Backend
from mayflymq.errors import InvalidJob
from mayflymq.model import (
    MAX_CHILDREN_A_STEP,
    TERMINAL,
    Claim,
    ClaimRequest,
    Dedup,
    DedupMode,
    ParentPolicy,
    Target,
    Unpublished,
)

from .bench import STALE, Bench, changed
from .harness import Harness

AGE = 60_000
"""How long a publisher may take to mark what it took."""
KEY = Dedup("key", DedupMode.DEBOUNCE)
KEEP = Dedup("key", DedupMode.DEBOUNCE, extend=False)
RUN = ParentPolicy.RUN


@pytest.fixture
def q(harness: Harness, backend: Backend) -> Bench:
    if not backend.capabilities.broker_store:
        pytest.skip("this backend keeps no deliveries for a broker")
    return Bench(harness.open(broker=True), harness.clock, harness.queue)


def take(q: Bench, limit: int = 1000, min_age_ms: int = AGE) -> list[Unpublished]:
    return q.backend.take_unpublished(q.queue, min_age_ms, limit)


def tokens(taken: list[Unpublished]) -> dict[str, str]:
    """Id to token; every id and every token stands once."""
    found = {each.job_id: each.token for each in taken}
    assert len(found) == len(taken) == len(set(found.values()))
    return found


def mark(q: Bench, id: str, token: str) -> bool:
    return q.backend.mark_published(q.queue, id, token)


def publish(q: Bench) -> dict[str, str]:
    """A whole round of a publisher."""
    found = tokens(take(q))
    assert all(mark(q, id, token) for id, token in found.items())
    return found


def deliver(q: Bench, id: str, token: str, request: ClaimRequest | None = None) -> Any:
    """What the delivery of a job gives: the claim, or why there is none."""
    answer = q.backend.claim_delivery(request or q.request(), id, token)
    return str(answer) if isinstance(answer, str) else answer


# Each way into a delivered state: how job `j` gets to its start, the step that is tested, where it leads.


def child(q: Bench, **options: Any) -> Claim:
    """`j` waits for the active parent `p`, whose claim this is."""
    claim = q.active("p")
    q.enqueue("j", depends_on=("p",), **options)
    return claim


def in_time(q: Bench, ms: int, **options: Any) -> int:
    """`j` is delayed and due, and no promoter has come yet."""
    q.enqueue("j", delay_ms=ms, **options)
    return q.clock.advance(ms)


def stale(q: Bench) -> Claim:
    claim = q.active()
    q.clock.advance(STALE)
    return claim


def behind_another(q: Bench) -> int:
    q.enqueue("first", priority=0)
    return in_time(q, 5, priority=9)


def holder_with_child(q: Bench) -> None:
    q.enqueue("holder", delay_ms=AGE, dedup=KEY)
    q.enqueue("j", depends_on=("holder",))


def due_holder(q: Bench) -> None:
    q.enqueue("holder", delay_ms=5, dedup=KEY)
    q.clock.advance(5)


def replayed_to_blocked(q: Bench) -> None:
    q.settle(child(q, on_parent_failure=RUN), "fail")
    q.settle(q.hold("j"), "fail")
    assert q.replay("p", "j") == ["retried", "retried"]


def long_cascade(q: Bench) -> Claim:
    claim = q.active("p")
    q.enqueue(*(f"{n}" for n in range(MAX_CHILDREN_A_STEP)), depends_on=("p",))
    q.enqueue("j", depends_on=("p",))
    assert q.settle(claim, "complete") == "applied"
    assert q.state() == "blocked"
    return claim


def settled(outcome: str) -> Callable[[Bench, Any], object]:
    return lambda q, claim: q.settle(claim, outcome)


PATHS: dict[str, tuple[Callable[[Bench], Any], Callable[[Bench, Any], object], str]] = {
    "enqueue": (lambda q: None, lambda q, _: q.enqueue("j"), "waiting"),
    "enqueue-past": (lambda q: None, lambda q, _: q.enqueue("j", run_at=1), "waiting"),
    "enqueue-under-failed": (
        lambda q: q.ended("p", "fail"),
        lambda q, _: q.enqueue("j", depends_on=("p",)),
        "failed",
    ),
    "retry-now": (lambda q: q.active(), settled("retry-now"), "waiting"),
    "defer-now": (lambda q: q.active(), settled("defer-now"), "waiting"),
    "release": (lambda q: q.active(), settled("release"), "waiting"),
    "fail": (lambda q: q.active(), settled("fail"), "failed"),
    "expire": (lambda q: q.active(), settled("expire"), "expired"),
    "unblocked": (child, settled("complete"), "waiting"),
    "unblocked-run": (lambda q: child(q, on_parent_failure=RUN), settled("fail"), "waiting"),
    "unblocked-removal": (
        lambda q: child(q, on_parent_failure=RUN),
        lambda q, _: q.remove("p"),
        "waiting",
    ),
    "child-failed": (child, settled("expire"), "failed"),
    "delayed-child-failed": (lambda q: child(q, delay_ms=AGE), settled("fail"), "failed"),
    "child-failed-by-removal": (child, lambda q, _: q.remove("p"), "failed"),
    "child-failed-by-cancel": (
        lambda q: [q.enqueue("p"), q.enqueue("j", depends_on=("p",))],
        lambda q, _: q.cancel("p"),
        "failed",
    ),
    "child-failed-by-replace": (
        holder_with_child,
        lambda q, _: q.enqueue("new", delay_ms=AGE, dedup=KEY),
        "failed",
    ),
    "child-failed-by-drain": (
        lambda q: [q.enqueue("p"), q.enqueue("j", depends_on=("p",))],
        lambda q, _: q.backend.drain(q.queue, False, 10),
        "failed",
    ),
    "cascade": (long_cascade, lambda q, _: q.sweep(), "waiting"),
    "promote": (lambda q: in_time(q, 5), lambda q, _: q.promote(), "waiting"),
    "promoted-by-claim": (behind_another, lambda q, _: q.hold("first"), "waiting"),
    "promoted-by-claim-next": (
        lambda q: [q.active("a"), behind_another(q)][0],
        lambda q, _: q.backend.settle([], q.request()),
        "waiting",
    ),
    "replay-failed": (lambda q: q.ended("j", "fail"), lambda q, _: q.replay("j"), "waiting"),
    "replay-expired": (lambda q: q.ended("j", "expire"), lambda q, _: q.replay("j"), "waiting"),
    "stale": (stale, lambda q, _: q.sweep(), "waiting"),
    "stalled-out": (stale, lambda q, _: q.sweep(max_stalls=0), "failed"),
    "replacing-a-due-holder": (
        due_holder,
        lambda q, _: q.enqueue("j", delay_ms=AGE, dedup=KEEP),
        "waiting",
    ),
}
"""How each starts, the step, and the state that it leads to."""


@pytest.mark.promise("R4")
@pytest.mark.parametrize("path", PATHS)
def test_whatever_becomes_deliverable_is_handed_out_once_until_marked(q: Bench, path: str) -> None:
    arrange, step, state = PATHS[path]
    context = arrange(q)
    before = publish(q)
    step(q, context)
    assert q.state() == state
    found = {each.job_id: each for each in take(q)}
    delivery = found["j"]
    assert delivery.target is (Target.MAIN if state == "waiting" else Target.DLQ)
    assert delivery.priority == q.get().priority
    assert delivery.token != before.get("j"), "a fresh token on every entry"
    assert take(q) == [], "handed out once"
    assert "j" not in before or not mark(q, "j", before["j"])
    assert mark(q, "j", delivery.token)
    q.clock.advance(AGE)
    assert "j" not in tokens(take(q)), "marked: never again"


@pytest.mark.promise("R4", "C8")
def test_a_record_that_cannot_be_read_goes_to_the_dlq(harness: Harness, q: Bench) -> None:
    if not harness.can_plant_unreadable:
        pytest.skip("nothing can spoil a record of this backend")
    harness.spoiled.add(q.queue)
    q.enqueue("j", "k")
    given = publish(q)
    harness.plant_unreadable(q.queue, "j")
    assert deliver(q, "j", given["j"]) == "gone"
    assert [(each.job_id, each.target) for each in take(q)] == [("j", Target.DLQ)]
    assert deliver(q, "k", given["k"]).job.id == "k"


# Where no delivery stands, and the last one that there was is over.


STAY: dict[str, tuple[Callable[[Bench], Any], str | None]] = {
    "delayed": (lambda q: q.enqueue("j", delay_ms=AGE), "delayed"),
    "due": (lambda q: in_time(q, 5), "delayed"),
    "blocked": (child, "blocked"),
    "promoted-to-blocked": (
        lambda q: [child(q, delay_ms=5), q.clock.advance(5), q.promote()],
        "blocked",
    ),
    "active": (lambda q: q.active(), "active"),
    "due-and-claimed": (lambda q: [in_time(q, 5), q.hold("j")], "active"),
    "retry-later": (lambda q: q.settle(q.active(), "retry"), "delayed"),
    "defer-later": (lambda q: q.settle(q.active(), "defer"), "delayed"),
    "completed": (lambda q: q.ended("j", "complete"), "completed"),
    "cancelled-queued": (lambda q: [q.enqueue("j"), q.cancel("j")], "cancelled"),
    "cancelled-active": (lambda q: q.ended("j", "cancel"), "cancelled"),
    "replaced": (
        lambda q: [
            q.enqueue("j", delay_ms=5, dedup=KEY),
            q.enqueue("new", delay_ms=AGE, dedup=KEY),
        ],
        "cancelled",
    ),
    "replayed-to-blocked": (replayed_to_blocked, "blocked"),
    "removed": (lambda q: [q.enqueue("j"), q.remove("j")], None),
    "removed-dead": (lambda q: [q.ended("j", "fail"), q.remove("j")], None),
    "drained": (lambda q: [q.enqueue("j"), q.backend.drain(q.queue, False, 10)], None),
    "cleaned": (
        lambda q: [q.ended("j", "fail"), q.backend.clean(q.queue, TERMINAL, 0, 10)],
        None,
    ),
    "dropped": (lambda q: [q.enqueue("j"), q.backend.drop_queue(q.queue, False)], None),
}
"""How `j` gets where it is not delivered, and the state that it is in then."""


@pytest.mark.promise("R4", "A3")
@pytest.mark.parametrize("path", STAY)
def test_what_is_elsewhere_has_no_delivery(q: Bench, path: str) -> None:
    arrange, state = STAY[path]
    arrange(q)
    assert q.state() == state
    assert "j" not in tokens(take(q))
    q.clock.advance(AGE)
    assert "j" not in tokens(take(q))


LEAVE: dict[str, Callable[[Bench], object]] = {
    "claim": lambda q: q.hold("j"),
    "cancel": lambda q: q.cancel("j"),
    "remove": lambda q: q.remove("j"),
    "drain": lambda q: q.backend.drain(q.queue, False, 10),
    "drop": lambda q: q.backend.drop_queue(q.queue, False),
    "claim-and-release": lambda q: q.settle(q.hold("j"), "release"),
    "claim-and-stall": lambda q: [q.hold("j"), q.clock.advance(STALE), q.sweep()],
    "remove-and-enqueue": lambda q: [q.remove("j"), q.enqueue("j")],
    "drop-and-enqueue": lambda q: [q.backend.drop_queue(q.queue, False), q.enqueue("j")],
    "fail-and-replay": lambda q: [q.settle(q.hold("j"), "fail"), q.replay("j")],
}


@pytest.mark.promise("R4", "A3", "D5", "C13")
@pytest.mark.parametrize("marked", [False, True], ids=["taken", "published"])
@pytest.mark.parametrize("step", LEAVE)
def test_a_delivery_is_over_once_its_job_went_on(q: Bench, step: str, marked: bool) -> None:
    q.enqueue("j")
    old = tokens(take(q))["j"]
    assert not marked or mark(q, "j", old)
    LEAVE[step](q)
    before = q.find()
    assert not mark(q, "j", old), "a broker that confirms it now tells nothing about the next one"
    assert deliver(q, "j", old) == "gone"
    assert q.find() == before
    now = tokens(take(q))
    assert now.keys() == ({"j"} if before and before.state == "waiting" else set())
    assert old not in now.values()
    for id, token in now.items():
        assert deliver(q, id, token).job.id == "j"


@pytest.mark.promise("R4", "D5", "P4")
def test_a_publisher_that_crashed_is_followed_by_another_after_the_minimum_age(q: Bench) -> None:
    q.enqueue("a", "b")
    first = tokens(take(q))
    assert mark(q, "a", first["a"])
    for _ in range(2):  # the second publisher crashes too
        q.clock.advance(AGE - 1)
        assert take(q) == []
        q.clock.advance(1)
        assert tokens(take(q)) == {"b": first["b"]}, "the same delivery, as the broker may have it"
    assert mark(q, "b", first["b"]), "late, but still the job's"
    q.clock.advance(AGE)
    assert take(q) == []


def test_a_minimum_age_of_zero_hands_out_what_was_just_taken(q: Bench) -> None:
    q.enqueue("j")
    assert take(q) == take(q, min_age_ms=0)


def test_the_oldest_come_first_and_no_more_than_the_limit(q: Bench) -> None:
    q.enqueue("a", "b")
    take(q)
    q.clock.advance(AGE)
    q.enqueue("c", "d", priority=0)
    assert [[each.job_id for each in take(q, limit=3)] for _ in range(3)] == [["a", "b", "c"], ["d"], []]


def test_priorities_and_targets(q: Bench) -> None:
    q.enqueue(q.new("low", priority=2**31 - 1), q.new("high", priority=-(2**31)), q.new("dead", priority=7))
    for claimed in q.claim(2):
        q.settle(claimed.claim, "fail" if claimed.job.id == "dead" else "release")
    assert {(each.job_id, each.priority, str(each.target)) for each in take(q)} == {
        ("low", 2**31 - 1, "main"),
        ("high", -(2**31), "main"),
        ("dead", 7, "dlq"),
    }


@pytest.mark.promise("R4")
def test_a_round_of_one_queue_leaves_the_others(q: Bench) -> None:
    beside = q.on(q.backend, f"{q.queue}-beside")
    q.enqueue("j")
    beside.enqueue("j")
    [mine] = take(q)
    assert not mark(beside, "j", mine.token)
    assert deliver(beside, "j", mine.token) == "gone"
    assert q.backend.republish(beside.queue, 0, 10) == []
    assert tokens(take(beside)).keys() == {"j"}
    assert mark(q, "j", mine.token)


@pytest.mark.promise("R4")
def test_only_the_current_token_can_be_marked(q: Bench) -> None:
    q.enqueue("j", "k")
    old = tokens(take(q))["j"]
    q.settle(q.hold("j"), "release")
    new = tokens(take(q))["j"]
    other = "0" * len(new)
    assert [mark(q, *pair) for pair in (("j", old), ("j", other), ("k", new), ("no", new))] == [False] * 4
    q.clock.advance(AGE)
    assert tokens(take(q)).keys() == {"j", "k"}, "what was refused marked nothing"
    assert [mark(q, "j", new), mark(q, "j", new)] == [True, True], "a confirmation that came twice"
    q.clock.advance(AGE)
    assert tokens(take(q)).keys() == {"k"}


@pytest.mark.promise("P4", "P3")
@pytest.mark.parametrize("by", ["promote", "claim"])
def test_a_promoted_job_keeps_its_time_and_is_unpublished_until_marked(q: Bench, by: str) -> None:
    behind_another(q)
    run_at = q.get().run_at
    if by == "promote":
        assert q.promote() == ["j"]
    else:
        q.hold("first")
    assert (q.state(), q.get().run_at) == ("waiting", run_at)
    token = tokens(take(q))["j"]
    q.clock.advance(AGE)
    assert tokens(take(q))["j"] == token, "the publisher crashed"
    assert mark(q, "j", token)
    q.clock.advance(AGE)
    assert "j" not in tokens(take(q))
    assert (q.state(), q.get().run_at) == ("waiting", run_at)


# Claiming what a delivery is about


@pytest.mark.promise("C1", "D3", "D8")
def test_claim_delivery_claims_as_claim_does(q: Bench) -> None:
    q.enqueue("other", "j")
    token = publish(q)["j"]
    before = q.get()
    now = q.clock.advance(7)
    request = q.request(stale_after_ms=500, worker="me")
    claimed = deliver(q, "j", token, request)
    assert claimed.claim == Claim(q.queue, "j", request.token)
    assert (
        claimed.job
        == q.get()
        == changed(
            before,
            state="active",
            claim_token=request.token,
            worker="me",
            claimed_at=now,
            heartbeat_at=now,
            stale_at=now + 500,
            deliveries=1,
        )
    )
    assert q.state("other") == "waiting", "the one job only"
    assert q.settle(claimed.claim, "complete") == "applied"
    assert deliver(q, "j", token) == "gone"


@pytest.mark.promise("D8")
def test_a_claim_that_is_sent_again_gets_what_its_token_holds(q: Bench) -> None:
    q.enqueue("a", "b")
    given = publish(q)
    request = q.request()
    a = deliver(q, "a", given["a"], request)
    assert deliver(q, "a", given["a"], request) == a
    q.backend.set_paused(q.queue, True)
    assert deliver(q, "a", given["a"], request) == a, "a pause takes no job away"
    q.backend.set_paused(q.queue, False)
    b = deliver(q, "b", given["b"], request)
    assert (b.job.id, b.job.deliveries) == ("b", 1), "the token holds another job, but not this one"
    q.cancel("a")
    assert deliver(q, "a", given["a"], request).job.cancel_requested
    q.settle(a.claim, "complete")
    assert deliver(q, "a", given["a"], request) == "gone"
    assert q.backend.claim(request) == [b]


@pytest.mark.promise("C13", "C4", "R4")
def test_a_redelivery_of_an_active_job_is_gone_and_its_claim_stays_valid(q: Bench) -> None:
    q.enqueue("j")
    token = publish(q)["j"]
    claim = deliver(q, "j", token).claim
    before = q.get()
    assert deliver(q, "j", token) == "gone"
    q.clock.advance(STALE)
    assert deliver(q, "j", token) == "gone", "only the sweep ends a claim, also when it is stale"
    assert q.get() == before
    assert q.beat(claim) == "held"
    assert q.settle(claim, "complete") == "applied"


@pytest.mark.promise("C13")
def test_after_a_recovery_only_the_replacement_claims(q: Bench) -> None:
    q.enqueue("j")
    old = publish(q)["j"]
    lost = deliver(q, "j", old).claim
    q.clock.advance(STALE)
    assert q.swept() == {"j": "released"}
    new = publish(q)["j"]
    assert deliver(q, "j", old) == "gone"
    assert deliver(q, "j", new).job.deliveries == 2
    assert q.settle(lost, "complete") == "lost"


@pytest.mark.promise("A1")
def test_a_paused_queue_gives_a_delivery_back_and_a_stale_one_is_gone_all_the_same(q: Bench) -> None:
    q.enqueue("j", "k")
    old = publish(q)
    q.settle(q.hold("j"), "release")
    new = publish(q)["j"]
    q.backend.set_paused(q.queue, True)
    before = q.get()
    assert deliver(q, "j", new) == "paused"
    assert q.get() == before
    assert [deliver(q, "j", old["j"]), deliver(q, "k", new), deliver(q, "no", new)] == ["gone"] * 3
    q.cancel("k")
    assert deliver(q, "k", old["k"]) == "gone"
    q.backend.set_paused(q.queue, False)
    assert deliver(q, "j", new).job.id == "j"


@pytest.mark.promise("A2", "R4")
@pytest.mark.parametrize("outcome", ["fail", "expire"])
def test_a_delivery_to_the_dlq_gives_no_job(q: Bench, outcome: str) -> None:
    q.ended("j", outcome)
    assert deliver(q, "j", publish(q)["j"]) == "gone"
    assert q.info().dead_letters == 1


def test_an_unknown_queue_has_no_deliveries(q: Bench) -> None:
    nowhere = q.on(q.backend, f"{q.queue}-nowhere")
    assert (take(nowhere), nowhere.backend.republish(nowhere.queue, 0, 10)) == ([], [])
    assert not mark(nowhere, "j", "t")
    assert deliver(nowhere, "j", "t") == "gone"
    assert nowhere.queue not in [info.name for info in q.backend.queues()], "asking makes no queue"


@pytest.mark.parametrize("limit", [0, 1001])
def test_limits_are_checked(q: Bench, limit: int) -> None:
    for call in (q.backend.take_unpublished, q.backend.republish):
        with pytest.raises(InvalidJob, match="limit"):
            call(q.queue, 0, limit)


# What the broker lost


@pytest.mark.promise("R4")
def test_republish_gives_published_waiting_jobs_a_fresh_delivery(q: Bench) -> None:
    q.enqueue("j", "active", "dead", "done", priority=1)
    q.enqueue("unmarked", "later", delay_ms=1)
    q.clock.advance(1)
    q.promote()
    old = tokens(take(q))
    assert all(mark(q, id, old[id]) for id in ("j", "active", "dead", "done", "later"))
    for id, outcome in (("active", None), ("dead", "fail"), ("done", "complete")):
        claim = deliver(q, id, old[id]).claim
        assert outcome is None or q.settle(claim, outcome) == "applied"
    old |= publish_only(q, "dead")
    before = q.get()
    assert q.backend.republish(q.queue, 0, 100) == ["j", "later"], "waiting and published, nothing else"
    assert q.get() == before, "the job itself is as it was"
    assert q.backend.republish(q.queue, 0, 100) == [], "not published yet"
    assert [deliver(q, "j", old["j"]), mark(q, "j", old["j"])] == ["gone", False]
    new = tokens(take(q))
    assert new.keys() == {"j", "later"}, "at once, and what a publisher holds is left to it"
    assert not set(new.values()) & set(old.values())
    assert mark(q, "j", new["j"])
    assert deliver(q, "j", new["j"]).job.id == "j"


def publish_only(q: Bench, *ids: str) -> dict[str, str]:
    found = tokens(take(q))
    assert found.keys() == set(ids)
    assert all(mark(q, id, token) for id, token in found.items())
    return found


@pytest.mark.promise("R4")
def test_republish_takes_those_published_first_up_to_its_limit_and_age(q: Bench) -> None:
    q.enqueue("a", "b", "c", "d")
    given = tokens(take(q))
    for id in ("c", "b", "a"):
        assert mark(q, id, given[id])
        q.clock.advance(10)
    assert q.backend.republish(q.queue, 31, 10) == []
    assert q.backend.republish(q.queue, 20, 1) == ["c"]
    assert q.backend.republish(q.queue, 20, 10) == ["b"]
    assert q.backend.republish(q.queue, 0, 10) == ["a"]
    assert mark(q, "d", given["d"]), "it was never published, so it kept its token"


# Who keeps deliveries


@pytest.mark.promise("R1", "R4")
def test_jobs_that_stand_in_a_store_get_theirs_when_it_is_opened_for_a_broker(
    harness: Harness, backend: Backend
) -> None:
    if not backend.capabilities.broker_store:
        pytest.skip("this backend keeps no deliveries for a broker")
    plain = Bench(backend, harness.clock, harness.queue)
    plain.enqueue("active")
    held = plain.hold("active")
    for id, outcome in (("done", "complete"), ("dead", "fail"), ("late", "expire"), ("off", "cancel")):
        plain.ended(id, outcome)
    plain.enqueue("w", priority=3)
    plain.enqueue("blocked", depends_on=("w",))
    plain.enqueue("delayed", delay_ms=5)
    assert take(plain) == []
    broker = plain.on(harness.open(broker=True))
    found = take(broker)
    assert {(each.job_id, str(each.target)) for each in found} == {
        ("w", "main"),
        ("dead", "dlq"),
        ("late", "dlq"),
    }
    harness.open(broker=True).queues([])
    assert all(mark(plain, each.job_id, each.token) for each in found), "a second opening changes nothing"
    # From now on through every handle, the one that was open before too.
    plain.settle(held, "release")
    plain.clock.advance(5)
    plain.promote()
    plain.enqueue("new")
    assert tokens(take(plain.on(harness.open()))).keys() == {"active", "delayed", "new"}


@pytest.mark.promise("R1")
def test_without_a_broker_there_are_no_deliveries(harness: Harness, backend: Backend) -> None:
    if not backend.capabilities.broker_store:
        pytest.skip("this backend keeps no deliveries for a broker")
    plain = Bench(backend, harness.clock, harness.queue)
    plain.ended("dead", "fail")
    plain.enqueue("j")
    assert take(plain) == []
    assert backend.republish(plain.queue, 0, 10) == []
    assert deliver(plain, "j", "t") == "gone"


@pytest.mark.promise("R4", "C7")
def test_deliveries_outlive_a_restart(harness: Harness, q: Bench) -> None:
    if not q.backend.capabilities.durable:
        pytest.skip("its jobs die with the process")
    q.enqueue("a", "b")
    given = tokens(take(q))
    assert mark(q, "a", given["a"])
    harness.restart()
    later = q.on(harness.open())
    later.clock.advance(AGE)
    assert tokens(take(later)) == {"b": given["b"]}
    assert deliver(later, "a", given["a"]).job.id == "a"


# Several at once


@pytest.mark.promise("R4", "D5")
def test_publishers_at_once_never_get_one_token_twice(harness: Harness, q: Bench) -> None:
    ids = [f"{n:03}" for n in range(60)]
    q.enqueue(*ids)
    rounds: list[Any] = harness.race(*(("publish_all", q.queue, 1 + n) for n in range(3)))
    taken = [tuple(pair) for part in rounds for pair in part]
    assert sorted(id for id, _ in taken) == ids
    assert len({token for _, token in taken}) == len(ids)
    assert all(mark(q, id, token) for id, token in taken)


@pytest.mark.promise("C13", "D8")
def test_one_delivery_at_several_workers_gives_the_job_once(harness: Harness, q: Bench) -> None:
    q.enqueue(*(f"{n:02}" for n in range(30)))
    given = [[id, token] for id, token in publish(q).items()]
    won: list[Any] = harness.race(*(("claim_deliveries", q.queue, f"w{n}", given) for n in range(3)))
    assert sorted(id for part in won for id in part) == sorted(id for id, _ in given)
    owners = {job.id: job.worker for job in q.backend.get(q.queue, [id for id, _ in given]) if job}
    assert owners == {id: f"w{n}" for n, part in enumerate(won) for id in part}


@pytest.mark.promise("R4")
def test_opening_for_a_broker_counts_where_there_is_no_queue_yet(harness: Harness, q: Bench) -> None:
    harness.open(broker=True).queues()
    q.enqueue("j")
    assert [each.job_id for each in take(q)] == ["j"]


@pytest.mark.promise("D8", "R4")
def test_a_repeated_claim_lists_all_that_its_token_holds_in_order(q: Bench) -> None:
    q.enqueue("h")
    request = q.request(1)
    assert [each.job.id for each in q.backend.claim(request)] == ["h"]
    q.enqueue("b")
    q.enqueue("e", priority=-9)
    tokens = {each.job_id: each.token for each in q.backend.take_unpublished(q.queue, 0, 100)}
    for id in ("b", "e"):
        q.backend.claim_delivery(request, id, tokens[id])
    assert [each.job.id for each in q.backend.claim(request)] == ["e", "h", "b"]
