-- Cancels jobs: queued ones at once, active ones by the marker. ARGV: count, ids. Returns for each: status, dependants.
local answers = {}
for index = 1, number() do
  local job = load(text())
  if not job then
    answers[index] = {'unknown', {}}
  elseif TERMINAL[job.state] or job.bad then
    answers[index] = {'terminal', {}}
  elseif job.state == 'active' then
    set(job, 'cancel_requested', '1')
    save(job)
    answers[index] = {'requested', {}}
  else
    answers[index] = {'cancelled', finish(job, 'cancelled')}
  end
end
return answers
