"""The template deployed to the local AWS by `sam deploy`, and what a caller of it does."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from localstack.emulator import REGION, LocalAws
from tests.functions.lambda_runtime import ROOT
from tests.sam.builds import HOST, build

TASKS = ROOT / "tests/e2e/deployed_tasks.py"
PATIENCE_S = 60
Json = Any
T = TypeVar("T")


def wait_for(ask: Callable[[], T], enough: Callable[[T], object], patience_s: float = PATIENCE_S) -> T:
    """Asks until the answer is enough and returns it; fails with the last answer."""
    give_up = time.monotonic() + patience_s
    while not enough(answer := ask()):
        assert time.monotonic() < give_up, f"after {patience_s} s still: {answer}"
        time.sleep(0.1)
    return answer


class Api:
    """An API of the stack, which the caller signs for, or does not."""

    def __init__(self, aws: LocalAws, url: str, caller: Credentials | None) -> None:
        place = urlsplit(url)
        api_id, kind, *_ = str(place.hostname).split(".")
        # The emulator knows an API by the name that the request is for, whichever domain that ends in.
        region = f".{REGION}" if kind == "lambda-url" else ""
        self._host = f"{api_id}.{kind}{region}.localhost:{aws.port}"
        self._port = aws.port
        self._service = "lambda" if kind == "lambda-url" else "execute-api"
        self._caller = caller
        self.stage = place.path.rstrip("/")

    def __call__(self, method: str, path: str, body: Json = None) -> tuple[int, Json, Mapping[str, str]]:
        """The status, the document and the headers (in lower case) of the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Host": self._host, "Content-Type": "application/json"}
        request = AWSRequest(method, f"http://{self._host}{self.stage}{path}", headers, data)
        if self._caller is not None:
            SigV4Auth(self._caller, self._service, REGION).add_auth(request)
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            line.request(method, f"{self.stage}{path}", data, dict(request.headers.items()))
            answer = line.getresponse()
            text = answer.read().decode()
        finally:
            line.close()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(text or "null"), headers


class Stack:
    """The deployed stack: `sam build` made it, `sam deploy` brought it up, with the configuration `local` of
    samconfig.toml and the tasks of `deployed_tasks.py` in functions/."""

    def __init__(self, aws: LocalAws, backend_url: str) -> None:
        self.aws = aws
        self.name = "mayflymq-e2e"
        self.parameters = {
            **_target(build(HOST)),
            "BackendUrl": backend_url,
            "Queues": "default,batch",
            "TaskModules": "functions.tasks,functions.deployed_tasks",
            "WorkerTimeout": "30",
            "StalledThreshold": "5",
        }
        folder = aws.folder / "build"
        shutil.copytree(build(HOST), folder)
        for functions in folder.glob("*/functions"):
            shutil.copy(TASKS, functions)
        self._sam_deploy(folder / "template.yaml")
        self.outputs = self._outputs(self.name)
        self.hear()

    def _sam_deploy(self, template: Path) -> None:
        overrides = [f"{name}={value}" for name, value in self.parameters.items()]
        configuration: list[str | Path] = ["--config-file", ROOT / "samconfig.toml", "--config-env", "local"]
        command: list[str | Path] = [
            ROOT / ".venv-sam/bin/sam",
            "deploy",
            "--template-file",
            template,
            *configuration,
        ]
        command += ["--stack-name", self.name, "--no-progressbar", "--parameter-overrides", *overrides]
        done = subprocess.run(
            command, env=self.aws.environment, capture_output=True, text=True, cwd=self.aws.folder
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def deploy_again(self, name: str, **parameters: str) -> dict[str, str]:
        """Deploys the same template as another stack, and returns its outputs."""
        clouds = self.client("cloudformation")
        clouds.create_stack(
            StackName=name,
            TemplateBody=clouds.get_template(StackName=self.name, TemplateStage="Original")["TemplateBody"],
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value}
                for key, value in (self.parameters | parameters).items()
            ],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        return self._outputs(name)

    def _outputs(self, name: str) -> dict[str, str]:
        clouds = self.client("cloudformation")
        stack = wait_for(
            lambda: clouds.describe_stacks(StackName=name)["Stacks"][0],
            lambda stack: not stack["StackStatus"].endswith("IN_PROGRESS"),
        )
        assert stack["StackStatus"] == "CREATE_COMPLETE", stack
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    def hear(self) -> None:
        """Says again how many workers a doorbell may wake. The emulator keeps the parameter's value as text,
        compares it with a number, and then hears no ring of any stack; AWS makes it a number."""
        functions = self.client("lambda")
        for source in functions.list_event_source_mappings()["EventSourceMappings"]:
            functions.update_event_source_mapping(
                UUID=source["UUID"], ScalingConfig={"MaximumConcurrency": 2}
            )

    def client(self, service: str, caller: Credentials | None = None) -> Any:
        """A boto3 client for one service, as the account's root user if nobody else."""
        return boto3.session.Session().client(
            service,
            endpoint_url=self.aws.endpoint,
            region_name=REGION,
            aws_access_key_id="test" if caller is None else caller.access_key,
            aws_secret_access_key="test" if caller is None else caller.secret_key,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE_S),
        )

    def user(self, name: str, *statements: Json) -> Credentials:
        """A new IAM user who may do just that."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        if statements:
            document = {"Version": "2012-10-17", "Statement": [*statements]}
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(document))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return Credentials(key["AccessKeyId"], key["SecretAccessKey"])

    def schedules(self, state: str) -> None:
        """Turns the two schedules on (ENABLED) or off (DISABLED)."""
        scheduler = self.client("scheduler")
        for found in scheduler.list_schedules()["Schedules"]:
            if found["Name"].startswith(self.name):
                schedule = scheduler.get_schedule(Name=found["Name"])
                kept = ("Name", "ScheduleExpression", "FlexibleTimeWindow", "Target")
                scheduler.update_schedule(State=state, **{name: schedule[name] for name in kept})

    def reports(self, function: str) -> list[Json]:
        """What each invocation of a function reported, from the function's own log group."""
        logs = self.client("logs")
        group = f"/aws/lambda/{self.name}/{function}"
        events = logs.filter_log_events(logGroupName=group, filterPattern="finished")["events"]
        return [json.loads(event["message"])["report"] for event in events]


def _target(folder: Path) -> dict[str, str]:
    """The parameters that the build names; samconfig.toml hands this file to `sam deploy`."""
    lines = (folder / "Layer/target.yaml").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)
