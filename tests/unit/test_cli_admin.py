"""An operator's commands: retry, the dead-letter queue, drain, clean, obliterate, schedules, retention."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mayflymq import Backend, Dedup, Queue, State, open_backend
from mayflymq.cli.jobs import _retried
from mayflymq.model import (
    Claim,
    ClaimRequest,
    Complete,
    Expire,
    Fail,
    JobError,
    Outcome,
    Retried,
    RetryStatus,
    Settle,
    Settlement,
)

from . import cli_bench
from .cli_bench import TASKS, Command, claim, is_one_line, start

url, backend, call, mayflymq = cli_bench.url, cli_bench.backend, cli_bench.call, cli_bench.mayflymq

ERROR = JobError("ValueError", "no \x1b[31m[bold]luck", "Traceback ...")
BOTH = ("memory", "sqlite")


@pytest.fixture
def q(backend: Backend) -> Queue:
    return Queue("sums", backend)


def end(q: Queue, job_id: str, outcome: Outcome | None = None) -> None:
    """Claims the one waiting job and ends it."""
    [claimed] = q.claim(ClaimRequest(q.name, 1, f"token of {job_id}", "a worker", 60_000))
    assert claimed.job.id == job_id
    [settled] = q.settle([Settle(claimed.claim, outcome or Fail(ERROR))]).settled
    assert settled.status is Settlement.APPLIED


def bury(q: Queue, *ids: str, outcome: Outcome | None = None) -> None:
    for job_id in ids:
        q.enqueue("t", job_id=job_id)
        end(q, job_id, outcome)


def states(q: Queue, *ids: str) -> list[State | None]:
    return [None if (job := q.get(job_id)) is None else job.state for job_id in ids]


# Retry


@pytest.mark.promise("A2", backends=BOTH)
def test_retry_answers_for_each_id_and_names_who_holds_the_key(mayflymq: Command, q: Queue) -> None:
    bury(q, "failed")
    bury(q, "expired", outcome=Expire())
    bury(q, "done", outcome=Complete())
    q.enqueue("t", job_id="keyed", dedup=Dedup("k"))
    end(q, "keyed")
    q.enqueue("t", job_id="newer", dedup=Dedup("k"))
    ids = ("failed", "expired", "done", "keyed", "nobody")
    told = mayflymq("jobs", "retry", "sums", *ids, "--json")
    assert told.code == 1
    assert [(line["id"], line["status"], line["state"], line["holder"]) for line in told.json_lines] == [
        ("failed", "retried", "waiting", None),
        ("expired", "retried", "waiting", None),
        ("done", "not_dead", "completed", None),
        ("keyed", "key_taken", "failed", "newer"),
        ("nobody", "unknown", None, None),
    ]
    assert states(q, *ids) == [State.WAITING, State.WAITING, State.COMPLETED, State.FAILED, None]
    said = mayflymq("jobs", "retry", "sums", "keyed")
    assert (said.code, "newer holds its deduplication key" in said.out) == (1, True)
    q.remove("newer")
    assert mayflymq("jobs", "retry", "sums", "keyed").code == 0


# The dead-letter queue


@pytest.mark.promise("A5", backends=BOTH)
def test_the_dead_are_listed_failed_then_expired_with_error_deliveries_and_age(
    mayflymq: Command, q: Queue
) -> None:
    bury(q, "late", outcome=Expire())
    bury(q, "[red]bad")
    bury(q, "fine", outcome=Complete())
    bad, late = mayflymq("dlq", "list", "sums", "--json").json_lines
    assert (bad["id"], bad["state"], bad["deliveries"]) == ("[red]bad", "failed", 1)
    assert (bad["error"]["type"], bad["error"]["traceback"]) == ("ValueError", "Traceback ...")
    assert 0 <= bad["age_ms"] < 60_000
    assert (late["id"], late["state"], late["error"]) == ("late", "expired", None)
    shown = mayflymq("dlq", "list", "sums")
    assert r"ValueError: no \x1b[31m[bold]luck" in shown.out
    assert "[red]bad" in shown.out
    assert "\x1b" not in shown.out
    assert shown.err == ""


@pytest.mark.promise("A5", backends=BOTH)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7])
def test_a_list_of_the_dead_goes_on_where_the_last_one_ended(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    ids = [f"failed-{number}" for number in range(4)]
    bury(q, *ids)
    bury(q, "expired-0", "expired-1", outcome=Expire())
    monkeypatch.setattr("mayflymq.cli.jobs.PAGE", 2)
    seen: list[str] = []
    cursor: tuple[str, ...] = ()
    while True:
        page = mayflymq("dlq", "list", "sums", "--json", "--limit", str(limit), *cursor)
        seen += [line["id"] for line in page.json_lines]
        if not page.err:
            break
        assert len(page.json_lines) == limit
        cursor = ("--cursor", page.err.split("--cursor ")[1].strip())
    assert seen == [*ids, "expired-0", "expired-1"]


def test_a_list_that_ends_with_its_limit_names_no_cursor(mayflymq: Command, q: Queue) -> None:
    bury(q, "a", "b")
    assert mayflymq("dlq", "list", "sums", "--limit", "2").err == ""
    assert "--cursor" in mayflymq("dlq", "list", "sums", "--limit", "1").err


@pytest.mark.promise("A2", backends=BOTH)
def test_replay_takes_all_in_steps_and_counts(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job-{number}" for number in range(5)]
    bury(q, *ids)
    bury(q, "late", outcome=Expire())
    bury(q, "fine", outcome=Complete())
    monkeypatch.setattr("mayflymq.cli.jobs.PAGE", 2)
    steps = spy_on_retry(q.backend, monkeypatch)
    told = mayflymq("dlq", "replay", "sums", "--all", "--json")
    assert told.json == {"retried": 6, "not_dead": 0, "key_taken": 0, "unknown": 0, "not_retried": []}
    assert (told.code, [len(step) for step in steps]) == (0, [2, 2, 2])
    assert set(states(q, *ids, "late")) == {State.WAITING}
    assert states(q, "fine") == [State.COMPLETED]
    assert mayflymq("dlq", "replay", "sums", "--all").out == (
        "retried: 0, not dead: 0, key taken: 0, unknown: 0\n"
    )


def spy_on_retry(backend: Backend, monkeypatch: pytest.MonkeyPatch, then: Any = None) -> list[list[str]]:
    """Notes the ids of each call; `then` runs right after a call, as another process might."""
    real = type(backend).retry
    steps: list[list[str]] = []

    def retry(self: Backend, queue: str, ids: Sequence[str]) -> list[Retried]:
        steps.append(list(ids))
        answers: list[Retried] = real(self, queue, ids)
        if then is not None:
            then()
        return answers

    monkeypatch.setattr(type(backend), "retry", retry)
    return steps


@pytest.mark.promise("A2", backends=BOTH)
def test_what_fails_again_during_a_replay_is_not_replayed_twice(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job-{number}" for number in range(5)]
    bury(q, *ids)
    monkeypatch.setattr("mayflymq.cli.jobs.PAGE", 2)

    def fail_again() -> None:
        for job in q.jobs(State.WAITING).jobs:
            end(q, job.id)

    spy_on_retry(q.backend, monkeypatch, fail_again)
    told = mayflymq("dlq", "replay", "sums", "--all", "--json")
    assert (told.code, told.json["retried"]) == (0, 5)
    jobs = [q.get(job_id) for job_id in ids]
    assert {(job.state, job.replays) for job in jobs if job} == {(State.FAILED, 1)}


@pytest.mark.promise("A2", backends=BOTH)
def test_what_another_one_replayed_is_no_error_of_a_replay_and_what_stays_dead_is(
    mayflymq: Command, q: Queue
) -> None:
    bury(q, "a", "b")
    q.retry("a")
    told = mayflymq("dlq", "replay", "sums", "a", "b", "b", "--json")
    assert (told.code, told.json["retried"], told.json["not_dead"]) == (0, 1, 1)
    told = mayflymq("dlq", "replay", "sums", "nobody", "--json")
    assert (told.code, told.json["unknown"]) == (1, 1)
    q.drain()
    q.enqueue("t", job_id="keyed", dedup=Dedup("k"))
    end(q, "keyed")
    q.enqueue("t", job_id="newer", dedup=Dedup("k"))
    said = mayflymq("dlq", "replay", "sums", "--all")
    assert (said.code, said.out.splitlines()[0]) == (
        1,
        "keyed stays failed: newer holds its deduplication key now",
    )
    told = mayflymq("dlq", "replay", "sums", "--all", "--json")
    assert [(one["id"], one["holder"]) for one in told.json["not_retried"]] == [("keyed", "newer")]


REPLAYER = """
import contextlib, io, sys
from mayflymq import cli
print("ready", flush=True)
for line in sys.stdin:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            cli.main(line.split())
    except SystemExit as done:
        print(done.code, out.getvalue(), flush=True)
