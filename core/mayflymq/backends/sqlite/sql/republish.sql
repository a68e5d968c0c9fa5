-- A delivery under a fresh token, to be published again.
UPDATE deliveries SET token = lower(hex(randomblob(16))), taken_at = NULL, published_at = NULL
WHERE number = :number
