-- A page of the jobs of one terminal state behind (:rank, :place).
SELECT jobs.*, payload, finished_at AS rank FROM jobs JOIN payloads ON job = jobs.number
WHERE queue = :queue AND state = :state AND finished_at IS NOT NULL AND format <= :format
  AND (finished_at, place) > (:rank, :place)
ORDER BY finished_at, place LIMIT :limit
