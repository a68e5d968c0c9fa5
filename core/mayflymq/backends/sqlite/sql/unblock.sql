-- A blocked child whose last parent is done is ready. No row: it waits for its time or for other parents.
UPDATE jobs SET state = 'waiting', place = :place
WHERE number = :number AND state = 'blocked'
  AND NOT EXISTS (SELECT 1 FROM children WHERE children.job = jobs.number)
RETURNING id
