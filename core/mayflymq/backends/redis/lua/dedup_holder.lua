-- Who holds a deduplication key now. ARGV: key, whether to free it. Returns the id, or '' for none.
local key, release = text(), text() == '1'
local holder = key_holder(key)
if holder and release then
  free_key(key)
end
return holder or ''
