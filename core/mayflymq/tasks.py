"""Tasks: the functions that handle jobs, the names under which workers find them, and the job that runs right
now.

A task is found by its registered name only; nothing is ever imported because a payload names it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from .errors import ConfigurationError, InvalidJob, MayflyError, UnknownTask
from .model import (
    MAX_TIME,
    Backoff,
    Dedup,
    Enqueued,
    ParentPolicy,
    Seconds,
    check_int,
    check_progress,
    check_queue,
    check_text,
    duration_ms,
    shown,
)

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """What one job may set for itself; what it leaves out comes from its task. `Queue.enqueue` says what each
    means."""

    job_id: str | None
    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    ttl: Seconds | None
    timeout: Seconds | None
    max_retries: int | None
    backoff: Backoff | None
    meta: Mapping[str, str] | None
    depends_on: Sequence[str]
    on_parent_failure: ParentPolicy | str
    dedup: Dedup | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(Generic[P, R]):
    """A function together with how its jobs are treated. Calling it calls the function.

    Made by `task`. `http` says whether the enqueue function may take jobs of this task from the network.
    Raises ConfigurationError for a setting that cannot work.
    """

    name: str
    fn: Callable[P, R]
    queue: str = "default"
    max_retries: int = 3
    backoff: Backoff = field(default_factory=Backoff.exponential)
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    priority: int = 5
    http: bool = True
    is_async: bool = field(init=False)
    signature: inspect.Signature = field(init=False, repr=False)
    takes: tuple[float, float] = field(init=False, repr=False)
    """How few and how many positional arguments it can be called with, without any others."""

    def __post_init__(self) -> None:
        try:
            check_text("a task's name", self.name)
            check_queue(self.queue)
            check_int("max_retries", self.max_retries, 0, 2**31 - 1)
            check_int("priority", self.priority, -(2**31), 2**31 - 1)
            for what, value in (("timeout", self.timeout_ms), ("ttl", self.ttl_ms)):
                if value is not None:
                    check_int(f"{what} in milliseconds", value, 1, MAX_TIME)
        except InvalidJob as error:
            raise ConfigurationError(f"task {shown(self.name)}: {error}") from error
        if not isinstance(self.backoff, Backoff):
            raise ConfigurationError(
                f"task {shown(self.name)}: backoff must be a Backoff, not {shown(self.backoff)}"
            )
        if not isinstance(self.http, bool):
            raise ConfigurationError(
                f"task {shown(self.name)}: http must be True or False, not {shown(self.http)}"
            )
        if inspect.isgeneratorfunction(self.fn) or inspect.isasyncgenfunction(self.fn):
            raise ConfigurationError(
                f"task {shown(self.name)} is a generator function: calling it would run nothing"
            )
        try:
            signature = inspect.signature(self.fn)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"task {shown(self.name)}: {self.fn!r} has no signature to bind to"
            ) from error
        # Written past the frozen __setattr__: derived once here, or what makes help() and inspect see the
        # function.
        self.__dict__.update(
            is_async=inspect.iscoroutinefunction(self.fn),
            signature=signature,
            takes=_takes(signature),
            __wrapped__=self.fn,
            __doc__=self.fn.__doc__,
            __name__=getattr(self.fn, "__name__", self.name),
            __qualname__=getattr(self.fn, "__qualname__", self.name),
            __module__=self.fn.__module__,
        )

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raises InvalidJob when the function cannot be called with these arguments, saying which one is
        wrong."""
        if not kwargs and self.takes[0] <= len(args) <= self.takes[1]:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            takes = ", ".join(map(str, self.signature.parameters)) or "no arguments"
            raise InvalidJob(f"task {shown(self.name)}: {error}; it takes {takes}") from error

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueues one call of this task to its own queue on the default backend; see `Queue.enqueue`."""
        return Bound(self, None, {}).enqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Sequence[object] | Mapping[str, object]]) -> list[Enqueued]:
        """Enqueues many calls, each a tuple of positional or a dict of keyword arguments; see
        `Queue.enqueue_many`."""
        return Bound(self, None, {}).enqueue_many(calls)

    def options(self, *, queue: str | None = None, **options: Unpack[JobOptions]) -> Bound[P, R]:
        """This task with options for the jobs to come: `send.options(delay=10).enqueue("a@b")`."""
        if unknown := sorted(options.keys() - JobOptions.__annotations__.keys()):
            known = ", ".join(("queue", *JobOptions.__annotations__))
            raise TypeError(f"there is no option {', '.join(unknown)}; there are {known}")
        return Bound(self, queue, options)


def _takes(signature: inspect.Signature) -> tuple[float, float]:
    few = many = 0.0
    for parameter in signature.parameters.values():
        needed = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            many = float("inf")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            few = float("inf") if needed else few  # never without any others
        elif parameter.kind is not parameter.VAR_KEYWORD:
            few, many = few + needed, many + 1
    return few, many


@dataclass(frozen=True, slots=True)
class Bound(Generic[P, R]):
    """A task with the options of the jobs that will be enqueued through it."""

    task: Task[P, R]
    queue: str | None
    job_options: JobOptions

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """As `Task.enqueue`, with these options."""
        return self._producer().enqueue(self.task, args, kwargs, **self.job_options)

    def enqueue_many(self, calls: Iterable[Sequence[object] | Mapping[str, object]]) -> list[Enqueued]:
        """As `Task.enqueue_many`, with these options for every job. Raises InvalidJob when they name a
        job_id."""
        if self.job_options.get("job_id") is not None:
            raise InvalidJob("a job_id names one job: enqueue_many cannot give it to many")
        specs = []
        for call in calls:
            if isinstance(call, Mapping):
                specs.append(JobSpec(self.task, (), dict(call), self.job_options))
            elif isinstance(call, tuple | list):
                specs.append(JobSpec(self.task, tuple(call), None, self.job_options))
            else:
                kind = type(call).__name__
                raise InvalidJob(
                    f"each call is a tuple of arguments or a dict of keyword arguments, not {kind}"
                )
        return self._producer().enqueue_many(specs)

    def _producer(self) -> Producer:
        return _open_queue(self.task.queue if self.queue is None else self.queue)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job of `Queue.enqueue_many`."""

    task: str | Task[..., Any]
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] | None = None
    options: JobOptions = field(default_factory=lambda: JobOptions())


