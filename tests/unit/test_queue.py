"""The facade: what people write becomes checked values, what the backend did becomes events and log lines."""

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from mayflymq import codec, events, model, queue, tasks
from mayflymq.backends.base import Backend, open_backend
from mayflymq.errors import ConfigurationError, InvalidJob, PayloadTooLarge
from mayflymq.events import Event, listen
from mayflymq.maintenance import promote, sweep
from mayflymq.model import (
    MAX_BATCH,
    MAX_TIME,
    Backoff,
    Beat,
    Cancelled,
    CancelStatus,
    Claim,
    ClaimRequest,
    ClaimStatus,
    Dedup,
    DedupMode,
    Dependant,
    Drained,
    Enqueued,
    EnqueueStatus,
    JobError,
    NewJob,
    ParentPolicy,
    Recovered,
    Recovery,
    Removed,
    Settle,
    Settled,
    Settlement,
    SettleResult,
    State,
)
from mayflymq.queue import Queue, connect, default_backend, new_id
from mayflymq.tasks import JobSpec, Registry, task
from mayflymq.worker import claim_and_run

ERROR = JobError("ValueError", "no")
numbers = iter(range(10**9))


@pytest.fixture(autouse=True)
def _own_process_state(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Registry()
    monkeypatch.setattr(tasks, "registry", fresh)
    monkeypatch.setattr(queue, "registry", fresh)
    monkeypatch.setattr(queue, "_default", None)


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    """All events, in order."""
    found: list[Event] = []
    stop = listen(found.append)
    yield found
    stop()


@dataclass
class Clock:
    now: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def emails(clock: Clock) -> Queue:
    return Queue("emails", open_backend(f"memory://test_queue_{next(numbers)}", clock=clock))


def told(heard: Sequence[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.job_id) for event in heard]


# What people write becomes a checked job


def test_a_name_alone_is_enough(emails: Queue) -> None:
    job = emails.job("send")
    assert (job.queue, job.task, job.priority, job.max_retries) == ("emails", "send", 5, 3)
    assert (job.delay_ms, job.run_at, job.ttl_ms, job.timeout_ms) == (0, None, None, None)
    assert job.backoff == Backoff.exponential()
    assert job.payload == b'{"args":[],"kwargs":{},"meta":{}}'
    assert emails.get(job.id) is None, "job() writes nothing"


def test_every_option_arrives(emails: Queue) -> None:
    job = emails.job(
        "send",
        ["a"],
        {"b": 1},
        job_id="one",
        priority=-1,
        delay=1.5,
        ttl=timedelta(minutes=1),
        timeout=2,
        max_retries=0,
        backoff=Backoff.fixed(1),
        meta={"tenant": "x"},
        depends_on=["p1", "p2"],
        on_parent_failure="run",
        dedup=Dedup("k", DedupMode.DEBOUNCE),
    )
    assert job == NewJob(
        id="one",
        queue="emails",
        task="send",
        payload=b'{"args":["a"],"kwargs":{"b":1},"meta":{"tenant":"x"}}',
        priority=-1,
        delay_ms=1500,
        ttl_ms=60_000,
        timeout_ms=2000,
        max_retries=0,
        backoff=Backoff.fixed(1),
        depends_on=("p1", "p2"),
        on_parent_failure=ParentPolicy.RUN,
        dedup=Dedup("k", DedupMode.DEBOUNCE),
    )


SECONDS: list[object] = [math.nan, math.inf, -math.inf, "5", True, False, b"5", [5]]
ALIKE = dict.fromkeys(("delay", "ttl", "timeout"), SECONDS)
NOT_MEANT = [(name, value) for name, values in ALIKE.items() for value in values] + [
    ("ttl", 0),
    ("ttl", -1),
    ("timeout", 0),
    ("timeout", timedelta(seconds=-1)),
    ("priority", True),
    ("priority", 1.0),
    ("priority", "1"),
    ("priority", 2**31),
    ("max_retries", -1),
    ("max_retries", True),
    ("backoff", 5),
    ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001
    ("run_at", "2030-01-01"),
    ("run_at", 5),
    ("run_at", datetime(2030, 1, 1, tzinfo=UTC).date()),
    ("depends_on", "abc"),
    ("depends_on", 7),
    ("on_parent_failure", "ignore"),
    ("on_parent_failure", 7),
    ("dedup", "key"),
    ("meta", "abc"),
    ("meta", [("a", "b")]),
    ("args", "abc"),
    ("args", {1}),
    ("args", 7),
    ("kwargs", [("a", 1)]),
]


@pytest.mark.parametrize(("name", "value"), NOT_MEANT, ids=lambda part: type(part).__name__)
def test_a_value_that_cannot_be_meant_is_refused_by_name(emails: Queue, name: str, value: object) -> None:
    with pytest.raises(InvalidJob, match=name):
        emails.enqueue("send", **{name: value})  # type: ignore[arg-type]
    assert emails.backend.queues() == [], "something was written"


@pytest.mark.parametrize("value", [7, None, print, ["x"], {}, ""], ids=lambda value: type(value).__name__)
def test_what_is_no_task_is_refused(emails: Queue, value: Any) -> None:
    with pytest.raises(InvalidJob, match="a task's name"):
        emails.enqueue(value)


@pytest.mark.parametrize("delay", [0, -5, -1e300, timedelta(days=-1)])
def test_a_negative_delay_means_now(emails: Queue, delay: float | timedelta) -> None:
    assert emails.enqueue("send", delay=delay).state is State.WAITING


@pytest.mark.parametrize(
    "run_at",
    [
        datetime(1969, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime(2000, 1, 1, tzinfo=UTC),
    ],
)
def test_a_past_time_means_now(emails: Queue, run_at: datetime) -> None:
    assert emails.enqueue("send", run_at=run_at).state is State.WAITING


@pytest.mark.parametrize("delay", [1e300, 10**5000, timedelta.max], ids=["float", "int", "timedelta"])
def test_a_far_future_delay_stays_delayed(emails: Queue, delay: float | timedelta) -> None:
    answer = emails.enqueue("send", delay=delay)
    job = emails.get(answer.job_id)
    assert job
    assert (job.state, job.run_at) == (State.DELAYED, MAX_TIME)


def test_a_far_future_time_stays_delayed(emails: Queue) -> None:
    latest = datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))
    assert emails.enqueue("send", run_at=latest).state is State.DELAYED


