"""What a producer is told, and that what was accepted comes back as it was: D1, D6, G1, G4."""

from __future__ import annotations

import pytest

from mayflymq.model import MAX_BATCH, Backoff, Complete, Dedup, Enqueued, Fail, JobError, State

from .bench import Bench, changed
from .harness import Harness

ODD = [
    "ümläut-ñ-日本語-🐝",
    'it\'s "quoted" `so`',
    "100%_of\\them",
    "a/b/../c?d=e&f#g",
    "{hash}:tag[1]*",
    " leading and trailing ",
    "'; DROP TABLE jobs; --",
    "$HOME ${x} {0} %s %(n)s",
    "e\u0301 is not \u00e9",
    "x" * 255,
    "日" * 255,
    "None",
    "0",
    "true",
]


@pytest.mark.promise("D6", "G1")
@pytest.mark.parametrize("situation", ["waiting", "active", "completed", "failed", "cancelled"])
def test_an_id_is_taken_until_its_job_is_removed(q: Bench, other: Bench, situation: str) -> None:
    q.enqueue("j", priority=1)
    if situation == "cancelled":
        q.cancel("j")
    elif situation != "waiting":
        claim = q.hold("j")
        if situation != "active":
            q.settle(claim, "complete" if situation == "completed" else "fail")
    before = q.get()
    q.clock.advance(5)
    for handle in (q, other):
        [answer] = handle.enqueue("j", priority=9, payload=b"other", delay_ms=10, dedup=Dedup("key"))
        assert answer == Enqueued("j", answer.status, State(situation))
        assert answer.status == "duplicate_id"
    assert q.get() == before
    assert q.backend.dedup_holder(q.queue, "key") is None
    q.remove("j")
    assert q.enqueue("j")[0].status == "created"


@pytest.mark.promise("G1", "D6")
def test_a_repeated_id_is_told_first_whatever_else_is_wrong(q: Bench) -> None:
    q.enqueue("holder", dedup=Dedup("key"))
    q.enqueue("j")
    assert q.enqueue("j", depends_on=("nobody",))[0].status == "duplicate_id"
    assert q.enqueue("j", dedup=Dedup("key"))[0].status == "duplicate_id"
    assert q.enqueue("holder", dedup=Dedup("key"))[0].status == "duplicate_id"


@pytest.mark.promise("G4", "G1", "D6")
def test_each_job_of_a_call_is_accepted_or_refused_by_itself(q: Bench) -> None:
    q.enqueue("old")
    answers = q.enqueue(
        q.new("a"),
        q.new("old"),
        q.new("a", priority=1),
        q.new("orphan", depends_on=("nobody",)),
        q.new("b", dedup=Dedup("key")),
        q.new("c", dedup=Dedup("key")),
        q.new("d", depends_on=("a",)),
        q.new("orphan", delay_ms=5),
    )
    assert [(a.job_id, a.status, a.state, a.holder) for a in answers] == [
        ("a", "created", "waiting", None),
        ("old", "duplicate_id", "waiting", None),
        ("a", "duplicate_id", "waiting", None),
        ("orphan", "refused", None, None),
        ("b", "created", "waiting", None),
        ("c", "deduplicated", "waiting", "b"),
        ("d", "created", "blocked", None),
        ("orphan", "created", "delayed", None),
    ]
    assert [bool(a.reason) for a in answers] == [a.status == "refused" for a in answers]
    assert q.counts() == {"waiting": 3, "blocked": 1, "delayed": 1}
    assert q.get("a").priority == 5


@pytest.mark.promise("G4", "D1")
def test_the_largest_call(q: Bench) -> None:
    ids = [f"{n}" for n in range(MAX_BATCH)]
    assert {answer.status for answer in q.enqueue(*ids)} == {"created"}
    assert {answer.status for answer in q.enqueue(*ids)} == {"duplicate_id"}
    assert q.take(MAX_BATCH) == ids


@pytest.mark.promise("G1", "D1", "A3")
def test_odd_text_is_only_compared(q: Bench, other: Bench) -> None:
    ids = ODD + [text[::-1] + "!"[: 255 - len(text)] for text in ODD if len(text) < 255]
    answers = q.enqueue(*(q.new(id, task=id, dedup=Dedup(id)) for id in ids))
    assert {answer.status for answer in answers} == {"created"}
    claimed = {each.job.id: each for each in other.claim(100, token="ünïque '\"% token", worker="w'%\"ö")}
    assert list(claimed) == ids
    assert all(
        each.job.task == id and each.claim.token == "ünïque '\"% token" for id, each in claimed.items()
    )
    for id in ids:
        assert q.backend.dedup_holder(q.queue, id) == id
        assert q.beat(claimed[id].claim) == "held"
    q.cancel(ids[0])
    statuses = [q.settle(claimed[id].claim, "complete") for id in ids]
    assert statuses == ["cancelled"] + ["applied"] * (len(ids) - 1)
    assert q.info().counts.completed == len(ids) - 1
    q.enqueue("child", depends_on=tuple(ids[1:]))
    assert q.get("child").depends_on == tuple(ids[1:])
    assert q.state("child") == "waiting"
    assert q.remove(*ids) == [True] * len(ids)


