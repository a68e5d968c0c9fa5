-- The waiting job that a delivery is still about.
SELECT jobs.number, paused
FROM jobs JOIN deliveries ON deliveries.job = jobs.number JOIN queues ON queues.name = jobs.queue
WHERE jobs.queue = :queue AND id = :id AND state = 'waiting' AND token = :token AND format <= :format
