-- Deletes a job; its payload and its place among its parents' children go with it.
DELETE FROM jobs WHERE queue = :queue AND id = :id
RETURNING number, id, family, state, dedup_key
