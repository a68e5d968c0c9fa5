"""The sweep's and the promoter's handlers: listeners in modules of tasks, and retention."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

LISTENING = """
from mayflymq import events

heard = []
events.listen(lambda event: heard.append([event.name, event.job_id]), "job:stalled", "job:promoted")
"""


def play(directory: Path, program: str, **env: str) -> tuple[Any, list[Any]]:
    """What the program prints last, and the records of its log, in a process where nothing is kept yet."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONPATH": f"{ROOT / 'core'}:{directory}:{ROOT}",
            "MAYFLYMQ_BACKEND_URL": "memory://maintenance",
            **env,
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *log, last = done.stdout.splitlines()
    return json.loads(last), [json.loads(line) for line in log]


@pytest.mark.promise("G5")
def test_listeners_hear_of_recovery_and_a_module_that_fails_stops_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "listening.py").write_text(LISTENING)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "exits.py").write_text("raise SystemExit('no licence')\n")
    program = """
import json, sys
from functions.stalled_sweep import handler as sweep
listening = sys.modules["listening"]  # imported while Lambda initialises the container
from functions.delayed_promoter import handler as promote
from mayflymq import Queue
from mayflymq.model import ClaimRequest

queue = Queue("default")
queue.enqueue("t", job_id="stalled")
assert queue.claim(ClaimRequest("default", 1, "token", "a worker", 1))
while queue.info().counts.active:
    sweep({}, None)
queue.enqueue("t", job_id="later", delay=0.001)
while queue.info().counts.delayed:
    promote({}, None)
print(json.dumps(listening.heard))
"""
    heard, log = play(tmp_path, program, MAYFLYMQ_TASKS="broken,exits,listening")
    assert heard == [["job:stalled", "stalled"], ["job:promoted", "later"]]
    failed = [record for record in log if "cannot be imported" in record["message"]]
    assert [(record["level"], record["tasks"]) for record in failed] == [
        ("ERROR", "broken"),
        ("ERROR", "exits"),
    ]
    assert "nothing_of_this_name" in failed[0]["exception"]
    program = "import functions.delayed_promoter, sys; print(str('listening' in sys.modules).lower())"
    assert play(tmp_path, program, MAYFLYMQ_TASKS="broken,exits,listening")[0] is True


@pytest.mark.promise("A6", backends=("memory",))
@pytest.mark.promise("F6")
def test_the_sweep_applies_the_retention_of_the_settings_and_reports_it(tmp_path: Path) -> None:
    program = """
import json
from mayflymq import Queue, State
from mayflymq.aws import runtime
from mayflymq.model import ClaimRequest, Complete, Fail, JobError, Settle

queue = Queue("default", runtime.backend())
for job_id, outcome in (("done", Complete()), ("failed", Fail(JobError("E", "e")))):
    queue.enqueue("t", job_id=job_id)
    [claimed] = queue.claim(ClaimRequest("default", 1, job_id, "a worker", 60_000))
    queue.settle([Settle(claimed.claim, outcome)])
reports = []
while queue.get(GOES) is not None:
    reports.append(runtime.stalled_sweep_handler({}, None))
queue.schedule("tick", "t", every=3600)
reports.append(runtime.delayed_promoter_handler({}, None))
print(json.dumps([reports[-2]["cleaned"], reports[-1]["fired"], queue.get(STAYS) is not None]))
"""
    for goes, stays, variable, off in (
        ("done", "failed", "MAYFLYMQ_RETENTION_COMPLETED", "MAYFLYMQ_RETENTION_FAILED"),
        ("failed", "done", "MAYFLYMQ_RETENTION_FAILED", "MAYFLYMQ_RETENTION_COMPLETED"),
    ):
        named = program.replace("GOES", repr(goes)).replace("STAYS", repr(stays))
        told, log = play(tmp_path, named, **{variable: "0.001", off: "0"})
        assert told == [1, 0, True]
        assert log[-2]["report"]["cleaned"] == 1
