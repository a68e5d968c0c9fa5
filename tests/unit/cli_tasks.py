"""The tasks that the command line's tests run."""

import threading

from mayflymq import Backoff, Queue, current_job, events, task


@task(name="cli.add")
def add(a: int, b: int = 0) -> int:
    print("a handler prints")
    current_job().progress(1)
    return a + b


@task(name="cli.fail", max_retries=0, backoff=Backoff.fixed(0))
def fail() -> None:
    raise ValueError("no \x1b[31m[bold]luck\x07")


@task(name="cli.flaky", queue="cli-own", max_retries=1, backoff=Backoff.fixed(0.01))
def flaky() -> int:
    if current_job().delivery == 1:
        raise ValueError("the first time")
    return current_job().delivery


@task(name="cli.await_promotion", max_retries=0)
def await_promotion(job_id: str) -> None:
    """Ends when the other job was promoted, which nobody but a housekeeper beside this handler can do."""
    promoted = threading.Event()
    stop = events.listen(lambda event: event.job_id == job_id and promoted.set(), events.PROMOTED)
    try:
        enqueued = Queue("sums").enqueue("cli.add", [1], job_id=job_id, delay=0.01)
        assert enqueued.state is not None
        assert promoted.wait(30)
    finally:
        stop()
