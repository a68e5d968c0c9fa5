"""The HTTP face of the queues: requests in, jobs and problem documents (RFC 9457) out.

| request | answer |
|---|---|
| `POST /queues/{queue}/jobs` | 202, the id, a Location; 200 and `duplicate_id` when the id exists (D6) |
| `GET /queues/{queue}/jobs/{id}` | the job: state, result, error, times |
| `DELETE /queues/{queue}/jobs/{id}` | cancels it: 200, or 202 while its worker has yet to see it |
| `POST /queues/{queue}/jobs/{id}/retry` | 202, out of the dead-letter queue (A2); 409 when it is not there |
| `GET /queues/{queue}` | the queue at a glance; all zero for one that has had no jobs |
| `GET /openapi.json` | the description of all this |

The events of API Gateway (HTTP API and REST API), of a function URL and of a load balancer are read alike.
The body of a POST is one job, or a list of 1 to 1,000 of which each is accepted or refused by itself (G4);
`documents` says what a job looks like. It is JSON whatever its Content-Type says. `Idempotency-Key` becomes
the id of a single job; the same key with another body is refused.

An id in a path is percent-encoded. HTTP APIs decode the path before they match it, and end it at a `?`: an id
that holds one, or that ends in `/retry`, is to be encoded twice there.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from aws_lambda_powertools.event_handler import (
    ALBResolver,
    APIGatewayHttpResolver,
    APIGatewayRestResolver,
    LambdaFunctionUrlResolver,
    Response,
)
from aws_lambda_powertools.event_handler.api_gateway import ApiGatewayResolver
from aws_lambda_powertools.event_handler.exceptions import NotFoundError

from ..errors import BackendError, InvalidJob, PayloadTooLarge, UnknownTask, Unsupported
from ..model import MAX_BATCH, CancelStatus, EnqueueStatus, Job, NewJob, RetryStatus, check_text
from ..queue import Queue
from . import documents
from .documents import Intake, InvalidRequest, Json, KeyReused, accepted, job_json

log = logging.getLogger("mayflymq.http")

RETRY_AFTER_SECONDS = 1
PROBLEM = "application/problem+json"


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
        case KeyReused():
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "idempotency-key-reused",
                f"The {documents.KEY} belongs to another request",
                f"{error}; nothing was changed",
                extra={"errors": [{"field": documents.KEY, "detail": "was used with another body"}]},
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
        case Unsupported():
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "unsupported", "The backend cannot do this", str(error)
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
    """Answers HTTP events. Made once a container; `respond` takes one request."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.routes: list[tuple[str, str, Callable[..., Response[str]]]] = [
            ("POST", "/queues/<queue>/jobs", self._post_jobs),
            ("GET", "/queues/<queue>/jobs/<job_id>", self._get_job),
            ("DELETE", "/queues/<queue>/jobs/<job_id>", self._cancel_job),
            ("POST", "/queues/<queue>/jobs/<job_id>/retry", self._retry_job),
            ("GET", "/queues/<queue>", self._get_queue),
            ("GET", "/openapi.json", self._get_description),
        ]
        self._resolvers = {name: self._with_routes(make()) for name, make in FLAVOURS.items()}

    def respond(self, event: Json, context: object) -> Json:
        """The response to an HTTP event. Raises InvalidJob for a kind of event that is not served."""
        flavour = flavour_of(event)
        resolver = self._resolvers[flavour]
        # Events written by hand for a test leave the stage out; Powertools needs it.
        event = {**event, "requestContext": {"stage": "$default", **event["requestContext"]}}
        if flavour == "rest-api":
            event["path"] = _routed(event)
        response: Json = resolver.resolve(event, context)  # type: ignore[arg-type]  # only handed through
        return response

    def _with_routes(self, app: ApiGatewayResolver) -> ApiGatewayResolver:
        for method, rule, answer in self.routes:
            app.route(rule, method=method)(_with_event(app, answer))

        def no_route(_: Exception) -> Response[str]:
            path = app.current_event.path
            allowed = sorted({method for method, rule, _ in self.routes if _pattern(rule).match(path)})
            return _refuse(_wrong_method(allowed) if allowed else _no_such_route())

        app.exception_handler(NotFoundError)(no_route)
        app.exception_handler(Exception)(_refuse)
        return app

    def _post_jobs(self, event: Any, queue: str) -> Response[str]:
        target = self.intake.queue(unquote(queue))
        key = _idempotency_key(event)
        body = _parse(event)
        if isinstance(body, list):
            if key is not None:
                raise InvalidRequest.of(
                    documents.KEY, "stands for one job: give the jobs of a list their own ids"
                )
            return self._post_list(target, body)
        job = self.intake.job(target, documents.with_key(body, key), http=True)
        answer = target.enqueue_jobs([job])[0]
        body = accepted(target, job, answer, keyed=key is not None)
        created = answer.status in (EnqueueStatus.CREATED, EnqueueStatus.REPLACED)
        location = f"{_prefix(event)}/queues/{target.name}/jobs/{quote(body['id'], safe='')}"
        return _json(HTTPStatus.ACCEPTED if created else HTTPStatus.OK, body, {"Location": location})

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
                made.append(self.intake.job(queue, item, http=True))
            except (InvalidJob, UnknownTask) as error:
                made.append(problem_of(error))
        written = iter(queue.enqueue_jobs([job for job in made if isinstance(job, NewJob)]))
        answers: list[Json] = []
        for item, job in zip(items, made, strict=True):
            try:
                if isinstance(job, Problem):
                    raise job
                answers.append(accepted(queue, job, next(written)))
            except (InvalidJob, Problem) as error:
                refused = {"status": "refused", "problem": problem_of(error).document()}
                answers.append({**_named(item), **refused})
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

    def _retry_job(self, event: Any, queue: str, job_id: str) -> Response[str]:
        target, job = self._find(event, queue, job_id)
        answer = target.retry(job.id)
        state = None if answer.state is None else answer.state.value
        match answer.status:
            case RetryStatus.RETRIED:
                body = {"id": job.id, "status": answer.status.value, "state": state}
                return _json(HTTPStatus.ACCEPTED, body)
            case RetryStatus.NOT_DEAD:
                raise Problem(
                    HTTPStatus.CONFLICT,
                    "job-not-dead",
                    "The job is not in the dead-letter queue",
                    "Only a job that is failed or expired can be retried.",
                    extra={"state": state},
                )
            case RetryStatus.KEY_TAKEN:
                raise Problem(
                    HTTPStatus.CONFLICT,
                    "dedup-key-taken",
                    "Another job holds the deduplication key",
                    "The job stays where it is while another one holds its deduplication key.",
                    extra={"holder": answer.holder},
                )
            case RetryStatus.UNKNOWN:  # removed since
                raise _no_such_job()

    def _get_queue(self, event: Any, queue: str) -> Response[str]:
        return _json(HTTPStatus.OK, asdict(self.intake.queue(unquote(queue)).info()))

    def _get_description(self, event: Any) -> Response[str]:
        from .openapi import description  # asked for by people, so no cold start pays for it

        return _json(HTTPStatus.OK, description())

    def _find(self, event: Any, queue: str, job_id: str) -> tuple[Queue, Job]:
        target = self.intake.queue(unquote(queue))
        for candidate in _candidates(event, job_id):
            try:
                job = target.get(check_text("a job id", candidate))
            except InvalidJob:  # no job can have this id
                continue
            if job is not None:
                return target, job
        raise _no_such_job()


