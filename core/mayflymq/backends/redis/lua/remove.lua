-- Deletes jobs in any state. ASKED: ids. Returns for each: whether it was there, dependants.
-- With: endings, removals.
local answers = {}
for index, id in ipairs(ASKED) do
  local job = load(id)
  answers[index] = job and {1, remove(job)} or {0, {}}
end
return answers
