"""Jobs as JSON documents, in and out: what HTTP requests, plain invokes, SQS messages and EventBridge events
have in common.

A document is JSON in UTF-8, and strict: NaN, Infinity and an object with the same key twice are refused. A
null stands for a field that is not given.

Whether a job can be meant is decided by `Queue.job`, never here: this module turns JSON into its arguments.
No argument and no payload is logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NoReturn

from ..backends.base import Backend
from ..codec import MAX_PAYLOAD_BYTES, decode, head
from ..errors import InvalidJob, PayloadTooLarge, UnknownTask
from ..model import (
    Dedup,
    DedupMode,
    Enqueued,
    EnqueueStatus,
    Job,
    JobError,
    NewJob,
    check_queue,
    check_text,
    duration_ms,
)
from ..queue import Queue
from ..tasks import Registry, registry

Json = dict[str, Any]
FieldError = dict[str, str]

KEY = "Idempotency-Key"
"""The header of a request, or the attribute of a message, that becomes the job's id."""
MAX_TOLD_BYTES = 1500
"""What one refusal says about fields: 1,000 of them fit into the 6 MB that a function may answer."""
MAX_DETAIL_BYTES = 400
MAX_UNKNOWN = 10
"""How many fields that no job has are told."""
MAX_TASKS = 20
"""How many of the tasks that there are are told to who asks for another."""