def test_a_time_is_an_instant_whatever_its_zone(emails: Queue) -> None:
    east = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert emails.job("send", run_at=east).run_at == emails.job("send", run_at=east.astimezone(UTC)).run_at
    assert emails.job("send", run_at=datetime(1970, 1, 1, 0, 0, 1, 999_999, UTC)).run_at == 1999


def test_the_payload_limit_is_the_queues_own(emails: Queue) -> None:
    small = Queue("emails", emails.backend, max_payload_bytes=100)
    assert small.enqueue("send", ["x" * 60]).status is EnqueueStatus.CREATED
    with pytest.raises(PayloadTooLarge, match="the limit is 100"):
        small.enqueue("send", ["x" * 70])


def test_a_task_that_is_known_gives_its_settings_by_name_too(emails: Queue) -> None:
    @task(priority=1, max_retries=9, ttl=60, timeout=3, backoff=Backoff.fixed(7))
    def send(to: str) -> None: ...

    for job in (emails.job("send", ["a"]), emails.job(send, ["a"])):
        assert (job.priority, job.max_retries, job.ttl_ms, job.timeout_ms) == (1, 9, 60_000, 3000)
        assert job.backoff == Backoff.fixed(7)
    assert emails.job(send, ["a"], priority=0, max_retries=0).priority == 0
    assert emails.job(send, ["a"], priority=0, max_retries=0).max_retries == 0
    with pytest.raises(InvalidJob, match="'to'"):
        emails.job("send")


def test_what_the_caller_changes_later_is_not_in_the_job(emails: Queue) -> None:
    args = [["a"]]
    job = emails.job("send", args)
    args[0].append("b")
    assert codec.decode_payload(job.payload)[0] == [["a"]]


@pytest.mark.promise("D6")
def test_an_enqueue_that_is_sent_again_says_so(emails: Queue, heard: list[Event]) -> None:
    first = emails.enqueue("send", ["a"], job_id="one")
    again = emails.enqueue("send", ["b"], job_id="one")
    assert (first.status, again.status) == (EnqueueStatus.CREATED, EnqueueStatus.DUPLICATE_ID)
    job = emails.get("one")
    assert job
    assert b'"a"' in job.payload
    assert told(heard) == [(events.ENQUEUED, "one")]


@pytest.mark.promise("G3")
def test_parents_that_the_store_refuses_raise(emails: Queue) -> None:
    with pytest.raises(InvalidJob, match="nobody"):
        emails.enqueue("send", depends_on=["nobody"])