"""


@pytest.mark.promise("A2", backends=("sqlite",))
def test_two_processes_that_replay_one_job_a_hundred_times_replay_each_failure_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    q = Queue("sums", open_backend(url))
    replayers = [
        subprocess.Popen(
            [sys.executable, "-c", REPLAYER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    wins = [0, 0]
    try:
        for replayer in replayers:
            assert replayer.stdout is not None
            assert replayer.stdout.readline() == "ready\n"
        q.enqueue("t", job_id="one")
        for replay in range(1, 101):
            end(q, "one")
            # By id or with --all, and each process first in turn.
            which = "--all" if replay % 4 < 2 else "one"
            order = replayers if replay % 2 else replayers[::-1]
            for replayer in order:
                assert replayer.stdin is not None
                replayer.stdin.write(f"--backend {url} dlq replay sums {which} --json\n")
                replayer.stdin.flush()
            answers = []
            for replayer in replayers:
                assert replayer.stdout is not None
                code, _, told = replayer.stdout.readline().partition(" ")
                assert replayer.stdout.readline() == "\n"
                assert code == "0"
                answers.append(json.loads(told))
            retried = [answer["retried"] for answer in answers]
            assert sum(retried) == 1, answers
            # With --all the loser may have come when the dead-letter queue was empty already.
            assert all(answer["key_taken"] + answer["unknown"] == 0 for answer in answers)
            wins[retried.index(1)] += 1
            job = q.get("one")
            assert job is not None
            assert (job.state, job.replays, job.deliveries, job.failures) == (
                State.WAITING,
                replay,
                replay,
                0,
            )
            assert q.info().counts.waiting == 1
    finally:
        for replayer in replayers:
            replayer.kill()
            replayer.communicate()
        q.backend.close()
    assert sum(wins) == 100
    assert all(wins), "one process was always first, so nothing raced"


# Drain


@pytest.mark.promise("A4", backends=BOTH)
def test_drain_removes_what_waits_and_with_include_delayed_what_is_delayed(
    mayflymq: Command, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.enqueue("t", job_id="running")
    claim(q.backend, "sums")
    for number in range(5):
        q.enqueue("t", job_id=f"waiting-{number}")
    q.enqueue("t", job_id="later", delay=3600)
    monkeypatch.setattr("mayflymq.cli.queues.PAGE", 2)
    drained = mayflymq("drain", "sums", "--yes", "--json")
    assert drained.code == 0
    assert drained.json_lines == [{"id": f"waiting-{number}", "removed": True} for number in range(5)]
    assert states(q, "running", "later", "waiting-0") == [State.ACTIVE, State.DELAYED, None]
    assert mayflymq("drain", "sums", "--include-delayed", "--yes").out == "1 job removed from sums\n"
    assert states(q, "running", "later") == [State.ACTIVE, None]
    assert mayflymq("drain", "sums", "--yes").out == "0 jobs removed from sums\n"


@pytest.mark.promise("A4", backends=BOTH)
def test_a_child_that_waits_because_its_parent_was_drained_is_drained_too(
    mayflymq: Command, q: Queue
) -> None:
    q.enqueue("t", job_id="parent")
    q.enqueue("t", job_id="child", depends_on=["parent"], on_parent_failure="run")
    q.enqueue("t", job_id="grandchild", depends_on=["child"], on_parent_failure="run")
    assert mayflymq("drain", "sums", "--yes").out == "3 jobs removed from sums\n"
    assert states(q, "parent", "child", "grandchild") == [None] * 3


# Clean, obliterate


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, url: str) -> list[int]:
    """The store's time, moved by hand; the command opens the store on it."""
    now = [1_700_000_000_000]
    opened = "mayflymq.cli.options.open_backend"
    monkeypatch.setattr(opened, lambda url: open_backend(url, clock=lambda: now[0]))
    return now


