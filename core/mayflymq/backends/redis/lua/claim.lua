-- Gives out waiting jobs. ASKED: limit, token, worker, stale_after_ms. Returns for each its record and what is beside it.
-- With: endings, scans, claims.
return claim(unpack(ASKED))
