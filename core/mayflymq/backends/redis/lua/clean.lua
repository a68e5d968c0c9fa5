-- Deletes jobs that ended long ago, the oldest first, and some throttle windows that are over.
-- ASKED: older_than_ms, limit, states. Returns their ids.
-- With: endings, removals.
local older_than_ms, limit, states = unpack(ASKED)
local old = {}
for _, state in ipairs(states) do
  local found, offset = 0, 0
  while found < limit and offset < LOOK_PAST do
    local members = redis.call(
      'ZRANGEBYSCORE', ZSET[state], '-inf', NOW - older_than_ms, 'WITHSCORES', 'LIMIT', offset, limit - found
    )
    if #members == 0 then
      break
    end
    for index = 1, #members, 2 do
      if not newer((load(id_of(members[index])) or {}).format) then
        found = found + 1
        old[#old + 1] = {tonumber(members[index + 1]), members[index], ZSET[state]}
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
for _, key in ipairs(redis.call('ZRANGEBYSCORE', WINDOWS, '-inf', NOW_TEXT, 'LIMIT', 0, limit)) do
  free_key(key)
end
return ids
