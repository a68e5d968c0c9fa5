-- Pauses or resumes the queue. ARGV: 1 or 0.
if not REGISTERED then
  return 'UNREGISTERED'
end
if text() == '1' then
  redis.call('HSET', META, 'paused', 1)
else
  redis.call('HDEL', META, 'paused')
end
return 'OK'
