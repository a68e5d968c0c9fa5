-- How jobs end: their deduplication keys are freed and their children settled.

local function free_key(key)
  redis.call('HDEL', DEDUP, key)
  redis.call('ZREM', WINDOWS, key)
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
    free_key(key)
    return nil
  end
  return string.sub(held, bar + 1), till ~= ''
end

-- The children that wait for a life of a job, in the order in which they came.
local function children_key(family)
  return PREFIX .. 'children:' .. family
end

-- The lives of its parents that a job still waits for: not in its record, as they may be many, and a parent's ending
-- takes one off without reading the others.
local function parents_key(id)
  return PREFIX .. 'parents:' .. id
end

-- Releases the key that the job still holds, and its place among its parents' children.
local function let_go(job)
  if job.dedup_key then
    local holder, window = key_holder(job.dedup_key)
    if holder == job.id and not window then
      free_key(job.dedup_key)
    end
  end
  if job.depends_on or job.bad then
    for _, family in ipairs(redis.call('SMEMBERS', parents_key(job.id))) do
      redis.call('ZREM', children_key(family), job.id)
    end
    redis.call('DEL', parents_key(job.id))
  end
end

local function fail(job, error)
  job.beside = {'error', error}
  if not job.erred then
    job.erred = '1'
    job.beside = {'error', error, 'first_error', error}
  end
end

-- A record that makes no sense, found as a member of its state's order, fails, so that it hides no other. As every
-- ending this settles its children, or its caller does.
local function spoil(job, member)
  redis.call('ZREM', ZSET[job.state], member)
  job.place = string.sub(member, 1, 16)
  job.family = job.family or next_number()
  job.format = job.format or whole(FORMAT)
  job.priority = integer(job.priority) and job.priority or '5'
  job.created_at = integer(job.created_at) and job.created_at or NOW_TEXT
  job.finished_at, job.run_at = NOW_TEXT, nil
  fail(job, cjson.encode({'CorruptRecord', 'the stored record makes no sense', ''}))
  enter(job, 'failed')
  deliver(job)
  save(job)
  let_go(job)
end

local function parent_failed(parent, ended)
  local told, values = cjson.decode('@PARENT_FAILED@'), {PARENT = parent, ENDED = ended}
  return cjson.encode({told[1], (string.gsub(told[2], '@(%u+)@', values)), ''})
end

-- Settles the children of an ended parent, and theirs, at most MAX_CHILDREN; marks what remains for the sweep.
-- Returns a flat list: id, state, ...
local function settle_children(family, parent, ended)
  if redis.call('EXISTS', children_key(family)) == 0 then
    return {}
  end
  local dependants, budget = {}, MAX_CHILDREN
  local queue, head = {{family, parent, ended}}, 1

  local function tell(child, state)
    dependants[#dependants + 1] = child.id
    dependants[#dependants + 1] = state
    if state == 'failed' then
      queue[#queue + 1] = {child.family, child.id, 'failed'}
    end
  end

  while queue[head] do
    local of, name, how = unpack(queue[head])
    head = head + 1
    local ids = redis.call('ZRANGE', children_key(of), 0, budget)
    for index = 1, math.min(#ids, budget) do
      local id = ids[index]
      redis.call('ZREM', children_key(of), id)
      redis.call('SREM', parents_key(id), of)
      local waits = redis.call('EXISTS', parents_key(id)) == 1
      local child = not (waits and how == 'completed') and load(id)
      if child and child.bad then
        if ZSET[child.state] and not TERMINAL[child.state] then
          spoil(child, (child.place or '') .. id)
          tell(child, 'failed')
        end
      elseif child and how ~= 'completed' and child.on_parent_failure ~= 'run' then
        fail(child, parent_failed(name, how))
        move(child, 'failed')
        let_go(child)
        tell(child, 'failed')
      elseif child and child.state == 'blocked' and not waits then
        move(child, 'waiting', true)
        tell(child, 'waiting')
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
