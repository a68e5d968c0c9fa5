"""What SQS events are made of, for the function that it wakes and the one that it brings jobs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def records_of(event: object) -> list[Json] | None:
    """The messages of an event that SQS sent, an empty list for an empty batch; None for another event."""
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        return None
    from_sqs = all(isinstance(one, dict) and one.get("eventSource") == "aws:sqs" for one in records)
    return records if from_sqs else None


def answer(failed: Iterable[Json]) -> Json:
    """The answer to a batch (ReportBatchItemFailures): SQS keeps these messages and deletes the others."""
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in failed]}
