"""Runs jobs until the queues are empty or the time is up."""

from mayflymq.aws.runtime import claim_and_run_handler as handler
from mayflymq.aws.runtime import initialise

initialise(tasks=True)

__all__ = ["handler"]
