-- A new or a changed schedule. ARGV: id, count of fields, field, value, ...; as bytes: the payload. Whether it is
-- paused and the last slot stay, and where it stands, unless its rule is another.
if not REGISTERED then
  return 'UNREGISTERED'
end
local id = text()
local key = PREFIX .. 'schedule:' .. id
local function rule()
  return cjson.encode(redis.call('HMGET', key, 'every_ms', 'cron', 'timezone'))
end
local before = rule()
local kept = redis.call('HMGET', key, 'revision', 'paused')
redis.call('HSET', key, 'id', id, 'revision', (tonumber(kept[1]) or 0) + 1, 'format', FORMAT, 'payload', blob())
redis.call('HDEL', key, 'every_ms', 'cron', 'ttl_ms', 'timeout_ms')
for _ = 1, number() do
  redis.call('HSET', key, text(), text())
end
redis.call('ZADD', SCHEDULES, 0, id)
if rule() ~= before then
  redis.call('HSET', key, 'changed_at', whole(NOW))
  redis.call('HDEL', key, 'next_slot')
  if not kept[2] then
    redis.call('ZADD', SLOTS, 0, id)
  end
end
return 'OK'
