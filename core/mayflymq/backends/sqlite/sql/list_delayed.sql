-- A page of the delayed jobs behind (:rank, :place).
SELECT jobs.*, payload, run_at AS rank FROM jobs JOIN payloads ON job = jobs.number
WHERE queue = :queue AND state = 'delayed' AND format <= :format AND (run_at, place) > (:rank, :place)
ORDER BY run_at, place LIMIT :limit
