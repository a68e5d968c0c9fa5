-- Schedules whose slot has come or that are not planned yet, the earliest first. ASKED: limit. Returns now, and their
-- fields.
-- With: schedules.
local limit, records, offset = ASKED[1], {}, 0
while #records < limit and offset < LOOK_PAST do
  local ids = redis.call('ZRANGEBYSCORE', SLOTS, '-inf', NOW, 'LIMIT', offset, limit - #records)
  if #ids == 0 then
    break
  end
  for _, id in ipairs(ids) do
    records[#records + 1] = schedule(id)
  end
  offset = offset + #ids
end
return {NOW_TEXT, records}
