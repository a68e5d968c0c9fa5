-- The job takes a deduplication key that is free, over, or its own.
INSERT INTO dedup_keys (queue, key, holder, until) VALUES (:queue, :key, :holder, :until)
ON CONFLICT (queue, key) DO UPDATE SET holder = excluded.holder, until = excluded.until
