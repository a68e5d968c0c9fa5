"""What the command line's tests share: the command in this process and as its own, on a store a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mayflymq import Backend, cli, open_backend
from mayflymq.model import ClaimRequest

from . import cli_tasks

# Known from the start, so that no test depends on another one having loaded them.
TASKS = cli_tasks.__name__


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Answer]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One store a test: the commands of a test find each other's jobs there, and nobody else's."""
    return f"memory://{tmp_path}" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def backend(url: str) -> Backend:
    return open_backend(url)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with exactly these arguments."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*args: str) -> Answer:
        with pytest.raises(SystemExit) as exit:
            cli.main(args)
        code = exit.value.code
        assert isinstance(code, int)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def mayflymq(call: Command, url: str) -> Command:
    """The command on the test's store."""
    return lambda *args: call("--backend", url, *args)


def is_one_line(answer: Answer) -> bool:
    return answer.out == "" and answer.err.startswith("mayflymq: ") and answer.err.count("\n") == 1


def claim(backend: Backend, queue: str, *, stale_after_ms: int = 60_000) -> None:
    assert backend.claim(ClaimRequest(queue, 1, "token", "a worker", stale_after_ms))


def start(directory: Path, *args: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("mayflymq")), *args]
    env = os.environ | {"TERM": "xterm", "MAYFLYMQ_MARGIN": "0.1"}
    return subprocess.run(
        command,
        cwd=directory,
        env=env,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
        check=False,
    )


def read_all(terminal: int) -> str:
    """What a process wrote to its terminal until it ended."""
    seen = bytearray()
    try:
        while some := os.read(terminal, 65_536):
            seen += some
    except OSError:  # how Linux says that the other side is closed
        pass
    return seen.decode()