class InvalidRequest(InvalidJob):
    """A job that cannot be meant. `errors` says for each wrong field what is wrong with it, and may leave out
    the later ones of many: the sender has to hear of it, whatever was sent."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors: list[FieldError] = []
        room = MAX_TOLD_BYTES
        for error in errors:
            told = {"field": error["field"], "detail": head(error["detail"], MAX_DETAIL_BYTES)}
            room -= len(json.dumps(told))
            if room < 0:
                break
            self.errors.append(told)
        text = "; ".join(f"{error['field']}: {error['detail']}" for error in self.errors)
        super().__init__(head(text, MAX_DETAIL_BYTES))

    @classmethod
    def of(cls, field: str, detail: str) -> InvalidRequest:
        """The error about one field."""
        return cls([{"field": field, "detail": detail}])


class Intake:
    """Makes jobs from documents, for one backend and one set of tasks."""

    def __init__(
        self,
        backend: Backend,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        tasks: Registry = registry,
    ) -> None:
        self.backend = backend
        self.max_payload_bytes = max_payload_bytes
        self.tasks = tasks

    def queue(self, name: object) -> Queue:
        """The queue of this name. Raises InvalidRequest for one that cannot be."""
        try:
            return Queue(check_queue(name), self.backend, max_payload_bytes=self.max_payload_bytes)
        except InvalidJob as error:
            raise InvalidRequest.of("queue", str(error)) from error

    def own_queue(self, task: object) -> str:
        """The queue of a task, for a document that names none. Raises InvalidRequest, UnknownTask."""
        if task is None:
            raise InvalidRequest.of("task", "is missing")
        try:
            name = _text(task)
        except InvalidJob as error:
            raise InvalidRequest.of("task", str(error)) from error
        queue: str = self._task(name, http=False).queue
        return queue

    def job(self, queue: Queue, document: object, *, http: bool) -> NewJob:
        """The job that a document asks for; with `http` not one of a task that is marked http=False.

        Raises InvalidRequest, PayloadTooLarge, UnknownTask.
        """
        if not isinstance(document, dict):
            raise InvalidRequest.of("(body)", f"a job must be an object, not {kind_of(document)}")
        errors = [
            {
                "field": ascii(name)[1:-1][:80],
                "detail": f"is no field of a job; these are: {', '.join(FIELDS)}",
            }
            for name in islice((name for name in document if name not in FIELDS), MAX_UNKNOWN)
        ]
        given: Json = {}
        for name, value in document.items():
            if name in FIELDS and value is not None:
                try:
                    given[name] = FIELDS[name](value)
                except InvalidJob as error:
                    errors.append({"field": name, "detail": str(error)})
        if "task" not in given and not any(error["field"] == "task" for error in errors):
            errors.append({"field": "task", "detail": "is missing"})
        if errors:
            raise InvalidRequest(errors)
        task = self._task(given.pop("task"), http=http)
        args, kwargs = given.pop("args", []), given.pop("kwargs", {})
        if "id" in given:
            given["job_id"] = given.pop("id")
        try:
            return queue.job(task, args, kwargs, **given)
        except PayloadTooLarge:
            raise
        except InvalidJob as error:
            raise InvalidRequest(_blame(queue, task, args, kwargs, given)) from error

    def _task(self, name: str, *, http: bool) -> Any:
        task = self.tasks.get(name) if name in self.tasks else None
        if task is None or (http and not task.http):
            # One answer for both: the network learns nothing of the tasks that are kept from it.
            able = [known for known in self.tasks if not http or self.tasks.get(known).http]
            told = ", ".join(able[:MAX_TASKS]) + (", ..." if len(able) > MAX_TASKS else "")
            text = (
                f"no task {ascii(name)[:80]} can be enqueued here; the function's MAYFLYMQ_TASKS decides "
                f"which can: {told or 'none'}"
            )
            raise UnknownTask(head(text, MAX_TOLD_BYTES // 2))  # a problem document says it twice
        return task


def _blame(queue: Queue, task: Any, args: list[object], kwargs: Json, options: Json) -> list[FieldError]:
    """Which fields the library refuses, each in its own words: field by field, with those before it that are
    right, so that of two that contradict each other the later one is named."""
    right: Json = {}

    def complaint(**more: Any) -> str | None:
        try:
            queue.job(task, args, kwargs, **right, **more)
        except InvalidJob as refused:
            return str(refused)
        right.update(more)
        return None

    if message := complaint():
        return [{"field": "kwargs" if kwargs and not args else "args", "detail": message}]
    errors = []
    for field in FIELDS:
        name = "job_id" if field == "id" else field
        if name in options and (message := complaint(**{name: options[name]})):
            errors.append({"field": field, "detail": message})
    return errors


# Keys: what stands for one request, whichever way it comes


class KeyReused(InvalidJob):
    """A key that belongs to another request: its job exists with another task or other arguments."""


def with_key(document: object, key: str | None) -> object:
    """The document with the key as the job's id. Raises InvalidRequest for a key that no id can be, and when
    the document gives another id."""
    if key is None or not isinstance(document, dict):
        return document
    try:
        check_text("a key", key)
    except InvalidJob as error:
        raise InvalidRequest.of(KEY, str(error)) from error
    if document.get("id") not in (None, key):
        raise InvalidRequest.of("id", f"differs from the {KEY}, which becomes the id")
    return {**document, "id": key}


def accepted(queue: Queue, job: NewJob, answer: Enqueued, *, keyed: bool = False) -> Json:
    """The JSON answer to one enqueued job.

    Raises InvalidRequest when the store refused it, and KeyReused when the job that exists under its key is
    not the one that was asked for.
    """
    if answer.status is EnqueueStatus.REFUSED:
        raise InvalidRequest.of("depends_on", answer.reason or "the store refused the job")
    if keyed and answer.status is EnqueueStatus.DUPLICATE_ID:
        stored = queue.get(job.id)
        if stored is not None and _asked(stored) != _asked(job):
            raise KeyReused("a job of this key exists with another task, other arguments or other options")
    deduplicated = answer.status is EnqueueStatus.DEDUPLICATED
    body: Json = {
        "id": answer.holder if deduplicated and answer.holder else job.id,
        "queue": queue.name,
        "status": answer.status.value,
        "state": None if answer.state is None else answer.state.value,
    }
    if answer.status is EnqueueStatus.REPLACED:
        body["replaced"] = answer.holder
    return body


def _asked(job: Job | NewJob) -> tuple[object, ...]:
    # Not when it is due: a delay counts from the moment of the request, and retries move it.
    return (
        job.task,
        job.payload,
        job.priority,
        job.ttl_ms,
        job.timeout_ms,
        job.max_retries,
        frozenset(job.depends_on),
        job.on_parent_failure,
        job.dedup,
    )


# Fields: what JSON has no type for is read here; whether it can be meant is for Queue.job to say


def _as_given(value: object) -> object:
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"must be text, not {kind_of(value)}")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise InvalidJob(f"must be a list, not {kind_of(value)}")
    return value


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise InvalidJob(f"must be an object, not {kind_of(value)}")
    return value


def _instant(value: object) -> datetime:
    try:
        return datetime.fromisoformat(_text(value))
    except ValueError as error:
        if isinstance(error, InvalidJob):
            raise
        raise InvalidJob(f"must be a time in ISO 8601, such as 2030-01-31T08:00:00Z: {error}") from error


def _dedup(value: object) -> Dedup:
    given = _object(value)
    if unknown := set(given) - {"key", "mode", "window", "extend"}:
        raise InvalidJob(
            f"takes key, mode, window and extend, not {', '.join(ascii(name)[:80] for name in unknown)}"
        )
    if not isinstance(extend := given.get("extend", True), bool):
        raise InvalidJob(f"extend must be true or false, not {kind_of(extend)}")
    try:
        mode = DedupMode(given.get("mode", DedupMode.SIMPLE))
    except ValueError:
        raise InvalidJob(f"mode must be one of {', '.join(DedupMode)}") from None
    window = given.get("window")
    window_ms = 0 if window is None else duration_ms("window", window)
    return Dedup(given.get("key"), mode, window_ms, extend)  # type: ignore[arg-type]  # Dedup checks the key


FIELDS: Mapping[str, Callable[[object], object]] = {
    "task": _text,
    "args": _list,
    "kwargs": _object,
    "id": _text,
    "priority": _as_given,
    "delay": _as_given,
    "run_at": _instant,
    "ttl": _as_given,
    "timeout": _as_given,
    "max_retries": _as_given,
    "meta": _object,
    "depends_on": _list,
    "on_parent_failure": _text,
    "dedup": _dedup,
}
"""The fields of a job in JSON. Durations are in seconds; what they mean is what `Queue.enqueue` says."""


def kind_of(value: object) -> str:
    """The JSON name of a value's type, for an error."""
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")


