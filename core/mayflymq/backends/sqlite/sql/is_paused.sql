-- Whether the queue gives out no claims.
SELECT paused FROM queues WHERE name = :queue
