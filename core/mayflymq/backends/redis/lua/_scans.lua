-- How the members of a state are gone through.

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

local function is_in(state, member)
  return ZSET[state] and redis.call('ZSCORE', ZSET[state], member)
end

-- Whether a member stands for its job as it is. One that does not was left by no transition and is taken out (promise
-- X4); a record that makes no sense is set aside; one of a newer format stays.
local function stands(job, member, state)
  if job and newer(job.format) then
    return 'kept'
  elseif job and job.bad and not (job.state ~= state and is_in(job.state, member)) then
    job.state = state
    set_aside(job, member)
    return 'gone'
  elseif not job or job.state ~= state or job.place .. job.id ~= member then
    redis.call('ZREM', ZSET[state], member)
    return 'gone'
  end
end

-- Due delayed jobs, at most `limit`, to waiting, or to blocked while parents are unfinished. Returns their ids.
local function promote(limit)
  local ids = {}
  sift(ZSET.delayed, NOW_TEXT, limit, function(member, id)
    local job = load(id)
    local otherwise = stands(job, member, 'delayed')
    if otherwise then
      return otherwise
    elseif job.depends_on and redis.call('EXISTS', parents_key(id)) == 1 then
      move(job, 'blocked')
    else
      move(job, 'waiting', true)
    end
    ids[#ids + 1] = id
    return 'done'
  end)
  return ids
end
