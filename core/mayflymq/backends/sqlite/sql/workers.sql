-- Who holds claims, those longest without a heartbeat first.
SELECT worker, count(*) AS claims, max(0, max(:now - heartbeat_at)) AS age FROM jobs
WHERE queue = :queue AND state = 'active'
GROUP BY worker ORDER BY age DESC, worker LIMIT :limit
