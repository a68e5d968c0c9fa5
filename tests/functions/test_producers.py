"""Jobs from plain invokes, SQS messages and EventBridge events, in this process."""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mayflymq import BackendError, InvalidJob, NewJob, Queue, State, UnknownTask, open_backend
from mayflymq.aws import producers, sqs
from mayflymq.aws.documents import Intake
from mayflymq.backends.base import Backend
from mayflymq.errors import Unsupported
from mayflymq.model import Enqueued
from mayflymq.tasks import Registry, Task

EVENTS = Path(__file__).resolve().parents[2] / "events"
SECRET = "swordfish-4711"


def send(to: str, subject: str = "hello", *, copies: int = 1) -> None:
    """Stands for a user's task; never called here."""


TASKS = Registry()
TASKS.add(Task(name="send", fn=send, queue="emails", priority=2))
TASKS.add(Task(name="internal", fn=lambda: None, http=False))
TASKS.add(Task(name="digest_file", fn=lambda path: None))

GOOD = {"task": "send", "args": ["a"]}


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    urls = {"memory": f"memory://{uuid.uuid4()}", "sqlite": f"sqlite:///{tmp_path}/queue.db"}
    made = open_backend(urls[request.param])
    yield made
    made.close()


@pytest.fixture
def intake(backend: Backend) -> Intake:
    return Intake(backend, tasks=TASKS)


