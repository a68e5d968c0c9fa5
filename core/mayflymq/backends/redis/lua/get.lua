-- Whole records. ARGV: count, ids. Returns for each its fields, none where there is no such job.
local records = {}
for index = 1, number() do
  records[index] = record(text())
end
return records
