-- What the transitions share; put before each of them.
--
-- KEYS     the queue's fixed keys, in the order of keys.py
-- ARGV[1]  a JSON array: the prefix of the keys of single jobs and claims, with the queue's hash tag; the time in
--          milliseconds, for tests, or '' for the server's; the newest record format that the caller knows; how many
--          children one step settles; then the script's own arguments
-- ARGV[2]  and on: those of its arguments that are bytes

local ZSET = {
  waiting = KEYS[1], delayed = KEYS[2], blocked = KEYS[3], active = KEYS[4],
  completed = KEYS[5], failed = KEYS[6], expired = KEYS[7], cancelled = KEYS[8],
}
local META, AGES, DEDUP, WINDOWS, CASCADES = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local UNPUBLISHED, PUBLISHED, SCHEDULES, SLOTS = KEYS[14], KEYS[15], KEYS[16], KEYS[17]
local ARGUMENTS = cjson.decode(ARGV[1])
local PREFIX, FORMAT, MAX_CHILDREN = ARGUMENTS[1], ARGUMENTS[3], ARGUMENTS[4]
local MAX_TIME = 9007199254740991
local BROKER, REGISTERED, PAUSED, NEWER = unpack(redis.call('HMGET', META, 'broker', 'registered', 'paused', 'newer'))
local TERMINAL = {completed = true, failed = true, expired = true, cancelled = true}
local DELIVERED = {waiting = true, failed = true, expired = true}

local NOW = tonumber(ARGUMENTS[2])
if not NOW then
  local time = redis.call('TIME')
  NOW = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Times stay whole numbers that a double holds.
local function after(ms)
  return math.min(NOW + ms, MAX_TIME)
end

-- A number for a place or a family, padded so that text order is number order.
local function next_number()
  return string.format('%016.0f', redis.call('HINCRBY', META, 'last', 1))
end

local function job_key(id)
  return PREFIX .. 'job:' .. id
end

local function integer(text)
  return type(text) == 'string' and string.find(text, '^%-?%d+$')
end

