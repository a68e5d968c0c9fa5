-- Pauses a schedule, or resumes it to be planned anew from now. ASKED: id, 1 or 0. Returns whether there is one.
local id, paused = unpack(ASKED)
local key = PREFIX .. 'schedule:' .. id
if redis.call('EXISTS', key) == 0 then
  return 0
end
if paused == 1 then
  redis.call('HSET', key, 'paused', 1)
  redis.call('ZREM', SLOTS, id)
elseif redis.call('HDEL', key, 'paused') == 1 then
  redis.call('HSET', key, 'changed_at', NOW_TEXT)
  redis.call('HDEL', key, 'next_slot')
  redis.call('ZADD', SLOTS, 0, id)
end
return 1
