-- Renews a claim that still holds. Returns whether a cancellation stands; no row: the claim is lost.
UPDATE jobs SET
    heartbeat_at = :now, stale_at = min(:now + :stale_after_ms, 9007199254740991),
    progress = coalesce(:progress, progress)
WHERE queue = :queue AND id = :id AND state = 'active' AND claim_token = :token
RETURNING cancel_requested
