"""Parents and children: blocked until the last parent completes, or settled by the stated policy (G3, P3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mayflymq import lifecycle
from mayflymq.model import (
    MAX_BATCH,
    MAX_CHILDREN_A_STEP,
    TERMINAL,
    Dependant,
    ParentPolicy,
    Recovery,
    Settle,
    State,
)

from .bench import OUTCOMES, STALE, Bench, changed
from .harness import Harness

RUN, FAIL = ParentPolicy.RUN, ParentPolicy.FAIL


@pytest.fixture(autouse=True)
def _needs_dependencies(q: Bench) -> None:
    if not q.backend.capabilities.dependencies:
        pytest.skip("this backend has no dependencies")


def finish(q: Bench, id: str, outcome: str = "complete") -> tuple[tuple[str, str], ...]:
    """Claims the next job, which must be this one, and settles it; what that did to its children."""
    [settled] = q.backend.settle([Settle(q.hold(id), OUTCOMES[outcome])]).settled
    assert settled.status == "applied"
    return tuple((d.job_id, str(d.state)) for d in settled.dependants)


# Completed parents


@pytest.mark.promise("G3")
def test_a_chain_runs_link_by_link(q: Bench) -> None:
    q.enqueue(q.new("a"), q.new("b", depends_on=("a",)), q.new("c", depends_on=("b",)))
    assert q.states("a", "b", "c") == ["waiting", "blocked", "blocked"]
    assert finish(q, "a") == (("b", "waiting"),)
    assert finish(q, "b") == (("c", "waiting"),)
    assert finish(q, "c") == ()


@pytest.mark.promise("G3")
def test_a_diamond_joins_once_when_the_last_parent_completes(q: Bench, other: Bench) -> None:
    q.enqueue("top")
    q.enqueue("left", "right", depends_on=("top",))
    q.enqueue("join", depends_on=("left", "right", "left", "top"))
    assert finish(q, "top") == (("left", "waiting"), ("right", "waiting"))
    left, right = (claimed.claim for claimed in q.claim(2))
    assert q.backend.settle([Settle(right, OUTCOMES["complete"])]).settled[0].dependants == ()
    assert q.state("join") == "blocked"
    first, again = other.backend.settle([Settle(left, OUTCOMES["complete"])] * 2).settled
    assert first.dependants == (Dependant("join", State.WAITING),)
    assert (again.status, again.dependants) == ("duplicate", ())
    assert q.take(5) == ["join"]


@pytest.mark.promise("G3")
@pytest.mark.parametrize("outcome", ["retry", "retry-now", "defer", "release"])
def test_only_an_ending_counts(q: Bench, outcome: str) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    assert finish(q, "p", outcome) == ()
    assert q.state() == "blocked"


@pytest.mark.promise("G3", "C6")
def test_a_parent_that_was_recovered_still_counts_once(q: Bench) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    late = q.hold("p")
    q.clock.advance(STALE)
    q.sweep()
    assert finish(q, "p") == (("j", "waiting"),)
    assert q.settle(late, "fail") == "lost"
    assert q.state() == "waiting"


# Parents that end otherwise


def ended_by(outcome: str) -> Callable[[Bench], object]:
    return lambda q: finish(q, "p", outcome)


def cancelled_active(q: Bench) -> None:
    claim = q.hold("p")
    q.cancel("p")
    assert q.settle(claim, "complete") == "cancelled"


def swept(cancel: bool) -> Callable[[Bench], None]:
    def end(q: Bench) -> None:
        q.hold("p")
        if cancel:
            q.cancel("p")
        q.clock.advance(STALE)
        q.sweep(max_stalls=0)

    return end


BAD_ENDINGS: dict[str, tuple[str, Callable[[Bench], object]]] = {
    "fail": ("failed", ended_by("fail")),
    "expire": ("expired", ended_by("expire")),
    "cancel": ("cancelled", ended_by("cancel")),
    "queued-cancel": ("cancelled", lambda q: q.cancel("p")),
    "active-cancel": ("cancelled", cancelled_active),
    "swept": ("failed", swept(False)),
    "swept-cancelled": ("cancelled", swept(True)),
    "removed": ("removed", lambda q: q.remove("p")),
    "removed-active": ("removed", lambda q: (q.hold("p"), q.remove("p"))),
    "drained": ("removed", lambda q: q.backend.drain(q.queue, False, 1)),
}


@pytest.mark.promise("G3", "P3")
@pytest.mark.parametrize("ending", BAD_ENDINGS)
def test_a_parent_that_ends_badly_settles_its_children_by_their_policy(q: Bench, ending: str) -> None:
    q.enqueue("p", priority=1)
    q.enqueue("good", priority=9)
    q.enqueue("fails", depends_on=("good", "p"))
    q.enqueue("grandchild", depends_on=("fails",))
    q.enqueue("goes-on", depends_on=("fails",), on_parent_failure=RUN)
    q.enqueue("runs", depends_on=("p",), on_parent_failure=RUN)
    q.enqueue("runs-later", depends_on=("p",), on_parent_failure=RUN, delay_ms=10**6)
    q.enqueue("joins", depends_on=("p", "good"), on_parent_failure=RUN)
    q.enqueue("fails-late", depends_on=("p",), delay_ms=10**6)
    before = {id: q.get(id) for id in ("fails", "runs-later", "joins")}
    ended, end = BAD_ENDINGS[ending]
    end(q)
    now = q.clock.now

    error = lifecycle.parent_failed("p", ended)
    assert q.get("fails") == changed(
        before["fails"], state="failed", finished_at=now, error=error, first_error=error
    )
    assert q.get("grandchild").error == lifecycle.parent_failed("fails", "failed")
    assert q.states("grandchild", "goes-on", "runs", "fails-late") == [
        "failed",
        "waiting",
        "waiting",
        "failed",
    ]
    assert q.get("runs-later") == before["runs-later"]
    assert q.get("joins") == before["joins"], "one parent is left"
    assert q.info().dead_letters == 3 + (ended in ("failed", "expired"))
    assert sorted(q.take(9)) == ["goes-on", "good", "runs"]
    q.clock.advance(10**6)
    assert q.promote() == ["runs-later"]
    assert q.state("runs-later") == "waiting"


@pytest.mark.promise("G3")
@pytest.mark.parametrize("policy", [FAIL, RUN])
@pytest.mark.parametrize("outcome", ["complete", "fail", "expire", "cancel"])
def test_a_parent_that_had_ended_before_counts_the_same(q: Bench, outcome: str, policy: ParentPolicy) -> None:
    q.ended("p", outcome)
    q.enqueue("alive", priority=9)
    ended = str(q.state("p"))
    fails = outcome != "complete" and policy is FAIL
    states = ("failed",) * 3 if fails else ("waiting", "delayed", "blocked")
    for id, parents, delay, state in zip(
        "abc", (("p",), ("p",), ("p", "alive")), (0, 50, 0), states, strict=True
    ):
        [answer] = q.enqueue(id, depends_on=parents, on_parent_failure=policy, delay_ms=delay)
        assert (answer.status, answer.state) == ("created", state)
        assert q.get(id).error == (lifecycle.parent_failed("p", ended) if fails else None)


# Refused


@pytest.mark.promise("G3", "G4")
def test_unknown_parents_and_itself_are_refused_with_nothing_written(q: Bench) -> None:
    q.enqueue("p")
    q.enqueue("gone")
    q.remove("gone")
    elsewhere = q.on(q.backend, f"{q.queue}-2")
    elsewhere.enqueue("foreign")
    for parents in (("nobody",), ("p", "nobody"), ("j",), ("p", "j"), ("gone",), ("foreign",)):
        [answer] = q.enqueue("j", depends_on=parents)
        assert (answer.status, answer.state, answer.holder) == ("refused", None, None)
        assert answer.reason
        assert (parents[-1] in answer.reason) or "itself" in answer.reason
    assert (q.find(), q.counts()) == (None, {"waiting": 1})
    assert finish(q, "p") == ()
    assert q.enqueue("j")[0].status == "created"


@pytest.mark.promise("G3", "G4")
def test_parents_may_stand_earlier_in_the_call_but_not_later(q: Bench) -> None:
    answers = q.enqueue(
        q.new("early", depends_on=("p",)),
        q.new("p"),
        q.new("j", depends_on=("p",)),
        q.new("orphan", depends_on=("early",)),
    )
    assert [a.status for a in answers] == ["refused", "created", "created", "refused"]
    assert q.counts() == {"waiting": 1, "blocked": 1}


# Time


@pytest.mark.promise("G3", "P3", "O4")
def test_a_delayed_child_needs_its_time_and_its_parents_whichever_is_last(q: Bench) -> None:
    q.enqueue("p", "q", priority=1)
    q.enqueue("parent-last", depends_on=("p",), delay_ms=50)
    q.enqueue("time-last", depends_on=("q",), delay_ms=100)
    p, second = (claimed.claim for claimed in q.claim(2))
    q.settle(second, "complete")
    assert q.state("time-last") == "delayed"
    q.clock.advance(50)
    assert q.promote() == ["parent-last"]
    assert q.state("parent-last") == "blocked"
    assert q.claim() == []
    q.settle(p, "complete")
    assert q.take() == ["parent-last"]
    q.clock.advance(50)
    assert q.take() == ["time-last"]


@pytest.mark.promise("P3")
def test_a_claim_on_its_way_never_gives_out_a_due_child_with_a_parent(q: Bench) -> None:
    q.enqueue("p", priority=9)
    q.enqueue("j", depends_on=("p",), delay_ms=5)
    q.clock.advance(5)
    assert q.take(10) == ["p"]
    assert q.state() == "blocked"


# Long cascades


@pytest.mark.promise("G3")
@pytest.mark.parametrize("outcome", ["complete", "fail"])
def test_a_fan_out_beyond_one_step_goes_on_in_the_next_sweep(q: Bench, other: Bench, outcome: str) -> None:
    extra = 30
    q.enqueue("p", priority=1)
    ids = [f"{n:04}" for n in range(MAX_CHILDREN_A_STEP + extra)]
    for start in range(0, len(ids), MAX_BATCH):
        q.enqueue(*ids[start : start + MAX_BATCH], depends_on=("p",))
    state = "waiting" if outcome == "complete" else "failed"

    assert len(finish(q, "p", outcome)) == MAX_CHILDREN_A_STEP
    assert q.counts()["blocked"] == extra
    [late] = q.enqueue("late", depends_on=("p",))
    assert late.state == state, "a child that comes now is not held up"
    q.enqueue("stale", priority=0)
    q.hold("stale")
    q.clock.advance(STALE)
    found = {r.job_id: r for r in other.sweep()}
    assert found["stale"].status is Recovery.RELEASED
    assert (found["p"].status, len(found["p"].dependants)) == (Recovery.CASCADED, extra)
    assert {d.state for d in found["p"].dependants} == {state}
    assert len(q.ids(state)) == len(ids) + 2
    assert (q.sweep(), q.counts().get("blocked")) == ([], None)


@pytest.mark.promise("G3")
@pytest.mark.parametrize("way", ["removed", "cleaned", "replayed"])
def test_a_cascade_goes_on_when_its_parent_lives_again(q: Bench, way: str) -> None:
    q.enqueue("p", priority=1)
    ids = [f"{n:04}" for n in range(MAX_CHILDREN_A_STEP + 5)]
    q.enqueue(*ids[:MAX_BATCH], depends_on=("p",))
    q.enqueue(*ids[MAX_BATCH:], depends_on=("p",), delay_ms=10)
    finish(q, "p", "fail")
    if way == "removed":
        q.remove("p")
    elif way == "cleaned":
        assert q.backend.clean(q.queue, TERMINAL, 0, 1) == ["p"]
    else:
        q.replay("p")
    q.enqueue("p", priority=1)
    q.enqueue("new", depends_on=("p",))
    assert [r.status for r in q.sweep()] == ["cascaded"]
    assert len(q.ids("failed", limit=1000)) == len(ids)
    assert q.states("p", "new") == ["waiting", "blocked"], "its new life has children of its own"
    assert finish(q, "p") == (("new", "waiting"),)


@pytest.mark.promise("G3")
def test_a_long_chain_fails_to_its_end(q: Bench) -> None:
    length = MAX_CHILDREN_A_STEP + 50
    q.enqueue("0")
    for start in range(1, length + 1, MAX_BATCH):
        stop = min(start + MAX_BATCH, length + 1)
        q.enqueue(*(q.new(f"{n}", depends_on=(f"{n - 1}",)) for n in range(start, stop)))
    assert len(finish(q, "0", "fail")) == MAX_CHILDREN_A_STEP
    assert [len(r.dependants) for r in q.sweep()] == [50]
    assert q.sweep() == []
    assert q.counts() == {"failed": length + 1}


# Manual retry


@pytest.mark.promise("G3", "A2")
def test_a_child_that_failed_with_its_parent_stays_failed_until_it_is_retried_itself(q: Bench) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    q.enqueue("grandchild", depends_on=("j",))
    finish(q, "p", "fail")
    assert q.states("j", "grandchild") == ["failed", "failed"]
    assert q.replay("p") == ["retried"]
    assert q.states("j", "grandchild") == ["failed", "failed"]
    answers = q.backend.retry(q.queue, ["j", "grandchild"])
    assert [(a.status, a.state) for a in answers] == [("retried", "blocked"), ("retried", "blocked")]
    assert finish(q, "p") == (("j", "waiting"),)
    assert finish(q, "j") == (("grandchild", "waiting"),)


@pytest.mark.promise("G3", "A2")
@pytest.mark.parametrize("parent", ["failed", "removed"])
def test_a_retried_child_does_not_ask_about_parents_that_ended_badly(q: Bench, parent: str) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    if parent == "failed":
        finish(q, "p", "fail")
    else:
        q.remove("p")
    assert q.state() == "failed"
    [answer] = q.backend.retry(q.queue, ["j"])
    assert (answer.status, answer.state) == ("retried", "waiting")
    assert q.settle(q.hold("j"), "complete") == "applied"


@pytest.mark.promise("G3", "A2")
def test_a_child_retried_onto_a_retried_parent_is_settled_by_its_next_ending(q: Bench) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    finish(q, "p", "fail")
    q.replay("p", "j")
    assert finish(q, "p", "fail") == (("j", "failed"),)


@pytest.mark.promise("G3", "A3")
def test_a_removed_child_is_forgotten_by_its_parent(q: Bench) -> None:
    q.enqueue("p", priority=1)
    q.enqueue("gone", "reborn", depends_on=("p",))
    q.remove("gone", "reborn")
    q.enqueue("reborn", delay_ms=50)
    assert finish(q, "p", "fail") == ()
    assert q.states("gone", "reborn") == [None, "delayed"]


@pytest.mark.promise("G3", "X1")
def test_a_cancelled_child_stays_cancelled(q: Bench) -> None:
    q.enqueue("p")
    q.enqueue("j", depends_on=("p",))
    q.cancel("j")
    assert finish(q, "p") == ()
    assert q.state() == "cancelled"


# Races


@pytest.mark.promise("G3")
@pytest.mark.parametrize("outcome", ["complete", "fail", "remove", "cancel"])
def test_a_child_that_comes_while_its_parent_ends(harness: Harness, q: Bench, outcome: str) -> None:
    """Whoever wins: the child is eligible, or settled, or refused, and never left behind."""
    ids = [f"{n}" for n in range(40)]
    q.enqueue(*ids)
    if outcome != "cancel":
        q.claim(len(ids), token="t")
    harness.race(("each", outcome, q.queue, "t", ids), ("each", "enqueue_child", q.queue, "", ids))
    children = q.states(*(f"{id}-child" for id in ids))
    expected = {"complete": {"waiting"}, "fail": {"failed"}, "remove": {"failed", None}, "cancel": {"failed"}}
    assert set(children) <= expected[outcome]
    assert q.counts().get("blocked") is None


@pytest.mark.promise("G3", "C9")
def test_parents_that_end_at_once_release_their_child_once(harness: Harness, q: Bench) -> None:
    lefts, rights = [f"l{n}" for n in range(30)], [f"r{n}" for n in range(30)]
    q.enqueue(*lefts, *rights)
    q.claim(60, token="t")
    q.enqueue(*(q.new(f"j{n}", depends_on=(lefts[n], rights[n])) for n in range(30)))
    harness.race(("each", "complete", q.queue, "t", lefts), ("each", "complete", q.queue, "t", rights))
    assert q.counts() == {"completed": 60, "waiting": 30}
    assert sorted(q.take(60)) == sorted(f"j{n}" for n in range(30))
