-- Removes jobs of the queue, and with the last of them the queue. ASKED: force, limit. Returns whether there was a
-- queue, how many active jobs stand in the way, and the generation once all is gone, else ''.
-- With: endings.
local force, left = unpack(ASKED)
if not REGISTERED then
  return {0, 0, ''}
end
local active = redis.call('ZCARD', ZSET.active)
if active > 0 and force == 0 then
  return {1, active, ''}
end
-- A queue that is half gone gives out no jobs, and no job that is gone holds a key.
redis.call('UNLINK', DEDUP, WINDOWS)
redis.call('HSET', META, 'paused', 1)
for _, zset in pairs(ZSET) do
  for _, member in ipairs(redis.call('ZRANGE', zset, 0, left - 1)) do
    local id = id_of(member)
    local job = load(id)
    if job and job.claim_token then
      redis.call('DEL', PREFIX .. 'claim:' .. job.claim_token)
    end
    if job and job.family then
      redis.call('DEL', children_key(job.family))
    end
    for _, family in ipairs(redis.call('SMEMBERS', parents_key(id))) do
      redis.call('DEL', children_key(family)) -- also where the parent's record tells no family any more
    end
    redis.call('DEL', PREFIX .. 'job:' .. id, parents_key(id))
    redis.call('ZREM', zset, member)
    left = left - 1
  end
  if left <= 0 then
    return {1, 0, ''}
  end
end
for _, mark in ipairs(redis.call('ZRANGE', CASCADES, 0, -1)) do
  redis.call('DEL', children_key(string.sub(mark, 1, 16)))
end
for _, id in ipairs(redis.call('ZRANGE', SCHEDULES, 0, -1)) do
  redis.call('DEL', PREFIX .. 'schedule:' .. id)
end
redis.call('UNLINK', META, CASCADES, UNPUBLISHED, PUBLISHED, SCHEDULES, SLOTS)
return {1, 0, REGISTERED}
