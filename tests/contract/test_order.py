"""Which job a claim gives out next: promises O1 to O4."""

from __future__ import annotations

import random

import pytest

from mayflymq.model import Dedup, DedupMode, Defer, Retry

from .bench import OTHER_ERROR, STALE, Bench

LOW, HIGH = -(2**31), 2**31 - 1


@pytest.mark.promise("O2")
def test_a_lower_number_goes_first_over_the_whole_range(q: Bench) -> None:
    if not q.backend.capabilities.strict_priority:
        pytest.skip("ranges of priorities share a level on this backend")
    priorities = [
        HIGH,
        5,
        LOW,
        0,
        -1,
        1,
        LOW + 1,
        HIGH - 1,
        2**24,
        2**24 + 1,
        -(2**24) - 1,
        -(2**24),
        10,
        9,
        -10,
        -9,
    ]
    random.Random(7).shuffle(priorities)
    for number in priorities:
        q.enqueue(str(number), priority=number)
    assert q.ids("waiting") == [str(number) for number in sorted(priorities)]
    assert q.take(3) + q.take(1) + q.take(100) == [str(number) for number in sorted(priorities)]


@pytest.mark.promise("O2", "O3")
def test_one_priority_is_first_in_first_out_within_a_call_and_across_calls(q: Bench) -> None:
    urgent, usual = [], []
    for call in range(4):
        batch = [q.new(f"{call}-{n}", priority=n % 2) for n in range(10)]
        urgent += [job.id for job in batch if job.priority == 0]
        usual += [job.id for job in batch if job.priority == 1]
        q.enqueue(*batch)
        q.clock.advance(1)
    assert q.ids("waiting") == urgent + usual
    assert [id for _ in range(20) for id in q.take(2)] == urgent + usual


@pytest.mark.promise("O3")
def test_many_at_the_same_moment_keep_their_order(q: Bench) -> None:
    ids = [f"{n:04}" for n in random.Random(3).sample(range(10_000), 300)]
    q.enqueue(*ids[:150])
    q.enqueue(*ids[150:])
    assert q.take(300) == ids


@pytest.mark.promise("O1", "D1")
def test_order_is_about_starting_not_about_ending(q: Bench) -> None:
    q.enqueue("a", "b")
    a, b = (claimed.claim for claimed in q.claim(2))
    assert q.settle(b, "complete") == "applied"
    assert q.settle(a, "complete") == "applied"


@pytest.mark.promise("O3")
def test_a_released_job_goes_back_to_its_old_place(q: Bench) -> None:
    q.enqueue(*"abcd")
    a, b, c = (claimed.claim for claimed in q.claim(3))
    for claim in (c, a, b):
        q.settle(claim, "release")
    q.enqueue("urgent", priority=0)
    assert q.take(5) == ["urgent", "a", "b", "c", "d"]


@pytest.mark.promise("O3")
def test_a_released_job_keeps_its_place_each_time(q: Bench) -> None:
    q.enqueue("a", "b")
    for _ in range(3):
        q.settle(q.hold("a"), "release")
    assert q.take(2) == ["a", "b"]


@pytest.mark.promise("O3", "C6", "A2")
def test_whatever_else_enters_waiting_takes_the_next_place(q: Bench) -> None:
    q.enqueue("parent", "recovered", "retried", "deferred", "replayed", priority=1)
    q.enqueue("child", depends_on=("parent",))
    q.enqueue("first", priority=6)
    claims = {claimed.job.id: claimed.claim for claimed in q.claim(5)}
    q.enqueue("second", priority=6)
    # Each enters waiting in turn, under its own priority: those of priority 1 before the others.
    q.settle(claims["retried"], Retry(0, OTHER_ERROR))
    q.settle(claims["deferred"], Defer(0))
    q.settle(claims["replayed"], "fail")
    q.replay("replayed")
    q.settle(claims["parent"], "complete")
    q.clock.advance(STALE)
    q.sweep()
    assert q.ids("waiting") == ["retried", "deferred", "replayed", "recovered", "child", "first", "second"]
    released = q.claim(1)[0].claim
    q.settle(released, "release")
    assert q.take(10) == ["retried", "deferred", "replayed", "recovered", "child", "first", "second"]


@pytest.mark.promise("O4")
def test_delayed_and_retried_jobs_compete_from_their_time_on(q: Bench) -> None:
    claim = q.active("retried", priority=4)
    q.enqueue("urgent", delay_ms=200, priority=1)
    q.enqueue("late", delay_ms=100)
    q.settle(claim, Retry(100, OTHER_ERROR))
    q.enqueue("here")
    assert q.ids("delayed") == ["late", "retried", "urgent"] or q.ids("delayed") == [
        "retried",
        "late",
        "urgent",
    ]
    q.clock.advance(99)
    assert q.ids("waiting") == ["here"]
    q.clock.advance(1)
    q.enqueue("after")
    assert sorted(q.promote()) == ["late", "retried"]
    q.enqueue("last")
    q.clock.advance(100)
    assert q.take(10) == ["urgent", "retried", "here", "after", "late", "last"]


@pytest.mark.promise("O4", "P1")
def test_a_claim_counts_due_jobs_as_waiting_earliest_first(q: Bench) -> None:
    for id, delay in (("c", 30), ("a", 10), ("d", 40), ("b", 20)):
        q.enqueue(id, delay_ms=delay)
    q.clock.advance(40)
    assert q.take(1) == ["a"]
    assert q.take(1) == ["b"]
    assert q.ids("delayed") == ["c", "d"], "a claim promotes no more than its limit"
    assert q.take(10) == ["c", "d"]


@pytest.mark.promise("P1", "O4")
def test_promotion_is_bounded_and_earliest_first(q: Bench) -> None:
    for id, delay in (("c", 30), ("a", 10), ("d", 40), ("b", 20), ("later", 41)):
        q.enqueue(id, delay_ms=delay)
    q.clock.advance(40)
    assert q.promote(3) == ["a", "b", "c"]
    assert q.promote(3) == ["d"]
    assert q.promote(3) == []
    assert q.ids("waiting") == ["a", "b", "c", "d"]


@pytest.mark.promise("O3", "G2")
def test_a_job_that_replaces_another_has_a_place_of_its_own(q: Bench) -> None:
    key = Dedup("k", DedupMode.DEBOUNCE, extend=False)
    q.enqueue("old", delay_ms=10, dedup=key)
    q.enqueue("between", delay_ms=10)
    q.enqueue("new", delay_ms=50, dedup=key)
    q.clock.advance(10)
    assert q.promote() == ["between", "new"]
