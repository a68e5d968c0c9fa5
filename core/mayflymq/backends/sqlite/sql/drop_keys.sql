-- Every deduplication key of the queue.
DELETE FROM dedup_keys WHERE queue = :queue
