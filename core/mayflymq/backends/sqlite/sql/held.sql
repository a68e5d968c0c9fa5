-- The jobs that a token holds, in the order in which they were claimed.
SELECT jobs.*, payload FROM jobs JOIN payloads ON job = jobs.number
WHERE claim_token = :token AND queue = :queue
ORDER BY priority, place