@pytest.mark.promise("G1")
def test_ids_that_look_alike_are_different(q: Bench) -> None:
    ids = [
        "a",
        "A",
        "a ",
        " a",
        "\u00e0",
        "a\u0300",
        "\uff41",
        "0",
        "00",
        "1",
        "1.0",
        "1e0",
        "\u00df",
        "ss",
        "SS",
    ]
    assert [answer.status for answer in q.enqueue(*ids)] == ["created"] * len(ids)
    assert q.take(100) == ids


@pytest.mark.promise("D1")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        bytes(range(256)),
        b"\xff\xfe\x00\xd8",
        b"'; DROP TABLE jobs; --",
        b"\\u0000 \\ud800",
        bytes(range(256)) * 4096,
    ],
    ids=lambda payload: f"{len(payload)}-bytes",
)
def test_payload_and_result_are_opaque(q: Bench, other: Bench, payload: bytes) -> None:
    q.enqueue("j", payload=payload)
    [claimed] = other.claim()
    assert claimed.job.payload == payload
    assert type(claimed.job.payload) is bytes
    q.settle(claimed.claim, Complete(payload))
    assert (other.get().payload, other.get().result) == (payload, payload)


@pytest.mark.promise("D4", "A5")
def test_no_result_is_not_an_empty_one(q: Bench) -> None:
    q.ended("none", Complete())
    q.ended("empty", Complete(b""))
    assert (q.get("none").result, q.get("empty").result) == (None, b"")


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    "text", ["", "NUL \x00 inside", "lone \ud800 surrogate", "日本🐝", "line\nline\r\t\x1b[0m", "x" * 5000]
)
def test_an_error_is_kept_as_it_was(q: Bench, other: Bench, text: str) -> None:
    error = JobError("Boom", text, text)
    q.ended("j", Fail(error))
    assert (other.get().error, other.get().first_error) == (error, error)


@pytest.mark.promise("D1")
@pytest.mark.parametrize(
    "options",
    [
        {"backoff": Backoff.exponential(0.5, cap=7200, factor=3, jitter=0.25)},
        {"backoff": Backoff.steps(0, 1.5, 86_400)},
        {"backoff": Backoff((0,), factor=1000, cap_ms=2**53 - 1, jitter=1)},
        {"max_retries": 0, "ttl_ms": 1, "timeout_ms": 1},
        {"max_retries": 2**31 - 1, "ttl_ms": 2**53 - 1, "timeout_ms": 2**53 - 1},
        {"priority": -(2**31)},
        {"priority": 2**31 - 1},
        {"dedup": Dedup("k", window_ms=0)},
    ],
)
def test_every_field_survives_a_whole_life(q: Bench, other: Bench, options: dict[str, object]) -> None:
    new = q.new("j", **options)
    q.enqueue(new)
    fields = (
        "task",
        "payload",
        "priority",
        "ttl_ms",
        "timeout_ms",
        "max_retries",
        "backoff",
        "depends_on",
        "dedup",
    )
    for step in ("retry-now", "release", "fail", "complete"):
        [claimed] = other.claim()
        for name in fields:
            assert getattr(claimed.job, name) == getattr(new, name)
        q.settle(claimed.claim, step)
        q.replay("j")
    assert q.get() == changed(q.get(), **{name: getattr(new, name) for name in fields})


@pytest.mark.promise("D1")
def test_an_accepted_job_is_there_after_the_handle_is_gone(harness: Harness, q: Bench) -> None:
    q.enqueue("j", "k", payload=b"kept")
    q.enqueue("late", delay_ms=50)
    q.backend.set_paused(q.queue, True)
    q.backend.close()
    again = q.on(harness.open())
    assert (again.counts(), again.info().paused) == ({"waiting": 2, "delayed": 1}, True)
    again.backend.set_paused(q.queue, False)
    assert [claimed.job.payload for claimed in again.claim(5)] == [b"kept", b"kept"]
