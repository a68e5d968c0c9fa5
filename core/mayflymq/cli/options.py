"""Reads the command line: the options that commands share, the settings, and the store that they name."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..aws.doorbell import open_doorbell
from ..backends.base import Backend, open_backend
from ..errors import ConfigurationError, MayflyError
from ..model import MAX_BATCH, shown
from ..queue import Queue, connect
from ..settings import Settings, load_settings
from ..tasks import registry
from .output import clean_text, complain, log, log_to_stderr

# How many jobs or schedules a command asks the store for, or changes, in one call.
PAGE = MAX_BATCH

# The options whose settings have other names.
NAMES = {
    "backend_url": "--backend",
    "queues": "--queue",
    "sweep_limit": "--limit",
    "promote_limit": "--limit",
}
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _seconds(text: str) -> float:
    """A duration on the command line, in seconds; `nan` and `inf` are numbers to float() and no durations."""
    unit = UNITS_S.get(text[-1:])
    try:
        value = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise typer.BadParameter(f"{text!r} is no duration: write 90 or 90s, 5m, 24h, 14d")
    return value


def duration(help: str) -> Any:
    """An option that takes a duration; its value is in seconds."""
    return typer.Option(metavar="DURATION", parser=_seconds, help=help)


def whole(help: str, at_least: int | None = None) -> Any:
    """An option that takes a whole number."""

    def read(text: str) -> int:
        try:
            number: int | None = int(text)
        except ValueError:
            number = None
        if number is None or (at_least is not None and number < at_least):
            least = "" if at_least is None else f" of at least {at_least}"
            raise typer.BadParameter(f"it takes a whole number{least}, not {shown(text)}")
        return number

    return typer.Option(metavar="NUMBER", parser=read, help=help)


def flag(*names: str, help: str) -> Any:
    """An option that takes no value; without a metavar the help would show one, <bool>."""
    return typer.Option(*names, metavar="", help=help)


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARG",
        help="Arguments as JSON: 5 or '\"text\"'. Put -- before one that starts with '-'.",
    ),
]
Keywords = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="A keyword argument; repeat for more.")
]
Priority = Annotated[int | None, whole("Lower goes first. (default: the task's, else 5)")]
TimeToLive = Annotated[float | None, duration("Expires when claimed later than this: 90 or 90s, 5m, 24h.")]
MaxRetries = Annotated[
    int | None,
    whole("How often it is run again when its handler fails. (default: the task's, else 3)", at_least=0),
]
Timeout = Annotated[
    float | None,
    duration("How long one run may take: 90 or 90s, 5m, 24h. (default: the task's, else no limit)"),
]
Meta = Annotated[
    list[str] | None, typer.Option(metavar="NAME=TEXT", help="A note that travels with the job.")
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks", "-t", metavar="MODULE", help="Defines tasks; repeat for more. (default: MAYFLYMQ_TASKS)"
    ),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON for programs, and nothing else, on stdout.")]


# Settings and the store


def read_settings(context: typer.Context, **explicit: object) -> Settings:
    """What was given on the command line, else the environment."""
    given = context.obj | {name: value for name, value in explicit.items() if value is not None}
    called = {name: NAMES.get(name) or f"--{name.replace('_', '-')}" for name in given}
    return load_settings(called=called, **given)


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Backend]:
    """The store during the block, with its doorbell; what is logged then goes to stderr."""
    log_to_stderr(settings.log_level)
    backend = open_backend(settings.backend_url)
    if not backend.capabilities.shared:
        log.warning(
            "this backend keeps jobs in this process: no other command sees them, and they end with it"
        )
    if settings.doorbell:
        connect(backend, doorbell=open_doorbell(settings.doorbell))
    try:
        yield backend
    finally:
        backend.close()


@contextlib.contextmanager
def opened_queue(settings: Settings, name: str) -> Iterator[Queue]:
    """One queue of the store during the block."""
    with opened(settings) as backend:
        yield Queue(name, backend, max_payload_bytes=settings.max_payload_bytes)


def own_queue_note(task: str, queue: str) -> None:
    """Says on stderr where a job goes to another queue than its task's own, where workers look for it."""
    if task in registry and (own := registry.get(task).queue) != queue:
        complain(f"note: the queue of {task} is {own}, and this goes to {queue}")


def check_queues(backend: Backend, names: Sequence[str] | None) -> None:
    """Raises MayflyError for a name that no queue has: the store would call it empty, and it is a slip."""
    if not names:
        return
    there = [info.name for info in backend.queues()]
    for name in names:
        if name not in there:
            raise MayflyError(f"no queue {name} (there are: {', '.join(there[:20]) or 'none'})")


def make_sure(question: str, yes: bool) -> None:
    """Returns when what cannot be undone was asked for: by --yes, or by whoever answers the question."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was removed: nobody can be asked here, so it needs --yes")
    if not typer.confirm(clean_text(question), err=True):
        raise MayflyError("nothing was removed")


# Tasks and what they are called with


def load_tasks(modules: Sequence[str]) -> None:
    """Imports modules that define tasks, from the current directory too."""
    # An installed command does not look into the directory it is called from; the user's modules are there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    registry.load(modules)


def read_job(
    context: typer.Context,
    task: str,
    args: list[str] | None,
    kw: list[str] | None,
    tasks: list[str] | None,
) -> tuple[Settings, tuple[Any, ...], dict[str, Any]]:
    """The settings and the arguments of a job or schedule to make, each from its JSON; its task's module is
    loaded."""
    settings = read_settings(context, tasks=joined(tasks))
    load_tasks(settings.task_modules)
    # With --tasks the task is one of those: a misspelt name would be found by a worker, and much later.
    if tasks and task not in registry:
        known = ", ".join(list(registry)[:20]) or "none"
        raise typer.BadParameter(f"no task {task} in {', '.join(tasks)} (there are: {known})")
    positional = tuple(_from_json(text, f"argument {number}") for number, text in enumerate(args or (), 1))
    keywords = {name: _from_json(text, f"--kw {name}") for name, text in pairs("--kw", kw).items()}
    return settings, positional, keywords


def _from_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise typer.BadParameter(
            f"{what} is not JSON: {text[:80]} (text needs quotes of its own: '\"text\"')"
        ) from None


def pairs(option: str, values: list[str] | None) -> dict[str, str]:
    """What a repeated option with values name=value holds."""
    found: dict[str, str] = {}
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or not name or name in found:
            raise typer.BadParameter(f"{option} takes name=value, each name once, not {value[:80]}")
        found[name] = text
    return found


def joined(values: list[str] | None) -> str | None:
    """A repeated option as the setting of that name has it."""
    return ",".join(values) if values else None


def ms(seconds: float) -> int:
    return round(seconds * 1000)
