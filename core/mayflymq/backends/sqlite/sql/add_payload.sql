-- The payload of a new job, written once.
INSERT INTO payloads (job, payload) VALUES (:job, :payload)
