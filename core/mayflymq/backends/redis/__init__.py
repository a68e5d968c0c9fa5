"""The Redis backend: for deployments; shared, fast, and as durable as the server is set up to be."""

from .backend import RedisBackend, open

__all__ = ["RedisBackend", "open"]
