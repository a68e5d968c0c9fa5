-- Cancels jobs: queued ones at once, active ones by the marker. ASKED: ids. Returns for each: status, dependants.
-- With: endings.
local answers = {}
for index, id in ipairs(ASKED) do
  local job = load(id)
  if not job then
    answers[index] = {'unknown', {}}
  elseif TERMINAL[job.state] or job.bad then
    answers[index] = {'terminal', {}}
  elseif job.state == 'active' then
    job.cancel_requested = '1'
    save(job)
    answers[index] = {'requested', {}}
  else
    answers[index] = {'cancelled', finish(job, 'cancelled')}
  end
end
return answers
