"""Requests to the HTTP face and what they answer, in this process.

Each test runs with the events of every flavour of HTTP, over the memory backend, and of one over SQLite.
"""

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from mayflymq import (
    BackendError,
    EnqueueStatus,
    InvalidJob,
    NewJob,
    Queue,
    State,
    UnknownTask,
    open_backend,
)
from mayflymq.aws import http
from mayflymq.aws.documents import FIELDS, MAX_TOLD_BYTES, Intake
from mayflymq.aws.http import Api, flavour_of
from mayflymq.aws.openapi import description
from mayflymq.backends.base import Backend
from mayflymq.errors import Unsupported
from mayflymq.model import Claim, ClaimRequest, Complete, Enqueued, Fail, JobError, Settle
from mayflymq.tasks import Registry, Task

EVENTS = Path(__file__).resolve().parents[2] / "events"
SECRET = "swordfish-4711"  # an argument that must not come out anywhere
PROBLEM = "application/problem+json"


def send(to: str, subject: str = "hello", *, copies: int = 1) -> None:
    """Stands for a user's task; never called here."""


TASKS = Registry()
TASKS.add(Task(name="send", fn=send, queue="emails", priority=2))
TASKS.add(Task(name="internal", fn=lambda: None, http=False))


class Answer:
    """A response, read the way a client would."""

    def __init__(self, response: dict[str, Any]) -> None:
        assert set(response) >= {"statusCode", "body", "isBase64Encoded"}
        assert response["isBase64Encoded"] is False
        assert ("headers" in response) is not ("multiValueHeaders" in response)
        many = response.get("multiValueHeaders", {})
        assert all(len(values) == 1 for values in many.values())
        self.status: int = response["statusCode"]
        self.headers: dict[str, str] = response.get("headers") or {name: one for name, [one] in many.items()}
        self.type = self.headers["Content-Type"]
        self.body: Any = json.loads(response["body"])


def sample(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def http_v2(
    name: str, method: str, path: str, stage: str, headers: dict[str, str], body: str | None
) -> dict[str, Any]:
    """As an HTTP API hands a request over: with its path decoded, and the stage in it; a function URL as it
    came."""
    event = sample(name)
    stage = "$default" if name == "enqueue_function_url_get" else stage
    path = path if name == "enqueue_function_url_get" else unquote(path)
    path = path if stage == "$default" else f"/{stage}{path}"
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    event["requestContext"]["http"]["method"] = method
    event["requestContext"]["stage"] = stage
    event["headers"] |= headers
    return event if body is None else event | {"body": body}


def http_v1(
    name: str, method: str, path: str, stage: str, headers: dict[str, str], body: str | None
) -> dict[str, Any]:
    """As a REST API or a load balancer hands a request over: with its path as it came, and what is not given
    as null or empty."""
    event = sample(name)
    event |= {"httpMethod": method, "path": path, "body": ("" if "alb" in name else None)}
    if "path" in event["requestContext"]:  # a REST API
        at = "" if stage == "$default" else f"/{stage}"
        event["requestContext"] |= {"httpMethod": method, "path": at + path, "stage": stage}
    if "headers" in event:
        event["headers"] |= headers
    if "multiValueHeaders" in event:
        event["multiValueHeaders"] |= {name: [value] for name, value in headers.items()}
    return event if body is None else event | {"body": body}


FLAVOURS = {
    "http-api": (http_v2, "enqueue_http_v2_get"),
    "rest-api": (http_v1, "enqueue_http_v1_get"),
    "function-url": (http_v2, "enqueue_function_url_get"),
    "alb": (http_v1, "enqueue_alb_get"),
    "alb-multi-value": (http_v1, "enqueue_alb_multi_value_post"),
}


class Client:
    """Sends requests as events of one flavour. A path is what a client writes, percent-encoded."""

    def __init__(self, backend: Backend, flavour: str = "http-api", **options: Any) -> None:
        self.backend = backend
        self.flavour = flavour
        self.intake = Intake(backend, tasks=TASKS, **options)
        self.api = Api(self.intake)

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: str | None = None,
        stage: str = "$default",
        base64_encoded: bool = False,
        **headers: str,
    ) -> Answer:
        text = json.dumps(body) if raw is None and body is not None else raw
        make, name = FLAVOURS[self.flavour]
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        if self.flavour in ("http-api", "function-url"):  # which write all names small
            named = {name.lower(): value for name, value in named.items()}
        event = make(name, method, path, stage, named, text)
        event["isBase64Encoded"] = base64_encoded
        assert flavour_of(event) == self.flavour.removesuffix("-multi-value")
        return Answer(self.api.respond(event, None))

    def post(self, body: object = None, **more: Any) -> Answer:
        return self("POST", "/queues/emails/jobs", body, **more)

    def ids(self, state: State = State.WAITING) -> list[str]:
        return [job.id for job in Queue("emails", self.backend).jobs(state).jobs]

    def claim(self) -> Claim:
        request = ClaimRequest("emails", 1, str(uuid.uuid4()), "worker", 30_000)
        return self.backend.claim(request)[0].claim