@pytest.mark.promise("G4")
def test_many_jobs_are_accepted_or_refused_each_by_itself(emails: Queue) -> None:
    answers = emails.enqueue_many(
        [
            JobSpec("send", ["a"], options={"job_id": "one"}),
            JobSpec("send", [b"x"], options={"job_id": "two"}),
            JobSpec("send", ["a"], options={"job_id": "one"}),
            JobSpec("send", options={"depends_on": ["nobody"], "job_id": "three"}),
            JobSpec("send", options={"job_id": cast(str, 7)}),
            JobSpec("send", options={"delay": 5}),
        ]
    )
    assert [(answer.status, answer.state) for answer in answers] == [
        (EnqueueStatus.CREATED, State.WAITING),
        (EnqueueStatus.REFUSED, None),
        (EnqueueStatus.DUPLICATE_ID, State.WAITING),
        (EnqueueStatus.REFUSED, None),
        (EnqueueStatus.REFUSED, None),
        (EnqueueStatus.CREATED, State.DELAYED),
    ]
    assert [answer.job_id for answer in answers[:5]] == ["one", "two", "one", "three", ""]
    assert "args[0] is of type bytes" in str(answers[1].reason)
    assert "nobody" in str(answers[3].reason)


def test_what_is_no_spec_is_refused_by_its_place_and_nothing_is_written(emails: Queue) -> None:
    specs: Any = [JobSpec("add"), ("add", 1)]
    with pytest.raises(InvalidJob, match=r"^job 1 must be a JobSpec.*not a tuple$"):
        emails.enqueue_many(specs)
    with pytest.raises(InvalidJob, match=r"^job 'b' must be a JobSpec.*not a tuple$"):
        emails.enqueue_flow(dict(zip("ab", specs, strict=True)))
    assert emails.info().counts.waiting == 0


def test_many_jobs_are_sent_in_parts(emails: Queue) -> None:
    answers = emails.enqueue_many(JobSpec("send", [n]) for n in range(2 * MAX_BATCH + 1))
    assert len({answer.job_id for answer in answers}) == 2 * MAX_BATCH + 1
    assert emails.info().counts.waiting == 2 * MAX_BATCH + 1
    first = emails.jobs(State.WAITING, limit=1).jobs[0]
    assert first.id == answers[0].job_id
    assert emails.enqueue_many([]) == []


# Ids


def test_ids_are_unique_uuids_that_sort_by_time() -> None:
    made = [new_id() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    for text in made[:100]:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 7, uuid.RFC_4122)


def test_an_id_made_later_sorts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # A quarter of a microsecond is what the id's time resolves.
    times = iter([0, 250, 999_999, 1_000_000, 1_700_000_000_000_000_000, 1_700_000_000_000_000_300, 2**62])
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    made = [new_id() for _ in range(7)]
    assert made == sorted(made)
    assert len({text[:18] for text in made}) == 7
    assert all(len(text) == 36 for text in made)


