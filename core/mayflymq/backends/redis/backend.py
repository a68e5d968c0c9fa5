"""Redis and Valkey: one server-side script a transition (promise C11), one round trip a call (promise F5).

The scripts are in `lua/`, one file each, behind the parts that they share (`lua/_*.lua`). They run on the
server's clock (promise F4). Keys are explained in `keys.py` and in docs/backends.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ... import model
from ...errors import BackendError, ConfigurationError, CorruptRecord, redacted
from ...model import (
    FORMAT,
    Beat,
    Cancelled,
    CancelStatus,
    Capabilities,
    Claim,
    ClaimedJob,
    ClaimRequest,
    ClaimStatus,
    Clock,
    Drained,
    Dropped,
    DueSchedules,
    Enqueued,
    Fail,
    Finding,
    Job,
    JobError,
    JobPage,
    NewJob,
    NotClaimed,
    QueueInfo,
    Recovered,
    Recovery,
    Removed,
    Retried,
    RetryStatus,
    Schedule,
    Settle,
    SettleResult,
    Severity,
    State,
    StoredSchedule,
    Target,
    Unpublished,
)
from .. import base
from . import keys, records
from .connection import Connection

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
DROP_A_CALL = 1000
REGISTER_TRIES = 4

_OPTIONS_TAKEN = frozenset({"decode_responses", "protocol", "encoding", "health_check_interval"})

REPEATABLE = frozenset(
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
    if not parts.netloc:
        raise ConfigurationError(f"{redacted(url)} names no host: write redis://host:6379/0")
    if not re.fullmatch(r"/?[0-9]*", parts.path):  # redis-py takes any other for 0
        raise ConfigurationError(
            f"{redacted(url)} names no database: it is a number, as in redis://host:6379/0"
        )
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


_ENCODE = "percent-encode the user and the password in it"

_ASK_FOR = "make sure that maxmemory-policy is noeviction and that data is persisted"


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
        self._connection = Connection(url, cluster=cluster)
        self._prefix = prefix
        self._broker = broker
        self._clock = clock
        self._delivering: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    # Scripts

    def _call(self, name: str, queue: str, *asked: Any, blobs: Sequence[bytes] = ()) -> Any:
        """Runs one script. Where it answers that the queue is not registered yet, registers it and runs it
        again."""
        if self._broker and queue not in self._delivering:
            self._enable_broker(queue)
        for _ in range(REGISTER_TRIES):
            answer = self._run(name, queue, *asked, blobs=blobs)
            if answer != b"UNREGISTERED":
                return answer
            self._register(queue)
        raise BackendError(f"queue {queue} is dropped again and again while it is used", transient=True)

    def _run(self, name: str, queue: str, *asked: Any, blobs: Sequence[bytes] = ()) -> Any:
        prefix = keys.prefix_of(self._prefix, queue)
        now = "" if self._clock is None else self._clock()
        told = records.JSON.encode([prefix, now, FORMAT, model.MAX_CHILDREN_A_STEP, asked]).encode()
        fixed = keys.fixed(self._prefix, queue)
        return self._connection.script(name, fixed, [told, *blobs], repeat=name in REPEATABLE)

    def _register(self, queue: str) -> None:
        """Writes the queue's name to the registry, then makes it known in its own slot: a queue that holds
        jobs is always found by the sweep, wherever a crash falls."""
        model.check_queue(queue)
        generation = os.urandom(8).hex()
        registry = keys.registry(self._prefix)
        self._connection.send(lambda client: client.hset(registry, queue, generation))
        kept = self._run("register", queue, generation).decode()
        if kept != generation:  # somebody else came first; the registry names the one that is kept
            self._replace(queue, generation, kept)
        self._connection.send(lambda client: client.hsetnx(registry, queue, kept))  # a drop may have gone by
        if self._connection.send(lambda client: client.get(keys.broker(self._prefix))):
            self._deliver(queue)

    def _replace(self, queue: str, expected: str, generation: str) -> None:
        """Changes the registry unless somebody else did meanwhile."""
        words = [word.encode() for word in (queue, expected, generation)]
        self._connection.script("registry", (keys.registry(self._prefix).encode(),), words, repeat=True)

    def _forget(self, queue: str, generation: str) -> None:
        """Takes the name of a queue that is gone from the registry, unless the queue is there again: who made
        it may have written its name before this took the old one away."""
        self._replace(queue, generation, "")
        meta = keys.prefix_of(self._prefix, queue) + "meta"
        again = self._connection.send(lambda client: client.hget(meta, "registered"))
        if again:
            registry = keys.registry(self._prefix)
            self._connection.send(lambda client: client.hsetnx(registry, queue, again))

    def _deliver(self, queue: str) -> None:
        state, cursor = "waiting", "0"
        while state:
            state, cursor = records.texts(self._run("enable_broker", queue, state, cursor))

    def _enable_broker(self, *queues: str) -> None:
        """For queues to come first, so that none is made in between without deliveries."""
        self._connection.send(lambda client: client.set(keys.broker(self._prefix), 1))
        for name in {*queues, *self._names()}:
            self._deliver(name)
            self._delivering.add(name)

    def _names(self) -> list[str]:
        found = self._connection.send(lambda client: client.hkeys(keys.registry(self._prefix)))
        return sorted(name.decode() for name in found)

    def close(self) -> None:
        self._connection.close()

    def migrate(self) -> int:
        self._connection.send(lambda client: client.ping())  # there is no schema, and a server there must be
        return FORMAT

    # Lifecycle

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        base.check_batch("jobs", jobs)
        base.check_one_queue({job.queue for job in jobs})
        if not jobs:
            return []
        asked, payloads = zip(*map(records.new_job, jobs), strict=True)
        answers = json.loads(self._call("enqueue", jobs[0].queue, *asked, blobs=payloads))
        return list(map(records.enqueued, jobs, answers))

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return self._claimed(request, self._call("claim", request.queue, *records.request(request)))

    def _claimed(self, request: ClaimRequest, found: list[list[bytes]]) -> list[ClaimedJob]:
        claimed = []
        for record in found:
            fields = records.fields_of(record)
            claim = Claim(request.queue, fields["id"], request.token)
            try:
                claimed.append(ClaimedJob(claim, records.job(request.queue, fields, record)))
            except CorruptRecord as error:  # fails at once, so that it hides no other
                self.settle([Settle(claim, Fail(JobError("CorruptRecord", str(error))))])
        return claimed

    def heartbeat(self, beats: Sequence[Beat]) -> list[ClaimStatus]:
        base.check_batch("beats", beats)
        base.check_one_queue({beat.claim.queue for beat in beats})
        if not beats:
            return []
        answers = self._call("heartbeat", beats[0].claim.queue, *map(records.beat, beats))
        return [ClaimStatus(answer.decode()) for answer in answers]

    def settle(self, settles: Sequence[Settle], claim_next: ClaimRequest | None = None) -> SettleResult:
        base.check_batch("settles", settles)
        queues = {settle.claim.queue for settle in settles} | ({claim_next.queue} if claim_next else set())
        base.check_one_queue(queues)
        if not queues:
            return SettleResult([], [])
        results: list[bytes] = []
        asked = [records.settle(settle, results) for settle in settles]
        claim = records.request(claim_next) if claim_next else [0]
        settled, found = self._call("settle", queues.pop(), asked, *claim, blobs=results)
        return SettleResult(
            records.settled(settled) if settles else [],
            self._claimed(claim_next, found) if claim_next else [],
        )

    def release_stale(self, queue: str, limit: int, max_stalls: int) -> list[Recovered]:
        base.check_limit(limit)
        return [
            Recovered(
                job_id.decode(),
                Recovery(status.decode()),
                stalls,
                worker.decode("utf-8", "replace") or None,
                records.dependants(children),
                "its record makes no sense" if status == b"unreadable" else None,
            )
            for job_id, status, stalls, worker, children in self._call(
                "release_stale", queue, limit, max_stalls
            )
        ]

    def promote_due(self, queue: str, limit: int) -> list[str]:
        base.check_limit(limit)
        return records.texts(self._call("promote_due", queue, limit))

    # Control

    def cancel(self, queue: str, ids: Sequence[str]) -> list[Cancelled]:
        base.check_batch("ids", ids)
        answers = self._call("cancel", queue, *ids)
        return [
            Cancelled(CancelStatus(status.decode()), records.dependants(children))
            for status, children in answers
        ]

    def retry(self, queue: str, ids: Sequence[str]) -> list[Retried]:
        base.check_batch("ids", ids)
        return [
            Retried(
                RetryStatus(status.decode()),
                State(state.decode()) if state else None,
                holder.decode() or None,
            )
            for status, state, holder in self._call("retry", queue, *ids)
        ]

    def remove(self, queue: str, ids: Sequence[str]) -> list[Removed]:
        base.check_batch("ids", ids)
        answers = self._call("remove", queue, *ids)
        return [Removed(bool(found), records.dependants(children)) for found, children in answers]

    def set_paused(self, queue: str, paused: bool) -> None:
        model.check_queue(queue)
        self._call("set_paused", queue, int(paused))

    def clean(self, queue: str, states: Collection[State], older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        base.check_terminal(states)
        wanted = set(states)
        return records.texts(self._call("clean", queue, older_than_ms, limit, list(wanted)))

    def drain(self, queue: str, include_delayed: bool, limit: int) -> Drained:
        base.check_limit(limit)
        ids, children = self._call("drain", queue, int(include_delayed), limit)
        return Drained(tuple(records.texts(ids)), records.dependants(children))

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
                self._forget(queue, generation.decode())
                return Dropped(True)

    def dedup_holder(self, queue: str, key: str, release: bool = False) -> str | None:
        holder: bytes = self._call("dedup_holder", queue, key, int(release))
        return holder.decode() or None

    # Inspection

    def get(self, queue: str, ids: Sequence[str]) -> list[Job | None]:
        base.check_batch("ids", ids)
        found = self._call("get", queue, *ids)
        return [
            records.job(queue, {"id": id} | records.fields_of(record), record) if record else None
            for id, record in zip(ids, found, strict=True)
        ]

    def list_jobs(self, queue: str, state: State, cursor: str | None = None, limit: int = 100) -> JobPage:
        base.check_limit(limit)
        rank, place = base.read_cursor(cursor) if cursor is not None else (0, 0)
        found, last_rank, last_place = self._call(
            "list_jobs", queue, State(state), int(cursor is not None), rank, f"{place:016d}", limit
        )
        jobs = []
        for record in found:
            try:
                jobs.append(records.job(queue, records.fields_of(record), record))
            except CorruptRecord as error:
                base.logger.error("left out of a list: %s", error)
        return JobPage(jobs, base.write_cursor(int(last_rank), int(last_place)) if last_place else None)

    def queues(self, names: Sequence[str] | None = None, *, exact: bool = False) -> list[QueueInfo]:
        wanted = self._names() if names is None else names
        if self._broker and not wanted:  # the first connection counts, also where there is no queue yet
            self._enable_broker()
        look_at = base.COUNT_CAP, base.MAX_WORKERS_SHOWN, base.MAX_PRIORITIES_SEEN
        infos = ((name, self._call("queue_info", name, *look_at)) for name in wanted)
        return [records.info(name, info, exact=exact) for name, info in infos if names is not None or info[0]]

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
        info: dict[str, Any] = self._connection.send(lambda client: client.info())
        return info

    def _newer(self, queue: str) -> int:
        """The newest format that a script looked past in this queue, 0 for none."""
        meta = keys.prefix_of(self._prefix, queue) + "meta"
        return int(self._connection.send(lambda client: client.hget(meta, "newer")) or 0)

    def _config(self, name: str) -> str:
        found = self._connection.send(lambda client: client.config_get(name))
        return str(next(iter(found.values()), ""))

    # Schedules

    def put_schedule(self, schedule: Schedule) -> None:
        fields = records.schedule_fields(schedule)
        self._call("put_schedule", schedule.queue, schedule.id, fields, blobs=[schedule.payload])

    def remove_schedule(self, queue: str, schedule_id: str) -> bool:
        return bool(self._call("remove_schedule", queue, schedule_id))

    def pause_schedule(self, queue: str, schedule_id: str, paused: bool) -> bool:
        return bool(self._call("pause_schedule", queue, schedule_id, int(paused)))

    def list_schedules(self, queue: str, after: str | None = None, limit: int = 100) -> list[StoredSchedule]:
        base.check_limit(limit)
        found = self._call("list_schedules", queue, int(after is not None), after or "", limit)
        return records.schedules(queue, found)

    def due_schedules(self, queue: str, limit: int) -> DueSchedules:
        base.check_limit(limit)
        now, found = self._call("due_schedules", queue, limit)
        return DueSchedules(int(now), records.schedules(queue, found))

    def advance_schedule(
        self,
        queue: str,
        schedule_id: str,
        revision: int,
        slot: int | None,
        next_slot: int,
        last_slot: int | None,
    ) -> bool:
        values = ["" if value is None else str(value) for value in (revision, slot, next_slot, last_slot)]
        return bool(self._call("advance_schedule", queue, schedule_id, *values))

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
        answer = self._call("claim_delivery", request.queue, job_id, token, *records.request(request)[1:])
        if isinstance(answer, bytes):
            return NotClaimed(answer.decode())
        claimed = self._claimed(request, [answer])
        return claimed[0] if claimed else NotClaimed.GONE

    def republish(self, queue: str, older_than_ms: int, limit: int) -> list[str]:
        base.check_limit(limit)
        return records.texts(self._call("republish", queue, older_than_ms, limit))
