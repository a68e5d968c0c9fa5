-- Schedules whose slot has come or that are not planned yet, the earliest first. ARGV: limit. Returns now, and their
-- fields.
local records = {}
for index, id in ipairs(redis.call('ZRANGEBYSCORE', SLOTS, '-inf', NOW, 'LIMIT', 0, number())) do
  records[index] = redis.call('HGETALL', PREFIX .. 'schedule:' .. id)
end
return {whole(NOW), records}
