-- Removes waiting jobs in order, then delayed ones where they are asked for. ASKED: include_delayed, limit.
-- Returns their ids, and the dependants.
-- With: endings, removals, scans.
local include_delayed, limit = unpack(ASKED)
local ids, dependants = {}, {}
local function drain(state)
  sift(ZSET[state], '+inf', limit - #ids, function(member, id)
    local job = load(id)
    if not job or job.state ~= state then -- it may have failed meanwhile by a parent's removal
      redis.call('ZREM', ZSET[state], member)
      return 'gone'
    end
    if newer(job.format) then
      return 'kept'
    end
    ids[#ids + 1] = job.id
    for _, value in ipairs(remove(job)) do
      dependants[#dependants + 1] = value
    end
    return 'done'
  end)
end
drain('waiting')
if include_delayed == 1 then
  drain('delayed')
end
return {ids, dependants}
