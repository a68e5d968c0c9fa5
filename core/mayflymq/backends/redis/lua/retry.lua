-- Failed and expired jobs are queued again, each as a new life. ASKED: ids. Returns for each: status, state, holder of
-- its key.
-- With: endings, beginnings.
local function retry(job)
  if not job or not ZSET[job.state] then
    return {'unknown', '', ''}
  elseif job.bad or (job.state ~= 'failed' and job.state ~= 'expired') then
    return {'not_dead', job.state, ''}
  end
  if job.dedup_key then
    local holder = key_holder(job.dedup_key)
    if holder and holder ~= job.id then
      return {'key_taken', job.state, holder}
    elseif job.dedup_mode ~= 'throttle' then
      take_key(job.dedup_key, job.id)
    end
  end
  local families, seen = {}, {}
  local ok, parents = pcall(cjson.decode, job.depends_on or '[]')
  for _, parent in ipairs(ok and type(parents) == 'table' and parents or {}) do
    local found = type(parent) == 'string' and load(parent)
    if not seen[parent] and found and not TERMINAL[found.state] then
      seen[parent] = true
      families[#families + 1] = found.family
    end
  end
  job.born = job.born or job.family
  job.family = next_number()
  wait_for(job, families)
  job.failures, job.stalls, job.progress = nil, nil, nil
  job.replays = whole((tonumber(job.replays) or 0) + 1)
  job.retried_at = NOW_TEXT
  if #families > 0 then
    move(job, 'blocked')
  else
    move(job, 'waiting', true)
  end
  job.finished_at = nil
  save(job)
  return {'retried', job.state, ''}
end

local answers = {}
for index, id in ipairs(ASKED) do
  answers[index] = retry(load(id))
end
return answers
