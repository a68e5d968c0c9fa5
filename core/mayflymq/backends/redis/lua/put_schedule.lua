-- A new or a changed schedule. ASKED: id, fields (field, value, ...); as bytes: the payload. Whether it is
-- paused and the last slot stay, and where it stands, unless its rule is another.
if not REGISTERED then
  return 'UNREGISTERED'
end
local id, fields = unpack(ASKED)
local key = PREFIX .. 'schedule:' .. id
local function rule()
  return cjson.encode(redis.call('HMGET', key, 'every_ms', 'cron', 'timezone'))
end
local before = rule()
local paused = redis.call('HGET', key, 'paused')
-- No revision comes twice: the queue's number begins anew when the queue was dropped, but then its generation is
-- another. 48 bits of their digest are a whole number that a double holds.
local revision = whole(tonumber('0x' .. string.sub(redis.sha1hex(REGISTERED .. next_number()), 1, 12)))
redis.call('HSET', key, 'id', id, 'revision', revision, 'format', FORMAT, 'payload', ARGV[2])
redis.call('HDEL', key, 'every_ms', 'cron', 'ttl_ms', 'timeout_ms')
for index = 1, #fields, 2 do
  redis.call('HSET', key, fields[index], fields[index + 1])
end
redis.call('ZADD', SCHEDULES, 0, id)
if rule() ~= before then
  redis.call('HSET', key, 'changed_at', NOW_TEXT)
  redis.call('HDEL', key, 'next_slot')
  if not paused then
    redis.call('ZADD', SLOTS, 0, id)
  end
end
return 'OK'
