"""The HTTP face of the queues: requests in, jobs and problem documents (RFC 9457) out.

| request | answer |
|---|---|
| `POST /queues/{queue}/jobs` | 202, the id, a Location; 200 and `duplicate_id` when the id exists (D6) |
| `GET /queues/{queue}/jobs/{id}` | the job: state, result, error, times |
| `DELETE /queues/{queue}/jobs/{id}` | cancels it: 200, or 202 while its worker has yet to see it |
| `GET /queues/{queue}` | the queue at a glance; all zero for one that has had no jobs |

The body of a POST is one job, or a list of 1 to 1,000 of which each is accepted or refused by itself (G4).
It is JSON whatever its Content-Type says, in UTF-8, and strict: NaN, Infinity and an object with the same
key twice are refused. A null stands for a field that is not given. `Idempotency-Key` becomes the id of a
single job; the same key with another task or other arguments is refused.

Whether a job can be meant is decided by `Queue.job`, never here: this module turns JSON into its arguments,
and what it raises into problem documents. No argument and no payload is logged.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import ApiGatewayResolver
from aws_lambda_powertools.event_handler.exceptions import NotFoundError

from ..backends.base import Backend
from ..codec import MAX_PAYLOAD_BYTES, decode
from ..errors import BackendError, InvalidJob, PayloadTooLarge, UnknownTask
from ..model import (
    MAX_BATCH,
    CancelStatus,
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

log = logging.getLogger("mayflymq.http")

Json = dict[str, Any]
FieldError = dict[str, str]

RETRY_AFTER_SECONDS = 1
PROBLEM = "application/problem+json"


class InvalidRequest(InvalidJob):
    """A job that cannot be meant. `errors` says for each wrong field what is wrong with it."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(f"{error['field']}: {error['detail']}" for error in errors))
        self.errors = list(errors)

    @classmethod
    def of(cls, field: str, detail: str) -> InvalidRequest:
        """The error about one field."""
        return cls([{"field": field, "detail": detail}])


class Problem(Exception):
    """What a problem document says, with its extension members and the response's headers."""

    def __init__(
        self,
        status: HTTPStatus,
        kind: str,
        title: str,
        detail: str,
        *,
        extra: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.extra = extra or {}
        self.headers = headers or {}

    def document(self) -> Json:
        """The problem document. Its type is a name, not an address: nothing has to be served there."""
        return {
            "type": f"urn:mayflymq:problem:{self.kind}",
            "title": self.title,
            "status": int(self.status),
            "detail": self.detail,
            **self.extra,
        }


def problem_of(error: Exception) -> Problem:
    """The problem that an error is to the client. What nobody foresaw tells nothing about the inside."""
    match error:
        case Problem():
            return error
        case PayloadTooLarge():
            return Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "payload-too-large",
                "The payload is too large",
                str(error),
            )
        case UnknownTask():
            errors = [{"field": "task", "detail": str(error)}]
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "unknown-task",
                "No such task",
                str(error),
                extra={"errors": errors},
            )
        case InvalidJob():
            errors = error.errors if isinstance(error, InvalidRequest) else []
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-job",
                "The job cannot be accepted",
                str(error),
                extra={"errors": errors},
            )
        case BackendError(transient=True):
            return Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "store-unreachable",
                "The store cannot be reached",
                "The store did not answer, so the change may or may not have been made. A request that names "
                "a job's id can be sent again as it is.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        case _:
            return Problem(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "internal-error",
                "The request could not be handled",
                "The log of the function says why.",
            )


