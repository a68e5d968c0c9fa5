"""A process that dies between any two writes of a call loses nothing and leaves nothing half done.

Each call is killed at each of its fault points (faultpoints.py). Afterwards a fresh handle finds the store as
it was before the call, or as it is after it; the call can be sent again; and whatever is there can run to its
end. Memory dies with its process and has no part in this, by `capabilities.durable`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from mayflymq.backends import base
from mayflymq.model import Dedup, Settle, Settlement, State
from tests.contract.bench import OUTCOMES, Bench, check_invariants, pages

from .faultpoints import FaultHarness, small_steps
from .situations import KEYS, SITUATIONS

BACKENDS = ("sqlite", "redis")
READS = {
    "capabilities", "get", "list_jobs", "queues", "check", "close", "list_schedules", "due_schedules",
}  # fmt: skip
MONTH = 30 * 24 * 3_600_000


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, FaultHarness]]:
    harnesses: dict[str, FaultHarness] = {}
    with small_steps():
        yield harnesses
    for each in harnesses.values():
        each.close()


@pytest.fixture(params=BACKENDS)
def harness(request: pytest.FixtureRequest, started: dict[str, FaultHarness]) -> FaultHarness:
    name: str = request.param
    if name not in started:
        started[name] = importlib.import_module(f"tests.faults.fault_{name}").FAULTS()
    return started[name]


def test_memory_has_no_part_in_this() -> None:
    assert not base.open_backend("memory://x").capabilities.durable


def test_every_method_that_writes_is_crashed() -> None:
    methods = {
        name
        for protocol in (base.Backend, base.ScheduleStore, base.BrokerStore)
        for name in vars(protocol)
        if not name.startswith("_")
    }
    assert {name.partition(":")[0] for name in SITUATIONS} == methods - READS


def test_every_statement_that_writes_is_crashed(harness: FaultHarness) -> None:
    assert {name for situation in SITUATIONS for name in harness.run(situation, None).wrote} == harness.writes


def observe(q: Bench) -> dict[str, Any]:
    """All that the protocol shows of the queue without changing it; deliveries are taken by `finish`."""
    info = q.info(exact=True)
    return {
        "info": (info.paused, info.counts, info.dead_letters, info.workers),
        "jobs": {str(state): pages(q.backend, q.queue, state, 1000) for state in State},
        "keys": {key: q.backend.dedup_holder(q.queue, key) for key in KEYS},
        # A store that is made anew has other revisions.
        "schedules": [replace(each, revision=0) for each in q.backend.list_schedules(q.queue, None, 1000)],
    }


def finish(q: Bench) -> list[tuple[str, str]]:
    """Runs everything to its end and uses all ids and keys again; returns what a publisher got before."""
    unpublished = q.backend.take_unpublished(q.queue, 0, 1000)
    q.backend.set_paused(q.queue, False)
    left = {"no job yet"}
    for _ in range(20):
        q.clock.advance(MONTH)
        q.sweep(1000)
        q.promote(1000)
        claimed = q.claim(1000, token=f"finish-{q.clock.now}")
        done = q.backend.settle([Settle(each.claim, OUTCOMES["complete"]) for each in claimed])
        assert {each.status for each in done.settled} <= {Settlement.APPLIED}
        left = {name for name in q.counts() if not State(name).terminal}
        if not left:
            break
    else:
        raise AssertionError(f"something stays {left} for ever")
    check_invariants(q.backend, q.queue)
    ids = [job.id for state in State for job in pages(q.backend, q.queue, state, 1000)]
    assert q.remove(*ids) == [True] * len(ids)
    assert q.counts() == {}
    jobs = [q.new(id) for id in ids] + [q.new(f"key-{key}", dedup=Dedup(key)) for key in KEYS]
    assert {answer.status for answer in q.enqueue(*jobs)} == {"created"}
    assert len(q.claim(1000)) == len(jobs)
    return sorted((each.job_id, str(each.target)) for each in unpublished)


def statuses(method: str, answer: Any) -> list[str]:
    match method:
        case "enqueue":
            return [str(each.status) for each in answer]
        case "settle":
            return [str(each.status) for each in answer.settled]
        case _:
            return []


@pytest.mark.promise("D1", "D4", "D6", "D7", "D8", "C5", "G2", "G3", "G6", "P1", "R4", "A3")
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_call_that_is_killed_anywhere(harness: FaultHarness, name: str) -> None:
    situation = SITUATIONS[name]
    method = name.partition(":")[0]

    assert harness.run(name, 1).killed
    before = observe(harness.bench())
    answer = harness.run(name, None).answer
    once = observe(harness.bench())
    once_unpublished = finish(harness.bench())
    assert harness.run(name, None).answer == answer
    again = situation.call(harness.bench())
    twice = observe(harness.bench())
    twice_unpublished = finish(harness.bench())
    assert not {"applied", "created", "replaced"} & set(statuses(method, again)), "D6, D7"
    if method in ("claim", "claim_delivery", "heartbeat"):
        assert repr(again) == answer, "D8"

    checked: dict[object, bool] = {}
    contents: object = None
    for point in count(1):
        run = harness.run(name, point)
        if not run.killed:
            assert run.answer == answer
            break
        contents = harness.contents()
        if contents in checked:  # it stands as after an earlier fault point, to the last byte
            continue
        q = harness.bench()
        if not situation.spoil:
            check_invariants(q.backend, q.queue)
        found = observe(q)
        assert found in (before, once) or name in harness.in_steps, f"half done at fault point {point}"
        checked[contents] = found == once
        situation.call(q)
        after = observe(q)
        allowed = [end for start, end in ((before, once), (once, twice)) if found == start] or [once]
        assert after in allowed, f"sent again after fault point {point}"
        unpublished = once_unpublished if after == once else twice_unpublished
        assert finish(q) == unpublished, f"deliveries after fault point {point}"
    assert checked[contents], "the last point is behind everything"
