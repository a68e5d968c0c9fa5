"""The tasks that the command line's tests run."""

from mayflymq import Backoff, current_job, task


@task(name="cli.add")
def add(a: int, b: int = 0) -> int:
    print("a handler prints")
    current_job().progress(1)
    return a + b


@task(name="cli.fail", max_retries=0, backoff=Backoff.fixed(0))
def fail() -> None:
    raise ValueError("no \x1b[31m[bold]luck\x07")
