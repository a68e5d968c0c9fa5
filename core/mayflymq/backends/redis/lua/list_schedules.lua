-- Schedules by id, those behind one. ARGV: whether an id follows, id, limit. Returns their fields.
local from = text() == '1' and '(' or '['
local id, limit = text(), number()
local records = {}
for index, found in ipairs(redis.call('ZRANGEBYLEX', SCHEDULES, from .. id, '+', 'LIMIT', 0, limit)) do
  records[index] = redis.call('HGETALL', PREFIX .. 'schedule:' .. found)
end
return records
