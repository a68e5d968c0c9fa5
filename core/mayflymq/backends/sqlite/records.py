"""Rows of the SQLite tables as the values of the model, and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable

from ... import codec
from ...errors import CorruptRecord, MayflyError
from ...model import (
    FORMAT,
    CatchUp,
    Dedup,
    DedupMode,
    Job,
    JobError,
    ParentPolicy,
    Schedule,
    State,
    StoredSchedule,
)
from .. import base


def error_text(error: JobError) -> str:
    return codec.encode_error(error).decode("ascii")


def _error(text: str | None) -> JobError | None:
    return None if text is None else codec.decode_error(text.encode("utf-8"))


def job(row: sqlite3.Row) -> Job:
    """The job in a row of `get`, `held` or a list. Raises CorruptRecord naming the job when it cannot be
    read."""
    if row["format"] > FORMAT:
        raise CorruptRecord(
            f"job {row['id']} in {row['queue']} has format {row['format']}, this version reads up to "
            f"{FORMAT}: update mayflymq here"
        )
    try:
        return _read_job(row)
    except (MayflyError, ValueError, TypeError) as error:
        raise CorruptRecord(f"job {row['id']} in {row['queue']} cannot be read: {error}") from error


def _read_job(row: sqlite3.Row) -> Job:
    dedup = None
    if row["dedup_key"] is not None:
        dedup = Dedup(
            row["dedup_key"], DedupMode(row["dedup_mode"]), row["dedup_window_ms"], bool(row["dedup_extend"])
        )
    return Job(
        id=row["id"],
        queue=row["queue"],
        task=row["task"],
        payload=row["payload"],
        state=State(row["state"]),
        priority=row["priority"],
        created_at=row["created_at"],
        run_at=row["run_at"],
        ttl_ms=row["ttl_ms"],
        timeout_ms=row["timeout_ms"],
        max_retries=row["max_retries"],
        backoff=codec.decode_backoff(row["backoff"].encode("utf-8")),
        depends_on=tuple(json.loads(row["depends_on"])),
        on_parent_failure=ParentPolicy(row["on_parent_failure"]),
        dedup=dedup,
        deliveries=row["deliveries"],
        failures=row["failures"],
        stalls=row["stalls"],
        replays=row["replays"],
        retried_at=row["retried_at"],
        claim_token=row["claim_token"],
        claimed_at=row["claimed_at"],
        heartbeat_at=row["heartbeat_at"],
        stale_at=row["stale_at"],
        worker=row["worker"],
        cancel_requested=bool(row["cancel_requested"]),
        progress=row["progress"],
        result=row["result"],
        error=_error(row["error"]),
        first_error=_error(row["first_error"]),
        finished_at=row["finished_at"],
        format=row["format"],
    )


def schedules(rows: Iterable[sqlite3.Row]) -> list[StoredSchedule]:
    """Those that can be read: a bad record never hides the others."""
    schedules = []
    for row in rows:
        try:
            schedules.append(_schedule(row))
        except (MayflyError, ValueError, TypeError) as error:
            base.logger.error(
                "left out: schedule %s in %s cannot be read: %s", row["id"], row["queue"], error
            )
    return schedules


def _schedule(row: sqlite3.Row) -> StoredSchedule:
    schedule = Schedule(
        id=row["id"],
        queue=row["queue"],
        task=row["task"],
        payload=row["payload"],
        every_ms=row["every_ms"],
        cron=row["cron"],
        timezone=row["timezone"],
        catch_up=CatchUp(row["catch_up"]),
        priority=row["priority"],
        ttl_ms=row["ttl_ms"],
        timeout_ms=row["timeout_ms"],
        max_retries=row["max_retries"],
        backoff=codec.decode_backoff(row["backoff"].encode("ascii")),
    )
    return StoredSchedule(
        schedule, row["revision"], row["changed_at"], bool(row["paused"]), row["next_slot"], row["last_slot"]
    )
