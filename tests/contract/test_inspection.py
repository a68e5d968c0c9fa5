"""What can be seen of a queue (A5), and the public facts about a backend (S1, S3)."""

from __future__ import annotations

import random

import pytest

from mayflymq.backends.base import COUNT_CAP, MAX_PRIORITIES_SEEN, MAX_WORKERS_SHOWN
from mayflymq.model import Capabilities, Counts, QueueInfo, Severity, State, WorkerInfo

from .bench import STALE, Bench, pages
from .harness import Harness


@pytest.mark.promise("A5")
def test_get_answers_in_order_with_none_for_the_unknown(q: Bench) -> None:
    q.enqueue("a", "b")
    assert [job and job.id for job in q.backend.get(q.queue, ["b", "nobody", "a", "b"])] == [
        "b",
        None,
        "a",
        "b",
    ]
    assert q.on(q.backend, f"{q.queue}-2").find("a") is None


@pytest.mark.promise("A5")
def test_results_errors_and_progress_stay_inspectable(q: Bench) -> None:
    claim = q.active("done")
    q.beat(claim, progress=0.75)
    q.settle(claim, "complete")
    q.ended("dead", "fail")
    q.clock.advance(10**10)
    done, dead = q.get("done"), q.get("dead")
    assert (done.result, done.progress) == (b'{"answer":42}', 0.75)
    assert dead.error is not None
    assert (dead.error.type, dead.error.message, dead.error.traceback) == (
        "Boom",
        "it went wrong",
        "Traceback: boom",
    )
    assert dead.first_error == dead.error


@pytest.mark.promise("A5", "O2")
def test_each_state_is_listed_in_its_own_order(q: Bench) -> None:
    q.enqueue(*"abcdef")
    claims = {claimed.job.id: claimed.claim for claimed in q.claim(6)}
    for id, outcome in (("c", "fail"), ("a", "fail"), ("b", "fail")):
        q.clock.advance(1)
        q.settle(claims[id], outcome)
    q.beat(claims["d"], 50_000)
    q.beat(claims["f"], 40_000)
    q.enqueue("w2", "w3", priority=2)
    q.enqueue("w1", priority=1)
    q.enqueue("late", delay_ms=20)
    q.enqueue("soon", delay_ms=10)
    q.enqueue("z", "y", depends_on=("late",), priority=1)
    q.enqueue("x", depends_on=("late",), priority=0)
    assert {state: q.ids(state, limit=2) for state in State} == {
        "waiting": ["w1", "w2", "w3"],
        "delayed": ["soon", "late"],
        "blocked": ["z", "y", "x"],
        "active": ["e", "f", "d"],
        "completed": [],
        "failed": ["c", "a", "b"],
        "expired": [],
        "cancelled": [],
    }


@pytest.mark.promise("A5")
@pytest.mark.parametrize("state", list(State))
def test_a_cursor_stays_usable_while_jobs_come_and_go(q: Bench, state: State) -> None:
    """Whatever was there from the first page to the last is listed exactly once."""
    parent = {"depends_on": ("parent",)} if state is State.BLOCKED else {}
    delay = {"delay_ms": 10_000} if state is State.DELAYED else {}
    outcomes = {"completed": "complete", "failed": "fail", "expired": "expire", "cancelled": "cancel"}
    if parent:
        q.enqueue("parent")

    def bring(*ids: str) -> None:
        for id in ids:
            q.enqueue(id, priority=5, **parent, **delay)
        if state is State.ACTIVE or state.terminal:
            for claimed in q.claim(len(ids)):
                if state.terminal:
                    q.settle(claimed.claim, outcomes[state])
        q.clock.advance(1)

    ids = [f"{n:02}" for n in range(30)]
    bring(*ids[:15])
    bring(*ids[15:])
    listed: list[str] = []
    cursor: str | None = None
    rng = random.Random(5)
    gone: set[str] = set()
    for turn in range(100):
        page = q.backend.list_jobs(q.queue, state, cursor, 4)
        listed += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
        # The job that the cursor stands on goes too.
        leaving = {listed[-1], rng.choice(ids)} - gone
        gone |= leaving
        q.remove(*leaving)
        if turn < 5:
            bring(f"new-{turn}")
    assert len(listed) == len(set(listed))
    assert set(ids) - gone <= set(listed)
    assert [id for id in listed if id in set(ids)] == sorted(id for id in listed if id in set(ids))


@pytest.mark.promise("A5")
def test_a_page_that_takes_the_last_job_ends_the_list(q: Bench) -> None:
    q.enqueue(*"abcd")
    page = q.backend.list_jobs(q.queue, State.WAITING, None, 4)
    assert ([job.id for job in page.jobs], page.cursor) == (list("abcd"), None)
    page = q.backend.list_jobs(q.queue, State.WAITING, None, 3)
    assert page.cursor is not None
    assert [job.id for job in q.backend.list_jobs(q.queue, State.WAITING, page.cursor, 3).jobs] == ["d"]
    assert q.backend.list_jobs(q.queue, State.FAILED).jobs == []
    assert q.backend.list_jobs(f"{q.queue}-2", State.WAITING).jobs == []


