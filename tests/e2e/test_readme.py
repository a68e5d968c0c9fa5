"""The README's example and commands, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mayflymq

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def shell(commands: list[str], directory: Path, **env: str) -> str:
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


def commands_with(word: str) -> list[str]:
    """The lines after `$` of the one block of commands that has the word."""
    blocks = re.findall(r"```console\n(.+?)```", README, re.DOTALL)
    [block] = [block for block in blocks if word in block]
    return [line.removeprefix("$ ") for line in block.splitlines()]


@pytest.mark.promise("S1", backends=("sqlite",))
def test_the_example_works_as_it_stands(tmp_path: Path) -> None:
    blocks = re.findall(r"`(\w+\.py)`,[^`]+```python\n(.+?)```", README, re.DOTALL)
    assert [name for name, _ in blocks] == ["tasks.py", "app.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    commands = commands_with("app.py")
    assert len(commands) == 4
    # The second job is due a moment later; `run` takes what is due.
    due = "until mayflymq promote --json | grep -q '\"promoted\": 1'; do :; done"
    printed = shell([*commands[:2], due, *commands[2:]], tmp_path)
    assert "to ada@example.org, idempotency key " in printed
    assert "to grace@example.org, idempotency key welcome-grace" in printed
    assert re.search(r"state: +completed", printed)


@pytest.mark.promise("F6", backends=("functions",))
def test_the_functions_run_in_plain_python_on_the_store_that_the_command_sees(tmp_path: Path) -> None:
    commands = [line.replace(".venv/bin/", "") for line in commands_with("functions.tasks")]
    assert len(commands) == 4
    printed = shell(commands, ROOT, MAYFLYMQ_BACKEND_URL=f"sqlite:///{tmp_path}/jobs.db")
    assert "'statusCode': 202" in printed
    assert "'completed': 1" in printed
    assert re.search(r"state: +completed", printed)


@pytest.mark.promise("D2")
def test_the_readme_and_the_package_say_that_handlers_must_be_idempotent() -> None:
    assert "At least once, not exactly once" in README
    assert "handlers must be idempotent" in README
    assert len(re.findall("exactly once", README, re.IGNORECASE)) == 1
    assert mayflymq.__doc__ is not None
    assert "at least once" in mayflymq.__doc__
    assert "idempotent" in mayflymq.__doc__


def test_every_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"^(\w+(?:/\w+)*/) ", README, re.MULTILINE)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
