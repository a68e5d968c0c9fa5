-- Pauses or resumes a queue.
UPDATE queues SET paused = :paused WHERE name = :queue
