"""An example of a user's tasks: `MAYFLYMQ_TASKS=functions.tasks` makes the functions know them.

A job can be delivered more than once, so every task here may run twice for one job and leave the same behind.
"""

import hashlib
from pathlib import Path

from mayflymq import Backoff, Defer, Discard, current_job, task

CHUNK = 1024 * 1024


@task(timeout=60)
def digest_file(path: str) -> dict[str, int | str]:
    """Counts the lines (line feeds) and bytes of a file and takes its SHA-256.

    Whoever may enqueue chooses the path, so this suits a demonstration; a real task would take a key in a
    bucket of its own. It only reads, so a second delivery is harmless.
    """
    digest, lines, size = hashlib.sha256(), 0, 0
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                lines += chunk.count(b"\n")
                size += len(chunk)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise Discard(f"no file is there to read: {error.strerror}") from error  # a retry would find the same
    return {"lines": lines, "bytes": size, "sha256": digest.hexdigest()}


@task(max_retries=2, backoff=Backoff.fixed(0.1))
def always_fails(reason: str = "this task always fails") -> None:
    """Shows what becomes of a job that cannot work: three deliveries, then the dead-letter queue."""
    raise RuntimeError(reason)


@task(max_retries=0)
def wait_for_file(path: str, every: float = 5.0) -> str:
    """Waits for a file without holding a worker: looks once a delivery, and comes back `every` seconds later.

    Deferring counts as no failure, so it may last until the job's `ttl`.
    """
    if not Path(path).exists():
        raise Defer(after=every)
    return path


@task(http=False, ttl=3600)
def digest_tree(root: str) -> dict[str, int]:
    """Digests every file below a directory, shows its progress, and heeds cancellation and the deadline.

    `http=False` keeps it out of reach of the HTTP API: only the program's own code may ask for a whole tree.
    A delivery starts again from the first file, and deferring counts as nothing: without the `ttl` a tree
    that no invocation has the time for would keep workers busy for ever.
    """
    job = current_job()
    files = sorted(path for path in Path(root).rglob("*") if path.is_file())
    size = 0
    for done, path in enumerate(files):
        if (
            job.cancelled
        ):  # the job is somebody else's by now, or nobody's: whatever is returned changes nothing
            break
        remaining_ms = job.remaining_ms()  # None where nothing stops the worker
        if remaining_ms is not None and remaining_ms < 2_000:
            raise Defer(after=0)  # better than TaskTimeout, which would count as a failure
        size += int(digest_file(str(path))["bytes"])
        job.progress(done / len(files))
    return {"files": len(files), "bytes": size}
