-- How many jobs are active; NULL where there is no such queue.
SELECT (SELECT count(*) FROM jobs WHERE queue = :queue AND state = 'active') AS active
FROM queues WHERE name = :queue
