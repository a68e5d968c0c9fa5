-- Waiting jobs in order, then delayed ones where they are asked for.
SELECT id FROM (
    SELECT * FROM (
        SELECT id, 0 AS step, priority AS rank, place FROM jobs
        WHERE queue = :queue AND state = 'waiting' AND format <= :format ORDER BY priority, place LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT id, 1 AS step, run_at AS rank, place FROM jobs
        WHERE queue = :queue AND state = 'delayed' AND :include_delayed AND format <= :format
        ORDER BY run_at, place LIMIT :limit)
) ORDER BY step, rank, place LIMIT :limit
