-- How jobs are claimed.

local function take(job, token, worker, stale_after_ms, order)
  leave(job)
  job.settled_token, job.settled_as, job.progress = nil, nil, nil
  job.deliveries = whole((tonumber(job.deliveries) or 0) + 1)
  job.worker, job.claim_token = worker, token
  job.claimed_at, job.heartbeat_at, job.stale_at = NOW_TEXT, NOW_TEXT, after(stale_after_ms)
  enter(job, 'active')
  redis.call('ZADD', PREFIX .. 'claim:' .. token, order, job.id)
  deliver(job)
  local packed, key = save(job), PREFIX .. 'job:' .. job.id
  if job.erred then
    return {packed, unpack(redis.call('HMGET', key, 'spec', 'payload', 'error', 'first_error'))}
  end
  return {packed, unpack(redis.call('HMGET', key, 'spec', 'payload'))}
end

-- The first waiting jobs under this token; what it holds already where it was sent before (promise D8).
local function claim(limit, token, worker, stale_after_ms)
  local taken = {}
  for _, id in ipairs(redis.call('ZRANGE', PREFIX .. 'claim:' .. token, 0, -1)) do
    if (load(id) or {}).claim_token == token then
      taken[#taken + 1] = whole_job(id)
    end
  end
  if #taken > 0 or PAUSED then
    return taken
  end
  promote(limit)
  sift(ZSET.waiting, '+inf', limit, function(member, id)
    local job = load(id)
    local otherwise = stands(job, member, 'waiting')
    if otherwise then
      return otherwise
    end
    taken[#taken + 1] = take(job, token, worker, stale_after_ms, #taken)
    return 'done'
  end)
  return taken
end
