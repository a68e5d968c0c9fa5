-- The job waits for no parent any more.
DELETE FROM children WHERE job = :job
