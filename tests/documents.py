"""Runs what the documentation shows, so that every block of a page works as it stands there.

    python -m tests.documents docs/quickstart.md     runs the blocks of a page, in a temporary directory
    python -m tests.documents --write                writes reference.md, and the table in docs/backends.md

The blocks of a page run one after the other, in a process, a namespace and a directory of the page's own,
where `mayflymq/` is the checkout:

- a Python block after a line that begins with `` `name.py` `` is written to that file; others are executed;
- the lines of a console block that begin with `$ ` run in one shell, which stops at the first that fails.

What stands below, as the other lines of a console block or after `#>` in a Python block, must be in the
output, in that order; `...` stands for anything. A block below `<!-- shown, not run: why -->` is left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NOT_RUN = re.compile(r"<!-- shown, not run: .+ -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where its text begins, what it is, the file that it is to become, whether it is run."""

    line: int
    language: str
    text: str
    file: str | None = None
    run: bool = True

    @property
    def commands(self) -> list[str]:
        """The commands of a console block."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def output(self) -> list[str]:
        """The lines that must be in the output."""
        if self.language == "console":
            return [line for line in self.text.splitlines() if not line.startswith("$ ")]
        return re.findall(r"^#> (.+)$", self.text, re.MULTILINE)


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page's text, in order."""
    found: list[Block] = []
    before, opened, language = "", 0, ""
    inside: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        if opened and line == "```":
            named = re.match(r"`([\w/]+\.\w+)`", before) if language == "python" else None
            run = language in ("python", "console") and not NOT_RUN.fullmatch(before)
            text = "".join(f"{text}\n" for text in inside)
            found.append(Block(opened, language, text, named[1] if named else None, run))
            before, opened, inside = "", 0, []
        elif opened:
            inside.append(line)
        elif line.startswith("```"):
            opened, language = number + 1, line.removeprefix("```")
        elif line:
            before = line
    return found


def shell(commands: Sequence[str], directory: Path, **env: str) -> str:
    """What the commands print, run one after the other in one shell; fails when one of them does."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(commands)],
        cwd=directory,
        env=os.environ | {"PATH": path} | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def missing(shown: Iterable[str], printed: str) -> str | None:
    """The first of the shown lines that is not in the output behind the one before; None when all are."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for line in shown:
        pattern = ".*".join(map(re.escape, " ".join(line.split()).split("...")))
        while lines and not re.fullmatch(pattern, lines[0]):
            lines.pop(0)
        if not lines and pattern not in ("", ".*"):
            return line
    return None


def run_page(page: Path, directory: Path) -> Iterator[str]:
    """Runs the blocks of a page in this process and directory; yields a sentence for each that fails."""
    module = ModuleType("page")
    sys.modules["page"] = module
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.run:
            continue
        if block.file:
            (directory / block.file).write_text(block.text)
            continue
        printed = ""
        try:
            if block.language == "console":
                printed = shell(block.commands, directory)
            else:
                code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(code, vars(module))
                printed = out.getvalue()
        except BaseException as error:
            yield f"{page.name}:{block.line}: {type(error).__name__}: {error}"
            return  # the blocks below build on this one
        line = missing(block.output, printed)
        if line is not None:
            yield f"{page.name}:{block.line}: {line!r} is not in the output:\n{printed}"


def run_apart(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs the blocks of a page in a process of their own, with warnings as errors; stderr says what
    failed."""
    (directory / "mayflymq").symlink_to(ROOT)
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", __file__, "--here", str(page.resolve())],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


# The table of what each backend can do

TABLE = re.compile(r"(<!-- capabilities: .+? -->\n).*?(<!-- end -->)", re.DOTALL)
BACKENDS_PAGE = ROOT / "docs" / "backends.md"
REFERENCE_PAGE = ROOT / "docs" / "reference.md"


def built() -> list[str]:
    """The backends that there are."""
    names: list[str] = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))["built"]
    return names


def capabilities_table() -> str:
    """One column a backend, one row a capability; opening a backend connects to nothing."""
    from mayflymq.backends.base import _MODULES, open_backend
    from mayflymq.model import Capabilities

    schemes = {module: scheme for scheme, (module, _) in reversed(_MODULES.items())}
    urls = {name: f"{schemes[name]}://localhost/0" for name in built()} | {"sqlite": "sqlite:///unused.db"}
    columns = {name: open_backend(url).capabilities for name, url in urls.items()}
    rows = [["", *columns], ["---", *("---" for _ in columns)]]
    for field in fields(Capabilities):
        cells = [getattr(able, field.name) for able in columns.values()]
        rows.append([field.name.replace("_", " "), *({True: "yes", False: "no"}.get(c, c) for c in cells)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(page: str) -> str:
    """The text of docs/backends.md with the table as it should be."""
    new, count = TABLE.subn(lambda found: found[1] + capabilities_table() + found[2], page)
    assert count == 1, "the page has no place for the table"
    return new


def main(args: Sequence[str]) -> int:
    if args == ["--write"]:
        from . import api_page

        BACKENDS_PAGE.write_text(with_table(BACKENDS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        REFERENCE_PAGE.write_text(api_page.page(), encoding="utf-8")
        return 0
    if args[:1] == ["--here"]:
        sys.path.insert(0, str(Path.cwd()))
        wrong = list(run_page(Path(args[1]), Path.cwd()))
        sys.stderr.write("\n".join(wrong))
        return 1 if wrong else 0
    failed = 0
    for name in args:
        with tempfile.TemporaryDirectory() as directory:
            done = run_apart(Path(name), Path(directory))
        print(f"{name}: {done.stderr or 'every block works'}")
        failed += done.returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