@pytest.fixture
def timed(url: str, clock: list[int]) -> Queue:
    return Queue("sums", open_backend(url, clock=lambda: clock[0]))


@pytest.mark.promise("A6", backends=BOTH)
def test_clean_goes_by_state_age_and_limit(
    mayflymq: Command, timed: Queue, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(timed, "old-1", "old-2", "old-3", "old-4")
    bury(timed, "done", outcome=Complete())
    clock[0] += 24 * 3_600_000
    bury(timed, "new")
    monkeypatch.setattr("mayflymq.cli.queues.PAGE", 2)
    clean = ("clean", "sums", "--state", "failed", "--state", "expired", "--older-than", "24h", "--yes")
    first = mayflymq(*clean, "--limit", "1", "--json")
    assert (first.code, first.json) == (0, {"id": "old-1", "removed": True})
    assert mayflymq(*clean).out == "3 jobs removed from sums\n"
    assert states(timed, "old-2", "old-4", "done", "new") == [None, None, State.COMPLETED, State.FAILED]
    assert mayflymq(*clean).out == "0 jobs removed from sums\n"


@pytest.mark.promise("A6", backends=BOTH)
def test_a_queue_with_active_jobs_is_obliterated_by_force_only_and_its_ids_are_free_then(
    mayflymq: Command, q: Queue
) -> None:
    bury(q, "old")
    for job_id in ("a", "b", "c"):
        q.enqueue("t", job_id=job_id)
    for number in range(2):
        assert q.claim(ClaimRequest("sums", 1, f"token {number}", "a worker", 60_000))
    refused = mayflymq("obliterate", "sums", "--yes")
    assert (refused.code, is_one_line(refused)) == (1, True)
    assert "2 active jobs" in refused.err
    assert mayflymq("obliterate", "sums", "--yes", "--json").json == {
        "queue": "sums",
        "dropped": False,
        "active": 2,
    }
    assert states(q, "old", "a", "c") == [State.FAILED, State.ACTIVE, State.WAITING]
    assert mayflymq("obliterate", "sums", "--force", "--yes").code == 0
    [late] = q.settle([Settle(Claim("sums", "a", "token 0"), Complete())]).settled
    assert late.status is Settlement.LOST
    assert mayflymq("queues", "--json").out == ""
    assert mayflymq("enqueue", "sums", "t", "--id", "a", "--json").json["status"] == "created"
    assert mayflymq("obliterate", "nowhere", "--yes").code == 1


@pytest.mark.promise("A5", "A6", backends=BOTH)
def test_the_sweep_removes_what_is_past_its_retention_which_can_be_switched_off(
    mayflymq: Command, timed: Queue, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(timed, "failed")
    bury(timed, "done", outcome=Complete())
    clock[0] += 24 * 3_600_000 - 1
    assert mayflymq("sweep", "--json").json["cleaned"] == 0
    clock[0] += 1
    for off, cleaned in (("0", 0), ("", 1)):
        monkeypatch.setenv("MAYFLYMQ_RETENTION_COMPLETED", off)
        assert mayflymq("sweep", "--json").json["cleaned"] == cleaned
    assert states(timed, "failed", "done") == [State.FAILED, None]
    clock[0] += 13 * 24 * 3_600_000
    for off, cleaned in (("0", 0), ("", 1)):
        monkeypatch.setenv("MAYFLYMQ_RETENTION_FAILED", off)
        assert mayflymq("sweep", "--json").json["cleaned"] == cleaned


# What asks first


def on_terminal(directory: Path, answer: str, *args: str) -> tuple[int, str]:
    """The installed command with a person at its terminal; the exit code, and what that person saw."""
    master, slave = pty.openpty()
    command = [str(Path(sys.executable).with_name("mayflymq")), *args]
    env = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=directory, stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    os.write(master, answer.encode())
    seen = cli_bench.read_all(master)
    os.close(master)
    return process.wait(60), seen


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        (["drain", "default", "--include-delayed"], "Remove 2 waiting jobs and 1 delayed job from default?"),
        (
            ["clean", "default", "-s", "cancelled", "--older-than", "0"],
            "Remove the cancelled jobs of default that ended at least 0.0 s ago?",
        ),
        (["obliterate", "default"], "Remove the queue default with 4 jobs and its schedules?"),
    ],
)
def test_a_command_that_destroys_asks_on_a_terminal(tmp_path: Path, command: list[str], asks: str) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    for number in range(3):
        q.enqueue("t", job_id=str(number))
    q.cancel("0")
    q.enqueue("t", delay=3600)
    before = q.info().counts
    code, seen = on_terminal(tmp_path, "n\n", *command)
    assert (code, asks in seen, "nothing was removed" in seen) == (1, True, True), seen
    assert q.info().counts == before
    unasked = start(tmp_path, *command)  # no terminal: nobody can say yes
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert q.info().counts == before
    code, seen = on_terminal(tmp_path, "y\n", *command)
    assert code == 0, seen
    assert q.info().counts != before


