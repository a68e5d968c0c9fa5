-- Frees a deduplication key, if this job still holds it and it is not a throttle window.
DELETE FROM dedup_keys WHERE queue = :queue AND key = :key AND holder = :holder AND until IS NULL
