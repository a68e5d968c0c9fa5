"""What the worker's tests share: a store with its clock, and a spy between the worker and the store."""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from mayflymq.backends.base import Backend, open_backend
from mayflymq.errors import BackendError
from mayflymq.model import Job
from mayflymq.queue import Queue
from mayflymq.tasks import Registry, Task
from mayflymq.worker import RunReport, claim_and_run

PATIENCE_S = 20
NOW = 1_700_000_000_000

Do = Callable[[], Any]


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


class Spy:
    """Between the worker and the store: notes the calls, and lets a test act in place of one.

    `faults[name]` are taken in turn, each called with what makes the real call; None lets one pass.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.faults: dict[str, list[Callable[[Do], Any] | None]] = {}
        self.seen = threading.Condition()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.backend, name)
        if not callable(method):
            return method

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            do = functools.partial(method, *args, **kwargs)
            faults = self.faults.get(name)
            fault = faults.pop(0) if faults else None
            try:
                return do() if fault is None else fault(do)
            finally:
                with self.seen:
                    self.calls.append((name, args))
                    self.seen.notify_all()

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def wait_for(self, name: str, times: int) -> None:
        with self.seen:
            assert self.seen.wait_for(lambda: self.names().count(name) >= times, PATIENCE_S)


def lost_answer(do: Do) -> Any:
    do()
    raise BackendError("the connection broke", transient=True)


def unreachable(do: Do) -> Any:
    raise BackendError("no connection", transient=True)


def refused(do: Do) -> Any:
    raise BackendError("the record is too large", transient=False)


class Bench:
    """A store, its clock, a registry, and short ways to fill and run them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.url = f"memory://{uuid.uuid4().hex}"
        self.store = open_backend(self.url, clock=self.clock)
        self.spy = Spy(self.store)
        self.tasks = Registry()

    def task(self, fn: Callable[..., Any], name: str | None = None) -> Task[..., Any]:
        made: Task[..., Any] = Task(name=name or fn.__name__, fn=fn)
        self.tasks._tasks[made.name] = made  # a test may make its lambda anew for each job
        return made

    def enqueue(self, task: Task[..., Any] | str, *args: Any, queue: str = "q", **options: Any) -> str:
        return Queue(queue, self.store).enqueue(task, args, **options).job_id

    def job(self, job_id: str, queue: str = "q") -> Job:
        job = self.store.get(queue, [job_id])[0]
        assert job is not None
        return job

    def run(self, **options: Any) -> RunReport:
        options = {"queues": ["q"], "tasks": self.tasks} | options
        backend: Any = self.spy
        return claim_and_run(backend, options.pop("queues"), **options)

    def run_one(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Job:
        """Runs one job of `fn` and returns what became of it."""
        job_id = self.enqueue(self.task(fn, "one"), *args, **options)
        self.run()
        return self.job(job_id)


class Deadline:
    """Remaining milliseconds: those of real time, or whatever a test sets."""

    def __init__(self, ms: int, *, ticking: bool = True) -> None:
        self.ms = ms
        self.until = time.monotonic() + ms / 1000 if ticking else None

    def __call__(self) -> int:
        return self.ms if self.until is None else round((self.until - time.monotonic()) * 1000)


def in_thread(do: Callable[[], Any]) -> Any:
    """What `do` returns in a thread that is not the main one."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(do()))
    thread.start()
    thread.join(PATIENCE_S)
    return box[0]
