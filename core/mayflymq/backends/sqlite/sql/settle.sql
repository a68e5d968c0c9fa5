-- Ends a claim that still holds: cancelled where a cancellation stands, else :state by the worker's outcome :event.
-- No row: the claim is lost, or was settled before. :place is NULL where the job keeps its own.
UPDATE jobs SET
    state = CASE WHEN cancel_requested THEN 'cancelled' ELSE :state END,
    place = CASE WHEN cancel_requested THEN place ELSE coalesce(:place, place) END,
    run_at = CASE WHEN cancel_requested THEN run_at ELSE coalesce(:run_at, run_at) END,
    failures = failures + CASE WHEN cancel_requested THEN 0 ELSE :failed END,
    result = CASE WHEN cancel_requested THEN result ELSE :result END,
    error = CASE WHEN cancel_requested THEN error WHEN :event = 'complete' THEN NULL ELSE coalesce(:error, error) END,
    first_error = CASE WHEN cancel_requested THEN first_error ELSE coalesce(first_error, :error) END,
    finished_at = CASE WHEN cancel_requested OR :ended THEN :now END,
    settled_token = claim_token,
    settled_as = CASE WHEN cancel_requested THEN 'cancellation' ELSE :event END,
    claim_token = NULL, heartbeat_at = NULL, stale_at = NULL, cancel_requested = 0
WHERE queue = :queue AND id = :id AND state = 'active' AND claim_token = :token
RETURNING number, id, family, state, dedup_key, settled_as
