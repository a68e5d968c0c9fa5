-- How a life of a job begins: it takes its deduplication key, and waits for its parents.

local function take_key(key, holder, window_ms)
  if window_ms then
    local till = after(window_ms)
    redis.call('HSET', DEDUP, key, till .. '|' .. holder)
    redis.call('ZADD', WINDOWS, till, key)
  else
    redis.call('HSET', DEDUP, key, '|' .. holder)
    redis.call('ZREM', WINDOWS, key)
  end
end

local function wait_for(job, families)
  for _, family in ipairs(families) do
    redis.call('SADD', parents_key(job.id), family)
    redis.call('ZADD', children_key(family), next_number(), job.id)
  end
end
