-- Deletes a schedule. Returns its id.
DELETE FROM schedules WHERE queue = :queue AND id = :id RETURNING id
