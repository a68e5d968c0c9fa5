"""Jobs from inside AWS: a plain invoke, an EventBridge event, a batch of SQS messages.

Each carries a job as `documents` describes it, with its `queue` (if none, the task's own). Who may invoke the
function, put the event or send the message is one of the program's own parts, so tasks with http=False are
taken too.

All three may be delivered again, and a job without an id of its own gets one that is the same then: the
request's, the event's or the message's (promise D6).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import BackendError, InvalidJob, MayflyError
from ..model import Enqueued, NewJob
from ..queue import Queue
from . import sqs
from .documents import KEY, Intake, InvalidRequest, Json, accepted, kind_of, parse, with_key

log = logging.getLogger("mayflymq.producers")


def enqueue(intake: Intake, event: object, request_id: str | None = None) -> Json:
    """Enqueues the job of a plain invoke, or of an EventBridge event (its detail); returns what a POST
    answers.

    Raises InvalidJob, UnknownTask, BackendError: the invocation fails, its caller gets errorType and
    errorMessage, and an asynchronous one is repeated by the platform, under the same ids.
    """
    if isinstance(event, dict) and "detail-type" in event and "detail" in event:
        document, given_id = event["detail"], event.get("id")
    else:
        document, given_id = event, request_id
    queue, job = _job(intake, document, given_id)
    return accepted(queue, job, queue.enqueue_jobs([job])[0])


def consume(intake: Intake, records: Sequence[Json]) -> Json:
    """Enqueues the jobs of a batch of SQS messages; returns which of them SQS has to keep.

    Those are the messages that the store gave no answer for, to come again, and those that can never become a
    job: SQS moves them to the dead-letter queue after its maxReceiveCount. Of a FIFO queue's group all that
    follow a message that is kept are kept too, unread, so that the order holds.

    `Idempotency-Key`, an attribute of a message, becomes its job's id.
    """
    batch = _Batch(intake)
    for part in _parts(records):
        batch.add(part)
    return sqs.answer(record for record in records if record["messageId"] in batch.failed)


@dataclass(frozen=True, slots=True)
class _Message:
    record: Json
    queue: Queue
    job: NewJob
    keyed: bool


class _Batch:
    """The messages of one batch, as far as they are handled."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.failed: set[str] = set()
        self._stopped_groups: set[str] = set()
        self._unreachable = False

    def add(self, records: Sequence[Json]) -> None:
        """Enqueues these, with one call for each queue."""
        by_queue: dict[str, list[_Message]] = {}
        for record in records:
            if self._unreachable or _group(record) in self._stopped_groups:
                self._keep(record)
                continue
            try:
                message = self._read(record)
            except Exception as error:  # whatever is wrong with one message, the others go on
                self._refuse(record, error)
            else:
                by_queue.setdefault(message.queue.name, []).append(message)
        for messages in by_queue.values():
            self._enqueue(messages)

    def _enqueue(self, messages: Sequence[_Message]) -> None:
        queue = messages[0].queue
        try:
            if not self._unreachable:
                answers = queue.enqueue_jobs([message.job for message in messages])
                for message, answer in zip(messages, answers, strict=True):
                    self._answered(message, answer)
                return
        except MayflyError as error:
            if isinstance(error, BackendError) and error.transient:
                # Asking again for each queue would only use up the time that is left.
                self._unreachable = True
                log.error("the store cannot be reached: %s", error, extra={"queue": queue.name})
            elif len(messages) > 1:
                # Perhaps it is about one of them. Those that were written are there under their ids.
                for message in messages:
                    self._enqueue([message])
                return
            else:
                self._refuse(messages[0].record, error)
        for message in messages:
            self._keep(message.record)

    def _answered(self, message: _Message, answer: Enqueued) -> None:
        try:
            accepted(message.queue, message.job, answer, keyed=message.keyed)
        except InvalidJob as error:
            self._refuse(message.record, error)

    def _read(self, record: Json) -> _Message:
        try:
            document = parse(record["body"])
        except ValueError as error:
            raise InvalidRequest.of("(body)", f"is not JSON that can be read: {error}") from error
        attribute = (record.get("messageAttributes") or {}).get(KEY)
        key = None if attribute is None else attribute.get("stringValue")
        if key is None and attribute is not None:  # without its key it would come twice as two jobs
            raise InvalidRequest.of(KEY, "must be a String attribute, not a Binary one")
        queue, job = _job(self.intake, with_key(document, key), record["messageId"])
        return _Message(record, queue, job, key is not None)

    def _refuse(self, record: Json, error: Exception) -> None:
        log.error("a message became no job: %s", error, extra={"message_id": record["messageId"]})
        self._keep(record)

    def _keep(self, record: Json) -> None:
        self.failed.add(record["messageId"])
        if (group := _group(record)) is not None:
            self._stopped_groups.add(group)


def _parts(records: Sequence[Json]) -> Iterator[Sequence[Json]]:
    """A batch in the parts to be handled one after the other: the messages of a FIFO queue one by one, as
    whether the second may be read depends on what became of the first."""
    if any(_group(record) is not None for record in records):
        yield from ([record] for record in records)
    elif records:
        yield records


def _group(record: Mapping[str, Json]) -> str | None:
    group = record.get("attributes", {}).get("MessageGroupId")
    # A standard queue's messages may have groups too, for fairness; those have no order.
    return group if str(record.get("eventSourceARN")).endswith(".fifo") else None


def _job(intake: Intake, document: object, given_id: str | None) -> tuple[Queue, NewJob]:
    if not isinstance(document, dict):
        raise InvalidRequest.of("(body)", f"a job must be an object, not {kind_of(document)}")
    fields = dict(document)
    name = fields.pop("queue", None)
    if name is None:
        name = intake.own_queue(fields.get("task"))
    if fields.get("id") is None and given_id is not None:
        fields["id"] = given_id
    queue = intake.queue(name)
    return queue, intake.job(queue, fields, http=False)
