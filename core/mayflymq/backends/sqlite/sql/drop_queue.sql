-- The queue itself.
DELETE FROM queues WHERE name = :queue
