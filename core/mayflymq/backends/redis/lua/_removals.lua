-- Deletes a job in any state. Returns what that did to its children.
local function remove(job)
  if not job.bad then
    leave(job)
  else
    for _, zset in pairs(ZSET) do
      redis.call('ZREM', zset, (job.place or '') .. job.id)
    end
    if job.claim_token then
      redis.call('ZREM', PREFIX .. 'claim:' .. job.claim_token, job.id)
    end
  end
  end_delivery(job)
  let_go(job)
  redis.call('DEL', PREFIX .. 'job:' .. job.id)
  if TERMINAL[job.state] or not job.family then
    return {}
  end
  return settle_children(job.family, job.id, 'removed')
end
