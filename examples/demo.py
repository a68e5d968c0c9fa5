"""MayflyMQ at work: one job for each file of Python's own standard library, and one worker killed on the way.

    make demo                 or  python examples/demo.py [--files N] [--backend URL]
    make demo BACKEND=redis   the same on a Redis server that it starts for itself

1. Enqueues a job for each file through the enqueue function, as HTTP requests: some for later, some ahead of
   the others, and one whose task always fails.
2. Runs invocations of the claim-and-run function, each a process of its own with a deadline, and kills one of
   them with SIGKILL while it holds jobs.
3. Sweeps and promotes, as two schedules would, and runs invocations until every job has ended.
4. Compares every stored result with one made here by hashlib, and checks that the counts add up.

The tasks are in functions/tasks.py. Exits 0 only when every job is accounted for and every digest is right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mayflymq import Job, MayflyError, Queue, State, open_backend
from mayflymq.codec import decode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for functions/ and localstack/, which are not installed

LIBRARY = Path(sysconfig.get_path("stdlib"))
FAILING = "the job that always fails"
TIME_LIMIT = 55
SETTINGS = {
    "MAYFLYMQ_TASKS": "functions.tasks",
    "MAYFLYMQ_PREFETCH": "10",
    "MAYFLYMQ_STALLED_THRESHOLD": "2",  # seconds, where 30 is the default: nobody wants to watch a demo wait
    "MAYFLYMQ_LOG_LEVEL": "ERROR",
}


def demonstrate(queue: Queue, files: list[str]) -> list[str]:
    """The whole run. Returns what is wrong with its outcome, one sentence each."""
    console = Console(highlight=False, markup=False)
    jobs = jobs_for(files)
    began = time.monotonic()
    with Progress(console=console) as bar:
        enqueue(queue, jobs, bar)
        bar.print(f"enqueued {len(jobs):,} jobs in HTTP requests: one that fails on purpose, and for each")
        # Unwrapped, as a path in two parts is none.
        bar.print(f"file below {LIBRARY} one that takes its SHA-256 and counts its lines", soft_wrap=True)
        held = kill_one_that_holds_jobs(queue)
        bar.print(f"killed a worker that held {held} jobs: it could not tell the store")
        reports = work_until_done(queue, len(jobs), bar)
    seconds = time.monotonic() - began

    completed = {job.id: job for job in jobs_in(queue, State.COMPLETED)}
    failed = {job.id: job for job in jobs_in(queue, State.FAILED)}
    ended = [*completed.values(), *failed.values()]
    recovered = sum(job.stalls for job in ended)
    retried = sum(job.failures for job in ended) - len(failed)  # a failed job's last failure led to no retry
    released = sum(report["released"] for report in reports)
    deliveries = sum(job.deliveries for job in ended)

    table = Table("", "jobs", title=f"{len(jobs):,} jobs in {seconds:.1f} seconds")
    table.columns[1].justify = "right"
    table.add_row("completed", f"{len(completed):,}")
    table.add_row("in the dead-letter queue, failed on purpose", f"{len(failed):,}")
    table.add_row("retried after a failure", f"{retried:,}")
    table.add_row("recovered from the killed worker", f"{recovered:,}")
    table.add_row("given back unstarted at a deadline", f"{released:,}")
    table.add_row("deliveries", f"{deliveries:,}")
    table.add_row("a second, the wait for the recovery included", f"{len(ended) / seconds:,.0f}")
    console.print(table)

    wrong = list(faults(files, completed, failed))
    if recovered < held:
        wrong.append(f"the killed worker held {held} jobs, and only {recovered} were recovered")
    if deliveries != len(jobs) + retried + recovered + released:
        wrong.append(f"{deliveries} deliveries are not one a job, retry, recovery and release")
    if not wrong:
        console.print(f"all {len(files):,} stored results equal hashlib's, and the counts add up")
        console.print("next: docs/quickstart.md")
    return wrong


# The jobs


def stdlib_files(limit: int | None) -> list[str]:
    """The .py files of the running Python's standard library, as paths below it."""
    paths = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    others = ("site-packages", "dist-packages")
    return sorted(str(path) for path in paths if path.parts[0] not in others)[:limit]


