-- Deletes jobs that ended long ago, the oldest first, and some throttle windows that are over.
-- ARGV: older_than_ms, limit, count, states. Returns their ids.
local before, limit = NOW - number(), number()
local old = {}
for _ = 1, number() do
  local zset, found, offset = ZSET[text()], 0, 0
  while found < limit and offset < LOOK_PAST do
    local members = redis.call('ZRANGEBYSCORE', zset, '-inf', before, 'WITHSCORES', 'LIMIT', offset, limit - found)
    if #members == 0 then
      break
    end
    for index = 1, #members, 2 do
      if not newer((load(id_of(members[index])) or {}).format) then
        found = found + 1
        old[#old + 1] = {tonumber(members[index + 1]), members[index], zset}
      end
      offset = offset + 1
    end
  end
end
table.sort(old, function(one, other)
  if one[1] ~= other[1] then return one[1] < other[1] end
  return one[2] < other[2]
end)
local ids = {}
for index = 1, math.min(#old, limit) do
  local job = load(id_of(old[index][2]))
  if job then
    remove(job)
    ids[#ids + 1] = job.id
  else
    redis.call('ZREM', old[index][3], old[index][2])
  end
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', WINDOWS, '-inf', NOW, 'LIMIT', 0, limit)) do
  free_key(key)
end
return ids
