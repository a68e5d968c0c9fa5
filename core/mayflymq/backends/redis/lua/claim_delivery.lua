-- Claims the one job that a delivery is about. ASKED: id, delivery token, claim token, worker, stale_after_ms.
-- Returns its record and what is beside it, or gone, or paused.
-- With: endings, scans, claims.
local id, delivery, token, worker, stale_after_ms = unpack(ASKED)
local job = load(id)
if job and job.state == 'active' and job.claim_token == token then
  return whole_job(id)
end
if not job or newer(job.format) or job.state ~= 'waiting' or job.delivery ~= delivery then
  return 'gone'
end
if job.bad then
  set_aside(job, (job.place or next_number()) .. id)
  return 'gone'
end
if PAUSED then
  return 'paused'
end
return take(job, token, worker, stale_after_ms)
