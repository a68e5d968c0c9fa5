-- A new or a changed schedule; whether it is paused and the last slot stay, and where it stands, unless its rule is
-- another.
INSERT INTO schedules (
    queue, id, format, revision, changed_at, task, payload, every_ms, cron, timezone, catch_up, priority, ttl_ms,
    timeout_ms, max_retries, backoff)
VALUES (
    :queue, :id, :format, :revision, :now, :task, :payload, :every_ms, :cron, :timezone, :catch_up, :priority, :ttl_ms,
    :timeout_ms, :max_retries, :backoff)
ON CONFLICT (queue, id) DO UPDATE SET
    format = excluded.format, revision = excluded.revision,
    changed_at = CASE WHEN (schedules.every_ms, schedules.cron, schedules.timezone)
                         IS (excluded.every_ms, excluded.cron, excluded.timezone)
                      THEN schedules.changed_at ELSE excluded.changed_at END,
    next_slot = CASE WHEN (schedules.every_ms, schedules.cron, schedules.timezone)
                        IS (excluded.every_ms, excluded.cron, excluded.timezone)
                     THEN schedules.next_slot END,
    task = excluded.task, payload = excluded.payload, every_ms = excluded.every_ms, cron = excluded.cron,
    timezone = excluded.timezone, catch_up = excluded.catch_up, priority = excluded.priority,
    ttl_ms = excluded.ttl_ms, timeout_ms = excluded.timeout_ms, max_retries = excluded.max_retries,
    backoff = excluded.backoff
