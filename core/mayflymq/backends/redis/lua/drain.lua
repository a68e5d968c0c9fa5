-- Removes waiting jobs in order, then delayed ones where they are asked for. ASKED: include_delayed, limit.
-- Returns their ids, and the dependants.
-- With: endings, removals.
local include_delayed, limit = unpack(ASKED)
local chosen, passed = {}, 0
local function choose(state)
  local offset = 0
  while #chosen < limit and passed < LOOK_PAST do
    local members = redis.call('ZRANGE', ZSET[state], offset, offset + limit - #chosen - 1)
    if #members == 0 then
      return
    end
    for _, member in ipairs(members) do
      if newer((load(id_of(member)) or {}).format) then
        passed = passed + 1
      else
        chosen[#chosen + 1] = {state, member}
      end
    end
    offset = offset + #members
  end
end
choose('waiting')
if include_delayed == 1 then
  choose('delayed')
end
local ids, dependants = {}, {}
for _, each in ipairs(chosen) do
  local state, member = unpack(each)
  local job = load(id_of(member))
  if job and job.bad and not ZSET[job.state] then
    job.state = state -- as its member says
  end
  if job and job.state == state then
    ids[#ids + 1] = job.id
    for _, value in ipairs(remove(job)) do
      dependants[#dependants + 1] = value
    end
  else -- it may have failed meanwhile by a parent's removal
    redis.call('ZREM', ZSET[state], member)
  end
end
return {ids, dependants}
