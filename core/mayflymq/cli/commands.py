"""All commands and groups of commands, in the order in which the help lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import jobs, queues, running, schedules
from .options import flag
from .output import EXIT_CODES, USAGE

# Typer keeps the line breaks of a docstring's later paragraphs, so these are kept narrow for a terminal.
COMMANDS: dict[str, Callable[..., int]] = {
    "enqueue": jobs.enqueue,
    "run": running.run,
    "sweep": running.sweep,
    "promote": running.promote,
    "dev": running.dev,
    "queues": queues.show_queues,
    "pause": queues.pause,
    "resume": queues.resume,
    "drain": queues.drain,
    "clean": queues.clean,
    "obliterate": queues.obliterate,
    "migrate": queues.migrate,
    "check": queues.check,
}
GROUPS: dict[str, tuple[str, dict[str, Callable[..., int]]]] = {
    "jobs": (
        "List, show, cancel, retry and remove jobs.",
        {
            "list": jobs.list_jobs,
            "show": jobs.show_job,
            "cancel": jobs.cancel_jobs,
            "remove": jobs.remove_jobs,
            "retry": jobs.retry_jobs,
        },
    ),
    "dlq": (
        "Look at the dead-letter queue (failed and expired jobs), and replay it.",
        {"list": jobs.list_dead_letters, "replay": jobs.replay_dead_letters},
    ),
    "schedules": (
        "List, put, remove, pause and resume schedules.",
        {
            "list": schedules.list_schedules,
            "put": schedules.put_schedule,
            "remove": schedules.remove_schedule,
            "pause": schedules.pause_schedule,
            "resume": schedules.resume_schedule,
        },
    ),
}


class _Command(TyperCommand):
    def get_help_option(self, ctx: Any) -> Any:
        return _flag_only(super().get_help_option(ctx))


class _Group(TyperGroup):
    def get_help_option(self, ctx: Any) -> Any:
        return _flag_only(super().get_help_option(ctx))


def _flag_only(option: Any) -> Any:
    """--help, which Typer makes itself, without a <bool> behind it, as `flag` does for ours."""
    option.metavar = ""
    return option


app = typer.Typer(
    name="mayflymq",
    cls=_Group,
    help="Enqueue jobs, run them for one invocation, recover and inspect them.",
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _add(commands: dict[str, Callable[..., int]], to: typer.Typer) -> None:
    for name, command in commands.items():
        to.command(name, cls=_Command)(command)


_add(COMMANDS, app)
for _name, (_help, _commands) in GROUPS.items():
    _group = typer.Typer(cls=_Group, help=_help, epilog=EXIT_CODES, no_args_is_help=False)
    _add(_commands, _group)
    app.add_typer(_group, name=_name)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the jobs are. (default: MAYFLYMQ_BACKEND_URL, else sqlite:///mayflymq.db)",
        ),
    ] = None,
    version: Annotated[bool, flag("--version", help="Show the version.")] = False,
) -> None:
    context.obj = {} if backend is None else {"backend_url": backend}
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("mayflymq"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)
