-- The job waits for a parent.
INSERT INTO children (family, job) VALUES (:family, :job)
