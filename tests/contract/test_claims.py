"""What a claim writes, and claims and settles whose first answer was lost."""

from __future__ import annotations

import pytest

from mayflymq.model import MAX_TIME, Beat, Complete, Release, Settle

from .bench import STALE, Bench, changed


@pytest.mark.promise("C1", "D3", "F4")
def test_one_step_writes_all_of_a_claim(q: Bench) -> None:
    q.enqueue("j")
    before = q.get()
    now = q.clock.advance(7)
    [claimed] = q.claim(token="t", stale_after_ms=100, worker="lambda-1")
    assert (claimed.claim.queue, claimed.claim.job_id, claimed.claim.token) == (q.queue, "j", "t")
    expected = changed(
        before,
        state="active",
        claim_token="t",
        worker="lambda-1",
        claimed_at=now,
        heartbeat_at=now,
        stale_at=now + 100,
        deliveries=1,
    )
    assert claimed.job == expected
    assert q.get() == expected


def test_the_longest_claim_goes_stale_at_the_end_of_time(q: Bench) -> None:
    q.enqueue("j")
    [claimed] = q.claim(stale_after_ms=MAX_TIME)
    assert claimed.job.stale_at == q.get("j").stale_at == MAX_TIME
    assert q.beat(claimed.claim, stale_after_ms=MAX_TIME) == "held"
    assert q.get("j").stale_at == MAX_TIME


@pytest.mark.promise("C1")
def test_a_worker_that_dies_before_its_first_heartbeat_is_recovered(q: Bench) -> None:
    q.enqueue("j")
    q.hold("j", stale_after_ms=100)
    q.clock.advance(100)
    assert q.swept() == {"j": "released"}


@pytest.mark.promise("D8")
def test_a_claim_sent_again_gives_what_its_token_still_holds(q: Bench) -> None:
    q.enqueue("a", "b", "c", "d")
    first = q.claim(3, token="t")
    before = q.backend.get(q.queue, ["a", "b", "c", "d"])
    q.clock.advance(10)

    assert q.claim(3, token="t") == first
    assert q.take(1, token="t") == ["a", "b", "c"], "the limit does not count for what is held"
    assert q.backend.get(q.queue, ["a", "b", "c", "d"]) == before

    q.settle(first[1].claim, "complete")
    assert set(q.take(4, token="t")) == {"a", "c"}
    q.cancel("a")
    again = {each.job.id: each.job.cancel_requested for each in q.claim(3, token="t")}
    assert again == {"a": True, "c": False}
    q.remove("a")
    assert q.take(3, token="t") == ["c"]
    assert q.state("d") == "waiting"


@pytest.mark.promise("D8")
def test_a_claim_sent_again_after_all_were_settled_is_a_new_claim(q: Bench) -> None:
    q.enqueue("a", "b")
    [claimed] = q.claim(token="t")
    q.settle(claimed.claim, "complete")
    assert q.take(token="t") == ["b"]


@pytest.mark.promise("D8", "A1")
def test_a_claim_sent_again_while_paused_gives_what_it_holds(q: Bench) -> None:
    q.enqueue("a", "b")
    first = q.claim(token="t")
    q.backend.set_paused(q.queue, True)
    assert q.claim(token="t") == first
    assert q.claim(token="u") == []


@pytest.mark.promise("D8", "C4")
def test_a_token_is_about_one_queue(q: Bench) -> None:
    elsewhere = q.on(q.backend, f"{q.queue}-2")
    q.enqueue("a")
    elsewhere.enqueue("b")
    for _ in range(2):
        assert (q.take(5, token="t"), elsewhere.take(5, token="t")) == (["a"], ["b"])


@pytest.mark.promise("D8", "C2")
def test_a_claim_sent_again_does_not_renew(q: Bench) -> None:
    q.enqueue("a")
    q.claim(token="t", stale_after_ms=100)
    q.clock.advance(60)
    q.claim(token="t", stale_after_ms=100)
    q.clock.advance(40)
    assert q.swept() == {"a": "released"}


