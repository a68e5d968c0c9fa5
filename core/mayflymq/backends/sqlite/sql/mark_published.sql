-- The broker confirmed a delivery. No row: it is no longer the job's.
UPDATE deliveries SET published_at = :now
WHERE token = :token AND job = (SELECT number FROM jobs WHERE queue = :queue AND id = :id)
RETURNING number
