"""Only the holder of a claim settles or renews it; what is sent twice changes nothing the second time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mayflymq.errors import InvalidJob
from mayflymq.model import (
    MAX_BATCH,
    TERMINAL,
    Beat,
    Cancel,
    Claim,
    Complete,
    Defer,
    Expire,
    Fail,
    Outcome,
    Release,
    Retry,
    Settle,
    State,
)

from .bench import KINDS, OTHER_ERROR, OUTCOMES, STALE, Bench


def forged(q: Bench) -> Claim:
    return Claim(q.queue, q.active().job_id, "forged")


def recovered(q: Bench) -> Claim:
    claim = q.active()
    q.clock.advance(STALE)
    assert q.swept() == {"j": "released"}
    return claim


def recovered_and_claimed(q: Bench) -> Claim:
    claim = recovered(q)
    q.hold("j")
    return claim


def recovered_and_done(q: Bench) -> Claim:
    claim = recovered(q)
    q.settle(q.hold("j"), "complete")
    return claim


def retried_and_claimed(q: Bench) -> Claim:
    claim = q.ended("j", "retry-now")
    q.hold("j")
    return claim


def removed(q: Bench) -> Claim:
    claim = q.active()
    q.remove("j")
    return claim


def reborn(q: Bench) -> Claim:
    """Its id lives again, claimed by somebody else."""
    claim = removed(q)
    q.active()
    return claim


def cleaned(q: Bench) -> Claim:
    claim = q.ended("j", "fail")
    assert q.backend.clean(q.queue, TERMINAL, 0, 10) == ["j"]
    return claim


def dropped(q: Bench) -> Claim:
    claim = q.active()
    assert q.backend.drop_queue(q.queue, force=True).dropped
    return claim


def dropped_and_reborn(q: Bench) -> Claim:
    claim = dropped(q)
    q.active()
    return claim


def cancelled_by_sweep(q: Bench) -> Claim:
    claim = q.active()
    q.cancel("j")
    q.clock.advance(STALE)
    assert q.swept() == {"j": "cancelled"}
    return claim


def replayed_and_claimed(q: Bench) -> Claim:
    claim = q.ended("j", "fail")
    q.replay("j")
    q.hold("j")
    return claim


LOST: dict[str, Callable[[Bench], Claim]] = {
    made.__name__: made
    for made in (
        forged,
        recovered,
        recovered_and_claimed,
        recovered_and_done,
        retried_and_claimed,
        removed,
        reborn,
        cleaned,
        dropped,
        dropped_and_reborn,
        cancelled_by_sweep,
        replayed_and_claimed,
    )
}


@pytest.mark.promise("C4", "D7", "X3", "A3", "A6")
@pytest.mark.parametrize("made", LOST)
def test_a_superseded_claim_is_lost_and_changes_nothing(q: Bench, made: str) -> None:
    claim = LOST[made](q)
    before = q.find()
    for kind in KINDS:
        assert q.settle(claim, kind) == "lost", kind
    assert q.beat(claim, progress=0.5) == "lost"
    assert q.find() == before


@pytest.mark.promise("D7", "C4")
@pytest.mark.parametrize("first", KINDS)
def test_a_settle_sent_again_with_each_outcome(q: Bench, first: str) -> None:
    claim = q.ended("j", first)
    before = q.get()
    q.clock.advance(5)
    for kind in KINDS:
        assert q.settle(claim, kind) == ("duplicate" if kind == first else "lost"), kind
    assert q.beat(claim) == "lost"
    assert q.get() == before


@pytest.mark.promise("D7")
@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (Complete(b"1"), Complete(b"2")),
        (Retry(5, OTHER_ERROR), Retry(0, OTHER_ERROR)),
        (Defer(0), Defer(5)),
        (Fail(OTHER_ERROR), OUTCOMES["fail"]),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_the_same_kind_of_outcome_is_a_duplicate_whatever_it_carries(
    q: Bench, outcome: Outcome, again: Outcome
) -> None:
    claim = q.ended("j", outcome)
    before = q.get()
    assert q.settle(claim, again) == "duplicate"
    assert q.get() == before


@pytest.mark.promise("D7")
@pytest.mark.parametrize(
    "outcome", [Retry(0, OTHER_ERROR), Defer(0), Release()], ids=lambda o: type(o).__name__
)
def test_a_duplicate_ends_with_the_next_claim(q: Bench, outcome: Outcome) -> None:
    claim = q.ended("j", outcome)
    assert q.settle(claim, outcome) == "duplicate"
    later = q.hold("j")
    assert q.settle(claim, outcome) == "lost"
    assert q.settle(later, outcome) == "applied"
    assert q.settle(claim, outcome) == "lost"
    assert q.settle(later, outcome) == "duplicate"


@pytest.mark.promise("D7", "A2")
def test_a_duplicate_outlives_promotion_cancellation_and_a_manual_retry(q: Bench) -> None:
    retried = q.ended("j", Retry(5, OTHER_ERROR))
    q.clock.advance(5)
    assert q.promote() == ["j"]
    assert q.settle(retried, Retry(5, OTHER_ERROR)) == "duplicate"
    q.cancel("j")
    assert q.settle(retried, Retry(5, OTHER_ERROR)) == "duplicate"
    assert q.settle(retried, "complete") == "lost"
    failed = q.ended("k", "fail")
    q.replay("k")
    assert q.settle(failed, "fail") == "duplicate"
    assert q.states("j", "k") == ["cancelled", "waiting"]


@pytest.mark.promise("X3", "D7")
@pytest.mark.parametrize("first", KINDS)
def test_a_settle_where_a_cancellation_stands_answers_cancelled_each_time(q: Bench, first: str) -> None:
    claim = q.active()
    q.cancel("j")
    assert q.settle(claim, first) == "cancelled"
    before = q.get()
    for kind in (first, *KINDS):
        assert q.settle(claim, kind) == "cancelled", kind
    assert q.beat(claim) == "lost"
    assert q.settle(Claim(q.queue, "j", "forged"), first) == "lost"
    assert q.get() == before
    q.remove("j")
    assert q.settle(claim, first) == "lost"


@pytest.mark.promise("D4", "C4")
def test_each_item_of_a_call_is_answered_by_itself_and_in_order(q: Bench) -> None:
    q.enqueue("a", "b", "c", "d")
    a, b, c, d = (claimed.claim for claimed in q.claim(4))
    q.cancel("c")
    asked = [
        Settle(Claim(q.queue, "nobody", a.token), Complete()),
        Settle(d, Fail(OTHER_ERROR)),
        Settle(a, Complete(b"1")),
        Settle(a, Complete(b"2")),
        Settle(a, Fail(OTHER_ERROR)),
        Settle(c, Expire()),
        Settle(Claim(q.queue, "b", "forged"), Cancel()),
        Settle(b, Release()),
    ]
    answers = q.backend.settle(asked).settled
    assert [answer.status for answer in answers] == [
        "lost",
        "applied",
        "applied",
        "duplicate",
        "lost",
        "cancelled",
        "lost",
        "applied",
    ]
    assert q.states("a", "b", "c", "d") == ["completed", "waiting", "cancelled", "failed"]
    assert q.get("a").result == b"1"
    b2 = q.hold("b")
    q.cancel("b")
    assert q.backend.heartbeat([Beat(a, 5), Beat(b2, 5), Beat(b, 5)]) == ["lost", "cancel_requested", "lost"]


@pytest.mark.promise("C4")
def test_a_token_counts_only_in_its_own_queue(q: Bench) -> None:
    elsewhere = q.on(q.backend, f"{q.queue}-2")
    q.active("j")
    elsewhere.enqueue("j")
    [theirs] = elsewhere.claim(token="theirs")
    assert q.settle(Claim(q.queue, "j", "theirs"), "complete") == "lost"
    assert elsewhere.settle(theirs.claim, "complete") == "applied"
    assert (q.state(), elsewhere.state()) == ("active", "completed")


def test_what_cannot_be_meant_is_refused_before_anything_is_written(q: Bench) -> None:
    q.enqueue("a", "b")
    mine = q.hold("a")
    before = q.get("a")
    foreign = Claim(f"{q.queue}-2", "a", mine.token)
    elsewhere = q.on(q.backend, foreign.queue)
    many = MAX_BATCH + 1
    refused: list[Callable[[], object]] = [
        lambda: q.backend.settle([Settle(mine, Complete()), Settle(foreign, Complete())]),
        lambda: q.backend.settle([Settle(mine, Complete())], elsewhere.request()),
        lambda: q.backend.settle([Settle(mine, Complete())] * many),
        lambda: q.backend.heartbeat([Beat(mine, 5), Beat(foreign, 5)]),
        lambda: q.backend.heartbeat([Beat(mine, 5)] * many),
        lambda: q.enqueue(q.new("x"), elsewhere.new("y")),
        lambda: q.enqueue(*(q.new(f"x{n}") for n in range(many))),
        lambda: q.backend.clean(q.queue, [State.COMPLETED, State.WAITING], 0, 10),
        *(
            lambda verb=verb: verb(q.queue, ["a"] * many)
            for verb in (q.backend.get, q.backend.cancel, q.backend.retry, q.backend.remove)
        ),
    ]
    for limit in (0, -1, many, True):
        refused += [
            lambda limit=limit: q.sweep(limit),
            lambda limit=limit: q.promote(limit),
            lambda limit=limit: q.backend.clean(q.queue, TERMINAL, 0, limit),
            lambda limit=limit: q.backend.drain(q.queue, True, limit),
            lambda limit=limit: q.backend.list_jobs(q.queue, State.ACTIVE, None, limit),
        ]
    for call in refused:
        with pytest.raises(InvalidJob):
            call()
    with pytest.raises(InvalidJob):
        q.backend.list_jobs(q.queue, State.ACTIVE, "no cursor", 10)
    assert q.get("a") == before
    assert q.counts() == {"active": 1, "waiting": 1}


def test_an_empty_call_answers_nothing(q: Bench) -> None:
    backend = q.backend
    assert backend.enqueue([]) == []
    assert backend.heartbeat([]) == []
    assert (backend.settle([]).settled, backend.settle([]).claimed) == ([], [])
    for verb in (backend.get, backend.cancel, backend.retry, backend.remove):
        assert verb(q.queue, []) == []
    assert backend.queues([]) == []
