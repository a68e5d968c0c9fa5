"""The description of the HTTP face (OpenAPI 3.1), which docs/openapi.json repeats.

Written by hand: Powertools would make one from pydantic models of every request, and each cold start of the
enqueue function would pay for those.
"""

from __future__ import annotations

from typing import Any

from ..model import MAX_BATCH, CancelStatus, DedupMode, EnqueueStatus, ParentPolicy, State
from .documents import KEY

Json = dict[str, Any]


def description() -> Json:
    """The document, made anew."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MayflyMQ",
            "version": "1",
            "description": "Enqueue jobs and ask about them. Errors are problem documents (RFC 9457). "
            "A job may be delivered more than once, so its task is idempotent.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": {
            "/queues/{queue}/jobs": {"parameters": [_ref("parameters/queue")], "post": _POST_JOBS},
            "/queues/{queue}/jobs/{id}": {
                "parameters": [_ref("parameters/queue"), _ref("parameters/id")],
                "get": _operation(
                    "getJob",
                    "Where a job stands, its result and its errors",
                    {"200": _body("The job", _schema("Job"))},
                    "404",
                ),
                "delete": _operation(
                    "cancelJob",
                    "Cancels a job; one that runs is asked to stop, never interrupted",
                    {
                        "200": _body("It is cancelled, or had ended before", _schema("Cancelled")),
                        "202": _body("It runs, and its worker will see the request", _schema("Cancelled")),
                    },
                    "404",
                ),
            },
            "/queues/{queue}/jobs/{id}/retry": {
                "parameters": [_ref("parameters/queue"), _ref("parameters/id")],
                "post": _operation(
                    "retryJob",
                    "Takes a failed or expired job out of the dead-letter queue and makes it eligible again",
                    {
                        "202": _body("It will run again", _schema("Retried")),
                        "409": _problem(
                            "job-not-dead: it is neither failed nor expired (`state` says what it is). "
                            "dedup-key-taken: another job (`holder`) has its deduplication key."
                        ),
                    },
                    "404",
                ),
            },
            "/queues/{queue}": {
                "parameters": [_ref("parameters/queue")],
                "get": _operation(
                    "getQueue",
                    "A queue at a glance; all zero for one that has had no jobs",
                    {"200": _body("The queue", _schema("Queue"))},
                ),
            },
            "/openapi.json": {
                "get": {
                    "operationId": "getDescription",
                    "summary": "This document",
                    "responses": {"200": _body("This document", {"type": "object"})},
                },
            },
        },
        "components": {
            "parameters": {
                "queue": {
                    "name": "queue",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"},
                },
                "id": {
                    "name": "id",
                    "in": "path",
                    "required": True,
                    "description": "Percent-encoded, slashes too.",
                    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
                },
            },
            "responses": {
                "404": _problem("unknown-job"),
                "413": _problem("payload-too-large, too-many-jobs"),
                "422": _problem(
                    "invalid-job, unknown-task, unsupported, idempotency-key-reused. `errors` names the "
                    "wrong fields; of a list that is refused whole, `jobs` has an answer for each."
                ),
                "503": _problem("store-unreachable: send it again as it is, if it names an id")
                | {"headers": {"Retry-After": {"schema": {"type": "integer"}}}},
                "default": _problem("Any other error, such as malformed-body, unknown-path, wrong-method"),
            },
            "schemas": _SCHEMAS,
        },
    }


def _ref(place: str) -> Json:
    return {"$ref": f"#/components/{place}"}


def _schema(name: str) -> Json:
    return _ref(f"schemas/{name}")


def _body(about: str, schema: Json) -> Json:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _problem(about: str) -> Json:
    return {
        "description": about,
        "content": {"application/problem+json": {"schema": _schema("Problem")}},
    }


def _operation(name: str, summary: str, responses: Json, *errors: str) -> Json:
    common = {status: _ref(f"responses/{status}") for status in (*errors, "422", "503", "default")}
    return {"operationId": name, "summary": summary, "responses": responses | common}


def _object(properties: Json, *required: str, **more: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _number(kind: str, about: str = "", **limits: Any) -> Json:
    return {"type": kind, **limits} | ({"description": about} if about else {})


def _one_of(values: Any, about: str = "") -> Json:
    return {"type": "string", "enum": [str(value) for value in values]} | (
        {"description": about} if about else {}
    )


_TIME = {"type": ["string", "null"], "format": "date-time"}
_COUNT = _number("integer", minimum=0)
_AGE = {"type": ["integer", "null"], "description": "In milliseconds."}
_NAMES = {"type": "array", "items": {"type": "string"}}

_POST_JOBS = _operation(
    "enqueue",
    "Enqueues one job, or up to 1,000 of which each is accepted or refused by itself",
    {
        "202": _body(
            "Accepted; durable as far as the backend is",
            {"oneOf": [_schema("Enqueued"), _schema("EnqueuedList")]},
        )
        | {"headers": {"Location": {"description": "Of one job.", "schema": {"type": "string"}}}},
        "200": _body("A job of this id, or the holder of its key, is there already", _schema("Enqueued")),
    },
    "413",
) | {
    "parameters": [
        {
            "name": KEY,
            "in": "header",
            "description": "Becomes the id of a single job, so that the request can be sent again.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        _schema("NewJob"),
                        {
                            "type": "array",
                            "items": _schema("NewJob"),
                            "minItems": 1,
                            "maxItems": MAX_BATCH,
                        },
                    ]
                }
            }
        },
    },
}

_SCHEMAS: Json = {
    "NewJob": _object(
        {
            "task": {"type": "string", "description": "The name of a task that may be enqueued here."},
            "args": {"type": "array", "description": "Positional arguments."},
            "kwargs": {"type": "object", "description": "Named arguments."},
            "id": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "description": "Unique in its queue; enqueueing it again changes nothing. Made where none is "
                "given.",
            },
            "priority": _number(
                "integer", "Lower first; the task's own, else 5.", minimum=-(2**31), maximum=2**31 - 1
            ),
            "delay": _number("number", "Seconds until it becomes due.", minimum=0),
            "run_at": {"type": "string", "format": "date-time", "description": "When it becomes due."},
            "ttl": _number("number", "Seconds from its creation in which it may start.", exclusiveMinimum=0),
            "timeout": _number("number", "Seconds that one run may take.", exclusiveMinimum=0),
            "max_retries": _number("integer", "How often it runs again when its task fails.", minimum=0),
            "meta": {"type": "object", "additionalProperties": {"type": "string"}},
            "depends_on": _NAMES | {"description": "Ids of jobs of this queue that must end first."},
            "on_parent_failure": _one_of(ParentPolicy),
            "dedup": _object(
                {
                    "key": {"type": "string", "minLength": 1, "maxLength": 255},
                    "mode": _one_of(DedupMode, "The default is simple."),
                    "window": _number("number", "Seconds; throttle needs it.", exclusiveMinimum=0),
                    "extend": {"type": "boolean", "description": "Debounce: the delay starts again."},
                },
                "key",
                additionalProperties=False,
            ),
        },
        "task",
        additionalProperties=False,
    ),
    "Enqueued": _object(
        {
            "id": {"type": "string", "description": "Of the job, or of the one that holds its key."},
            "queue": {"type": "string"},
            "status": _one_of(status for status in EnqueueStatus if status != EnqueueStatus.REFUSED),
            "state": {"type": ["string", "null"], "enum": [*map(str, State), None]},
            "replaced": {"type": "string", "description": "The job that this one replaced (debounce)."},
        },
        "id",
        "queue",
        "status",
        "state",
    ),
    "Refused": _object(
        {
            "id": {"type": "string"},
            "status": {"const": "refused"},
            "problem": _schema("Problem"),
        },
        "status",
        "problem",
    ),
    "EnqueuedList": _object(
        {"jobs": {"type": "array", "items": {"oneOf": [_schema("Enqueued"), _schema("Refused")]}}}, "jobs"
    ),
    "Cancelled": _object(
        {
            "id": {"type": "string"},
            "status": _one_of(status for status in CancelStatus if status != CancelStatus.UNKNOWN),
        },
        "id",
        "status",
    ),
    "Retried": _object(
        {"id": {"type": "string"}, "status": {"const": "retried"}, "state": _one_of(State)},
        "id",
        "status",
        "state",
    ),
    "Error": {
        "type": ["object", "null"],
        "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        "required": ["type", "message"],
    },
    "Job": _object(
        {
            "id": {"type": "string"},
            "queue": {"type": "string"},
            "task": {"type": "string"},
            "state": _one_of(State),
            "priority": _number("integer"),
            "created_at": {"type": "string", "format": "date-time"},
            "run_at": _TIME,
            "claimed_at": _TIME,
            "heartbeat_at": _TIME,
            "finished_at": _TIME,
            "retried_at": _TIME,
            "deliveries": _COUNT | {"description": "How often it was claimed."},
            "failures": _COUNT | {"description": "How often its task failed."},
            "stalls": _COUNT | {"description": "How often its worker vanished."},
            "replays": _COUNT | {"description": "How often it was retried by hand."},
            "max_retries": _COUNT,
            "cancel_requested": {"type": "boolean"},
            "progress": {"type": ["number", "null"]},
            "depends_on": _NAMES,
            "result": {"description": "What its task returned."},
            "error": _schema("Error"),
            "first_error": _schema("Error"),
        },
        "id",
        "queue",
        "task",
        "state",
    ),
    "Queue": _object(
        {
            "name": {"type": "string"},
            "paused": {"type": "boolean"},
            "counts": _object({str(state): _COUNT for state in State}, *map(str, State))
            | {"description": "Jobs by state; each stops at 10,000."},
            "dead_letters": _COUNT,
            "workers": {
                "type": "array",
                "items": _object(
                    {
                        "worker": {"type": "string"},
                        "claims": _COUNT,
                        "heartbeat_age_ms": _COUNT,
                    },
                    "worker",
                    "claims",
                    "heartbeat_age_ms",
                ),
            },
            "oldest_waiting_age_ms": _AGE,
            "oldest_heartbeat_age_ms": _AGE,
        },
        "name",
        "paused",
        "counts",
        "dead_letters",
        "workers",
        "oldest_waiting_age_ms",
        "oldest_heartbeat_age_ms",
    ),
    "Problem": _object(
        {
            "type": {"type": "string", "description": "urn:mayflymq:problem: and the kind of error."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "errors": {
                "type": "array",
                "items": _object(
                    {"field": {"type": "string"}, "detail": {"type": "string"}}, "field", "detail"
                ),
            },
        },
        "type",
        "title",
        "status",
        "detail",
    ),
}
