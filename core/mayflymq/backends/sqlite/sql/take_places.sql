-- Takes :count numbers for places, families and revisions. Returns the last of them.
UPDATE counter SET last = last + :count RETURNING last
