-- One waiting job becomes active under this token.
UPDATE jobs SET
    state = 'active', claim_token = :token, worker = :worker, claimed_at = :now, heartbeat_at = :now,
    stale_at = min(:now + :stale_after_ms, 9007199254740991), deliveries = deliveries + 1, progress = NULL,
    settled_token = NULL,
    settled_as = NULL
WHERE number = :number AND state = 'waiting'