def test_drain_asks_about_no_jobs_where_there_are_none(tmp_path: Path) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    q.enqueue("t", delay=3600)
    code, seen = on_terminal(tmp_path, "", "drain", "default")
    assert (code, seen.strip()) == (0, "no job of default is waiting: nothing to remove")
    q.drain(include_delayed=True)
    code, seen = on_terminal(tmp_path, "", "drain", "default", "--include-delayed")
    assert (code, seen.strip()) == (0, "no job of default is waiting or delayed: nothing to remove")


def test_a_replay_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    q = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    bury(q, "a", "b")
    code, seen = on_terminal(tmp_path, "", "dlq", "replay", "default", "--all")
    assert (code, "replaying" in seen, "2/2" in seen) == (0, True, True), seen


# Schedules


@pytest.mark.promise("G6", backends=BOTH)
def test_a_schedule_is_put_fires_each_time_once_and_is_paused_resumed_and_removed(
    mayflymq: Command, timed: Queue, clock: list[int]
) -> None:
    put = mayflymq(
        *("schedules", "put", "sums", "tick", "cli.add", "2", "--kw", "b=3", "--every", "60s"),
        *("--priority", "1", "--ttl", "5m", "--meta", "a=b", "--tasks", TASKS, "--json"),
        *("--max-retries", "7", "--timeout", "10s"),
    )
    assert (put.code, put.json["every_ms"], put.json["ttl_ms"]) == (0, 60_000, 300_000)
    assert (put.json["max_retries"], put.json["timeout_ms"]) == (7, 10_000)
    assert "not planned yet" in mayflymq("schedules", "list", "sums").out

    def promoted() -> int:
        told = mayflymq("promote", "--json")
        assert told.code == 0
        fired: int = told.json["fired"]
        return fired

    assert promoted() == 0  # planned
    [listed] = mayflymq("schedules", "list", "sums", "--json").json_lines
    assert (listed["args"], listed["kwargs"], listed["meta"], listed["priority"]) == (
        [2],
        {"b": 3},
        {"a": "b"},
        1,
    )
    assert (listed["next_slot"], listed["last_slot"]) == ("2023-11-14T22:14:00.000Z", None)
    clock[0] += 60_000
    assert [promoted(), promoted()] == [1, 0]
    ran = mayflymq("run", "-q", "sums", "-t", TASKS, "--json")
    assert ran.json["completed"] == 1
    assert "every 60 s" in mayflymq("schedules", "list", "sums").out

    assert mayflymq("schedules", "pause", "sums", "tick").code == 0
    clock[0] += 60_000
    assert promoted() == 0
    assert "paused" in mayflymq("schedules", "list", "sums").out
    assert mayflymq("schedules", "resume", "sums", "tick").code == 0
    assert [promoted(), promoted()] == [0, 0]  # what the pause left out is left out
    clock[0] += 60_000
    assert promoted() == 1
    assert mayflymq("schedules", "remove", "sums", "tick").code == 0
    assert mayflymq("schedules", "list", "sums", "--json").out == ""
    clock[0] += 60_000
    assert promoted() == 0
    for verb in ("pause", "resume", "remove"):
        gone = mayflymq("schedules", verb, "sums", "tick")
        assert (gone.code, is_one_line(gone)) == (1, True)


