-- A whole job.
SELECT jobs.*, payload FROM jobs JOIN payloads ON job = jobs.number WHERE queue = :queue AND id = :id