class Api:
    """Answers events over one backend. Made once a container; `respond` and `enqueue` each take one
    request."""

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
        # Another flavour of HTTP event is another resolver here, and its line in `resolver_for`.
        self.resolvers: dict[str, ApiGatewayResolver] = {"http-v2": self._routes(_HttpV2())}

    # Requests

    def respond(self, event: Json, context: object) -> Json:
        """The response to an HTTP event."""
        resolver = self.resolvers[flavour_of(event)]
        # Events written by hand for a test leave the stage out; Powertools needs it.
        event = {**event, "requestContext": {"stage": "$default", **event["requestContext"]}}
        response: Json = resolver.resolve(event, context)  # type: ignore[arg-type]  # only handed through
        return response

    def enqueue(self, event: object) -> Json:
        """Enqueues the job of a plain invoke: a POST's body with its `queue` (if none, the task's own).

        Returns what a POST answers. Raises InvalidJob, UnknownTask, BackendError, so that the invocation
        fails and its caller gets errorType and errorMessage. Who may invoke the function is one of the
        program's own parts, so tasks with http=False are taken too.
        """
        if not isinstance(event, dict):
            raise InvalidRequest.of("(body)", f"must be an object, not {_kind(event)}")
        fields = dict(event)
        name, task = fields.pop("queue", None), fields.get("task")
        if name is None and isinstance(task, str) and task in self.tasks:
            name = self.tasks.get(task).queue
        queue = self._queue(name)
        job = self._job(queue, fields, http=False)
        return _accepted(queue, job, queue.enqueue_jobs([job])[0])

    # Routes

    def _routes(self, app: ApiGatewayResolver) -> ApiGatewayResolver:
        routes: list[tuple[str, str, Callable[..., Response[str]]]] = [
            ("POST", "/queues/<queue>/jobs", self._post_jobs),
            ("GET", "/queues/<queue>/jobs/<job_id>", self._get_job),
            ("DELETE", "/queues/<queue>/jobs/<job_id>", self._cancel_job),
            ("GET", "/queues/<queue>", self._get_queue),
        ]
        for method, rule, answer in routes:
            app.route(rule, method=method)(_with_event(app, answer))

        def no_route(_: Exception) -> Response[str]:
            path = app.current_event.path
            allowed = sorted({method for method, rule, _ in routes if _pattern(rule).match(path)})
            return _refuse(_wrong_method(allowed) if allowed else _no_such_route())

        app.exception_handler(NotFoundError)(no_route)
        app.exception_handler(Exception)(_refuse)
        return app

    def _post_jobs(self, event: Any, queue: str) -> Response[str]:
        target = self._queue(unquote(queue))
        key = _idempotency_key(event)
        body = _parse(event)
        if isinstance(body, list):
            if key is not None:
                raise InvalidRequest.of(
                    "Idempotency-Key", "stands for one job: give the jobs of a list their own ids"
                )
            return self._post_list(target, body)
        job = self._job(target, _with_key(body, key), http=True)
        answer = target.enqueue_jobs([job])[0]
        if key is not None and answer.status is EnqueueStatus.DUPLICATE_ID:
            _check_same(job, target.get(job.id))
        accepted = _accepted(target, job, answer)
        created = answer.status in (EnqueueStatus.CREATED, EnqueueStatus.REPLACED)
        stage = event.raw_path.removesuffix(event.path)
        location = f"{stage}/queues/{target.name}/jobs/{quote(accepted['id'], safe='')}"
        return _json(HTTPStatus.ACCEPTED if created else HTTPStatus.OK, accepted, {"Location": location})

    def _post_list(self, queue: Queue, items: list[object]) -> Response[str]:
        if not items:
            raise InvalidRequest.of("(body)", "a list must hold at least one job")
        if len(items) > MAX_BATCH:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-many-jobs",
                "Too many jobs in one request",
                f"{len(items)} jobs in one list; the limit is {MAX_BATCH}: send them in parts.",
            )
        # Every job is looked at before the first is written.
        made: list[NewJob | Problem] = []
        for item in items:
            try:
                made.append(self._job(queue, item, http=True))
            except (InvalidJob, UnknownTask) as error:
                made.append(problem_of(error))
        written = iter(queue.enqueue_jobs([job for job in made if isinstance(job, NewJob)]))
        answers: list[Json] = []
        for item, job in zip(items, made, strict=True):
            try:
                if isinstance(job, Problem):
                    raise job
                answers.append(_accepted(queue, job, next(written)))
            except (InvalidJob, Problem) as error:
                named = (
                    {"id": item["id"]} if isinstance(item, dict) and isinstance(item.get("id"), str) else {}
                )
                answers.append({**named, "status": "refused", "problem": problem_of(error).document()})
        if all(answer["status"] == "refused" for answer in answers):
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid-job",
                "No job of the list can be accepted",
                "Each entry of jobs says why.",
                extra={"jobs": answers},
            )
        return _json(HTTPStatus.ACCEPTED, {"jobs": answers})

    def _get_job(self, event: Any, queue: str, job_id: str) -> Response[str]:
        return _json(HTTPStatus.OK, job_json(self._find(event, queue, job_id)[1]))

    def _cancel_job(self, event: Any, queue: str, job_id: str) -> Response[str]:
        target, job = self._find(event, queue, job_id)
        status = target.cancel(job.id).status
        if status is CancelStatus.UNKNOWN:  # removed since
            raise _no_such_job()
        waits = status is CancelStatus.REQUESTED
        return _json(HTTPStatus.ACCEPTED if waits else HTTPStatus.OK, {"id": job.id, "status": status.value})

    def _get_queue(self, event: Any, queue: str) -> Response[str]:
        return _json(HTTPStatus.OK, asdict(self._queue(unquote(queue)).info()))

    def _find(self, event: Any, queue: str, job_id: str) -> tuple[Queue, Job]:
        target = self._queue(unquote(queue))
        for candidate in _candidates(event, job_id):
            try:
                job = target.get(check_text("a job id", candidate))
            except InvalidJob:  # no job can have this id
                continue
            if job is not None:
                return target, job
        raise _no_such_job()

    # Jobs

    def _queue(self, name: object) -> Queue:
        try:
            return Queue(check_queue(name), self.backend, max_payload_bytes=self.max_payload_bytes)
        except InvalidJob as error:
            raise InvalidRequest.of("queue", str(error)) from error

    def _job(self, queue: Queue, body: object, *, http: bool) -> NewJob:
        """The job that a JSON object asks for. Raises InvalidRequest, PayloadTooLarge, UnknownTask."""
        if not isinstance(body, dict):
            raise InvalidRequest.of("(body)", f"a job must be an object, not {_kind(body)}")
        errors = [
            {
                "field": ascii(name)[1:-1][:80],
                "detail": f"is no field of a job; these are: {', '.join(FIELDS)}",
            }
            for name in body
            if name not in FIELDS
        ]
        given: Json = {}
        for name, value in body.items():
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
            # One answer for both, and no list of names: the network learns nothing of what is kept from it.
            raise UnknownTask(f"no task {ascii(name)[:80]} can be enqueued here")
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


