"""Moves delayed jobs whose time has come to where workers find them."""

from mayflymq.aws.runtime import delayed_promoter_handler as handler
from mayflymq.aws.runtime import initialise

initialise()

__all__ = ["handler"]
