-- A claimed record that cannot be read fails at once, so that it hides no other; what could not be read is replaced.
UPDATE jobs SET
    state = 'failed', error = :error, first_error = :error, backoff = :backoff, depends_on = '[]',
    finished_at = :now, claim_token = NULL, heartbeat_at = NULL, stale_at = NULL,
    cancel_requested = 0
WHERE number = :number AND format <= :format
RETURNING number, id, family, state, dedup_key
