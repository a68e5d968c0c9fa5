-- A new or a changed schedule; whether it is paused and the last slot stay.
INSERT INTO schedules (
    queue, id, format, revision, changed_at, task, payload, every_ms, cron, timezone, catch_up, priority, ttl_ms,
    timeout_ms, max_retries, backoff)
VALUES (
    :queue, :id, :format, 1, :now, :task, :payload, :every_ms, :cron, :timezone, :catch_up, :priority, :ttl_ms,
    :timeout_ms, :max_retries, :backoff)
ON CONFLICT (queue, id) DO UPDATE SET
    format = excluded.format, revision = revision + 1, changed_at = excluded.changed_at, next_slot = NULL,
    task = excluded.task, payload = excluded.payload, every_ms = excluded.every_ms, cron = excluded.cron,
    timezone = excluded.timezone, catch_up = excluded.catch_up, priority = excluded.priority,
    ttl_ms = excluded.ttl_ms, timeout_ms = excluded.timeout_ms, max_retries = excluded.max_retries,
    backoff = excluded.backoff
