-- Schedules by id, those behind one. ASKED: whether an id follows, id, limit. Returns their fields.
-- With: schedules.
local follows, id, limit = unpack(ASKED)
local from = follows == 1 and '(' or '['
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