def jobs_for(files: list[str]) -> list[dict[str, Any]]:
    """One job a file, under the file's name; every 20th is due 1 to 2 seconds later, every 7th goes first."""
    jobs: list[dict[str, Any]] = [{"id": FAILING, "task": "always_fails"}]
    for number, name in enumerate(files):
        job: dict[str, Any] = {"id": name, "task": "digest_file", "args": [str(LIBRARY / name)]}
        if number % 20 == 0:
            job["delay"] = 1 + number % 3 / 2
        elif number % 7 == 0:
            job["priority"] = 0
        jobs.append(job)
    return jobs


def enqueue(queue: Queue, jobs: list[dict[str, Any]], bar: Progress) -> None:
    """Sends the jobs through the enqueue function in HTTP requests, as API Gateway hands them over."""
    from functions.enqueue import handler

    event = json.loads((ROOT / "events" / "enqueue_http_v2_post.json").read_text())
    event["rawPath"] = event["requestContext"]["http"]["path"] = f"/queues/{queue.name}/jobs"
    for start in bar.track(range(0, len(jobs), 100), description="enqueue"):
        response = handler(event | {"body": json.dumps(jobs[start : start + 100])}, Context())
        answers = json.loads(response["body"]).get("jobs", [])
        if response["statusCode"] != 202 or any(answer["status"] != "created" for answer in answers):
            sys.exit(f"the enqueue function refused: {response['statusCode']} {response['body']}")


# The workers


@dataclass
class Context:
    """What AWS Lambda hands to a handler next to the event: who it is, and how much time it has."""

    function_name: str = "demo"
    function_version: str = "$LATEST"
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:123456789012:function:demo"
    memory_limit_in_mb: int = 128
    aws_request_id: str = field(default_factory=lambda: str(uuid4()))
    deadline: float = field(default_factory=lambda: time.monotonic() + 10)

    def get_remaining_time_in_millis(self) -> int:
        return max(0, round((self.deadline - time.monotonic()) * 1000))


