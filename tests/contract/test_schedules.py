"""Schedules through the facade and maintenance, on every backend: what fires, when, and how often (promise
G6)."""

from __future__ import annotations

import threading
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from mayflymq import maintenance
from mayflymq.backends.base import Backend
from mayflymq.maintenance import fire_schedules, promote
from mayflymq.model import State
from mayflymq.queue import Queue

from .harness import Harness

pytestmark = pytest.mark.promise("G6")

MINUTE = 60_000
ZURICH = ZoneInfo("Europe/Zurich")


@pytest.fixture(autouse=True)
def on_the_minute(harness: Harness) -> None:
    harness.clock.now -= harness.clock.now % (24 * 60 * MINUTE)


@pytest.fixture
def queue(harness: Harness, backend: Backend) -> Queue:
    return Queue(harness.queue, backend)


def slots(queue: Queue) -> list[int]:
    """When the jobs that schedules made were due, in milliseconds."""
    jobs = queue.jobs(State.WAITING, limit=1000).jobs
    return sorted(int(job.id.rpartition("@")[2]) * 1000 for job in jobs)


def test_each_slot_fires_once_and_not_before_its_time(harness: Harness, queue: Queue) -> None:
    queue.schedule("tick", "task", every=60)
    start = harness.clock.now
    assert promote(queue.backend, [queue.name]).fired == 0
    harness.clock.advance(MINUTE - 1)
    assert promote(queue.backend, [queue.name]).fired == 0
    harness.clock.advance(1)
    assert promote(queue.backend, [queue.name]).fired == 1
    assert promote(queue.backend, [queue.name]).fired == 0
    harness.clock.advance(MINUTE)
    assert promote(queue.backend, [queue.name]).fired == 1
    assert slots(queue) == [start + MINUTE, start + 2 * MINUTE]


