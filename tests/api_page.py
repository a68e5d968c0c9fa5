"""The text of docs/reference.md: signatures and docstrings of what a program calls.

python -m tests.documents --write     writes the page anew, with the table of docs/backends.md
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import mayflymq as m
from mayflymq import errors, events
from mayflymq.tasks import JobOptions

WIDTH = 100
HEAD = """# Reference

What a program calls and gets, with its defaults; all of it is imported from `mayflymq`. `Seconds` is a
number or a timedelta, and the codes in brackets are [promises](delivery.md#every-promise). The page is made
from the code by `python -m tests.documents --write`.

- [Tasks](#tasks) · [Inside a handler](#inside-a-handler) · [Queues](#queues) · [Values](#values) ·
  [Answers](#answers) · [Events](#events) · [Running and recovering](#running-and-recovering) ·
  [Exceptions](#exceptions)
"""
FOR_WORKERS = {
    *("claim", "started", "heartbeat", "settle", "settled", "release_stale", "promote_due"),
    *("has_doorbell", "ring"),
}


def methods(cls: type, leave_out: set[str] = frozenset()) -> list[tuple[str, Any]]:  # type: ignore[assignment]
    """The public methods and properties of a class, in the order of their definition."""
    return [
        (f"{cls.__name__}.{name}", inspect.getattr_static(cls, name))
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and name not in leave_out
        and isinstance(value, property | classmethod | Callable)  # type: ignore[arg-type]
    ]


def named(*classes: type) -> list[tuple[str, Any]]:
    """Classes by their names."""
    return [(cls.__name__, cls) for cls in classes]


FOR_HANDLERS = (m.Retry, m.Defer, m.Discard, m.TaskTimeout)
SECTIONS: dict[str, list[tuple[str, Any]]] = {
    "Tasks": [
        ("task", m.task),
        *((f"Task.{name}", getattr(m.Task, name)) for name in ("enqueue", "enqueue_many", "options")),
        ("JobOptions", JobOptions),
        ("JobSpec", m.JobSpec),
        ("Registry", m.Registry),
        *methods(m.Registry),
    ],
    "Inside a handler": [
        ("current_job", m.current_job),
        ("CurrentJob", m.CurrentJob),
        *methods(m.CurrentJob, {"is_cancelled", "report_progress"}),
        *named(*FOR_HANDLERS),
    ],
    "Queues": [
        *((fn.__name__, fn) for fn in (m.connect, m.default_backend, m.open_backend)),
        ("Queue", m.Queue),
        *methods(m.Queue, FOR_WORKERS),
    ],
    "Values": [
        *methods(m.Backoff),
        *named(m.Dedup, m.DedupMode, m.ParentPolicy, m.CatchUp, m.NewJob),
    ],
    "Answers": [
        *named(m.Enqueued, m.EnqueueStatus, m.Dependant, m.Job, m.State),
        *methods(m.State),
        *named(m.JobError, m.JobPage, m.Cancelled, m.CancelStatus, m.Retried, m.RetryStatus, m.Removed),
        *named(m.Drained, m.Dropped, m.QueueInfo, m.Counts, m.WorkerInfo, m.Schedule, m.StoredSchedule),
    ],
    "Events": [("listen", m.listen), ("Event", m.Event)],
    "Running and recovering": [
        ("claim_and_run", m.claim_and_run),
        ("RunReport", m.RunReport),
        ("sweep", m.sweep),
        ("Retention", m.Retention),
        ("SweepReport", m.SweepReport),
        ("promote", m.promote),
        ("PromoteReport", m.PromoteReport),
    ],
    "Exceptions": named(
        *(value for name, value in vars(errors).items() if name in m.__all__ and value not in FOR_HANDLERS)
    ),
}
INTRODUCTIONS = {
    "Events": f"The events are {', '.join(f'`{name}`' for name in events.NAMES)}.",
    "Exceptions": """Catch `MayflyError` for all that the library raises at its callers, `BackendError` for a
store that failed or cannot be reached, `InvalidJob` for what was refused before anything was written. What a
handler raises, or has raised inside it, is [above](#retry).""",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, entries in SECTIONS.items():
        parts.append(f"## {title}\n")
        if title in INTRODUCTIONS:
            parts.append(f"{INTRODUCTIONS[title]}\n")
        for name, value in entries:
            parts.append(f"### {name}\n")
            parts.append(f"```py\n{signature(name, value)}\n```\n")
            if text := described(value):
                parts.append(f"{text}\n")
            if fields := "\n".join(fields_described(value)):
                parts.append(f"{fields}\n")
    return "\n".join(parts)


def fields_described(value: Any) -> Iterator[str]:
    """A line for each field of a data class that has a docstring of its own."""
    if not dataclasses.is_dataclass(value):
        return
    [cls] = ast.parse(textwrap.dedent(inspect.getsource(value))).body  # type: ignore[arg-type]
    for field, text in itertools.pairwise(cls.body):  # type: ignore[attr-defined]
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                yield f"- `{name}`: {markdown(inspect.cleandoc(said))}"


def described(value: Any) -> str:
    """The docstring as Markdown."""
    return markdown(inspect.getdoc(value) or "")


def markdown(text: str) -> str:
    """Text in which what is no code holds no emphasis by accident."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("*", r"\*") for part in parts)


def signature(name: str, value: Any) -> str:
    """How it is called, or what an attribute or a set of values holds; of an exception its bases too."""
    if isinstance(value, property):
        return f"{name}: {value.fget.__annotations__['return']}"  # type: ignore[union-attr]
    if isinstance(value, enum.EnumType):
        return "\n".join(f"{name}.{member.name} = {member.value!r}" for member in value)  # type: ignore[var-annotated]
    if value is JobOptions:
        return "\n".join(f"{key}: {kind.__forward_arg__}" for key, kind in JobOptions.__annotations__.items())
    if isinstance(value, type) and issubclass(value, BaseException):
        kind = f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        if "__init__" in vars(value):
            return f"{kind}\n{_call(name, value)}"
        return f"{kind}\n{name}(*args: object)" if value in FOR_HANDLERS else kind
    return _call(name, value)


def _call(name: str, value: Any) -> str:
    fn = value.__func__ if isinstance(value, classmethod) else value
    parameters = list(inspect.signature(fn).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    told = list(_told(parameters))
    returns = "" if isinstance(value, type) else f" -> {inspect.signature(fn).return_annotation}"
    line = f"{name}({', '.join(told)}){returns}"
    return (
        line
        if len(line) <= WIDTH
        else "\n    ".join([f"{name}(", *(f"{one}," for one in told)]) + f"\n){returns}"
    )


def _told(parameters: list[inspect.Parameter]) -> Iterator[str]:
    by_name = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not by_name:
            yield "*"
        by_name = by_name or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        written = (
            one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
        )
        kind = re.sub(r"^Unpack\[(\w+)\]$", r"\1", written).replace("datetime.timedelta", "timedelta")
        default = "" if one.default is one.empty else f" = {_shown(one.default)}"
        yield f"{stars}{one.name}: {kind}{default}"


def _shown(default: object) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, m.Registry):
        return "registry"
    return "{}" if repr(default) == "<factory>" else repr(default)