def sample(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def message(body: object, message_id: str, *, group: str | None = None, key: str | None = None) -> Any:
    """A message as SQS hands it over, the sample with another body."""
    record = sample("enqueue_sqs_fifo" if group else "enqueue_sqs")["Records"][0]
    record |= {"messageId": message_id, "body": body if isinstance(body, str) else json.dumps(body)}
    if group:
        record["attributes"]["MessageGroupId"] = group
    if key is not None:
        record["messageAttributes"]["Idempotency-Key"] = {"stringValue": key, "dataType": "String"}
    return record


def failed(intake: Intake, *records: Any) -> list[str]:
    """The ids of the messages that are reported as failed."""
    event = {"Records": list(records)}
    assert sqs.records_of(event) == list(records)
    answer = producers.consume(intake, list(records))
    assert list(answer) == ["batchItemFailures"]
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def ids(backend: Backend, queue: str = "emails") -> list[str]:
    return [job.id for job in Queue(queue, backend).jobs(State.WAITING).jobs]


# Plain invokes


def test_a_plain_invoke_answers_what_a_post_does(intake: Intake) -> None:
    event = {"queue": "emails", "task": "send", "args": ["a"], "id": "p"}
    answer = producers.enqueue(intake, event)
    assert answer == {"id": "p", "queue": "emails", "status": "created", "state": "waiting"}
    assert "queue" in event  # the caller's own event stays as it was


def test_a_plain_invoke_takes_the_tasks_queue_and_internal_tasks(intake: Intake) -> None:
    assert producers.enqueue(intake, {"task": "send", "args": ["a"]})["queue"] == "emails"
    assert producers.enqueue(intake, {"task": "internal"})["queue"] == "default"


@pytest.mark.promise("D6")
def test_a_plain_invoke_that_the_platform_repeats_makes_no_second_job(
    intake: Intake, backend: Backend
) -> None:
    first, again = (producers.enqueue(intake, GOOD, "request-1") for _ in range(2))
    assert (first["id"], first["status"], again["status"]) == ("request-1", "created", "duplicate_id")
    assert producers.enqueue(intake, {**GOOD, "id": "own"}, "request-2")["id"] == "own"
    assert ids(backend) == ["request-1", "own"]


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        ({"queue": "emails", "task": "nobody"}, UnknownTask, "nobody"),
        ({"task": "send", "args": ["a"], "priority": "x"}, InvalidJob, "priority"),
        ({"task": "send", "args": ["a"], "queue": "a b"}, InvalidJob, "queue"),
        ({"task": "send", "args": [float("nan")]}, InvalidJob, r"args\[0\]"),
        ({"task": "send", "args": ["a"], "depends_on": ["nobody"]}, InvalidJob, "depends_on"),
        ({"task": "sendd", "args": ["a"]}, UnknownTask, "no task 'sendd'"),
        ({"task": ["send"]}, InvalidJob, "task: must be text, not a list"),
        ({}, InvalidJob, "task: is missing"),
        ({"args": ["a"]}, InvalidJob, "task: is missing"),
        ({"source": "aws.scheduler"}, InvalidJob, "task: is missing"),
        ({"queue": "emails", "source": "aws.scheduler"}, InvalidJob, "source: is no field"),
        (["send"], InvalidJob, "a list"),
        ({"Records": [{"eventSource": "aws:s3"}]}, InvalidJob, "task: is missing"),
    ],
)
def test_a_plain_invoke_raises(intake: Intake, event: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        producers.enqueue(intake, event, "request")


# EventBridge


@pytest.mark.promise("D6")
def test_an_event_becomes_one_job_however_often_it_comes(intake: Intake, backend: Backend) -> None:
    event = sample("enqueue_eventbridge")
    for status in ("created", "duplicate_id"):
        answer = producers.enqueue(intake, event, f"request of {status}")
        assert (answer["id"], answer["status"]) == (event["id"], status)
    event["detail"]["id"] = "own"
    assert producers.enqueue(intake, event)["id"] == "own"
    assert ids(backend, "default") == [event["id"], "own"]


@pytest.mark.parametrize("detail", [{"task": "nobody"}, {}, "{}", None, {"task": "send", "args": []}])
def test_an_event_that_is_no_job_raises(intake: Intake, detail: object) -> None:
    with pytest.raises((InvalidJob, UnknownTask)):
        producers.enqueue(intake, {**sample("enqueue_eventbridge"), "detail": detail})


# SQS


def test_which_events_come_from_sqs() -> None:
    assert sqs.records_of({"Records": []}) == []
    assert len(sqs.records_of(sample("enqueue_sqs")) or []) == 2
    for other in (
        {},
        [],
        None,
        {"Records": None},
        {"Records": [{"EventSource": "aws:sns"}]},
        {"Records": ["x"]},
    ):
        assert sqs.records_of(other) is None


@pytest.mark.promise("D6")
@pytest.mark.parametrize("name", ["enqueue_sqs", "enqueue_sqs_fifo"])
def test_the_sample_messages_become_jobs_once(intake: Intake, backend: Backend, name: str) -> None:
    records = sample(name)["Records"]
    for _ in range(2):
        assert failed(intake, *records) == []
    expected = [record["messageId"] for record in records]
    if name == "enqueue_sqs":
        expected[1] = "sample-4"  # its attribute
    assert ids(backend, "default") == expected


def test_an_empty_batch(intake: Intake) -> None:
    assert failed(intake) == []


def test_a_message_names_its_job_or_is_its_name(intake: Intake, backend: Backend) -> None:
    assert failed(intake, message({**GOOD, "id": "own"}, "m1"), message(GOOD, "m2")) == []
    assert ids(backend) == ["own", "m2"]


def test_each_queue_of_a_batch_is_one_call(
    intake: Intake, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    real = backend.enqueue

    def enqueue(jobs: Sequence[NewJob]) -> list[Enqueued]:
        calls.append([job.id for job in jobs])
        return real(jobs)

    monkeypatch.setattr(backend, "enqueue", enqueue)
    other = {**GOOD, "queue": "other"}
    assert failed(intake, message(GOOD, "1"), message(other, "2"), message(GOOD, "3")) == []
    assert calls == [["1", "3"], ["2"]]


BAD = {
    "unknown task": {"task": "nobody"},
    "impossible queue": {**GOOD, "queue": "a b"},
    "arguments that do not fit": {"task": "send", "args": []},
    "no such field": {**GOOD, "colour": "red"},
    "unknown parent": {**GOOD, "depends_on": ["nobody"]},
    "no JSON": "{",
    "no object": "7",
    "empty": "",
    "too deep": "[" * 100_000,
    "twice": '{"task": "send", "task": "send", "args": ["a"]}',
}


@pytest.mark.parametrize("kind", list(BAD))
def test_what_can_never_be_a_job_fails_and_stops_no_other(
    intake: Intake, backend: Backend, kind: str
) -> None:
    batch = [message(GOOD, "before"), message(BAD[kind], "bad"), message(GOOD, "after")]
    assert failed(intake, *batch) == ["bad"]
    assert ids(backend) == ["before", "after"]
    assert failed(intake, batch[1]) == ["bad"]  # all of a batch


def test_a_message_like_no_other_stops_no_other(intake: Intake, backend: Backend) -> None:
    odd = message(GOOD, "odd")
    odd["messageAttributes"] = {"Idempotency-Key": "text"}
    bare = {name: message(GOOD, "bare")[name] for name in ("messageId", "body", "eventSource")}
    assert failed(intake, odd, bare, message(GOOD, "good")) == ["odd"]
    assert ids(backend) == ["bare", "good"]


@pytest.mark.promise("D6")
def test_a_key_that_is_no_text_is_not_passed_over(intake: Intake, backend: Backend) -> None:
    batch = [message(GOOD, f"m{number}") for number in range(2)]
    for one in batch:  # as a producer that repeats itself sends it, under a new message id
        one["messageAttributes"]["Idempotency-Key"] = {"binaryValue": "aw==", "dataType": "Binary"}
    assert failed(intake, *batch) == ["m0", "m1"]
    assert ids(backend) == []


def test_a_key_that_belongs_to_another_message_fails(intake: Intake, backend: Backend) -> None:
    assert failed(intake, message(GOOD, "m1", key="k"), message(GOOD, "m2", key="k")) == []
    assert failed(intake, message({**GOOD, "args": ["b"]}, "m3", key="k")) == ["m3"]
    assert failed(intake, message({**GOOD, "id": "other"}, "m4", key="k")) == ["m4"]
    assert failed(intake, message(GOOD, "m5", key="\x00")) == ["m5"]
    assert ids(backend) == ["k"]


class Broken:
    """The backend with an enqueue that fails for some jobs."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Callable[[str], Exception | None] = lambda job_id: None
        self.calls = 0
        real = backend.enqueue

        def enqueue(jobs: Sequence[NewJob]) -> list[Enqueued]:
            self.calls += 1
            for job in jobs:
                if error := self.error(job.id):
                    raise error
            return real(jobs)

        monkeypatch.setattr(backend, "enqueue", enqueue)


@pytest.fixture
def broken(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Broken:
    return Broken(backend, monkeypatch)


@pytest.mark.promise("D1", "D6")
def test_all_fail_while_the_store_cannot_be_reached(
    intake: Intake, backend: Backend, broken: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    batch = [message({**GOOD, "queue": f"q{n}", "args": [SECRET]}, f"m{n}") for n in range(10)]
    broken.error = lambda job_id: BackendError("no route", transient=True)
    assert failed(intake, *batch) == [f"m{n}" for n in range(10)]
    assert broken.calls == 1  # the other nine queues would only use up the time
    assert "no route" in caplog.text
    assert SECRET not in caplog.text
    broken.error = lambda job_id: None
    assert failed(intake, *batch) == []  # as they come again
    assert [ids(backend, f"q{n}") for n in range(10)] == [[f"m{n}"] for n in range(10)]


def test_the_store_is_lost_half_way(intake: Intake, backend: Backend, broken: Broken) -> None:
    batch = [message({**GOOD, "queue": f"q{n}"}, f"m{n}") for n in range(3)]
    broken.error = lambda job_id: BackendError("gone", transient=True) if job_id == "m1" else None
    assert failed(intake, *batch) == ["m1", "m2"]
    broken.error = lambda job_id: None
    assert failed(intake, *batch[1:]) == []
    assert [ids(backend, f"q{n}") for n in range(3)] == [["m0"], ["m1"], ["m2"]]


@pytest.mark.parametrize("error", [Unsupported("no dependencies"), BackendError("odd", transient=False)])
def test_a_job_that_the_store_chokes_on_stops_no_other(
    intake: Intake, backend: Backend, broken: Broken, error: Exception
) -> None:
    broken.error = lambda job_id: error if job_id == "1" else None
    assert failed(intake, *(message(GOOD, str(n)) for n in range(3))) == ["1"]
    assert ids(backend) == ["0", "2"]


def test_after_a_failure_the_rest_of_a_fifo_group_fails_unread(intake: Intake, backend: Backend) -> None:
    batch = [
        message(GOOD, "a1", group="a"),
        message(GOOD, "b1", group="b"),
        message({"task": "nobody"}, "a2", group="a"),
        message(GOOD, "a3", group="a"),
        message(GOOD, "b2", group="b"),
        message({**GOOD, "depends_on": ["nobody"]}, "b3", group="b"),  # refused by the store alone
        message(GOOD, "b4", group="b"),
    ]
    assert failed(intake, *batch) == ["a2", "a3", "b3", "b4"]
    assert ids(backend) == ["a1", "b1", "b2"]


def test_a_standard_queues_groups_have_no_order(intake: Intake, backend: Backend) -> None:
    batch = [message({"task": "nobody"}, "1"), message(GOOD, "2")]
    for record in batch:
        record["attributes"]["MessageGroupId"] = "tenant"
    assert failed(intake, *batch) == ["1"]
    assert ids(backend) == ["2"]


def test_no_argument_is_logged(intake: Intake, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert failed(
        intake,
        message({"task": "send", "args": [SECRET]}, "1"),
        message({"task": "send", "args": [SECRET, SECRET, SECRET]}, "2"),
        message(f'{{"task": "send", "args": ["{SECRET}"', "3"),
    ) == ["2", "3"]
    assert "message became no job" in caplog.text
    assert SECRET not in caplog.text
