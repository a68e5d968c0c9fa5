-- Ends claims, then makes the next one. ARGV: count, then for each: id, token, event, delay_ms, error, whether there
-- is a result; as bytes: the results. Then limit (0: no claim), token, worker, stale_after_ms. Returns for each, as
-- JSON, its settlement and dependants, and the records claimed.
local ENDS = {complete = 'completed', fail = 'failed', expire = 'expired', cancel = 'cancelled'}

local function settle()
  local id, token, event, delay_ms = text(), text(), text(), number()
  local error = optional()
  local result = text() == '1' and blob() or nil
  local job = load(id)
  if not job or job.bad or job.state ~= 'active' or job.claim_token ~= token then
    if not job or job.settled_token ~= token then
      return {'lost', {}}
    elseif job.settled_as == '@STOOD@' then
      return {'cancelled', {}}
    end
    return {job.settled_as == event and 'duplicate' or 'lost', {}}
  end
  set(job, 'settled_token', token)
  if job.cancel_requested then
    set(job, 'settled_as', '@STOOD@')
    return {'cancelled', finish(job, 'cancelled')}
  end
  set(job, 'settled_as', event)
  if event == 'retry' or event == 'fail' then
    set(job, 'failures', (tonumber(job.failures) or 0) + 1)
    fail(job, error)
  elseif event == 'complete' then
    if job.erred then
      redis.call('HDEL', job.key, 'error')
    end
    if result then
      set_beside(job, 'result', result)
    end
  end
  if ENDS[event] then
    return {'applied', finish(job, ENDS[event])}
  end
  if event == 'release' then
    move(job, 'waiting')
  elseif delay_ms > 0 then
    set(job, 'run_at', after(delay_ms))
    move(job, 'delayed')
  else
    move(job, 'waiting', true)
  end
  return {'applied', {}}
end

local settled = {}
for index = 1, number() do
  settled[index] = settle()
end
local limit = number()
return {cjson.encode(settled), limit > 0 and claim(limit, text(), text(), number()) or {}}
