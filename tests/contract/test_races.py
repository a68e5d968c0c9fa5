"""Actors that really play at the same time: processes where the store is shared by processes, else threads.

Each test says who may win and asserts that the others lost: nothing is done twice, nothing is left out.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mayflymq.model import Beat, Complete, Settle, State

from .bench import STALE, Bench, pages
from .harness import Harness, eager_threads

IDS = [f"{n:03}" for n in range(60)]


def flat(lists: list[Any]) -> list[Any]:
    return [item for part in lists for item in part]


@pytest.fixture
def held(q: Bench) -> list[str]:
    """Sixty jobs under the token `t`, each stale one millisecond after the other."""
    q.enqueue(*IDS)
    for claimed in q.claim(len(IDS), token="t"):
        q.beat(claimed.claim, STALE + int(claimed.job.id))
    return IDS


@pytest.mark.promise("D4", "C4", "O2")
def test_eight_claimers_get_each_job_once(harness: Harness, q: Bench) -> None:
    ids = [f"{n}" for n in range(200)]
    q.enqueue(*ids[:150])
    q.enqueue(*ids[150:], delay_ms=1)
    q.clock.advance(1)
    got = harness.race(*(("claim_all", q.queue, f"w{n}", 1 + n % 3) for n in range(8)))
    assert sorted(flat(got)) == sorted(ids)
    owners = {job.id: job.worker for job in pages(q.backend, q.queue, State.ACTIVE, 1000)}
    assert owners == {id: f"w{n}" for n, part in enumerate(got) for id in part}
    assert {job.deliveries for job in q.backend.get(q.queue, ids) if job} == {1}


@pytest.mark.promise("D4", "D1")
def test_workers_finish_everything_once(harness: Harness, q: Bench) -> None:
    q.enqueue(*IDS)
    q.enqueue(*(q.new(f"{id}-child", depends_on=(id,)) for id in IDS))
    done = flat(harness.race(*(("work_all", q.queue, f"w{n}", 2) for n in range(4))))
    done += flat(harness.race(("work_all", q.queue, "last", 50)))
    assert sorted(done) == sorted([*IDS, *(f"{id}-child" for id in IDS)])
    assert q.counts() == {"completed": 120}


@pytest.mark.promise("C9", "C5", "C12")
@pytest.mark.parametrize("max_stalls", [3, 0], ids=["released", "failed"])
def test_two_sweepers_release_each_job_once(
    harness: Harness, q: Bench, held: list[str], max_stalls: int
) -> None:
    q.clock.advance(STALE + 1000)
    swept = flat(harness.race(*(("sweep_all", q.queue, 3, max_stalls) for _ in range(2))))
    status = "released" if max_stalls else "failed"
    assert sorted(swept) == [[id, status] for id in held]
    assert {job.stalls for job in q.backend.get(q.queue, held) if job} == {1}


@pytest.mark.promise("P2", "P1")
def test_two_promoters_move_each_job_once(harness: Harness, q: Bench) -> None:
    q.enqueue("parent")
    q.enqueue(*IDS, delay_ms=5)
    q.enqueue(*(f"child-{id}" for id in IDS), delay_ms=5, depends_on=("parent",))
    q.clock.advance(5)
    promoted = flat(harness.race(*(("promote_all", q.queue, 1) for _ in range(2))))
    assert sorted(promoted) == sorted([*IDS, *(f"child-{id}" for id in IDS)])
    assert q.counts() == {"waiting": 61, "blocked": 60}


@pytest.mark.promise("P1", "P2")
def test_promoters_and_claimers_share_the_due_jobs(harness: Harness, q: Bench) -> None:
    q.enqueue(*IDS, delay_ms=5)
    q.clock.advance(5)
    calls = [("claim_all", q.queue, "w1", 2), ("promote_all", q.queue, 2), ("claim_all", q.queue, "w2", 1)]
    first, promoted, second = harness.race(*calls)
    assert len(promoted) == len(set(promoted))
    assert sorted([*flat([first, second]), *q.take(100)]) == IDS


@pytest.mark.promise("C5", "C4", "D4")
@pytest.mark.parametrize(
    ("verb", "state"), [("complete", "completed"), ("fail", "failed"), ("release", "waiting")]
)
def test_a_late_settle_against_a_sweep(
    harness: Harness, q: Bench, held: list[str], verb: str, state: str
) -> None:
    q.clock.advance(STALE + 1000)
    answers, swept = harness.race(("each", verb, q.queue, "t", held), ("sweep_all", q.queue, 1, 3))
    released = {id for id, _ in swept}
    for id, answer in zip(held, answers, strict=True):
        assert answer == ("lost" if id in released else "applied"), id
    jobs = q.backend.get(q.queue, held)
    assert [job and job.state for job in jobs] == ["waiting" if id in released else state for id in held]
    assert [job and job.stalls for job in jobs] == [int(id in released) for id in held]


@pytest.mark.promise("C5", "C2")
def test_a_heartbeat_against_a_sweep(harness: Harness, q: Bench, held: list[str]) -> None:
    q.clock.advance(STALE + 1000)
    answers, swept = harness.race(("each", "beat", q.queue, "t", held), ("sweep_all", q.queue, 1, 3))
    released = {id for id, _ in swept}
    assert answers == ["lost" if id in released else "held" for id in held]
    assert q.states(*held) == ["waiting" if id in released else "active" for id in held]


@pytest.mark.promise("C5", "A3")
def test_a_removal_against_a_sweep(harness: Harness, q: Bench, held: list[str]) -> None:
    q.clock.advance(STALE + 1000)
    answers, _ = harness.race(("each", "remove", q.queue, "", held), ("sweep_all", q.queue, 1, 3))
    assert answers == [True] * len(held)
    assert q.counts() == {}, "no removed job was revived"


@pytest.mark.promise("C5", "C9")
def test_a_claim_against_a_sweep(harness: Harness, q: Bench, held: list[str]) -> None:
    q.clock.advance(STALE + 1000)
    got, swept = harness.race(("claim_all", q.queue, "w", 2), ("sweep_all", q.queue, 2, 3))
    assert sorted(id for id, _ in swept) == held
    assert sorted([*got, *q.take(100)]) == held
    assert {job.deliveries for job in q.backend.get(q.queue, held) if job} == {2}


@pytest.mark.promise("X3", "X2")
@pytest.mark.parametrize("verb", ["complete", "retry", "fail", "release"])
def test_a_cancellation_against_a_settle(harness: Harness, q: Bench, held: list[str], verb: str) -> None:
    states = {"complete": "completed", "retry": "delayed", "fail": "failed", "release": "waiting"}
    settled, cancelled = harness.race(
        ("each", verb, q.queue, "t", held), ("each", "cancel", q.queue, "", held)
    )
    now = q.states(*held)
    for answers in zip(settled, cancelled, now, strict=True):
        queued = states[verb] in ("delayed", "waiting")
        assert answers in {
            ("cancelled", "requested", "cancelled"),
            ("applied", "cancelled", "cancelled") if queued else ("applied", "terminal", states[verb]),
        }


@pytest.mark.promise("X1", "C4")
def test_a_cancellation_against_a_claim(harness: Harness, q: Bench) -> None:
    q.enqueue(*IDS)
    got, answers = harness.race(("claim_all", q.queue, "w", 1), ("each", "cancel", q.queue, "", IDS))
    assert answers == ["requested" if id in got else "cancelled" for id in IDS]
    assert q.states(*IDS) == ["active" if id in got else "cancelled" for id in IDS]


@pytest.mark.promise("A2")
def test_two_operators_retry_each_dead_job_once(harness: Harness, q: Bench, held: list[str]) -> None:
    for claimed in q.claim(token="t", limit=100):
        assert q.settle(claimed.claim, "fail") == "applied"
    answers = harness.race(*(("each", "replay", q.queue, "", held) for _ in range(2)))
    assert all(Counter(pair) == {"retried": 1, "not_dead": 1} for pair in zip(*answers, strict=True))
    assert {job.replays for job in q.backend.get(q.queue, held) if job} == {1}


@pytest.mark.promise("D6", "G1")
def test_two_producers_of_one_id_make_one_job(harness: Harness, q: Bench) -> None:
    answers = harness.race(*(("each", "enqueue", q.queue, "", IDS) for _ in range(2)))
    assert all(Counter(pair) == {"created": 1, "duplicate_id": 1} for pair in zip(*answers, strict=True))
    assert sorted(q.ids("waiting")) == IDS


@pytest.mark.promise("D8")
def test_a_claim_sent_twice_at_once_gives_one_answer(harness: Harness, q: Bench) -> None:
    q.enqueue(*IDS)
    first, second = harness.race(*(("claim_by_tokens", q.queue, "same", 20, 3) for _ in range(2)))
    assert first == second
    assert q.counts() == {"active": 60}


def test_one_handle_serves_many_threads(q: Bench) -> None:
    """Every method at once on one handle; each thread has jobs of its own, so that every answer is known."""
    start = threading.Barrier(8)

    def life(name: int) -> list[str]:
        mine = q.on(q.backend)
        start.wait(30)
        seen = []
        for turn in range(6):
            id = f"{name}-{turn}"
            seen.append(str(mine.enqueue(id)[0].status))
            seen += mine.cancel(f"nobody-{id}")
            for claimed in mine.claim(2, token=f"t-{id}"):
                assert mine.backend.heartbeat([Beat(claimed.claim, STALE, 0.5)]) == ["held"]
                mine.get(claimed.job.id)
                answer = mine.backend.settle([Settle(claimed.claim, Complete(b"1"))]).settled[0]
                assert answer.status == "applied"
            mine.sweep()
            mine.promote()
            mine.info()
            mine.ids("completed", limit=7)
            mine.backend.dedup_holder(mine.queue, id)
            seen += [str(found) for found in mine.remove(f"nobody-{id}")]
            mine.replay(id)
            mine.backend.check()
            if turn == 3:
                mine.backend.close()
        return seen

    with eager_threads(), ThreadPoolExecutor(8) as pool:
        lives = list(pool.map(life, range(8)))
    assert lives == [["created", "unknown", "False"] * 6] * 8
    while rest := q.claim(10):
        q.backend.settle([Settle(each.claim, Complete()) for each in rest])
    assert q.counts() == {"completed": 48}
