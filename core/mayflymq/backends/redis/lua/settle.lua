-- Ends claims, then makes the next one. ASKED: the settles, each id, token, event, where in ARGV its result is (0: there
-- is none), delay_ms, error; then limit (0: no claim), token, worker, stale_after_ms. Returns, as JSON, each one's
-- settlement and dependants; and the jobs claimed.
-- With: endings, scans, claims.
local ENDS = {complete = 'completed', fail = 'failed', expire = 'expired', cancel = 'cancelled'}

local function settle(id, token, event, result, delay_ms, error)
  local job = load(id)
  if not job or job.bad or job.state ~= 'active' or job.claim_token ~= token then
    if not job or job.settled_token ~= token then
      return {'lost', {}}
    elseif job.settled_as == '@STOOD@' then
      return {'cancelled', {}}
    end
    return {job.settled_as == event and 'duplicate' or 'lost', {}}
  end
  job.settled_token, job.settled_as = token, event
  if job.cancel_requested then
    job.settled_as = '@STOOD@'
    return {'cancelled', finish(job, 'cancelled')}
  end
  if event == 'retry' or event == 'fail' then
    job.failures = whole((tonumber(job.failures) or 0) + 1)
    fail(job, error)
  elseif event == 'complete' then
    if job.erred then
      redis.call('HDEL', PREFIX .. 'job:' .. id, 'error')
    end
    if result > 0 then
      job.beside = {'result', ARGV[result]}
    end
  end
  if ENDS[event] then
    return {'applied', finish(job, ENDS[event])}
  end
  if event == 'release' then
    move(job, 'waiting')
  elseif delay_ms > 0 then
    job.run_at = after(delay_ms)
    move(job, 'delayed')
  else
    move(job, 'waiting', true)
  end
  return {'applied', {}}
end

local settles, limit, token, worker, stale_after_ms = unpack(ASKED)
local settled = {}
for index, each in ipairs(settles) do
  settled[index] = settle(unpack(each))
end
return {cjson.encode(settled), limit > 0 and claim(limit, token, worker, stale_after_ms) or {}}
