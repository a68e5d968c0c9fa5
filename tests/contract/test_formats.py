"""Old and new code on one store, as while a new version is rolled out.

The code of another version is this code with another FORMAT, which each module looks up when it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mayflymq.errors import CorruptRecord
from mayflymq.model import FORMAT, TERMINAL, Dedup, ParentPolicy, Schedule, Severity, State

from .bench import OUTCOMES, STALE, Bench
from .conftest import BACKENDS
from .harness import Harness

LATER = 1000

# The records of memory die with the code that wrote them.
pytestmark = pytest.mark.parametrize(
    "harness", [name for name in BACKENDS if name != "memory"], indirect=True
)


@pytest.fixture(autouse=True)
def _spoiled(harness: Harness, q: Bench) -> None:
    harness.spoiled.add(q.queue)  # counts include what a list leaves out


@contextmanager
def newer_code() -> Iterator[None]:
    """The next version of the library, which writes and reads the next format."""
    knowing = [
        module
        for name, module in sys.modules.items()
        if name.startswith("mayflymq.") and getattr(module, "FORMAT", None) == FORMAT
    ]
    for module in knowing:
        module.FORMAT = FORMAT + 1  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in knowing:
            module.FORMAT = FORMAT  # type: ignore[attr-defined]


def held(q: Bench, outcome: str | None = None) -> None:
    """`new` and `old` are claimed together, and settled if so asked."""
    q.enqueue("new")
    claims = [q.hold("new", token="t-new")]
    q.enqueue("old")
    claims.append(q.hold("old", token="t-old"))
    for claim in claims if outcome else ():
        assert q.settle(claim, outcome or "") == "applied"


# Each with a newer `new` in front of an `old` of ours.


def waiting(q: Bench) -> None:
    q.enqueue("new", "old")


def delayed(q: Bench) -> None:
    q.enqueue("new", "old", delay_ms=LATER)


PLACES: dict[str, tuple[Callable[[Bench], object], str]] = {
    "waiting": (waiting, "waiting"),
    "due": (delayed, "delayed"),
    "stale": (held, "active"),
    "completed": (lambda q: held(q, "complete"), "completed"),
    "failed": (lambda q: held(q, "fail"), "failed"),
    "expired": (lambda q: held(q, "expire"), "expired"),
    "cancelled": (lambda q: held(q, "cancel"), "cancelled"),
}


def put_in_place(q: Bench, harness: Harness, place: str) -> str:
    """Arranges the place; `new` then turns out to be of a newer format."""
    arrange, state = PLACES[place]
    arrange(q)
    harness.plant_newer(q.queue, "new")
    q.clock.advance(STALE)
    return state


@pytest.mark.promise("C8", "D1")
@pytest.mark.parametrize("place", PLACES)
def test_a_newer_record_is_left_alone_and_hides_no_other(harness: Harness, q: Bench, place: str) -> None:
    state = put_in_place(q, harness, place)
    with newer_code():
        before = q.get("new")
    assert q.ids(state, 1) == ["old"], "left out of the list, also where it would fill a page"
    assert [job.job_id for job in q.sweep(1)] == (["old"] if place == "stale" else [])
    assert q.promote(1) == (["old"] if place == "due" else [])
    assert q.take(1) == (["old"] if place in ("waiting", "due", "stale") else [])
    assert q.backend.clean(q.queue, TERMINAL, 0, 1) == (["old"] if State(state).terminal else [])
    assert q.backend.drain(q.queue, True, 10).job_ids == ()
    with newer_code():
        assert q.get("new") == before
        assert (before.state, before.format) == (state, FORMAT + 1)


@pytest.mark.promise("C8", "A5")
def test_a_newer_record_is_named_by_get_and_reported_by_check(q: Bench) -> None:
    q.enqueue("old")
    assert {found.severity for found in q.backend.check()} == {Severity.OK}
    with newer_code():
        q.enqueue("new", priority=0)
        assert {found.severity for found in q.backend.check()} == {Severity.OK}
    named = f"job new in {q.queue} .*format {FORMAT + 1}, .*update mayflymq"
    with pytest.raises(CorruptRecord, match=named):
        q.get("new")
    assert q.get("old").id == "old"
    assert q.take(2) == ["old"], "a store need not look for it before it stands in the way"
    [warning] = [found for found in q.backend.check() if found.severity is not Severity.OK]
    assert warning.subject == "format"
    assert "newer version" in warning.message


@pytest.mark.promise("D6", "G1", "G2")
def test_a_newer_record_still_holds_its_id_and_its_key(q: Bench) -> None:
    with newer_code():
        q.enqueue("new", dedup=Dedup("key"))
    assert [q.enqueue("new")[0].status, q.enqueue("j", dedup=Dedup("key"))[0].status] == [
        "duplicate_id",
        "deduplicated",
    ]
    assert q.remove("new") == [True], "an operator may still remove it"
    assert q.enqueue("j", dedup=Dedup("key"))[0].status == "created"


@pytest.mark.promise("G3", "D1")
def test_a_parents_ending_reaches_newer_children(q: Bench) -> None:
    parents = [q.active("a"), q.active("b")]
    with newer_code():
        q.enqueue("after-a", depends_on=("a",))
        q.enqueue("after-b", depends_on=("b",), on_parent_failure=ParentPolicy.RUN)
        q.enqueue("failing", depends_on=("b",))
    assert [q.settle(parents[0], "complete"), q.settle(parents[1], "fail")] == ["applied"] * 2
    assert q.take(5) == []
    with newer_code():
        assert q.states("after-a", "after-b", "failing") == ["waiting", "waiting", "failed"]
        assert sorted(q.take(5)) == ["after-a", "after-b"]


@pytest.mark.promise("R4", "C13")
def test_a_newer_jobs_delivery_gives_old_code_nothing_and_stays(harness: Harness, q: Bench) -> None:
    if not q.backend.capabilities.broker_store:
        pytest.skip("this backend keeps no deliveries for a broker")
    q = q.on(harness.open(broker=True))
    with newer_code():
        q.enqueue("new")
    [delivery] = q.backend.take_unpublished(q.queue, 0, 10)
    assert q.backend.claim_delivery(q.request(), "new", delivery.token) == "gone"
    with newer_code():
        claimed: Any = q.backend.claim_delivery(q.request(), "new", delivery.token)
        assert claimed.job.id == "new"


@pytest.mark.promise("G6")
def test_a_newer_schedule_is_left_alone_and_reported(q: Bench) -> None:
    def put(id: str) -> None:
        q.backend.put_schedule(Schedule(id=id, queue=q.queue, task="t", payload=b"{}", every_ms=1000))

    def ids() -> tuple[list[str], list[str]]:
        found = q.backend.list_schedules(q.queue), q.backend.due_schedules(q.queue, 1).schedules
        return [stored.schedule.id for stored in found[0]], [stored.schedule.id for stored in found[1]]

    put("old")
    with newer_code():
        put("new")
        assert ids() == (["new", "old"], ["new"])
    assert ids() == (["old"], ["old"])
    assert [found.subject for found in q.backend.check() if found.severity is not Severity.OK] == ["format"]


# The previous format, read by newer code


STEPS: dict[str, tuple[Callable[[Bench], Any], Callable[[Bench, Any], object], str | None]] = {
    "claim": (lambda q: q.enqueue("j"), lambda q, _: q.hold("j"), "active"),
    "claim-due": (
        lambda q: [q.enqueue("j", delay_ms=LATER), q.clock.advance(LATER)],
        lambda q, _: q.hold("j"),
        "active",
    ),
    "heartbeat": (lambda q: q.active(), lambda q, claim: q.beat(claim, progress=0.5), "active"),
    "sweep": (lambda q: [q.active(), q.clock.advance(STALE)], lambda q, _: q.sweep(), "waiting"),
    "promote": (
        lambda q: [q.enqueue("j", delay_ms=LATER), q.clock.advance(LATER)],
        lambda q, _: q.promote(),
        "waiting",
    ),
    "cancel": (lambda q: q.enqueue("j"), lambda q, _: q.cancel("j"), "cancelled"),
    "mark": (lambda q: q.active(), lambda q, _: q.cancel("j"), "active"),
    "replay": (lambda q: q.ended("j", "fail"), lambda q, _: q.replay("j"), "waiting"),
    "remove": (lambda q: q.active(), lambda q, _: q.remove("j"), None),
    "drain": (lambda q: q.enqueue("j"), lambda q, _: q.backend.drain(q.queue, False, 1), None),
    "clean": (
        lambda q: q.ended("j", "fail"),
        lambda q, _: q.backend.clean(q.queue, TERMINAL, 0, 1),
        None,
    ),
    "parent": (
        lambda q: [q.active("p"), q.enqueue("j", depends_on=("p",))][0],
        lambda q, claim: q.settle(claim, "complete"),
        "waiting",
    ),
}
ENDS = ("completed", "delayed", "waiting", "delayed", "waiting", "failed", "expired", "cancelled", "waiting")


def settling(outcome: str) -> Callable[[Bench, Any], object]:
    return lambda q, claim: q.settle(claim, outcome)


STEPS |= {
    outcome: (lambda q: q.active(), settling(outcome), state)
    for outcome, state in zip(OUTCOMES, ENDS, strict=True)
}
"""How `j` gets to its start by the previous code, the step that newer code makes, and where it leads."""


@pytest.mark.promise("D4", "D1")
@pytest.mark.parametrize("step", STEPS)
def test_a_record_of_the_previous_format_goes_all_ways(q: Bench, step: str) -> None:
    arrange, act, state = STEPS[step]
    context = arrange(q)
    with newer_code():
        assert {found.severity for found in q.backend.check()} == {Severity.OK}
        act(q, context)
        assert q.state() == state
        if state:
            assert q.ids(state) == ["j"]
            assert q.get().format == FORMAT
    assert q.state() == state, "and the previous code still reads it"


@pytest.mark.promise("D6")
def test_newer_code_writes_its_own_format(q: Bench) -> None:
    q.enqueue("old")
    with newer_code():
        assert q.enqueue("old")[0].status == "duplicate_id"
        q.enqueue("new", "child", depends_on=("old",))
        assert [q.get(id).format for id in ("old", "new", "child")] == [FORMAT, FORMAT + 1, FORMAT + 1]
        assert q.take(1) == ["old"]
