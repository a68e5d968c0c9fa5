-- Every unfinished cascade of the queue.
DELETE FROM cascades WHERE queue = :queue
