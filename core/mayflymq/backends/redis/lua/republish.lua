-- Fresh tokens for waiting jobs whose delivery was published long ago. ASKED: older_than_ms, limit. Returns their ids.
local older_than_ms, limit = unpack(ASKED)
local ids, offset = {}, 0
while #ids < limit and offset < LOOK_PAST do
  local members = redis.call('ZRANGEBYSCORE', PUBLISHED, '-inf', NOW - older_than_ms, 'LIMIT', offset, limit - #ids)
  if #members == 0 then
    break
  end
  for _, member in ipairs(members) do
    local job = load(id_of(member))
    if job and job.state == 'waiting' then
      deliver(job)
      save(job)
      ids[#ids + 1] = job.id
    else
      offset = offset + 1 -- a dead letter
    end
  end
end
return ids
