-- Deletes a schedule. ASKED: id. Returns whether there was one.
local id = ASKED[1]
redis.call('ZREM', SCHEDULES, id)
redis.call('ZREM', SLOTS, id)
return redis.call('DEL', PREFIX .. 'schedule:' .. id)
