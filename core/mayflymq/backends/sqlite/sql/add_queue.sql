-- Makes the queue known on its first use.
INSERT INTO queues (name) VALUES (:queue) ON CONFLICT DO NOTHING
