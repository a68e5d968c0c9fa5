"""The `mayflymq` command: parses, calls Queue, the worker and maintenance, prints. No logic is here (F6).

Results go to stdout; errors, logs and progress to stderr. Text that came from jobs is never read as markup,
and its control characters are shown as escapes, so that no job id or error can drive the operator's terminal.

`commands` is the list of all commands, a module beside it holds each group; they share what reads the command
line (`options`) and what prints (`output`).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from ..errors import BackendError, ConfigurationError, CorruptRecord, InvalidJob, MayflyError

try:
    import typer

    from .commands import app
    from .output import DONE, INTERRUPTED, NOT_DONE, UNREACHABLE, USAGE, complain
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.startswith("mayflymq"):
        raise
    sys.stderr.write(f"mayflymq: the command needs the package {missing.name}: pip install 'mayflymq[cli]'\n")
    raise SystemExit(2) from None

# The first kind that an error is decides.
EXIT_CODE_OF = {
    InvalidJob: USAGE,
    ConfigurationError: USAGE,
    CorruptRecord: NOT_DONE,
    BackendError: UNREACHABLE,
    MayflyError: NOT_DONE,
}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point. What a person can act on is one line; only a fault of the program has a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        # A command returns its exit code, and that is what comes out of here.
        code: int | None = app(args=args, prog_name="mayflymq", standalone_mode=False)
        sys.stdout.flush()  # where that fails, it is said here
        return code or DONE
    except MayflyError as error:
        return complain(
            str(error), next(EXIT_CODE_OF[kind] for kind in EXIT_CODE_OF if isinstance(error, kind))
        )
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", INTERRUPTED)
    except OSError as error:
        with contextlib.suppress(OSError):  # so that what is left in the buffer does not fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE if isinstance(error, BrokenPipeError) else complain(str(error))
    except Exception as error:
        # Usage errors are Typer's own classes or the click package's, as its version has it; both have this.
        if not hasattr(error, "format_message"):
            raise
        hint = ""
        message = error.format_message().replace(": Value error, ", ": ")  # pydantic says that in Typer
        if "--backend" in message:
            hint = " (--backend goes before the command: mayflymq --backend URL ...)"
        elif re.match(r"No such option: -[.\d]", message):
            hint = " (put -- before an argument that starts with '-': mayflymq enqueue QUEUE TASK -- -5)"
        elif message.startswith("Missing command") and (at := getattr(error, "ctx", None)):
            hint = f" These are: {', '.join(at.command.list_commands(at))}."
        return complain(f"{message}{hint}", USAGE)
