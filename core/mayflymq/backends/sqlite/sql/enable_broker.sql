-- From now on every job that a broker delivers gets a delivery.
INSERT INTO options (name) VALUES ('broker') ON CONFLICT DO NOTHING
