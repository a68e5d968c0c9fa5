-- Removes waiting jobs in order, then delayed ones where they are asked for. ARGV: include_delayed, limit.
-- Returns their ids, and the dependants.
local include_delayed, limit = text() == '1', number()
local members = redis.call('ZRANGE', ZSET.waiting, 0, limit - 1)
if include_delayed and #members < limit then
  for _, member in ipairs(redis.call('ZRANGE', ZSET.delayed, 0, limit - #members - 1)) do
    members[#members + 1] = member
  end
end
local ids, dependants = {}, {}
for _, member in ipairs(members) do
  local job = load(id_of(member))
  -- It may have failed meanwhile by a parent's removal.
  if job and (job.state == 'waiting' or (include_delayed and job.state == 'delayed')) then
    ids[#ids + 1] = job.id
    for _, value in ipairs(remove(job)) do
      dependants[#dependants + 1] = value
    end
  end
end
return {ids, dependants}