def test_the_chance_in_an_id_is_the_systems_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is resumed twice must make no id twice, so no generator of the process is asked."""
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(os, "urandom", lambda size: b"\xff" * size)
    assert new_id() == "00000000-0000-7000-bfff-ffffffffffff"


# The backend


@pytest.mark.promise("S1", backends=("memory", "sqlite"))
def test_what_connect_sets_serves_every_queue_that_names_none() -> None:
    early = Queue("q")
    backend = connect(f"memory://test_queue_{next(numbers)}")
    assert early.backend is Queue("other").backend is default_backend() is backend
    other = open_backend(f"memory://test_queue_{next(numbers)}")
    assert connect(other) is other
    assert early.backend is other
    assert Queue("q", backend).backend is backend


def test_the_environment_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_it(url: str) -> Backend:
        opened.append(url)
        return open_backend(f"memory://test_queue_{next(numbers)}")

    monkeypatch.setattr(queue, "open_backend", open_it)
    monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", "redis://host")
    assert default_backend() is default_backend()
    monkeypatch.setattr(queue, "_default", None)
    monkeypatch.delenv("MAYFLYMQ_BACKEND_URL")
    default_backend()
    assert opened == ["redis://host", "sqlite:///mayflymq.db"]


def test_inside_lambda_there_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "enqueue")
    with pytest.raises(ConfigurationError, match="set MAYFLYMQ_BACKEND_URL"):
        Queue("q").info()


def test_a_bad_url_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="names no backend") as caught:
        connect("nosuch://user:S3CRET@host")
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: Queue("emails", backend),
        lambda backend: claim_and_run(backend, ["emails"]),
        sweep,
        promote,
    ],
    ids=["Queue", "claim_and_run", "sweep", "promote"],
)
def test_a_url_in_place_of_a_backend_is_refused(call: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"open_backend\('redis://ada:\*\*\*@host'\)$"):
        call("redis://ada:hunter2@host")
    with pytest.raises(ConfigurationError, match=r"open_backend\(url\)$"):
        call("hunter2")


@pytest.mark.parametrize("call", [connect, lambda backend: claim_and_run(backend, ["emails"]), sweep])
def test_nothing_in_place_of_a_backend_is_refused(call: Callable[[Any], object]) -> None:
    before = connect(f"memory://test_queue_{next(numbers)}")
    with pytest.raises(ConfigurationError, match=r"None is no backend .* open_backend\(url\)$"):
        call(os.environ.get("MAYFLYMQ_NOT_SET"))
    assert default_backend() is before


@pytest.mark.parametrize("name", ["", "a b", "a.dlq", None])
def test_a_queue_is_named_properly(name: Any) -> None:
    with pytest.raises(InvalidJob, match="queue"):
        Queue(name)


# Operators


def test_the_operators_calls_reach_the_backend(emails: Queue, clock: Clock) -> None:
    emails.enqueue("send", job_id="one")
    emails.enqueue("send", job_id="two", delay=5)
    assert emails.get("nobody") is None
    assert [job.id for job in emails.jobs(State.DELAYED).jobs] == ["two"]
    emails.pause()
    assert emails.info().paused
    assert emails.claim(ClaimRequest("emails", 1, "t", "w", 1000)) == []
    emails.resume()
    assert not emails.info().paused
    assert emails.drain().job_ids == ("one",)
    assert emails.drain(include_delayed=True).job_ids == ("two",)
    emails.enqueue("send", job_id="three")
    assert emails.cancel("three").status is CancelStatus.CANCELLED
    clock.now += 60_000
    assert emails.clean([State.CANCELLED], timedelta(minutes=2)) == []
    assert emails.clean([State.CANCELLED], 60) == ["three"]
    assert emails.remove("three") == Removed(False)
    emails.enqueue("send", job_id="four", dedup=Dedup("k"))
    assert emails.dedup_holder("k") == "four"
    assert emails.dedup_holder("k", release=True) == "four"
    assert emails.dedup_holder("k") is None
    assert emails.drop().dropped


def test_a_dead_job_is_retried(emails: Queue) -> None:
    emails.enqueue("send", job_id="one")
    [claimed] = emails.claim(ClaimRequest("emails", 1, "t", "w", 1000))
    emails.settle([Settle(claimed.claim, model.Fail(ERROR))])
    assert emails.retry("one").state is State.WAITING


# What the backend did becomes events


@dataclass
class Answers:
    """A backend that gives the answer it was told to give, whatever it is asked."""

    answer: Any
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            return self.answer

        return call


def answering(answer: Any) -> Queue:
    return Queue("q", cast(Backend, Answers(answer)))


CHILDREN = (Dependant("c1", State.WAITING), Dependant("c2", State.FAILED), Dependant("c3", State.BLOCKED))
OF_CHILDREN = [(events.PROMOTED, "c1"), (events.FAILED, "c2")]


@pytest.mark.promise("G5")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Enqueued("a", EnqueueStatus.CREATED, State.WAITING), [(events.ENQUEUED, "a")]),
        (Enqueued("a", EnqueueStatus.CREATED, State.FAILED), [(events.ENQUEUED, "a"), (events.FAILED, "a")]),
        (
            Enqueued("a", EnqueueStatus.REPLACED, State.DELAYED, "old", dependants=CHILDREN),
            [(events.CANCELLED, "old"), (events.ENQUEUED, "a"), *OF_CHILDREN],
        ),
        (Enqueued("a", EnqueueStatus.DUPLICATE_ID, State.WAITING), []),
        (Enqueued("a", EnqueueStatus.DEDUPLICATED, State.WAITING, "old"), []),
    ],
    ids=["created", "created_failed", "replaced", "duplicate", "deduplicated"],
)
def test_the_events_of_an_enqueue(answer: Enqueued, expected: list[Any], heard: list[Event]) -> None:
    answering([answer]).enqueue("send", job_id="a")
    assert told(heard) == expected
    assert {event.queue for event in heard} <= {"q"}
    assert all(event.task == "send" for event in heard if event.job_id == "a")


def test_a_refused_enqueue_tells_nothing(heard: list[Event]) -> None:
    refused = Enqueued("a", EnqueueStatus.REFUSED, reason="no such parent")
    with pytest.raises(InvalidJob, match=r"^no such parent$"):
        answering([refused]).enqueue("send")
    assert heard == []


CLAIM = Claim("q", "one", "token")
OUTCOMES: list[tuple[model.Outcome, list[tuple[str, State]]]] = [
    (model.Complete(b"1"), [(events.COMPLETED, State.COMPLETED)]),
    (model.Retry(5, ERROR), [(events.RETRYING, State.DELAYED)]),
    (model.Retry(0, ERROR), [(events.RETRYING, State.WAITING)]),
    (model.Defer(5), [(events.DEFERRED, State.DELAYED)]),
    (model.Defer(0), [(events.DEFERRED, State.WAITING)]),
    (model.Fail(ERROR), [(events.FAILED, State.FAILED)]),
    (model.Expire(), [(events.EXPIRED, State.EXPIRED)]),
    (model.Cancel(), [(events.CANCELLED, State.CANCELLED)]),
    (model.Release(), []),
]


@pytest.mark.promise("G5")
@pytest.mark.parametrize("status", [Settlement.APPLIED, Settlement.DUPLICATE])
@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES)
def test_the_events_of_a_settle(
    outcome: model.Outcome, expected: list[Any], status: Settlement, heard: list[Event]
) -> None:
    result = SettleResult([Settled(status, CHILDREN)], [])
    assert answering(result).settle([Settle(CLAIM, outcome)], tasks={"one": "send"}) is result
    assert [(event.name, event.state) for event in heard if event.job_id == "one"] == expected
    assert told(heard)[len(expected) :] == OF_CHILDREN
    for event in heard[: len(expected)]:
        assert event.task == "send"
        assert event.error == (ERROR if isinstance(outcome, model.Retry | model.Fail) else None)
        assert event.exhausted == isinstance(outcome, model.Fail)


@pytest.mark.promise("X3", backends=("library",))
@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES)
def test_where_a_cancellation_stood_the_event_says_cancelled(
    outcome: model.Outcome, expected: list[Any], heard: list[Event]
) -> None:
    answering(SettleResult([Settled(Settlement.CANCELLED)], [])).settle([Settle(CLAIM, outcome)])
    assert [(event.name, event.job_id, event.state) for event in heard] == [
        (events.CANCELLED, "one", State.CANCELLED)
    ]


@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES)
def test_a_lost_claim_is_a_log_line_and_no_event(
    outcome: model.Outcome, expected: list[Any], heard: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="mayflymq"):
        answering(SettleResult([Settled(Settlement.LOST)], [])).settle([Settle(CLAIM, outcome)])
    assert heard == []
    [record] = caplog.records
    about = cast(Any, record)
    assert record.levelno == logging.WARNING
    assert "a claim is lost" in record.message
    assert (about.queue, about.job_id, about.call) == ("q", "one", type(outcome).__name__.lower())


def test_each_settle_of_a_batch_is_told_by_its_own_answer(heard: list[Event]) -> None:
    claims = [Claim("q", name, "token") for name in ("a", "b", "c")]
    result = SettleResult(
        [Settled(Settlement.LOST), Settled(Settlement.APPLIED), Settled(Settlement.CANCELLED)], []
    )
    answering(result).settle([Settle(claim, model.Complete()) for claim in claims])
    assert told(heard) == [(events.COMPLETED, "b"), (events.CANCELLED, "c")]


def test_a_lost_heartbeat_is_logged(caplog: pytest.LogCaptureFixture, heard: list[Event]) -> None:
    answers = [ClaimStatus.HELD, ClaimStatus.LOST, ClaimStatus.CANCEL_REQUESTED]
    beats = [Beat(Claim("q", name, "token"), 1000) for name in ("a", "b", "c")]
    with caplog.at_level(logging.INFO, logger="mayflymq"):
        assert answering(answers).heartbeat(beats) == answers
    [record] = caplog.records
    assert (cast(Any, record).job_id, cast(Any, record).call) == ("b", "heartbeat")
    assert heard == []


def test_the_start_of_a_handler_is_told(emails: Queue, heard: list[Event]) -> None:
    emails.enqueue("send", job_id="one")
    [claimed] = emails.claim(ClaimRequest("emails", 1, "t", "w", 1000))
    emails.started(claimed)
    assert heard[-1] == Event(events.STARTED, "emails", "one", "send", State.ACTIVE)


@pytest.mark.promise("G5")
def test_the_events_of_a_sweep(heard: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    found = [
        Recovered("a", Recovery.RELEASED, 1, "w1"),
        Recovered("b", Recovery.FAILED, 4, "w2", CHILDREN),
        Recovered("c", Recovery.CANCELLED, 1, "w3"),
        Recovered("d", Recovery.CASCADED, dependants=(Dependant("e", State.FAILED),)),
        Recovered("f", Recovery.UNREADABLE, detail="not JSON"),
    ]
    with caplog.at_level(logging.INFO, logger="mayflymq"):
        assert answering(found).release_stale(100, 3) == found
    assert told(heard) == [
        (events.STALLED, "a"),
        (events.STALLED, "b"),
        (events.FAILED, "b"),
        *OF_CHILDREN,
        (events.CANCELLED, "c"),
        (events.FAILED, "e"),
    ]
    assert heard[0].state is State.WAITING
    assert "w1" in str(heard[0].detail)
    assert heard[2].error is not None
    assert "stalled 4 times" in heard[2].error.message
    assert not heard[2].exhausted
    logged = [(record.levelno, cast(Any, record).job_id) for record in caplog.records]
    assert logged == [(logging.WARNING, "a"), (logging.ERROR, "b"), (logging.ERROR, "f")]


@pytest.mark.promise("G5")
def test_the_events_of_a_promotion(emails: Queue, clock: Clock, heard: list[Event]) -> None:
    emails.enqueue("send", job_id="one", delay=5)
    clock.now += 5000
    assert emails.promote_due(10) == ["one"]
    assert told(heard) == [(events.ENQUEUED, "one"), (events.PROMOTED, "one")]


@pytest.mark.promise("G5")
def test_the_events_of_an_operator(heard: list[Event]) -> None:
    answering([Cancelled(CancelStatus.CANCELLED, CHILDREN)]).cancel("a")
    assert told(heard) == [(events.CANCELLED, "a"), *OF_CHILDREN]
    for status in set(CancelStatus) - {CancelStatus.CANCELLED}:
        heard.clear()
        answering([Cancelled(status)]).cancel("a")
        assert heard == []
    answering([Removed(True, CHILDREN)]).remove("a")
    assert told(heard) == OF_CHILDREN
    heard.clear()
    answering(Drained(("a",), CHILDREN)).drain()
    assert told(heard) == OF_CHILDREN


@pytest.mark.promise("G5", "C8", backends=("library",))
def test_a_listener_that_raises_changes_nothing(emails: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ValueError

    stop = listen(broken)
    answers = emails.enqueue_many([JobSpec("send"), JobSpec("send")])
    claimed = emails.claim(ClaimRequest("emails", 2, "t", "w", 1000))
    result = emails.settle([Settle(one.claim, model.Complete()) for one in claimed])
    stop()
    assert [answer.status for answer in answers] == [EnqueueStatus.CREATED] * 2
    assert [settled.status for settled in result.settled] == [Settlement.APPLIED] * 2
    assert len(caplog.records) == 4


def test_no_log_line_holds_arguments(emails: Queue, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise ValueError

    stop = listen(broken)
    with caplog.at_level(logging.DEBUG, logger="mayflymq"):
        emails.enqueue("send", ["S3CRET"], {"password": "S3CRET"}, meta={"t": "S3CRET"}, job_id="one")
        [claimed] = emails.claim(ClaimRequest("emails", 1, "t", "w", 1000))
        emails.started(claimed)
        emails.settle([Settle(claimed.claim, model.Complete(b'"S3CRET"'))])
        emails.settle([Settle(claimed.claim, model.Fail(ERROR))])
    stop()
    assert len([record for record in caplog.records if record.name == "mayflymq"]) == 4
    for record in caplog.records:
        assert "S3CRET" not in record.getMessage() + str(record.__dict__)


@pytest.mark.parametrize("limit", [0, -1, True, None, "1", math.nan])
def test_a_payload_limit_that_cannot_be_meant_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidJob, match="max_payload_bytes"):
        Queue("emails", max_payload_bytes=limit)


def test_a_task_may_take_what_python_calls_self(emails: Queue) -> None:
    def whose(self: str) -> str:
        return self

    made = task(queue=emails.name)(whose)
    connect(emails.backend)
    assert made(self="mine") == "mine"
    assert emails.get(made.enqueue(self="mine").job_id) is not None


def test_what_is_no_url_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="names no backend") as caught:
        connect("hunter2")
    assert "hunter2" not in str(caught.value)
