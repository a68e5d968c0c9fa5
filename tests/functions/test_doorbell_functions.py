"""The doorbell from end to end, in this process: what is rung, who wakes, and that nothing depends on it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from mayflymq import BackendError, ConfigurationError, Queue, open_backend
from mayflymq import queue as queue_module
from mayflymq.aws import doorbell as doorbell_module
from mayflymq.aws import runtime, wakeups
from mayflymq.aws.doorbell import LambdaDoorbell, SqsDoorbell, open_doorbell
from mayflymq.backends.base import Backend
from mayflymq.model import ClaimRequest
from mayflymq.tasks import Registry, Task
from tests.contract.harness import ManualClock

EVENTS = Path(__file__).resolve().parents[2] / "events"
QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/doorbell"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_LAMBDA"):
        monkeypatch.delenv(name, raising=False)


# The setting


def test_no_setting_is_no_doorbell() -> None:
    assert open_doorbell("") is None


@pytest.mark.parametrize(
    "setting",
    [
        "sqs",
        "sqs:",
        "sqs:doorbell",
        "sqs:https://sqs.eu-central-1.amazonaws.com/",
        "sqs:arn:aws:sqs:eu-central-1:123456789012:doorbell",
        f"sqs:{QUEUE_URL}.fifo",
        f"sqs: {QUEUE_URL}",
        f"sqs:{QUEUE_URL}\n",
        "sqs:https://[bad/doorbell",
        "sqs:https://host:port/doorbell",
        "lambda:",
        "lambda:a b",
        QUEUE_URL,
        "bell",
        " ",
    ],
)
def test_a_wrong_setting_names_its_variable(container: Callable[..., None], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^MAYFLYMQ_DOORBELL: "):
        open_doorbell(setting)
    container(MAYFLYMQ_DOORBELL=setting)
    with pytest.raises(ConfigurationError, match=r"^MAYFLYMQ_DOORBELL: "):
        runtime.initialise()


@pytest.mark.parametrize("interval", ["0", "0.5", "901", "soon", "nan"])
def test_a_wrong_tick_interval_names_its_variable(container: Callable[..., None], interval: str) -> None:
    container(MAYFLYMQ_TICK_INTERVAL=interval)
    with pytest.raises(ConfigurationError, match=r"^MAYFLYMQ_TICK_INTERVAL: "):
        runtime.initialise()


@pytest.mark.parametrize(
    "url", ["mysql://u:swordfish@h/0", "redis://u:swordfish@[h/0", "://:swordfish@h", "redis"]
)
def test_a_wrong_backend_names_its_variable(container: Callable[..., None], url: str) -> None:
    container(MAYFLYMQ_BACKEND_URL=url)
    with pytest.raises(ConfigurationError, match=r"^MAYFLYMQ_BACKEND_URL: ") as refused:
        runtime.initialise()
    assert "swordfish" not in "".join(traceback.format_exception(refused.value))


# What is sent


class Made:
    """What `_boto3_client` was asked for; it gives out clients whose calls a Stubber answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.stub: Stubber | None = None
        real = doorbell_module._boto3_client

        def client(service: str, region: str | None) -> Any:
            self.asked.append((service, region))
            made = real(service, region)
            assert made.meta.config.retries["total_max_attempts"] == 2
            assert (made.meta.config.connect_timeout, made.meta.config.read_timeout) == (1, 2)
            self.stub = Stubber(made)
            self.prepare(self.stub)
            self.stub.activate()
            return made

        self.prepare: Callable[[Stubber], None] = lambda stub: None
        monkeypatch.setattr(doorbell_module, "_boto3_client", client)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


