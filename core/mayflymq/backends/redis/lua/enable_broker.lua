-- From now on every job that a broker delivers gets a delivery; those that are there get theirs in steps. ASKED: state,
-- cursor. Returns where the next step goes on, no state after the last one.
local NEXT = {waiting = 'failed', failed = 'expired', expired = ''}
local state, cursor = unpack(ASKED)
if not REGISTERED or BROKER == 'all' then
  return {'', '0'}
end
if not BROKER then
  redis.call('HSET', META, 'broker', 'new')
  BROKER = 'new'
end
local part = redis.call('ZSCAN', ZSET[state], cursor, 'COUNT', 500)
for index = 1, #part[2], 2 do
  local job = load(id_of(part[2][index]))
  if job and not job.bad and job.state == state and not job.delivery then
    deliver(job)
    save(job)
  end
end
if part[1] ~= '0' then
  return {state, part[1]}
end
if NEXT[state] == '' then
  redis.call('HSET', META, 'broker', 'all')
end
return {NEXT[state], '0'}
