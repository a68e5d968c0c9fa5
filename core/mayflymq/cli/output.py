"""Prints: results to stdout as text, tables or JSON; complaints, the log and progress to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import events
from ..backends.base import COUNT_CAP

log = logging.getLogger("mayflymq")

DONE, NOT_DONE, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 something was not done or is wrong (an unknown job or queue, an ERROR finding); "
    "2 the command, a value or a setting cannot work; 3 the store could not be reached or refused; "
    "130 interrupted."
)
LOGGED = ("queue", "job_id", "task", "deliveries")


def clean_text(text: object, *, lines: bool = False) -> str:
    """The text with what does not print (controls, surrogates) as escapes; `lines` keeps breaks and tabs."""
    return "".join(
        c
        if c.isprintable() or (lines and c in "\n\t")
        else c.encode("unicode_escape", "surrogatepass").decode()
        for c in str(text)
    )


# Lines


def say(text: str, *, lines: bool = False) -> None:
    """Text on stdout: one line, or several with `lines`."""
    typer.echo(clean_text(text, lines=lines))


def say_json(value: object) -> None:
    """JSON on stdout, one line."""
    typer.echo(json.dumps(value))


def tell(as_json: bool, value: object, text: str) -> None:
    """The result on stdout, for a program or for a person."""
    if as_json:
        say_json(value)
    else:
        say(text)


def tell_counts(as_json: bool, counts: dict[str, Any], *, at_least: str | None = None) -> None:
    """What happened and how often; for a person only what did, where the count `at_least` is given, and that
    one in any case."""
    told = {
        name: json.dumps(value) if isinstance(value, bool) else value
        for name, value in counts.items()
        if value or at_least in (None, name)
    }
    tell(as_json, counts, ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in told.items()))


def complain(message: str, code: int = NOT_DONE) -> int:
    """One line on stderr, whatever the message holds; returns the exit code."""
    typer.echo(f"mayflymq: {clean_text(' '.join(message.split()))}", err=True)
    return code


# Tables


def stdout() -> Console:
    # What is piped has no width to keep to; a table cut at 80 columns would be of no use there.
    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 250)


def bare_table(**style: Any) -> Table:
    """A table without lines and yet without columns."""
    return Table(box=None, pad_edge=False, header_style="bold", **style)


def table(*columns: str, numbers_from: int | None = None, **style: Any) -> Table:
    """A table with these columns; those from the index `numbers_from` on are numbers. Where it is too wide,
    a column gives way whose heading has several words, or that has text."""
    made = bare_table(**style)
    for index, name in enumerate(columns):
        right = numbers_from is not None and index >= numbers_from
        whole = right and " " not in name
        made.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    return made


# Values


def many(n: int, what: str, *, capped: bool = False) -> str:
    """How many of what; `capped` for a count that the store stopped at COUNT_CAP."""
    return f"{n:,}{' or more' if capped and n >= COUNT_CAP else ''} {what}{'' if n == 1 else 's'}"


def age(ms: int | None) -> str:
    """A time span in its largest unit."""
    if ms is None:
        return "-"
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def instant(ms: int | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    if ms is None:
        return None
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError):  # a job may be due in a year that has more than four digits
        return "9999-12-31T23:59:59.999Z"


def now() -> int:
    """This machine's time, for what is only shown; what decides is the store's (F4)."""
    return round(time.time() * 1000)


# The log and progress, on stderr


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: above a live display, while there is one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # read-only on purpose
        return sys.stderr


class _LogLine(logging.Formatter):
    """A log line for a person: with the queue and the job that it is about, as text that cannot do harm."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        about = [f"{name}={record.__dict__[name]}" for name in LOGGED if name in record.__dict__]
        return super().formatMessage(record) + (f" ({', '.join(about)})" if about else "")

    def format(self, record: logging.LogRecord) -> str:
        return clean_text(super().format(record), lines=True)


def log_to_stderr(level: str) -> None:
    """Shows the log from this level on, unless the program has a log already."""
    handler = _Stderr()
    handler.setFormatter(_LogLine("%(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def progress(label: str, total: int | None = None, *names: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr during the block, moved on by the events `names` and by calling what it yields; nothing
    where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True, markup=False, highlight=False, emoji=False),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    task = bar.add_task(label, total=total)
    stop = events.listen(lambda event: bar.advance(task), *names) if names else lambda: None
    try:
        with bar:
            yield lambda n: bar.advance(task, n)
    finally:
        stop()
