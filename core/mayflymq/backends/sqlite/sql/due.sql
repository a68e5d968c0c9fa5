-- Delayed jobs whose time has come, the earliest first.
SELECT id FROM jobs
WHERE queue = :queue AND state = 'delayed' AND run_at <= :now AND format <= :format
ORDER BY run_at, place LIMIT :limit