# Text to documents and back


def parse(text: str) -> object:
    """The JSON in a text. Raises ValueError that says what is wrong with it."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _unique(pairs: list[tuple[str, object]]) -> Json:
    # Which of two values is meant is anybody's guess, and parsers on the way may have guessed otherwise.
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the key {ascii(name)[:80]} twice")
        found[name] = value
    return found


def job_json(job: Job) -> Json:
    """A job as JSON: where it stands, its result and errors, times in UTC. No arguments and no tracebacks."""
    return {
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "state": job.state.value,
        "priority": job.priority,
        "created_at": _time(job.created_at),
        "run_at": _time(job.run_at),
        "claimed_at": _time(job.claimed_at),
        "heartbeat_at": _time(job.heartbeat_at),
        "finished_at": _time(job.finished_at),
        "retried_at": _time(job.retried_at),
        "deliveries": job.deliveries,
        "failures": job.failures,
        "stalls": job.stalls,
        "replays": job.replays,
        "max_retries": job.max_retries,
        "cancel_requested": job.cancel_requested,
        "progress": job.progress,
        "depends_on": list(job.depends_on),
        "result": None if job.result is None else decode(job.result),
        "error": _error(job.error),
        "first_error": _error(job.first_error),
    }


def _error(error: JobError | None) -> Json | None:
    return None if error is None else {"type": error.type, "message": error.message}


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:  # a job may be due in a year that ISO 8601 has no four digits for
        return "9999-12-31T23:59:59.999Z"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