@pytest.fixture
def one() -> Client:
    """For what no flavour has a part in."""
    return Client(open_backend(f"memory://{uuid.uuid4()}"))


@pytest.fixture(params=[*FLAVOURS, "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    if request.param != "sqlite":
        yield Client(open_backend(f"memory://{uuid.uuid4()}"), request.param)
        return
    backend = open_backend(f"sqlite:///{tmp_path}/queue.db")
    yield Client(backend)
    backend.close()


def assert_problem(answer: Answer, status: int, kind: str, fields: Sequence[str] | None = None) -> None:
    assert answer.status == status
    assert answer.type == PROBLEM
    assert answer.body["status"] == status
    assert answer.body["type"] == f"urn:mayflymq:problem:{kind}"
    assert answer.body["title"]
    assert answer.body["detail"]
    if fields is not None:
        assert [error["field"] for error in answer.body["errors"]] == list(fields)
        assert all(error["detail"] for error in answer.body["errors"])


# Enqueueing


def test_a_job_is_accepted(client: Client) -> None:
    answer = client.post(
        {"task": "send", "args": ["a@b"], "kwargs": {"copies": 2}, "meta": {"tenant": "acme"}}
    )
    assert (answer.status, answer.type) == (202, "application/json")
    assert answer.body == {
        "id": answer.body["id"],
        "queue": "emails",
        "status": "created",
        "state": "waiting",
    }
    assert answer.headers["Location"] == f"/queues/emails/jobs/{answer.body['id']}"
    job = Queue("emails", client.backend).get(answer.body["id"])
    assert job is not None
    assert json.loads(job.payload) == {"args": ["a@b"], "kwargs": {"copies": 2}, "meta": {"tenant": "acme"}}
    assert job.priority == 2  # the task's own


def test_every_field_reaches_the_job(client: Client) -> None:
    client.post({"task": "send", "id": "parent", "args": ["a"]})
    body = {
        "task": "send",
        "args": ["a"],
        "kwargs": {},
        "id": "child",
        "priority": -7,
        "run_at": "2031-02-03T04:05:06.789+01:00",
        "ttl": 3_000_000_000.5,
        "timeout": 1.5,
        "max_retries": 0,
        "meta": {},
        "depends_on": ["parent"],
        "on_parent_failure": "run",
        "dedup": {"key": "k", "mode": "throttle", "window": 60, "extend": False},
    }
    assert set(body) | {"delay"} == set(FIELDS)
    assert client.post(body).status == 202
    job = Queue("emails", client.backend).get("child")
    assert job is not None
    assert (job.priority, job.ttl_ms, job.timeout_ms, job.max_retries) == (-7, 3_000_000_000_500, 1500, 0)
    assert (job.depends_on, job.on_parent_failure) == (("parent",), "run")
    assert job.dedup is not None
    assert (job.dedup.key, job.dedup.mode, job.dedup.window_ms, job.dedup.extend) == (
        "k",
        "throttle",
        60_000,
        False,
    )
    shown = client("GET", "/queues/emails/jobs/child").body
    assert shown["run_at"] == "2031-02-03T03:05:06.789Z"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["created_at"])


def test_a_delay_is_in_seconds_and_null_is_not_given(client: Client) -> None:
    answer = client.post(
        {"task": "send", "args": ["a"], "delay": 3600, "id": "later", "run_at": None, "kwargs": None}
    )
    assert (answer.status, answer.body["state"]) == (202, "delayed")
    assert client.ids(State.DELAYED) == ["later"]


def test_a_time_beyond_the_calendar_can_be_shown(client: Client) -> None:
    assert client.post({"task": "send", "args": ["a"], "delay": 1e14, "id": "never"}).status == 202
    assert client("GET", "/queues/emails/jobs/never").body["run_at"] == "9999-12-31T23:59:59.999Z"


@pytest.mark.promise("D6", backends=["memory"])
def test_an_id_that_exists_changes_nothing(client: Client) -> None:
    first = client.post({"task": "send", "args": ["a"], "id": "one"})
    again = client.post({"task": "send", "args": ["b"], "id": "one"})
    assert (first.status, again.status) == (202, 200)
    assert again.body["status"] == "duplicate_id"
    assert again.headers["Location"] == first.headers["Location"]
    job = Queue("emails", client.backend).get("one")
    assert job is not None
    assert json.loads(job.payload)["args"] == ["a"]
    assert client.ids() == ["one"]


@pytest.mark.promise("D6", backends=["memory"])
@pytest.mark.parametrize(
    ("header", "job_id"), [("k-1", "k-1"), ('"k-1"', "k-1"), (r'"k\"1"', 'k"1'), ('"k', '"k')]
)
def test_an_idempotency_key_becomes_the_id(client: Client, header: str, job_id: str) -> None:
    body = {"task": "send", "args": ["a"]}
    first, again = (client.post(body, idempotency_key=header) for _ in range(2))
    assert (first.status, first.body["id"], first.body["status"]) == (202, job_id, "created")
    assert (again.status, again.body["id"], again.body["status"]) == (200, job_id, "duplicate_id")
    assert client.post({**body, "id": job_id}, idempotency_key=header).status == 200


@pytest.mark.parametrize(
    "other",
    [
        {"args": ["b"]},
        {"kwargs": {"copies": 2}},
        {"meta": {"a": "b"}},
        {"priority": 3},
        {"ttl": 60},
        {"timeout": 60},
        {"max_retries": 0},
        {"on_parent_failure": "run"},
        {"depends_on": ["parent"]},
        {"dedup": {"key": "k"}},
    ],
)
def test_an_idempotency_key_with_another_body(client: Client, other: dict[str, Any]) -> None:
    client.post({"task": "send", "args": ["a"], "id": "parent"})
    body = {"task": "send", "args": ["a"], "delay": 60}
    assert client.post(body, idempotency_key="k").status == 202
    assert_problem(
        client.post({**body, **other}, idempotency_key="k"),
        422,
        "idempotency-key-reused",
        ["Idempotency-Key"],
    )
    assert client.post(body, idempotency_key="k").status == 200  # the delay counts from each request
    for full in ({**body, **other}, {**body, **other}):
        assert client.post(full, idempotency_key="full").body["id"] == "full"


@pytest.mark.promise("D6", backends=["memory"])
@pytest.mark.parametrize("header", ["", '""', "x" * 256, "a\tb", "\ud800"])
def test_a_key_that_no_id_can_be_is_refused_by_its_own_name(client: Client, header: str) -> None:
    answer = client.post({"task": "send", "args": ["a"]}, idempotency_key=header)
    assert_problem(answer, 422, "invalid-job", ["Idempotency-Key"])
    assert client.ids() == []  # and does not become a job that a second request would make again


def test_an_idempotency_key_stands_for_one_request(client: Client) -> None:
    assert client.post({"task": "send", "args": ["a"]}, idempotency_key="k").status == 202
    reused = client.post({"task": "send", "args": ["b"]}, idempotency_key="k")
    assert_problem(reused, 422, "idempotency-key-reused", ["Idempotency-Key"])
    assert_problem(
        client.post({"task": "send", "args": ["a"], "id": "x"}, idempotency_key="k"),
        422,
        "invalid-job",
        ["id"],
    )
    assert_problem(client.post([{"task": "send", "args": ["a"]}], idempotency_key="m"), 422, "invalid-job")
    assert client.ids() == ["k"]


def test_a_body_may_be_base64_encoded(client: Client) -> None:
    raw = base64.b64encode(
        json.dumps({"task": "send", "args": ["é"], "id": "é"}, ensure_ascii=False).encode()
    ).decode()
    assert client.post(raw=raw, base64_encoded=True).status == 202
    assert client.ids() == ["é"]


def test_deduplication_names_the_holder(client: Client) -> None:
    body = {"task": "send", "args": ["a"], "dedup": {"key": "k"}}
    client.post({**body, "id": "first"})
    second = client.post({**body, "id": "second"})
    assert (second.status, second.body["status"], second.body["id"]) == (200, "deduplicated", "first")
    assert second.headers["Location"].endswith("/jobs/first")
    late = {"task": "send", "args": ["a"], "dedup": {"key": "late", "mode": "debounce"}, "delay": 60}
    client.post({**late, "id": "older"})
    newer = client.post({**late, "id": "newer"})
    assert (newer.status, newer.body["status"], newer.body["replaced"]) == (202, "replaced", "older")


# Lists


@pytest.mark.promise("G4", backends=["memory"])
def test_each_job_of_a_list_is_accepted_or_refused_by_itself(client: Client) -> None:
    good = {"task": "send", "args": ["a"]}
    client.post({**good, "id": "old"})
    answer = client.post(
        [
            {**good, "id": "new"},
            {**good, "id": "bad", "priority": True},
            {**good, "id": "old"},
            7,
            {"task": "x"},
        ]
    )
    assert answer.status == 202
    assert [job["status"] for job in answer.body["jobs"]] == [
        "created",
        "refused",
        "duplicate_id",
        "refused",
        "refused",
    ]
    assert [job.get("id") for job in answer.body["jobs"]] == ["new", "bad", "old", None, None]
    problems = [job["problem"] for job in answer.body["jobs"] if "problem" in job]
    assert [problem["errors"][0]["field"] for problem in problems] == ["priority", "(body)", "task"]
    assert client.ids() == ["old", "new"]


def test_a_list_takes_a_thousand_jobs(client: Client) -> None:
    jobs = [{"task": "send", "args": ["a"], "id": str(number)} for number in range(1001)]
    assert_problem(client.post(jobs), 413, "too-many-jobs")
    assert client.ids() == []
    answer = client.post(jobs[:1000])
    assert answer.status == 202
    assert [job["id"] for job in answer.body["jobs"]] == [str(number) for number in range(1000)]


def test_a_list_of_which_nothing_can_be_accepted_is_a_problem(client: Client) -> None:
    assert_problem(client.post([]), 422, "invalid-job", ["(body)"])
    refused = client.post([{"task": "send"}, {"task": "send", "args": ["a"], "depends_on": ["nobody"]}])
    assert_problem(refused, 422, "invalid-job")
    assert [job["problem"]["errors"][0]["field"] for job in refused.body["jobs"]] == ["args", "depends_on"]
    assert client.ids() == []


JUNK: list[dict[str, Any]] = [
    {str(number): 0 for number in range(200)},
    {"id": "\N{SNOWMAN}" * 2000},
    {"task": "send", "args": ["a"], "kwargs": {"\N{SNOWMAN}" * 2000: 1}},
    {"task": "send", "args": ["a"], "run_at": "\N{SNOWMAN}" * 2000},
    {"task": "send", "args": ["a"], "dedup": {str(number): 0 for number in range(200)}},
    {"task": "send", "args": ["a"], "depends_on": ["\N{SNOWMAN}" * 255] * 10},
    {name: [] for name in FIELDS} | {"\x00" * 200: 0},
]


@pytest.mark.promise("G4", backends=["memory"])
@pytest.mark.parametrize("junk", JUNK)
def test_an_answer_fits_into_what_a_function_may_answer(one: Client, junk: dict[str, Any]) -> None:
    """Else the sender of a list would never learn which of its jobs were accepted."""
    answer = one.post([{"task": "send", "args": ["a"], "id": "good"}, *([junk] * 999)])
    assert [job["status"] for job in answer.body["jobs"]] == ["created"] + ["refused"] * 999
    assert answer.body["jobs"][0]["id"] == "good"
    assert len(json.dumps(json.dumps(answer.body))) < 6 * 1024 * 1024
    assert_problem(one.post([junk] * 1000), 422, "invalid-job")
    alone = one.post(junk)
    assert alone.status == 422
    assert alone.body["errors"][0]["detail"]
    assert len(json.dumps(alone.body)) < 3000


# What is refused


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "{'task': 'send'}",
        '{"task": "send"} trailing',
        '{"task": "send", "args": [NaN]}',
        '{"task": "send", "args": [-Infinity]}',
        '{"task": "send", "args": ["a"], "args": ["b"]}',
        '{"task": "send", "kwargs": {"to": 1, "to": 2}}',
        "\ufeff{}",
        "[" * 100_000,
        '{"task": "send", "args": [' + "9" * 5000 + "]}",
    ],
)
def test_a_malformed_body(one: Client, raw: str) -> None:
    assert_problem(one.post(raw=raw), 400, "malformed-body")
    assert one.ids() == []


