-- The job no longer waits for one parent.
DELETE FROM children WHERE number = :edge
