"""The template deployed with `sam deploy` to a local AWS, over a real Redis server. No account, no Docker.

What runs is what a user deploys: the API checks the callers' signatures and policies, SQS and the scheduler
wake the functions, and each function acts as its own role and may do what the role's policies say.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from localstack.emulator import LocalAws
from localstack.servers import RedisServer
from mayflymq import Queue, State, connect, open_backend
from mayflymq.aws.doorbell import open_doorbell
from tests.e2e.deployment import Api, Stack, wait_for

# The first test of a process also builds and deploys.
pytestmark = pytest.mark.timeout(300)

ENDED = {"completed", "failed", "expired", "cancelled"}
SWEEP_S = 60
MAY_CALL = {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "arn:aws:execute-api:*:*:*"}


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def stack(redis: RedisServer) -> Iterator[Stack]:
    with LocalAws() as aws:
        yield Stack(aws, redis.url)


@pytest.fixture(scope="session")
def caller(stack: Stack) -> Credentials:
    return stack.user("caller", MAY_CALL)


@pytest.fixture(scope="session")
def api(stack: Stack, caller: Credentials) -> Api:
    return Api(stack.aws, stack.outputs["ApiUrl"], caller)


@pytest.fixture
def rings_alone(stack: Stack) -> Iterator[None]:
    """No schedule ticks: what wakes the worker is a ring."""
    stack.schedules("DISABLED")
    yield
    stack.schedules("ENABLED")


def enqueue(api: Api, task: str, *args: object, **options: object) -> str:
    status, job, _ = api("POST", "/queues/default/jobs", {"task": task, "args": args, **options})
    assert status == 202, job
    assert job["status"] == "created"
    return f"/queues/default/jobs/{quote(job['id'], safe='')}"


def get(api: Api, path: str) -> Any:
    status, job, _ = api("GET", path)
    assert status == 200, job
    return job


def ended(api: Api, path: str, **patience: float) -> Any:
    return wait_for(lambda: get(api, path), lambda job: job["state"] in ENDED, **patience)


def seconds(job: Any, since: str, until: str) -> float:
    return (datetime.fromisoformat(job[until]) - datetime.fromisoformat(job[since])).total_seconds()


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.promise("F6", backends=("functions",))
def test_from_the_request_to_the_result(api: Api) -> None:
    job = ended(api, enqueue(api, "square", 12))
    assert (job["state"], job["result"], job["deliveries"]) == ("completed", 144, 1)


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.promise("O4", "F4", backends=("redis",))
def test_a_delayed_job_starts_by_its_delayed_ring(api: Api) -> None:
    path = enqueue(api, "square", 3, delay=3)
    assert get(api, path)["state"] == "delayed"
    job = ended(api, path)
    assert (job["state"], job["result"]) == ("completed", 9)
    assert seconds(job, "created_at", "finished_at") >= 3


@pytest.mark.promise("C6", "D3", backends=("redis",))
def test_the_scheduled_sweep_recovers_the_job_of_a_killed_worker(api: Api, stack: Stack) -> None:
    """Nothing here calls the sweep: its schedule does, within a minute."""
    before = sum(report["released"] for report in stack.reports("stalled-sweep"))
    path = enqueue(api, "killed_at_first", id="killed")
    wait_for(lambda: get(api, path), lambda job: job["deliveries"] == 1)
    wait_for(stack.aws.log, lambda log: "Worker process died" in log)  # the invocation is over
    job = get(api, path)
    assert (job["state"], job["stalls"]) == ("active", 0)  # it acknowledged nothing
    job = ended(api, path, patience_s=2 * SWEEP_S + 30)
    assert (job["state"], job["result"]) == ("completed", "killed, delivery 2")
    assert (job["deliveries"], job["stalls"], job["failures"]) == (2, 1, 0)
    assert sum(report["released"] for report in stack.reports("stalled-sweep")) == before + 1


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.promise("A2", backends=("redis",))
def test_a_poisoned_job_ends_in_the_dead_letter_queue_and_is_replayed(api: Api, tmp_path: Path) -> None:
    cure = tmp_path / "cure"
    path = enqueue(api, "needs", str(cure))
    job = ended(api, path)
    assert (job["state"], job["deliveries"], job["failures"]) == ("failed", 2, 2)
    assert job["error"]["type"] == "FileNotFoundError"
    assert get(api, "/queues/default")["counts"]["failed"] == 1

    cure.write_text("well again")
    status, answer, _ = api("POST", f"{path}/retry")
    assert (status, answer["status"]) == (202, "retried")
    job = ended(api, path)
    assert (job["state"], job["result"]) == ("completed", "well again")
    assert (job["deliveries"], job["failures"], job["replays"]) == (3, 0, 1)
    assert get(api, "/queues/default")["counts"]["failed"] == 0


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.promise("G4", backends=("redis",))
def test_a_list_of_100_jobs_is_done(api: Api, redis: RedisServer) -> None:
    jobs = [{"task": "square", "args": [number], "id": f"square-{number}"} for number in range(100)]
    status, answer, _ = api("POST", "/queues/batch/jobs", jobs)
    assert status == 202
    assert [job["status"] for job in answer["jobs"]] == ["created"] * 100
    info = wait_for(lambda: get(api, "/queues/batch"), lambda info: info["counts"]["completed"] == 100)
    assert sum(info["counts"].values()) == 100
    backend = open_backend(redis.url)
    try:
        done = [Queue("batch", backend).get(f"square-{number}") for number in range(100)]
    finally:
        backend.close()
    assert [job.result and json.loads(job.result) for job in done if job] == [n * n for n in range(100)]
    assert {job.deliveries for job in done if job} == {1}


# Who may do what


def test_a_caller_who_may_not_is_refused(api: Api, stack: Stack, caller: Credentials) -> None:
    job = {"task": "square", "args": [2], "id": "refused"}
    forged = Credentials(caller.access_key, "another secret")
    for who in (None, stack.user("nobody"), forged):
        status, answer, _ = Api(stack.aws, stack.outputs["ApiUrl"], who)("POST", "/queues/default/jobs", job)
        assert status == 403, answer
    assert api("GET", "/queues/default/jobs/refused")[0] == 404


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.parametrize("kind", ["rest", "url"])
@pytest.mark.promise("F6", backends=("functions",))
def test_the_other_kinds_of_api(stack: Stack, redis: RedisServer, kind: str) -> None:
    outputs = stack.deploy_again(f"kind-{kind}", ApiKind=kind, BackendUrl=f"redis://127.0.0.1:{redis.port}/1")
    stack.hear()
    allowed: dict[str, object] = dict(MAY_CALL)
    if kind == "url":
        actions = ["lambda:InvokeFunctionUrl", "lambda:InvokeFunction"]
        allowed = {"Effect": "Allow", "Action": actions, "Resource": "arn:aws:lambda:*:*:function:*"}
    api = Api(stack.aws, outputs["ApiUrl"], stack.user(kind, allowed))
    assert Api(stack.aws, outputs["ApiUrl"], None)("GET", "/openapi.json")[0] == 403
    check_ids(api, prefix=f"{kind}-")


@pytest.mark.usefixtures("rings_alone")
def test_any_id_in_a_path(api: Api) -> None:
    check_ids(api)


def check_ids(api: Api, prefix: str = "") -> None:
    for number, name in enumerate(("a/b", "50% off", "grün", "plain")):
        job_id = prefix + name
        body = {"task": "square", "args": [number], "id": job_id}
        status, answer, headers = api("POST", "/queues/default/jobs", body)
        assert status == 202, answer
        assert headers["location"] == f"{api.stage}/queues/default/jobs/{quote(job_id, safe='')}"
        job = ended(api, headers["location"].removeprefix(api.stage))
        assert (job["id"], job["state"], job["result"]) == (job_id, "completed", number**2)


# Producers outside Lambda: the library with the real store, boto3 with the real services


@pytest.fixture
def as_producer(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has the rights that docs/deploy.md names for producers."""
    statements = [
        {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": stack.outputs["DoorbellArn"]},
        {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": "arn:aws:lambda:*:*:function:*"},
    ]
    who = stack.user(f"producer-{time.monotonic_ns()}", *statements)
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", stack.aws.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", who.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", who.secret_key)


@pytest.mark.usefixtures("rings_alone", "as_producer")
@pytest.mark.parametrize("kind", ["sqs", "lambda"])
def test_a_producer_outside_lambda_rings(stack: Stack, redis: RedisServer, kind: str) -> None:
    place = {"sqs": stack.outputs["DoorbellUrl"], "lambda": stack.outputs["ClaimAndRunFunction"]}
    backend = connect(redis.url, doorbell=open_doorbell(f"{kind}:{place[kind]}"))
    try:
        queue = Queue("default", backend)
        job_id = queue.enqueue("square", [7]).job_id
        found = wait_for(lambda: queue.get(job_id), lambda found: found and found.state.value in ENDED)
    finally:
        backend.close()
    assert found is not None
    assert (found.state, found.result) == (State.COMPLETED, b"49")


def test_a_ring_for_later_is_received_later(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stack.aws.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    sqs = stack.client("sqs")
    url = sqs.create_queue(QueueName="bell")["QueueUrl"]
    bell = open_doorbell(f"sqs:{url}")
    assert bell is not None
    sent = time.monotonic()
    bell.ring("emails", 1_001)  # a broken second counts as a whole one
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    received = wait_for(
        lambda: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages"),
        lambda found: bool(found),
    )
    assert time.monotonic() - sent >= 2
    assert [json.loads(message["Body"]) for message in received] == [{"queue": "emails"}]
    bell.ring("emails", 0)
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert json.loads(message["Body"]) == {"queue": "emails"}


@pytest.mark.usefixtures("as_producer", "rings_alone")
@pytest.mark.promise("D6", backends=("redis",))
def test_a_function_invokes_enqueue(stack: Stack, api: Api) -> None:
    """As code inside AWS does; asked twice with one id, it makes one job."""
    functions = stack.client("lambda")
    name = stack.outputs["EnqueueFunction"]
    event = json.dumps({"task": "square", "args": [5], "id": "invoked"})
    answers = [functions.invoke(FunctionName=name, Payload=event) for _ in range(2)]
    statuses = [json.loads(answer["Payload"].read())["status"] for answer in answers]
    assert statuses == ["created", "duplicate_id"]
    assert ended(api, "/queues/default/jobs/invoked")["result"] == 25


@pytest.mark.usefixtures("rings_alone")
def test_a_function_may_not_do_what_its_policy_does_not_name(api: Api) -> None:
    """What it may do, to send and to receive rings, all other tests show."""
    assert ended(api, enqueue(api, "overreaches"))["result"] == "AccessDenied"
