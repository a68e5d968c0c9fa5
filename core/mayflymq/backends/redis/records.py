"""What goes to the scripts and comes back: jobs, schedules and a queue's numbers as bytes and JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ... import codec
from ...errors import CorruptRecord, MayflyError
from ...lifecycle import event_of
from ...model import (
    FORMAT,
    Backoff,
    Beat,
    CatchUp,
    ClaimRequest,
    Complete,
    Counts,
    Dedup,
    DedupMode,
    Defer,
    Dependant,
    Enqueued,
    EnqueueStatus,
    Fail,
    Job,
    NewJob,
    ParentPolicy,
    QueueInfo,
    Retry,
    Schedule,
    Settle,
    Settled,
    Settlement,
    State,
    StoredSchedule,
    WorkerInfo,
)
from .. import base

PACK_FROM = 1024
"""Payloads of at least this many bytes are compressed, where that makes them smaller."""

JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_STATES = {state.value: state for state in State}
_POLICIES = {policy.value: policy for policy in ParentPolicy}


def texts(values: Iterable[bytes]) -> list[str]:
    """Words of an answer."""
    return [value.decode() for value in values]


# Enqueue


def new_job(job: NewJob) -> tuple[list[Any], bytes]:
    """What the enqueue script is asked for one job, and the payload as it is stored."""
    payload, packed = job.payload, False
    if len(payload) >= PACK_FROM:
        smaller = zlib.compress(payload, 1)
        if len(smaller) < len(payload):
            payload, packed = smaller, True
    dedup = job.dedup
    window_ms, extend = (dedup.window_ms, dedup.extend) if dedup else (0, True)
    spec = _spec(
        job.task, packed, job.max_retries, job.backoff, job.ttl_ms, job.timeout_ms, window_ms, extend
    )
    asked: list[Any] = [job.id, spec, job.priority, job.delay_ms]
    if job.run_at is not None or job.depends_on or dedup or job.on_parent_failure is not ParentPolicy.FAIL:
        asked += [
            "" if job.run_at is None else job.run_at,
            JSON.encode(job.depends_on) if job.depends_on else "",
            job.on_parent_failure,
        ]
        asked += [dedup.key, dedup.mode, window_ms, int(extend)] if dedup else []
    return asked, payload


@lru_cache(256)
def _spec(
    task: str,
    packed: bool,
    max_retries: int,
    backoff: Backoff,
    ttl_ms: int | None,
    timeout_ms: int | None,
    window_ms: int,
    extend: bool,
) -> str:
    """What a job is told once and no transition needs, as JSON."""
    steps = [backoff.delays_ms, backoff.factor, backoff.cap_ms, backoff.jitter]
    return JSON.encode([task, packed, max_retries, steps, ttl_ms, timeout_ms, window_ms, extend])


@lru_cache(256)
def _read_spec(spec: bytes) -> tuple[str, bool, int, Backoff, int | None, int | None, int, bool]:
    task, packed, max_retries, steps, *rest = json.loads(spec)
    delays_ms, factor, cap_ms, jitter = steps
    return task, packed, max_retries, Backoff(tuple(delays_ms), factor, cap_ms, jitter), *rest


def enqueued(job: NewJob, answer: str | list[Any]) -> Enqueued:
    """The script's answer about one job."""
    if isinstance(answer, str):
        return Enqueued(job.id, EnqueueStatus.CREATED, _STATES[answer])
    status, state, holder, unknown, children = answer
    return Enqueued(
        job.id,
        EnqueueStatus(status),
        State(state) if state else None,
        holder or None,
        _refusal(job, unknown) if status == "refused" else None,
        dependants(children),
    )


def _refusal(job: NewJob, unknown: str) -> str:
    return base.unknown_parent(job, unknown) if unknown else f"the key of job {job.id} holds something else"


