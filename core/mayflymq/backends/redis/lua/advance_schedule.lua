-- Moves a schedule on from the slot that was seen. ASKED: id, revision, slot, next_slot, last_slot ('' for none).
-- Returns whether it stood there.
local id, revision, slot, next_slot, last_slot = unpack(ASKED)
local key = PREFIX .. 'schedule:' .. id
local found = redis.call('HMGET', key, 'revision', 'next_slot', 'paused')
if found[1] ~= revision or (found[2] or '') ~= slot then
  return 0
end
redis.call('HSET', key, 'next_slot', next_slot)
if last_slot ~= '' then
  redis.call('HSET', key, 'last_slot', last_slot)
end
if not found[3] then
  redis.call('ZADD', SLOTS, next_slot, id)
end
return 1