@pytest.mark.parametrize(("delay_ms", "seconds"), [(0, 0), (1, 1), (1000, 1), (1001, 2), (900_000, 900)])
def test_a_ring_is_a_message_that_names_the_queue(made: Made, delay_ms: int, seconds: int) -> None:
    def prepare(stub: Stubber) -> None:
        expected = {"QueueUrl": QUEUE_URL, "MessageBody": '{"queue": "emails"}', "DelaySeconds": seconds}
        stub.add_response("send_message", {"MessageId": "1"}, expected)
        stub.add_response("send_message", {"MessageId": "2"}, expected)

    made.prepare = prepare
    bell = SqsDoorbell(QUEUE_URL)
    assert made.asked == []
    for _ in range(2):
        bell.ring("emails", delay_ms)
    assert made.asked == [("sqs", "eu-central-1")]  # one client, in the queue's own region
    assert made.stub is not None
    made.stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("function", "region"),
    [("worker", None), ("arn:aws:lambda:eu-west-3:123456789012:function:worker:live", "eu-west-3")],
)
def test_a_ring_is_an_invoke_that_is_not_waited_for(made: Made, function: str, region: str | None) -> None:
    def prepare(stub: Stubber) -> None:
        expected = {"FunctionName": function, "InvocationType": "Event", "Payload": b'{"queues": ["emails"]}'}
        stub.add_response("invoke", {"StatusCode": 202}, expected)

    made.prepare = prepare
    bell = open_doorbell(f"lambda:{function}")
    assert isinstance(bell, LambdaDoorbell)
    bell.ring("emails", 5000)  # an Invoke cannot be delayed
    assert made.asked == []
    bell.ring("emails", 0)
    assert made.asked == [("lambda", region)]