def dependants(flat: list[Any]) -> tuple[Dependant, ...]:
    """The children in an answer: id, state, ..."""
    if not flat:  # also {}, as which Lua writes an empty list in JSON
        return ()
    words = [word.decode() if isinstance(word, bytes) else word for word in flat]
    return tuple(
        Dependant(job_id, State(state)) for job_id, state in zip(words[::2], words[1::2], strict=True)
    )


# Claims


def request(asked: ClaimRequest) -> list[Any]:
    """What a script is asked for a claim."""
    return [asked.limit, asked.token, asked.worker, asked.stale_after_ms]


def beat(each: Beat) -> list[Any]:
    """What the heartbeat script is asked for one claim."""
    asked = [each.claim.job_id, each.claim.token, each.stale_after_ms]
    return asked if each.progress is None else [*asked, repr(float(each.progress))]


def settle(each: Settle, results: list[bytes]) -> list[Any]:
    """What the settle script is asked for one claim; its result, where it has one, is added to `results`."""
    outcome = each.outcome
    where = 0
    if isinstance(outcome, Complete) and outcome.result is not None:
        results.append(outcome.result)
        where = 1 + len(results)
    asked: list[Any] = [each.claim.job_id, each.claim.token, event_of(outcome), where]
    if isinstance(outcome, Retry | Defer | Fail):
        asked.append(0 if isinstance(outcome, Fail) else outcome.delay_ms)
        asked.append("" if isinstance(outcome, Defer) else codec.encode_error(outcome.error).decode("ascii"))
    return asked


def settled(answers: bytes) -> list[Settled]:
    """The settle script's answer about the claims."""
    if answers == _USUAL:
        return [Settled(Settlement.APPLIED)]
    return [Settled(Settlement(status), dependants(children)) for status, children in json.loads(answers)]


_USUAL = b'[["applied",{}]]'

# Jobs


def fields_of(record: list[bytes]) -> dict[str, Any]:
    """The fields of a job's record; what else the job has stands beside it. None of one that is no object."""
    try:
        fields = json.loads(record[0])
    except UnicodeDecodeError:
        fields = json.loads(record[0].decode("utf-8", "replace"))
        if isinstance(fields, dict):
            fields["format"] = "not UTF-8"
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {}


def job(queue: str, fields: dict[str, Any], found: Sequence[bytes]) -> Job:
    """The job in what `whole_job` of the scripts answers, its record's `fields` first. Raises CorruptRecord
    naming it when it cannot be read."""
    name = fields.get("id", "?")
    try:
        version = int(fields["format"])
        if version > FORMAT:
            raise CorruptRecord(
                f"it has format {version}, this version reads up to {FORMAT}: update mayflymq"
            )
        return _read(queue, fields, version, *found[1:])
    except (
        MayflyError,
        LookupError,
        ArithmeticError,
        ValueError,
        TypeError,
        RecursionError,
        zlib.error,
    ) as error:
        raise CorruptRecord(
            f"job {name} in {queue} cannot be read: {type(error).__name__} {error}"
        ) from error


def _read(
    queue: str,
    record: dict[str, str],
    version: int,
    spec: bytes,
    payload: bytes,
    error: bytes | None = None,
    first_error: bytes | None = None,
    result: bytes | None = None,
) -> Job:
    task, packed, max_retries, backoff, ttl_ms, timeout_ms, window_ms, extend = _read_spec(spec)
    get = record.get
    key, progress, parents = get("dedup_key"), get("progress"), get("depends_on")
    return Job(
        id=record["id"],
        queue=queue,
        task=task,
        payload=zlib.decompress(payload) if packed else payload,
        state=_STATES[record["state"]],
        priority=int(record["priority"]),
        created_at=int(record["created_at"]),
        run_at=_int(get("run_at")),
        ttl_ms=ttl_ms,
        timeout_ms=timeout_ms,
        max_retries=max_retries,
        backoff=backoff,
        depends_on=() if parents is None else tuple(json.loads(parents)),
        on_parent_failure=_POLICIES[get("on_parent_failure", "fail")],
        dedup=None if key is None else Dedup(key, DedupMode(record["dedup_mode"]), window_ms, extend),
        deliveries=int(get("deliveries", 0)),
        failures=int(get("failures", 0)),
        stalls=int(get("stalls", 0)),
        replays=int(get("replays", 0)),
        retried_at=_int(get("retried_at")),
        claim_token=get("claim_token"),
        claimed_at=_int(get("claimed_at")),
        heartbeat_at=_int(get("heartbeat_at")),
        stale_at=_int(get("stale_at")),
        worker=get("worker"),
        cancel_requested="cancel_requested" in record,
        progress=None if progress is None else float(progress),
        result=result,
        error=None if error is None else codec.decode_error(error),
        first_error=None if first_error is None else codec.decode_error(first_error),
        finished_at=_int(get("finished_at")),
        format=version,
    )


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