-- What transitions know of a job: the JSON object in the field `record` of its hash, all of it text, as numbers in JSON
-- would lose digits. What is written once, or only read by callers, has fields of its own beside it: `spec`, `payload`,
-- `result`, `error`, `first_error`. nil where there is no job; `bad` is set where the record makes no sense.
local function load(id)
  local packed = redis.pcall('HGET', job_key(id), 'record')
  if type(packed) ~= 'string' then
    return nil
  end
  local ok, job = pcall(cjson.decode, packed)
  if not ok or type(job) ~= 'table' then
    job = {}
  end
  job.id, job.key, job.beside = id, job_key(id), {}
  if not (ZSET[job.state] and type(job.place) == 'string' and #job.place == 16 and job.family and job.born)
    or not integer(job.priority) or not integer(job.created_at)
    or (job.state == 'delayed' and not integer(job.run_at))
    or (job.state == 'active' and not (integer(job.stale_at) and job.claim_token and job.worker))
    or (TERMINAL[job.state] and not integer(job.finished_at)) then
    job.bad = true
  end
  return job
end

local function set(job, name, value)
  job[name] = type(value) == 'number' and whole(value) or value
end

local function unset(job, name)
  job[name] = nil
end

-- A field beside the record.
local function set_beside(job, name, value)
  job.beside[#job.beside + 1] = name
  job.beside[#job.beside + 1] = value
end

-- Writes what was set and unset.
local function save(job)
  local key, beside, bad, order = job.key, job.beside, job.bad, job.claim_order
  job.key, job.beside, job.bad, job.claim_order = nil, nil, nil, nil
  redis.call('HSET', key, 'record', cjson.encode(job), unpack(beside))
  job.key, job.beside, job.bad, job.claim_order = key, {}, bad, order
end

local function rank_of(job)
  if job.state == 'waiting' then return job.priority end
  if job.state == 'delayed' then return job.run_at end
  if job.state == 'active' then return job.stale_at end
  if job.state == 'blocked' then return '0' end
  return job.finished_at
end

local function member_of(job)
  return job.place .. job.id
end

local function id_of(member)
  return string.sub(member, 17)
end

local function claim_key(token)
  return PREFIX .. 'claim:' .. token
end

-- A delivery's score among the unpublished is when it was handed out; the others go in the order of their jobs.
local NEVER = MAX_TIME
local function delivery_of(job)
  return job.born .. job.id
end

local function end_delivery(job)
  if job.delivery then
    redis.call('ZREM', UNPUBLISHED, delivery_of(job))
    redis.call('ZREM', PUBLISHED, delivery_of(job))
    unset(job, 'delivery')
  end
end

-- The job leaves its state's order and lets go of its claim; put_in follows, unless it is removed.
local function take_out(job)
  redis.call('ZREM', ZSET[job.state], member_of(job))
  if job.state == 'waiting' then
    redis.call('ZREM', AGES, job.id)
  end
  if job.claim_token then
    redis.call('ZREM', claim_key(job.claim_token), job.id)
  end
end

local function put_in(job)
  redis.call('ZADD', ZSET[job.state], rank_of(job), member_of(job))
  if job.state == 'waiting' then
    redis.call('ZADD', AGES, job.created_at, job.id)
  end
  if job.claim_token then
    redis.call('ZADD', claim_key(job.claim_token), job.claim_order or 0, job.id)
  end
end

-- Entering a state that a broker delivers makes a delivery under a fresh token, entering another one ends it.
local function deliver(job)
  end_delivery(job)
  if BROKER and DELIVERED[job.state] then
    set(job, 'delivery', redis.sha1hex(REGISTERED .. next_number()))
    redis.call('ZADD', UNPUBLISHED, NEVER, delivery_of(job))
  end
end

-- One lifecycle transition. Fields that go with it are set before, except those that order the old state.
local function move(job, state, fresh_place)
  take_out(job)
  if job.state == 'active' and state ~= 'active' then
    unset(job, 'claim_token')
    unset(job, 'heartbeat_at')
    unset(job, 'stale_at')
    unset(job, 'cancel_requested')
  end
  local entered = job.state ~= state
  set(job, 'state', state)
  if fresh_place then
    set(job, 'place', next_number())
  end
  if TERMINAL[state] then
    set(job, 'finished_at', NOW)
  end
  put_in(job)
  if entered then
    deliver(job)
  end
  save(job)
end

-- Who holds a deduplication key now, and whether that is a throttle window; nil when it is free.
local function key_holder(key)
  local held = redis.call('HGET', DEDUP, key)
  if not held then
    return nil
  end
  local bar = string.find(held, '|', 1, true)
  local till = string.sub(held, 1, bar - 1)
  if till ~= '' and tonumber(till) <= NOW then
    redis.call('HDEL', DEDUP, key)
    redis.call('ZREM', WINDOWS, key)
    return nil
  end
  return string.sub(held, bar + 1), till ~= ''
end

local function free_key(key)
  redis.call('HDEL', DEDUP, key)
  redis.call('ZREM', WINDOWS, key)
end

local function take_key(key, holder, window_ms)
  if window_ms then
    local till = after(window_ms)
    redis.call('HSET', DEDUP, key, whole(till) .. '|' .. holder)
    redis.call('ZADD', WINDOWS, till, key)
  else
    redis.call('HSET', DEDUP, key, '|' .. holder)
    redis.call('ZREM', WINDOWS, key)
  end
end

local function children_key(family)
  return PREFIX .. 'children:' .. family
end

-- Releases the key that the job still holds, and its place among its parents' children.
local function let_go(job)
  if job.dedup_key then
    local holder, window = key_holder(job.dedup_key)
    if holder == job.id and not window then
      free_key(job.dedup_key)
    end
  end
  if job.unfinished then
    for family in string.gmatch(job.unfinished, '%S+') do
      redis.call('ZREM', children_key(family), job.id)
    end
    unset(job, 'unfinished')
    save(job)
  end
end

local function wait_for(job, families)
  if #families > 0 then
    set(job, 'unfinished', table.concat(families, ' '))
    for _, family in ipairs(families) do
      redis.call('ZADD', children_key(family), next_number(), job.id)
    end
  end
end

local function leave_parent(job, family)
  redis.call('ZREM', children_key(family), job.id)
  local rest = {}
  for other in string.gmatch(job.unfinished or '', '%S+') do
    if other ~= family then
      rest[#rest + 1] = other
    end
  end
  if #rest > 0 then
    set(job, 'unfinished', table.concat(rest, ' '))
  else
    unset(job, 'unfinished')
  end
end

local function fail(job, error)
  set_beside(job, 'error', error)
  if not job.erred then
    set(job, 'erred', '1')
    set_beside(job, 'first_error', error)
  end
end

-- A record that makes no sense, found as a member of its state's order, fails, so that it hides no other. As every
-- ending this settles its children, or its caller does.
local function spoil(job, member)
  redis.call('ZREM', ZSET[job.state], member)
  redis.call('ZREM', AGES, job.id)
  set(job, 'place', string.sub(member, 1, 16))
  set(job, 'family', job.family or next_number())
  set(job, 'born', job.born or job.place)
  set(job, 'priority', integer(job.priority) and job.priority or '5')
  set(job, 'created_at', integer(job.created_at) and job.created_at or NOW)
  set(job, 'state', 'failed')
  set(job, 'finished_at', NOW)
  unset(job, 'run_at')
  fail(job, cjson.encode({'CorruptRecord', 'the stored record makes no sense', ''}))
  put_in(job)
  deliver(job)
  save(job)
  let_go(job)
end

local function parent_failed(parent, ended)
  local values = {PARENT = parent, ENDED = ended}
  local text = string.gsub(cjson.decode('@PARENT_FAILED@')[2], '@(%u+)@', values)
  return cjson.encode({cjson.decode('@PARENT_FAILED@')[1], text, ''})
end

-- Settles the children of an ended parent, and theirs, at most MAX_CHILDREN; marks what remains for the sweep.
-- Returns a flat list: id, state, ...
local function settle_children(family, parent, ended)
  local dependants, budget = {}, MAX_CHILDREN
  local queue, head = {{family, parent, ended}}, 1
  while queue[head] do
    local of, name, how = queue[head][1], queue[head][2], queue[head][3]
    head = head + 1
    local key = children_key(of)
    local ids = redis.call('ZRANGE', key, 0, budget)
    for index = 1, math.min(#ids, budget) do
      local child = load(ids[index])
      if not child then
        redis.call('ZREM', key, ids[index])
      elseif child.bad then
        redis.call('ZREM', key, ids[index])
        if ZSET[child.state] and not TERMINAL[child.state] then
          spoil(child, (child.place or '') .. child.id)
          dependants[#dependants + 1] = child.id
          dependants[#dependants + 1] = 'failed'
          queue[#queue + 1] = {child.family, child.id, 'failed'}
        end
      else
        leave_parent(child, of)
        if how == 'completed' or child.on_parent_failure == 'run' then
          if child.state == 'blocked' and not child.unfinished then
            move(child, 'waiting', true)
            dependants[#dependants + 1] = child.id
            dependants[#dependants + 1] = 'waiting'
          else
            save(child)
          end
        else
          fail(child, parent_failed(name, how))
          move(child, 'failed')
          let_go(child)
          dependants[#dependants + 1] = child.id
          dependants[#dependants + 1] = 'failed'
          queue[#queue + 1] = {child.family, child.id, 'failed'}
        end
      end
    end
    if #ids > budget then
      redis.call('ZADD', CASCADES, of, of .. how .. '|' .. name)
    end
    budget = budget - math.min(budget, #ids)
  end
  return dependants
end

local function set_aside(job, member)
  spoil(job, member)
  return settle_children(job.family, job.id, 'failed')
end

-- A move to a terminal state, with what belongs to every ending.
local function finish(job, state)
  move(job, state)
  let_go(job)
  return settle_children(job.family, job.id, state)
end

-- Deletes a job in any state. Returns what that did to its children.
local function remove(job)
  if not job.bad then
    take_out(job)
  else
    for _, zset in pairs(ZSET) do
      redis.call('ZREM', zset, (job.place or '') .. job.id)
    end
    redis.call('ZREM', AGES, job.id)
    if job.claim_token then
      redis.call('ZREM', claim_key(job.claim_token), job.id)
    end
  end
  end_delivery(job)
  let_go(job)
  redis.call('DEL', job.key)
  if TERMINAL[job.state] or not job.family then
    return {}
  end
  return settle_children(job.family, job.id, 'removed')
end

-- Whether a record is of a newer format, and so left alone; what was seen is kept for check().
local function newer(format)
  format = tonumber(format) or 0
  if format > (tonumber(NEWER) or FORMAT) then
    NEWER = whole(format)
    redis.pcall('HSET', META, 'newer', NEWER) -- not worth an error where memory is full
  end
  return format > FORMAT
end

-- A schedule's fields, field, value, ...; nil where there is none that this version reads.
local function schedule(id)
  local key = PREFIX .. 'schedule:' .. id
  local format = redis.pcall('HGET', key, 'format')
  if type(format) == 'string' and not newer(format) then
    return redis.call('HGETALL', key)
  end
end

local LOOK_PAST = 10000

-- Goes through a state's members up to a score until `visit` has handled `limit` of them. It answers 'done', 'gone'
-- (the member was taken out and does not count) or 'kept' (it stays where it is and is looked past).
local function sift(zset, highest, limit, visit)
  local done, offset, others, step = 0, 0, 0, limit
  while done < limit and others < LOOK_PAST do
    local members = redis.call('ZRANGEBYSCORE', zset, '-inf', highest, 'LIMIT', offset, step)
    for _, member in ipairs(members) do
      if done == limit then
        return
      end
      local answer = visit(member, id_of(member))
      if answer == 'done' then
        done = done + 1
      else
        others = others + 1
        offset = offset + (answer == 'kept' and 1 or 0)
      end
    end
    if #members < step then
      return
    end
    step = math.min(2 * step, 1000) -- an offset costs what it passes
  end
end

-- Due delayed jobs, at most `limit`, to waiting, or to blocked while parents are unfinished. Returns their ids.
local function promote(limit)
  local ids = {}
  sift(ZSET.delayed, NOW, limit, function(member, id)
    local job = load(id)
    if job and newer(job.format) then
      return 'kept'
    elseif job and job.bad and job.state == 'delayed' then
      set_aside(job, member)
      return 'gone'
    elseif not job or member_of(job) ~= member or job.state ~= 'delayed' then
      redis.call('ZREM', ZSET.delayed, member)
      return 'gone'
    elseif job.unfinished then
      move(job, 'blocked')
    else
      move(job, 'waiting', true)
    end
    ids[#ids + 1] = id
    return 'done'
  end)
  return ids
end

-- A whole job: record, spec, payload, result, error, first_error; nothing where there is none, its id alone where the key
-- holds something else.
local function record(id)
  local fields = redis.pcall('HMGET', job_key(id), 'record', 'spec', 'payload', 'result', 'error', 'first_error')
  if fields.err then
    return {cjson.encode({id = id})}
  end
  return fields[1] and fields or {}
end

local function held_by(token)
  local records = {}
  for _, id in ipairs(redis.call('ZRANGE', claim_key(token), 0, -1)) do
    if (load(id) or {}).claim_token == token then
      records[#records + 1] = record(id)
    end
  end
  return records
end

local function take(job, token, worker, stale_after_ms, order)
  unset(job, 'settled_token')
  unset(job, 'settled_as')
  unset(job, 'progress')
  set(job, 'deliveries', (tonumber(job.deliveries) or 0) + 1)
  set(job, 'worker', worker)
  set(job, 'claimed_at', NOW)
  set(job, 'heartbeat_at', NOW)
  take_out(job)
  set(job, 'claim_token', token)
  set(job, 'stale_at', after(stale_after_ms))
  set(job, 'state', 'active')
  job.claim_order = order
  put_in(job)
  deliver(job)
  save(job)
end

-- The first waiting jobs under this token; what it holds already where it was sent before (promise D8).
local function claim(limit, token, worker, stale_after_ms)
  local held = held_by(token)
  if #held > 0 or PAUSED then
    return held
  end
  promote(limit)
  local taken = {}
  sift(ZSET.waiting, '+inf', limit, function(member, id)
    local job = load(id)
    if job and newer(job.format) then
      return 'kept'
    elseif job and job.bad and job.state == 'waiting' then
      set_aside(job, member)
      return 'gone'
    elseif not job or job.state ~= 'waiting' or member_of(job) ~= member then
      redis.call('ZREM', ZSET.waiting, member) -- a member that no transition left here (promise X4)
      if not job or job.state ~= 'waiting' then
        redis.call('ZREM', AGES, id)
      end
      return 'gone'
    end
    take(job, token, worker, stale_after_ms, #taken)
    taken[#taken + 1] = record(id)
    return 'done'
  end)
  return taken
end

-- Readers of the script's own arguments.
local at, blob_at = 4, 1
local function text()
  at = at + 1
  local value = ARGUMENTS[at]
  return type(value) == 'number' and whole(value) or value
end
local function blob()
  blob_at = blob_at + 1
  return ARGV[blob_at]
end
local function number()
  return tonumber(text())
end
local function optional()
  local value = text()
  return value ~= '' and value or nil
end
