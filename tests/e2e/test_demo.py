"""examples/demo.py in a small size, and whether it would notice a wrong outcome."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def run_demo(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs it from elsewhere, with a setting in the environment that must not reach it."""
    env = os.environ | {"TMPDIR": str(directory), "MAYFLYMQ_LIMIT": "1"}
    command = [sys.executable, str(DEMO), *args]
    return subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.promise("C6", "D1", "S1", backends=("sqlite", "redis"))
@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_a_killed_worker_costs_no_job_and_the_demo_leaves_nothing_behind(
    tmp_path: Path, backend: str
) -> None:
    done = run_demo(tmp_path, "--files", "40", "--backend", backend)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "all 40 stored results equal hashlib's, and the counts add up" in done.stdout
    assert done.stdout.splitlines()[-1] == "next: docs/quickstart.md"
    assert f"file below {sysconfig.get_path('stdlib')} " in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_cannot_work_is_one_line(tmp_path: Path) -> None:
    for backend in ("memory://demo", "memory", "postgres", "nosuch"):
        done = run_demo(tmp_path, "--backend", backend)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert "sqlite or redis" in done.stderr


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_under_test", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"sha256": "0" * 64}, "should be"),
        ({"lines": 0}, "should be"),
        ({"bytes": 0}, "should be"),
    ],
)
def test_every_part_of_a_result_is_checked(
    demo: ModuleType, change: dict[str, Any], says: str | None
) -> None:
    from functions.tasks import digest_file

    [name] = demo.stdlib_files(1)
    result = json.dumps(digest_file(str(demo.LIBRARY / name)) | change).encode()
    found = list(demo.faults([name], {name: SimpleNamespace(result=result)}, {demo.FAILING: None}))
    assert bool(found) is bool(says)
    assert says is None or says in found[0]


def test_missing_and_unexpected_jobs_are_noticed(demo: ModuleType) -> None:
    [name] = demo.stdlib_files(1)
    found = list(demo.faults([name], {"another": SimpleNamespace(result=b"{}")}, {}))
    assert [fault.split()[-2:] for fault in found] == [
        ["no", "result"],
        ["them:", "['another']"],
        ["there:", "[]"],
    ]
