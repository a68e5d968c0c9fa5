-- A schedule's fields, field, value, ...; nil where there is none that this version reads.
local function schedule(id)
  local key = PREFIX .. 'schedule:' .. id
  local format = redis.pcall('HGET', key, 'format')
  if type(format) == 'string' and not newer(format) then
    return redis.call('HGETALL', key)
  end
end
