-- Frees a deduplication key, whoever holds it.
DELETE FROM dedup_keys WHERE queue = :queue AND key = :key