# Reading requests


def is_http(event: object) -> bool:
    """Whether an event came through HTTP."""
    return isinstance(event, dict) and isinstance(event.get("requestContext"), dict)


def flavour_of(event: Json) -> str:
    """Which of FLAVOURS an HTTP event has. Raises InvalidJob for one that has none."""
    about = event["requestContext"]
    if isinstance(about.get("http"), dict):
        return "function-url" if ".lambda-url." in str(about.get("domainName")) else "http-api"
    if isinstance(about.get("elb"), dict):
        return "alb"
    if "httpMethod" in event:
        return "rest-api"
    raise InvalidJob(f"this kind of HTTP event is not served; these are: {', '.join(FLAVOURS)}")


def _routed(event: Json) -> str:
    """The path of an event of payload format 1.0 without what stands before the API's own paths: the base
    path of a custom domain (for an HTTP API its stage too). The route that was matched says which part that
    is."""
    path, named = str(event["path"]), event.get("pathParameters") or {}
    own = re.sub(r"\{([^{}+]+)\+?\}", lambda name: str(named.get(name[1])), str(event.get("resource")))
    for slash in re.finditer("/", path):
        rest = path[slash.start() :]
        if own in (rest, unquote(rest)):
            return rest
    return path


def _pattern(rule: str) -> re.Pattern[str]:
    """A route's pattern. An id may hold any character, decoded slashes too, so it takes all that is left."""
    named = re.escape(rule).replace("<queue>", "(?P<queue>[^/]+)").replace("<job_id>", "(?P<job_id>.+)")
    return re.compile(rf"^{named}\Z", re.DOTALL)


