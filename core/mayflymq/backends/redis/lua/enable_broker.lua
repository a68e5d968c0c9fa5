-- From now on every job that a broker delivers gets a delivery, those that are there too.
if redis.call('HSETNX', META, 'broker', 1) == 1 then
  BROKER = true
  for state in pairs(DELIVERED) do
    for _, member in ipairs(redis.call('ZRANGE', ZSET[state], 0, -1)) do
      local job = load(id_of(member))
      if job then
        deliver(job)
        save(job)
      end
    end
  end
end
return 'OK'
