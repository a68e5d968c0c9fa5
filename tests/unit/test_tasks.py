"""A task stays an ordinary function, knows its settings, and is found by its name."""

import asyncio
import functools
import importlib
import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mayflymq import queue, tasks
from mayflymq.errors import ConfigurationError, InvalidJob, MayflyError, UnknownTask
from mayflymq.model import Backoff, EnqueueStatus, State
from mayflymq.queue import Queue, connect
from mayflymq.tasks import CurrentJob, Registry, Task, current_job, run_as, task

names = iter(range(10**9))


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry and a default backend of the test's own."""
    fresh = Registry()
    monkeypatch.setattr(tasks, "registry", fresh)
    monkeypatch.setattr(queue, "registry", fresh)
    monkeypatch.setattr(queue, "_default", None)
    connect(f"memory://test_tasks_{next(names)}")
    return fresh


def send(to: str, subject: str = "hello", *, copies: int = 1) -> str:
    """Sends a mail."""
    return f"{to}:{subject}:{copies}"


# The function


def test_a_task_stays_an_ordinary_callable(registry: Registry) -> None:
    made = task(send)
    assert made("a@b", copies=2) == "a@b:hello:2"
    about: Any = made
    assert (about.__name__, about.__doc__, about.__module__) == ("send", "Sends a mail.", __name__)
    assert inspect.signature(made) == inspect.signature(send)
    assert inspect.unwrap(made) is send
    assert registry.get("send") is made


def test_the_defaults_of_a_task() -> None:
    made = task(send)
    assert (made.name, made.queue, made.priority, made.max_retries, made.http) == (
        "send",
        "default",
        5,
        3,
        True,
    )
    assert made.backoff == Backoff.exponential()
    assert (made.timeout_ms, made.ttl_ms, made.is_async) == (None, None, False)


def test_the_settings_of_a_task() -> None:
    made = task(
        queue="emails",
        name="mail",
        max_retries=0,
        backoff=Backoff.fixed(2),
        timeout=1.5,
        ttl=timedelta(minutes=1),
        priority=-(2**31),
        http=False,
    )(send)
    assert (made.name, made.queue, made.priority, made.max_retries, made.http) == (
        "mail",
        "emails",
        -(2**31),
        0,
        False,
    )
    assert (made.backoff, made.timeout_ms, made.ttl_ms) == (Backoff.fixed(2), 1500, 60_000)


def test_an_async_task_is_known_as_one() -> None:
    @task
    async def fetch(url: str) -> str:
        return url

    assert fetch.is_async
    assert asyncio.run(fetch("x")) == "x"


def numbers() -> Iterator[int]:
    yield 1


NOT_A_QUEUE = {"queue": "emails.dlq"}
BAD_SETTINGS: list[dict[str, Any]] = [
    {"queue": ""},
    NOT_A_QUEUE,
    {"queue": None},
    {"name": ""},
    {"name": 7},
    {"name": "a\0b"},
    {"max_retries": -1},
    {"max_retries": True},
    {"max_retries": 1.0},
    {"max_retries": None},
    {"backoff": 5},
    {"backoff": "fixed"},
    {"timeout": 0},
    {"timeout": -1},
    {"timeout": math.nan},
    {"timeout": math.inf},
    {"timeout": "5"},
    {"timeout": True},
    {"ttl": 0},
    {"ttl": timedelta(0)},
    {"ttl": math.inf},
    {"ttl": False},
    {"ttl": Decimal(1)},
    {"priority": 2**31},
    {"priority": True},
    {"priority": 1.0},
    {"http": 1},
    {"http": None},
]


@pytest.mark.parametrize("setting", BAD_SETTINGS, ids=str)
def test_a_setting_that_cannot_work_is_refused_at_registration(
    setting: dict[str, Any], registry: Registry
) -> None:
    with pytest.raises(ConfigurationError, match=r"^task .*(a queue|name|" + next(iter(setting)) + ")"):
        task(**setting)(send)
    assert list(registry) == []


def test_what_is_no_function_is_refused() -> None:
    for wrong in ("emails", 7):
        with pytest.raises(ConfigurationError, match="settings go by name"):
            task(wrong)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="generator"):
        task(numbers)
    with pytest.raises(ConfigurationError, match="a task's name"):
        task(functools.partial(send, "a"))
    assert task(name="half")(functools.partial(send, "a"))("x") == "a:x:1"


def test_a_lambda_needs_a_name(registry: Registry) -> None:
    for make in (task, task(priority=1)):
        with pytest.raises(ConfigurationError, match=r"a lambda has no name .* task\(name="):
            make(lambda: 1)
    assert list(registry) == []
    assert task(name="one")(lambda: 1).name == "one"


