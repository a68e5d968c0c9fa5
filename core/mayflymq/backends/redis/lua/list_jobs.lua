-- A page of the jobs in one state. ASKED: state, whether a cursor follows, its rank, its place, limit.
-- Returns the jobs, and the rank and place of the last one where more follow.
local state, has_cursor, rank, place, limit = unpack(ASKED)
local zset = ZSET[state]

-- How many members stand up to and with the cursor; it may be of a job that is gone.
local function behind()
  local low, high = 0, redis.call('ZCARD', zset)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', zset, middle, middle, 'WITHSCORES')
    local score = tonumber(found[2])
    if score < rank or (score == rank and string.sub(found[1], 1, 16) <= place) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local start = has_cursor == 1 and behind() or 0
local records, last, passed = {}, nil, 0
while true do
  local part = redis.call('ZRANGE', zset, start, start + limit, 'WITHSCORES')
  if #part == 0 then
    return {records, '', ''}
  end
  for index = 1, #part, 2 do
    local id = id_of(part[index])
    local format = (load(id) or {}).format
    local readable = format and (tonumber(format) or 0) <= FORMAT
    if (readable and #records == limit) or passed == LOOK_PAST then
      return {records, whole(tonumber(last[2])), string.sub(last[1], 1, 16)}
    end
    if readable then
      records[#records + 1] = whole_job(id)
    else
      passed = passed + 1
    end
    if readable or passed == LOOK_PAST then
      last = {part[index], part[index + 1]}
    end
    start = start + 1
  end
end
