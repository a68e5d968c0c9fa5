-- Deliveries never handed out, or handed out before :before and not confirmed since, oldest job first.
SELECT deliveries.number, id, token, priority, state
FROM deliveries JOIN jobs ON jobs.number = deliveries.job
WHERE deliveries.queue = :queue AND published_at IS NULL AND (taken_at IS NULL OR taken_at <= :before)
ORDER BY deliveries.job LIMIT :limit
