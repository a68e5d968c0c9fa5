"""The keys of a queue. All carry the queue's hash tag, so that they share one slot of a cluster; the registry
of queues stands in another."""

from __future__ import annotations

from functools import lru_cache

# The order in which lua/_jobs.lua names them.
FIXED = (
    "waiting",
    "delayed",
    "blocked",
    "active",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "meta",
    "dedup",
    "windows",
    "cascades",
    "unpublished",
    "published",
    "schedules",
    "slots",
)


def prefix_of(namespace: str, queue: str) -> str:
    """What all keys of a queue begin with."""
    return f"{namespace}:{{{queue}}}:"


@lru_cache(1024)
def fixed(namespace: str, queue: str) -> tuple[bytes, ...]:
    """The keys that every script declares."""
    prefix = prefix_of(namespace, queue)
    return tuple((prefix + name).encode() for name in FIXED)


def registry(namespace: str) -> str:
    """The hash of queue names and their generations."""
    return f"{namespace}:queues"


def broker(namespace: str) -> str:
    """Set once the store keeps the state for a message broker."""
    return f"{namespace}:broker"
