-- Gives out waiting jobs. ARGV: limit, token, worker, stale_after_ms. Returns their records.
return claim(number(), text(), text(), number())
