-- Schedules by id, those behind one. ARGV: whether an id follows, id, limit. Returns their fields.
local from = text() == '1' and '(' or '['
local id, limit = text(), number()
local records, offset = {}, 0
while #records < limit and offset < LOOK_PAST do
  local ids = redis.call('ZRANGEBYLEX', SCHEDULES, from .. id, '+', 'LIMIT', offset, limit - #records)
  if #ids == 0 then
    break
  end
  for _, found in ipairs(ids) do
    records[#records + 1] = schedule(found)
  end
  offset = offset + #ids
end
return records
