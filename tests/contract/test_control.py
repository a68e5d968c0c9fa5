"""What operators do: cancel, pause, remove, retry, drain, clean, drop."""

from __future__ import annotations

import pytest

from mayflymq.model import TERMINAL, Dedup, DedupMode, Dropped, Fail, ParentPolicy, State

from .bench import OTHER_ERROR, STALE, Bench, changed

# Cancellation (X1 to X6); each single cell is in test_matrix.py


@pytest.mark.promise("X1", "X4", "X6")
def test_cancelled_queued_jobs_are_never_claimed(q: Bench, other: Bench) -> None:
    q.enqueue("parent", priority=9)
    q.enqueue("waiting", "stays")
    q.enqueue("delayed", delay_ms=10)
    q.enqueue("blocked", depends_on=("parent",))
    asked = ("waiting", "nobody", "blocked", "delayed", "waiting")
    assert q.cancel(*asked) == ["cancelled", "unknown", "cancelled", "cancelled", "terminal"]
    assert sorted(other.ids("cancelled")) == ["blocked", "delayed", "waiting"]
    q.clock.advance(100)
    _, parent = other.claim(10)
    assert parent.job.id == "parent"
    q.settle(parent.claim, "complete")
    assert (q.promote(), q.sweep(), q.take(10)) == ([], [], [])
    assert q.counts() == {"cancelled": 3, "active": 1, "completed": 1}


@pytest.mark.promise("X2", "X5")
def test_a_marker_is_seen_by_every_handle_and_ends_with_the_claim(q: Bench, other: Bench) -> None:
    claim = q.active()
    assert other.cancel("j", "j") == ["requested", "requested"]
    assert q.get().cancel_requested
    assert [q.beat(claim), other.beat(claim)] == ["cancel_requested", "cancel_requested"]
    assert q.info().counts.active == 1, "running code is not interrupted"
    assert q.settle(claim, "complete") == "cancelled"
    assert (q.state(), q.get().result, q.cancel("j")) == ("cancelled", None, ["terminal"])


@pytest.mark.promise("X5", "G1")
@pytest.mark.parametrize("was", ["waiting", "active", "cancelled"])
def test_removing_a_cancelled_job_clears_the_marker(q: Bench, was: str) -> None:
    claim = None
    if was == "active":
        claim = q.active()
    else:
        q.enqueue("j")
    q.cancel("j")
    assert q.enqueue("j")[0].status == "duplicate_id", "a cancelled record still holds its id"
    assert q.remove("j") == [True]
    assert q.enqueue("j")[0].status == "created"
    assert not q.get().cancel_requested
    again = q.hold("j")
    assert claim is None or q.settle(claim, "complete") == "lost"
    assert q.beat(again) == "held"
    assert q.settle(again, "complete") == "applied"


@pytest.mark.promise("X3")
def test_a_cancellation_that_comes_after_the_settle_changes_nothing(q: Bench) -> None:
    q.ended("j", "complete")
    before = q.get()
    assert q.cancel("j") == ["terminal"]
    assert q.get() == before


# Pause (A1)


@pytest.mark.promise("A1")
def test_a_paused_queue_gives_out_no_claims_to_anybody(q: Bench, other: Bench) -> None:
    running = q.active("running")
    q.enqueue("j")
    q.enqueue("due", delay_ms=5)
    q.clock.advance(5)
    other.backend.set_paused(q.queue, True)
    other.backend.set_paused(q.queue, True)
    assert q.info().paused
    assert (q.claim(), other.claim()) == ([], [])
    assert q.beat(running) == "held"
    answer = q.backend.settle([], q.request(5))
    assert answer.claimed == []
    assert q.settle(running, "complete") == "applied", "running jobs finish"
    assert q.enqueue("new")[0].status == "created", "and producers go on"
    assert q.state("due") == "delayed"
    q.backend.set_paused(q.queue, False)
    assert not q.info().paused
    assert other.take(5) == ["j", "new", "due"], "the due one enters waiting now"


@pytest.mark.promise("A1")
def test_pausing_concerns_one_queue_and_may_come_first(q: Bench) -> None:
    elsewhere = q.on(q.backend, f"{q.queue}-2")
    q.backend.set_paused(elsewhere.queue, True)
    assert [info.paused for info in q.backend.queues([q.queue, elsewhere.queue])] == [False, True]
    q.enqueue("j")
    elsewhere.enqueue("j")
    assert (q.take(), elsewhere.take()) == (["j"], [])


# Remove (A3)


