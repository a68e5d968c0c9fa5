-- Renews claims. ARGV: count, then for each: id, token, stale_after_ms, progress. Returns for each: held,
-- cancel_requested or lost.
local function beat()
  local id, token, stale_after_ms, progress = text(), text(), number(), optional()
  local job = load(id)
  if not job or job.bad or job.state ~= 'active' or job.claim_token ~= token then
    return 'lost'
  end
  set(job, 'heartbeat_at', NOW)
  set(job, 'stale_at', after(stale_after_ms))
  if progress then
    set(job, 'progress', progress)
  end
  -- First, as it is let through when memory is full, and with it what follows.
  redis.call('ZREM', ZSET.active, member_of(job))
  redis.call('ZADD', ZSET.active, job.stale_at, member_of(job))
  save(job)
  return job.cancel_requested and 'cancel_requested' or 'held'
end

local answers = {}
for index = 1, number() do
  answers[index] = beat()
end
return answers
