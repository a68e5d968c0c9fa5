-- A delayed job gives way to a newer one under its debounce key.
UPDATE jobs SET state = 'cancelled', finished_at = :now
WHERE queue = :queue AND id = :id AND state = 'delayed'
RETURNING number, id, family, state, dedup_key
