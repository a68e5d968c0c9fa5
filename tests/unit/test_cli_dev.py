"""`mayflymq dev`: run, sweep and promote in a loop."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mayflymq import Backend, Backoff, Queue, State, connect, open_backend, queue
from mayflymq.backends import memory
from mayflymq.errors import BackendError

from . import cli_bench
from .cli_bench import TASKS, Command, claim, is_one_line

url, backend, call, mayflymq = cli_bench.url, cli_bench.backend, cli_bench.call, cli_bench.mayflymq

BOTH = ("memory", "sqlite")
DEV = ("dev", "--tasks", TASKS, "--interval", "0.005s", "--until-idle", "--queue", "sums")


@pytest.fixture
def q(backend: Backend) -> Queue:
    return Queue("sums", backend)


def state(q: Queue, job_id: str) -> State:
    job = q.get(job_id)
    assert job is not None
    return job.state


@pytest.mark.promise("F6", backends=("functions",))
def test_until_idle_does_all_that_the_functions_do(mayflymq: Command, q: Queue) -> None:
    q.enqueue("cli.add", [1], job_id="stalled")
    claim(q.backend, "sums", stale_after_ms=1)
    q.enqueue("cli.add", [1], job_id="later", delay=0.02)
    q.enqueue("cli.flaky", job_id="flaky", max_retries=1)
    q.enqueue("cli.fail", job_id="bad", max_retries=0)
    q.enqueue("cli.add", [1], job_id="child", depends_on=["later"])
    done = mayflymq(*DEV, "--json")
    assert done.code == 0, done
    assert [state(q, each) for each in ("stalled", "later", "flaky", "child", "bad")] == [
        *[State.COMPLETED] * 4,
        State.FAILED,
    ]
    told = {name: done.json[name] for name in ("stalled", "completed", "failed", "retrying", "errors")}
    assert told == {"stalled": 1, "completed": 4, "failed": 1, "retrying": 1, "errors": 0}
    assert "a handler prints" in done.err  # and not into the JSON
    assert not [thread for thread in threading.enumerate() if thread.name == "mayflymq-dev"]


@pytest.mark.parametrize(("option", "code"), [([], 0), (["--until-idle"], 1)])
def test_a_time_limit_ends_it(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch, option: list[str], code: int
) -> None:
    monkeypatch.setenv("MAYFLYMQ_MARGIN", "0.01")
    q.enqueue("cli.add", [1], job_id="later", delay=3600)
    done = mayflymq(*DEV[:5], "-q", "sums", *option, "--time-limit", "0.1")
    assert done.code == code
    assert done.err.count("mayflymq: waiting for 1 delayed job; the first is due 20") == len(option)
    assert ("the time limit came before" in done.err) is bool(option)
    assert mayflymq(*DEV, "--time-limit", "0.005").code == 2


@pytest.mark.promise("G6", backends=BOTH)
def test_schedules_fire(mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    q.schedule("tick", "cli.add", [1], every=1)
    q.enqueue("cli.add", [1], delay=1.1)  # until then it is not idle, and a slot comes
    done = mayflymq(*DEV, "--json")
    assert (done.code, done.json["enqueued"] >= 1) == (0, True)
    assert done.json["completed"] == done.json["enqueued"] + 1


def test_it_sweeps_and_promotes_while_a_handler_runs(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_default", None)
    connect(q.backend)
    q.enqueue("cli.await_promotion", ["other"], job_id="long", max_retries=0)
    assert mayflymq(*DEV, "--json").json["completed"] == 2
    assert (state(q, "long"), state(q, "other")) == (State.COMPLETED, State.COMPLETED)


def test_old_jobs_go_as_the_sweep_has_it(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAYFLYMQ_RETENTION_COMPLETED", "0.001")
    q.enqueue("cli.add", [1], job_id="one")
    mayflymq(*DEV)
    while q.get("one") is not None:
        assert mayflymq(*DEV).code == 0


def test_a_paused_queue_is_left_alone_and_no_queue_but_those_named_is_touched(
    mayflymq: Command, q: Queue, backend: Backend
) -> None:
    q.enqueue("cli.add", [1], job_id="one")
    q.pause()
    other = Queue("other", backend)
    other.enqueue("cli.add", [1], job_id="two")
    claim(backend, "other", stale_after_ms=1)
    assert mayflymq(*DEV, "--json").json["completed"] == 0
    assert (state(q, "one"), state(other, "two")) == (State.WAITING, State.ACTIVE)


@pytest.mark.parametrize(
    "command", [("run",), ("dev", "--interval", "0.005", "--until-idle")], ids=lambda c: c[0]
)
def test_without_queues_it_works_on_those_of_the_tasks(
    mayflymq: Command, backend: Backend, command: tuple[str, ...]
) -> None:
    own = Queue("cli-own", backend)
    own.enqueue("cli.flaky", job_id="one", max_retries=1, backoff=Backoff.fixed(0))
    assert mayflymq(*command, "--tasks", TASKS).code == 0
    assert state(own, "one") is State.COMPLETED


def test_where_stdout_is_no_terminal_each_change_is_a_line(mayflymq: Command, q: Queue) -> None:
    q.enqueue("cli.add", [1], delay=0.1)  # it looks many times until then, and nothing changes
    q.enqueue("cli.fail", max_retries=0)
    lines = [line for line in mayflymq(*DEV).out.splitlines() if line.startswith("sums: ")]
    assert lines[-1] == "sums: completed 1, failed 1"
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("transient", [True, False])
def test_a_store_that_fails_ends_it_with_exit_code_3(
    mayflymq: Command, backend: Backend, monkeypatch: pytest.MonkeyPatch, transient: bool
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise BackendError("the store is away", transient=transient)

    monkeypatch.setattr(type(backend), "claim", fails)
    monkeypatch.setattr("mayflymq.claims.PAUSES_S", (0.001, 0.001))
    answer = mayflymq(*DEV)
    assert (answer.code, "the store is away" in answer.err) == (3, True)
    monkeypatch.setattr(type(backend), "queues", fails)
    answer = mayflymq("dev", "--tasks", TASKS)
    assert (answer.code, is_one_line(answer)) == (3, True)


def test_it_outlives_a_store_that_is_away_for_a_while(
    call: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"memory://{tmp_path}"
    q = Queue("sums", open_backend(url))
    q.enqueue("cli.add", [1], job_id="one")
    real, calls = memory.MemoryBackend.claim, []

    def claim(self: memory.MemoryBackend, request: object) -> object:
        calls.append(request)
        if len(calls) <= 6:
            raise BackendError("the store is away", transient=True)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return real(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(memory.MemoryBackend, "claim", claim)
    monkeypatch.setattr("mayflymq.claims.PAUSES_S", (0.001, 0.001))
    done = call("--backend", url, "dev", "--tasks", TASKS, "-q", "sums", "--interval", "0.001", "--json")
    assert (done.code, done.json["completed"]) == (0, 1)
    assert done.json["errors"] > 0
    assert state(q, "one") is State.COMPLETED


# As a process

SLOW = """
import threading
from mayflymq import task

