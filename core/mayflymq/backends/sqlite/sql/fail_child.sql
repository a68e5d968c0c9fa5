-- A child fails because its parent ended otherwise than completed.
UPDATE jobs SET
    state = 'failed', finished_at = :now, error = :error, first_error = coalesce(first_error, :error)
WHERE number = :number AND state IN ('blocked', 'delayed')
RETURNING number, id, family, state, dedup_key