def test_the_job_is_what_the_schedule_says(harness: Harness, queue: Queue) -> None:
    queue.schedule("tick", "task", ["a"], {"b": 1}, every=60, priority=-3, ttl=9, timeout=8, max_retries=7)
    promote(queue.backend, [queue.name])
    harness.clock.advance(MINUTE)
    promote(queue.backend, [queue.name])
    (job,) = queue.jobs(State.WAITING).jobs
    assert (job.task, job.priority, job.ttl_ms, job.timeout_ms, job.max_retries) == (
        "task",
        -3,
        9000,
        8000,
        7,
    )
    assert b'"a"' in job.payload
    assert job.id == f"tick@{harness.clock.now // 1000}"


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [("skip", []), ("one", [10]), ("all", list(range(2, 11)))],
    ids=["skip", "one", "all"],
)
def test_missed_slots_follow_the_rule(
    harness: Harness, queue: Queue, catch_up: str, fired: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SLOTS_A_CALL", 4)  # so that catching up takes several steps
    queue.schedule("ten", "task", cron="*/10 * * * *", catch_up=catch_up)
    start = harness.clock.now
    promote(queue.backend, [queue.name])
    harness.clock.advance(10 * MINUTE)
    promote(queue.backend, [queue.name])
    harness.clock.advance(96 * MINUTE)  # the latest slot is six minutes old: missed
    promote(queue.backend, [queue.name])
    assert [(slot - start) // (10 * MINUTE) for slot in slots(queue)] == [1, *fired]


def test_a_slot_is_missed_after_five_minutes_or_its_period(harness: Harness, queue: Queue) -> None:
    queue.schedule("hourly", "task", cron="0 * * * *")
    start = harness.clock.now
    promote(queue.backend, [queue.name])
    harness.clock.advance(60 * MINUTE + 5 * MINUTE)
    assert promote(queue.backend, [queue.name]).fired == 1
    harness.clock.advance(60 * MINUTE + 1)
    assert promote(queue.backend, [queue.name]).fired == 0
    assert slots(queue) == [start + 60 * MINUTE]


def test_one_makes_up_for_the_latest_of_many(harness: Harness, queue: Queue) -> None:
    queue.schedule("hourly", "task", cron="0 * * * *", catch_up="one")
    start = harness.clock.now
    promote(queue.backend, [queue.name])
    harness.clock.advance(10 * 60 * MINUTE + 30 * MINUTE)
    assert promote(queue.backend, [queue.name]).fired == 1
    assert slots(queue) == [start + 600 * MINUTE]


def test_overlapping_promoters_fire_each_slot_once(harness: Harness, queue: Queue) -> None:
    handles = [harness.open() for _ in range(4)]
    for name in "abcd":
        queue.schedule(name, "task", every=60, catch_up="all")
    promote(queue.backend, [queue.name])
    harness.clock.advance(5 * MINUTE)
    gate = threading.Barrier(len(handles))
    made: list[int] = []

    def promoter(handle: Backend) -> None:
        gate.wait()
        made.append(promote(handle, [queue.name]).fired)

    threads = [threading.Thread(target=promoter, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(made) == 20
    assert len(slots(queue)) == 20


def test_a_crash_between_firing_and_advancing_loses_and_doubles_nothing(
    harness: Harness, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.schedule("tick", "task", every=60, catch_up="all")
    promote(queue.backend, [queue.name])
    harness.clock.advance(MINUTE)

    class Killed(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "_advance", crash)
        with pytest.raises(Killed):
            fire_schedules(queue)
    assert len(slots(queue)) == 1
    harness.clock.advance(MINUTE)
    promote(harness.open(), [queue.name])
    assert len(slots(queue)) == 2


def test_changing_a_schedule_fires_no_slot_twice(harness: Harness, queue: Queue) -> None:
    queue.schedule("tick", "task", every=60)
    promote(queue.backend, [queue.name])
    harness.clock.advance(MINUTE)
    promote(queue.backend, [queue.name])
    (first,) = queue.jobs(State.WAITING).jobs
    queue.remove(first.id)  # even where its job is gone
    queue.schedule("tick", "other", every=30)
    promote(queue.backend, [queue.name])
    assert slots(queue) == []
    harness.clock.advance(MINUTE // 2)
    promote(queue.backend, [queue.name])
    assert [job.task for job in queue.jobs(State.WAITING).jobs] == ["other"]


def test_writing_a_schedule_again_as_it_is_loses_no_slot(harness: Harness, queue: Queue) -> None:
    for _ in range(5):  # a deploy between the slot's time and the promoter's tick, each time
        queue.schedule("tick", "task", ["v2"], every=60)
        promote(queue.backend, [queue.name])
        harness.clock.advance(MINUTE)
        queue.schedule("tick", "task", ["v3"], every=60)
        assert promote(queue.backend, [queue.name]).fired == 1
    assert len(slots(queue)) == 5
    assert b"v3" in queue.jobs(State.WAITING).jobs[0].payload


def test_paused_schedules_rest_and_resume_without_catching_up(harness: Harness, queue: Queue) -> None:
    queue.schedule("tick", "task", every=60, catch_up="all")
    promote(queue.backend, [queue.name])
    assert queue.pause_schedule("tick")
    harness.clock.advance(10 * MINUTE)
    assert promote(queue.backend, [queue.name]).fired == 0
    assert queue.resume_schedule("tick")
    promote(queue.backend, [queue.name])
    assert slots(queue) == []
    harness.clock.advance(MINUTE)
    assert promote(queue.backend, [queue.name]).fired == 1
    assert not queue.pause_schedule("unknown")
    assert not queue.resume_schedule("unknown")
    assert queue.unschedule("tick")
    assert not queue.unschedule("tick")


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        # The hour from 2 to 3 is left out: a named time fires right after it, `*` leaves it out.
        ("30 2 * * *", "2026-03-29", ["03:00+0200"]),
        ("30 * * * *", "2026-03-29", ["00:30+0100", "01:30+0100", "03:30+0200", "04:30+0200"]),
        # The hour from 2 to 3 comes twice: a named time fires the first time, `*` both times.
        ("30 2 * * *", "2026-10-25", ["02:30+0200"]),
        (
            "30 * * * *",
            "2026-10-25",
            ["00:30+0200", "01:30+0200", "02:30+0200", "02:30+0100", "03:30+0100", "04:30+0100"],
        ),
    ],
)
def test_changes_of_daylight_saving_time(
    harness: Harness, queue: Queue, cron: str, day: str, expected: list[str]
) -> None:
    midnight = datetime.fromisoformat(f"{day}T00:00:00").replace(tzinfo=ZURICH)
    harness.clock.now = round(midnight.timestamp()) * 1000
    queue.schedule("tick", "task", cron=cron, timezone="Europe/Zurich")
    for _ in range(6 * 60):
        promote(queue.backend, [queue.name])
        harness.clock.advance(MINUTE)
    fired = [datetime.fromtimestamp(slot / 1000, ZURICH).strftime("%H:%M%z") for slot in slots(queue)]
    assert [time for time in fired if time < "05:00"] == expected


def test_a_schedule_that_cannot_be_planned_hides_no_other(
    harness: Harness, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SCHEDULES_A_CALL", 1)
    queue.schedule("bad", "task", cron="0 0 * * *", timezone="Europe/Zurich")
    queue.schedule("good", "task", every=60)
    with monkeypatch.context() as patch:
        patch.setattr("zoneinfo.ZoneInfo", _no_zones)  # this host lacks the zone that another one knew
        report = promote(queue.backend, [queue.name])
        assert report.errors == 1
        harness.clock.advance(MINUTE)
        assert promote(queue.backend, [queue.name]).fired == 1
    assert [job.id.partition("@")[0] for job in queue.jobs(State.WAITING).jobs] == ["good"]


def _no_zones(name: str) -> ZoneInfo:
    raise LookupError(name)