@pytest.mark.promise("D7", "D8")
def test_a_settle_with_the_next_claim_sent_again_answers_the_same(q: Bench) -> None:
    q.enqueue("a", "b", "c", "d")
    held = [each.claim for each in q.claim(2, token="t")]
    settles = [Settle(held[0], Complete(b"1")), Settle(held[1], Complete(b"2"))]
    request = q.request(1, token="u")
    first = q.backend.settle(settles, request)
    assert [each.status for each in first.settled] == ["applied", "applied"]
    assert [each.job.id for each in first.claimed] == ["c"]

    again = q.backend.settle(settles, request)
    assert [each.status for each in again.settled] == ["duplicate", "duplicate"]
    assert again.claimed == first.claimed
    assert q.counts() == {"completed": 2, "active": 1, "waiting": 1}


@pytest.mark.promise("D4", "O3")
def test_the_next_claim_sees_what_the_settles_did(q: Bench) -> None:
    q.enqueue("parent")
    q.enqueue("child", depends_on=("parent",), priority=1)
    q.enqueue("other")
    claim = q.hold("parent")
    answer = q.backend.settle([Settle(claim, Complete())], q.request(1))
    assert [each.job.id for each in answer.claimed] == ["child"]
    answer = q.backend.settle([Settle(answer.claimed[0].claim, Release())], q.request(2))
    assert [each.job.id for each in answer.claimed] == ["child", "other"]


def test_a_claim_takes_no_more_than_its_limit_and_no_empty_queue_is_an_error(q: Bench) -> None:
    assert q.claim(5) == []
    q.enqueue(*"abcde")
    assert q.take(2) == ["a", "b"]
    assert q.take(1000) == ["c", "d", "e"]
    assert q.claim(5) == []
    assert q.backend.settle([], q.request(5)).claimed == []


@pytest.mark.promise("D3")
def test_each_cause_of_a_second_delivery_counts_it(q: Bench) -> None:
    """The five of D3 as the store sees them: the id stays, deliveries go up."""
    q.enqueue("j", max_retries=9)
    seen = []

    def deliver() -> None:
        [claimed] = q.claim()
        seen.append((claimed.job.id, claimed.job.deliveries))

    deliver()
    q.clock.advance(STALE)  # its worker died after its side effect
    q.sweep()
    deliver()
    q.beat(q.claim(token=q.get().claim_token)[0].claim)
    q.clock.advance(STALE)  # its heartbeats stopped
    q.sweep()
    deliver()
    q.settle(q.claim(token=q.get().claim_token)[0].claim, "fail")
    q.replay("j")  # an operator retried it
    deliver()
    q.clock.advance(STALE)  # the connection was lost, and the token with it
    q.sweep()
    deliver()
    q.settle(q.claim(token=q.get().claim_token)[0].claim, "retry-now")  # it raised half-way
    deliver()
    assert seen == [("j", n) for n in range(1, 7)]


@pytest.mark.promise("C2", "A5")
def test_a_heartbeat_renews_and_carries_progress(q: Bench) -> None:
    claim = q.active()
    held = q.get()
    now = q.clock.advance(1000)
    assert q.beat(claim, 500, progress=0.25) == "held"
    assert q.get() == changed(held, heartbeat_at=now, stale_at=now + 500, progress=0.25)
    assert q.beat(claim, 500) == "held"
    assert q.get().progress == 0.25, "a beat without progress keeps it"
    assert q.beat(claim, 500, progress=0.0) == "held"
    assert q.get().progress == 0.0
    q.clock.advance(499)
    assert q.sweep() == []
    q.clock.advance(1)
    assert q.beat(claim, 500) == "held", "stale, but not yet recovered"
    assert q.sweep() == []
    q.clock.advance(500)
    assert q.swept() == {"j": "released"}
    q.hold("j")
    assert q.get().progress is None, "a new attempt starts at nothing"


@pytest.mark.promise("C2", "X2")
def test_a_heartbeat_of_several_claims_is_one_call(q: Bench) -> None:
    q.enqueue(*"abc")
    claims = [each.claim for each in q.claim(3)]
    q.cancel("b")
    q.clock.advance(STALE - 1)
    assert q.backend.heartbeat([Beat(claim, STALE) for claim in claims]) == [
        "held",
        "cancel_requested",
        "held",
    ]
    q.clock.advance(STALE - 1)
    assert q.sweep() == []