class Producer(Protocol):
    """What a task needs of a queue to enqueue itself; `queue.Queue` is it."""

    def enqueue(
        self,
        task: str | Task[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        **options: Unpack[JobOptions],
    ) -> Enqueued: ...

    def enqueue_many(self, specs: Iterable[JobSpec]) -> list[Enqueued]: ...


_open_queue: Callable[[str], Producer]


def produce_through(open_queue: Callable[[str], Producer]) -> None:
    """Says how a task gets its queue by name: the queue module stands above this one and calls this once."""
    global _open_queue
    _open_queue = open_queue


class Registry:
    """The tasks that this process knows, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Registers a task. Raises ConfigurationError when another function has its name already."""
        known = self._tasks.get(task.name)
        if known is not None and not _same_function(known.fn, task.fn):
            raise ConfigurationError(
                f"two tasks are called {task.name!r}: {_place(known.fn)} and {_place(task.fn)}; "
                "give one of them another name with @task(name=...)"
            )
        self._tasks[task.name] = task

    def get(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises UnknownTask saying which there are."""
        try:
            return self._tasks[name]
        except KeyError:
            known = ", ".join(sorted(self._tasks)[:20]) or "none"
            raise UnknownTask(
                f"no task {shown(name)} is registered here (registered: {known}); "
                "name the module that defines it in MAYFLYMQ_TASKS"
            ) from None

    @property
    def queues(self) -> list[str]:
        """The queues that the tasks name."""
        return sorted({task.queue for task in self._tasks.values()})

    def load(self, modules: Iterable[str]) -> None:
        """Imports the modules that define tasks. Raises ConfigurationError naming one that cannot be
        imported."""
        for module in modules:
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:  # an exit would stop the process without a word
                reason = f"{type(error).__name__}: {error}"
                if module.endswith(".py"):
                    name = module.removeprefix("./").removesuffix(".py").replace("/", ".")
                    reason += f" (a module has no .py: {name})"
                raise ConfigurationError(
                    f"the module {module!r} (MAYFLYMQ_TASKS, --tasks) cannot be imported: {reason}"
                ) from error

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._tasks))


registry = Registry()
"""The tasks of this process: where `@task` registers."""


def _same_function(one: Callable[..., object], other: Callable[..., object]) -> bool:
    """Whether these are one function, perhaps defined anew by a reload of its module or a notebook's cell."""
    if one is other:
        return True
    one, other = inspect.unwrap(one), inspect.unwrap(other)
    places = [(f.__module__, getattr(f, "__qualname__", ""), _line(f)) for f in (one, other)]
    return places[0] == places[1] and "<locals>" not in places[0][1]


def _line(fn: Callable[..., object]) -> int | None:
    line: int | None = getattr(getattr(fn, "__code__", None), "co_firstlineno", None)
    return line


def _place(fn: Callable[..., object]) -> str:
    return f"{fn.__module__}.{getattr(fn, '__qualname__', repr(fn))}"


@overload
def task(fn: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    queue: str = "default",
    name: str | None = None,
    max_retries: int = 3,
    backoff: Backoff | None = None,
    timeout: Seconds | None = None,
    ttl: Seconds | None = None,
    priority: int = 5,
    http: bool = True,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    queue: str = "default",
    name: str | None = None,
    max_retries: int = 3,
    backoff: Backoff | None = None,
    timeout: Seconds | None = None,
    ttl: Seconds | None = None,
    priority: int = 5,
    http: bool = True,
) -> Any:
    """Makes a function a task: `@task` or `@task(queue="emails", max_retries=5)`.

    The settings are the defaults of its jobs. `name` is what jobs are stored under (the function's own name
    when left out); `backoff` is `Backoff.exponential()` when left out; `timeout` bounds one run and `ttl` the
    time from creation to start (E1), both above 0, in seconds or as a timedelta; a lower `priority` goes
    first.

    Raises ConfigurationError for a setting that cannot work, and when another function has the name already.
    """

    def register(fn: Callable[P, R]) -> Task[P, R]:
        if not callable(fn):
            raise ConfigurationError(f"@task is for functions, not {shown(fn)}; its settings go by name")
        called = getattr(fn, "__name__", None) if name is None else name
        if name is None and called == "<lambda>":
            raise ConfigurationError("a lambda has no name to store jobs under: give one with task(name=...)")
        made = Task(
            name=called,  # type: ignore[arg-type]  # checked by Task
            fn=fn,
            queue=queue,
            max_retries=max_retries,
            backoff=Backoff.exponential() if backoff is None else backoff,
            timeout_ms=_setting_ms(called, "timeout", timeout),
            ttl_ms=_setting_ms(called, "ttl", ttl),
            priority=priority,
            http=http,
        )
        registry.add(made)
        return made

    return register if fn is None else register(fn)


def _setting_ms(task: object, what: str, value: Seconds | None) -> int | None:
    if value is None:
        return None
    try:
        return duration_ms(what, value)
    except InvalidJob as error:
        raise ConfigurationError(f"task {shown(task)}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentJob:
    """The job that the code around it handles; had from `current_job()`.

    `delivery` counts from 1 how often the job was given to a worker (D3), `failures` how often its handler
    failed before. `deadline` is when the handler will be stopped, by this process's clock, None where nothing
    stops it.
    """

    id: str
    queue: str
    task: str
    delivery: int
    failures: int
    deadline: datetime | None
    meta: Mapping[str, str]
    is_cancelled: Callable[[], bool]
    report_progress: Callable[[float], None]

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or its claim lost: what the handler still does will not be recorded
        (X2)."""
        return self.is_cancelled()

    def remaining_ms(self) -> int | None:
        """Milliseconds until the deadline, 0 when it has passed, None where there is none."""
        if self.deadline is None:
            return None
        return max(0, (self.deadline - datetime.now(UTC)) // timedelta(milliseconds=1))

    def progress(self, fraction: float) -> None:
        """Says how far the job is, from 0 to 1; stored with the next heartbeat."""
        self.report_progress(check_progress(fraction))


_current: ContextVar[CurrentJob] = ContextVar("mayflymq_current_job")


def current_job() -> CurrentJob:
    """The job being handled. Raises MayflyError outside a handler, also in a thread that the handler started
    itself."""
    try:
        return _current.get()
    except LookupError:
        raise MayflyError("current_job() is for code that runs inside a task's handler") from None


def run_as(current: CurrentJob, call: Callable[[], R]) -> R:
    """Returns `call()`, inside which (and in asyncio tasks made there) `current` is what `current_job()`
    returns. What it sets of other context variables ends with it."""
    context = copy_context()
    context.run(_current.set, current)
    return context.run(call)
