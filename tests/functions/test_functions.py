"""The four functions in the real Lambda runtime, over SQLite, with the sample events of events/."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mayflymq import Backoff, Job, Queue, State, open_backend
from mayflymq.backends.base import Backend
from mayflymq.codec import decode
from tests.functions.lambda_runtime import ROOT, Invocation, LambdaRuntime

SAMPLE = ROOT / "functions" / "tasks.py"  # the file that the sample events name, from the working directory
FUNCTIONS = ("enqueue", "claim_and_run", "stalled_sweep", "delayed_promoter")

TASKS = """
import os, time
from mayflymq import Backoff, current_job, task

@task(max_retries=1, backoff=Backoff.fixed(0))
def outlive_once():
    if current_job().delivery == 1:
        time.sleep(60)
    return current_job().delivery

@task(max_retries=0)
def die_once():
    if current_job().delivery == 1:
        os._exit(1)
    return current_job().delivery

@task(max_retries=0)
def pid():
    return os.getpid()

@task
def nap(seconds):
    time.sleep(seconds)
"""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_its_packages_a_function_says_what_to_install(tmp_path: Path, function: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['aws_lambda_powertools'] = None\n")
    path = os.pathsep.join(map(str, (tmp_path, ROOT)))
    answer = subprocess.run(
        [sys.executable, "-c", f"import functions.{function}"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == (
        "mayflymq.errors.ConfigurationError: the functions need the package aws_lambda_powertools: "
        "pip install 'mayflymq[aws]'"
    )


def event(name: str) -> Any:
    return json.loads((ROOT / "events" / f"{name}.json").read_text())


def post(body: object = None, *, raw: str | None = None, **headers: str) -> Any:
    """The sample POST with another body."""
    request = event("enqueue_http_v2_post")
    request["body"] = json.dumps(body) if raw is None else raw
    request["headers"] |= {name.replace("_", "-"): value for name, value in headers.items()}
    return request


def answered(invocation: Invocation) -> tuple[int, Any]:
    """Status and body of an HTTP response."""
    assert invocation.error_type is None, invocation.log
    return invocation.payload["statusCode"], json.loads(invocation.payload["body"])


def logged(invocation: Invocation, message: str) -> dict[str, Any]:
    """The one record of the structured log with this message."""
    lines = [line for line in invocation.log.splitlines() if line.startswith("{")]
    found = [record for record in map(json.loads, lines) if record.get("message") == message]
    assert len(found) == 1, invocation.log
    return dict(found[0])


class Deployment:
    """The functions on one SQLite file; a container starts when it is first asked for."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.url = f"sqlite:////{str(directory / 'queue.db').lstrip('/')}"
        self.backend: Backend = open_backend(self.url)
        stack.callback(self.backend.close)
        self.queue = Queue("default", self.backend)

    def start(self, function: str, *, timeout_s: int = 10, **env: str) -> LambdaRuntime:
        settings = {
            "MAYFLYMQ_BACKEND_URL": self.url,
            "MAYFLYMQ_ALLOW_LOCAL_BACKEND": "1",
            "MAYFLYMQ_TASKS": "functions.tasks,sometasks",
        }
        runtime = LambdaRuntime(
            f"functions.{function}.handler",
            env={name: value for name, value in {**settings, **env}.items() if value},
            timeout_s=timeout_s,
            python_path=[ROOT, ROOT / "core", self.directory],
        )
        return self.stack.enter_context(runtime)

    def job(self, job_id: str) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def count(self) -> int:
        return sum(len(self.queue.jobs(state).jobs) for state in State)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    (tmp_path / "sometasks.py").write_text(TASKS)
    with ExitStack() as stack:
        yield Deployment(tmp_path, stack)


