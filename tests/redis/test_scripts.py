"""The scripts: they are found on any server, touch one slot, and are exact to the last digit and byte."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import redis

from mayflymq.backends.redis import keys
from mayflymq.backends.redis.backend import RedisBackend
from mayflymq.backends.redis.connection import script
from mayflymq.errors import CorruptRecord
from mayflymq.model import (
    MAX_BATCH,
    MAX_TIME,
    TERMINAL,
    Backoff,
    Complete,
    Dedup,
    DedupMode,
    ParentPolicy,
    Settle,
    State,
)
from tests.contract.bench import OUTCOMES, STALE, Bench, check_invariants
from tests.contract.harness_redis import spoil
from tests.faults.faultpoints import QUEUE
from tests.faults.situations import schedule

from .proxy import Proxy
from .store import CALLS, REDIS, SCRIPTS, Store, method_of

LOWEST, HIGHEST = -(2**31), 2**31 - 1
ODD_IDS = (
    "a b",
    "a|b",
    "a:b",
    "{a}b{",
    "}",
    "é" * 255,
    "\U0001f41d" * 255,
    "%41@PARENT@%1",
    "'\"\\/",
    "*?[a]",
    "0000000000000001",
    "-1",
    " ",
)


# Where scripts come from, and what they touch


@pytest.mark.usefixtures("_small_steps")
def test_every_script_is_used_and_only_scripts_change_jobs(store: Store) -> None:
    """And everything that they touch is of the queue."""
    used: set[str] = set()
    outside: set[str] = set()
    registries = f"{store.prefix}:queues", f"{store.prefix}:broker"
    loaded = {store.client.script_load(text): name for name, text in _texts().items()}
    for situation in CALLS.values():
        store.arrange(situation)
        q = store.bench(broker=True)
        with store.watched() as seen:
            situation.call(q)
        for by_script, words in seen:
            if words[0] in ("EVALSHA", "EVAL"):
                assert words[0] == "EVALSHA", "the server knew them all"
                used.add(loaded[words[1]])
                prefix = store.key("") if loaded[words[1]] != "registry" else f"{store.prefix}:queues"
                assert all(word.startswith(prefix) for word in words[3 : 3 + int(words[2])])
            elif by_script and words[0] != "TIME" and not words[1].startswith(store.key("")):
                outside.add(" ".join(words[:2]))
            elif words[0] in ("HGET", "HSET", "HKEYS", "GET", "SET", "EXISTS") and not by_script:
                assert words[1] in (*registries, store.key("meta"))
    q = store.bench()
    store.empty()
    q.enqueue("j")
    assert q.backend.drop_queue(QUEUE, False).dropped
    used.add("registry")
    assert used == set(SCRIPTS)
    assert outside <= {f"HGET {store.prefix}:queues", f"HDEL {store.prefix}:queues"}


def _texts() -> dict[str, str]:
    return {name: script(name)[0] for name in SCRIPTS}


@pytest.mark.usefixtures("_small_steps")
@pytest.mark.parametrize("name", CALLS)
def test_scripts_may_be_flushed_before_any_call(store: Store, name: str) -> None:
    situation = CALLS[name]
    store.arrange(situation)
    expected = repr(situation.call(store.bench(broker=True)))
    store.arrange(situation)
    q = store.bench(broker=True)
    q.info()
    store.client.script_flush()
    assert repr(situation.call(q)) == expected


def test_a_flushed_script_costs_one_more_round_trip(store: Store, proxy: Proxy) -> None:
    q = store.bench(port=proxy.port)
    q.enqueue("a", "b")
    store.client.script_flush()
    with proxy.counting() as flushed:
        assert q.take() == ["a"]
    with proxy.counting() as known:
        assert q.take() == ["b"]
    assert (flushed[0], known[0]) == (2, 1)


def test_all_fixed_keys_share_the_slot_of_their_queue(store: Store) -> None:
    with redis.Redis.from_url(store.server.url) as client:
        assert not client.info("cluster")["cluster_enabled"]
    for queue in ("q", "Q.x-_9", "0"):
        names = [*keys.fixed("p", queue), f"{keys.prefix_of('p', queue)}job:{{x}}"]
        slots = {redis.crc.key_slot(name if isinstance(name, bytes) else name.encode()) for name in names}
        assert len(slots) == 1
    assert len(set(keys.fixed("p", "q"))) == len(keys.FIXED)


def test_scripts_are_short_and_unpack_only_short_lists() -> None:
    for name, text in _texts().items():
        assert len(text) < 40_000, name
        unpacked = set(re.findall(r"[^.]unpack\(([^()]+)", text))
        assert unpacked <= {"cjson.decode", "redis.call", "beside", "queue[head]", "ASKED", "asked", "each"}
        assert not ("unpack(ASKED)" in text and "ipairs(ASKED)" in text), f"{name}: a batch is long"


# Numbers


@pytest.mark.promise("O2", "O3", backends=REDIS)
def test_priorities_and_places_are_exact_at_the_ends_of_their_ranges(store: Store, q: Bench) -> None:
    q.enqueue("warm")
    q.take()
    for start in (10**9, 2**31, 2**32, 10**15, MAX_TIME - 100):
        store.client.hset(store.key("meta"), "last", start)
        q.enqueue("last", priority=HIGHEST)
        q.enqueue("first", priority=LOWEST)
        q.enqueue("low", priority=LOWEST + 1)
        q.enqueue("c", "b", "a")
        assert q.ids("waiting") == ["first", "low", "c", "b", "a", "last"]
        assert [job.priority for job in q.backend.list_jobs(QUEUE, State.WAITING).jobs] == [
            *(LOWEST, LOWEST + 1, 5, 5, 5, HIGHEST)
        ]
        [held, *_] = q.claim(2)
        assert q.settle(held.claim, "release") == "applied"
        assert q.take(9) == ["first", "c", "b", "a", "last"], "a released job keeps its place"
        q.remove(*("first", "low", "c", "b", "a", "last"))
    check_invariants(q.backend, QUEUE)


@pytest.mark.promise("O4", backends=REDIS)
def test_times_are_exact_up_to_the_last_one(q: Bench) -> None:
    q.enqueue(q.new("run-at", run_at=MAX_TIME), q.new("before", run_at=MAX_TIME - 1))
    q.enqueue(q.new("delay", delay_ms=MAX_TIME))
    assert [q.get(id).run_at for id in ("run-at", "before", "delay")] == [MAX_TIME, MAX_TIME - 1, MAX_TIME]
    assert q.ids("delayed") == ["before", "run-at", "delay"]
    assert q.ids("delayed", limit=1) == ["before", "run-at", "delay"], "cursors hold such numbers"
    assert q.promote() == []
    q.enqueue(q.new("ttl", ttl_ms=MAX_TIME, timeout_ms=MAX_TIME, max_retries=HIGHEST))
    [claimed] = q.claim(stale_after_ms=MAX_TIME)
    job = q.get("ttl")
    assert (job.ttl_ms, job.timeout_ms, job.max_retries, job.stale_at) == (
        *(MAX_TIME, MAX_TIME, HIGHEST),
        MAX_TIME,
    )
    assert q.beat(claimed.claim, stale_after_ms=MAX_TIME) == "held"
    assert q.get("ttl").stale_at == MAX_TIME
    assert q.sweep() == []
    q.clock.now = MAX_TIME - 1
    assert q.promote() == ["before"]
    q.clock.now = MAX_TIME
    assert q.promote() == ["run-at", "delay"]
    assert q.swept() == {"ttl": "released"}


def test_a_window_up_to_the_end_of_time(q: Bench) -> None:
    q.enqueue("j", dedup=Dedup("k", DedupMode.THROTTLE, MAX_TIME))
    q.clock.advance(10**12)
    assert q.enqueue("l", dedup=Dedup("k"))[0].status == "deduplicated"


@pytest.mark.parametrize("progress", [0.0, 1e-300, 0.1 + 0.2, 1.0])
def test_progress_is_the_same_number(q: Bench, progress: float) -> None:
    claim = q.active()
    assert q.beat(claim, progress=progress) == "held"
    assert q.get().progress == progress


# Lists, bytes, texts


def test_an_empty_list_stays_a_list(q: Bench) -> None:
    q.enqueue("j")
    assert q.get().depends_on == ()
    [claimed] = q.claim()
    result = q.backend.settle([Settle(claimed.claim, Complete(b"[]"))])
    assert (result.settled[0].dependants, result.claimed) == ((), [])
    assert q.get().result == b"[]"
    assert q.backend.enqueue([]) == q.backend.heartbeat([]) == q.backend.cancel(QUEUE, []) == []
    assert q.backend.get(QUEUE, []) == q.backend.remove(QUEUE, []) == q.backend.retry(QUEUE, []) == []


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1023, 1024, 1025, 200_000])
def test_payloads_and_results_are_opaque_bytes(q: Bench, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    q.enqueue(q.new("j", payload=data))
    [claimed] = q.claim()
    assert claimed.job.payload == data
    assert q.settle(claimed.claim, Complete(data)) == "applied"
    assert (q.get().payload, q.get().result) == (data, data)


def test_an_empty_result_is_none_of_the_other_kind(q: Bench) -> None:
    q.ended("empty", Complete(b""))
    q.ended("none", Complete())
    assert (q.get("empty").result, q.get("none").result) == (b"", None)


@pytest.mark.promise("G1", "G2", "G3", "D8", backends=REDIS)
@pytest.mark.parametrize("id", ODD_IDS)
def test_ids_and_keys_of_every_character(q: Bench, id: str) -> None:
    dedup = Dedup(id)
    backoff = Backoff((1, 2), factor=1.5, cap_ms=MAX_TIME)
    q.enqueue(q.new(id, dedup=dedup, task=id, backoff=backoff))
    q.enqueue("after", "other", depends_on=(id,))
    q.enqueue("run", depends_on=(id, id), on_parent_failure=ParentPolicy.RUN)
    assert (q.get("after").depends_on, q.get(id).dedup, q.get(id).backoff) == ((id,), dedup, backoff)
    [answer] = q.enqueue("second", dedup=dedup)
    assert (answer.status, answer.holder) == ("deduplicated", id)
    assert q.enqueue(q.new(id))[0].status == "duplicate_id"
    [claimed] = q.claim(token=id, worker=id)
    [again] = q.claim(token=id, worker=id)
    assert claimed == again
    assert (again.job.worker, again.job.claim_token) == (id, id)
    settled = q.backend.settle([Settle(claimed.claim, OUTCOMES["fail"])]).settled[0]
    assert {each.job_id: each.state for each in settled.dependants} == {
        "after": "failed",
        "other": "failed",
        "run": "waiting",
    }
    error = q.get("after").error
    assert error is not None
    assert error.message == f"parent {id} ended failed"
    assert q.replay(id) == ["retried"]
    assert q.backend.dedup_holder(QUEUE, id) == id
    assert q.cancel(id) == ["cancelled"]
    assert q.backend.dedup_holder(QUEUE, id) is None
    assert q.backend.clean(QUEUE, {State.CANCELLED}, 0, 10) == [id]
    check_invariants(q.backend, QUEUE)


@pytest.mark.promise("G2", backends=REDIS)
def test_a_window_of_a_key_with_a_bar(q: Bench) -> None:
    q.enqueue("h|1", dedup=Dedup("|a|1|", DedupMode.THROTTLE, 100))
    assert q.enqueue("j", dedup=Dedup("|a|1|"))[0].holder == "h|1"
    q.clock.advance(100)
    assert q.enqueue("j", dedup=Dedup("|a|1|"))[0].status == "created"


# Members that no transition left there


@pytest.mark.promise("X4", "C11", backends=REDIS)
def test_a_claim_skips_and_cleans_stale_members(store: Store, q: Bench) -> None:
    q.ended("completed")
    q.enqueue("cancelled", "later", delay_ms=1000)
    q.cancel("cancelled")
    q.active("active")
    q.enqueue("good", "next")
    planted = {f"{0:016d}{id}": -5 for id in ("unknown", "cancelled", "completed", "later", "active", "good")}
    store.client.zadd(store.key("waiting"), {**planted, "": -6, "short": -6})  # type: ignore[arg-type]
    store.client.zadd(store.key("delayed"), {f"{0:016d}{id}": 1 for id in ("unknown", "next")})
    before = q.backend.get(QUEUE, ["completed", "cancelled", "later", "active"])
    assert q.take(1) == ["good"]
    assert q.take(5) == ["next"]
    assert q.backend.get(QUEUE, ["completed", "cancelled", "later", "active"]) == before
    assert store.client.zcard(store.key("waiting")) == 0
    assert q.info().oldest_waiting_age_ms is None
    check_invariants(q.backend, QUEUE)


@pytest.mark.promise("C11", "C5", "C8", backends=REDIS)
def test_a_sweep_and_a_promoter_clean_stale_members(store: Store, q: Bench) -> None:
    q.enqueue("waiting")
    q.ended("completed", priority=1)
    for zset in ("active", "delayed"):
        store.client.zadd(store.key(zset), {f"{0:016d}{id}": 1 for id in ("unknown", "waiting", "completed")})
    assert (q.sweep(), q.promote()) == ([], [])
    assert [store.client.zcard(store.key(zset)) for zset in ("active", "delayed")] == [0, 0]
    check_invariants(q.backend, QUEUE)


def test_a_claim_that_meets_many_stale_members_is_bounded(store: Store, q: Bench) -> None:
    q.enqueue("j")
    stale = {f"{n:016d}gone-{n}": -1 for n in range(25_000)}
    store.client.zadd(store.key("waiting"), stale)  # type: ignore[arg-type]
    left = 25_001
    for _ in range(3):
        taken = q.take(1)
        found = store.client.zcard(store.key("waiting"))
        assert left - found <= 11_000
        left = found
    assert (taken, left) == (["j"], 0)


# Records that make no sense


@pytest.mark.promise("C8", backends=REDIS)
def test_a_foreign_value_at_a_jobs_key_breaks_no_other_job(store: Store, q: Bench) -> None:
    states = ("waiting", "delayed", "active", "completed")
    q.ended("completed", priority=-9)
    q.active("active", priority=-9)
    q.enqueue("delayed", delay_ms=1)
    q.enqueue("waiting")
    q.enqueue("good")
    for id in (*states, "new"):
        store.client.delete(store.key(f"job:{id}"))
        store.client.rpush(store.key(f"job:{id}"), "foreign")
    q.clock.advance(STALE)
    answers = q.enqueue("new", "other", q.new("child", depends_on=("waiting",)))
    assert [answer.status for answer in answers] == ["refused", "created", "refused"]
    assert "something else" in str(answers[0].reason)
    with pytest.raises(CorruptRecord, match="job waiting"):
        q.get("waiting")
    assert [q.ids(state) for state in states] == [["good", "other"], [], [], []]
    assert q.info().counts.active == 1
    assert (q.promote(), q.sweep()) == ([], [])
    assert q.replay("completed") == q.cancel("waiting") == ["unknown"]
    assert q.remove("waiting") == [False]
    assert q.backend.clean(QUEUE, {State.COMPLETED}, 0, 10) == []
    assert q.take(5) == ["good", "other"]
    assert q.backend.drain(QUEUE, True, 10).job_ids == ()
    assert q.backend.drop_queue(QUEUE, True).dropped
    left = {name.decode().removeprefix(store.key("")) for name in store.contents()}
    assert {name for name in left if not name.startswith("job:")} <= {"claim:token-2"}


@pytest.mark.promise("C8", "G3", backends=REDIS)
def test_a_bad_child_fails_and_stops_no_parent(store: Store, q: Bench) -> None:
    parent = q.active("p")
    q.enqueue("bad", "good", depends_on=("p",))
    q.enqueue("grandchild", depends_on=("bad",))
    spoil(store.client, store.key("job:bad"), "priority", "nan")
    settled = q.backend.settle([Settle(parent, Complete())]).settled[0]
    assert {each.job_id: each.state for each in settled.dependants} == {
        "good": "waiting",
        "bad": "failed",
        "grandchild": "failed",
    }
    assert q.states("p", "bad", "good", "grandchild") == ["completed", "failed", "waiting", "failed"]
    check_invariants(q.backend, QUEUE)


@pytest.mark.promise("C8", backends=REDIS)
@pytest.mark.parametrize("field", ["priority", "place", "family", "born", "created_at", "state", "format"])
@pytest.mark.parametrize("value", ["nan", "0x10", ""])
def test_a_bad_field_stops_no_call(store: Store, q: Bench, field: str, value: str) -> None:
    """And whatever became of that one job, it can be removed, with nothing left behind."""
    q.enqueue("parent")
    q.enqueue("bad", dedup=Dedup("k"))
    q.enqueue("bad-later", delay_ms=5)
    q.enqueue("good")
    for id in ("bad", "bad-later"):
        spoil(store.client, store.key(f"job:{id}"), field, value)
    q.clock.advance(5)
    assert set(q.take(5)) >= {"parent", "good"}
    q.sweep()
    assert q.replay("bad", "bad-later") != []
    q.clock.advance(STALE)
    q.sweep()
    q.take(5)
    q.backend.heartbeat([])
    q.cancel("bad")
    q.remove("bad", "bad-later", "parent", "good")
    q.backend.drain(QUEUE, True, 100)
    q.backend.clean(QUEUE, TERMINAL, 0, 100)
    if field != "state":
        assert q.counts() == {}
        assert q.backend.dedup_holder(QUEUE, "k") is None
    assert q.backend.drop_queue(QUEUE, True).dropped


@pytest.mark.promise("C8", "A6", backends=REDIS)
@pytest.mark.parametrize("record", [b"", b"{", b"[1]", b"5", b"null", b"{}", b'"x"', b"[" * 2000])
def test_a_record_that_is_none_fails_and_can_be_removed(store: Store, q: Bench, record: bytes) -> None:
    q.enqueue("bad", "good")
    store.client.hset(store.key("job:bad"), "record", record)
    with pytest.raises(CorruptRecord, match="job bad"):
        q.get("bad")
    assert q.take(5) == ["good"]
    assert q.state("bad") == "failed"
    check_invariants(q.backend, QUEUE)
    assert q.backend.drop_queue(QUEUE, True).dropped
    assert not store.contents()


@pytest.mark.promise("A4", "A6", "C8", backends=REDIS)
@pytest.mark.parametrize("record", [b"{", b"null", b"{}", b'{"state":5}'])
def test_a_drain_and_a_drop_leave_nothing_of_a_record_that_is_none(
    store: Store, q: Bench, record: bytes
) -> None:
    q.enqueue("bad", "good")
    q.enqueue("kid", depends_on=("bad",))
    store.client.hset(store.key("job:bad"), "record", record)
    assert q.backend.drain(QUEUE, True, 10).job_ids == ("bad", "good")
    assert q.enqueue("bad")[0].status == "created"
    assert q.backend.drop_queue(QUEUE, True).dropped
    assert not store.contents()


@pytest.mark.promise("C8", backends=REDIS)
def test_a_record_whose_state_is_another_and_in_no_order_fails(store: Store, q: Bench) -> None:
    q.enqueue("bad", "good")
    spoil(store.client, store.key("job:bad"), "state", "active")
    assert q.take(5) == ["good"]
    assert q.state("bad") == "failed"
    check_invariants(q.backend, QUEUE)


@pytest.mark.promise("C8", backends=REDIS)
@pytest.mark.parametrize(
    "changes",
    ['"priority":1e999', '"progress":"1e999","format":1e999', '"format":"inf"', '"beside":"x"', '"bad":"x"'],
)
def test_an_odd_field_hides_no_other_job(store: Store, q: Bench, changes: str) -> None:
    q.ended("bad", "fail")
    q.ended("good", "fail")
    record = store.client.hget(store.key("job:bad"), "record") or b""
    store.client.hset(store.key("job:bad"), "record", record[:-1] + f",{changes}}}".encode())
    assert "good" in [job.id for job in q.backend.list_jobs(QUEUE, State.FAILED).jobs]
    q.replay("bad", "good")
    assert "good" in q.take(5)
    q.backend.check()


@pytest.mark.promise("A2", "G3", backends=REDIS)
@pytest.mark.parametrize("parents", ["5", "junk", "[null]", "[[]]"])
def test_parents_that_make_no_sense_stop_no_retry(store: Store, q: Bench, parents: str) -> None:
    for id in ("a", "b", "c"):
        q.ended(id, "fail")
    spoil(store.client, store.key("job:b"), "depends_on", parents)
    assert q.replay("a", "b", "c") == ["retried", "retried", "retried"]


@pytest.mark.promise("C8", backends=REDIS)
@pytest.mark.parametrize("state", ["waiting", "delayed", "active", "failed"])
@pytest.mark.parametrize("value", ["null", "true", "{}", "9" * 400])
@pytest.mark.parametrize("field", ["claim_token", "dedup_key", "family", "priority", "place", "worker"])
def test_a_field_of_another_kind_stops_no_call(
    store: Store, q: Bench, field: str, value: str, state: str
) -> None:
    for id in ("bad", "good"):
        if state == "active":
            q.active(id)
        elif state == "failed":
            q.ended(id, "fail")
        else:
            q.enqueue(id, delay_ms=int(state == "delayed"))
    stored = json.loads(store.client.hget(store.key("job:bad"), "record") or b"")
    whole = json.dumps(stored | {field: "@"}).replace('"@"', value)
    store.client.hset(store.key("job:bad"), "record", whole)
    q.clock.advance(STALE)
    q.promote()
    q.sweep()
    q.replay("bad", "good")
    assert "good" in q.take(5)
    q.remove("bad", "good")
    assert q.backend.drop_queue(QUEUE, True).dropped


@pytest.mark.promise("G2", "G4", backends=REDIS)
@pytest.mark.parametrize("field", ["run_at", "place", "family"])
def test_a_bad_holder_of_a_key_stops_no_batch(store: Store, q: Bench, field: str) -> None:
    debounce = Dedup("k", DedupMode.DEBOUNCE)
    q.enqueue("holder", delay_ms=10, dedup=debounce)
    spoil(store.client, store.key("job:holder"), field, "x")
    answers = q.enqueue("a", q.new("b", delay_ms=10, dedup=debounce), "c")
    assert [answer.status for answer in answers] == ["created", "deduplicated", "created"]
    q.clock.advance(10)
    q.promote()
    assert q.enqueue("d", delay_ms=10, dedup=debounce)[0].status == "created", (
        "it failed, and let go of its key"
    )


@pytest.mark.promise("A5", "C8", backends=REDIS)
def test_a_workers_name_that_is_no_text_stops_no_look(store: Store, q: Bench) -> None:
    q.active("bad")
    spoil(store.client, store.key("job:bad"), "worker", b"\xff")
    assert q.info().workers[0].claims == 1
    q.clock.advance(STALE)
    assert q.swept() == {"bad": "released"}


@pytest.mark.promise("G3", backends=REDIS)
def test_what_a_job_waits_for_is_not_in_its_record(store: Store, q: Bench) -> None:
    """A parent's ending takes one off and leaves the others unread; nothing is left at the end."""
    parents = [f"p{n}" for n in range(50)]
    q.enqueue(*parents)
    q.enqueue("child", depends_on=tuple(parents))
    before = store.client.hget(store.key("job:child"), "record")
    assert store.client.scard(store.key("parents:child")) == len(parents)
    for claimed in q.claim(len(parents) - 1):
        q.settle(claimed.claim, "complete")
        assert store.client.hget(store.key("job:child"), "record") == before
    assert q.state("child") == "blocked"
    [last] = q.claim()
    q.settle(last.claim, "complete")
    assert q.state("child") == "waiting"
    assert not store.client.exists(store.key("parents:child"))


