-- The first waiting jobs become active under this token. Returns their numbers.
UPDATE jobs SET
    state = 'active', claim_token = :token, worker = :worker, claimed_at = :now, heartbeat_at = :now,
    stale_at = min(:now + :stale_after_ms, 9007199254740991), deliveries = deliveries + 1, progress = NULL,
    settled_token = NULL,
    settled_as = NULL
WHERE number IN (
    SELECT number FROM jobs
    WHERE queue = :queue AND state = 'waiting' AND format <= :format
    ORDER BY priority, place LIMIT :limit
)
RETURNING number