# The registry


def test_two_functions_under_one_name_are_refused(registry: Registry) -> None:
    first = task(send)
    with pytest.raises(
        ConfigurationError, match=r"two tasks are called 'send'.*numbers_.*@task\(name="
    ) as caught:

        @task(name="send")
        def numbers_() -> None: ...

    assert f"{__name__}.send" in str(caught.value)
    assert registry.get("send") is first


def test_functions_made_in_one_place_are_still_two() -> None:
    def make() -> Callable[[], None]:
        def inner() -> None: ...

        return inner

    task(make())
    with pytest.raises(ConfigurationError, match="two tasks"):
        task(make())


def test_a_module_may_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry
) -> None:
    (tmp_path / "reloaded_tasks.py").write_text("import mayflymq\n@mayflymq.tasks.task\ndef again(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.load(["reloaded_tasks"])
    first = registry.get("again")
    importlib.reload(inspect.getmodule(first.fn))  # type: ignore[arg-type]
    assert registry.get("again") is not first


def test_an_unknown_task_says_which_there_are(registry: Registry) -> None:
    task(send)
    with pytest.raises(UnknownTask, match=r"no task 'sned' .*registered: send.*MAYFLYMQ_TASKS"):
        registry.get("sned")
    assert "sned" not in registry
    assert ["send"] not in registry  # whatever a message from outside names as its task
    assert "send" in registry


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "ModuleNotFoundError"),
        ("1/0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("raise SystemExit('no licence')", "SystemExit"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    source: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / f"broken_{reason.lower()}.py").write_text(source)
    with pytest.raises(ConfigurationError, match=f"'broken_{reason.lower()}' .MAYFLYMQ_TASKS.*{reason}"):
        Registry().load([f"broken_{reason.lower()}"])


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "'to'"),
        (("a", "b", "c"), {}, "too many positional.*it takes to, subject, copies"),
        (("a",), {"colour": 1}, "'colour'"),
        (("a",), {"to": "b"}, "'to'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(
    args: tuple[object, ...], kwargs: dict[str, object], says: str
) -> None:
    made: Task[..., str] = task(send)
    for call in (
        lambda: made.bind(args, kwargs),
        lambda: made.enqueue(*args, **kwargs),
        lambda: Queue("default").enqueue("send", args, kwargs),
    ):
        with pytest.raises(InvalidJob, match=f"task 'send': .*{says}"):
            call()
    assert Queue("default").info().counts.waiting == 0


def test_defaults_need_not_be_given() -> None:
    task(send).bind(("a",), {})


@pytest.mark.parametrize(
    "fn",
    [
        lambda: 0,
        lambda a: 0,
        lambda a, b=1: 0,
        lambda a=1, b=2: 0,
        lambda a, /, b: 0,
        lambda *a: 0,
        lambda a, *b: 0,
        lambda **a: 0,
        lambda a, **b: 0,
        lambda a, *, b: 0,
        lambda a, *, b=1: 0,
        lambda *a, b: 0,
    ],
)
def test_a_count_of_arguments_decides_as_binding_them_does(fn: Callable[..., int]) -> None:
    made = Task(name="t", fn=fn)
    for count in range(5):
        for kwargs in ({}, {"b": 1}, {"c": 1}):
            try:
                inspect.signature(fn).bind(*range(count), **kwargs)
            except TypeError:
                with pytest.raises(InvalidJob, match="task 't'"):
                    made.bind(range(count), kwargs)
            else:
                made.bind(range(count), kwargs)


# Enqueueing


def test_a_task_is_enqueued_to_its_own_queue_with_its_own_settings() -> None:
    made = task(queue="emails", priority=2, max_retries=7, ttl=60, timeout=5, backoff=Backoff.fixed(3))(send)
    answer = made.enqueue("a@b", copies=2)
    job = Queue("emails").get(answer.job_id)
    assert job
    assert (answer.status, job.state, job.task) == (EnqueueStatus.CREATED, State.WAITING, "send")
    assert (job.priority, job.max_retries, job.ttl_ms, job.timeout_ms) == (2, 7, 60_000, 5000)
    assert job.backoff == Backoff.fixed(3)
    assert job.payload == b'{"args":["a@b"],"kwargs":{"copies":2},"meta":{}}'


