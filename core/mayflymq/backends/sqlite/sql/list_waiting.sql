-- A page of the waiting jobs behind (:rank, :place).
SELECT jobs.*, payload, priority AS rank FROM jobs JOIN payloads ON job = jobs.number
WHERE queue = :queue AND state = 'waiting' AND format <= :format AND (priority, place) > (:rank, :place)
ORDER BY priority, place LIMIT :limit
