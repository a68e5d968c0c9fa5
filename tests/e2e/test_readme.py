"""The README's example and commands, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mayflymq
from tests.documents import ROOT, blocks, shell

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands_with(word: str) -> list[str]:
    """The lines after `$` of the one block of commands that has the word."""
    [block] = [block for block in blocks(README) if block.language == "console" and word in block.text]
    return block.commands


@pytest.mark.promise("S1", backends=("sqlite",))
def test_the_example_works_as_it_stands(tmp_path: Path) -> None:
    files = [block for block in blocks(README) if block.file]
    assert [block.file for block in files] == ["tasks.py", "app.py"]
    for block in files:
        (tmp_path / str(block.file)).write_text(block.text)
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
