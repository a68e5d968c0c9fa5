"""What only the memory backend promises: it is this process's own (C10)."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from mayflymq.backends.base import open_backend
from mayflymq.model import ClaimRequest, Complete, NewJob, Settle

from .harness import ROOT, ManualClock

pytestmark = pytest.mark.promise("C10", backends=("memory",))


def test_another_process_sees_nothing_of_it() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    open_backend(url).enqueue([NewJob(id="j", queue="q", task="t", payload=b"{}")])
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from mayflymq.backends.base import open_backend; print(open_backend({url!r}).queues())",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == "[]"
    assert open_backend(url).capabilities.durable is False
    assert open_backend(url).capabilities.shared is False


def test_handles_of_one_name_share_a_store_and_others_do_not() -> None:
    name = uuid.uuid4().hex
    open_backend(f"memory://{name}").enqueue([NewJob(id="j", queue="q", task="t", payload=b"{}")])
    assert open_backend(f"memory://{name}").get("q", ["j"]) != [None]
    assert open_backend(f"memory://{name}-2").get("q", ["j"]) == [None]


def test_the_sweep_looks_again_before_it_releases() -> None:
    """A settle that comes between two looks at the clock wins: the sweep goes by what is there now."""
    clock = ManualClock()
    backend = open_backend(f"memory://{uuid.uuid4().hex}", clock=clock)
    backend.enqueue([NewJob(id=id, queue="q", task="t", payload=b"{}") for id in "ab"])
    a, _ = backend.claim(ClaimRequest("q", 2, "t", "w", 100))
    clock.advance(100)
    backend.settle([Settle(a.claim, Complete())])
    assert [found.job_id for found in backend.release_stale("q", 10, 3)] == ["b"]
    assert [found.job_id for found in backend.release_stale("q", 10, 3)] == []