class Invocation:
    """One invocation of the claim-and-run function, in a process of its own."""

    started: ClassVar[list[Invocation]] = []

    def __init__(self) -> None:
        self.id = str(uuid4())
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # open as long as the process writes
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--invocation", self.id], stdout=self.output
        )
        self.started.append(self)

    def running(self) -> bool:
        return self.process.poll() is None

    def claims(self, queue: Queue) -> int:
        """How many jobs the store says that it holds."""
        return sum(worker.claims for worker in queue.info().workers if worker.worker.endswith(self.id))

    def report(self) -> dict[str, Any]:
        """What it says that it did: the last line of its output."""
        self.output.seek(0)
        text = self.output.read()
        if self.process.wait() != 0:
            sys.exit(f"an invocation ended with exit code {self.process.returncode}: {text}")
        report: dict[str, Any] = json.loads(text.splitlines()[-1])
        return report

    def kill(self) -> None:
        """As when the memory runs out: the process cannot say anything, or clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def invocation(request: str) -> None:
    """What the process of an Invocation does."""
    from functions.claim_and_run import handler

    print(json.dumps(handler({}, Context(aws_request_id=request))))


def kill_one_that_holds_jobs(queue: Queue) -> int:
    """Kills an invocation in the midst of its work, and returns how many jobs it held."""
    while queue.info().counts.waiting:
        victim = Invocation()
        while victim.running() and not (queue.info().counts.completed and victim.claims(queue)):
            time.sleep(0.002)
        if not victim.running():
            victim.report()
        victim.kill()
        if held := victim.claims(queue):  # none where its work was done in the very last moment
            return held
    sys.exit("every job was done before a worker could be killed: try more --files")


def work_until_done(queue: Queue, jobs: int, bar: Progress) -> list[dict[str, Any]]:
    """What schedules do: sweep, promote, run up to two invocations while jobs wait. Returns their reports."""
    from functions.delayed_promoter import handler as promote
    from functions.stalled_sweep import handler as sweep

    line = bar.add_task("jobs", total=jobs)
    workers: list[Invocation] = []
    while True:
        counts = queue.info().counts
        bar.update(line, completed=counts.completed + counts.failed)
        running = [worker for worker in workers if worker.running()]
        if counts.completed + counts.failed >= jobs and not running:
            return [worker.report() for worker in workers]
        if released := sweep({}, Context())["released"]:
            bar.print(f"the sweep gave {released} jobs back")
        promote({}, Context())
        if counts.waiting and len(running) < 2:
            workers.append(Invocation())
        time.sleep(0.1)


# The check


def jobs_in(queue: Queue, state: State) -> Iterator[Job]:
    page = queue.jobs(state, limit=1000)
    yield from page.jobs
    while page.cursor is not None:
        page = queue.jobs(state, page.cursor, limit=1000)
        yield from page.jobs


def faults(files: list[str], completed: dict[str, Job], failed: dict[str, Job]) -> Iterator[str]:
    """What is wrong with the stored results, one sentence each."""
    for name in files:
        content = (LIBRARY / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        expected = {"lines": content.count(b"\n"), "bytes": len(content), "sha256": digest}
        result = completed[name].result if name in completed else None
        if result is None:
            yield f"{name} has no result"
        elif decode(result) != expected:
            yield f"{name}: the stored result is {decode(result)}, and should be {expected}"
    if others := sorted(completed.keys() - set(files)):
        yield f"these completed, and nobody enqueued them: {others}"
    if list(failed) != [FAILING]:
        yield f"one job belongs into the dead-letter queue, and these are there: {sorted(failed)}"


@contextmanager
def store(backend: str) -> Iterator[str]:
    """The URL of the store to run on, which is gone afterwards unless it was there before."""
    if backend == "sqlite":
        with tempfile.TemporaryDirectory(prefix="mayflymq-demo-") as directory:
            yield f"sqlite:///{directory}/demo.db"
    elif backend == "redis":
        from localstack.servers import RedisServer

        with RedisServer() as server:
            yield server.url
    elif "://" in backend:
        yield backend
    else:
        sys.exit("BACKEND (--backend) is sqlite or redis, or the URL of a server")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, metavar="N", help="only the first N files")
    parser.add_argument(
        "--backend",
        default="sqlite",
        help="sqlite (a temporary file, the default), redis (a temporary server), or a URL",
    )
    parser.add_argument("--invocation", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.invocation:
        return invocation(options.invocation)

    # Either becomes an exception, so that the processes are ended and the directory is removed.
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"not done after {TIME_LIMIT} seconds"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    signal.alarm(TIME_LIMIT)
    with store(options.backend) as url:
        name = f"demo-{uuid4()}"  # a shared store may hold other queues, and earlier runs' jobs
        for variable in [variable for variable in os.environ if variable.startswith("MAYFLYMQ_")]:
            del os.environ[variable]
        os.environ.update(SETTINGS, MAYFLYMQ_BACKEND_URL=url, MAYFLYMQ_QUEUES=name)
        try:
            backend = open_backend(url)
            if not backend.capabilities.shared:
                sys.exit("the demonstration needs a backend that several processes share: sqlite or redis")
            queue = Queue(name, backend)
            wrong = demonstrate(queue, stdlib_files(options.files))
            queue.drop(force=True)
        except MayflyError as error:
            sys.exit(str(error))
        finally:
            for worker in Invocation.started:
                worker.kill()
        sys.exit("\n".join(f"WRONG: {fault}" for fault in wrong) or 0)


if __name__ == "__main__":
    main()
