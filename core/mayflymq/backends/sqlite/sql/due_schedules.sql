-- Schedules whose slot has come or that are not planned yet (NULL sorts first), the earliest first.
SELECT * FROM schedules
WHERE queue = :queue AND NOT paused AND (next_slot IS NULL OR next_slot <= :now) AND format <= :format
ORDER BY next_slot, id LIMIT :limit