@pytest.mark.promise("G6", "C8", backends=REDIS)
def test_an_unreadable_schedule_hides_no_other(
    store: Store, q: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for id in ("bad", "foreign", "good"):
        q.backend.put_schedule(schedule(q, id))
    store.client.hset(store.key("schedule:bad"), "revision", "x")
    store.client.delete(store.key("schedule:foreign"))
    store.client.set(store.key("schedule:foreign"), "x")
    assert [each.schedule.id for each in q.backend.list_schedules(QUEUE)] == ["good"]
    assert [each.schedule.id for each in q.backend.due_schedules(QUEUE, 10).schedules] == ["good"]
    assert "schedule bad" in caplog.text


def test_schedules_keep_their_numbers(q: Bench) -> None:
    made = replace(
        schedule(q, "s", MAX_TIME // 1000 * 1000), priority=LOWEST, ttl_ms=MAX_TIME, payload=b"\x00\xff"
    )
    q.backend.put_schedule(made)
    assert q.backend.advance_schedule(QUEUE, "s", q.revision("s"), None, MAX_TIME, MAX_TIME - 1)
    [stored] = q.backend.list_schedules(QUEUE)
    assert (stored.schedule, stored.next_slot, stored.last_slot) == (made, MAX_TIME, MAX_TIME - 1)


# What a whole batch may hold


def test_the_largest_batches(q: Bench) -> None:
    parents = [q.new(f"p{n}") for n in range(MAX_BATCH)]
    assert {answer.status for answer in q.enqueue(*parents)} == {"created"}
    child = q.new("child", depends_on=tuple(job.id for job in parents))
    assert q.enqueue(child)[0].state == "blocked"
    claimed = q.claim(MAX_BATCH)
    result = q.backend.settle([Settle(each.claim, Complete(b"1")) for each in claimed], q.request())
    assert {each.status for each in result.settled} == {"applied"}
    assert [each.job.id for each in result.claimed] == ["child"]
    assert len(q.remove(*(job.id for job in parents))) == MAX_BATCH


def test_the_calls_of_these_tests_are_all_there_are() -> None:
    methods = {name for name in vars(RedisBackend) if not name.startswith("_")}
    assert {method_of(name) for name in CALLS} == methods - {"capabilities", "close", "migrate"}


@pytest.mark.promise("C8", backends=REDIS)
@pytest.mark.parametrize("field", ["id", "worker", "depends_on", "dedup_key", "spec", "payload", "error"])
def test_bytes_that_are_no_text_stop_no_claim(store: Store, q: Bench, field: str) -> None:
    q.enqueue(q.new("bad", payload=b"x" * 2000), "good")
    spoil(store.client, store.key("job:bad"), field, b"\xff\xfe\x00")
    assert set(q.take(5)) >= {"good"}
    if field not in ("payload", "id", "spec"):
        assert q.backend.list_jobs(QUEUE, State.ACTIVE).jobs
    assert q.take(5) == []
