-- Due delayed jobs, the earliest first, to waiting at a new place each, or to blocked while parents are unfinished.
-- The caller takes as many places from the counter in the same transaction.
UPDATE jobs SET
    state = CASE WHEN EXISTS (SELECT 1 FROM children WHERE children.job = jobs.number)
                 THEN 'blocked' ELSE 'waiting' END,
    place = CASE WHEN EXISTS (SELECT 1 FROM children WHERE children.job = jobs.number)
                 THEN jobs.place ELSE (SELECT last FROM counter) + due.nth END
FROM (
    SELECT number, row_number() OVER (ORDER BY run_at, place) AS nth
    FROM (
        SELECT number, run_at, place FROM jobs
        WHERE queue = :queue AND state = 'delayed' AND run_at <= :now AND format <= :format
        ORDER BY run_at, place LIMIT :limit
    )
) AS due
WHERE jobs.number = due.number