def eventually(ask: Callable[[], Any], true: Callable[[Any], bool], seconds: float = 20) -> Any:
    """The first answer for which `true` holds: for what the real clock has to bring about."""
    deadline = time.monotonic() + seconds
    while not true(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(0.05)
    return answer


@pytest.mark.promise("D1", "F4", "P1", backends=["sqlite"])
def test_from_the_request_to_the_result(deployment: Deployment) -> None:
    enqueue = deployment.start("enqueue")
    created = enqueue.invoke(event("enqueue_http_v2_post"))
    assert answered(created) == (
        202,
        {"id": "sample-1", "queue": "default", "status": "created", "state": "waiting"},
    )
    assert created.payload["headers"]["Location"] == "/queues/default/jobs/sample-1"
    plain = enqueue.invoke(event("enqueue_invoke"))
    assert plain.payload == {"id": "sample-2", "queue": "default", "status": "created", "state": "delayed"}
    assert plain.init_ms is None
    assert "functions/tasks.py" not in created.log + plain.log  # the argument

    promoter = deployment.start("delayed_promoter")
    promoted = eventually(
        lambda: promoter.invoke(event("delayed_promoter_schedule")).payload, lambda report: report["promoted"]
    )
    assert promoted["promoted"] == 1
    assert deployment.job("sample-2").state is State.WAITING
    assert promoter.invoke(event("empty")).payload["promoted"] == 0

    worker = deployment.start("claim_and_run")
    run = worker.invoke(event("claim_and_run_schedule"))
    assert (run.payload["completed"], run.payload["claimed"], run.payload["work_left"]) == (2, 2, False)
    record = logged(run, "finished")
    assert record["report"] == run.payload
    assert record["function"] == "claim_and_run"
    assert run.log.count("finished") == 1  # and no second time by the runtime's own handler
    assert deployment.job("sample-1").error is None
    assert record["function_request_id"] in run.log.split("END RequestId: ")[1]
    assert worker.invoke(event("empty")).payload["claimed"] == 0

    status, job = answered(enqueue.invoke(event("enqueue_http_v2_get")))
    data = SAMPLE.read_bytes()
    assert (status, job["state"], job["deliveries"]) == (200, "completed", 1)
    assert job["result"] == {
        "lines": data.count(b"\n"),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert answered(enqueue.invoke(event("enqueue_http_v2_cancel"))) == (
        200,
        {"id": "sample-1", "status": "terminal"},
    )
    status, queue = answered(enqueue.invoke(event("enqueue_http_v2_queue")))
    assert (status, queue["counts"]["completed"]) == (200, 2)


@pytest.mark.promise("D6", backends=["sqlite"])
def test_what_the_enqueue_function_refuses_is_not_stored(deployment: Deployment) -> None:
    enqueue = deployment.start("enqueue", MAYFLYMQ_MAX_PAYLOAD_BYTES="2000")
    job = {"task": "digest_file", "args": [str(SAMPLE)]}
    for request, status, kind in (
        (event("enqueue_http_v2_malformed"), 400, "malformed-body"),
        (post({"task": "no_such_task"}), 422, "unknown-task"),
        (post({"task": "digest_tree", "args": ["/"]}), 422, "unknown-task"),  # http=False
        (post({**job, "args": ["x" * 2000]}), 413, "payload-too-large"),
        (post({**job, "priority": True}), 422, "invalid-job"),
    ):
        invocation = enqueue.invoke(request)
        got, problem = answered(invocation)
        assert invocation.payload["headers"]["Content-Type"] == "application/problem+json"
        assert (got, problem["status"], problem["type"]) == (status, status, f"urn:mayflymq:problem:{kind}")
        assert deployment.count() == 0

    for request in (post({**job, "id": "one"}), post(job, idempotency_key="two")):
        assert answered(enqueue.invoke(request))[1]["status"] == "created"
        assert answered(enqueue.invoke(request))[1]["status"] == "duplicate_id"
    assert deployment.count() == 2

    refused = enqueue.invoke({"queue": "default", "task": "no_such_task"})
    assert refused.error_type == "UnknownTask"
    assert "no_such_task" in (refused.error_message or "")
    assert not refused.crashed
    assert deployment.count() == 2


@pytest.mark.promise("D3", backends=["sqlite"])
@pytest.mark.promise("F2", backends=["library"])
def test_a_handler_that_outlives_the_deadline_is_recorded_and_retried(deployment: Deployment) -> None:
    worker = deployment.start("claim_and_run", timeout_s=3)
    assert worker.invoke(event("empty")).payload["claimed"] == 0  # the init is behind it, however slow
    deployment.queue.enqueue("outlive_once", job_id="long", max_retries=1, backoff=Backoff.fixed(0))
    run = worker.invoke(event("claim_and_run_schedule"))
    assert run.error_type is None, run.log  # it answered before the platform would have killed it
    assert run.duration_ms is not None
    assert run.duration_ms < 3000
    assert (run.payload["claimed"], run.payload["retried"]) == (1, 1)
    job = deployment.job("long")
    assert (job.state, job.failures, job.stalls) == (State.WAITING, 1, 0)
    assert job.error is not None
    assert job.error.type == "TaskTimeout"

    again = worker.invoke(event("claim_and_run_schedule"))
    assert again.init_ms is None  # the same process goes on
    assert again.payload["completed"] == 1
    result = deployment.job("long").result
    assert result is not None
    assert decode(result) == 2  # the delivery


@pytest.mark.promise("C6", "D3", backends=["sqlite"])
def test_the_job_of_a_worker_that_died_is_recovered_by_the_sweep(deployment: Deployment) -> None:
    deployment.queue.enqueue("die_once", job_id="fatal")
    worker = deployment.start("claim_and_run", MAYFLYMQ_STALLED_THRESHOLD="3")
    sweep = deployment.start("stalled_sweep")
    assert sweep.invoke(event("empty")).payload["released"] == 0  # also warms it up
    crash = worker.invoke(event("claim_and_run_schedule"))
    assert crash.crashed
    job = deployment.job("fatal")
    assert (job.state, job.deliveries, job.stalls) == (State.ACTIVE, 1, 0)
    assert sweep.invoke(event("stalled_sweep_schedule")).payload["released"] == 0  # not stale yet

    report = eventually(
        lambda: sweep.invoke(event("stalled_sweep_schedule")).payload, lambda report: report["released"]
    )
    assert report["released"] == 1
    job = deployment.job("fatal")
    assert (job.state, job.failures, job.stalls, job.claim_token) == (State.WAITING, 0, 1, None)
    assert worker.invoke(event("claim_and_run_schedule")).payload["completed"] == 1
    result = deployment.job("fatal").result
    assert result is not None
    assert decode(result) == 2


class Sqs(BaseHTTPRequestHandler):
    """Takes messages as SQS does, and shows what they say."""

    got: list[Any]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def test_a_worker_whose_time_is_up_rings_before_it_is_killed(deployment: Deployment) -> None:
    """In a cold container, with half the usual margin: the doorbell was made ready at half time."""
    got: list[Any] = []
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Sqs,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    deployment.stack.callback(server.server_close)
    deployment.stack.callback(thread.join)
    deployment.stack.callback(server.shutdown)
    for number in range(80):
        deployment.queue.enqueue("nap", [0.2], job_id=str(number))
    worker = deployment.start(
        "claim_and_run",
        timeout_s=5,
        MAYFLYMQ_MARGIN="0.5",
        MAYFLYMQ_DOORBELL="sqs:https://sqs.us-east-1.amazonaws.com/123456789012/doorbell",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}",
    )
    for _ in range(2):
        run = worker.invoke(event("claim_and_run_doorbell"))
        assert run.payload == {"batchItemFailures": []}, run.log
        assert logged(run, "finished")["report"]["work_left"] is True
    # The others are for the retries of the two jobs that were ended at the margin.
    at_once = [json.loads(one["MessageBody"]) for one in got if one["DelaySeconds"] == 0]
    assert at_once == [{"queue": "default"}] * 2


def test_a_process_with_abandoned_handlers_is_not_used_again(deployment: Deployment) -> None:
    worker = deployment.start("claim_and_run", timeout_s=3, MAYFLYMQ_CONCURRENCY="2")
    deployment.queue.enqueue("pid", job_id="before")
    assert worker.invoke(event("empty")).payload["completed"] == 1
    deployment.queue.enqueue("outlive_once", job_id="long", max_retries=0)
    crash = worker.invoke(event("empty"))
    assert crash.crashed
    assert logged(crash, "finished")["report"]["abandoned"] == 1
    assert logged(crash, "ending the process: handlers could not be stopped")["level"] == "ERROR"
    job = deployment.job("long")  # it was settled first
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.type == "TaskTimeout"

    deployment.queue.enqueue("pid", job_id="after")
    assert worker.invoke(event("empty")).payload["completed"] == 1
    assert deployment.job("before").result != deployment.job("after").result


def test_a_broken_task_module_stops_the_workers_and_no_recovery(deployment: Deployment) -> None:
    (deployment.directory / "sometasks.py").write_text("import nothing_of_this_name")
    failure = deployment.start("claim_and_run").invoke(event("empty"))
    assert failure.crashed
    assert failure.init_ms is not None or "INIT" in failure.log
    assert failure.error_type == "ConfigurationError"
    assert "sometasks" in (failure.error_message or "")
    assert "nothing_of_this_name" in (failure.error_message or "")
    assert deployment.start("stalled_sweep").invoke(event("empty")).error_type is None


def test_a_local_file_is_no_backend_inside_lambda(deployment: Deployment) -> None:
    failure = deployment.start("stalled_sweep", MAYFLYMQ_ALLOW_LOCAL_BACKEND="").invoke(event("empty"))
    assert failure.error_type == "ConfigurationError"
    assert "MAYFLYMQ_ALLOW_LOCAL_BACKEND" in (failure.error_message or "")


@pytest.mark.promise("F6", backends=["functions"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_imports_what_it_needs_and_no_more(function: str) -> None:
    """Each import is paid for by every cold start, and nothing here may reach the network."""
    program = (
        f"import sys; from functions.{function} import handler; "
        f"assert handler.__module__ == 'mayflymq.aws.runtime'; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONPATH": f"{ROOT}:{ROOT / 'core'}",
            "MAYFLYMQ_BACKEND_URL": "memory://imports",
            "MAYFLYMQ_DOORBELL": "sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/doorbell",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert ("aws_lambda_powertools.event_handler" in loaded) is (function == "enqueue")
    assert ("mayflymq.aws.documents" in loaded) is (function == "enqueue")
    unwanted = {
        "boto3",
        "mayflymq.aws.openapi",
        "botocore.session",
        "redis",
        "psycopg",
        "pymongo",
        "pika",
        "sqlite3",
        "typer",
        "rich",
    }
    assert not loaded & unwanted


def test_the_handlers_work_outside_lambda(tmp_path: Path) -> None:
    """Without a context there is no deadline; what a container keeps is read and opened once."""
    program = """
import json, os
import mayflymq
from mayflymq.aws import runtime

@mayflymq.task
def add(a, b):
    return a + b

answers = [runtime.enqueue_handler({"task": "add", "args": [1, 2], "id": "x"}, None)]
os.environ["MAYFLYMQ_BACKEND_URL"] = "memory://another"
answers += [handler({}, None) for handler in
            (runtime.claim_and_run_handler, runtime.stalled_sweep_handler, runtime.delayed_promoter_handler)]
assert runtime.backend() is runtime.backend() is mayflymq.default_backend()
answers += [mayflymq.Queue("default").get("x").result.decode()]
print(json.dumps(answers))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "core"), "MAYFLYMQ_BACKEND_URL": "memory://one"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    enqueued, run, sweep, promoter, result = json.loads(done.stdout.splitlines()[-1])
    assert (enqueued["state"], run["completed"], result) == ("waiting", 1, "3")
    assert (sweep["queues"], promoter["queues"]) == (1, 1)


def test_the_sample_events_are_all_used() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for path in (ROOT / "events").glob("*.json"):
        assert f'"{path.stem}"' in source or f'"{path.name}"' in source
