"""The emulator's answers, as the tests of the functions read them."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.functions.lambda_runtime import LambdaRuntime, find_emulator

TOY = """
import os, subprocess, time
from pathlib import Path

count = 0

def handler(event, context):
    global count
    count += 1
    return globals()[event["do"]](event, context)

def echo(event, context):
    return event

def about(event, context):
    return {"count": count, "pid": os.getpid(), "emulator": os.getppid()}

def of_context(event, context):
    return [context.function_name, context.memory_limit_in_mb, context.get_remaining_time_in_millis()]

def environment(event, context):
    return dict(os.environ)

def outlive(event, context):
    print("before the timeout")
    time.sleep(30)
    print("after the timeout")

def exit(event, context):
    print("before the exit")
    os._exit(event["code"])

def fail(event, context):
    raise ValueError("no \\u00e9clair")

def error_lookalike(event, context):
    return {"errorType": "Menu", "errorMessage": "an order, not an error"}

def too_much(event, context):
    return "x" * 7_000_000

def slow_count(event, context):
    time.sleep(0.1)
    return count

def start_child(event, context):
    return {"child": subprocess.Popen(["sleep", "60"]).pid, **about(event, context)}

def meet(event, context):
    Path(event["me"]).touch()
    while not Path(event["other"]).exists():
        time.sleep(0.005)
    return os.getpid()
