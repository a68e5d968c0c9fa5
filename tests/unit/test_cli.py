"""The `mayflymq` command: what it prints, where, and its exit codes.

Most tests call `main`, which is what the installed command calls; the last ones run it as a process.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mayflymq as mayflymq_package
from mayflymq import Backend, Dedup, Queue, State, cli, open_backend
from mayflymq.backends import base
from mayflymq.claims import _first_line
from mayflymq.errors import BackendError
from mayflymq.model import Capabilities, ClaimRequest, Fail, Finding, JobError, Settle, Severity

from . import cli_bench
from .cli_bench import TASKS, Command, claim, is_one_line, start

url, backend, call, mayflymq = cli_bench.url, cli_bench.backend, cli_bench.call, cli_bench.mayflymq


# From enqueue to result


@pytest.mark.promise("S1", "A5", backends=("memory", "sqlite"))
def test_the_same_commands_take_a_job_from_enqueue_to_its_result_on_each_backend(mayflymq: Command) -> None:
    made = mayflymq(
        "enqueue", "sums", "cli.add", "2", "--kw", "b=3", "--id", "one", "--meta", "a=b", "--json"
    )
    assert (made.code, made.json) == (
        0,
        {"queue": "sums", "id": "one", "status": "created", "state": "waiting"},
    )
    ran = mayflymq("run", "--queue", "sums", "--tasks", TASKS, "--json")
    assert (ran.code, ran.json["claimed"], ran.json["completed"]) == (0, 1, 1)
    shown = mayflymq("jobs", "show", "sums", "one", "--json")
    assert shown.code == 0
    assert {
        name: shown.json[name] for name in ("state", "args", "kwargs", "meta", "result", "deliveries")
    } == {
        "state": "completed",
        "args": [2],
        "kwargs": {"b": 3},
        "meta": {"a": "b"},
        "result": 5,
        "deliveries": 1,
    }


def test_what_a_handler_prints_stays_off_the_stdout_that_a_program_reads(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "cli.add", "2")
    ran = mayflymq("run", "--queue", "sums", "--tasks", TASKS, "--json")
    assert ran.json["completed"] == 1
    assert "a handler prints" in ran.err


def test_an_id_that_exists_changes_nothing_and_is_no_error(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "one")
    before = backend.get("sums", ["one"])
    again = mayflymq("enqueue", "sums", "cli.add", "2", "--id", "one")
    assert (again.code, backend.get("sums", ["one"])) == (0, before)
    assert "nothing changed" in again.out
    assert (
        mayflymq("enqueue", "sums", "cli.add", "2", "--id", "one", "--json").json["status"] == "duplicate_id"
    )


def test_enqueue_hands_on_every_option(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "q", "t", "--id", "a", "--priority", "-3", "--ttl", "60", "--delay", "3600")
    mayflymq("enqueue", "q", "t", "--id", "b", "--run-at", "2100-01-01T01:00+01:00")
    mayflymq("enqueue", "q", "t", "--id", "c", "--depends-on", "a", "--depends-on", "b", "--dedup", "key")
    mayflymq("enqueue", "q", "t", "--id", "d", "--max-retries", "7", "--timeout", "5m")
    a, b, c, d = backend.get("q", ["a", "b", "c", "d"])
    assert a is not None
    assert b is not None
    assert c is not None
    assert d is not None
    assert (c.depends_on, c.dedup, c.state) == (("a", "b"), Dedup("key"), State.BLOCKED)
    assert (d.max_retries, d.timeout_ms) == (7, 300_000)
    assert (a.priority, a.ttl_ms, a.state) == (-3, 60_000, State.DELAYED)
    assert (b.run_at, b.state) == (4_102_444_800_000, State.DELAYED)


def test_a_key_that_is_held_changes_nothing_and_its_holder_is_named(
    mayflymq: Command, backend: Backend
) -> None:
    enqueue = ("enqueue", "q", "t", "--dedup", "key", "--id")
    assert "holder" not in mayflymq(*enqueue, "one", "--json").json
    said = mayflymq(*enqueue, "two")
    assert (said.code, said.out) == (0, "one holds the key key in q (waiting): nothing changed\n")
    told = mayflymq(*enqueue, "two", "--json").json
    assert (told["status"], told["holder"]) == ("deduplicated", "one")
    assert backend.get("q", ["two"]) == [None]


def test_enqueue_says_what_it_could_not_check_and_which_queue_is_the_task_s_own(mayflymq: Command) -> None:
    unknown = mayflymq("enqueue", "sums", "t", "--id", "one")
    assert unknown.out == (
        "one enqueued in sums (waiting) "
        "(the task is not known here: not checked, with default settings; --tasks MODULE)\n"
    )
    assert unknown.err == ""
    known = mayflymq("enqueue", "cli-own", "cli.flaky", "--id", "two")
    assert (known.out, known.err) == ("two enqueued in cli-own (waiting)\n", "")
    elsewhere = mayflymq("enqueue", "sums", "cli.flaky", "--json")
    assert elsewhere.json["status"] == "created"
    assert elsewhere.err == "mayflymq: note: the queue of cli.flaky is cli-own, and this goes to sums\n"


def test_a_duration_has_a_unit_or_is_in_seconds(mayflymq: Command, backend: Backend) -> None:
    for text, ms in (
        ("90", 90_000),
        ("90s", 90_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("14d", 1_209_600_000),
        ("0.5h", 1_800_000),
    ):
        mayflymq("enqueue", "q", "t", "--id", text, "--ttl", text)
        [job] = backend.get("q", [text])
        assert job is not None
        assert job.ttl_ms == ms


def test_enqueue_takes_the_settings_and_the_signature_of_a_task_it_knows(
    mayflymq: Command, backend: Backend
) -> None:
    assert mayflymq("enqueue", "q", "cli.fail", "--id", "known", "--tasks", TASKS).code == 0
    [job] = backend.get("q", ["known"])
    assert job is not None
    assert job.max_retries == 0
    wrong = mayflymq("enqueue", "q", "cli.fail", "5", "--tasks", TASKS)
    assert (wrong.code, is_one_line(wrong)) == (2, True)
    assert "no arguments" in wrong.err


def test_a_failed_job_is_no_failure_of_run_unless_asked_for(mayflymq: Command) -> None:
    run = ("run", "--queue", "sums", "--tasks", TASKS)
    for flag, code in ((), 0), (("--fail-on-failed",), 1):
        mayflymq("enqueue", "sums", "cli.fail")
        ran = mayflymq(*run, "--json", *flag)
        assert (ran.json["failed"], ran.code) == (1, code)


def test_run_stops_at_its_limit(mayflymq: Command) -> None:
    for _ in range(3):
        mayflymq("enqueue", "sums", "cli.add", "1")
    ran = mayflymq(
        "run", "--queue", "sums:2", "--tasks", TASKS, "--limit", "2", "--time-limit", "30", "--json"
    )
    assert (ran.json["completed"], ran.json["work_left"]) == (2, True)


def test_a_report_for_people_has_no_python_in_it(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1")
    mayflymq("enqueue", "sums", "cli.add", "1")
    run = ("run", "--queue", "sums", "--tasks", TASKS)
    said = mayflymq(*run, "--limit", "1").out
    assert re.fullmatch(
        r"claimed: 1, completed: 1, (elapsed ms: \d+, )?work left: true\n", said.split("\n", 1)[1]
    )


def test_a_report_for_people_has_what_is_not_zero_and_at_least_what_was_claimed(mayflymq: Command) -> None:
    ran = mayflymq("run", "--queue", "sums", "--tasks", TASKS)
    assert re.fullmatch(r"claimed: 0(, elapsed ms: \d+)?\n", ran.out)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_run_says_why_nothing_may_come(mayflymq: Command, options: list[str]) -> None:
    run = ("run", "--tasks", TASKS, *options)
    mayflymq("enqueue", "sums", "cli.add", "1")
    mayflymq("pause", "sums")
    ran = mayflymq(*run, "-q", "sums", "-q", "nope")
    assert (ran.code, ran.err.splitlines()) == (
        0,
        ["mayflymq: sums is paused; `mayflymq resume sums` ends that", "mayflymq: no queue nope"],
    )
    assert (mayflymq(*run).code, mayflymq(*run).err) == (0, "")  # the tasks' own, which had no job yet
    mayflymq("resume", "sums")
    assert mayflymq(*run, "-q", "sums").err in ("", "a handler prints\n")


def test_run_says_which_module_defines_no_task(mayflymq: Command) -> None:
    ran = mayflymq("run", "--tasks", "json", "--tasks", TASKS, "--tasks", "tests.unit")
    assert (ran.code, ran.err) == (0, "mayflymq: json defines no task\n")


def test_run_without_tasks_claims_nothing(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "default", "cli.add", "1")
    ran = mayflymq("run")
    assert ran.code == 2
    assert is_one_line(ran)
    assert "MAYFLYMQ_TASKS" in ran.err
    assert backend.queues(["default"])[0].counts.waiting == 1


# Recovery


def test_sweep_recovers_and_reports(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "one")
    claim(backend, "sums", stale_after_ms=1)
    released = 0
    while backend.list_jobs("sums", State.ACTIVE).jobs:  # until the millisecond has passed
        swept = mayflymq("sweep", "--json")
        assert swept.code == 0
        released += swept.json["released"]
    assert released == 1
    assert mayflymq("sweep", "--queue", "sums").code == 0


def test_promote_moves_what_is_due(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--delay", "0.001")
    promoted = 0
    while backend.queues(["sums"])[0].counts.waiting == 0:
        promoted += mayflymq("promote", "--json").json["promoted"]
    assert promoted == 1


# Looking


@pytest.mark.promise("A5", backends=("memory", "sqlite"))
def test_queues_show_counts_pause_dead_letters_and_workers(mayflymq: Command, backend: Backend) -> None:
    for job in ("a", "b"):
        mayflymq("enqueue", "sums", "cli.add", "1", "--id", job)
    mayflymq("enqueue", "sums", "cli.fail", "--priority", "0")
    mayflymq("run", "--queue", "sums", "--tasks", TASKS, "--limit", "1")
    claim(backend, "sums")
    mayflymq("pause", "sums")
    [info] = mayflymq("queues", "--json").json_lines
    assert (info["paused"], info["dead_letters"]) == (True, 1)
    assert {state: n for state, n in info["counts"].items() if n} == {"waiting": 1, "active": 1, "failed": 1}
    [worker] = info["workers"]
    assert (worker["worker"], worker["claims"]) == ("a worker", 1)
    shown = mayflymq("queues")
    assert "sums (paused)" in shown.out
    assert "a worker" in shown.out


@pytest.mark.promise("A5", backends=("memory", "sqlite"))
def test_jobs_are_listed_by_state_up_to_a_limit_in_pages(
    mayflymq: Command, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"job-{number}" for number in range(5)]
    for job_id in ids:
        mayflymq("enqueue", "sums", "cli.add", "1", "--id", job_id)
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "later", "--delay", "1000")
    monkeypatch.setattr("mayflymq.cli.jobs.PAGE", 2)
    listed = mayflymq("jobs", "list", "sums", "--json").json_lines
    assert [job["id"] for job in listed] == [*ids, "later"]
    some = mayflymq("jobs", "list", "sums", "--state", "waiting", "--limit", "3", "--json").json_lines
    assert [job["id"] for job in some] == ids[:3]
    assert "job-4" in mayflymq("jobs", "list", "sums").out


def on_80_columns(directory: Path, *args: str) -> list[str]:
    """The lines of a command that succeeds on such a terminal."""
    master, slave = pty.openpty()
    subprocess.run(
        [str(Path(sys.executable).with_name("mayflymq")), *args],
        cwd=directory, env=os.environ | {"TERM": "dumb", "COLUMNS": "80"}, stdout=slave, check=True,
    )  # fmt: skip
    os.close(slave)
    lines = cli_bench.read_all(master).splitlines()
    os.close(master)
    return lines


@pytest.mark.parametrize("command", [("jobs", "list"), ("dlq", "list")], ids=lambda c: c[0])
def test_a_terminal_of_80_columns_has_a_job_a_line_with_its_whole_id(
    tmp_path: Path, command: tuple[str, str]
) -> None:
    queue = Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db"))
    job_id = queue.enqueue("a_task_with_a_long_name", max_retries=0).job_id
    [claimed] = queue.claim(ClaimRequest("default", 1, "token", "w", 60_000))
    queue.settle([Settle(claimed.claim, Fail(JobError("ValueError", "what is wrong, at length " * 9)))])
    head, row = on_80_columns(tmp_path, *command, "default")
    since = "age" if command[0] == "jobs" else "ended"
    assert head.split() == ["id", "state", since, "deliveries", "task", "error"]
    assert re.fullmatch(rf"{job_id} failed +\d\S* \S+ +1 +a_tas\S+… Valu\S*… *", row)
    assert len(row) <= 80


def test_a_terminal_of_80_columns_folds_a_long_id_and_keeps_the_other_columns(tmp_path: Path) -> None:
    job_id = "invoice-2026-11-30-" + "x" * 100
    Queue("default", open_backend(f"sqlite:///{tmp_path}/mayflymq.db")).enqueue("send_invoice", job_id=job_id)
    head, row, *more = on_80_columns(tmp_path, "jobs", "list", "default")
    assert head.split() == ["id", "state", "age", "deliveries", "task", "error"]
    assert re.fullmatch(rf"{job_id[:36]} waiting \S+ \S+ +0 +send_invoice *", row)
    assert row[:36] + "".join(line.strip() for line in more) == job_id
    assert job_id in start(tmp_path, "jobs", "list", "default").stdout


def test_a_terminal_of_80_columns_has_the_headings_of_queues_whole(tmp_path: Path) -> None:
    backend = open_backend(f"sqlite:///{tmp_path}/mayflymq.db")
    Queue("thumbnails", backend).enqueue("t")
    head, row = on_80_columns(tmp_path, "queues")
    states = ["waiting", "delayed", "blocked", "active", "completed", "cancelled"]
    assert head.split() == ["queue", *states, "DLQ", "oldest", "wait"]
    assert row.split()[:2] == ["thumbnails", "1"]
    Queue("thumbnails-of-photographs-in-colour", backend).pause()
    assert on_80_columns(tmp_path, "queues")[0].split()[1:7] == states


def test_an_error_without_a_message_is_its_kind_alone(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "sums", "t", "--id", "one")
    [claimed] = backend.claim(ClaimRequest("sums", 1, "token", "w", 60_000))
    backend.settle([Settle(claimed.claim, Fail(JobError("KeyboardInterrupt", "")))])
    for args in (["jobs", "show", "sums", "one"], ["jobs", "list", "sums"], ["dlq", "list", "sums"]):
        assert re.search(r"KeyboardInterrupt *$", mayflymq(*args).out, re.MULTILINE)
    assert _first_line(JobError("KeyboardInterrupt", "")) == "KeyboardInterrupt"
    assert _first_line(JobError("ValueError", "no\nluck")) == "ValueError: no"


@pytest.mark.promise("A5", backends=("memory", "sqlite"))
def test_show_has_the_traceback_and_no_control_character_or_markup_of_a_job_takes_effect(
    mayflymq: Command,
) -> None:
    mayflymq("enqueue", "sums", "cli.fail", "--id", "[red]bad")
    mayflymq("run", "--queue", "sums", "--tasks", TASKS)
    for shown in mayflymq("jobs", "show", "sums", "[red]bad"), mayflymq("jobs", "list", "sums"):
        assert r"no \x1b[31m[bold]luck\x07" in shown.out
        assert "[red]bad" in shown.out
        assert not set(shown.out) & {"\x1b", "\x07"}
    shown = mayflymq("jobs", "show", "sums", "[red]bad")
    assert "Traceback (most recent call last):" in shown.out
    assert shown.out.count("\n") > 10
    assert (
        mayflymq("jobs", "show", "sums", "[red]bad", "--json").json["error"]["message"]
        == "no \x1b[31m[bold]luck\x07"
    )


def test_a_job_due_in_a_year_of_five_digits_can_be_shown(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "t", "--id", "far", "--delay", "1e12")
    assert mayflymq("jobs", "show", "sums", "far").code == 0


def test_check_shows_findings_and_capabilities(mayflymq: Command, backend: Backend) -> None:
    mayflymq("migrate")
    checked = mayflymq("check", "--json")
    assert checked.code == 0
    assert checked.json["capabilities"]["durable"] is backend.capabilities.durable
    assert set(checked.json["capabilities"]) == set(Capabilities.__dataclass_fields__)
    assert "ordering" in mayflymq("check").out


# Steering


@pytest.mark.promise("A1", backends=("memory", "sqlite"))
def test_a_paused_queue_gives_run_nothing_until_it_is_resumed(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1")
    run = ("run", "--queue", "sums", "--tasks", TASKS, "--json")
    assert mayflymq("pause", "sums").code == 0
    assert mayflymq(*run).json["claimed"] == 0
    assert mayflymq("resume", "sums").code == 0
    assert mayflymq(*run).json["claimed"] == 1


@pytest.mark.promise("X6", backends=("memory", "sqlite"))
def test_cancelling_an_ended_or_unknown_job_says_that_nothing_changed(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "one")
    first = mayflymq("jobs", "cancel", "sums", "one", "--json")
    assert (first.code, first.json) == (0, {"id": "one", "status": "cancelled"})
    before = mayflymq("jobs", "show", "sums", "one", "--json").json
    again = mayflymq("jobs", "cancel", "sums", "one", "two", "--json")
    assert again.code == 1
    assert again.json_lines == [{"id": "one", "status": "terminal"}, {"id": "two", "status": "unknown"}]
    assert mayflymq("jobs", "cancel", "sums", "one").out.endswith("nothing changed\n")
    assert mayflymq("jobs", "show", "sums", "one", "--json").json == before


def test_cancelling_a_running_job_asks_its_worker(mayflymq: Command, backend: Backend) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "one")
    claim(backend, "sums")
    assert mayflymq("jobs", "cancel", "sums", "one", "--json").json["status"] == "requested"


def test_remove_says_which_jobs_were_there(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "cli.add", "1", "--id", "one")
    removed = mayflymq("jobs", "remove", "sums", "one", "two", "--json")
    assert removed.code == 1
    assert removed.json_lines == [{"id": "one", "removed": True}, {"id": "two", "removed": False}]
    gone = mayflymq("jobs", "show", "sums", "one")
    assert gone.code == 1
    assert is_one_line(gone)


# Errors


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nonsense"], "No such command"),
        (["jobs"], "Missing command. These are: list, show, cancel"),
        (["dlq"], "These are: list, replay."),
        (["enqueue", "q"], "TASK"),
        (["enqueue", "q", "t", "plain text"], "quotes of its own"),
        (["enqueue", "q", "t", "[" * 100_000], "not JSON"),
        (["enqueue", "q", "t", "NaN"], "nan, which JSON cannot hold"),
        (["enqueue", "q", "t", "--kw", "name"], "name=value"),
        (["enqueue", "q", "t", "--kw", "a=1", "--kw", "a=2"], "once"),
        (["enqueue", "q", "t", "--delay", "nan"], "no duration"),
        (["enqueue", "q", "t", "--ttl", "soon"], "no duration"),
        (["enqueue", "q", "t", "--ttl", "0"], "ttl"),
        (["enqueue", "q", "t", "--run-at", "2030-01-01T00:00"], "time zone (2030-01-31T08:00+01:00, "),
        (["enqueue", "q", "t", "--run-at", "tomorrow"], "ISO 8601"),
        (["enqueue", "q", "t", "--priority", "2147483648"], "priority"),
        (["enqueue", "q", "t", "--priority", "high"], "'--priority': it takes a whole number, not 'high'"),
        (["enqueue", "q", "t", "--max-retries=-1"], "a whole number of at least 0, not '-1'"),
        (["enqueue", "q", "t", "--timeout", "0"], "timeout must be above 0"),
        (["enqueue", "q", "t", "--dedup", ""], "a deduplication key"),
        (["enqueue", "q", "t", "--depends-on", "nobody"], "enqueue parents first"),
        (["enqueue", "q", "t", "-5"], "put -- before an argument"),
        (["enqueue", "q", "t", "-.5"], "put -- before an argument"),
        (["jobs", "list", "q", "--state", "dead"], "'--state' / '-s': 'dead' is not one of"),
        (["schedules", "put", "q", "s", "t", "--catch-up", "maybe"], "'--catch-up': 'maybe' is not one of"),
        (["enqueue", "q", "t", "--id", ""], "job id"),
        (["enqueue", "q.dlq", "t"], "cannot name a queue"),
        (["enqueue", "q", "cli.ad", "--tasks", TASKS], "no task cli.ad in"),
        (["schedules", "put", "q", "s", "cli.ad", "--every", "1h", "--tasks", TASKS], "cli.add"),
        (["run", "--tasks", "no.such.module"], "no.such.module"),
        (["run", "--tasks", "app/cli_tasks.py"], "a module has no .py: app.cli_tasks"),
        (["run", "--tasks", TASKS, "--time-limit", "1s"], "MAYFLYMQ_MARGIN"),
        (["sweep", "--time-limit", "0.5"], "MAYFLYMQ_MARGIN"),
        (["run", "--tasks", TASKS, "--queue", "a:0"], "--queue: gives"),
        (["sweep", "--limit", "1001"], "--limit: "),
        (["run", "--tasks", TASKS, "--stalled-threshold", "0"], "--stalled-threshold: "),
        (["enqueue", "q", "t", "--delay", "5w"], "no duration"),
        (["enqueue", "q", "t", "--delay", "s"], "no duration"),
        (["enqueue", "q", "t", "--delay=-5m"], "no duration"),
        (["enqueue", "q", "t", "--delay", "infd"], "no duration"),
        (["jobs", "retry", "q"], "Missing argument"),
        (["dlq", "list", "q", "--cursor", "waiting:5"], "is not a cursor"),
        (["dlq", "list", "q", "--cursor", "failed:x"], "is not a cursor"),
        (["dlq", "replay", "q"], "--all"),
        (["dlq", "replay", "q", "a", "--all"], "--all, not both"),
        (["obliterate", "q", "--force"], "--yes"),
        (
            ["clean", "q", "--state", "waiting", "--older-than", "5m", "--yes"],
            "'waiting' is not one of 'completed', 'failed', 'expired', 'cancelled'",
        ),
        (["clean", "q", "--state", "failed", "--yes"], "--older-than"),
        (["schedules", "put", "q", "s", "t"], "one of the two"),
        (["schedules", "put", "q", "s", "t", "--every", "1d", "--cron", "* * * * *"], "one of the two"),
        (["schedules", "put", "q", "s", "t", "--every", "1.5s"], "whole number of seconds"),
        (["schedules", "put", "q", "s", "t", "--cron", "at noon"], "no cron expression"),
        (["schedules", "put", "q", "s", "t", "--every", "99999999999d"], "--every is too long"),
        (["schedules", "put", "q", "s", "t", "--every", "5m", "--timezone", "UTC"], "belongs to --cron"),
        (["schedules", "put", "q", "s", "t", "--cron", "0 0 30 2 *"], "'0 0 30 2 *' never comes"),
        (["schedules", "put", "q", "s", "t", "--cron", "0 0 31 4,6 *"], "never comes"),
        (["schedules", "put", "q", "s", "t", "--cron", "0 0 32 2 *"], "no cron expression"),
        (["schedules", "put", "q", "s", "t", "--cron", "0 0 31 13 *"], "no cron expression"),
        (["schedules", "put", "q", "s", "t", "--cron", "* * * * *", "--timezone", "Mars"], "time zone"),
        (["dev"], "MAYFLYMQ_TASKS"),
        (["dev", "--tasks", TASKS, "--interval", "0s"], "--interval"),
        (["run", "--backend", "memory://x"], "before the command"),
    ],
)
def test_a_command_that_cannot_work_is_one_line_and_exit_code_2(
    call: Command, args: list[str], says: str
) -> None:
    answer = call("--backend", "memory://errors", *args)
    assert (answer.code, is_one_line(answer)) == (2, True), answer
    assert says in answer.err


@pytest.mark.parametrize(
    "args",
    [
        ["queues", "nope"],
        ["queues", "sums", "nope", "--json"],
        ["jobs", "list", "nope"],
        ["jobs", "list", "nope", "--state", "failed", "--json"],
        ["dlq", "list", "nope"],
        ["sweep", "-q", "nope"],
        ["promote", "-q", "nope"],
        ["drain", "nope", "--yes"],
        ["pause", "nope"],
        ["resume", "nope"],
        ["clean", "nope", "-s", "failed", "--older-than", "5m", "--yes"],
        ["dlq", "replay", "nope", "--all"],
        ["schedules", "list", "nope"],
        ["jobs", "show", "nope", "one"],
    ],
    ids=" ".join,
)
def test_a_queue_that_is_not_there_is_one_line_and_exit_code_1(mayflymq: Command, args: list[str]) -> None:
    assert "no queue nope (there are: none)" in mayflymq("drain", "nope").err
    mayflymq("enqueue", "sums", "t")
    assert mayflymq("pause", "letters", "--new").code == 0
    answer = mayflymq(*args)
    assert (answer.code, answer.err) == (1, "mayflymq: no queue nope (there are: letters, sums)\n")


def test_a_queue_without_jobs_is_there(mayflymq: Command) -> None:
    mayflymq("enqueue", "sums", "t", "--id", "one")
    refused = mayflymq("drain", "sums")
    assert (refused.code, is_one_line(refused), "--yes" in refused.err) == (2, True, True)
    mayflymq("jobs", "remove", "sums", "one")
    for args in (
        ["queues", "sums"],
        ["jobs", "list", "sums"],
        ["dlq", "list", "sums"],
        ["drain", "sums", "-y"],
        ["clean", "sums", "-s", "failed", "--older-than", "5m", "--yes"],
        ["dlq", "replay", "sums", "--all"],
        ["schedules", "list", "sums"],
    ):
        assert (mayflymq(*args).code, mayflymq(*args).err) == (0, "")


def test_the_error_for_an_unknown_backend_hides_the_password(call: Command) -> None:
    answer = call("--backend", "nosuch://user:secret@host/db", "queues")
    assert (answer.code, is_one_line(answer)) == (2, True)
    assert "secret" not in answer.err


@pytest.mark.parametrize("transient", [True, False])
def test_a_store_that_fails_is_one_line_and_exit_code_3(
    call: Command, monkeypatch: pytest.MonkeyPatch, transient: bool
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise BackendError("the store is\naway: start it", transient=transient)

    monkeypatch.setattr(type(base.open_backend("memory://away")), "queues", fails)
    answer = call("--backend", "memory://away", "queues")
    assert (answer.code, answer.err) == (3, "mayflymq: the store is away: start it\n")


def test_check_exits_1_on_an_error_finding(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(Severity.ERROR, "eviction", "jobs may be thrown away")
    monkeypatch.setattr(type(base.open_backend("memory://bad")), "check", lambda self: [finding])
    answer = call("--backend", "memory://bad", "check")
    assert answer.code == 1
    assert "ERROR    eviction: jobs may be thrown away" in answer.out


def test_an_unexpected_error_keeps_its_traceback(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(type(base.open_backend("memory://fault")), "queues", fails)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        cli.main(["--backend", "memory://fault", "queues"])


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("", 2, "--backend: the URL is empty"),
        ("redis:///0", 2, "redis:///0 names no host: write redis://host:6379/0"),
        ("redis://h:1/O", 2, "redis://h:1/O names no database: it is a number, as in redis://host:6379/0"),
        ("redis://localhost/0?fooo=1", 2, "a redis:// URL has no option fooo"),
        ("redis://localhost:x/0", 2, "redis://localhost:x/0 cannot be used: its port is no number"),
        (f"sqlite:///{Path(__file__).parent}", 3, f"{Path(__file__).parent} is a folder: name a file in it"),
    ],
)
def test_a_url_that_cannot_work_is_told_by_what_is_wrong(
    call: Command, url: str, code: int, says: str
) -> None:
    answer = call("--backend", url, "queues")
    assert (answer.code, is_one_line(answer), says in answer.err) == (code, True, True), answer


def test_help_shows_no_value_behind_a_flag(call: Command) -> None:
    for command in ([], ["jobs"], ["enqueue"], ["run"], ["dev"], ["clean"], ["drain"], ["dlq", "replay"]):
        assert "<bool>" not in call(*command, "--help").out
    assert "90 or 90s" in call("enqueue", "--help").out
    assert "waiting" not in call("clean", "--help").out


def test_help_says_what_the_exit_codes_mean(call: Command) -> None:
    answer = call("--help")
    assert answer.code == 0
    assert "Exit codes: 0 done; 1 " in answer.out
    assert call().code == 2
    assert call("--version").out[0].isdigit()


# Settings


def test_the_command_line_goes_before_the_environment(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_BACKEND_URL", "memory://from-environment")
    call("enqueue", "here", "t")
    call("--backend", "memory://explicit", "enqueue", "there", "t")
    assert [queue["name"] for queue in call("queues", "--json").json_lines] == ["here"]
    there = call("--backend", "memory://explicit", "queues", "--json").json_lines
    assert [queue["name"] for queue in there] == ["there"]


def test_a_wrong_variable_is_named(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAYFLYMQ_STALLED_THRESHOLD", "never")
    answer = call("--backend", "memory://variable", "sweep")
    assert (answer.code, is_one_line(answer)) == (2, True)
    assert "MAYFLYMQ_STALLED_THRESHOLD" in answer.err


# As a process


def test_the_package_is_a_command_too_and_knows_its_version() -> None:
    asked = [sys.executable, "-m", "mayflymq", "--version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{mayflymq_package.__version__}\n"
    with pytest.raises(AttributeError, match="nonsense"):
        mayflymq_package.nonsense  # noqa: B018


@pytest.mark.promise("S1", backends=("sqlite",))
def test_the_command_needs_no_setting_and_finds_tasks_beside_it(tmp_path: Path) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "from mayflymq import task\n\n@task\ndef double(n):\n    print('working')\n    return 2 * n\n"
    )
    assert start(tmp_path, "enqueue", "default", "double", "21", "--id", "one").returncode == 0
    ran = start(tmp_path, "run", "--tasks", "my_tasks", "--json")
    assert json.loads(ran.stdout)["completed"] == 1
    shown = start(tmp_path, "jobs", "show", "default", "one", "--json")
    assert json.loads(shown.stdout)["result"] == 42
    assert (tmp_path / "mayflymq.db").exists()


def test_errors_and_exit_codes_reach_the_shell(tmp_path: Path) -> None:
    for code, args in (
        (2, ("nonsense",)),
        (1, ("jobs", "show", "default", "unknown")),
        (3, ("--backend", f"sqlite:///{tmp_path}/no/such/directory/x.db", "queues")),
    ):
        answer = start(tmp_path, *args)
        assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (code, "", 1), answer
        assert answer.stderr.startswith("mayflymq: ")


@pytest.mark.parametrize(
    "command", [("run", "--json"), ("dev", "--until-idle", "--json")], ids=lambda c: c[0]
)
def test_what_fails_is_told_on_stderr(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "from mayflymq import task\n\n@task(max_retries=0)\ndef bad():\n    raise ValueError('no\\nluck')\n"
    )
    start(tmp_path, "enqueue", "default", "bad", "--id", "one", "--tasks", "my_tasks")
    ran = start(tmp_path, *command, "--tasks", "my_tasks")
    assert json.loads(ran.stdout)["failed"] == 1
    line, *hint = ran.stderr.splitlines()
    assert line == (
        "WARNING a job failed for good: ValueError: no (queue=default, job_id=one, task=bad, deliveries=1)"
    )
    assert hint == ["mayflymq: 1 job failed: see `mayflymq dlq list default`"] * (command[0] == "run")


def test_a_backend_that_ends_with_the_process_is_warned_of(tmp_path: Path) -> None:
    answer = start(tmp_path, "--backend", "memory://", "enqueue", "default", "t")
    assert (answer.returncode, answer.stderr.count("\n")) == (0, 1)
    assert answer.stderr.startswith("WARNING this backend keeps jobs in this process")


def test_progress_is_for_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "my_tasks.py").write_text("from mayflymq import task\n\n@task\ndef nothing():\n    pass\n")
    start(tmp_path, "enqueue", "default", "nothing")
    run = ("run", "--tasks", "my_tasks", "--json")
    piped = start(tmp_path, *run)
    assert (json.loads(piped.stdout)["completed"], piped.stderr) == (1, "")
    start(tmp_path, "enqueue", "default", "nothing")
    master, slave = pty.openpty()
    try:
        shown = start(tmp_path, *run, stderr=slave)
        os.set_blocking(master, False)
        terminal = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert json.loads(shown.stdout)["completed"] == 1
    assert "running" in terminal


def test_run_ends_though_a_handler_cannot_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import threading\nfrom mayflymq import task\n\n@task(max_retries=0)\ndef stuck():\n"
        "    for_ever = threading.Event()\n"
        "    threading.Thread(target=for_ever.wait, daemon=False).start()  # holds up an ordinary exit\n"
        "    for_ever.wait()\n"
    )
    start(tmp_path, "enqueue", "default", "stuck", "--tasks", "my_tasks")
    ran = start(tmp_path, "run", "--tasks", "my_tasks", "--concurrency", "2", "--time-limit", "0.3", "--json")
    report = json.loads(ran.stdout)
    assert (ran.returncode, report["failed"], report["abandoned"]) == (0, 1, 1)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(
    ("stdout", "code", "says"), [(">/dev/full", 1, "No space left"), (">&-", 0, None), ("| true", 1, None)]
)
def test_an_output_that_cannot_be_written(
    tmp_path: Path, stdout: str, code: int, says: str | None, options: list[str]
) -> None:
    if stdout == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no full device")
    for job in range(3):
        start(tmp_path, "enqueue", "default", "t", "--id", f"{job}")
    # A reader that is gone before anything is written, whatever the machine's pace.
    pause = '(sleep 1; exec "$@")' if stdout == "| true" else '"$@"'
    answer = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{pause} {stdout}", "bash", sys.executable, "-m", "mayflymq.cli",
         "jobs", "list", "default", *options],
        cwd=tmp_path, env=os.environ | {"MAYFLYMQ_BACKEND_URL": "sqlite:///mayflymq.db"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == code
    assert answer.stderr.count("\n") == (says is not None)
    assert (says or "") in answer.stderr


def test_without_its_packages_the_command_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['typer'] = None\n")
    command = [sys.executable, "-m", "mayflymq.cli", "queues"]
    answer = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(hidden)}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "pip install 'mayflymq[cli]'" in answer.stderr
