"""What wakes the worker function, and how it wakes the next one when its time was too short.

A wake-up comes from the doorbell (a batch of SQS messages, or an Invoke with `{"queues": [...]}`), from a
schedule or a person. It says at most where to look first: the truth is in the backend, so a wake-up that
comes twice, or for a queue that is empty by now, costs one claim that finds nothing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..backends.base import Backend
from ..queue import Queue
from . import sqs
from .doorbell import AwsDoorbell
from .sqs import Json

log = logging.getLogger("mayflymq.wakeups")


@dataclass(frozen=True, slots=True)
class Wakeup:
    """The queues with their weights, those that the event names before the others, and the SQS messages that
    it consists of, if it does."""

    weights: dict[str, int]
    records: list[Json] | None

    def answer(self, *, again: bool) -> Json:
        """The answer to SQS; `again` keeps every message, to come again."""
        return sqs.answer((self.records or []) if again else [])


def read(event: object, weights: Mapping[str, int]) -> Wakeup:
    """Reads any event. What it says that cannot be understood is logged and counts as handled: it would say
    the same again, and the queues are looked at all the same."""
    records = sqs.records_of(event)
    named: dict[str, int] = {}
    for name in _names(event, records):
        if isinstance(name, str) and name in weights:
            named[name] = weights[name]
        else:
            log.warning("a wake-up names no queue of this worker: %s", ascii(name)[:80])
    # No queue starves: the order decides who comes first, the weights who comes how often.
    return Wakeup({**named, **weights}, records)


def _names(event: object, records: list[Json] | None) -> Iterator[object]:
    if records is not None:
        for record in records:
            try:
                yield json.loads(record["body"])["queue"]
            except (ValueError, LookupError, TypeError, RecursionError):
                log.warning("a ring cannot be read", extra={"message_id": record.get("messageId")})
    elif isinstance(event, dict) and "queues" in event:
        queues = event["queues"]
        yield from queues if isinstance(queues, list) else [queues]


def ring_again(backend: Backend, wakeup: Wakeup) -> int:
    """Wakes the next workers, for the queues that have jobs left, and returns how many rings that took.

    No more than there were messages in the wake-up, and one where there was none: each worker runs all
    queues, so if each rang for every queue, the workers would multiply. Raises the store's error.
    """
    open_queues = [info for info in backend.queues(list(wakeup.weights)) if not info.paused]
    waiting = [info for info in open_queues if info.counts.waiting]
    waiting.sort(key=lambda info: info.oldest_waiting_age_ms or 0, reverse=True)
    # A claim takes due jobs that no promoter has moved yet, and only the store knows which of the delayed
    # ones those are: at worst one ring finds nothing.
    left = waiting or [info for info in open_queues if info.counts.delayed]
    chosen = left[: len(wakeup.records or []) or 1]
    for info in chosen:
        Queue(info.name, backend).ring()
    return len(chosen)


@contextmanager
def doorbell_at_hand(bell: AwsDoorbell | None, remaining_ms: Callable[[], int] | None) -> Iterator[None]:
    """Has the doorbell prepared once half of the time is over: making its client takes longer than what is
    left when the worker's time is up. A worker that is done before does not pay for it."""
    if bell is None or remaining_ms is None:
        yield
        return
    timer = threading.Timer(remaining_ms() / 2000, _prepare, [bell])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _prepare(bell: AwsDoorbell) -> None:
    try:
        bell.prepare()
    except Exception as error:
        log.warning("the doorbell cannot be made ready: %s", error)
