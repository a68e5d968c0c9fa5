-- One waiting job becomes active under this token.
UPDATE jobs SET
    state = 'active', claim_token = :token, worker = :worker, claimed_at = :now, heartbeat_at = :now,
    stale_at = :now + :stale_after_ms, deliveries = deliveries + 1, progress = NULL, settled_token = NULL,
    settled_as = NULL
WHERE number = :number AND state = 'waiting'
