"""Takes jobs over HTTP or from a plain invoke, and answers questions about them."""

from mayflymq.aws.runtime import enqueue_handler as handler
from mayflymq.aws.runtime import initialise

initialise(tasks=True, http=True)

__all__ = ["handler"]