@task(max_retries=1)
def slow():
    print("working", flush=True)
    threading.Event().wait(60)

@task
def quick():
    print("a handler prints")
"""


def begin(directory: Path, *args: str) -> subprocess.Popen[str]:
    (directory / "my_tasks.py").write_text(SLOW)
    command = [str(Path(sys.executable).with_name("mayflymq")), "dev", "--tasks", "my_tasks", *args]
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def hear(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == wanted:
            return
    raise AssertionError(f"it ended and never said {wanted!r}")


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote by its end; one that does not end is killed and fails the test."""
    try:
        return process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


@pytest.mark.parametrize(("args", "code"), [([], 0), (["--until-idle"], 130)])
@pytest.mark.parametrize("during", ["default: delayed 1", "working"])
def test_ctrl_c_ends_it_and_what_ran_is_recorded(
    tmp_path: Path, args: list[str], code: int, during: str
) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    working = during == "working"
    q.enqueue("slow", job_id="one", delay=None if working else 3600)
    process = begin(tmp_path, *args, "--interval", "0.01")
    hear(process, during)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert (process.returncode, "Traceback" in err) == (code, False), err
    assert out.splitlines()[-1] == ("started: 1, retrying: 1" if working else "started: 0")
    job = q.get("one")
    assert job is not None
    assert (job.state, job.failures) == (State.DELAYED, int(working))


def test_sigterm_ends_it_when_the_handler_has_ended(tmp_path: Path) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    q.enqueue("slow", job_id="one", timeout=1, max_retries=0)
    q.enqueue("slow", job_id="two", max_retries=0)
    process = begin(tmp_path, "--interval", "0.01")
    hear(process, "working")
    process.terminate()
    finish(process)
    assert (process.returncode, state(q, "one"), state(q, "two")) == (0, State.FAILED, State.WAITING)


@pytest.mark.parametrize("interval", ["0.000001", "1h"])
def test_sigterm_ends_it_while_it_looks_for_work_and_between(tmp_path: Path, interval: str) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    q.enqueue("slow", delay=3600)
    process = begin(tmp_path, "--interval", interval)
    hear(process, "default: delayed 1")
    process.terminate()
    finish(process)
    assert process.returncode == 0


def test_on_a_terminal_the_counts_are_live_and_what_handlers_print_stands_above(tmp_path: Path) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    q.enqueue("quick")
    (tmp_path / "my_tasks.py").write_text(SLOW)
    master, slave = pty.openpty()
    command = [str(Path(sys.executable).with_name("mayflymq")), "dev", "--tasks", "my_tasks", "--until-idle"]
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [*command, "--interval", "0.01"], cwd=tmp_path, env=env, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = cli_bench.read_all(master)
    os.close(master)
    assert process.wait(60) == 0
    assert "oldest wait" in seen
    assert "a handler prints" in seen
    assert "started: 1" in seen
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") > 0  # the cursor is hidden, and comes back
    assert "completed: 1" in seen.splitlines()[-1]


def test_its_report_is_one_line_of_json(tmp_path: Path) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    q.enqueue("quick")
    process = begin(tmp_path, "--until-idle", "--json")
    out, err = finish(process)
    assert (process.returncode, json.loads(out)["completed"]) == (0, 1)
    assert err == "a handler prints\n"
