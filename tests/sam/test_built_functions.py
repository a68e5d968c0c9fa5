"""The built functions and their layer in Lambda's own Python runtime, with every sample event of events/, on
a Redis server.

The interpreter sees the build and what Lambda's image has (the standard library, the runtime client, boto3),
but nothing of the environment that the tests run in: what is missing in the layer is missing here too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from localstack.servers import RedisServer
from mayflymq import Queue, State, open_backend
from mayflymq.backends.base import Backend
from tests.functions.lambda_runtime import ROOT, Invocation, LambdaRuntime

FUNCTIONS = {
    "enqueue": "EnqueueFunction",
    "claim_and_run": "ClaimAndRunFunction",
    "stalled_sweep": "StalledSweepFunction",
    "delayed_promoter": "DelayedPromoterFunction",
}
IN_LAMBDAS_IMAGE = (
    *("awslambdaric", "runtime_client*", "snapshot_restore_py.py", "simplejson"),
    *("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"),
)
EVENTS = sorted(path.stem for path in (ROOT / "events").glob("*.json"))


def event(name: str) -> Any:
    return json.loads((ROOT / "events" / f"{name}.json").read_text())


def function_of(name: str) -> str:
    """The function that a sample event is for; `empty` is a plain invoke of the worker."""
    return next((function for function in FUNCTIONS if name.startswith(function)), "claim_and_run")


def python_path(build: Path, function: str, image: Path) -> list[Path]:
    """The places of Lambda's /var/task, /opt/python and /var/lang."""
    return [build / FUNCTIONS[function], build / "Layer/python", image]


class Deployment:
    """The built functions over one Redis server; a container starts when it is first asked for."""

    def __init__(self, build: Path, image: Path, backend_url: str, stack: ExitStack) -> None:
        self._build = build
        self._image = image
        self._url = backend_url
        self._stack = stack
        self._running: dict[str, LambdaRuntime] = {}
        self.backend: Backend = open_backend(backend_url)
        stack.callback(self.backend.close)

    def invoke(self, function: str, payload: Any) -> Invocation:
        if function not in self._running:
            runtime = LambdaRuntime(
                f"functions.{function}.handler",
                env={
                    "MAYFLYMQ_BACKEND_URL": self._url,
                    "MAYFLYMQ_QUEUES": "default",
                    "MAYFLYMQ_TASKS": "functions.tasks",
                    "MAYFLYMQ_LOG_LEVEL": "INFO",
                    "PYTHONDONTWRITEBYTECODE": "1",  # the build stays as it was made
                },
                timeout_s=30,
                python_path=python_path(self._build, function, self._image),
                python=str(self._image / "python"),
            )
            self._running[function] = self._stack.enter_context(runtime)
        return self._running[function].invoke(payload)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Lambda's image holds beside the standard library, and an interpreter that sees no more."""
    folder = tmp_path_factory.mktemp("image")
    installed = Path(next(path for path in sys.path if path.endswith("site-packages")))
    for pattern in IN_LAMBDAS_IMAGE:
        found = list(installed.glob(pattern))
        assert found, f"no {pattern} in {installed}"
        for path in found:
            (folder / path.name).symlink_to(path)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -S "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def deployment(host_build: Path, image: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        yield Deployment(host_build, image, redis.url, stack)


def answered(invocation: Invocation) -> tuple[int, Any]:
    assert invocation.error_type is None, invocation.log
    return invocation.payload["statusCode"], json.loads(invocation.payload["body"])


@pytest.mark.promise("F6", backends=("functions",))
def test_from_the_request_to_the_result_and_every_other_sample(deployment: Deployment) -> None:
    """One test, in this order, because a container takes longer to start than all of it to run."""
    assert answered(deployment.invoke("enqueue", event("enqueue_http_v2_post")))[0] == 202
    rung = deployment.invoke("claim_and_run", event("claim_and_run_doorbell"))
    assert rung.payload == {"batchItemFailures": []}, rung.log
    status, job = answered(deployment.invoke("enqueue", event("enqueue_http_v2_get")))
    assert (status, job["state"]) == (200, "completed")
    assert job["result"]["bytes"] == (ROOT / "functions/tasks.py").stat().st_size
    found = Queue("default", deployment.backend).get("sample-1")
    assert found is not None
    assert found.state is State.COMPLETED

    for name in EVENTS:
        invocation = deployment.invoke(function_of(name), event(name))
        assert invocation.error_type is None, f"{name}: {invocation.log}"
        if isinstance(invocation.payload, dict) and "statusCode" in invocation.payload:
            # Some ask for what cannot be done to the job by now; none for what the function does not know.
            assert invocation.payload["statusCode"] < 500, f"{name}: {invocation.payload}"
            kind = json.loads(invocation.payload["body"] or "{}").get("type")
            unserved = {f"urn:mayflymq:problem:{problem}" for problem in ("unknown-path", "wrong-method")}
            assert kind not in unserved, f"{name}: {invocation.payload}"


def test_the_library_and_what_it_needs_come_from_the_layer(host_build: Path, image: Path) -> None:
    places = python_path(host_build, "enqueue", image)
    names = ("mayflymq", "pydantic_settings", "pydantic_core", "aws_lambda_powertools", "redis", "cronsim")
    done = subprocess.run(
        [
            image / "python",
            "-Bc",
            f"import {', '.join(names)}; print({', '.join(f'{n}.__file__' for n in names)})",
        ],
        cwd=places[0],
        env={"PYTHONPATH": os.pathsep.join(map(str, places))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [Path(file).relative_to(places[1]).parts[0] for file in done.stdout.split()]
    assert found == list(names)
