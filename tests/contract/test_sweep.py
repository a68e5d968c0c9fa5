"""Stalled recovery: what a sweep takes, what it leaves, and who may still come before or after it."""

from __future__ import annotations

import pytest

from mayflymq import lifecycle
from mayflymq.model import TERMINAL, Severity

from .actors import ERROR
from .bench import KINDS, STALE, Bench, changed
from .harness import Harness


@pytest.mark.promise("C5", "C6", "C1")
def test_a_sweep_takes_those_stale_for_longest_first_and_no_more_than_its_limit(q: Bench) -> None:
    for stale_after in (300, 100, 500, 200, 400):
        q.enqueue(str(stale_after))
        q.hold(str(stale_after), stale_after_ms=stale_after, worker=f"w{stale_after}")
    q.clock.advance(400)
    first = q.sweep(limit=2)
    assert [(r.job_id, r.status, r.stalls, r.worker, r.dependants) for r in first] == [
        ("100", "released", 1, "w100", ()),
        ("200", "released", 1, "w200", ()),
    ]
    assert [r.job_id for r in q.sweep(limit=2)] == ["300", "400"]
    assert q.sweep(limit=2) == []
    assert q.counts() == {"waiting": 4, "active": 1}


@pytest.mark.promise("C14")
@pytest.mark.parametrize("max_stalls", [0, 1, 3])
def test_a_job_that_stalls_too_often_fails(q: Bench, max_stalls: int) -> None:
    q.enqueue("j")
    for stalls in range(1, max_stalls + 2):
        q.hold("j")
        before = q.get()
        now = q.clock.advance(STALE)
        [found] = q.sweep(max_stalls=max_stalls)
        assert found.stalls == stalls
        freed = {"claim_token": None, "heartbeat_at": None, "stale_at": None, "stalls": stalls}
        if stalls <= max_stalls:
            assert found.status == "released"
            assert q.get() == changed(before, state="waiting", **freed)
        else:
            assert found.status == "failed"
            error = lifecycle.stalled_out(stalls)
            assert q.get() == changed(
                before, state="failed", finished_at=now, error=error, first_error=error, **freed
            )
    assert q.info().dead_letters == 1
    assert q.get().failures == 0


@pytest.mark.promise("C14", "A2")
def test_a_manual_retry_starts_the_stalls_again(q: Bench) -> None:
    q.enqueue("j")
    for _ in range(2):
        for expected in ("released", "failed"):
            q.hold("j")
            q.clock.advance(STALE)
            assert q.swept(max_stalls=1) == {"j": expected}
        q.replay("j")


@pytest.mark.promise("C14")
def test_the_first_error_stays_when_a_job_stalls_out(q: Bench) -> None:
    q.ended("j", "retry-now")
    q.hold("j")
    q.clock.advance(STALE)
    assert q.swept(max_stalls=0) == {"j": "failed"}
    assert q.get().error == lifecycle.stalled_out(1)
    assert q.get().first_error == ERROR


@pytest.mark.promise("C15", "X3")
def test_a_stale_job_under_a_cancellation_is_cancelled(q: Bench) -> None:
    q.enqueue("child", depends_on=(q.active("j").job_id,))
    q.cancel("j")
    q.clock.advance(STALE)
    [found] = q.sweep(max_stalls=0)
    assert (found.job_id, found.status) == ("j", "cancelled")
    assert [(d.job_id, d.state) for d in found.dependants] == [("child", "failed")]
    assert q.state() == "cancelled"
    assert (q.get().error, q.sweep(), q.claim()) == (None, [], [])


