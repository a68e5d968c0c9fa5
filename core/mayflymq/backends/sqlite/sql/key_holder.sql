-- Who holds a deduplication key now.
SELECT holder FROM dedup_keys
WHERE queue = :queue AND key = :key AND (until IS NULL OR until > :now)
