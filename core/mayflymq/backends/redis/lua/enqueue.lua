-- New jobs of one queue. ASKED: for each job: id, spec (what no transition needs), priority, delay_ms; and where it has
-- more than these: run_at, depends_on (JSON), on_parent_failure, dedup_key, dedup_mode, dedup_window_ms, dedup_extend;
-- '' for none. As bytes: the payloads. Returns for each, as JSON: its state where it was created and that is all, else
-- status, state, holder, parent that is unknown, dependants; refused without such a parent where its key holds no hash.
-- With: endings, beginnings.
if not REGISTERED then
  for _, asked in ipairs(ASKED) do -- only one without parents can be the first of a queue
    if (asked[6] or '') == '' then
      return 'UNREGISTERED'
    end
  end
end

-- Numbers for this job and those after it, had in one step.
local last
local function number_of(index)
  last = last or redis.call('HINCRBY', META, 'last', #ASKED - index + 1) - #ASKED
  return string.format('%016.0f', last + index)
end

local function enqueue(index, id, spec, priority, delay_ms, run_at, depends_on, policy, key, mode, window_ms, extend)
  local existing = redis.pcall('HGET', PREFIX .. 'job:' .. id, 'record')
  if type(existing) == 'table' then
    return {'refused', '', '', '', {}}
  elseif existing then
    local state = load(id).state
    return {'duplicate_id', ZSET[state] and state or '', '', '', {}}
  end
  local parents, seen = {}, {}
  if depends_on and depends_on ~= '' then
    for _, name in ipairs(cjson.decode(depends_on)) do
      if not seen[name] then
        local parent = load(name) -- its own id is not there at this moment
        if not parent then
          return {'refused', '', '', name, {}}
        end
        seen[name] = true
        parents[#parents + 1] = parent
      end
    end
  end

  local due_at = run_at and run_at ~= '' and run_at or math.min(NOW + delay_ms, MAX_TIME)
  local replaced, dependants = nil, {}
  if key and key ~= '' then
    local holder = key_holder(key)
    if holder then
      local held_by_job = load(holder)
      if mode ~= 'debounce' or not held_by_job or held_by_job.bad or held_by_job.state ~= 'delayed' then
        return {'deduplicated', held_by_job and ZSET[held_by_job.state] and held_by_job.state or '', holder, '', {}}
      end
      if extend == 0 then
        due_at = tonumber(held_by_job.run_at)
      end
      replaced, dependants = holder, finish(held_by_job, 'cancelled')
      last = nil -- its children may have had numbers
      for nth, parent in ipairs(parents) do -- and it may be one of the parents
        parents[nth] = load(parent.id)
      end
    end
  end

  local number = number_of(index)
  local job = {
    id = id, format = whole(FORMAT), priority = whole(priority), created_at = NOW_TEXT, place = number, family = number,
    beside = {'spec', spec, 'payload', ARGV[1 + index]},
  }
  local unfinished, failed = {}, nil
  for _, parent in ipairs(parents) do
    if not TERMINAL[parent.state] then
      unfinished[#unfinished + 1] = parent.family
    elseif parent.state ~= 'completed' then
      failed = failed or parent
    end
  end
  local state = #unfinished > 0 and 'blocked' or 'waiting'
  if due_at > NOW then
    state, job.run_at = 'delayed', whole(due_at)
  end
  if #parents > 0 then
    job.depends_on = depends_on
  end
  if policy == 'run' then
    job.on_parent_failure = policy
  end
  if key and key ~= '' then
    job.dedup_key, job.dedup_mode = key, mode
  end
  if failed and policy == 'fail' then
    state, job.finished_at = 'failed', NOW_TEXT
    local error = parent_failed(failed.id, failed.state)
    job.erred = '1'
    job.beside = {'spec', spec, 'payload', ARGV[1 + index], 'error', error, 'first_error', error}
  else
    if job.dedup_key then
      take_key(key, id, mode == 'throttle' and window_ms or nil)
    end
    wait_for(job, unfinished)
  end
  enter(job, state)
  deliver(job)
  save(job)
  if not replaced then
    return state
  end
  return {'replaced', state, replaced, '', dependants}
end

local answers = {}
for index, asked in ipairs(ASKED) do
  answers[index] = enqueue(index, unpack(asked))
end
return cjson.encode(answers)