@pytest.mark.promise("C5", "C4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_late_settle_and_the_sweep_in_both_orders(q: Bench, other: Bench, kind: str) -> None:
    late = q.active("a")
    q.enqueue("b")
    early = q.hold("b")
    q.clock.advance(STALE)
    assert q.settle(early, kind) == "applied"
    before = q.get("b")
    assert other.swept() == {"a": "released"}, "the settled one is not stale any more"
    assert q.get("b") == before
    before = q.get("a")
    assert q.settle(late, kind) == "lost"
    assert q.get("a") == before


@pytest.mark.promise("C5", "C2")
def test_a_heartbeat_and_the_sweep_in_both_orders(q: Bench, other: Bench) -> None:
    q.enqueue("a", "b")
    a, b = (claimed.claim for claimed in q.claim(2))
    q.clock.advance(STALE)
    assert q.beat(a) == "held"
    assert other.swept() == {"b": "released"}
    assert q.beat(b) == "lost"
    assert q.states("a", "b") == ["active", "waiting"]


@pytest.mark.promise("C5", "A3")
def test_a_removal_and_the_sweep_in_both_orders(q: Bench, other: Bench) -> None:
    q.enqueue("a", "b")
    q.claim(2)
    q.clock.advance(STALE)
    assert q.remove("a") == [True]
    assert other.swept() == {"b": "released"}
    assert q.remove("b") == [True]
    assert q.counts() == {}
    assert (q.sweep(), q.claim()) == ([], [])


@pytest.mark.promise("C5")
def test_a_sweep_leaves_what_was_recovered_and_claimed_again(q: Bench, other: Bench) -> None:
    q.active("j")
    q.clock.advance(STALE)
    assert q.swept() == {"j": "released"}
    q.hold("j")
    before = q.get()
    assert other.sweep() == []
    assert q.get() == before


@pytest.mark.promise("C5")
@pytest.mark.parametrize("kind", ["complete", "fail", "expire", "cancel"])
def test_a_sweep_never_touches_what_has_ended(q: Bench, kind: str) -> None:
    q.ended("j", kind)
    before = q.get()
    q.clock.advance(10 * STALE)
    assert q.sweep() == []
    assert q.get() == before


@pytest.mark.promise("C8", "C5")
def test_what_one_sweep_left_is_there_for_the_next(q: Bench) -> None:
    ids = [f"{n:02}" for n in range(20)]
    q.enqueue(*ids)
    q.claim(20)
    q.clock.advance(STALE)
    swept = [r.job_id for _ in range(7) for r in q.sweep(limit=3)]
    assert sorted(swept) == ids
    assert q.counts() == {"waiting": 20}


@pytest.mark.promise("C6", "A1")
def test_a_paused_queue_is_swept_and_promoted(q: Bench) -> None:
    q.active("j")
    q.enqueue("later", delay_ms=5)
    q.backend.set_paused(q.queue, True)
    q.clock.advance(STALE)
    assert q.swept() == {"j": "released"}
    assert q.promote() == ["later"]
    assert q.claim() == []


@pytest.mark.promise("C8")
def test_an_unreadable_record_hides_no_other(harness: Harness, q: Bench, other: Bench) -> None:
    if not harness.can_plant_unreadable:
        pytest.skip("nothing can spoil a record of this backend")
    harness.spoiled.add(q.queue)
    q.enqueue("bad", "good", "better")
    q.claim(3)
    harness.plant_unreadable(q.queue, "bad")
    q.clock.advance(STALE)
    swept: dict[str, str] = {}
    for _ in range(4):
        swept |= q.swept(limit=1)
    assert swept.pop("bad") in ("unreadable", "released"), "released where the sweep need not read it"
    assert swept == {"good": "released", "better": "released"}
    q.enqueue("worse", priority=0)
    harness.plant_unreadable(q.queue, "worse")
    taken = [id for _ in range(4) for id in other.take()]
    assert taken == ["good", "better"], "nor does it hide one from claims"
    q.clock.advance(STALE)
    assert q.swept().items() >= {"good": "released", "better": "released"}.items()
    assert q.remove("bad", "worse") == [True, True], "the way out"
    assert q.counts() == {"waiting": 2}


@pytest.mark.promise("C8")
@pytest.mark.parametrize("state", ["waiting", "delayed", "active", "failed"])
def test_a_record_of_a_newer_format_is_left_alone(
    harness: Harness, q: Bench, other: Bench, state: str
) -> None:
    if not harness.can_plant_newer:
        pytest.skip("records of this backend die with the code that wrote them")
    harness.spoiled.add(q.queue)
    if state == "waiting":
        q.enqueue("j", "k")
    elif state == "delayed":
        q.enqueue("j", "k", delay_ms=5)
    else:
        q.enqueue("j", "k")
        claims = q.claim(2)
        for claimed in claims if state == "failed" else ():
            q.settle(claimed.claim, "fail")
    harness.plant_newer(q.queue, "j")
    q.clock.advance(10 * STALE)
    if state == "failed":
        assert q.backend.clean(q.queue, TERMINAL, 0, 10) == ["k"]
        left = {"failed": 1}
    else:
        assert "j" not in q.swept()
        assert "j" not in q.promote()
        assert other.take(5) == ["k"]
        left = {"active": 2} if state == "active" else {state: 1, "active": 1}
    assert q.counts() == left, "it stands where it stood"
    assert any(found.severity is not Severity.OK and "newer" in found.message for found in q.backend.check())


def test_an_unknown_queue_has_nothing_to_sweep_or_promote(q: Bench) -> None:
    assert (q.sweep(), q.promote()) == ([], [])
    assert q.backend.clean(q.queue, TERMINAL, 0, 10) == []
    assert q.backend.drain(q.queue, True, 10).job_ids == ()
    assert q.backend.queues([q.queue])[0].counts == type(q.info().counts)()
