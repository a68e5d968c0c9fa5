-- Deletes a schedule. ARGV: id. Returns whether there was one.
local id = text()
redis.call('ZREM', SCHEDULES, id)
redis.call('ZREM', SLOTS, id)
return redis.call('DEL', PREFIX .. 'schedule:' .. id)
