"""Gives the jobs of vanished workers back to their queues."""

from mayflymq.aws.runtime import initialise
from mayflymq.aws.runtime import stalled_sweep_handler as handler

initialise()

__all__ = ["handler"]
