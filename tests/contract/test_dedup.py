"""Deduplication keys: who holds one, until when, and what takes it from whom (G2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mayflymq.model import TERMINAL, Dedup, DedupMode, Enqueued, EnqueueStatus, ParentPolicy

from .bench import KINDS, STALE, Bench, changed
from .harness import Harness

WINDOW = 1000
SIMPLE = Dedup("key")
THROTTLE = Dedup("key", DedupMode.THROTTLE, WINDOW)
DEBOUNCE = Dedup("key", DedupMode.DEBOUNCE)
KEEPING = Dedup("key", DedupMode.DEBOUNCE, extend=False)
LATER = 60_000


@pytest.fixture(autouse=True)
def _needs_dedup(q: Bench) -> None:
    if not q.backend.capabilities.dedup:
        pytest.skip("this backend has no deduplication")


def holder(q: Bench) -> str | None:
    return q.backend.dedup_holder(q.queue, "key")


@pytest.mark.promise("G2")
@pytest.mark.parametrize("state", ["waiting", "delayed", "blocked", "active", "marked"])
@pytest.mark.parametrize("mode", [SIMPLE, THROTTLE], ids=["simple", "throttle"])
def test_a_held_key_suppresses_and_names_its_holder(q: Bench, other: Bench, mode: Dedup, state: str) -> None:
    q.enqueue("p", priority=9)
    options: dict[str, object] = {"delay_ms": LATER} if state == "delayed" else {}
    q.enqueue("j", dedup=mode, depends_on=("p",) if state == "blocked" else (), **options)
    if state in ("active", "marked"):
        q.hold("j")
    if state == "marked":
        q.cancel("j")
    before = q.get()
    for new in (mode, SIMPLE):
        [answer] = other.enqueue("k", dedup=new)
        expected = "active" if state == "marked" else state
        assert (answer.status, answer.state, answer.holder) == ("deduplicated", expected, "j")
    assert (q.find("k"), q.get()) == (None, before)
    assert q.enqueue("free", dedup=Dedup("another"))[0].status == "created"
    assert holder(q.on(q.backend, f"{q.queue}-2")) is None


def by_sweep(max_stalls: int, cancel: bool = False) -> Callable[[Bench], None]:
    def end(q: Bench) -> None:
        q.hold("j")
        if cancel:
            q.cancel("j")
        q.clock.advance(STALE)
        q.sweep(max_stalls=max_stalls)

    return end


def under_cancellation(q: Bench) -> None:
    claim = q.hold("j")
    q.cancel("j")
    q.settle(claim, "complete")


def by_parent(q: Bench) -> None:
    q.remove("j")
    parent = q.active("p")
    assert q.enqueue("j", dedup=SIMPLE, depends_on=("p",))[0].status == "created"
    q.settle(parent, "fail")
    assert q.state() == "failed"


def by_settle(outcome: str) -> Callable[[Bench], None]:
    def end(q: Bench) -> None:
        q.settle(q.hold("j"), outcome)

    return end


ENDINGS: dict[str, Callable[[Bench], object]] = {
    **{kind: by_settle(kind) for kind in ("complete", "fail", "expire", "cancel")},
    "queued-cancel": lambda q: q.cancel("j"),
    "under-cancellation": under_cancellation,
    "swept-failed": by_sweep(0),
    "swept-cancelled": by_sweep(3, cancel=True),
    "parent": by_parent,
    "removed": lambda q: q.remove("j"),
    "removed-active": lambda q: (q.hold("j"), q.remove("j")),
    "drained": lambda q: q.backend.drain(q.queue, False, 10),
}


@pytest.mark.promise("G2")
@pytest.mark.parametrize("mode", [SIMPLE, DEBOUNCE], ids=["simple", "debounce"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_releases_a_key(q: Bench, ending: str, mode: Dedup) -> None:
    q.enqueue("j", dedup=mode, delay_ms=1)
    q.clock.advance(1)
    q.promote()
    assert holder(q) == "j"
    ENDINGS[ending](q)
    assert holder(q) is None
    assert q.enqueue("k", dedup=SIMPLE)[0].status == "created"
    q.remove("j")
    assert holder(q) == "k", "a newer holder is not released by the older job's removal"


@pytest.mark.promise("G2")
@pytest.mark.parametrize("kind", ["retry", "retry-now", "defer", "release"])
def test_a_key_is_kept_while_its_job_goes_on(q: Bench, kind: str) -> None:
    q.ended("j", kind, dedup=SIMPLE)
    assert q.enqueue("k", dedup=SIMPLE)[0].holder == "j"


@pytest.mark.promise("G2", "A6")
@pytest.mark.parametrize("way", ["removed", "cleaned", "late settle", "replayed and removed"])
def test_a_newer_holder_is_never_released_by_an_older_job(q: Bench, way: str) -> None:
    claim = q.ended("old", "fail", dedup=SIMPLE)
    q.enqueue("new", dedup=SIMPLE)
    if way == "removed":
        q.remove("old")
    elif way == "cleaned":
        q.backend.clean(q.queue, TERMINAL, 0, 10)
    elif way == "late settle":
        assert [q.settle(claim, kind) for kind in KINDS].count("duplicate") == 1
    else:
        assert q.replay("old") == ["key_taken"]
        q.remove("old")
    assert holder(q) == "new"
    assert q.enqueue("third", dedup=SIMPLE)[0].holder == "new"


@pytest.mark.promise("G2")
def test_a_key_released_by_hand_is_free_and_stays_with_its_next_holder(q: Bench, other: Bench) -> None:
    claim = q.active("j", dedup=SIMPLE)
    assert other.backend.dedup_holder(q.queue, "key", release=True) == "j"
    assert other.backend.dedup_holder(q.queue, "key", release=True) is None
    q.enqueue("k", dedup=SIMPLE)
    q.settle(claim, "complete")
    assert holder(q) == "k"


# Throttle: the window counts, not the job


@pytest.mark.promise("G2", "F4")
@pytest.mark.parametrize("fate", ["waiting", "completed", "failed", "removed", "cleaned", "cancelled"])
def test_a_throttle_window_may_outlive_its_job(q: Bench, fate: str) -> None:
    q.enqueue("j", dedup=THROTTLE)
    if fate in ("completed", "failed", "cleaned"):
        q.settle(q.hold("j"), "fail" if fate == "failed" else "complete")
    if fate == "cancelled":
        q.cancel("j")
    if fate == "removed":
        q.remove("j")
    if fate == "cleaned":
        q.backend.clean(q.queue, TERMINAL, 0, 10)
    gone = fate in ("removed", "cleaned")
    state = None if gone else q.state("j")
    q.clock.advance(WINDOW - 1)
    assert q.enqueue("k", dedup=THROTTLE) == [Enqueued("k", EnqueueStatus.DEDUPLICATED, state, "j")]
    assert holder(q) == "j"
    q.clock.advance(1)
    assert holder(q) is None
    assert q.enqueue("k", dedup=THROTTLE)[0].status == "created"
    assert holder(q) == "k"
    q.remove("j")
    q.clock.advance(WINDOW - 1)
    assert holder(q) == "k", "the newer window is its own"


@pytest.mark.promise("G2", "A2")
def test_a_throttled_key_that_another_took_keeps_a_dead_job_dead(q: Bench) -> None:
    q.ended("j", "fail", dedup=THROTTLE)
    q.clock.advance(WINDOW)
    q.enqueue("k", dedup=THROTTLE)
    assert q.replay("j") == ["key_taken"]
    q.clock.advance(WINDOW)
    assert q.replay("j") == ["retried"]


@pytest.mark.promise("G2", "A6")
def test_clean_forgets_only_windows_that_are_over(q: Bench) -> None:
    q.enqueue("over", dedup=Dedup("over", DedupMode.THROTTLE, 10))
    q.enqueue("open", dedup=Dedup("open", DedupMode.THROTTLE, 11))
    q.enqueue("held", dedup=Dedup("held"))
    q.clock.advance(10)
    q.backend.clean(q.queue, TERMINAL, 0, 10)
    assert [q.backend.dedup_holder(q.queue, key) for key in ("over", "open", "held")] == [
        None,
        "open",
        "held",
    ]


# Debounce: the newer replaces the older while that is delayed


@pytest.mark.promise("G2")
@pytest.mark.parametrize("mode", [DEBOUNCE, KEEPING], ids=["extend", "keep"])
def test_a_newer_job_replaces_a_delayed_holder(q: Bench, other: Bench, mode: Dedup) -> None:
    q.enqueue("old", delay_ms=100, dedup=mode, payload=b"old")
    due = q.get("old").run_at
    now = q.clock.advance(60)
    old = q.get("old")
    [answer] = other.enqueue("new", delay_ms=100, dedup=mode, payload=b"new")
    assert (answer.status, answer.state, answer.holder) == ("replaced", "delayed", "old")
    assert q.get("old") == changed(old, state="cancelled", finished_at=now)
    assert (q.get("new").run_at, q.get("new").payload) == (now + 100 if mode.extend else due, b"new")
    assert holder(q) == "new"
    assert q.enqueue("newest", delay_ms=7, dedup=mode)[0].holder == "new"
    q.clock.advance(1000)
    assert q.take(10) == ["newest"]
    assert q.enqueue("last", delay_ms=5, dedup=mode)[0].status == "deduplicated", "not delayed any more"


@pytest.mark.promise("G2")
def test_debounce_holds_off_while_its_job_runs(q: Bench) -> None:
    claim = q.active("j", delay_ms=0, dedup=SIMPLE)
    assert q.enqueue("k", delay_ms=5, dedup=DEBOUNCE)[0].status == "deduplicated"
    q.settle(claim, "retry")
    [answer] = q.enqueue("k", delay_ms=5, dedup=DEBOUNCE)
    assert (answer.status, answer.holder) == ("replaced", "j"), (
        "a retry that waits for its time is delayed too"
    )


@pytest.mark.promise("G2", "G3")
def test_replacing_a_parent_settles_its_children(q: Bench) -> None:
    q.enqueue("old", delay_ms=LATER, dedup=DEBOUNCE)
    q.enqueue("fails", depends_on=("old",))
    q.enqueue("runs", depends_on=("old",), on_parent_failure=ParentPolicy.RUN)
    [answer] = q.enqueue("new", delay_ms=LATER, dedup=DEBOUNCE)
    assert {(d.job_id, d.state) for d in answer.dependants} == {("fails", "failed"), ("runs", "waiting")}


@pytest.mark.promise("G2", "G3")
def test_what_is_refused_replaces_nobody(q: Bench) -> None:
    q.enqueue("old", delay_ms=LATER, dedup=DEBOUNCE)
    assert q.enqueue("new", delay_ms=5, dedup=DEBOUNCE, depends_on=("nobody",))[0].status == "refused"
    assert (q.state("old"), holder(q)) == ("delayed", "old")


@pytest.mark.promise("G2", "G3")
def test_a_job_born_failed_holds_no_key(q: Bench) -> None:
    q.ended("p", "fail")
    [answer] = q.enqueue("j", dedup=SIMPLE, depends_on=("p",))
    assert (answer.status, answer.state, holder(q)) == ("created", "failed", None)


@pytest.mark.promise("G2", "A2")
@pytest.mark.parametrize("mode", [SIMPLE, DEBOUNCE], ids=["simple", "debounce"])
def test_a_manual_retry_takes_the_key_again(q: Bench, mode: Dedup) -> None:
    q.enqueue("j", dedup=mode, delay_ms=1)
    q.clock.advance(1)
    q.settle(q.hold("j"), "fail")
    assert holder(q) is None
    assert q.replay("j") == ["retried"]
    assert holder(q) == "j"
    assert q.enqueue("k", dedup=mode, delay_ms=1)[0].holder == "j"
    q.settle(q.hold("j"), "complete")
    assert holder(q) is None


@pytest.mark.promise("G2")
def test_of_producers_that_race_for_a_key_one_wins(harness: Harness, q: Bench) -> None:
    keys = [f"key{n}" for n in range(40)]
    first, second = harness.race(
        ("each", "enqueue_keyed", q.queue, "one", keys), ("each", "enqueue_keyed", q.queue, "two", keys)
    )
    assert [sorted(pair) for pair in zip(first, second, strict=True)] == [["created", "deduplicated"]] * 40
    winners = [f"{key}-{'one' if won == 'created' else 'two'}" for key, won in zip(keys, first, strict=True)]
    assert [q.backend.dedup_holder(q.queue, key) for key in keys] == winners
    assert sorted(q.ids("waiting")) == sorted(winners)