@pytest.mark.parametrize("raw", ["not base64!", "e30=!", base64.b64encode(b'{"task": "\xff"}').decode()])
def test_a_malformed_base64_body(one: Client, raw: str) -> None:
    assert_problem(one.post(raw=raw, base64_encoded=True), 400, "malformed-body")


def test_a_post_without_a_body(client: Client) -> None:
    assert_problem(client.post(), 400, "malformed-body")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"task": None}, ["task"]),
        ({"task": 5}, ["task"]),
        ({"priority": True}, ["priority"]),
        ({"priority": 2.0}, ["priority"]),
        ({"priority": 2**31}, ["priority"]),
        ({"delay": True}, ["delay"]),
        ({"delay": "5"}, ["delay"]),
        ({"ttl": False}, ["ttl"]),
        ({"ttl": 0}, ["ttl"]),
        ({"timeout": -1}, ["timeout"]),
        ({"timeout": []}, ["timeout"]),
        ({"max_retries": -1}, ["max_retries"]),
        ({"max_retries": True}, ["max_retries"]),
        ({"run_at": "tomorrow"}, ["run_at"]),
        ({"run_at": "2031-02-03T04:05:06"}, ["run_at"]),
        ({"run_at": 1_900_000_000}, ["run_at"]),
        ({"delay": 1, "run_at": "2031-02-03T04:05:06Z"}, ["run_at"]),
        ({"args": "abc"}, ["args"]),
        ({"args": {"to": "a"}}, ["args"]),
        ({"kwargs": ["a"]}, ["kwargs"]),
        ({"args": ["a", "b", "c"]}, ["args"]),
        ({"args": [], "kwargs": {"cc": "a"}}, ["kwargs"]),
        ({"args": ["a"], "kwargs": {"to": "b"}}, ["args"]),
        ({"id": ""}, ["id"]),
        ({"id": 5}, ["id"]),
        ({"id": "x" * 256}, ["id"]),
        ({"id": "a\x00b"}, ["id"]),
        ({"id": "\ud800"}, ["id"]),
        ({"meta": {"a": 1}}, ["meta"]),
        ({"meta": "a"}, ["meta"]),
        ({"depends_on": "parent"}, ["depends_on"]),
        ({"depends_on": [1]}, ["depends_on"]),
        ({"depends_on": ["nobody"]}, ["depends_on"]),
        ({"on_parent_failure": "ignore"}, ["on_parent_failure"]),
        ({"dedup": "k"}, ["dedup"]),
        ({"dedup": {}}, ["dedup"]),
        ({"dedup": {"key": "k", "ttl": 1}}, ["dedup"]),
        ({"dedup": {"key": "k", "mode": "never"}}, ["dedup"]),
        ({"dedup": {"key": "k", "mode": []}}, ["dedup"]),
        ({"dedup": {"key": "k", "extend": 1}}, ["dedup"]),
        ({"dedup": {"key": "k", "mode": "throttle", "window": True}}, ["dedup"]),
        ({"dedup": {"key": "k", "mode": "debounce"}}, ["dedup"]),
        ({"dedup": {"key": "k", "mode": "debounce"}, "delay": 5, "priority": "x"}, ["priority"]),
        ({"color": "red", "Priority": 1}, ["color", "Priority"]),
        ({"queue": "emails"}, ["queue"]),
        ({"backoff": 5}, ["backoff"]),
        ({"priority": True, "ttl": "x", "max_retries": 1.5}, ["priority", "ttl", "max_retries"]),
    ],
)
def test_a_job_that_cannot_be_meant(one: Client, fields: dict[str, Any], wrong: list[str]) -> None:
    answer = one.post({"task": "send", "args": ["a"], **fields})
    assert_problem(answer, 422, "invalid-job", wrong)
    assert one.ids() == []


