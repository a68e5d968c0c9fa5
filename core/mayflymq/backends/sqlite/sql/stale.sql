-- Active jobs that went stale, those stale for longest first.
SELECT number, id, worker, stalls, claim_token FROM jobs
WHERE queue = :queue AND state = 'active' AND stale_at <= :now AND format <= :format
ORDER BY stale_at, place LIMIT :limit
