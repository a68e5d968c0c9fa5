"""What a store keeps of schedules. Nothing fires one here: that is `maintenance.fire_schedules`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mayflymq.errors import InvalidJob
from mayflymq.model import MAX_SCHEDULE_ID, Backoff, CatchUp, Schedule, StoredSchedule

from .bench import Bench
from .harness import Harness


@pytest.fixture(autouse=True)
def _schedules(q: Bench) -> None:
    if not q.backend.capabilities.schedules:
        pytest.skip("this backend keeps no schedules")


def schedule(q: Bench, id: str = "s", **options: Any) -> Schedule:
    timing = {} if "cron" in options else {"every_ms": 60_000}
    return Schedule(**{"id": id, "queue": q.queue, "task": "t", "payload": b"{}", **timing, **options})


def put(q: Bench, *ids: str, **options: Any) -> None:
    for id in ids:
        q.backend.put_schedule(schedule(q, id, **options))


def find(q: Bench, id: str = "s") -> StoredSchedule:
    [found] = [stored for stored in listed(q) if stored.schedule.id == id]
    return found


def listed(q: Bench, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
    return q.backend.list_schedules(q.queue, after, limit)


def ids(found: list[StoredSchedule]) -> list[str]:
    return [stored.schedule.id for stored in found]


def due(q: Bench, limit: int = 100) -> list[str]:
    return ids(q.backend.due_schedules(q.queue, limit).schedules)


def advance(
    q: Bench,
    slot: int | None,
    next_slot: int,
    last_slot: int | None = None,
    revision: int | None = None,
    id: str = "s",
) -> bool:
    """By the revision of now, unless another is given."""
    if revision is None:
        revision = q.revision(id)
    return q.backend.advance_schedule(q.queue, id, revision, slot, next_slot, last_slot)


def pause(q: Bench, paused: bool, id: str = "s") -> bool:
    return q.backend.pause_schedule(q.queue, id, paused)


@pytest.mark.promise("G6")
def test_a_new_schedule_is_kept_as_it_was_put(q: Bench, other: Bench) -> None:
    timed = schedule(
        q,
        "cron \N{BUTTERFLY}",
        cron="*/5 * * * *",
        timezone="Europe/Vienna",
        catch_up=CatchUp.ALL,
        priority=-3,
        ttl_ms=1000,
        timeout_ms=2000,
        max_retries=9,
        backoff=Backoff.steps(1, 5, jitter=0.5),
        payload=b'{"args":[1]}',
    )
    q.backend.put_schedule(timed)
    q.backend.put_schedule(schedule(q))
    now = q.clock.now
    expected = [
        StoredSchedule(kept, q.revision(kept.id), now, paused=False, next_slot=None, last_slot=None)
        for kept in (timed, schedule(q))
    ]
    assert listed(q) == listed(other) == expected
    assert [info.name for info in q.backend.queues() if info.name == q.queue] == [q.queue], (
        "it made the queue"
    )
    assert q.counts() == {}


@pytest.mark.promise("G6")
@pytest.mark.parametrize("paused", [False, True])
def test_a_changed_schedule_is_planned_anew(q: Bench, paused: bool) -> None:
    put(q, "s", "beside")
    assert advance(q, None, q.clock.now + 10)
    assert advance(q, q.clock.now + 10, q.clock.now + 20, q.clock.now + 10)
    assert pause(q, paused)
    before, beside = find(q), find(q, "beside")
    now = q.clock.advance(5)
    changed = schedule(q, every_ms=5000, task="other", payload=b'{"n":2}', priority=1)
    q.backend.put_schedule(changed)
    second = q.revision("s")
    assert find(q) == dataclasses.replace(
        before, schedule=changed, revision=second, changed_at=now, next_slot=None
    ), "whether it is paused and the last slot stay"
    assert find(q) == dataclasses.replace(find(q), paused=paused, last_slot=before.last_slot)
    assert find(q, "beside") == beside
    q.backend.put_schedule(changed)
    assert len({before.revision, second, q.revision("s")}) == 3, "putting the same again is a change too"


@pytest.mark.promise("G6")
def test_from_a_period_to_a_cron_expression_and_back(q: Bench) -> None:
    for kept in (schedule(q), schedule(q, cron="0 3 * * *"), schedule(q)):
        q.backend.put_schedule(kept)
        assert find(q).schedule == kept


@pytest.mark.promise("G6")
def test_a_removed_schedule_is_gone_and_its_jobs_stay(q: Bench) -> None:
    put(q, "s", "beside")
    q.enqueue(schedule(q).job(60_000))
    assert q.backend.remove_schedule(q.queue, "s")
    assert not q.backend.remove_schedule(q.queue, "s")
    assert ids(listed(q)) == due(q) == ["beside"]
    assert (advance(q, None, 1), pause(q, True)) == (False, False)
    assert q.ids("waiting") == ["s@60"]
    put(q, "s")
    assert find(q).last_slot is None, "nothing of the old one is left"


@pytest.mark.promise("G6")
def test_a_paused_schedule_is_not_due_and_is_planned_anew_when_resumed(q: Bench) -> None:
    put(q, "s")
    slot = q.clock.now + 10
    assert advance(q, None, slot, 7)
    before = find(q)
    q.clock.advance(10)
    assert due(q) == ["s"]
    for _ in range(2):  # repeating it changes nothing
        assert pause(q, True)
        assert find(q) == dataclasses.replace(before, paused=True)
        assert due(q) == []
        q.clock.advance(10)
    resumed = q.clock.now
    for _ in range(2):
        assert pause(q, False)
        assert find(q) == dataclasses.replace(before, next_slot=None, changed_at=resumed)
        q.clock.advance(10)
    assert due(q) == ["s"]
    assert not advance(q, slot, slot + 10), "a promoter that saw it before the pause"
    assert advance(q, None, q.clock.now + 10)
    assert pause(q, False)
    assert find(q).next_slot == q.clock.now + 10, "it was not paused"
    assert not pause(q, True, "unknown")


@pytest.mark.promise("G6", "A5")
def test_the_list_goes_by_id_behind_a_name(q: Bench) -> None:
    names = ["Z", "a", "a-1", "b", "\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{BUTTERFLY}"]
    put(q, *reversed(names))
    assert ids(listed(q)) == names
    assert ids(listed(q, "a", 2)) == ["a-1", "b"]
    assert ids(listed(q, "aa")) == names[3:], "a name that stands nowhere"
    pages, after = [], None
    while page := ids(listed(q, after, 4)):
        pages.append(page)
        after = page[-1]
    assert pages == [names[:4], names[4:]]
    assert pause(q, True, "b")
    assert ids(listed(q)) == names, "paused ones too"
    assert listed(q.on(q.backend, f"{q.queue}-beside")) == []


@pytest.mark.promise("G6")
def test_due_are_the_unplanned_first_then_the_earliest(q: Bench) -> None:
    put(q, "late", "early", "coming", "paused", "unplanned", "b", "a")
    slots = {"late": 20, "early": 10, "coming": 31, "paused": 5, "b": 15, "a": 15}
    start = q.clock.now
    for id, ms in slots.items():
        assert advance(q, None, start + ms, id=id)
    pause(q, True, "paused")
    assert due(q) == ["unplanned"]
    q.clock.advance(9)
    assert due(q) == ["unplanned"]
    q.clock.advance(1)
    assert due(q) == ["unplanned", "early"]
    q.clock.advance(20)
    assert due(q) == ["unplanned", "early", "a", "b", "late"]
    assert due(q, 2) == ["unplanned", "early"]
    found = q.backend.due_schedules(q.queue, 3)
    assert found.now == q.clock.now, "the store's now"
    assert found.schedules == [find(q, id) for id in ("unplanned", "early", "a")]
    assert due(q.on(q.backend, f"{q.queue}-beside")) == []


@pytest.mark.promise("G6")
def test_a_slot_is_advanced_from_once(q: Bench, other: Bench) -> None:
    put(q, "s")
    before = find(q)
    assert advance(q, None, 1000)
    assert find(q) == dataclasses.replace(before, next_slot=1000), "no last slot was given"
    assert [advance(other, None, 1000), advance(other, 999, 2000), advance(q, 1000, 2000, revision=0)] == [
        False
    ] * 3
    assert find(q) == dataclasses.replace(before, next_slot=1000)
    assert advance(other, 1000, 2000, 1000)
    assert find(q) == dataclasses.replace(before, next_slot=2000, last_slot=1000)
    assert not advance(q, 1000, 2000, 1000), "sent again, or by another promoter"
    assert advance(q, 2000, 9000)
    assert find(q) == dataclasses.replace(before, next_slot=9000, last_slot=1000)


@pytest.mark.promise("G6")
def test_a_change_in_between_stops_the_advance(q: Bench, other: Bench) -> None:
    put(q, "s")
    assert advance(q, None, 1000)
    seen = q.revision("s")
    put(other, "s")
    before = find(q)
    assert before.next_slot == 1000, "its rule is as it was"
    assert not advance(q, 1000, 2000, 1000, seen), "as it stands now, but by the revision that was seen"
    assert find(q) == before
    assert advance(q, 1000, 2000, 1000)


@pytest.mark.promise("G6")
@pytest.mark.parametrize("how", ["removed", "dropped"])
def test_an_advance_planned_for_a_removed_schedule_stops_before_the_next_of_its_id(
    q: Bench, other: Bench, how: str
) -> None:
    revisions = set()
    for life in range(4):
        put(q, "s")
        for _ in range(life):
            put(q, "s")
        seen = q.revision("s")
        if how == "removed":
            assert other.backend.remove_schedule(q.queue, "s")
        else:
            assert other.backend.drop_queue(q.queue, False).dropped
        assert not advance(q, None, 1000, revision=seen), "there is none"
        put(other, "s")
        before = find(q)
        revisions |= {seen, before.revision}
        assert not advance(q, None, 1000, 500, seen), "it stands as the old one did"
        assert find(q) == before
        put(q, "s")
        assert not advance(q, None, 1000, 500, seen)
    assert len(revisions) == 8
    assert advance(q, None, 1000, 500)


@pytest.mark.promise("G6")
def test_promoters_at_once_move_each_slot_once(harness: Harness, q: Bench) -> None:
    put(q, "s")
    slots = [None, *range(1000, 31_000, 1000)]
    won: list[Any] = harness.race(
        *(("advance_slots", q.queue, "s", q.revision("s"), slots) for _ in range(3))
    )
    assert sorted(slot or 0 for part in won for slot in part) == [0, *range(1000, 30_000, 1000)]
    assert (find(q).next_slot, find(q).last_slot) == (30_000, 29_000)


@pytest.mark.promise("G6", "A6")
def test_dropping_the_queue_drops_its_schedules(q: Bench, other: Bench) -> None:
    beside = q.on(q.backend, f"{q.queue}-beside")
    put(q, "a", "b")
    put(beside, "a")
    assert q.backend.drop_queue(q.queue, False).dropped
    assert (listed(other), due(other)) == ([], [])
    assert ids(listed(beside)) == ["a"]
    put(q, "a")
    assert ids(listed(q)) == ["a"]


@pytest.mark.promise("G6", "C7")
def test_schedules_outlive_a_restart(harness: Harness, q: Bench) -> None:
    if not q.backend.capabilities.durable:
        pytest.skip("its schedules die with the process")
    put(q, "s")
    advance(q, None, 1000, 7)
    before = find(q)
    harness.restart()
    assert find(q.on(harness.open())) == before


@pytest.mark.promise("G6")
def test_what_cannot_be_a_schedule_is_refused(q: Bench) -> None:
    for options in (
        {"every_ms": None},
        {"every_ms": 60_000, "cron": "* * * * *"},
        {"every_ms": 999},
        {"every_ms": 0},
        {"every_ms": -1000},
        {"every_ms": 1500},
        {"every_ms": 1000.0},
        {"id": ""},
        {"id": "x" * (MAX_SCHEDULE_ID + 1)},
        {"id": "tab\t"},
        {"task": ""},
        {"queue": "no queue"},
        {"payload": "text"},
        {"priority": 2**31},
    ):
        with pytest.raises(InvalidJob):
            schedule(q, **options)
    put(q, "x" * MAX_SCHEDULE_ID, every_ms=1000)
    assert len(listed(q)) == 1


@pytest.mark.parametrize("limit", [0, 1001])
def test_limits_are_checked(q: Bench, limit: int) -> None:
    with pytest.raises(InvalidJob, match="limit"):
        listed(q, None, limit)
    with pytest.raises(InvalidJob, match="limit"):
        due(q, limit)


def test_an_unknown_queue_has_no_schedules(q: Bench) -> None:
    assert (listed(q), due(q)) == ([], [])
    assert (advance(q, None, 1), pause(q, True), q.backend.remove_schedule(q.queue, "s")) == (False,) * 3
    assert q.queue not in [info.name for info in q.backend.queues()], "asking makes no queue"
