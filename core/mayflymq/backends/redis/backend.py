"""Redis and Valkey: one server-side script a transition (promise C11), one round trip a call (promise F5).

The scripts are in `lua/`, one file each; `_common.lua` is put before every one. They run on the server's
clock (promise F4). Keys are explained in `keys.py` and in docs/backends.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ... import codec, lifecycle, model
from ...errors import BackendError, ConfigurationError, CorruptRecord, MayflyError, redacted
from ...model import (
    FORMAT,
    Backoff,
    Beat,
    Cancelled,
    CancelStatus,
    Capabilities,
    CatchUp,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Clock,
    Counts,
    Dedup,
    DedupMode,
    Dependant,
    Drained,
    Dropped,
    DueSchedules,
    Enqueued,
    EnqueueStatus,
    Fail,
    Finding,
    Job,
    JobError,
    JobPage,
    NewJob,
    NotClaimed,
    ParentPolicy,
    QueueInfo,
    Recovered,
    Recovery,
    Removed,
    Retried,
    RetryStatus,
    Schedule,
    Settle,
    Settled,
    Settlement,
    SettleResult,
    Severity,
    State,
    StoredSchedule,
    Target,
    Unpublished,
    WorkerInfo,
)
from .. import base
from . import keys

CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    lambda_ready=True,
    ordering="priority, then the order of entering waiting",
    strict_priority=True,
    dedup=True,
    dependencies=True,
    schedules=True,
    broker_store=True,
    transactional_enqueue=False,
    one_round_trip=True,
    clock="the server, TIME inside the script",
)

OLDEST_SERVER = (6, 2)
PACK_FROM = 1024
"""Payloads of at least this many bytes are compressed, where that makes them smaller."""
DROP_A_CALL = 1000

WAKE_AFTER_S = 5
"""After a pause this long the connection may be dead without a sign. A call that cannot be sent twice is then
preceded by one that can, so that it meets a live one (promise F3)."""
_OPTIONS_TAKEN = frozenset({"decode_responses", "protocol", "encoding", "health_check_interval"})

_REPEATABLE = frozenset(
    {
        *("enqueue", "claim", "heartbeat", "settle", "claim_delivery"),  # by promises D6, D7 and D8
        *("get", "list_jobs", "queue_info", "list_schedules", "due_schedules"),  # they only look
        *("set_paused", "mark_published", "register", "enable_broker"),  # and these leave it as it is
    }
)
"""What may be sent again when an answer was lost: whether it was done or not, the second answer is right."""


def open(url: str, *, broker: bool = False, clock: Clock | None = None) -> RedisBackend:
    """Opens `redis://[user[:password]@]host[:port][/db]` or `rediss://` (TLS).

    Options: `prefix` (mayflymq) begins every key, `cluster=1` for a cluster and ElastiCache Serverless; the
    others are those of redis-py, such as `ssl_ca_certs`, and `socket_timeout` and `socket_connect_timeout`
    (5 seconds each): how long a call waits for an answer at most.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"{redacted(url)} is no URL: {_ENCODE}") from None
    if "@" in parts.path + parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise ConfigurationError(f"{redacted(url)} is ambiguous: {_ENCODE}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = options.pop("prefix", "mayflymq")
    if not prefix or any(c in "{}" or c.isspace() for c in prefix):
        raise ConfigurationError("the option prefix of a redis:// URL must be text without braces and spaces")
    cluster = options.pop("cluster", "0")
    if cluster not in ("0", "1"):
        raise ConfigurationError("the option cluster of a redis:// URL is 0 or 1")
    if taken := _OPTIONS_TAKEN & set(options):
        raise ConfigurationError(f"a redis:// URL has no option {', '.join(sorted(taken))} here")
    server = urlunsplit(parts._replace(query=urlencode(options)))
    return RedisBackend(server, prefix=prefix, cluster=cluster == "1", broker=broker, clock=clock)


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_ENCODE = "percent-encode the user and the password in it"


@cache
def _script(name: str) -> tuple[str, str]:
    """The text of a script and its SHA-1, which is its name on the server."""
    folder = Path(__file__).parent / "lua"
    text = (folder / f"{name}.lua").read_text("utf-8")
    if name != "registry":
        text = (folder / "_common.lua").read_text("utf-8") + text
    stalled = lifecycle.stalled_out(0).message.replace("0", "@STALLS@", 1)
    for mark, value in (
        ("@STOOD@", base.STOOD),
        ("@PARENT_FAILED@", _template(lifecycle.parent_failed("@PARENT@", "@ENDED@"))),
        ("@STALLED_OUT@", _template(JobError(lifecycle.stalled_out(0).type, stalled))),
    ):
        text = text.replace(mark, value)
    return text, hashlib.sha1(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def _template(error: JobError) -> str:
    return json.dumps([error.type, error.message]).replace("\\", "\\\\").replace("'", "\\'")


class _Line(redis.Redis):
    """A client of one connection. Scripts are called on it directly: by redis-py's own way a call costs about
    twice as much (pool, events, metrics)."""

    def alive(self) -> _Line:
        """Drops the connection where the server closed it, or where an answer is left that nobody waits for;
        the next command opens another."""
        connection: Any = self.connection
        if connection._sock is None:  # can_read would connect, and wait once more for a server that is away
            return self
        try:
            left = connection.can_read(0)
        except (redis.RedisError, OSError):
            left = True
        if left:
            connection.disconnect()
        return self

    def script(self, *words: Any) -> Any:
        """One command and its answer."""
        connection: Any = self.connection
        connection.send_command(*words)
        return connection.read_response()


class RedisBackend:
    """One connection, used by one call at a time; opened lazily, replaced when dead."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "mayflymq",
        cluster: bool = False,
        broker: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._cluster = cluster
        self._broker = broker
        self._clock = clock
        self._lock = threading.RLock()
        self._client: Any = None
        self._owner = os.getpid()
        self._used = (0.0, 0.0)
        self._delivering: set[str] = set()
        pool = self._plain(redis.Redis).connection_pool
        try:
            pool.connection_class(**pool.connection_kwargs)  # refuses unknown options; connects to nothing
        except (TypeError, redis.RedisError) as error:
            raise ConfigurationError(f"{redacted(url)} cannot be used: {error}") from None

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Connection

    def _plain(self, kind: type[redis.Redis], **options: Any) -> Any:
        try:
            return kind.from_url(self._url, **_SETTINGS, **options)
        except ValueError as error:  # its text may hold a part of a password
            option = str(error) if str(error).startswith("Invalid value for") else "its port is no number"
            raise ConfigurationError(f"{redacted(self._url)} cannot be used: {option}") from None

    def _connect(self) -> Any:
        if self._client is None and self._cluster:
            self._client = redis.RedisCluster.from_url(self._url, **_SETTINGS)
        elif self._client is None:
            self._client = self._plain(_Line, single_connection_client=True)
        return self._client if self._cluster else self._client.alive()

    def _call(self, name: str, queue: str, *values: Any) -> Any:
        """Runs one script. Where it answers that the queue is not registered yet, registers it and runs it
        again."""
        if self._broker and queue not in self._delivering:
            self._enable_broker(queue)
        answer = self._run(name, queue, *values)
        if answer == b"UNREGISTERED":
            self._register(queue)
            answer = self._run(name, queue, *values)
        return answer

    def _run(self, name: str, queue: str, *values: Any) -> Any:
        fixed = keys.fixed(self._prefix, queue)
        now = "" if self._clock is None else self._clock()
        repeat = name in _REPEATABLE
        if not repeat and self._slept():
            self._send(lambda client: client.exists(fixed[0]), repeat=True)
        known = [keys.prefix_of(self._prefix, queue), now, FORMAT, model.MAX_CHILDREN_A_STEP]
        told = _JSON.encode([*known, *(value for value in values if type(value) is not bytes)])
        return self._eval(
            name, fixed, [told, *(value for value in values if type(value) is bytes)], repeat=repeat
        )

    def _eval(self, name: str, fixed: Sequence[bytes], values: Sequence[Any], *, repeat: bool) -> Any:
        text, sha = _script(name)

        def send(client: Any) -> Any:
            ask = client.execute_command if self._cluster else client.script
            try:
                return ask("EVALSHA", sha, len(fixed), *fixed, *values)
            except redis.exceptions.NoScriptError:  # a new server, or one whose scripts were flushed
                return ask("EVAL", text, len(fixed), *fixed, *values)

        return self._send(send, repeat=repeat)

    def _slept(self) -> bool:
        """Whether this process, frozen perhaps, made no call for a while: either clock may stand still
        then."""
        passed = (now - used for now, used in zip(_clocks(), self._used, strict=True))
        return any(not 0 <= seconds < WAKE_AFTER_S for seconds in passed)

    def _send(self, send: Callable[[Any], Any], *, repeat: bool) -> Any:
        if self._owner != os.getpid():  # a fork: neither the connection nor a held lock is this process's
            self._owner, self._client, self._lock = os.getpid(), None, threading.RLock()
        with self._lock:
            try:
                try:
                    answer = send(self._connect())
                except redis.exceptions.ReadOnlyError:  # it did nothing; another connection finds the primary
                    self.close()
                    answer = send(self._connect())
                except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                    if not repeat or isinstance(error, _HEARD):
                        raise
                    answer = send(self._connect())
                self._used = _clocks()
                return answer
            except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
                raise _public(error) from error

    def _register(self, queue: str) -> None:
        """Writes the queue's name to the registry, then makes it known in its own slot: a queue that holds
        jobs is always found by the sweep, wherever a crash falls."""
        model.check_queue(queue)
        generation = os.urandom(8).hex()
        registry = keys.registry(self._prefix)
        self._send(lambda client: client.hset(registry, queue, generation), repeat=True)
        kept = self._run("register", queue, generation).decode()
        if kept != generation:  # somebody else came first; the registry names the one that is kept
            self._replace(queue, generation, kept)
        if self._send(lambda client: client.get(keys.broker(self._prefix)), repeat=True):
            self._deliver(queue)

    def _replace(self, queue: str, expected: str, generation: str) -> None:
        """Changes the registry unless somebody else did meanwhile."""
        self._eval(
            "registry", [keys.registry(self._prefix).encode()], [queue, expected, generation], repeat=True
        )

    def _deliver(self, queue: str) -> None:
        state, cursor = "waiting", "0"
        while state:
            state, cursor = _texts(self._run("enable_broker", queue, state, cursor))

    def _enable_broker(self, *queues: str) -> None:
        """For queues to come first, so that none is made in between without deliveries."""
        self._send(lambda client: client.set(keys.broker(self._prefix), 1), repeat=True)
        for name in {*queues, *self._names()}:
            self._deliver(name)
            self._delivering.add(name)

    def _names(self) -> list[str]:
        found = self._send(lambda client: client.hkeys(keys.registry(self._prefix)), repeat=True)
        return sorted(name.decode() for name in found)

    def close(self) -> None:
        with self._lock:
            if self._client is not None and self._owner == os.getpid():
                self._client.close()
            self._client = None

    def migrate(self) -> int:
        return FORMAT

    # Lifecycle

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        base.check_batch("jobs", jobs)
        base.check_one_queue({job.queue for job in jobs})
        if not jobs:
            return []
        answers = self._call(
            "enqueue", jobs[0].queue, len(jobs), *(value for job in jobs for value in _new(job))
        )
        return [_enqueued(job, answer) for job, answer in zip(jobs, json.loads(answers), strict=True)]

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return self._claimed(request, self._call("claim", request.queue, *_request(request)))

    def _claimed(self, request: ClaimRequest, records: list[list[bytes]]) -> list[ClaimedJob]:
        claimed = []
        for record in records:
            fields = _fields_of(record)
            claim = Claim(request.queue, fields["id"], request.token)
            try:
                claimed.append(ClaimedJob(claim, _job(request.queue, fields, record)))
            except CorruptRecord as error:  # fails at once, so that it hides no other
                self.settle([Settle(claim, Fail(JobError("CorruptRecord", str(error))))])
        return claimed

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        base.check_batch("beats", beats)
        base.check_one_queue({beat.claim.queue for beat in beats})
        if not beats:
            return []
        values: list[Any] = [len(beats)]
        for beat in beats:
            progress = "" if beat.progress is None else repr(float(beat.progress))
            values += [beat.claim.job_id, beat.claim.token, beat.stale_after_ms, progress]
        answers = self._call("heartbeat", beats[0].claim.queue, *values)
        return [ClaimStatus(answer.decode()) for answer in answers]

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        base.check_batch("settles", settles)
        queues = {settle.claim.queue for settle in settles} | ({claim_next.queue} if claim_next else set())
        base.check_one_queue(queues)
        if not queues:
            return SettleResult([], [])
        values: list[Any] = [len(settles)]
        for settle in settles:
            outcome = settle.outcome
            result = outcome.result if isinstance(outcome, model.Complete) else None
            failed = isinstance(outcome, model.Retry | model.Fail)
            values += [
                settle.claim.job_id,
                settle.claim.token,
                lifecycle.event_of(outcome),
                outcome.delay_ms if isinstance(outcome, model.Retry | model.Defer) else 0,
                codec.encode_error(outcome.error).decode("ascii") if failed else "",  # type: ignore[union-attr]
                0 if result is None else 1,
            ]
            values += [] if result is None else [result]
        values += _request(claim_next) if claim_next else [0]
        settled, records = self._call("settle", queues.pop(), *values)
        answers = json.loads(settled) if settles else []
        return SettleResult(
            [Settled(Settlement(status), _dependants(children)) for status, children in answers],
            self._claimed(claim_next, records) if claim_next else [],
        )

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        base.check_limit(limit)
        return [
            Recovered(
                job_id.decode(),
                Recovery(status.decode()),
                stalls,
                worker.decode() or None,
                _dependants(children),
                "its record makes no sense" if status == b"unreadable" else None,
            )
            for job_id, status, stalls, worker, children in self._call(
                "release_stale", queue, limit, max_stalls
            )
        ]

    def promote_due(self, queue: str, limit: int) -> list[str]:
        base.check_limit(limit)
        return _texts(self._call("promote_due", queue, limit))

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        base.check_batch("ids", ids)
        answers = self._call("cancel", queue, len(ids), *ids)
        return [
            Cancelled(CancelStatus(status.decode()), _dependants(children)) for status, children in answers
        ]

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        base.check_batch("ids", ids)
        return [
            Retried(
                RetryStatus(status.decode()),
                State(state.decode()) if state else None,
                holder.decode() or None,
            )
            for status, state, holder in self._call("retry", queue, len(ids), *ids)
        ]

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        base.check_batch("ids", ids)
        answers = self._call("remove", queue, len(ids), *ids)
        return [Removed(bool(found), _dependants(children)) for found, children in answers]

    def set_paused(self, queue: str, paused: bool) -> None:
        model.check_queue(queue)
        self._call("set_paused", queue, int(paused))

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        base.check_terminal(states)
        wanted = set(states)
        return _texts(self._call("clean", queue, older_than_ms, limit, len(wanted), *wanted))

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        base.check_limit(limit)
        ids, children = self._call("drain", queue, int(include_delayed), limit)
        return Drained(tuple(_texts(ids)), _dependants(children))

    def drop_queue(self, queue: str, force: bool) -> Dropped:
        known = False
        while True:
            # In steps, so that no script runs long; forced from the second on, as the first decided.
            found, active, generation = self._call("drop_queue", queue, int(force or known), DROP_A_CALL)
            if not found or active:
                return Dropped(known, active)
            known = True
            if generation:
                self._delivering.discard(queue)
                self._replace(queue, generation.decode(), "")
                return Dropped(True)

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        holder: bytes = self._call("dedup_holder", queue, key, int(release))
        return holder.decode() or None

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        base.check_batch("ids", ids)
        records = self._call("get", queue, len(ids), *ids)
        return [_job(queue, _fields_of(record), record) if record else None for record in records]

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        base.check_limit(limit)
        rank, place = base.read_cursor(cursor) if cursor is not None else (0, 0)
        records, last_rank, last_place = self._call(
            "list_jobs", queue, State(state), int(cursor is not None), rank, f"{place:016d}", limit
        )
        jobs = []
        for record in records:
            try:
                jobs.append(_job(queue, _fields_of(record), record))
            except CorruptRecord as error:
                base.logger.error("left out of a list: %s", error)
        return JobPage(jobs, base.write_cursor(int(last_rank), int(last_place)) if last_place else None)

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        wanted = self._names() if names is None else names
        if self._broker and not wanted:  # the first connection counts, also where there is no queue yet
            self._enable_broker()
        infos = (
            (name, self._call("queue_info", name, base.COUNT_CAP, base.MAX_WORKERS_SHOWN)) for name in wanted
        )
        return [_info(name, info, exact=exact) for name, info in infos if names is not None or info[0]]

    def check(self) -> list[Finding]:
        try:
            found = self._about_the_server(self._info())
        except BackendError as error:
            if error.transient:
                raise
            found = [(Severity.WARNING, "settings", f"INFO may not be asked ({error}): {_ASK_FOR}")]
        try:
            saves = self._config("save")
        except BackendError as error:
            if error.transient:
                raise
            found.append((Severity.WARNING, "settings", f"CONFIG may not be asked ({error}): {_ASK_FOR}"))
        else:
            if any(subject == "persistence" for _, subject, _ in found) and not saves:
                found.append(
                    (Severity.ERROR, "persistence", "no snapshots are taken either: every job is lost")
                )
        for name in self._names():
            if self._newer(name) > FORMAT:
                text = f"{name} holds jobs of a newer version, left alone here: update mayflymq"
                found.append((Severity.WARNING, "format", text))
        return [Finding(*each) for each in found]

    def _about_the_server(self, info: dict[str, Any]) -> list[tuple[Severity, str, str]]:
        version = str(info.get("redis_version", "0"))
        oldest = ".".join(map(str, OLDEST_SERVER))
        found = [(Severity.OK, "version", f"the server is version {version}")]
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
            text = f"the server is version {version}; {oldest} or newer is needed"
            found = [(Severity.ERROR, "version", text)]
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            text = f"maxmemory-policy is {policy}: the server may delete jobs; set it to noeviction"
            found.append((Severity.ERROR, "eviction", text))
        if not info.get("aof_enabled"):
            text = "appendonly is off: a restart of the server loses what came since its last snapshot"
            found.append((Severity.WARNING, "persistence", text))
        if info.get("role") == "slave":
            found.append((Severity.ERROR, "role", "the server is a read-only replica: name its primary"))
        return found

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._send(lambda client: client.info(), repeat=True)
        return info

    def _newer(self, queue: str) -> int:
        """The newest format that a script looked past in this queue, 0 for none."""
        meta = keys.prefix_of(self._prefix, queue) + "meta"
        return int(self._send(lambda client: client.hget(meta, "newer"), repeat=True) or 0)

    def _config(self, name: str) -> str:
        found = self._send(lambda client: client.config_get(name), repeat=True)
        return str(next(iter(found.values()), ""))

    # Schedules

    def put_schedule(self, schedule: Schedule) -> None:
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
        given = [value for field in fields.items() if field[1] is not None for value in field]
        self._call("put_schedule", schedule.queue, schedule.id, len(given) // 2, *given, schedule.payload)

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        return bool(self._call("remove_schedule", queue, schedule_id))

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        return bool(self._call("pause_schedule", queue, schedule_id, int(paused)))

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        base.check_limit(limit)
        records = self._call("list_schedules", queue, int(after is not None), after or "", limit)
        return _schedules(queue, records)

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        base.check_limit(limit)
        now, records = self._call("due_schedules", queue, limit)
        return DueSchedules(int(now), _schedules(queue, records))

    def advance_schedule(
        self,
        queue: str,
        schedule_id: str,
        revision: int,
        slot: int | None,
        next_slot: int,
        last_slot: int | None,
    ) -> bool:
        values = ["" if value is None else value for value in (slot, next_slot, last_slot)]
        return bool(self._call("advance_schedule", queue, schedule_id, revision, *values))

    # What a broker needs

    def take_unpublished(self, queue: str, min_age_ms: int, limit: int) -> list[Unpublished]:
        base.check_limit(limit)
        return [
            Unpublished(job_id.decode(), token.decode(), int(priority), Target(target.decode()))
            for job_id, token, priority, target in self._call("take_unpublished", queue, min_age_ms, limit)
        ]

    def mark_published(self, queue: str, job_id: str, token: str) -> bool:
        return bool(self._call("mark_published", queue, job_id, token))

    def claim_delivery(self, request: ClaimRequest, job_id: str, token: str) -> ClaimedJob | NotClaimed:
        answer = self._call("claim_delivery", request.queue, job_id, token, *_request(request)[1:])
        if isinstance(answer, bytes):
            return NotClaimed(answer.decode())
        claimed = self._claimed(request, [answer])
        return claimed[0] if claimed else NotClaimed.GONE

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        return _texts(self._call("republish", queue, older_than_ms, limit))


_ASK_FOR = "make sure that maxmemory-policy is noeviction and that data is persisted"

_SETTINGS: dict[str, Any] = {
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),  # `_send` knows what may be sent again
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
}

_HEARD = (redis.exceptions.AuthenticationError, redis.exceptions.BusyLoadingError)
"""Connection errors, to the driver, that are a server's answer."""

_PASSING = re.compile("LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|BUSY |UNBLOCKED")
"""Refusals that pass by themselves. Older servers pack them into another error where a script met them."""

_PASSING_ERRORS = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


def _clocks() -> tuple[float, float]:
    return time.time(), time.monotonic()


def _public(error: Exception) -> BackendError:
    """The public error for one of the driver's."""
    text = str(error) or type(error).__name__
    if isinstance(error, redis.exceptions.AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
        return BackendError(f"redis refused the user or the password: {text}", transient=False)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return BackendError(
            f"the certificate of redis is not trusted: name its signer by ssl_ca_certs in the URL ({text})",
            transient=False,
        )
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM" in text:
        return BackendError(
            "redis is out of memory and wrote nothing: raise maxmemory, or keep ended jobs for less time",
            transient=False,
        )
    if isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY" in text:
        return BackendError("redis answers from a read-only replica: a failover is under way", transient=True)
    if isinstance(error, redis.exceptions.BusyLoadingError) or "LOADING" in text:
        return BackendError("redis is loading its data: try again in a moment", transient=True)
    if isinstance(error, redis.exceptions.RedisClusterException) and not isinstance(error, redis.RedisError):
        return BackendError(f"the redis cluster cannot be reached: {text}", transient=True)
    if isinstance(error, _PASSING_ERRORS):
        return BackendError(f"redis cannot be reached: {text}", transient=True)
    return BackendError(f"redis refused a call: {text}", transient=bool(_PASSING.match(text)))


def _request(request: ClaimRequest) -> list[Any]:
    return [request.limit, request.token, request.worker, request.stale_after_ms]


def _new(job: NewJob) -> list[Any]:
    payload, packed = job.payload, False
    if len(payload) >= PACK_FROM:
        smaller = zlib.compress(payload, 1)
        if len(smaller) < len(payload):
            payload, packed = smaller, True
    dedup = job.dedup
    window_ms, extend = (dedup.window_ms, dedup.extend) if dedup else (0, True)
    return [
        job.id,
        _spec(job.task, packed, job.max_retries, job.backoff, job.ttl_ms, job.timeout_ms, window_ms, extend),
        job.priority,
        job.delay_ms,
        "" if job.run_at is None else job.run_at,
        _JSON.encode(job.depends_on) if job.depends_on else "[]",
        job.on_parent_failure,
        dedup.key if dedup else "",
        dedup.mode if dedup else "",
        window_ms,
        int(extend),
        payload,
    ]


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
    return _JSON.encode([task, packed, max_retries, steps, ttl_ms, timeout_ms, window_ms, extend])


@lru_cache(256)
def _read_spec(spec: bytes) -> tuple[str, bool, int, Backoff, int | None, int | None, int, bool]:
    task, packed, max_retries, steps, *rest = json.loads(spec)
    delays_ms, factor, cap_ms, jitter = steps
    return task, packed, max_retries, Backoff(tuple(delays_ms), factor, cap_ms, jitter), *rest


def _enqueued(job: NewJob, answer: list[Any]) -> Enqueued:
    status, state, holder, unknown, children = answer
    return Enqueued(
        job.id,
        EnqueueStatus(status),
        State(state) if state else None,
        holder or None,
        _refusal(job, unknown) if status == "refused" else None,
        _dependants(children),
    )


def _refusal(job: NewJob, unknown: str) -> str:
    return base.unknown_parent(job, unknown) if unknown else f"the key of job {job.id} holds something else"


def _texts(values: Iterable[bytes]) -> list[str]:
    return [value.decode() for value in values]


def _dependants(flat: list[Any]) -> tuple[Dependant, ...]:
    if not flat:  # also {}, as which Lua writes an empty list in JSON
        return ()
    words = [word.decode() if isinstance(word, bytes) else word for word in flat]
    return tuple(
        Dependant(job_id, State(state)) for job_id, state in zip(words[::2], words[1::2], strict=True)
    )


def _fields(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _fields_of(record: list[bytes]) -> dict[str, str]:
    """The fields of a job's record; what else it has stands beside them."""
    try:
        fields: dict[str, str] = json.loads(record[0])
    except UnicodeDecodeError:
        fields = json.loads(record[0].decode("utf-8", "replace")) | {"format": "not UTF-8"}
    return fields


def _job(queue: str, fields: dict[str, str], found: list[bytes]) -> Job:
    """The job in what `record` of the scripts answers. Raises CorruptRecord naming it when it cannot be
    read."""
    name = fields["id"]
    try:
        version = int(fields["format"])
        if version > FORMAT:
            raise CorruptRecord(
                f"it has format {version}, this version reads up to {FORMAT}: update mayflymq"
            )
        return _read_job(queue, fields, *found[1:])
    except (MayflyError, LookupError, ValueError, TypeError, zlib.error) as error:
        raise CorruptRecord(
            f"job {name} in {queue} cannot be read: {type(error).__name__} {error}"
        ) from error


def _read_job(
    queue: str,
    record: dict[str, str],
    spec: bytes,
    payload: bytes,
    result: bytes | None,
    error: bytes | None,
    first_error: bytes | None,
) -> Job:
    task, packed, max_retries, backoff, ttl_ms, timeout_ms, window_ms, extend = _read_spec(spec)
    get = record.get

    def number(name: str) -> int | None:
        value = get(name)
        return None if value is None else int(value)

    key, progress, parents = get("dedup_key"), get("progress"), get("depends_on")
    return Job(
        id=record["id"],
        queue=queue,
        task=task,
        payload=zlib.decompress(payload) if packed else payload,
        state=State(record["state"]),
        priority=int(record["priority"]),
        created_at=int(record["created_at"]),
        run_at=number("run_at"),
        ttl_ms=ttl_ms,
        timeout_ms=timeout_ms,
        max_retries=max_retries,
        backoff=backoff,
        depends_on=() if parents is None else tuple(json.loads(parents)),
        on_parent_failure=ParentPolicy(record["on_parent_failure"]),
        dedup=None if key is None else Dedup(key, DedupMode(record["dedup_mode"]), window_ms, extend),
        deliveries=number("deliveries") or 0,
        failures=number("failures") or 0,
        stalls=number("stalls") or 0,
        replays=number("replays") or 0,
        retried_at=number("retried_at"),
        claim_token=get("claim_token"),
        claimed_at=number("claimed_at"),
        heartbeat_at=number("heartbeat_at"),
        stale_at=number("stale_at"),
        worker=get("worker"),
        cancel_requested="cancel_requested" in record,
        progress=None if progress is None else float(progress),
        result=result,
        error=None if error is None else codec.decode_error(error),
        first_error=None if first_error is None else codec.decode_error(first_error),
        finished_at=number("finished_at"),
        format=int(record["format"]),
    )


def _schedules(queue: str, records: list[list[bytes]]) -> list[StoredSchedule]:
    """Without those that cannot be read, so that they hide no other."""
    schedules = []
    for record in records:
        fields = _fields(record)
        try:
            schedules.append(_schedule(queue, fields))
        except (MayflyError, LookupError, ValueError, TypeError) as error:
            name = fields.get(b"id", b"?").decode("utf-8", "replace")
            base.logger.error("left out: schedule %s in %s cannot be read: %s", name, queue, error)
    return schedules


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


def _info(name: str, answer: list[Any], *, exact: bool) -> QueueInfo:
    _, paused, counts, oldest, workers = answer
    cap = None if exact else base.COUNT_CAP
    by_state = dict(zip([state.value for state in State], counts, strict=True))
    dead = by_state["failed"] + by_state["expired"]
    named = tuple(
        WorkerInfo(worker.decode(), claims, age)
        for worker, claims, age in zip(workers[::3], workers[1::3], workers[2::3], strict=True)
    )
    return QueueInfo(
        name=name,
        paused=bool(paused),
        counts=Counts(**{state: n if cap is None else min(n, cap) for state, n in by_state.items()}),
        dead_letters=dead if cap is None else min(dead, cap),
        workers=named,
        oldest_waiting_age_ms=int(oldest) if oldest else None,
        oldest_heartbeat_age_ms=named[0].heartbeat_age_ms if named else None,
    )
