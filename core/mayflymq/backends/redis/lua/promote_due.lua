-- Due delayed jobs, the earliest first, to waiting or to blocked. ARGV: limit. Returns their ids.
return promote(number())
