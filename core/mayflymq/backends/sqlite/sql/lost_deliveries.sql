-- Deliveries of waiting jobs that were published before :before, the oldest first.
SELECT deliveries.number, id FROM deliveries JOIN jobs ON jobs.number = deliveries.job
WHERE deliveries.queue = :queue AND published_at IS NOT NULL AND published_at <= :before AND state = 'waiting'
ORDER BY published_at, deliveries.job LIMIT :limit
