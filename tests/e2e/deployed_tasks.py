"""Tasks that the deployed stack runs, as a user's own: the deployment puts this file into functions/."""

import os
import signal
from pathlib import Path

from mayflymq import Backoff, current_job, task


@task(max_retries=0)
def square(number: int) -> int:
    return number * number


@task(max_retries=0)
def killed_at_first() -> str:
    """Takes the whole function's process along at its first delivery, as the out-of-memory killer does."""
    job = current_job()
    if job.delivery == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{job.id}, delivery {job.delivery}"


@task(max_retries=1, backoff=Backoff.fixed(0.1))
def needs(path: str) -> str:
    """Fails for as long as the file is not there."""
    return Path(path).read_text(encoding="utf-8")


@task(max_retries=0)
def overreaches() -> str:
    """Asks for what the worker's role does not allow, and returns how it was refused."""
    import boto3  # type: ignore[import-untyped]
    from botocore.exceptions import ClientError  # type: ignore[import-untyped]

    try:
        boto3.client("sqs").list_queues()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "allowed"
