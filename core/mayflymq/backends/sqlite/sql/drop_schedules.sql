-- Every schedule of the queue.
DELETE FROM schedules WHERE queue = :queue
