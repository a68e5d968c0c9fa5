-- Claims the one job that a delivery is about. ARGV: id, delivery token, claim token, worker, stale_after_ms.
-- Returns its record, or gone, or paused.
local id, delivery, token, worker, stale_after_ms = text(), text(), text(), text(), number()
local job = load(id)
if job and job.state == 'active' and job.claim_token == token then
  return record(id)
end
if job and job.bad and job.state == 'waiting' and job.delivery == delivery then
  set_aside(job, member_of(job))
  return 'gone'
end
if not job or job.bad or newer(job) or job.state ~= 'waiting' or job.delivery ~= delivery then
  return 'gone'
end
if redis.call('HEXISTS', META, 'paused') == 1 then
  return 'paused'
end
take(job, token, worker, stale_after_ms, 0)
return record(id)
