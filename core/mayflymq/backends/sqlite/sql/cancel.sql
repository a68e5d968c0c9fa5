-- A queued job is cancelled; an active one gets the marker that its worker and the sweep look for.
UPDATE jobs SET
    state = CASE state WHEN 'active' THEN 'active' ELSE 'cancelled' END,
    cancel_requested = (state = 'active'),
    finished_at = CASE state WHEN 'active' THEN NULL ELSE :now END
WHERE queue = :queue AND id = :id AND state IN ('waiting', 'delayed', 'blocked', 'active')
RETURNING number, id, family, state, dedup_key
