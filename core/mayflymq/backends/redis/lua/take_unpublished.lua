-- Hands out deliveries: those handed out long enough ago and not confirmed since, then those never handed out.
-- ASKED: min_age_ms, limit. Returns for each: id, token, priority, target.
local min_age_ms, limit = unpack(ASKED)
local members = redis.call('ZRANGEBYSCORE', UNPUBLISHED, '-inf', NOW - min_age_ms, 'LIMIT', 0, limit)
if #members < limit then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', UNPUBLISHED, NEVER, NEVER, 'LIMIT', 0, limit - #members)) do
    members[#members + 1] = member
  end
end
local taken = {}
for _, member in ipairs(members) do
  local job = load(id_of(member))
  if job and job.delivery then
    redis.call('ZADD', UNPUBLISHED, NOW, member)
    taken[#taken + 1] = {job.id, job.delivery, job.priority, job.state == 'waiting' and 'main' or 'dlq'}
  else
    redis.call('ZREM', UNPUBLISHED, member)
  end
end
return taken
