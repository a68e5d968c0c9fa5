-- A new or a changed schedule. ARGV: id, count of fields, field, value, ...; as bytes: the payload. Whether it is
-- paused and the last slot stay.
if not REGISTERED then
  return 'UNREGISTERED'
end
local id = text()
local key = PREFIX .. 'schedule:' .. id
local kept = redis.call('HMGET', key, 'revision', 'paused', 'last_slot')
redis.call('HSET', key, 'id', id, 'revision', (tonumber(kept[1]) or 0) + 1, 'changed_at', whole(NOW), 'format', FORMAT)
redis.call('HDEL', key, 'next_slot', 'every_ms', 'cron', 'ttl_ms', 'timeout_ms')
redis.call('HSET', key, 'payload', blob())
for _ = 1, number() do
  redis.call('HSET', key, text(), text())
end
redis.call('ZADD', SCHEDULES, 0, id)
if not kept[2] then
  redis.call('ZADD', SLOTS, 0, id)
end
return 'OK'