# Fields: what JSON has no type for is read here; whether it can be meant is for Queue.job to say


def _as_given(value: object) -> object:
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"must be text, not {_kind(value)}")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise InvalidJob(f"must be a list, not {_kind(value)}")
    return value


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise InvalidJob(f"must be an object, not {_kind(value)}")
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
        raise InvalidJob(f"extend must be true or false, not {_kind(extend)}")
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


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")


# Reading requests


def is_http(event: object) -> bool:
    """Whether an event came through HTTP; what did not is a plain invoke."""
    return isinstance(event, dict) and isinstance(event.get("requestContext"), dict)


def flavour_of(event: Json) -> str:
    """Which kind of HTTP event this is. Raises InvalidJob for one that is not served."""
    if isinstance(event["requestContext"].get("http"), dict):
        return "http-v2"
    raise InvalidJob("this kind of HTTP event is not served: use an HTTP API with payload format 2.0")


def _pattern(rule: str) -> re.Pattern[str]:
    """A route's pattern. An id may hold any character, decoded slashes too, so it takes all that is left."""
    named = rule.replace("<queue>", "(?P<queue>[^/]+)").replace("<job_id>", "(?P<job_id>.+)")
    return re.compile(rf"^{named}\Z", re.DOTALL)


class _HttpV2(APIGatewayHttpResolver):
    """HTTP API, payload format 2.0. Powertools' own patterns leave out characters that an id may hold."""

    def __init__(self) -> None:
        super().__init__(debug=False)  # its debug mode prints events, and with them arguments

    @staticmethod
    def _compile_regex(rule: str, base_regex: str = "") -> re.Pattern[str]:
        return _pattern(rule)


