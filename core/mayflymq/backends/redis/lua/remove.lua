-- Deletes jobs in any state. ARGV: count, ids. Returns for each: whether it was there, dependants.
local answers = {}
for index = 1, number() do
  local job = load(text())
  answers[index] = job and {1, remove(job)} or {0, {}}
end
return answers