def test_options_stand_in_front_of_the_tasks_own() -> None:
    made = task(priority=2)(send)
    answer = made.options(job_id="one", delay=10, priority=0, queue="other", meta={"t": "1"}).enqueue("a")
    job = Queue("other").get("one")
    assert job
    assert (answer.job_id, job.state, job.priority) == ("one", State.DELAYED, 0)
    assert b'"meta":{"t":"1"}' in job.payload
    assert made.priority == 2


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no option colour; there are queue, job_id, .*\bdelay\b"):
        task(send).options(colour="red")  # type: ignore[call-arg]


@pytest.mark.promise("G4")
def test_many_calls_are_accepted_or_refused_each_by_itself() -> None:
    answers = task(send).enqueue_many([("a",), {"to": "b", "copies": 2}, (), ("c", math.nan), ["d"]])
    assert [answer.status for answer in answers] == [
        EnqueueStatus.CREATED,
        EnqueueStatus.CREATED,
        EnqueueStatus.REFUSED,
        EnqueueStatus.REFUSED,
        EnqueueStatus.CREATED,
    ]
    assert "'to'" in str(answers[2].reason)
    assert "args[1] is nan" in str(answers[3].reason)
    assert Queue("default").info().counts.waiting == 3


def test_options_hold_for_many_and_one_id_does_not() -> None:
    made = task(send)
    made.options(delay=5, queue="x").enqueue_many([("a",), ("b",)])
    assert Queue("x").info().counts.delayed == 2
    with pytest.raises(InvalidJob, match="a job_id names one job"):
        made.options(job_id="one").enqueue_many([("a",)])
    with pytest.raises(InvalidJob, match="not str"):
        made.enqueue_many(["abc"])


def test_a_task_is_made_of_a_function_once() -> None:
    made = Task(name="x", fn=send)
    with pytest.raises(AttributeError):
        made.max_retries = 9  # type: ignore[misc]


# The current job


def current(**changes: Any) -> CurrentJob:
    values: dict[str, Any] = {
        "id": "one",
        "queue": "q",
        "task": "send",
        "delivery": 1,
        "failures": 0,
        "deadline": None,
        "meta": {},
        "is_cancelled": lambda: False,
        "report_progress": lambda fraction: None,
    }
    return CurrentJob(**{**values, **changes})


def test_there_is_a_current_job_inside_a_handler_only() -> None:
    outer, inner = current(id="outer"), current(id="inner")

    def handler() -> list[CurrentJob]:
        return [current_job(), run_as(inner, current_job), current_job()]

    def failing() -> None:
        raise RuntimeError

    assert run_as(outer, handler) == [outer, inner, outer]
    with suppress(RuntimeError):
        run_as(outer, failing)
    with pytest.raises(MayflyError, match="inside a task's handler"):
        current_job()


def test_jobs_in_threads_and_in_asyncio_do_not_mix() -> None:
    seen: dict[str, str] = {}
    together = threading.Barrier(2)

    def handle(name: str) -> None:
        together.wait()
        seen[name] = current_job().id

    calls = [functools.partial(handle, name) for name in ("a", "b")]
    threads = [threading.Thread(target=run_as, args=(current(id=call.args[0]), call)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def handle_async(name: str) -> None:
        await asyncio.sleep(0)
        seen[name] = current_job().id

    async def both() -> None:
        made = [
            run_as(current(id=name), lambda name=name: asyncio.create_task(handle_async(name)))
            for name in ("c", "d")
        ]
        await asyncio.gather(*made)

    asyncio.run(both())
    assert seen == {name: name for name in "abcd"}


@pytest.mark.promise("X2")
def test_a_running_handler_sees_a_cancellation() -> None:
    marked: list[bool] = []
    job = current(is_cancelled=lambda: bool(marked))
    assert not job.cancelled
    marked.append(True)
    assert job.cancelled


def test_progress_is_a_fraction() -> None:
    reported: list[float] = []
    job = current(report_progress=reported.append)
    for fraction in (0, 0.5, 1):
        job.progress(fraction)
    assert reported == [0.0, 0.5, 1.0]
    for wrong in (-0.1, 1.1, 50, math.nan, True, "1", None):
        with pytest.raises(InvalidJob, match="progress must be a number from 0 to 1"):
            job.progress(wrong)  # type: ignore[arg-type]
    assert len(reported) == 3


def test_the_time_that_remains() -> None:
    assert current().remaining_ms() is None
    now = datetime.now(UTC)
    assert current(deadline=now - timedelta(seconds=1)).remaining_ms() == 0
    left = current(deadline=now + timedelta(hours=1)).remaining_ms()
    assert left is not None
    assert 3_590_000 < left <= 3_600_000
