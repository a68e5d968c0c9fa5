-- Jobs by state, each count capped at :cap (-1: exact), and since when a job waits whose turn is next: over the first
-- one of each of the first :priorities priorities.
WITH RECURSIVE firsts (priority, nth) AS (
    SELECT min(priority), 1 FROM jobs WHERE queue = :queue AND state = 'waiting'
    UNION ALL
    SELECT
        (SELECT min(priority) FROM jobs
            WHERE queue = :queue AND state = 'waiting' AND priority > firsts.priority),
        nth + 1
    FROM firsts WHERE priority IS NOT NULL AND nth < :priorities
)
SELECT
    coalesce((SELECT paused FROM queues WHERE name = :queue), 0) AS paused,
    (SELECT min((SELECT max(created_at, coalesce(run_at, 0), coalesce(retried_at, 0)) FROM jobs
        WHERE queue = :queue AND state = 'waiting' AND priority = firsts.priority ORDER BY place LIMIT 1))
        FROM firsts) AS oldest_waiting,
    (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = :queue AND state = 'waiting' LIMIT :cap)) AS waiting,
    (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = :queue AND state = 'delayed' LIMIT :cap)) AS delayed,
    (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = :queue AND state = 'blocked' LIMIT :cap)) AS blocked,
    (SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = :queue AND state = 'active' LIMIT :cap)) AS active,
    (SELECT count(*) FROM (SELECT 1 FROM jobs
        WHERE queue = :queue AND state = 'completed' AND finished_at IS NOT NULL LIMIT :cap)) AS completed,
    (SELECT count(*) FROM (SELECT 1 FROM jobs
        WHERE queue = :queue AND state = 'failed' AND finished_at IS NOT NULL LIMIT :cap)) AS failed,
    (SELECT count(*) FROM (SELECT 1 FROM jobs
        WHERE queue = :queue AND state = 'expired' AND finished_at IS NOT NULL LIMIT :cap)) AS expired,
    (SELECT count(*) FROM (SELECT 1 FROM jobs
        WHERE queue = :queue AND state = 'cancelled' AND finished_at IS NOT NULL LIMIT :cap)) AS cancelled