@pytest.mark.promise("G6", backends=BOTH)
@pytest.mark.parametrize(("rule", "fired"), [("skip", 0), ("one", 1), ("all", 3)])
def test_catch_up_is_the_schedules_rule(
    mayflymq: Command, timed: Queue, clock: list[int], rule: str, fired: int
) -> None:
    mayflymq("schedules", "put", "sums", "daily", "t", "--cron", "0 8 * * *", "--catch-up", rule)
    mayflymq("promote")
    clock[0] += 3 * 24 * 3_600_000
    assert mayflymq("promote", "--json").json["fired"] == fired


def test_a_cron_schedule_says_when_it_is_due_in_its_time_zone(mayflymq: Command) -> None:
    put = mayflymq(
        "schedules", "put", "q", "new-year", "t", "--cron", "0 12 1 1 *", "--timezone", "Asia/Tokyo"
    )
    assert put.code == 0
    assert "at 0 12 1 1 * (Asia/Tokyo)" in put.out
    assert put.out.endswith("-01-01T03:00:00.000Z\n")
    assert mayflymq("schedules", "put", "q", "a", "cli.fail", "5", "--every", "5m", "-t", TASKS).code == 2
    ids = [f"s-{number}" for number in range(5)]
    for each in ids:
        mayflymq("schedules", "put", "q", each, "t", "--every", "5m")
    listed = mayflymq("schedules", "list", "q", "--json").json_lines
    assert [line["id"] for line in listed] == ["new-year", *ids]


# Listeners


def test_a_broken_module_of_tasks_does_not_stop_the_sweep_and_the_others_hear(
    mayflymq: Command, q: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"listening_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from mayflymq import events\nheard = []\n"
        "stop = events.listen(heard.append, 'job:stalled', 'job:promoted')\n"
    )
    (tmp_path / f"exits_{name}.py").write_text("raise SystemExit('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAYFLYMQ_TASKS", f"no_such_module,exits_{name},{name}")
    q.enqueue("t", job_id="one")
    claim(q.backend, "sums", stale_after_ms=1)
    while q.info().counts.active:
        swept = mayflymq("sweep", "--json")
        assert swept.code == 0
        assert "no_such_module" in swept.err
        assert "no licence" in swept.err
    q.enqueue("t", job_id="two", delay=0.001)
    while q.info().counts.delayed:
        assert mayflymq("promote", "--json").code == 0
    module = sys.modules[name]
    module.stop()
    assert [(event.name, event.job_id) for event in module.heard] == [
        ("job:stalled", "one"),
        ("job:promoted", "two"),
    ]


def test_every_answer_of_a_retry_has_its_words() -> None:
    for status in RetryStatus:
        assert _retried(Retried(status, State.FAILED, "two"))
