-- How jobs are claimed.

local function take(job, token, worker, stale_after_ms)
  leave(job)
  job.settled_token, job.settled_as, job.progress = nil, nil, nil
  job.deliveries = whole((tonumber(job.deliveries) or 0) + 1)
  job.worker, job.claim_token = worker, token
  job.claimed_at, job.heartbeat_at, job.stale_at = NOW_TEXT, NOW_TEXT, after(stale_after_ms)
  enter(job, 'active')
  redis.call('ZADD', PREFIX .. 'claim:' .. token, 0, job.id)
  deliver(job)
  local packed, key = save(job), PREFIX .. 'job:' .. job.id
  if job.erred then
    return {packed, unpack(redis.call('HMGET', key, 'spec', 'payload', 'error', 'first_error'))}
  end
  return {packed, unpack(redis.call('HMGET', key, 'spec', 'payload'))}
end

-- The first waiting jobs under this token; what it holds already where it was sent before (promise D8).
local function claim(limit, token, worker, stale_after_ms)
  local held, taken = {}, {}
  for _, id in ipairs(redis.call('ZRANGE', PREFIX .. 'claim:' .. token, 0, -1)) do
    local job = load(id)
    if job and job.claim_token == token then
      held[#held + 1] = job
    end
  end
  if #held > 0 or PAUSED then
    table.sort(held, function(one, other)
      local mine, theirs = tonumber(one.priority) or 0, tonumber(other.priority) or 0
      if mine ~= theirs then return mine < theirs end
      return (one.place or '') < (other.place or '')
    end)
    for index, job in ipairs(held) do
      taken[index] = whole_job(job.id)
    end
    return taken
  end
  promote(limit)
  sift(ZSET.waiting, '+inf', limit, function(member, id)
    local job = load(id)
    local otherwise = stands(job, member, 'waiting')
    if otherwise then
      return otherwise
    end
    taken[#taken + 1] = take(job, token, worker, stale_after_ms)
    return 'done'
  end)
  return taken
end
