-- New jobs of one queue. ARGV: count, then for each job: id, spec (what no transition needs), priority, delay_ms, run_at,
-- depends_on (JSON), on_parent_failure, dedup_key, dedup_mode, dedup_window_ms, dedup_extend; as bytes: the payloads.
-- Returns for each, as JSON: status, state, holder, parent that is unknown, dependants; refused without such a parent
-- where its key holds no hash.
local EACH, DEPENDS_ON = 11, 6
if not REGISTERED then
  for index = 5 + DEPENDS_ON, #ARGUMENTS, EACH do -- only one without parents can be the first of a queue
    if ARGUMENTS[index] == '[]' then
      return 'UNREGISTERED'
    end
  end
end

local function enqueue()
  local id, spec, priority, delay_ms, run_at = text(), text(), text(), number(), optional()
  local depends_on, policy = text(), text()
  local key, mode, window_ms, extend = optional(), optional(), number(), text()
  local payload = blob()

  local existing = redis.pcall('HGET', job_key(id), 'record')
  if type(existing) == 'table' then
    return {'refused', '', '', '', {}}
  elseif existing then
    local state = load(id).state
    return {'duplicate_id', ZSET[state] and state or '', '', '', {}}
  end
  local parents, seen = {}, {}
  if depends_on ~= '[]' then
    for _, parent in ipairs(cjson.decode(depends_on)) do
      if not seen[parent] then
        seen[parent] = true
        parents[#parents + 1] = parent
        if not load(parent) then -- nor is its own id there at this moment
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
    local parent = load(parent_id)
    if not TERMINAL[parent.state] then
      unfinished[#unfinished + 1] = parent.family
    elseif parent.state ~= 'completed' then
      failed = failed or {parent_id, parent.state}
    end
  end
  local job = {id = id, key = job_key(id), beside = {'spec', spec, 'payload', payload}}
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
  set(job, 'format', FORMAT)
  set(job, 'priority', priority)
  set(job, 'created_at', NOW)
  set(job, 'on_parent_failure', policy)
  set(job, 'place', number_of_it)
  set(job, 'born', number_of_it)
  set(job, 'family', number_of_it)
  set(job, 'run_at', due_at > NOW and due_at or nil)
  set(job, 'depends_on', #parents > 0 and depends_on or nil)
  set(job, 'dedup_key', key)
  set(job, 'dedup_mode', key and mode)
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