"""

Start = Callable[..., LambdaRuntime]


@pytest.fixture
def toy(tmp_path: Path) -> Start:
    (tmp_path / "toy.py").write_text(TOY)

    def start(handler: str = "toy.handler", timeout_s: int = 5, **env: str) -> LambdaRuntime:
        return LambdaRuntime(handler, env=env, timeout_s=timeout_s, python_path=[tmp_path])

    return start


def test_a_function_returns_and_its_container_stays_warm(toy: Start) -> None:
    event = {"do": "echo", "text": "caf\u00e9 \u2603", "nested": [1, None, {"a": 0.5}]}
    with toy() as runtime:
        cold, warm = runtime.invoke(event), runtime.invoke(event)
        assert cold.payload == warm.payload == event
        assert (cold.error_type, cold.error_message, cold.timed_out, cold.crashed) == (
            None,
            None,
            False,
            False,
        )
        assert cold.init_ms is not None
        assert cold.init_ms > 1  # not the 0.03 ms that the REPORT line calls the init
        assert cold.duration_ms is not None
        assert cold.billed_ms is not None
        assert warm.init_ms is None
        assert runtime.invoke({"do": "about"}).payload["count"] == 3


def test_the_context_knows_the_time_that_is_left(toy: Start) -> None:
    with toy(timeout_s=2) as runtime:
        name, memory, cold_ms = runtime.invoke({"do": "of_context"}).payload
        assert (name, memory) == ("toy", "256")
        assert 0 < cold_ms < 2000  # the init has been taken off
        assert 0 < runtime.invoke({"do": "of_context"}).payload[2] <= 2000


def test_the_environment_is_what_was_given(toy: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", "memory://of-the-developer")
    with toy(MAYFLYMQ_TASKS="tasks", AWS_REGION="eu-west-1") as runtime:
        environment = runtime.invoke({"do": "environment"}).payload
    assert environment["MAYFLYMQ_TASKS"] == "tasks"
    assert environment["AWS_REGION"] == "eu-west-1"
    assert "MAYFLYMQ_BACKEND_URL" not in environment


def test_a_function_that_outlives_its_timeout_is_killed(toy: Start) -> None:
    with toy(timeout_s=1) as runtime:
        before = runtime.invoke({"do": "about"}).payload
        killed = runtime.invoke({"do": "outlive"})
        assert killed.timed_out
        assert not killed.crashed
        assert killed.error_type == "Sandbox.Timedout"
        assert killed.error_message == "Task timed out after 1.00 seconds"
        assert killed.duration_ms == 1000
        assert "before the timeout" in killed.log
        assert "after the timeout" not in killed.log
        assert_starts_anew(runtime, before["pid"])


@pytest.mark.parametrize(("code", "why"), [(1, "exit status 1"), (0, "without providing a reason")])
def test_a_function_that_exits_has_crashed(toy: Start, code: int, why: str) -> None:
    with toy() as runtime:
        before = runtime.invoke({"do": "about"}).payload
        crash = runtime.invoke({"do": "exit", "code": code})
        assert crash.crashed
        assert not crash.timed_out
        assert crash.error_type == "Runtime.ExitError"
        assert crash.error_message is not None
        assert why in crash.error_message
        assert crash.duration_ms is None
        assert "before the exit" in crash.log
        assert_starts_anew(runtime, before["pid"])


def test_a_function_that_raises_stays_warm(toy: Start) -> None:
    with toy() as runtime:
        failure = runtime.invoke({"do": "fail"})
        assert (failure.error_type, failure.error_message) == ("ValueError", "no \u00e9clair")
        assert (failure.timed_out, failure.crashed) == (False, False)
        assert "raise ValueError" in failure.log
        assert "raise ValueError" not in runtime.invoke({"do": "echo"}).log
        assert runtime.invoke({"do": "about"}).payload["count"] == 3


def test_a_result_that_looks_like_an_error_is_none(toy: Start) -> None:
    with toy() as runtime:
        assert runtime.invoke({"do": "error_lookalike"}).error_type is None


def test_a_result_over_six_megabytes_crashes_the_runtime(toy: Start) -> None:
    with toy() as runtime:
        crash = runtime.invoke({"do": "too_much"})
        assert crash.crashed
        assert crash.error_type == "Function.ResponseSizeTooLarge"


def test_a_failed_init_is_tried_again_by_the_next_invocation(toy: Start, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import stock\nfrom toy import handler\n")
    with toy("shop.handler") as runtime:
        for _ in range(2):
            failure = runtime.invoke({"do": "about"})
            assert failure.crashed
            assert failure.error_type == "Runtime.ImportModuleError"
            assert failure.error_message == "Unable to import module 'shop': No module named 'stock'"
        (tmp_path / "stock.py").touch()
        assert runtime.invoke({"do": "about"}).payload["count"] == 1


def test_an_exit_during_the_init_is_a_crash(toy: Start, tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import os\nprint('leaving')\nos._exit(3)\n")
    with toy("leaving.handler") as runtime:
        crash = runtime.invoke({})
    assert crash.crashed
    assert crash.error_type == "Runtime.ExitError"
    assert "exit status 3" in crash.log


def test_an_init_that_outlives_the_timeout_times_out(toy: Start, tmp_path: Path) -> None:
    (tmp_path / "waking.py").write_text("import time\ntime.sleep(30)\n")
    with toy("waking.handler", timeout_s=1) as runtime:
        assert runtime.invoke({}).timed_out


def test_two_runtimes_run_at_the_same_time(toy: Start, tmp_path: Path) -> None:
    left, right = str(tmp_path / "left"), str(tmp_path / "right")
    with toy() as one, toy() as two, ThreadPoolExecutor() as pool:
        first = pool.submit(one.invoke, {"do": "meet", "me": left, "other": right})
        second = pool.submit(two.invoke, {"do": "meet", "me": right, "other": left})
        assert first.result().error_type is None
        assert second.result().error_type is None
        assert first.result().payload != second.result().payload


def test_one_runtime_serves_one_event_at_a_time(toy: Start) -> None:
    with toy() as runtime, ThreadPoolExecutor() as pool:
        invocations = pool.map(runtime.invoke, [{"do": "slow_count"}] * 3)
        assert sorted(invocation.payload for invocation in invocations) == [1, 2, 3]


@pytest.mark.parametrize("emulator_dies_first", [False, True])
def test_leaving_stops_the_runtime_and_its_children(toy: Start, emulator_dies_first: bool) -> None:
    with toy() as runtime:
        started = runtime.invoke({"do": "start_child"}).payload
        with ended(started["pid"]) as runtime_ended, ended(started["child"]) as child_ended:
            if emulator_dies_first:
                os.kill(started["emulator"], signal.SIGKILL)
                with pytest.raises(RuntimeError, match="no answer"):
                    runtime.invoke({"do": "echo"})
            runtime.__exit__()
            assert runtime_ended()
            assert child_ended()


def test_a_runtime_that_is_killed_between_invocations_fails_the_next(toy: Start) -> None:
    with toy() as runtime:
        pid = runtime.invoke({"do": "about"}).payload["pid"]
        with ended(pid) as runtime_ended:
            os.kill(pid, signal.SIGKILL)
            assert runtime_ended()
        assert runtime.invoke({"do": "about"}).crashed
        assert_starts_anew(runtime, pid)


def test_a_missing_emulator_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="run `make setup`"):
        find_emulator(tmp_path)


def assert_starts_anew(runtime: LambdaRuntime, old_pid: int) -> None:
    after = runtime.invoke({"do": "about"})
    assert after.init_ms is not None
    assert after.payload["count"] == 1
    assert after.payload["pid"] != old_pid


@contextmanager
def ended(pid: int) -> Iterator[Callable[[], bool]]:
    """Whether a process ends within 5 s; asked by descriptor, so that its id may be used again meanwhile."""
    descriptor = os.pidfd_open(pid)
    try:
        yield lambda: bool(select.select([descriptor], [], [], 5)[0])
    finally:
        os.close(descriptor)
