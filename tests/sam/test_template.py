"""The built template, as CloudFormation gets it: what each function may do, what wakes it, who may call."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mayflymq import ConfigurationError
from mayflymq.settings import PREFIX, Settings, load_settings
from tests.functions.lambda_runtime import ROOT

Stack = dict[str, Any]
Grants = set[tuple[str, str]]  # what may be done, to which resource

FUNCTIONS = ("EnqueueFunction", "ClaimAndRunFunction", "StalledSweepFunction", "DelayedPromoterFunction")
RING = ("sqs:SendMessage", "Doorbell")


def log(group: str) -> Grants:
    return {("logs:CreateLogStream", group), ("logs:PutLogEvents", group)}


POLICIES: dict[str, Grants] = {
    "EnqueueFunction": log("EnqueueLogs") | {RING},
    "ClaimAndRunFunction": log("ClaimAndRunLogs")
    | {RING}
    | {
        (f"sqs:{call}", "Doorbell")
        for call in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")  # by the event source
    },
    "StalledSweepFunction": log("StalledSweepLogs") | {RING},
    "DelayedPromoterFunction": log("DelayedPromoterLogs") | {RING},
}
IN_VPC: Grants = {
    (f"ec2:{call}", "*")
    for call in (
        "CreateNetworkInterface",
        "DescribeNetworkInterfaces",
        "DescribeSubnets",
        "DeleteNetworkInterface",
        "AssignPrivateIpAddresses",
        "UnassignPrivateIpAddresses",
    )
}


def of_type(stack: Stack, kind: str) -> dict[str, Any]:
    """The properties of the resources of one type, by their names."""
    return {
        name: resource.get("Properties", {})
        for name, resource in stack["Resources"].items()
        if resource["Type"] == kind
    }


def named(reference: Any) -> str:
    """The resource that an ARN is of, or the text itself."""
    match reference:
        case {"Fn::GetAtt": [str(name), "Arn"]}:
            return name
        case str(text):
            return text
    raise AssertionError(f"neither an ARN of this stack nor a text: {reference}")


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def granted(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for statement in document["Statement"]:
        assert statement.keys() == {"Effect", "Action", "Resource"}
        assert statement["Effect"] == "Allow"
        for action in as_list(statement["Action"]):
            assert "*" not in action
            for resource in as_list(statement["Resource"]):
                yield action, named(resource)


def inline(role: dict[str, Any]) -> Grants:
    return {grant for policy in role["Policies"] for grant in granted(policy["PolicyDocument"])}


def role_of(stack: Stack, function: str) -> str:
    return named(stack["Resources"][function]["Properties"]["Role"])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_may_do_what_it_calls_and_nothing_else(stack: Stack, function: str) -> None:
    role = stack["Resources"][role_of(stack, function)]["Properties"]
    assert role.keys() == {"AssumeRolePolicyDocument", "ManagedPolicyArns", "Policies"}
    assert inline(role) == POLICIES[function]
    assert role["ManagedPolicyArns"] == [{"Fn::If": ["InVpc", {"Ref": "VpcPolicy"}, {"Ref": "AWS::NoValue"}]}]
    assumed = role["AssumeRolePolicyDocument"]["Statement"]
    assert [statement["Principal"] for statement in assumed] == [{"Service": "lambda.amazonaws.com"}]


def test_network_interfaces_only_in_a_vpc(stack: Stack) -> None:
    assert stack["Resources"]["VpcPolicy"]["Condition"] == "InVpc"
    assert set(granted(of_type(stack, "AWS::IAM::ManagedPolicy")["VpcPolicy"]["PolicyDocument"])) == IN_VPC
    for function in of_type(stack, "AWS::Lambda::Function").values():
        assert function["VpcConfig"]["Fn::If"][0] == "InVpc"
        assert function["VpcConfig"]["Fn::If"][2] == {"Ref": "AWS::NoValue"}


def test_nobody_else_may_do_anything(stack: Stack) -> None:
    roles = of_type(stack, "AWS::IAM::Role")
    assert set(of_type(stack, "AWS::Lambda::Function")) == set(FUNCTIONS)
    own = {role_of(stack, function) for function in FUNCTIONS}
    assert len(own) == len(FUNCTIONS)
    schedules = of_type(stack, "AWS::Scheduler::Schedule").values()
    may_invoke = {
        named(schedule["Target"]["RoleArn"]): named(schedule["Target"]["Arn"]) for schedule in schedules
    }
    assert {name: inline(roles[name]) for name in may_invoke} == {
        name: {("lambda:InvokeFunction", function)} for name, function in may_invoke.items()
    }
    assert roles.keys() == own | may_invoke.keys()
    assert {name for name in stack["Resources"] if "Policy" in name} == {"VpcPolicy"}
    assert not of_type(stack, "AWS::IAM::Policy")
    for permission in of_type(stack, "AWS::Lambda::Permission").values():
        assert permission["FunctionName"] == {"Ref": "EnqueueFunction"}
        assert permission["Principal"] == "apigateway.amazonaws.com"
        assert re.search(r":\$\{(Http|Rest)Api\}/\*$", permission["SourceArn"]["Fn::Sub"])


def test_each_api_wants_signed_requests_and_takes_every_path(stack: Stack) -> None:
    assert stack["Parameters"]["ApiKind"]["Default"] == "http"
    assert stack["Parameters"]["ApiKind"]["AllowedValues"] == ["http", "rest", "url"]
    (route,) = of_type(stack, "AWS::ApiGatewayV2::Route").values()
    (method,) = of_type(stack, "AWS::ApiGateway::Method").values()
    (url,) = of_type(stack, "AWS::Lambda::Url").values()
    kinds = (route["AuthorizationType"], method["AuthorizationType"], url["AuthType"])
    assert kinds == ("AWS_IAM", "AWS_IAM", "AWS_IAM")
    assert route["RouteKey"] == "ANY /{proxy+}"
    (resource,) = of_type(stack, "AWS::ApiGateway::Resource").values()
    assert (method["HttpMethod"], resource["PathPart"]) == ("ANY", "{proxy+}")
    for name, resource in stack["Resources"].items():
        kind = re.match(r"(HttpApi|RestApi|Url)", name)
        assert resource.get("Condition") == (f"Has{kind[0]}" if kind else resource.get("Condition")), name


def test_the_doorbell_wakes_the_worker(stack: Stack) -> None:
    (source,) = of_type(stack, "AWS::Lambda::EventSourceMapping").values()
    assert source == {
        "EventSourceArn": {"Fn::GetAtt": ["Doorbell", "Arn"]},
        "FunctionName": {"Ref": "ClaimAndRunFunction"},
        "BatchSize": 10,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": {"Ref": "MaximumWorkers"}},
    }
    queues = of_type(stack, "AWS::SQS::Queue")
    assert queues.keys() == {"Doorbell", "DoorbellDeadLetters"}
    assert named(queues["Doorbell"]["RedrivePolicy"]["deadLetterTargetArn"]) == "DoorbellDeadLetters"
    assert "RedrivePolicy" not in queues["DoorbellDeadLetters"]
    functions = of_type(stack, "AWS::Lambda::Function")
    looping = {name: function.get("RecursiveLoop") for name, function in functions.items()}
    assert looping == dict.fromkeys(FUNCTIONS) | {"ClaimAndRunFunction": "Allow"}


def test_a_ring_stays_hidden_for_six_timeouts(stack: Stack) -> None:
    worker = of_type(stack, "AWS::Lambda::Function")["ClaimAndRunFunction"]
    assert worker["Timeout"] == {"Ref": "WorkerTimeout"}
    hidden = of_type(stack, "AWS::SQS::Queue")["Doorbell"]["VisibilityTimeout"]
    assert hidden == {"Fn::FindInMap": ["Doorbell", {"Ref": "WorkerTimeout"}, "Visibility"]}
    seconds = stack["Mappings"]["Doorbell"]
    assert list(seconds) == stack["Parameters"]["WorkerTimeout"]["AllowedValues"]
    assert all(entry["Visibility"] >= 6 * int(timeout) for timeout, entry in seconds.items())


def test_two_schedules_tick_every_minute(stack: Stack) -> None:
    schedules = of_type(stack, "AWS::Scheduler::Schedule").values()
    ticks = {named(schedule["Target"]["Arn"]): schedule["ScheduleExpression"] for schedule in schedules}
    assert ticks == dict.fromkeys(("StalledSweepFunction", "DelayedPromoterFunction"), "rate(1 minute)")
    assert not any("Name" in schedule for schedule in schedules)  # so that two stacks fit into one account
    # A tick that failed or could not start is not made up for: the next one does.
    assert all(schedule["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 0} for schedule in schedules)
    once = of_type(stack, "AWS::Lambda::EventInvokeConfig").values()
    assert {config["FunctionName"]["Ref"]: config for config in once} == {
        name: {
            "FunctionName": {"Ref": name},
            "Qualifier": "$LATEST",
            "DestinationConfig": {},
            "MaximumRetryAttempts": 0,
            "MaximumEventAgeInSeconds": 60,
        }
        for name in ticks
    }


def test_what_may_be_deployed_are_settings(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = stack["Parameters"]["TickInterval"]["AllowedPattern"]
    for text in ("", "0", "01", "1", "60", "899", "900", "901", "999", "1000", "5s"):
        monkeypatch.setenv("MAYFLYMQ_TICK_INTERVAL", text)
        try:
            load_settings()
        except ConfigurationError:
            assert not re.search(pattern, text), text
        else:
            assert re.search(pattern, text) or text == "01", text


def test_each_function_logs_into_a_group_of_its_own_that_is_kept_for_a_time(stack: Stack) -> None:
    groups = of_type(stack, "AWS::Logs::LogGroup")
    assert all(group["RetentionInDays"] == {"Ref": "LogRetentionDays"} for group in groups.values())
    functions = of_type(stack, "AWS::Lambda::Function").values()
    assert {function["LoggingConfig"]["LogGroup"]["Ref"] for function in functions} == groups.keys()
    assert len(groups) == len(FUNCTIONS)


def test_every_variable_is_a_setting(stack: Stack) -> None:
    for function in of_type(stack, "AWS::Lambda::Function").values():
        variables = function["Environment"]["Variables"]
        assert {name.removeprefix(PREFIX).lower() for name in variables} <= Settings.model_fields.keys()
        assert variables["MAYFLYMQ_DOORBELL"] == {"Fn::Sub": "sqs:${Doorbell}"}


def test_the_backends_url_is_shown_nowhere(stack: Stack) -> None:
    assert stack["Parameters"]["BackendUrl"]["NoEcho"] in (True, "true")
    assert "BackendUrl" not in str(stack["Outputs"])


def test_the_template_deploys_what_is_built(default_build: Path, stack: Stack) -> None:
    assert (default_build / "Layer/target.yaml").read_text().split() == [
        "Runtime:",
        stack["Parameters"]["Runtime"]["Default"],
        "Architecture:",
        stack["Parameters"]["Architecture"]["Default"],
    ]
    for function in of_type(stack, "AWS::Lambda::Function").values():
        assert function["Runtime"] == {"Ref": "Runtime"}
        assert function["Architectures"] == [{"Ref": "Architecture"}]


@pytest.mark.parametrize(
    ("name", "wrong"), [("Runtime", "python3.9"), ("Runtime", ""), ("Architecture", "amd64")]
)
def test_a_target_that_the_template_does_not_allow_is_one_line(name: str, wrong: str) -> None:
    allowed = re.search(
        rf"^  {name}:\n(?:    .+\n)*?    AllowedValues: \[(.+)\]", (ROOT / "template.yaml").read_text(), re.M
    )
    assert allowed is not None
    command = ["make", "-s", "check-target", f"{name.upper()}={wrong}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told, _ = done.stderr.splitlines()  # and make's own
    assert told == (
        f"mayflymq: {name.upper()} is '{wrong}', and must be one of: {allowed[1].replace(',', '')}"
    )
