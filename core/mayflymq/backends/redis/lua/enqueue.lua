-- New jobs of one queue. ARGV: count, then for each job: id, task, packed, priority, delay_ms, run_at, ttl_ms,
-- timeout_ms, max_retries, backoff, depends_on (JSON), on_parent_failure, dedup_key, dedup_mode, dedup_window_ms,
-- dedup_extend; as bytes: the payloads. Returns for each, as JSON: status, state, holder, parent that is unknown,
-- dependants; refused without such a parent where its key holds no hash.
local EACH, DEPENDS_ON = 16, 11
if not REGISTERED then
  for index = 5 + DEPENDS_ON, #ARGUMENTS, EACH do -- only one without parents can be the first of a queue
    if ARGUMENTS[index] == '[]' then
      return 'UNREGISTERED'
    end
  end
end

local function enqueue()
  local id, task, packed, priority = text(), text(), text(), text()
  local delay_ms, run_at = number(), optional()
  local ttl_ms, timeout_ms, max_retries, backoff = optional(), optional(), text(), text()
  local depends_on, policy = text(), text()
  local key, mode, window_ms, extend = optional(), optional(), number(), text()
  local payload = blob()

  local existing = redis.pcall('HMGET', job_key(id), 'state')
  if existing.err then
    return {'refused', '', '', '', {}}
  elseif existing[1] then
    return {'duplicate_id', ZSET[existing[1]] and existing[1] or '', '', '', {}}
  end
  local parents, seen = {}, {}
  if depends_on ~= '[]' then
    for _, parent in ipairs(cjson.decode(depends_on)) do
      if not seen[parent] then
        seen[parent] = true
        parents[#parents + 1] = parent
        if not peek(parent, 'state')[1] then -- nor is its own id there at this moment
          return {'refused', '', '', parent, {}}
        end
      end
    end
  end

  local due_at = run_at and tonumber(run_at) or after(delay_ms)
  local replaced, dependants = '', {}
  if key then
    local holder = key_holder(key)
    if holder then
      local held_by_job = load(holder)
      if mode ~= 'debounce' or not held_by_job or held_by_job.state ~= 'delayed' then
        return {'deduplicated', held_by_job and ZSET[held_by_job.state] and held_by_job.state or '', holder, '', {}}
      end
      if extend == '0' then
        due_at = tonumber(held_by_job.run_at)
      end
      replaced, dependants = holder, finish(held_by_job, 'cancelled')
    end
  end

  local unfinished, failed = {}, nil
  for _, parent_id in ipairs(parents) do
    local parent = peek(parent_id, 'state', 'family')
    if not TERMINAL[parent[1]] then
      unfinished[#unfinished + 1] = parent[2]
    elseif parent[1] ~= 'completed' then
      failed = failed or {parent_id, parent[1]}
    end
  end
  local job = {id = id, key = job_key(id), changed = {}, dropped = {}}
  set(job, 'state', due_at > NOW and 'delayed' or (#unfinished > 0 and 'blocked' or 'waiting'))
  if failed and policy == 'fail' then
    set(job, 'state', 'failed')
    set(job, 'finished_at', NOW)
    fail(job, parent_failed(failed[1], failed[2]))
    unfinished = {}
  elseif key then
    take_key(key, id, mode == 'throttle' and window_ms or nil)
  end
  local number_of_it = next_number()
  for name, value in pairs({
    id = id, task = task, payload = payload, packed = packed, max_retries = max_retries, backoff = backoff,
    depends_on = depends_on, format = FORMAT, priority = priority, created_at = NOW, on_parent_failure = policy,
    place = number_of_it, born = number_of_it, family = number_of_it,
  }) do
    set(job, name, value)
  end
  if due_at > NOW then set(job, 'run_at', due_at) end
  if ttl_ms then set(job, 'ttl_ms', ttl_ms) end
  if timeout_ms then set(job, 'timeout_ms', timeout_ms) end
  if key then
    set(job, 'dedup_key', key)
    set(job, 'dedup_mode', mode)
    set(job, 'dedup_window_ms', window_ms)
    set(job, 'dedup_extend', extend)
  end
  wait_for(job, unfinished)
  put_in(job)
  deliver(job)
  save(job)
  return {replaced ~= '' and 'replaced' or 'created', job.state, replaced, '', dependants}
end

local answers = {}
for index = 1, number() do
  answers[index] = enqueue()
end
return cjson.encode(answers)