@pytest.mark.promise("A3", "D1")
def test_a_removed_job_leaves_nothing_and_its_id_can_be_used_again(q: Bench) -> None:
    key = Dedup("key")
    q.enqueue("waiting")
    q.enqueue("delayed", delay_ms=50)
    q.enqueue("keyed", priority=9, dedup=key)
    q.enqueue("stays", priority=10)
    assert q.remove("waiting", "nobody", "delayed", "keyed", "keyed") == [True, False, True, True, False]
    assert q.counts() == {"waiting": 1}
    assert q.backend.dedup_holder(q.queue, "key") is None
    q.clock.advance(STALE)
    assert (q.promote(), q.sweep()) == ([], [])
    assert [a.status for a in q.enqueue("waiting", "keyed", dedup=key)] == ["created", "deduplicated"]
    assert q.get("waiting").deliveries == 0
    assert q.take(5) == ["waiting", "stays"]


# Retry from the dead-letter queue (A2)


@pytest.mark.promise("A2")
def test_a_manual_retry_starts_again_but_forgets_no_delivery(q: Bench) -> None:
    q.ended("j", "retry-now", max_retries=1)
    claim = q.hold("j")
    q.beat(claim, progress=0.5)
    q.settle(claim, "fail")
    q.clock.advance(5)
    before = q.get()
    assert (before.failures, before.deliveries, q.info().dead_letters) == (2, 2, 1)
    [answer] = q.backend.retry(q.queue, ["j"])
    assert (answer.status, answer.state, answer.holder) == ("retried", "waiting", None)
    assert q.get() == changed(
        before,
        state="waiting",
        failures=0,
        replays=1,
        retried_at=q.clock.now,
        progress=None,
        finished_at=None,
    )
    assert q.info().dead_letters == 0
    assert q.settle(q.hold("j"), "complete") == "applied"
    after = q.get()
    assert (after.deliveries, after.error, after.first_error) == (3, None, before.first_error)


@pytest.mark.promise("A2")
def test_retrying_many_answers_each_by_itself(q: Bench) -> None:
    q.ended("failed", "fail")
    q.ended("expired", "expire")
    q.ended("done", "complete")
    q.enqueue("waiting")
    answers = q.backend.retry(q.queue, ["failed", "nobody", "done", "expired", "waiting", "failed"])
    assert [(a.status, a.state) for a in answers] == [
        ("retried", "waiting"),
        ("unknown", None),
        ("not_dead", "completed"),
        ("retried", "waiting"),
        ("not_dead", "waiting"),
        ("not_dead", "waiting"),
    ]
    assert q.take(5) == ["waiting", "failed", "expired"]


@pytest.mark.promise("A2", "G2")
def test_a_key_taken_meanwhile_keeps_a_dead_job_where_it_is(q: Bench) -> None:
    key = Dedup("key")
    q.ended("old", "fail", dedup=key)
    q.ended("free", "fail")
    q.enqueue("new", dedup=key)
    before = q.get("old")
    answers = q.backend.retry(q.queue, ["old", "free"])
    assert [(a.status, a.state, a.holder) for a in answers] == [
        ("key_taken", "failed", "new"),
        ("retried", "waiting", None),
    ]
    assert q.get("old") == before
    q.remove("new")
    assert q.replay("old") == ["retried"]
    assert q.enqueue("third", dedup=key)[0].holder == "old", "the key is taken again"


# Drain (A4)


@pytest.mark.promise("A4")
def test_a_drain_removes_what_did_not_start(q: Bench) -> None:
    q.active("active")
    q.enqueue("a", "b", "c")
    q.enqueue("late", delay_ms=50)
    q.enqueue("child", depends_on=("active",))
    assert q.backend.drain(q.queue, False, 2).job_ids == ("a", "b")
    assert q.backend.drain(q.queue, False, 1000).job_ids == ("c",)
    assert q.backend.drain(q.queue, False, 1000).job_ids == ()
    assert q.counts() == {"active": 1, "delayed": 1, "blocked": 1}
    assert q.enqueue("a")[0].status == "created"
    assert q.backend.drain(q.queue, True, 1000).job_ids == ("a", "late")
    assert q.counts() == {"active": 1, "blocked": 1}


@pytest.mark.promise("A4", "G3")
def test_a_drain_settles_children_as_a_removal_does(q: Bench) -> None:
    q.enqueue("parent")
    q.enqueue("fails", depends_on=("parent",))
    q.enqueue("fails-late", depends_on=("parent",), delay_ms=10)
    q.enqueue("runs", depends_on=("parent",), on_parent_failure=ParentPolicy.RUN)
    drained = q.backend.drain(q.queue, True, 1)
    assert drained.job_ids == ("parent",)
    assert {(d.job_id, d.state) for d in drained.dependants} == {
        ("fails", "failed"),
        ("fails-late", "failed"),
        ("runs", "waiting"),
    }


@pytest.mark.promise("A4", "G3")
def test_a_drain_never_answers_a_child_that_it_failed_on_its_way(q: Bench) -> None:
    q.enqueue("parent")
    q.enqueue("late", depends_on=("parent",), delay_ms=10)
    assert q.backend.drain(q.queue, True, 100).job_ids == ("parent",)
    assert q.state("late") == "failed"


