-- Jobs of one terminal state that ended long enough ago, the oldest first.
SELECT id, finished_at, place FROM jobs
WHERE queue = :queue AND state = :state AND finished_at IS NOT NULL AND finished_at <= :before
  AND format <= :format
ORDER BY finished_at, place LIMIT :limit