class _Patterns:
    """Powertools' own patterns leave out characters that an id may hold."""

    @staticmethod
    def _compile_regex(rule: str, base_regex: str = "") -> re.Pattern[str]:
        return _pattern(rule)


class _HttpApi(_Patterns, APIGatewayHttpResolver):
    pass


class _RestApi(_Patterns, APIGatewayRestResolver):
    pass


class _FunctionUrl(_Patterns, LambdaFunctionUrlResolver):
    pass


class _Alb(_Patterns, ALBResolver):
    pass


FLAVOURS: Mapping[str, Callable[[], ApiGatewayResolver]] = {
    # Their debug mode, which a variable of Powertools switches on, prints events, and with them arguments.
    "http-api": lambda: _HttpApi(debug=False),
    "rest-api": lambda: _RestApi(debug=False),
    "function-url": lambda: _FunctionUrl(debug=False),
    "alb": lambda: _Alb(debug=False),
}
"""The kinds of HTTP events: an HTTP API with payload format 2.0, a REST API (or an HTTP API with format 1.0),
a function URL, an application load balancer with or without multi-value headers."""


def _with_event(
    app: ApiGatewayResolver, answer: Callable[..., Response[str]]
) -> Callable[..., Response[str]]:
    def route(**names: str) -> Response[str]:
        return answer(app.current_event, **names)

    return route


def _candidates(event: Any, job_id: str) -> Iterable[str]:
    """What the id in a path can mean, the likelier reading first; the other one counts where that names no
    job.

    HTTP APIs hand the path over decoded, so it is the id as it stands; REST APIs, function URLs and load
    balancers as the client sent it. Emulators of one take after another.
    """
    readings = (job_id, unquote(job_id, errors="surrogateescape"))  # what is no UTF-8 names no job
    decoded = flavour_of(event.raw_event) == "http-api" or event.get("version") == "1.0"
    return dict.fromkeys(readings if decoded else readings[::-1])


def _prefix(event: Any) -> str:
    """What stands before the path in the address that the client used: the stage, where it is part of it."""
    whole = event.get("rawPath") or event["requestContext"].get("path") or event.path
    return str(whole.removesuffix(event.path)) if whole.endswith(event.path) else ""


def _idempotency_key(event: Any) -> str | None:
    name = documents.KEY.lower()
    value = event.headers.get(name)
    if value is None and event.get("multiValueHeaders"):
        # As HTTP APIs do where the header comes more than once.
        values = event.multi_value_headers.get(name)
        value = ",".join(values) if values else None
    if value is None:
        return None
    # The header's standard form is a quoted string; many clients send it bare. Both mean the same key.
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', value)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else str(value)


def _named(item: object) -> Json:
    """The id that an item of a list gives, where it could be one, so that its answer can be told by it."""
    try:
        return {"id": check_text("an id", item["id"])} if isinstance(item, dict) and "id" in item else {}
    except InvalidJob:
        return {}


def _parse(event: Any) -> object:
    """The body as JSON. Raises the 400 problem."""
    body = event.get("body")
    if not body:
        raise _malformed("The request has no body.")
    try:
        if event.get("isBase64Encoded"):
            body = base64.b64decode(body, validate=True).decode("utf-8")
        return documents.parse(body)
    except ValueError as error:
        raise _malformed(f"The body is not JSON that can be read: {error}.") from error


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