@pytest.mark.parametrize("body", ["text", 7, True, None])
def test_a_body_that_is_no_job(one: Client, body: object) -> None:
    assert_problem(one.post(raw=json.dumps(body)), 422, "invalid-job", ["(body)"])


def test_numbers_beyond_a_double_are_refused(client: Client) -> None:
    for field in ('"args": [1e999]', '"args": ["a"], "delay": 1e999'):
        assert_problem(client.post(raw=f'{{"task": "send", {field}}}'), 422, "invalid-job")
    assert client.ids() == []


def test_the_words_are_those_of_the_library(client: Client) -> None:
    with pytest.raises(InvalidJob) as refused:
        Queue("emails", client.backend).job("send", ["a"], priority=True)
    answer = client.post({"task": "send", "args": ["a"], "priority": True})
    assert answer.body["errors"] == [{"field": "priority", "detail": str(refused.value)}]


def test_unknown_and_internal_tasks_are_refused_alike(client: Client) -> None:
    unknown, internal = (client.post({"task": name}) for name in ("external", "internal"))
    for answer in (unknown, internal):
        assert_problem(answer, 422, "unknown-task", ["task"])
    assert unknown.body["detail"].replace("external", "internal") == internal.body["detail"]
    assert unknown.body["detail"].endswith("MAYFLYMQ_TASKS decides which can: send")


