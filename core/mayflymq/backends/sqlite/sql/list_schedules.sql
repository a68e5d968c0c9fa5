-- Schedules by id, those behind :after.
SELECT * FROM schedules WHERE queue = :queue AND id > :after AND format <= :format ORDER BY id LIMIT :limit
