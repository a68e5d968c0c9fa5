-- Every job of the queue.
DELETE FROM jobs WHERE queue = :queue
