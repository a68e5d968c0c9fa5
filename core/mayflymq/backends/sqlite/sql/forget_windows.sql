-- Forgets some throttle windows that are over.
DELETE FROM dedup_keys WHERE queue = :queue AND key IN (
    SELECT key FROM dedup_keys WHERE queue = :queue AND until <= :now LIMIT :limit)
