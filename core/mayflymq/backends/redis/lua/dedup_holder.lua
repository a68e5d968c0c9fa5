-- Who holds a deduplication key now. ASKED: key, whether to free it. Returns the id, or '' for none.
-- With: endings.
local key, release = unpack(ASKED)
local holder = key_holder(key)
if holder and release == 1 then
  free_key(key)
end
return holder or ''
