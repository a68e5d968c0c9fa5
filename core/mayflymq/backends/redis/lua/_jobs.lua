-- What every script begins with: its arguments, the queue, and how one job is read, moved and written.
--
-- KEYS     the queue's fixed keys, in the order of keys.py
-- ARGV[1]  a JSON array: the prefix of the keys of single jobs and claims, with the queue's hash tag; the time in
--          milliseconds, for tests, or '' for the server's; the newest record format that the caller knows; how many
--          children one step settles; and an array of the script's own arguments: `ASKED`
-- ARGV[2]  and on: those of its arguments that are bytes

local ZSET = {
  waiting = KEYS[1], delayed = KEYS[2], blocked = KEYS[3], active = KEYS[4],
  completed = KEYS[5], failed = KEYS[6], expired = KEYS[7], cancelled = KEYS[8],
}
local META, DEDUP, WINDOWS, CASCADES = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local UNPUBLISHED, PUBLISHED, SCHEDULES, SLOTS = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local PREFIX, NOW, FORMAT, MAX_CHILDREN, ASKED = unpack(cjson.decode(ARGV[1]))
local MAX_TIME = 9007199254740991
local BROKER, REGISTERED, PAUSED, NEWER = unpack(redis.call('HMGET', META, 'broker', 'registered', 'paused', 'newer'))
local TERMINAL = {completed = true, failed = true, expired = true, cancelled = true}

if NOW == '' then
  local time = redis.call('TIME')
  NOW = time[1] * 1000 + math.floor(time[2] / 1000)
end
local NOW_TEXT = string.format('%.0f', NOW)

local function whole(number)
  return string.format('%.0f', number)
end

-- Times stay whole numbers that a double holds.
local function after(ms)
  return string.format('%.0f', math.min(NOW + ms, MAX_TIME))
end

-- A number for a place or a family, padded so that text order is number order.
local function next_number()
  return string.format('%016.0f', redis.call('HINCRBY', META, 'last', 1))
end

local function integer(text)
  return text and #text < 20 and string.find(text, '^%-?%d+$')
end

-- What transitions know of a job: the JSON object in the field `record` of its hash, all of it text, as numbers in JSON
-- would lose digits. What is written once, or only read by callers, has fields of its own beside it: `spec`, `payload`,
-- `error`, `first_error`, `result`. nil where there is no job; `bad` is set where the record makes no sense.
local function load(id)
  local packed = redis.pcall('HGET', PREFIX .. 'job:' .. id, 'record')
  if type(packed) ~= 'string' then
    return nil
  end
  local ok, job = pcall(cjson.decode, packed)
  if not ok or type(job) ~= 'table' then
    job = {}
  end
  job.id = id
  local foreign = false
  for name, value in pairs(job) do
    if type(value) ~= 'string' then
      job[name], foreign = nil, true
    end
  end
  job.beside = nil
  local state = job.state
  if foreign or not (ZSET[state] and job.place and #job.place == 16 and job.family and #job.family == 16)
    or not (integer(job.priority) and integer(job.created_at))
    or (state == 'delayed' and not integer(job.run_at))
    or (state == 'active' and not (integer(job.stale_at) and job.claim_token and job.worker))
    or (TERMINAL[state] and not integer(job.finished_at)) then
    job.bad = true
  end
  return job
end

-- Writes a job, and what was put in its list `beside`: field, value, ... Returns the record.
local function save(job)
  local beside, bad = job.beside, job.bad
  job.beside, job.bad = nil, nil
  local packed = cjson.encode(job)
  if beside then
    redis.call('HSET', PREFIX .. 'job:' .. job.id, 'record', packed, unpack(beside))
  else
    redis.call('HSET', PREFIX .. 'job:' .. job.id, 'record', packed)
  end
  job.bad = bad
  return packed
end

-- The job leaves its state's order and lets go of its claim; `enter` follows, unless it is removed.
local function leave(job)
  redis.call('ZREM', ZSET[job.state], job.place .. job.id)
  if job.claim_token then
    redis.call('ZREM', PREFIX .. 'claim:' .. job.claim_token, job.id)
  end
end

-- A member is the job's place and its id; its score is what orders the state.
local function enter(job, state)
  job.state = state
  local score = job.finished_at
  if state == 'waiting' then
    score = job.priority
  elseif state == 'delayed' then
    score = job.run_at
  elseif state == 'active' then
    score = job.stale_at
  elseif state == 'blocked' then
    score = '0'
  end
  redis.call('ZADD', ZSET[state], score, job.place .. job.id)
end

local function id_of(member)
  return string.sub(member, 17)
end

-- A delivery's score among the unpublished is when it was handed out; the others go in the order of their jobs.
local NEVER = MAX_TIME
local function delivery_of(job)
  return (job.born or job.family) .. job.id
end

local function end_delivery(job)
  if job.delivery then
    redis.call('ZREM', UNPUBLISHED, delivery_of(job))
    redis.call('ZREM', PUBLISHED, delivery_of(job))
    job.delivery = nil
  end
end

-- Entering a state that a broker delivers makes a delivery under a fresh token, entering another one ends it.
local function deliver(job)
  end_delivery(job)
  if BROKER and (job.state == 'waiting' or job.state == 'failed' or job.state == 'expired') then
    job.delivery = redis.sha1hex(REGISTERED .. next_number())
    redis.call('ZADD', UNPUBLISHED, NEVER, delivery_of(job))
  end
end

-- One lifecycle transition. Fields that go with it are set before, except those that order the old state.
local function move(job, state, fresh_place)
  local before = job.state
  leave(job)
  if before == 'active' then
    job.claim_token, job.heartbeat_at, job.stale_at, job.cancel_requested = nil, nil, nil, nil
  end
  if fresh_place then
    job.place = next_number()
  end
  if TERMINAL[state] then
    job.finished_at = NOW_TEXT
  end
  enter(job, state)
  if before ~= state then
    deliver(job)
  end
  save(job)
end

-- A whole job: its record and what is beside it; nothing where there is none, its id alone where the key holds something
-- else.
local function whole_job(id)
  local fields = redis.pcall(
    'HMGET', PREFIX .. 'job:' .. id, 'record', 'spec', 'payload', 'error', 'first_error', 'result'
  )
  if fields.err then
    return {cjson.encode({id = id})}
  end
  return fields[1] and fields or {}
end

-- Whether a record is of a newer format, and so left alone; what was seen is kept for check().
local function newer(format)
  format = integer(format) and tonumber(format) or 0
  if format > (tonumber(NEWER) or FORMAT) then
    NEWER = whole(format)
    redis.pcall('HSET', META, 'newer', NEWER) -- not worth an error where memory is full
  end
  return format > FORMAT
end

-- How many of what is left alone one script goes through.
local LOOK_PAST = 10000
