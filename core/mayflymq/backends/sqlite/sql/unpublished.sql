-- Deliveries handed out before :before and not confirmed since, then those never handed out.
SELECT deliveries.number, id, token, priority, state
FROM deliveries JOIN jobs ON jobs.number = deliveries.job
WHERE deliveries.queue = :queue AND published_at IS NULL AND (taken_at IS NULL OR taken_at <= :before)
ORDER BY taken_at IS NULL, taken_at, deliveries.job LIMIT :limit
