-- Takes :count numbers for places and families. Returns the last of them.
UPDATE counter SET last = last + :count RETURNING last