# Clean and drop (A6)


@pytest.mark.promise("A6")
def test_clean_goes_by_state_age_and_limit_the_oldest_first(q: Bench) -> None:
    for id, outcome in (
        ("a", "complete"),
        ("b", "fail"),
        ("c", "complete"),
        ("d", "expire"),
        ("e", "cancel"),
    ):
        q.ended(id, outcome)
        q.clock.advance(10)
    q.active("running")
    clean = q.backend.clean
    assert clean(q.queue, [State.COMPLETED], 31, 10) == ["a"], "ended 50 and 30 ago"
    assert clean(q.queue, [State.COMPLETED], 30, 10) == ["c"], "exactly as old counts"
    assert clean(q.queue, [], 0, 10) == []
    assert clean(q.queue, TERMINAL, 0, 2) == ["b", "d"]
    assert clean(q.queue, TERMINAL, 11, 10) == []
    assert clean(q.queue, TERMINAL, 0, 10) == ["e"]
    assert q.counts() == {"active": 1}
    assert [a.status for a in q.enqueue(*"abcde")] == ["created"] * 5


@pytest.mark.promise("A6")
def test_clean_takes_those_that_ended_first_however_they_were_enqueued(q: Bench) -> None:
    q.enqueue(*"abcd")
    claims = {claimed.job.id: claimed.claim for claimed in q.claim(4)}
    for id, outcome in (("d", "fail"), ("b", "fail"), ("c", "complete"), ("a", "complete")):
        q.settle(claims[id], outcome)
        q.clock.advance(1)
    assert [q.backend.clean(q.queue, TERMINAL, 0, 1) for _ in range(5)] == [["d"], ["b"], ["c"], ["a"], []]


@pytest.mark.promise("A6", "G3")
def test_cleaning_an_ended_parent_leaves_its_children_as_they_are(q: Bench) -> None:
    parent = q.active("parent")
    q.enqueue("child", depends_on=("parent",))
    q.settle(parent, "complete")
    assert q.backend.clean(q.queue, TERMINAL, 0, 10) == ["parent"]
    assert q.settle(q.hold("child"), "complete") == "applied"


@pytest.mark.promise("A6")
def test_a_dropped_queue_leaves_nothing(q: Bench, other: Bench) -> None:
    late = q.active("active")
    q.ended("done", "complete", priority=1)
    q.enqueue("waiting", dedup=Dedup("simple"))
    q.enqueue("window", dedup=Dedup("throttle", DedupMode.THROTTLE, 10**9))
    q.enqueue("delayed", delay_ms=50)
    q.enqueue("blocked", depends_on=("active",))
    q.backend.set_paused(q.queue, True)
    assert q.backend.drop_queue(q.queue, force=False) == Dropped(False, 1)
    assert sum(q.counts().values()) == 6
    assert other.backend.drop_queue(q.queue, force=True).dropped
    assert q.counts() == {}
    assert q.queue not in {info.name for info in q.backend.queues()}
    assert q.backend.drop_queue(q.queue, force=True) == Dropped(False, 0), "there is none any more"
    assert [q.settle(late, kind) for kind in ("complete", "fail", "release")] == ["lost"] * 3
    assert q.beat(late) == "lost"
    for key in ("simple", "throttle"):
        assert q.backend.dedup_holder(q.queue, key) is None
    assert not q.info().paused
    q.clock.advance(STALE)
    assert (q.sweep(), q.promote()) == ([], [])
    assert [a.status for a in q.enqueue("active", "done", "blocked")] == ["created"] * 3
    assert q.take(9) == ["active", "done", "blocked"]
    assert q.settle(late, "complete") == "lost"


@pytest.mark.promise("A6")
def test_an_idle_queue_is_dropped_without_force_and_alone(q: Bench) -> None:
    elsewhere = q.on(q.backend, f"{q.queue}-2")
    elsewhere.enqueue("j")
    q.ended("j", "fail")
    assert q.backend.drop_queue(q.queue, force=False).dropped
    assert (q.counts(), elsewhere.counts()) == ({}, {"waiting": 1})


@pytest.mark.promise("A6", "A1")
def test_a_paused_queue_without_jobs_can_be_dropped(q: Bench) -> None:
    q.backend.set_paused(q.queue, True)
    assert q.backend.drop_queue(q.queue, force=False).dropped
    assert not q.info().paused


@pytest.mark.promise("A2", "C14")
def test_an_error_that_is_repeated_keeps_the_first(q: Bench) -> None:
    q.ended("j", "retry-now")
    first = q.get().error
    q.settle(q.hold("j"), Fail(OTHER_ERROR))
    assert (q.get().error, q.get().first_error) == (OTHER_ERROR, first)
