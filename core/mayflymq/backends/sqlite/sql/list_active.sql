-- A page of the active jobs behind (:rank, :place).
SELECT jobs.*, payload, stale_at AS rank FROM jobs JOIN payloads ON job = jobs.number
WHERE queue = :queue AND state = 'active' AND format <= :format AND (stale_at, place) > (:rank, :place)
ORDER BY stale_at, place LIMIT :limit
