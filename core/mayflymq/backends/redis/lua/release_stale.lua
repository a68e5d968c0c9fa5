-- The sweep. ASKED: limit, max_stalls. Returns for each job found: id, status, stalls, worker, dependants; then for
-- each cascade that went on: parent, 'cascaded', 0, '', dependants.
-- With: endings, scans.
local BEHIND_MS = 60000
local limit, max_stalls = unpack(ASKED)
local recovered = {}

sift(ZSET.active, NOW_TEXT, limit, function(member, id)
  local job = load(id)
  if job and newer(job.format) then
    return 'kept'
  elseif job and job.bad then
    redis.call('ZADD', ZSET.active, NOW + BEHIND_MS, member)
    recovered[#recovered + 1] = {id, 'unreadable', 0, '', {}}
    return 'done'
  elseif not job or job.state ~= 'active' or job.place .. id ~= member then
    redis.call('ZREM', ZSET.active, member) -- the record is gone, or stands elsewhere
    return 'gone'
  end
  local stalls, worker = (tonumber(job.stalls) or 0) + 1, job.worker
  local status, dependants = 'released', {}
  job.stalls = whole(stalls)
  if job.cancel_requested then
    status, dependants = 'cancelled', finish(job, 'cancelled')
  elseif stalls > max_stalls then
    local told = cjson.decode('@STALLED_OUT@')
    fail(job, cjson.encode({told[1], (string.gsub(told[2], '@STALLS@', job.stalls)), ''}))
    status, dependants = 'failed', finish(job, 'failed')
  else
    move(job, 'waiting', true)
  end
  recovered[#recovered + 1] = {id, status, stalls, worker, dependants}
  return 'done'
end)
for _, mark in ipairs(redis.call('ZRANGE', CASCADES, 0, limit - 1)) do
  redis.call('ZREM', CASCADES, mark) -- marked again where children remain
  local bar = string.find(mark, '|', 1, true)
  local family, ended, parent = string.sub(mark, 1, 16), string.sub(mark, 17, bar - 1), string.sub(mark, bar + 1)
  recovered[#recovered + 1] = {parent, 'cascaded', 0, '', settle_children(family, parent, ended)}
end
return recovered
