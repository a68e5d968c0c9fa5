-- The queue at a glance. ARGV: how many active jobs to look at, how many workers to name. Returns whether it is
-- known and paused, the counts by state, the oldest waiting job's created_at, and worker, claims, age, ...
local look_at, name_at_most = number(), number()
local counts = {}
local STATES = {'waiting', 'delayed', 'blocked', 'active', 'completed', 'failed', 'expired', 'cancelled'}
for index, state in ipairs(STATES) do
  counts[index] = redis.call('ZCARD', ZSET[state])
end
local oldest = redis.call('ZRANGE', AGES, 0, 0, 'WITHSCORES')[2]
local claims, ages, names = {}, {}, {}
for _, member in ipairs(redis.call('ZRANGE', ZSET.active, 0, look_at - 1)) do
  local found = load(id_of(member)) or {}
  local worker, age = found.worker, NOW - (tonumber(found.heartbeat_at) or NOW)
  if worker then
    if not claims[worker] then
      names[#names + 1] = worker
    end
    claims[worker] = (claims[worker] or 0) + 1
    ages[worker] = math.max(ages[worker] or 0, age)
  end
end
table.sort(names, function(one, other)
  if ages[one] ~= ages[other] then return ages[one] > ages[other] end
  return one < other
end)
local workers = {}
for index = 1, math.min(#names, name_at_most) do
  workers[#workers + 1] = names[index]
  workers[#workers + 1] = claims[names[index]]
  workers[#workers + 1] = ages[names[index]]
end
return {
  REGISTERED and 1 or 0, PAUSED and 1 or 0, counts,
  oldest and whole(math.max(0, NOW - tonumber(oldest))) or '', workers,
}
