-- Jobs by state, each count capped at :cap (-1: exact), and how long ago the oldest waiting job was created.
SELECT
    coalesce((SELECT paused FROM queues WHERE name = :queue), 0) AS paused,
    (SELECT min(created_at) FROM jobs WHERE queue = :queue AND state = 'waiting') AS oldest_waiting,
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