# Schedules


def schedule_fields(schedule: Schedule) -> list[Any]:
    """What is stored of a schedule beside its id and payload: field, value, ..."""
    fields: dict[str, Any] = {
        "task": schedule.task,
        "every_ms": schedule.every_ms,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "catch_up": schedule.catch_up,
        "priority": schedule.priority,
        "ttl_ms": schedule.ttl_ms,
        "timeout_ms": schedule.timeout_ms,
        "max_retries": schedule.max_retries,
        "backoff": codec.encode_backoff(schedule.backoff).decode("ascii"),
    }
    return [word for name, value in fields.items() if value is not None for word in (name, value)]


def schedules(queue: str, records: list[list[bytes]]) -> list[StoredSchedule]:
    """Without those that cannot be read, so that they hide no other."""
    read = []
    for record in records:
        fields = dict(zip(record[::2], record[1::2], strict=True))
        try:
            read.append(_schedule(queue, fields))
        except (MayflyError, LookupError, ValueError, TypeError) as error:
            name = fields.get(b"id", b"?").decode("utf-8", "replace")
            base.logger.error("left out: schedule %s in %s cannot be read: %s", name, queue, error)
    return read


def _schedule(queue: str, fields: dict[bytes, bytes]) -> StoredSchedule:
    def number(name: bytes) -> int | None:
        value = fields.get(name)
        return None if value is None else int(value)

    cron = fields.get(b"cron")
    schedule = Schedule(
        id=fields[b"id"].decode(),
        queue=queue,
        task=fields[b"task"].decode(),
        payload=fields[b"payload"],
        every_ms=number(b"every_ms"),
        cron=None if cron is None else cron.decode(),
        timezone=fields[b"timezone"].decode(),
        catch_up=CatchUp(fields[b"catch_up"].decode()),
        priority=int(fields[b"priority"]),
        ttl_ms=number(b"ttl_ms"),
        timeout_ms=number(b"timeout_ms"),
        max_retries=int(fields[b"max_retries"]),
        backoff=codec.decode_backoff(fields[b"backoff"]),
    )
    return StoredSchedule(
        schedule,
        int(fields[b"revision"]),
        int(fields[b"changed_at"]),
        b"paused" in fields,
        number(b"next_slot"),
        number(b"last_slot"),
    )


# Queues


def info(name: str, answer: list[Any], *, exact: bool) -> QueueInfo:
    """A queue at a glance, from the script's answer."""
    _, paused, counts, waited, workers = answer
    cap = None if exact else base.COUNT_CAP
    by_state = dict(zip([state.value for state in State], counts, strict=True))
    dead = by_state["failed"] + by_state["expired"]
    named = tuple(
        WorkerInfo(worker.decode("utf-8", "replace"), claims, age)
        for worker, claims, age in zip(workers[::3], workers[1::3], workers[2::3], strict=True)
    )
    return QueueInfo(
        name=name,
        paused=bool(paused),
        counts=Counts(**{state: n if cap is None else min(n, cap) for state, n in by_state.items()}),
        dead_letters=dead if cap is None else min(dead, cap),
        workers=named,
        oldest_waiting_age_ms=int(waited) if waited else None,
        oldest_heartbeat_age_ms=named[0].heartbeat_age_ms if named else None,
    )
