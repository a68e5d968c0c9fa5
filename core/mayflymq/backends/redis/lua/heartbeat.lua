-- Renews claims. ASKED: the beats, each id, token, stale_after_ms, progress (none: as it was). Returns for each: held,
-- cancel_requested or lost.
local function beat(id, token, stale_after_ms, progress)
  local job = load(id)
  if not job or job.bad or job.state ~= 'active' or job.claim_token ~= token then
    return 'lost'
  end
  job.heartbeat_at, job.stale_at = NOW_TEXT, after(stale_after_ms)
  job.progress = progress or job.progress
  -- First, as it is let through when memory is full, and with it what follows.
  redis.call('ZREM', ZSET.active, job.place .. id)
  enter(job, 'active')
  save(job)
  return job.cancel_requested and 'cancel_requested' or 'held'
end

local answers = {}
for index, each in ipairs(ASKED) do
  answers[index] = beat(unpack(each))
end
return answers
