-- A page of the blocked jobs behind :place.
SELECT jobs.*, payload, 0 AS rank FROM jobs JOIN payloads ON job = jobs.number
WHERE queue = :queue AND state = 'blocked' AND format <= :format AND (:rank, place) > (:rank, :place)
ORDER BY place LIMIT :limit
