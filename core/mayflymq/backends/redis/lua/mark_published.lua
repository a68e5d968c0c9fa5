-- The broker confirmed a delivery. ASKED: id, delivery token. Returns whether it is still the job's.
local id, token = unpack(ASKED)
local job = load(id)
if not job or job.delivery ~= token then
  return 0
end
redis.call('ZREM', UNPUBLISHED, delivery_of(job))
redis.call('ZADD', PUBLISHED, NOW, delivery_of(job))
return 1
