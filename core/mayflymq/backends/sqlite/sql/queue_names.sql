-- Every queue there is.
SELECT name FROM queues ORDER BY name