def _with_event(
    app: ApiGatewayResolver, answer: Callable[..., Response[str]]
) -> Callable[..., Response[str]]:
    def route(**names: str) -> Response[str]:
        return answer(app.current_event, **names)

    return route


def _candidates(event: Any, job_id: str) -> Iterable[str]:
    """What the id in a path can mean. HTTP APIs hand the path over decoded, so it is the id as it stands;
    emulators of them, and function URLs, hand it over encoded. The second reading counts where the first
    names no job."""
    return dict.fromkeys((job_id, unquote(job_id)))


def _idempotency_key(event: Any) -> str | None:
    value = event.headers.get("idempotency-key")
    if value is None:
        return None
    # The header's standard form is a quoted string; many clients send it bare. Both mean the same key.
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', value)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value


def _with_key(body: object, key: str | None) -> object:
    if key is None or not isinstance(body, dict):
        return body
    if body.get("id") not in (None, key):
        raise InvalidRequest.of("id", "differs from the Idempotency-Key, which becomes the id")
    return {**body, "id": key}


def _check_same(job: NewJob, stored: Job | None) -> None:
    if stored is not None and (stored.task, stored.payload) != (job.task, job.payload):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "idempotency-key-reused",
            "The Idempotency-Key belongs to another request",
            "A job of this key exists with another task or other arguments; nothing was changed.",
            extra={"errors": [{"field": "Idempotency-Key", "detail": "was used with another body"}]},
        )


def _parse(event: Any) -> object:
    """The body as JSON. Raises the 400 problem."""
    body = event.get("body")
    if not body:
        raise _malformed("The request has no body.")
    try:
        if event.get("isBase64Encoded"):
            body = base64.b64decode(body, validate=True).decode("utf-8")
        return json.loads(body, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise _malformed("The body is not JSON that can be read: it is nested too deeply.") from None
    except ValueError as error:
        raise _malformed(f"The body is not JSON that can be read: {error}.") from error


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


# Answers


def _json(status: HTTPStatus, body: Json, headers: Mapping[str, str] | None = None) -> Response[str]:
    return Response(
        int(status),
        "application/json",
        json.dumps(body, separators=(",", ":")),
        {"Cache-Control": "no-store", **(headers or {})},
    )


def _refuse(error: Exception) -> Response[str]:
    problem = problem_of(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("a request failed", extra={"status": int(problem.status)}, exc_info=error)
    return Response(
        int(problem.status),
        PROBLEM,
        json.dumps(problem.document(), separators=(",", ":")),
        {"Cache-Control": "no-store", **problem.headers},
    )


def _malformed(detail: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, "malformed-body", "The body cannot be read", detail)


def _no_such_job() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "unknown-job", "No such job", "The queue holds no job of this id.")


def _no_such_route() -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, "unknown-path", "No such path", "Nothing is served under this path.")


def _wrong_method(allowed: list[str]) -> Problem:
    allow = ", ".join(allowed)
    return Problem(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "wrong-method",
        "The method is not allowed here",
        f"This path takes {allow}.",
        headers={"Allow": allow},
    )


def _accepted(queue: Queue, job: NewJob, answer: Enqueued) -> Json:
    """The JSON answer to one enqueued job. Raises InvalidRequest when the store refused it."""
    if answer.status is EnqueueStatus.REFUSED:
        raise InvalidRequest.of("depends_on", answer.reason or "the store refused the job")
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
