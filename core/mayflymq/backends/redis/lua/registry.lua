-- Names a queue's generation in the registry of queues, or forgets the queue, where the registry has what is expected.
-- It stands in another slot than the queue and shares nothing with the other scripts.
-- Stands alone. KEYS: registry. ARGV: queue, expected generation, new one ('' forgets). Returns whether it was expected.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
