-- Whole jobs. ASKED: ids. Returns for each its record and what is beside it, none where there is no such job.
local jobs = {}
for index, id in ipairs(ASKED) do
  jobs[index] = whole_job(id)
end
return jobs