def test_of_many_tasks_some_are_named_to_who_asks_for_another(one: Client) -> None:
    tasks = Registry()
    for number in range(30):
        tasks.add(Task(name=f"t{number:02}", fn=send, http=number != 5))
    told = str(refused(Intake(one.backend, tasks=tasks)))
    named = [f"t{number:02}" for number in range(21) if number != 5]
    assert told.endswith(f"decides which can: {', '.join(named)}, ...")
    long = Registry()
    for number in range(30):
        long.add(Task(name=f"{number:02}" + "\u00e9" * 250, fn=send))
    assert len(json.dumps(str(refused(Intake(one.backend, tasks=long))))) < MAX_TOLD_BYTES / 2 + 50
    assert str(refused(Intake(one.backend, tasks=Registry()))).endswith("decides which can: none")


def refused(intake: Intake) -> UnknownTask:
    with pytest.raises(UnknownTask) as caught:
        intake.job(intake.queue("emails"), {"task": "nobody"}, http=True)
    return caught.value


def test_a_payload_that_is_too_large(client: Client) -> None:
    small = Client(client.backend, client.flavour, max_payload_bytes=100)
    assert_problem(small.post({"task": "send", "args": ["x" * 100]}), 413, "payload-too-large")
    assert small.ids() == []
    listed = small.post([{"task": "send", "args": ["x" * 100]}, {"task": "send", "args": ["x"]}])
    assert [job.get("problem", {}).get("status") for job in listed.body["jobs"]] == [413, None]


def test_a_queue_that_cannot_be(client: Client) -> None:
    for path in ("/queues/a%20b/jobs", "/queues/emails.dlq/jobs"):
        assert_problem(client("POST", path, {"task": "send", "args": ["a"]}), 422, "invalid-job", ["queue"])


