-- A new job, in the state that its time and its parents call for. Returns its number.
INSERT INTO jobs (
    queue, id, format, state, place, family, task, priority, created_at, run_at, ttl_ms, timeout_ms, max_retries,
    backoff, depends_on, on_parent_failure, dedup_key, dedup_mode, dedup_window_ms, dedup_extend, error,
    first_error, finished_at)
VALUES (
    :queue, :id, :format, :state, :place, :family, :task, :priority, :now, :run_at, :ttl_ms, :timeout_ms,
    :max_retries, :backoff, :depends_on, :on_parent_failure, :dedup_key, :dedup_mode, :dedup_window_ms,
    :dedup_extend, :error, :error, :finished_at)
RETURNING number