@pytest.mark.promise("A5")
def test_a_queue_at_a_glance(q: Bench) -> None:
    zero = QueueInfo(q.queue, False, Counts(), 0, (), None, None)
    assert q.info() == zero
    q.enqueue(*"abcdefgh")
    claims = [claimed.claim for claimed in q.claim(3, worker="w1")] + [
        claimed.claim for claimed in q.claim(2, worker="w2")
    ]
    q.clock.advance(100)
    for claim, outcome in zip(claims, ("complete", "fail"), strict=False):
        q.settle(claim, outcome)
    q.beat(claims[4])
    q.enqueue("late", delay_ms=10)
    q.enqueue("child", depends_on=("late",))
    q.clock.advance(5)
    assert q.info() == QueueInfo(
        name=q.queue,
        paused=False,
        counts=Counts(waiting=3, delayed=1, blocked=1, active=3, completed=1, failed=1),
        dead_letters=1,
        workers=(WorkerInfo("w1", 1, 105), WorkerInfo("w2", 2, 105)),
        oldest_waiting_age_ms=105,
        oldest_heartbeat_age_ms=105,
    )
    for claim in claims[2:]:
        q.beat(claim)
    q.clock.advance(STALE - 1)
    assert q.info().oldest_heartbeat_age_ms == STALE - 1


@pytest.mark.promise("A5")
def test_the_oldest_wait_is_that_of_a_priority_that_starves(q: Bench) -> None:
    q.enqueue("starving", priority=9)
    q.clock.advance(50)
    for n in range(3):
        q.enqueue(f"urgent-{n}", priority=1)
        q.clock.advance(10)
    assert q.info().oldest_waiting_age_ms == 80
    q.remove("starving")
    assert q.info().oldest_waiting_age_ms == 30
    q.take(1)
    assert q.info().oldest_waiting_age_ms == 20
    q.take(2)
    assert q.info().oldest_waiting_age_ms is None


@pytest.mark.promise("A5")
def test_a_job_waits_since_it_is_due_or_was_retried(q: Bench) -> None:
    q.enqueue("later", delay_ms=100)
    q.clock.advance(130)
    assert q.info().oldest_waiting_age_ms is None, "nobody promoted it yet"
    q.promote()
    assert q.info().oldest_waiting_age_ms == 30
    q.remove("later")
    q.ended("failed", "fail")
    q.clock.advance(1000)
    q.replay("failed")
    q.clock.advance(7)
    assert q.info().oldest_waiting_age_ms == 7


@pytest.mark.promise("A5")
def test_the_oldest_wait_is_looked_for_in_the_first_priorities(q: Bench) -> None:
    q.enqueue("last", priority=MAX_PRIORITIES_SEEN)
    q.clock.advance(1)
    q.enqueue(*(q.new(f"{n}", priority=n) for n in range(1, MAX_PRIORITIES_SEEN)))
    assert q.info().oldest_waiting_age_ms == 1
    q.enqueue("first", priority=-1)
    assert q.info().oldest_waiting_age_ms == 0


@pytest.mark.promise("A5")
def test_the_workers_shown_are_those_longest_without_a_heartbeat(q: Bench) -> None:
    q.enqueue(*(f"{n:03}" for n in range(MAX_WORKERS_SHOWN + 3)))
    for n in range(MAX_WORKERS_SHOWN + 3):
        q.claim(worker=f"w{n:03}")
        q.clock.advance(1)
    assert [worker.worker for worker in q.info().workers] == [f"w{n:03}" for n in range(MAX_WORKERS_SHOWN)]
    assert q.info().workers[0] == WorkerInfo("w000", 1, MAX_WORKERS_SHOWN + 3)


@pytest.mark.promise("A5")
def test_queues_are_listed_by_name_and_each_is_alone(q: Bench) -> None:
    names = [f"{q.queue}-{suffix}" for suffix in ("b", "a", "B.c", "0_1")]
    for name in names:
        q.on(q.backend, name).enqueue("same-id")
    mine = [info for info in q.backend.queues() if info.name.startswith(q.queue)]
    assert [info.name for info in mine] == sorted(names)
    assert {info.counts for info in mine} == {Counts(waiting=1)}
    asked = [names[0], f"{q.queue}-unknown", names[1]]
    assert [info.name for info in q.backend.queues(asked)] == asked
    q.on(q.backend, names[0]).remove("same-id")
    assert q.on(q.backend, names[1]).state("same-id") == "waiting"


@pytest.mark.promise("A5")
def test_counts_stop_at_the_cap_unless_exact(q: Bench) -> None:
    for start in range(0, COUNT_CAP + 1, 1000):
        q.enqueue(*(q.new(f"{n}", payload=b"") for n in range(start, min(start + 1000, COUNT_CAP + 1))))
    assert q.info().counts.waiting == COUNT_CAP
    assert q.info(exact=True).counts.waiting == COUNT_CAP + 1
    q.backend.drop_queue(q.queue, force=True)


@pytest.mark.promise("S1", "S3")
def test_a_url_is_all_that_names_a_backend(harness: Harness, q: Bench) -> None:
    capabilities = q.backend.capabilities
    assert isinstance(capabilities, Capabilities)
    assert harness.open().capabilities == capabilities
    for name in (
        "durable",
        "shared",
        "strict_priority",
        "dedup",
        "dependencies",
        "schedules",
        "broker_store",
    ):
        assert type(getattr(capabilities, name)) is bool
    assert capabilities.ordering
    assert capabilities.clock


@pytest.mark.promise("S1")
def test_migrating_again_and_checking_change_nothing(q: Bench, other: Bench) -> None:
    q.ended("done", "complete")
    q.active("held")
    before = {state: pages(q.backend, q.queue, state, 10) for state in State}
    assert q.backend.migrate() == other.backend.migrate()
    findings = q.backend.check()
    assert all(finding.severity is not Severity.ERROR and finding.message for finding in findings), findings
    assert {state: pages(q.backend, q.queue, state, 10) for state in State} == before


@pytest.mark.promise("D1", "S1")
def test_a_closed_handle_opens_again_by_itself(q: Bench, harness: Harness) -> None:
    q.enqueue("a")
    claim = q.hold("a")
    q.backend.close()
    q.backend.close()
    assert q.settle(claim, "complete") == "applied"
    later = harness.open()
    later.close()
    assert q.on(later).state("a") == "completed"