@pytest.mark.parametrize(
    "path", ["/", "/queues", "/queues/", "/queues/a/b", "/queues/a/jobs/", "/queues//jobs", "/jobs"]
)
def test_a_path_that_is_not_served(client: Client, path: str) -> None:
    assert_problem(client("GET" if path != "/queues//jobs" else "POST", path), 404, "unknown-path")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/queues/emails/jobs", "POST"),
        ("POST", "/queues/emails/jobs/x", "DELETE, GET"),
        ("PUT", "/queues/emails/jobs/x", "DELETE, GET"),
        ("PUT", "/queues/emails/jobs/x/retry", "DELETE, GET, POST"),
        ("POST", "/openapi.json", "GET"),
        ("PATCH", "/queues/emails/jobs/x/y", "DELETE, GET"),
        ("DELETE", "/queues/emails", "GET"),
        ("OPTIONS", "/queues/emails", "GET"),
    ],
)
def test_a_method_that_is_not_allowed(client: Client, method: str, path: str, allowed: str) -> None:
    answer = client(method, path)
    assert_problem(answer, 405, "wrong-method")
    assert answer.headers["Allow"] == allowed


class Failing:
    """A backend whose every call raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            raise self.error

        return call


def test_a_store_that_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(Failing(BackendError("db-7.internal:6379 refused", transient=True)))  # type: ignore[arg-type]
    for answer in (client.post({"task": "send", "args": [SECRET]}), client("GET", "/queues/emails/jobs/x")):
        assert_problem(answer, 503, "store-unreachable")
        assert answer.headers["Retry-After"] == "1"
        assert "db-7" not in json.dumps(answer.body)
    assert "db-7" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "error", [KeyError("row 7 of /srv/db"), BackendError("disk full: /srv/db", transient=False)]
)
def test_what_nobody_foresaw(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    answer = Client(Failing(error)).post({"task": "send", "args": [SECRET]})  # type: ignore[arg-type]
    assert_problem(answer, 500, "internal-error")
    assert "/srv/db" not in json.dumps(answer.body)
    assert "/srv/db" in caplog.text
    assert SECRET not in caplog.text


def test_no_argument_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    client.post({"task": "send", "args": [SECRET]})
    client.post({"task": "send", "args": [SECRET], "priority": "x"})
    client.post(raw=f'{{"task": "send", "args": ["{SECRET}"')
    client.post([{"task": "send", "args": [SECRET]}, {"task": "send", "args": [SECRET, SECRET, SECRET]}])
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


# Asking and cancelling


def test_a_job_that_completed(client: Client) -> None:
    client.post({"task": "send", "args": ["a"], "id": "j"})
    waiting = client("GET", "/queues/emails/jobs/j")
    assert (waiting.status, waiting.body["state"], waiting.body["result"]) == (200, "waiting", None)
    client.backend.settle([Settle(client.claim(), Complete(b'{"sent":[1,null]}'))])
    done = client("GET", "/queues/emails/jobs/j").body
    assert (done["state"], done["result"], done["error"]) == ("completed", {"sent": [1, None]}, None)
    assert (done["deliveries"], done["failures"], done["stalls"]) == (1, 0, 0)
    assert done["finished_at"] >= done["created_at"]


def test_a_job_that_failed_shows_no_traceback(client: Client) -> None:
    client.post({"task": "send", "args": [SECRET], "id": "j"})
    error = JobError("ValueError", "no such address", "File /srv/app.py, line 7")
    client.backend.settle([Settle(client.claim(), Fail(error))])
    answer = client("GET", "/queues/emails/jobs/j")
    assert answer.body["state"] == "failed"
    assert answer.body["error"] == {"type": "ValueError", "message": "no such address"}
    assert answer.body["first_error"] == answer.body["error"]
    assert "/srv/app.py" not in json.dumps(answer.body)
    assert SECRET not in json.dumps(answer.body)


@pytest.mark.parametrize(
    "path", ["/queues/emails/jobs/nobody", "/queues/none/jobs/x", "/queues/emails/jobs/%00"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_unknown_job(client: Client, method: str, path: str) -> None:
    assert_problem(client(method, path), 404, "unknown-job")


@pytest.mark.parametrize("flavour", ["rest-api", "function-url", "alb"])  # with the path as it came
def test_what_is_no_utf_8_names_no_job(flavour: str) -> None:
    client = Client(open_backend(f"memory://{uuid.uuid4()}"), flavour)
    client.post({"task": "send", "args": ["a"], "id": "\ufffd"})
    assert_problem(client("DELETE", "/queues/emails/jobs/%FF"), 404, "unknown-job")
    assert client("GET", "/queues/emails/jobs/%EF%BF%BD").status == 200


@pytest.mark.parametrize(
    ("job_id", "encoded"),
    [
        ("a/b", "a%2Fb"),
        ("a/jobs/b", "a%2Fjobs%2Fb"),
        ("100%", "100%25"),
        ("a%2Fb", "a%252Fb"),
        ("größe ☃", "gr%C3%B6%C3%9Fe%20%E2%98%83"),
        ('?#"\\`+&=', "%3F%23%22%5C%60%2B%26%3D"),
        (".", "."),
    ],
)
def test_odd_ids_in_paths(client: Client, job_id: str, encoded: str) -> None:
    created = client.post({"task": "send", "args": ["a"], "id": job_id})
    path = created.headers["Location"]
    assert path == f"/queues/emails/jobs/{encoded}"
    assert client("GET", path).body["id"] == job_id
    assert_problem(client("POST", f"{path}/retry"), 409, "job-not-dead")
    if client.flavour == "http-api":  # as for a "?", at which HTTP APIs end a path once it is decoded
        assert client("GET", quote(path)).body["id"] == job_id
    elif "%25" not in encoded:  # as from an emulator that decodes
        assert client("GET", unquote(path)).body["id"] == job_id
    assert client("DELETE", path).body == {"id": job_id, "status": "cancelled"}


def test_of_two_readings_of_a_path_the_right_one_comes_first(client: Client) -> None:
    for job_id in ("a/b", "a%2Fb"):
        client.post({"task": "send", "args": ["a"], "id": job_id})
    assert client("GET", "/queues/emails/jobs/a%252Fb").body["id"] == "a%2Fb"
    assert client("GET", "/queues/emails/jobs/a%2Fb").body["id"] == "a/b"


def test_a_stage_is_part_of_the_location(client: Client) -> None:
    answer = client("POST", "/queues/emails/jobs", {"task": "send", "args": ["a"], "id": "x"}, stage="prod")
    at = "/prod" if client.flavour in ("http-api", "rest-api") else ""
    assert answer.headers["Location"] == f"{at}/queues/emails/jobs/x"
    assert client("GET", "/queues/emails/jobs/x", stage="prod").status == 200


@pytest.mark.parametrize("domain", ["", "/v1", "/team/queues"])
@pytest.mark.parametrize(
    ("resource", "named"),
    [
        ("/{proxy+}", lambda path: {"proxy": path.removeprefix("/")}),
        ("/queues/emails/{rest+}", lambda path: {"rest": path.removeprefix("/queues/emails/")}),
        (
            "/queues/{queue}/{rest+}",
            lambda path: {"queue": "emails", "rest": path.removeprefix("/queues/emails/")},
        ),
    ],
)
@pytest.mark.parametrize("read", [str, unquote])
@pytest.mark.parametrize("job_id", ["x", "a/b", "a%2Fb", "queues/emails/jobs/x"])
def test_the_base_path_of_a_custom_domain(
    one: Client,
    domain: str,
    resource: str,
    named: Callable[[str], dict[str, str]],
    read: Callable[[str], str],
    job_id: str,
) -> None:
    """A REST API has it in `path`, as has an HTTP API with payload format 1.0; what its route matched, as the
    client wrote it or decoded, has not."""

    def ask(method: str, path: str, body: str | None = None) -> Answer:
        event = http_v1("enqueue_http_v1_get", method, domain + path, "$default", {}, body)
        event |= {"resource": resource, "pathParameters": named(read(path))}
        return Answer(one.api.respond(event, None))

    made = json.dumps({"task": "send", "args": ["a"], "id": job_id})
    created = ask("POST", "/queues/emails/jobs", made)
    location = created.headers["Location"]
    assert location == f"{domain}/queues/emails/jobs/{quote(job_id, safe='')}"
    assert ask("GET", location.removeprefix(domain)).body["id"] == job_id
    if resource == "/{proxy+}":  # nothing else may stand before it
        assert_problem(ask("GET", "/v1/queues/emails"), 404, "unknown-path")


def test_a_queue_name_may_be_encoded(client: Client) -> None:
    answer = client("POST", "/queues/e%6Dails/jobs", {"task": "send", "args": ["a"], "id": "x"})
    assert answer.headers["Location"] == "/queues/emails/jobs/x"
    assert client("GET", "/queues/e%6Dails").body["counts"]["waiting"] == 1


@pytest.mark.promise("A2", backends=["memory"])
def test_a_retry_by_hand(client: Client) -> None:
    client.post({"task": "send", "args": ["a"], "id": "j"})
    path = "/queues/emails/jobs/j/retry"
    alive = client("POST", path)
    assert_problem(alive, 409, "job-not-dead")
    assert alive.body["state"] == "waiting"
    client.backend.settle([Settle(client.claim(), Fail(JobError("E", "e")))])
    again = client("POST", path)
    assert (again.status, again.body) == (202, {"id": "j", "status": "retried", "state": "waiting"})
    assert client("GET", "/queues/emails/jobs/j").body["replays"] == 1
    assert_problem(client("POST", "/queues/emails/jobs/nobody/retry"), 404, "unknown-job")


def test_a_retry_whose_key_is_taken_names_the_holder(client: Client) -> None:
    body = {"task": "send", "args": ["a"], "dedup": {"key": "k"}}
    client.post({**body, "id": "dead"})
    client.backend.settle([Settle(client.claim(), Fail(JobError("E", "e")))])
    client.post({**body, "id": "newer"})
    answer = client("POST", "/queues/emails/jobs/dead/retry")
    assert_problem(answer, 409, "dedup-key-taken")
    assert answer.body["holder"] == "newer"
    assert client.ids(State.FAILED) == ["dead"]


@pytest.mark.promise("X1", "X2", "X6", backends=["memory"])
def test_cancelling(client: Client) -> None:
    for job_id in ("active", "waiting"):
        client.post({"task": "send", "args": ["a"], "id": job_id})
    assert client.claim().job_id == "active"
    answers = [
        client("DELETE", f"/queues/emails/jobs/{job_id}") for job_id in ("active", "waiting", "waiting")
    ]
    assert [answer.status for answer in answers] == [202, 200, 200]
    assert [answer.body["status"] for answer in answers] == ["requested", "cancelled", "terminal"]
    assert client("GET", "/queues/emails/jobs/active").body["cancel_requested"] is True


def test_a_queue_at_a_glance(client: Client) -> None:
    client.post({"task": "send", "args": ["a"]})
    answer = client("GET", "/queues/emails")
    assert (answer.status, answer.body["name"], answer.body["counts"]["waiting"]) == (200, "emails", 1)
    assert client("GET", "/queues/none").body["counts"]["waiting"] == 0


# One call to the store


def test_a_list_is_one_call_of_the_store(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def enqueue(jobs: Sequence[NewJob]) -> list[Enqueued]:
        calls.append(len(jobs))
        return [Enqueued(job.id, EnqueueStatus.CREATED, State.WAITING) for job in jobs]

    monkeypatch.setattr(client.backend, "enqueue", enqueue)
    client.post([{"task": "send", "args": ["a"]}] * 3)
    assert calls == [3]


def test_what_the_backend_lacks_is_the_requests_fault(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enqueue(jobs: Sequence[NewJob]) -> list[Enqueued]:
        raise Unsupported("this store has no dependencies")

    monkeypatch.setattr(client.backend, "enqueue", enqueue)
    assert_problem(client.post({"task": "send", "args": ["a"], "depends_on": ["x"]}), 422, "unsupported")


# The description


def test_the_description_is_served_and_kept_in_docs(client: Client) -> None:
    answer = client("GET", "/openapi.json")
    assert (answer.status, answer.body) == (200, description())
    # To write it anew: python -m tests.functions.write_openapi
    assert json.loads((EVENTS.parent / "docs" / "openapi.json").read_text()) == description()


def test_the_description_is_complete(client: Client) -> None:
    described = description()
    operations = [
        (method.upper(), path.replace("{id}", "{job_id}"))
        for path, item in described["paths"].items()
        for method in item
        if method != "parameters"
    ]
    served = [(method, re.sub(r"<(\w+)>", r"{\1}", rule)) for method, rule, _ in client.api.routes]
    assert sorted(operations) == sorted(served)
    schemas = described["components"]["schemas"]
    assert set(schemas["NewJob"]["properties"]) == set(FIELDS)
    client.post({"task": "send", "args": ["a"], "id": "j"})
    job = client("GET", "/queues/emails/jobs/j").body
    assert set(schemas["Job"]["properties"]) == set(job)
    assert set(schemas["Queue"]["properties"]) == set(client("GET", "/queues/emails").body)


def test_the_description_hangs_together() -> None:
    described = description()
    text = json.dumps(described)
    for place in set(re.findall(r'"#/([^"]+)"', text)):
        node: Any = described
        for step in place.split("/"):
            node = node[step]
    names = re.findall(r'"operationId": "(\w+)"', text)
    assert len(names) == len(set(names))
    source = Path(http.__file__).read_text()
    kinds = set(re.findall(r'HTTPStatus\.\w+,\s+"([a-z-]+)"', source)) - {"internal-error"}
    assert len(kinds) > 8
    assert not [kind for kind in kinds if kind not in text]


# The sample events


@pytest.mark.parametrize(
    ("flavour", "post", "get"),
    [
        ("http-api", "enqueue_http_v2_post", "enqueue_http_v2_get"),
        ("rest-api", "enqueue_http_v1_post", "enqueue_http_v1_get"),
        ("function-url", "enqueue_function_url_post", "enqueue_function_url_get"),
        ("alb", "enqueue_alb_post", "enqueue_alb_get"),
        ("alb", "enqueue_alb_multi_value_post", "enqueue_alb_get"),
    ],
)
def test_the_sample_events_of_each_flavour(flavour: str, post: str, get: str) -> None:
    tasks = Registry()
    tasks.add(Task(name="digest_file", fn=lambda path: None))
    api = Api(Intake(open_backend(f"memory://{uuid.uuid4()}"), tasks=tasks))
    assert flavour_of(sample(post)) == flavour
    created = Answer(api.respond(sample(post), None))
    assert (created.status, created.body["id"]) == (202, "sample-1")
    assert Answer(api.respond(sample(get), None)).body["state"] == "waiting"
    assert_problem(Answer(api.respond(sample("enqueue_http_v2_retry"), None)), 409, "job-not-dead")
    assert Answer(api.respond(sample("enqueue_http_v2_openapi"), None)).status == 200


def test_an_event_that_is_no_kind_of_http_is_refused(client: Client) -> None:
    websocket = {"requestContext": {"routeKey": "$connect", "connectionId": "x"}}
    with pytest.raises(InvalidJob, match="not served"):
        client.api.respond(websocket, None)
