-- The queue at a glance. ASKED: how many active jobs to look at, how many workers to name, how many priorities to look at.
-- Returns whether it is known and paused, the counts by state, for how long a job has waited, and worker, claims, age, ...
local look_at, name_at_most, priorities = unpack(ASKED)
local counts = {}
local STATES = {'waiting', 'delayed', 'blocked', 'active', 'completed', 'failed', 'expired', 'cancelled'}
for index, state in ipairs(STATES) do
  counts[index] = redis.call('ZCARD', ZSET[state])
end
-- The first of each priority: they entered first, so they have waited for longest.
local waited, priority = nil, '-inf'
for _ = 1, priorities do
  local first = redis.call('ZRANGEBYSCORE', ZSET.waiting, priority, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #first == 0 then
    break
  end
  priority = '(' .. first[2]
  local job = load(id_of(first[1])) or {}
  local since = 0
  for _, time in ipairs({'created_at', 'run_at', 'retried_at'}) do
    since = math.max(since, tonumber(job[time]) or 0)
  end
  waited = math.max(waited or 0, NOW - (since > 0 and since or NOW))
end
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
  waited and whole(waited) or '', workers,
}
