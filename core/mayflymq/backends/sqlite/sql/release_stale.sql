-- Takes one stale job from its vanished worker, if it is still under the claim that was seen and still stale:
-- cancelled where a cancellation stands, failed where it stalled too often, else waiting at a new place.
UPDATE jobs SET
    state = CASE WHEN cancel_requested THEN 'cancelled' WHEN stalls + 1 > :max_stalls THEN 'failed'
                 ELSE 'waiting' END,
    place = CASE WHEN cancel_requested OR stalls + 1 > :max_stalls THEN place ELSE :place END,
    stalls = stalls + 1,
    error = CASE WHEN NOT cancel_requested AND stalls + 1 > :max_stalls THEN :error ELSE error END,
    first_error = CASE WHEN NOT cancel_requested AND stalls + 1 > :max_stalls
                       THEN coalesce(first_error, :error) ELSE first_error END,
    finished_at = CASE WHEN cancel_requested OR stalls + 1 > :max_stalls THEN :now END,
    claim_token = NULL, heartbeat_at = NULL, stale_at = NULL, cancel_requested = 0
WHERE number = :number AND state = 'active' AND claim_token = :token AND stale_at <= :now
RETURNING number, id, family, state, dedup_key