def test_after_a_ring_that_failed_the_doorbell_rests(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(doorbell_module, "time", SimpleNamespace(monotonic=lambda: now))

    def prepare(stub: Stubber) -> None:
        stub.add_client_error("send_message", "AccessDenied")
        stub.add_response("send_message", {"MessageId": "1"})

    made.prepare = prepare
    bell = SqsDoorbell(QUEUE_URL)
    with pytest.raises(ClientError):
        bell.ring("emails", 0)
    bell.ring("emails", 0)  # not sent, or the stub would have used up its answer
    now += doorbell_module.REST_S
    bell.ring("emails", 0)
    assert made.stub is not None
    made.stub.assert_no_pending_responses()


def test_threads_that_ring_at_once_make_one_client(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = doorbell_module._boto3_client
    bell = SqsDoorbell(QUEUE_URL)

    def client(service: str, region: str | None) -> Any:
        time.sleep(0.05)
        return slow(service, region)

    monkeypatch.setattr(doorbell_module, "_boto3_client", client)
    threads = [threading.Thread(target=bell.prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made.asked) == 1


class Recorder(BaseHTTPRequestHandler):
    """A server that says yes to everything, and keeps what was sent."""

    got: list[tuple[str, str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(200 if self.path == "/" else 202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, dict[str, str], bytes]]]:
    got: list[tuple[str, str, dict[str, str], bytes]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Recorder,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield got
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_goes_over_the_wire(wire: list[tuple[str, str, dict[str, str], bytes]]) -> None:
    for setting in (f"sqs:{QUEUE_URL}", "lambda:worker"):
        bell = open_doorbell(setting)
        assert bell is not None
        bell.ring("emails", 0)
    (_, _, headers, body), (_, path, invoke_headers, payload) = wire
    assert headers["x-amz-target"] == "AmazonSQS.SendMessage"
    assert "/eu-central-1/sqs/aws4_request" in headers["authorization"]
    assert json.loads(body) == {
        "QueueUrl": QUEUE_URL,
        "MessageBody": '{"queue": "emails"}',
        "DelaySeconds": 0,
    }
    assert path == "/2015-03-31/functions/worker/invocations"
    assert invoke_headers["x-amz-invocation-type"] == "Event"
    assert json.loads(payload) == {"queues": ["emails"]}


@pytest.mark.promise("F6", backends=["functions"])
def test_the_command_line_rings_as_the_functions_do(
    wire: list[tuple[str, str, dict[str, str], bytes]], tmp_path: Path
) -> None:
    settings = {
        "MAYFLYMQ_BACKEND_URL": f"sqlite:///{tmp_path}/queue.db",
        "MAYFLYMQ_DOORBELL": f"sqs:{QUEUE_URL}",
    }
    for command in (["enqueue", "emails", "t"], ["sweep"], ["promote"]):
        done = subprocess.run(
            [sys.executable, "-c", "from mayflymq.cli import main; main()", *command],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "doorbell" not in done.stderr
    assert [json.loads(json.loads(body)["MessageBody"]) for *_, body in wire] == [{"queue": "emails"}] * 3


def test_a_doorbell_that_nobody_answers_holds_up_one_enqueue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing listens there
    queue = Queue("q", open_backend(f"memory://{uuid.uuid4()}"), doorbell=open_doorbell(f"sqs:{QUEUE_URL}"))
    queue.enqueue("t", job_id="a")
    assert caplog.text.count("the doorbell failed") == 1
    began = time.monotonic()
    queue.enqueue_jobs([queue.job("t", delay=n) for n in range(1, 60)])
    assert time.monotonic() - began < 0.5
    assert caplog.text.count("the doorbell failed") == 1


# A container


class Bell:
    """An SQS queue that hands its messages to the worker; it can be deaf, or deliver twice."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.messages: deque[tuple[int, str]] = deque()
        self.rung = 0
        self.deaf = False
        self.prepared = 0

    def ring(self, queue: str, delay_ms: int) -> None:
        self.rung += 1
        if not self.deaf:
            self.messages.append((self.clock.now + delay_ms, queue))

    def prepare(self) -> None:
        self.prepared += 1

    def receive(self, batch: int = 1) -> list[str]:
        due = [one for one in self.messages if one[0] <= self.clock.now][:batch]
        for one in due:
            self.messages.remove(one)
        return [queue for _, queue in due]


def batch_of(*bodies: object) -> Any:
    event = json.loads((EVENTS / "claim_and_run_doorbell.json").read_text())
    [record] = event["Records"]
    event["Records"] = [
        {**record, "messageId": f"m{number}", "body": body if isinstance(body, str) else json.dumps(body)}
        for number, body in enumerate(bodies)
    ]
    return event


class Container:
    """The functions of one deployment over a memory backend whose clock stands still, and their doorbell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.bell = Bell(self.clock)
        self.backend: Backend = open_backend(f"memory://{uuid.uuid4()}", clock=self.clock)
        self.invocations = 0
        self.ran: list[str] = []
        self.claims = 0
        for name, value in (("doorbell", self.bell), ("backend", self.backend)):
            monkeypatch.setattr(runtime, name, lambda value=value: value)
        queue_module.connect(self.backend, doorbell=self.bell)
        claim = self.backend.claim

        def counted(request: ClaimRequest) -> Any:
            self.claims += 1
            return claim(request)

        monkeypatch.setattr(self.backend, "claim", counted)

    def queue(self, name: str = "default") -> Queue:
        return Queue(name, self.backend)

    def run(self, event: Any = None) -> Any:
        self.invocations += 1
        return runtime.claim_and_run_handler({} if event is None else event, None)

    def tick(self) -> None:
        for handler in (runtime.delayed_promoter_handler, runtime.stalled_sweep_handler):
            handler({}, None)

    def deliver(self, batch: int = 1, most: int = 10_000) -> int:
        """Hands the messages to workers until none is left; returns how many invocations that took."""
        before = self.invocations
        while queues := self.bell.receive(batch):
            answer = self.run(batch_of(*({"queue": name} for name in queues)))
            assert answer == {"batchItemFailures": []}
            assert self.invocations - before <= most, "the rings multiply"
        return self.invocations - before

    def left(self, queue: str = "default") -> int:
        counts = self.queue(queue).info(exact=True).counts
        return counts.waiting + counts.delayed + counts.active


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets variables for a container that starts after it."""
    kept = (
        runtime.settings,
        runtime.backend,
        runtime.doorbell,
        runtime.load_tasks,
        runtime.load_listeners,
        runtime.intake,
        runtime.api,
    )

    def start(**env: str) -> None:
        for one in kept:
            one.cache_clear()
        monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", f"memory://{uuid.uuid4()}")
        monkeypatch.setenv(
            "MAYFLYMQ_QUEUES", "default"
        )  # else those of every task that any test module defines
        for name, value in env.items():
            monkeypatch.setenv(name, value)

    for name in ("_default", "_doorbell"):  # to be restored
        monkeypatch.setattr(queue_module, name, None)
    # Powertools' own would write to this process's stdout for good.
    log = logging.getLogger("mayflymq")
    plain = SimpleNamespace(append_keys=lambda **_: None, info=log.info, warning=log.warning, error=log.error)
    monkeypatch.setattr(runtime, "logger", lambda: plain)
    yield start
    for one in kept:
        one.cache_clear()


@pytest.fixture
def functions(container: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Container]:
    def start(**env: str) -> Container:
        container(**env)
        made = Container(monkeypatch)
        tasks = Registry()
        tasks.add(Task(name="t", fn=lambda name="": made.ran.append(name)))
        real = runtime.worker.claim_and_run
        monkeypatch.setattr(
            runtime.worker, "claim_and_run", lambda *args, **options: real(*args, **options, tasks=tasks)
        )
        return made

    return start


Functions = Callable[..., Container]


# The worker


@pytest.mark.parametrize(
    "body",
    ["", "{", "7", "[]", "{}", "[" * 100_000, {"queue": None}, {"queue": "none"}, {"queue": ["default"]}],
)
def test_a_ring_that_says_nothing_counts_as_handled(
    functions: Functions, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    made = functions()
    made.bell.deaf = True
    made.queue().enqueue("t")
    assert made.run(batch_of(body)) == {"batchItemFailures": []}
    assert made.left() == 0  # the queues are looked at all the same
    assert "a ring cannot be read" in caplog.text or "names no queue of this worker" in caplog.text


def test_an_empty_batch(functions: Functions) -> None:
    assert functions().run({"Records": []}) == {"batchItemFailures": []}


@pytest.mark.parametrize(
    ("event", "first"),
    [
        ({}, "a"),
        ({"queues": ["c", "b"]}, "c"),
        ({"queues": ["none", "b"]}, "b"),
        ({"queues": "b"}, "b"),
        ({"queues": None}, "a"),
        (batch_of({"queue": "c"}, {"queue": "c"}, {"queue": "a"}), "c"),
        (json.loads((EVENTS / "claim_and_run_schedule.json").read_text()), "a"),
        (json.loads((EVENTS / "claim_and_run_invoke.json").read_text()), "a"),
    ],
)
def test_the_named_queues_come_first_and_the_others_after(
    functions: Functions, event: Any, first: str
) -> None:
    made = functions(MAYFLYMQ_QUEUES="a:3,b,c", MAYFLYMQ_LIMIT="1")
    for name in ("a", "b", "c"):
        made.queue(name).enqueue("t", [name])
    made.run(event)
    assert made.ran == [first]
    for _ in range(2):
        made.run(event)
    assert sorted(made.ran) == ["a", "b", "c"]


def test_a_store_that_cannot_be_reached_has_sqs_ring_again(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = functions()
    monkeypatch.setattr("mayflymq.claims.PAUSES_S", (0.001, 0.001))

    def claim(request: ClaimRequest) -> Any:
        raise BackendError("no route", transient=True)

    monkeypatch.setattr(made.backend, "claim", claim)
    answer = made.run(batch_of({"queue": "default"}, "{"))
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}, {"itemIdentifier": "m1"}]}
    assert "no route" in caplog.text
    with pytest.raises(BackendError, match="no route"):
        made.run()
    assert made.bell.rung == 0


@pytest.mark.promise("F1", backends=["functions"])
@pytest.mark.parametrize("left_ms", [1000, 200])
def test_without_time_to_begin_nothing_is_answered(functions: Functions, left_ms: int) -> None:
    """A success would have SQS delete rings that nobody heard, and hide a margin that leaves no time."""
    made = functions(MAYFLYMQ_MARGIN="1")
    made.queue().enqueue("t")
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: left_ms)
    for handler, event in (
        (runtime.claim_and_run_handler, batch_of({"queue": "default"})),
        (runtime.stalled_sweep_handler, {}),
        (runtime.delayed_promoter_handler, {}),
    ):
        with pytest.raises(ConfigurationError, match=r"^MAYFLYMQ_MARGIN: 1 s are kept back and (1|0.2) s"):
            handler(event, context)
    assert (made.left(), made.claims) == (1, 0)


def test_one_queue_that_cannot_be_claimed_from_fails_no_batch_and_loops_for_nobody(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = functions(MAYFLYMQ_QUEUES="good,bad")
    monkeypatch.setattr("mayflymq.claims.PAUSES_S", (0.001, 0.001))
    claim = made.backend.claim

    def broken(request: ClaimRequest) -> Any:
        if request.queue == "bad":
            raise BackendError("odd", transient=False)
        return claim(request)

    monkeypatch.setattr(made.backend, "claim", broken)
    for name in ("good", "bad"):
        made.queue(name).enqueue("t")
    assert made.deliver() <= 4
    assert (made.left("good"), made.left("bad")) == (0, 1)


def test_a_worker_that_finishes_rings_nobody(functions: Functions) -> None:
    made = functions()
    made.queue().enqueue("t")
    made.bell.messages.clear()
    rung = made.bell.rung
    assert made.run()["completed"] == 1
    assert made.bell.rung == rung


def test_a_paused_queue_is_not_rung_for(functions: Functions) -> None:
    made = functions(MAYFLYMQ_QUEUES="a,b", MAYFLYMQ_LIMIT="1")
    made.queue("a").enqueue("t")
    made.queue("b").enqueue("t")
    made.queue("b").pause()
    made.bell.messages.clear()
    made.run()
    made.tick()
    assert list(made.bell.messages) == []


def test_the_doorbell_is_made_ready_at_half_time(functions: Functions) -> None:
    made = functions()
    with wakeups.doorbell_at_hand(made.bell, lambda: 20):
        time.sleep(0.1)
    assert made.bell.prepared == 1
    with wakeups.doorbell_at_hand(made.bell, lambda: 20_000):
        pass
    with wakeups.doorbell_at_hand(None, lambda: 20), wakeups.doorbell_at_hand(made.bell, None):
        pass
    assert made.bell.prepared == 1


# All together


@pytest.mark.promise("D1", backends=["memory"])
def test_every_ring_is_lost_and_the_schedules_alone_finish_the_work(functions: Functions) -> None:
    made = functions(MAYFLYMQ_QUEUES="default,other", MAYFLYMQ_LIMIT="7")
    made.bell.deaf = True
    for number in range(20):
        made.queue().enqueue("t", [f"{number}"], delay=number)
        made.queue("other").enqueue("t", [f"other {number}"])
    lost = made.queue().claim(ClaimRequest("default", 1, "token", "a worker that died", 1000))
    assert len(lost) == 1
    minutes = 0
    while made.left() + made.left("other"):
        minutes += 1
        assert minutes < 20
        made.clock.advance(60_000)
        made.tick()
        made.run()  # its own schedule
    assert len(made.ran) == 40
    assert len(set(made.ran)) == 40


@pytest.mark.parametrize("handler", [runtime.stalled_sweep_handler, runtime.delayed_promoter_handler])
def test_a_tick_makes_up_for_lost_rings(functions: Functions, handler: Callable[..., Any]) -> None:
    """No schedule of the worker's own is needed: the sweep's or the promoter's ticks wake it."""
    made = functions(MAYFLYMQ_QUEUES="a,b,empty")
    made.bell.deaf = True
    for name in ("a", "b"):
        made.queue(name).enqueue("t")
    made.bell.deaf = False
    handler({}, None)
    assert sorted(queue for _, queue in made.bell.messages) == ["a", "b"]
    made.deliver()
    assert made.left("a") + made.left("b") == 0


def test_a_backlog_of_25_invocations_drains_by_rings_alone(functions: Functions) -> None:
    made = functions(MAYFLYMQ_LIMIT="4")
    queue = made.queue()
    queue.enqueue_jobs([queue.job("t", [str(number)]) for number in range(100)])
    assert len(made.bell.messages) == 1
    assert made.deliver(most=30) in (25, 26)
    assert made.ran == [str(number) for number in range(100)]


@pytest.mark.parametrize("batch", [1, 10])
def test_the_rings_of_several_queues_do_not_multiply(functions: Functions, batch: int) -> None:
    made = functions(MAYFLYMQ_QUEUES="a,b,c,d", MAYFLYMQ_LIMIT="4")
    for name in ("a", "b", "c", "d"):
        queue = made.queue(name)
        queue.enqueue_jobs([queue.job("t") for _ in range(50)])
    assert len(made.bell.messages) == 4
    made.deliver(batch, most=60)
    assert len(made.ran) == 200


def test_a_delayed_backlog_drains_too(functions: Functions) -> None:
    """A claim takes due jobs that no promoter has moved, so those that are left are rung for as well."""
    made = functions(MAYFLYMQ_LIMIT="2")
    queue = made.queue()
    queue.enqueue_jobs([queue.job("t", delay=30) for _ in range(9)])
    assert made.deliver() == 0
    made.clock.advance(30_000)
    assert made.deliver() <= 6
    assert made.left() == 0


def test_a_delayed_job_starts_by_its_delayed_ring(functions: Functions) -> None:
    made = functions()
    made.queue().enqueue("t", ["later"], delay=90)
    made.clock.advance(89_999)
    made.deliver()
    assert made.ran == []
    made.clock.advance(1)
    assert made.deliver() == 1
    assert made.ran == ["later"]


@pytest.mark.parametrize("batch", [1, 10])
def test_a_storm_of_rings_multiplies_no_work_and_loses_none(functions: Functions, batch: int) -> None:
    made = functions(MAYFLYMQ_LIMIT="4")
    queue = made.queue()
    queue.enqueue_jobs([queue.job("t", [str(number)]) for number in range(40)])
    for _ in range(1000):
        queue.ring()
    assert made.deliver(batch, most=1100 // batch) <= 1012 // batch + 12
    assert sorted(made.ran, key=int) == [str(number) for number in range(40)]

    made.bell.messages.clear()
    for _ in range(1000):
        queue.ring()
    before, rung = made.claims, made.bell.rung
    assert made.deliver(batch) == 1000 // batch
    assert made.claims - before == 1000 // batch  # one that finds nothing for each invocation
    assert made.bell.rung == rung


def test_rings_from_the_enqueue_function(container: Callable[..., None], made: Made) -> None:
    """As deployed: the setting alone makes every function's queues ring, and a task's own."""
    container(MAYFLYMQ_DOORBELL=f"sqs:{QUEUE_URL}")

    def prepare(stub: Stubber) -> None:
        for queue, delay in (("default", 0), ("default", 7), ("default", 0)):
            expected = {
                "QueueUrl": QUEUE_URL,
                "MessageBody": json.dumps({"queue": queue}),
                "DelaySeconds": delay,
            }
            stub.add_response("send_message", {"MessageId": "1"}, expected)

    made.prepare = prepare
    runtime.initialise(tasks=True, http=True)
    assert made.asked == []  # nothing of it in a snapshot
    tasks = Registry()
    tasks.add(Task(name="t", fn=lambda: None))
    runtime.intake().tasks = tasks
    event = json.loads((EVENTS / "enqueue_http_v2_post.json").read_text())
    event["body"] = json.dumps({"task": "t"})
    assert runtime.enqueue_handler(event, None)["statusCode"] == 202
    assert runtime.enqueue_handler({"task": "t", "delay": 7}, None)["state"] == "delayed"
    record = json.loads((EVENTS / "enqueue_sqs.json").read_text())["Records"][0]
    assert runtime.enqueue_handler({"Records": [{**record, "body": '{"task": "t"}'}]}, None) == {
        "batchItemFailures": []
    }
    assert made.stub is not None
    made.stub.assert_no_pending_responses()
    assert len(made.asked) == 1


# Several ticks in one invocation


class Time:
    """A clock for the promoter's loop: sleeping moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.end = seconds
        monkeypatch.setattr(runtime, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def get_remaining_time_in_millis(self) -> int:
        return round((self.end - self.now) * 1000)


def test_one_tick_an_invocation_by_default(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    functions()
    context = Time(monkeypatch, 60)
    assert runtime.delayed_promoter_handler({}, context)["complete"] is True
    assert context.slept == []


def test_several_ticks_until_the_time_is_up(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    made = functions(MAYFLYMQ_TICK_INTERVAL="5")
    context = Time(monkeypatch, 60)
    queue = made.queue()
    queue.enqueue_jobs([queue.job("t", delay=second) for second in range(1, 60, 5)])

    def sleep(seconds: float, real: Callable[[float], None] = context.sleep) -> None:
        made.clock.advance(round(seconds * 1000))
        real(seconds)

    monkeypatch.setattr(context, "sleep", sleep)
    report = runtime.delayed_promoter_handler({}, context)
    assert context.slept == [5.0] * 11  # the margin of a second is kept
    assert (report["promoted"], report["queues"], report["errors"]) == (11, 1, 0)


def test_a_tick_that_lasted_long_is_followed_by_no_burst(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = functions(MAYFLYMQ_TICK_INTERVAL="5")
    context = Time(monkeypatch, 60)
    real, lasted = made.backend.queues, iter([22.0])

    def queues(*args: Any, **options: Any) -> Any:
        context.now += next(lasted, 0)
        return real(*args, **options)

    monkeypatch.setattr(made.backend, "queues", queues)
    runtime.delayed_promoter_handler({}, context)
    assert context.slept == [3.0] + [5.0] * 6


def test_a_tick_that_fails_stops_no_other(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = functions(MAYFLYMQ_TICK_INTERVAL="5")
    real, calls = made.backend.queues, 0

    def queues(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= failing:
            raise BackendError("no route", transient=True)
        return real(*args, **options)

    monkeypatch.setattr(made.backend, "queues", queues)
    failing = 2
    assert runtime.delayed_promoter_handler({}, Time(monkeypatch, 20))["errors"] == 2
    assert caplog.text.count("no route") == 2
    calls, failing = 0, 100
    with pytest.raises(BackendError, match="no route"):
        runtime.delayed_promoter_handler({}, Time(monkeypatch, 20))
    assert calls == 4


def test_one_bad_queue_keeps_no_other_from_being_rung(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = functions()
    made.bell.deaf = True
    for name in ("a", "b", "c"):
        made.queue(name).enqueue("t")
    made.bell.deaf = False

    def broken(queue: str, *_: object) -> Any:
        raise BackendError(f"odd: {queue}", transient=False)

    monkeypatch.setattr(made.backend, "promote_due", broken)
    assert runtime.delayed_promoter_handler({}, None)["errors"] == 3
    assert sorted(queue for _, queue in made.bell.messages) == ["a", "b", "c"]
    monkeypatch.setattr(made.bell, "ring", broken)
    assert runtime.stalled_sweep_handler({}, None)["errors"] == 0
    assert "odd: a" in caplog.text
