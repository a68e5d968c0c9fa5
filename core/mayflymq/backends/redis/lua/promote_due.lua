-- Due delayed jobs, the earliest first, to waiting or to blocked. ASKED: limit. Returns their ids.
-- With: endings, scans.
return promote(ASKED[1])
