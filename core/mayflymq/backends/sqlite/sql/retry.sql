-- A failed or expired job is queued again, as a new life (:family) of the same job.
UPDATE jobs SET
    state = :state, place = coalesce(:place, place), family = :family, failures = 0, stalls = 0,
    replays = replays + 1, retried_at = :now, progress = NULL, result = NULL, finished_at = NULL
WHERE number = :number AND state IN ('failed', 'expired')
